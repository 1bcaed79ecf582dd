"""Fixtures of the tests of the on-the-fly engine."""

import contextlib

import pytest


@pytest.fixture
def room():
    """A stack for contexts that last until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield stack
