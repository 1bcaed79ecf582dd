"""How tests of blocks compile: without waiting for a program to run a few times."""

import pytest

from tests import inspect


@pytest.fixture
def compiled_at_once():
    """Programs have their compiled form from the first run on, and kernels, where there are any."""
    with inspect.compiled_at_once():
        yield
