"""What a test counts is what the counted code does, and nothing of what goes on beside it."""

import gc

import pytest

from tests import inspect


@pytest.fixture
def busy_collector():
    """A collection after nearly each object that is made, and a callback of another library's at each."""
    before = gc.get_threshold()

    def heard(phase, info):
        return phase

    gc.callbacks.append(heard)
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(heard)


def test_a_collection_is_not_among_the_calls_of_a_function(busy_collector):
    kept = []

    def keep(count):
        for _ in range(count):
            kept.append([])

    assert inspect.python_calls(lambda: keep(1000)) == inspect.python_calls(lambda: keep(1)) == 2
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        inspect.python_calls(list)
        assert not gc.isenabled()
    finally:
        gc.enable()
