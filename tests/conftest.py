"""What runs: the tests are of the ways themselves, so each call runs by the way that it names."""

import pytest

import autobatch as ab


@pytest.fixture(autouse=True)
def _named_way(request):
    """Batches run in lock-step and maps on the fly, but for tests marked `chosen`, in which the library chooses."""
    if request.node.get_closest_marker("chosen"):
        yield
        return
    with ab.options(way="lockstep"):
        yield
