"""What the examples in docstrings may use without importing it."""

import gc
import sys

import numpy as np
import pytest

import autobatch
from tests import inspect

if sys.platform == "win32":  # what these use is of POSIX only: `resource`, guarded pages, `fork`
    collect_ignore = [
        "tests/hostile.py", "tests/test_hostile.py", "tests/soak.py", "tests/test_soak.py",
        "tests/checkpoint/test_kills.py", "tests/data/crafted_arrow.py",
    ]  # fmt: skip


def pytest_collection_finish():
    """What was imported and collected lives until the end: no collection of garbage looks through it again, and those
    of what tests make are rarer, since caches are most of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(autouse=True, scope="session")
def _no_kernels_compiled_on_the_side(tmp_path_factory):
    """The process that compiles kernels would take the time of the tests; those of kernels have one of their own.

    Nor are there kernels of earlier programs: what a test runs does not depend on what this machine ran before.
    """
    with pytest.MonkeyPatch.context() as patch, inspect.no_compiler():
        patch.setenv("AUTOBATCH_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        patch.setenv("RAY_TQDM_PATCH_PRINT", "0")  # or Ray puts a function of its own in the place of `print`
        yield


@pytest.fixture(autouse=True)
def _names_in_docstrings(doctest_namespace):
    doctest_namespace["np"] = np
    doctest_namespace["ab"] = autobatch
