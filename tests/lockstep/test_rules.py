"""The rules of divergent code: who evaluates, who raises, and what it costs in lanes computed and launches.

Mutations that must turn this file, `test_branches.py` or `test_walks.py` red; each was made by hand and seen red:
    - masks that do not nest: in `branches.split_region`, `region.root.lanes()[: region.count]` for `region.lanes()`;
    - a condition evaluated twice: in `branches.branches`, a second `truth(test)`;
    - an arm that sees what the other one bound: in `Branches.__iter__`, no `self.values = ...` for the second arm;
    - a forgotten per-lane counter: in `DivergentLoop._split`, `()` for the values of the lanes that go, or in
      `joins._Join.value`, the first piece's value wherever it is no batch;
    - lanes kept in a loop that they have left: in `_LaneItemsLoop._narrow_to_items`, `ranks < items.count + 1`.
"""

import tracemalloc

import numpy as np
import pytest

from autobatch import batch, examples, options
from tests.inspect import Example, current_example, example
from tests.law import batch_of, ragged
from tests.lockstep.test_walks import NUMBERS, XS, fibonacci


def test_a_lane_elsewhere_computes_raises_and_draws_nothing():
    def f(xs):
        if len(xs) > 2:
            y = xs[2]  # no such item in other lanes
            key = current_example().next_key(1)
        else:
            y = 1.0
            key = 0
        return y, key, current_example().next_key(2)

    want = []
    for i, x in enumerate(XS):
        with example(Example(i)):
            want.append(f(x))
    got = examples(batch(f, strict=True)(batch_of(XS)))
    assert [tuple(map(float, row)) for row in got] == [tuple(map(float, row)) for row in want]


@pytest.mark.parametrize(("numbers", "wrong", "message"), [([3, -1, 2, -2], 1, "-1"), ([0, 2, 5, -4], 0, "0")])
def test_the_first_failing_example_raises(numbers, wrong, message):
    def f(n):
        if n <= 0:
            raise ValueError(f"not {n}")
        return n

    with pytest.raises(ValueError, match=f"not {message}") as caught:
        batch(f)(batch_of(numbers))
    assert caught.value.__notes__ == [f"raised for example {wrong}"]


def test_an_assert_fails_as_in_the_loop():
    def f(n):
        assert n < 5, f"{n} is too large"
        return n

    with pytest.raises(AssertionError, match="7 is too large") as caught:
        batch(f)(batch_of(NUMBERS))
    assert caught.value.__notes__ == ["raised for example 1"]


def test_a_name_bound_in_one_arm_is_unbound_for_the_others():
    def f(n):
        if n > 2:
            y = n
        return y

    with pytest.raises(UnboundLocalError, match="'y'") as caught:
        batch(f)(batch_of([3, 1, 5]))
    assert caught.value.__notes__ == ["raised for example 1"]


def test_a_condition_is_evaluated_once_by_the_lanes_that_reach_it(decisions):
    def f(n):
        if n > 2:
            n = -n
        elif n > 0:
            n = n * 10
        while n > 10:
            n = n - 10
        return n

    batch(f, strict=True)(batch_of([3, 7, 0, 5, 1, 4]))
    assert decisions == [6, 2, 6]


def test_an_arm_without_lanes_is_not_entered(decisions):
    def f(n):
        if n > 100:
            n = n // 0 if n > 200 else n
        while n > 50:
            n = n // 0
        return n

    batch(f, strict=True)(batch_of(NUMBERS))
    assert decisions == [6, 6]


@pytest.fixture
def computed(op_calls):
    """(the op, its lanes) of each launch so far, by a call."""
    return lambda: [(call.op, call.lanes) for call in op_calls if call.computes]


def test_fibonacci_runs_as_deep_as_its_deepest_lane(decisions):
    def calls(n):
        return 1 if n < 2 else 1 + calls(n - 1) + calls(n - 2)

    got = examples(batch(fibonacci, strict=True)(batch_of([3, 7, 4, 5])))
    assert got == [3, 21, 5, 8]
    assert len(decisions) == calls(7)
    assert sum(decisions) == sum(map(calls, [3, 7, 4, 5]))


def test_a_while_is_linear_in_the_steps_of_its_lanes(computed):
    def f(n, x):
        while n > 0:
            x = np.tanh(x)
            n -= 1
        return x

    numbers = [9, 1, 0, 4, 2, 2]
    batch(f, strict=True)(batch_of(numbers), batch_of(ragged(*[3] * 6)))
    lanes = [count for name, count in computed() if name == "tanh"]
    assert len(lanes) == 9
    assert sum(lanes) == sum(numbers)


def test_each_arm_computes_its_own_lanes(computed):
    def f(n, x):
        if n > 2:
            return np.exp(x)
        return np.tanh(x)

    batch(f, strict=True)(batch_of(NUMBERS), batch_of(ragged(*[3] * 6)))
    assert [launch for launch in computed() if launch[0] in ("exp", "tanh")] == [("exp", 4), ("tanh", 2)]


def test_a_loop_left_by_break_computes_the_lanes_that_are_there(computed):
    def f(n, xs):
        h = np.zeros(2)
        for i, x in enumerate(xs):
            if i == n:
                break
            h = np.tanh(h + x)
        return h

    xs = ragged(3, 1, 5, 4, 2, 6, width=2)
    with options(blocks=False):
        batch(f, strict=True)(batch_of(NUMBERS), batch_of(xs))
    assert sum(count for name, count in computed() if name == "tanh") == sum(
        min(n, len(x)) for n, x in zip(NUMBERS, xs, strict=True)
    )


def test_a_while_keeps_no_more_alive_than_its_state():
    def f(n, x):
        while n > 0:
            x = np.tanh(x)
            n -= 1
        return x

    lanes, width = 64, 1000
    columns = batch_of(list(range(lanes))), batch_of([np.ones(width)] * lanes)
    ran = batch(f, strict=True)
    ran(*columns)
    tracemalloc.start()
    ran(*columns)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * lanes * width * 8
