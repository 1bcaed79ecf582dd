"""Fixtures of the tests of the on-the-fly engine."""

import contextlib

import pytest

from autobatch.rewrite import structural
from autobatch.testing import inspect


@pytest.fixture(autouse=True)
def _nothing_was_recorded_before():
    structural.forget_recordings()


@pytest.fixture
def played():
    """How many examples of each map were copied."""
    with inspect.replayed() as counts:
        yield counts


@pytest.fixture
def room():
    """A stack for contexts that last until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield stack
