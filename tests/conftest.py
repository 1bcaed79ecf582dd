"""What runs: the tests are of the ways themselves, so each call runs by the way that it names."""

import copy
import sys

import hypothesis
import numpy as np
import pytest

import autobatch as ab
from autobatch.core.config import current
from autobatch.testing import compared_ways

hypothesis.settings.register_profile(  # the same examples in each run, however busy the machine; fuzzers draw others
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")


_states = []  # of each generator that the tests' modules hold: it, and its state when all of them were imported


def pytest_collection_finish():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("tests.")]
    found = {id(x): x for module in modules for x in vars(module).values() if isinstance(x, np.random.Generator)}
    _states[:] = [(each, copy.deepcopy(each.bit_generator.state)) for each in found.values()]


@pytest.fixture(autouse=True)
def _same_draws():
    """A test draws the same, whichever tests ran before it."""
    for generator, state in _states:
        generator.bit_generator.state = state


@pytest.fixture(autouse=True)
def _same_errors():
    """NumPy's own handling of floating-point errors, whatever a call that was left at some line has left behind.

    A `with np.errstate()` in a generator that is collected late puts back what was there when it was entered.
    """
    with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield


@pytest.fixture(autouse=True)
def _compiled_is_compared(monkeypatch):
    """However long the compiler takes: what a proof compares does not depend on how busy the machine is."""
    monkeypatch.setattr(compared_ways, "PATIENCE", 120.0)


@pytest.fixture(autouse=True, scope="session")
def _named_way():
    """Batches run in lock-step and maps on the fly, in fixtures too: what they compute depends on no measured time."""
    with ab.options(way="lockstep"):
        yield


@pytest.fixture(autouse=True)
def _chosen_way(request):
    """Where a test is marked `chosen`, the library chooses. A test leaves the options as they were."""
    with ab.options(way="auto" if request.node.get_closest_marker("chosen") else "lockstep"):
        before = current()
        yield
        after = current()
    assert after == before
