"""What the examples in docstrings may use without importing it."""

import numpy as np
import pytest

import autobatch


@pytest.fixture(autouse=True)
def _names_in_docstrings(doctest_namespace):
    doctest_namespace["np"] = np
    doctest_namespace["ab"] = autobatch
