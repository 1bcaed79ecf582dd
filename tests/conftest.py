"""What runs: the tests are of the ways themselves, so each call runs by the way that it names."""

import hypothesis
import pytest

import autobatch as ab
from autobatch.testing import compared_ways

hypothesis.settings.register_profile(  # the same examples in each run, however busy the machine; fuzzers draw others
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def _compiled_is_compared(monkeypatch):
    """However long the compiler takes: what a proof compares does not depend on how busy the machine is."""
    monkeypatch.setattr(compared_ways, "PATIENCE", 120.0)


@pytest.fixture(autouse=True)
def _named_way(request):
    """Batches run in lock-step and maps on the fly, but for tests marked `chosen`, in which the library chooses."""
    if request.node.get_closest_marker("chosen"):
        yield
        return
    with ab.options(way="lockstep"):
        yield
