"""What the examples in docstrings may use without importing it."""

import numpy as np
import pytest

import autobatch
from autobatch.blocks import kernel_cache


@pytest.fixture(autouse=True, scope="session")
def _no_kernels_compiled_on_the_side():
    """The process that compiles kernels would take the time of the tests; those of kernels have one of their own."""
    ask = kernel_cache._compiler.ask
    kernel_cache._compiler.ask = lambda path: False
    yield
    kernel_cache._compiler.ask = ask


@pytest.fixture(autouse=True)
def _names_in_docstrings(doctest_namespace):
    doctest_namespace["np"] = np
    doctest_namespace["ab"] = autobatch
