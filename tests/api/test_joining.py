"""Examples that come, go and fail by themselves while a map runs."""

import numpy as np
import pytest

from autobatch.api.call_ways import run_map
from tests.law import assert_same

W = np.linspace(-1, 1, 16).reshape(4, 4)


def countdown(x, steps, w):
    h = np.full(4, x)
    for _ in range(steps):
        h = np.tanh(h @ w + 0.1)
        if h[0] > 5.0:
            raise ValueError("never")
    if x == 13.0:
        raise ValueError("unlucky")
    return h, steps


class Guests:
    """A `Joining` that plays a schedule: at which asking which examples come, and which of them leave."""

    def __init__(self, first, schedule=(), leaving=()):
        self.examples = list(first)
        self.schedule = [list(each) for each in schedule]
        self.leaving = set(leaving)
        self.results, self.failed, self.asked = {}, [], 0
        self.settled_at = {}

    def arrivals(self):
        self.asked += 1
        joined = self.schedule.pop(0) if self.schedule else []
        self.examples += joined
        return joined

    def is_cancelled(self, index):
        return index in self.leaving

    def on_result(self, index, result):
        self.results.setdefault(index, result)
        self.settled_at.setdefault(index, self.asked)

    def on_error(self, index):
        self.failed.append(index)

    def run(self, function, **shared):
        results, stats = run_map(function, list(zip(*self.examples, strict=True)), shared, None, self)
        for index, result in enumerate(results):
            if index not in self.failed and index not in self.leaving:
                self.on_result(index, result)
        return stats


def test_examples_join_between_launches():
    guests = Guests([(1.0, 5), (2.0, 3)], [[], [(3.0, 4)], [], [(4.0, 0), (5.0, 2)]])
    stats = guests.run(countdown, w=W)
    assert stats.looped is None
    assert len(guests.examples) == 5
    for index, (x, steps) in enumerate(guests.examples):
        assert_same(guests.results[index], countdown(x, steps, W))


def test_what_joins_runs_in_the_same_launches():
    Guests([(1.0, 2), (2.0, 2)]).run(countdown, w=W)  # after which examples are recorded
    alone = Guests([(1.0, 6)])
    launches = alone.run(countdown, w=W).launches
    guests = Guests([(1.0, 6)], [[(float(i), 3)] for i in range(4)])
    assert guests.run(countdown, w=W).launches <= launches + 4


def test_a_result_leaves_when_it_is_there():
    guests = Guests([(1.0, 1), (2.0, 20)])
    guests.run(countdown, w=W)
    assert guests.settled_at[0] < guests.settled_at[1]


def in_the_end(x, steps, w):
    """Nothing waits for its result."""
    return countdown(x, steps, w)[0] @ w


@pytest.mark.parametrize("maps", [1, 3])
def test_a_result_that_nothing_waits_for_does_not_wait_for_other_examples(maps):
    for _ in range(maps):  # examples run as Python first, later they are recorded
        guests = Guests([(1.0, 1), (2.0, 20), (3.0, 10), (4.0, 4), (5.0, 2)])
        guests.run(in_the_end, w=W)
    assert sorted(guests.settled_at, key=guests.settled_at.get) == [0, 4, 3, 2, 1]
    assert guests.settled_at[0] < guests.settled_at[2] < guests.settled_at[1]


def test_one_that_raises_ends_alone():
    guests = Guests([(13.0, 2), (1.0, 4)], [[(13.0, 1)], [(2.0, 3)]])
    stats = guests.run(countdown, w=W)
    assert stats.looped is None
    assert guests.failed == [2, 0] or guests.failed == [0, 2]
    for index in (1, 3):
        assert_same(guests.results[index], countdown(*guests.examples[index], W))


def test_one_that_is_not_wanted_any_more_is_ended():
    guests = Guests([(1.0, 50), (2.0, 3)], leaving=[0])
    stats = guests.run(countdown, w=W)
    assert stats.looped is None
    assert stats.rounds < 10
    assert list(guests.results) == [1]
    assert_same(guests.results[1], countdown(2.0, 3, W))


def test_nothing_joins_where_something_may_be_changed():
    seen = []

    def f(x, w):
        seen.append(x)
        h = np.full(4, x) @ w
        return float(h.sum())

    guests = Guests([(1.0,), (2.0,)], [[(3.0,)]])
    guests.run(f, w=W)
    assert guests.asked == 0
    assert seen == [1.0, 2.0]


def test_a_failing_launch_is_nobodys():
    def f(x, w):
        h = np.linalg.inv(w * x)
        return h if h[0, 0] > 0 else -h

    guests = Guests([(1.0,), (0.0,), (2.0,)])
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        guests.run(f, w=np.eye(3))


def test_results_that_may_hide_arrays_wait_for_the_end():
    class Box:
        def __init__(self, value):
            self.value = value

    def f(x, w):
        h = np.full(4, x) @ w
        if h[0] > 100:
            return None
        return Box(h)

    guests = Guests([(1.0,), (2.0,)])
    guests.run(f, w=W)
    for index, (x,) in enumerate(guests.examples):
        assert type(guests.results[index].value) is np.ndarray
        assert_same(guests.results[index].value, f(x, W).value)
