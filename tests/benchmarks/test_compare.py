"""What counts as the same result, and how launches and phases are seen."""

import math
import pathlib
import signal
import sys

import numpy as np
import pytest

import autobatch as ab
from benchmarks import account, timing
from benchmarks.compare import difference


@pytest.mark.parametrize(
    ("expected", "got", "text"),
    [
        ([np.ones(2)], [np.ones(2), np.ones(2)], "the result: 2 values, expected 1 values"),
        ({"a": 1}, {"b": 1}, r"the result: a dict with the keys \['b'\], expected a dict with the keys \['a'\]"),
        ({"a": 1}, [1], "the result: 1 values, expected a dict"),
        ([np.ones(2)], [np.ones((2, 1))], r"\[0\]: shape \(2, 1\), expected \(2,\)"),
        (np.array([1.0, 2.0]), np.array([1.0, 2.1]), "differs by 0.1 where the largest value is 2"),
        (np.array([1.0, math.nan]), np.array([1.0, 2.0]), "differs by nan"),
        (np.array([1.0, 2.0]), np.array([1.0, math.nan]), "differs by nan"),
        (np.array([math.inf]), np.array([-math.inf]), "differs by inf"),
        (np.zeros(2), np.array([0.0, 1e-30]), "differs by 1e-30 where the largest value is 0"),
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 values differ"),
        (np.array(1.5), np.array(1.0), "differs by 0.5"),
    ],
)
def test_a_difference_is_found(expected, got, text):
    with pytest.raises(AssertionError, match=text):
        check(expected, got)


def check(expected, got):
    found = difference(expected, got, 1e-3)
    assert found is None, found


def test_equal_results():
    check(
        {"a": [np.array([1.0, math.nan, math.inf])], "b": 3}, {"a": (np.array([1.0005, math.nan, math.inf]),), "b": 3}
    )
    check(np.float32(2.0), np.array(2.0, np.float64))
    check([], [])


def test_launches_are_counted():
    batch = ab.MaskedBatch.from_examples([np.ones(3), np.ones(1)])
    counts = account.count(lambda: (batch * 2.0).sum())
    assert (counts["launches"], counts["calls"], counts["mean_group"]) == (2, 4, 2)
    assert counts["padding"] == pytest.approx(1 - 8 / 12)
    assert counts["backward_launches"] == 0


def test_launches_on_the_fly_and_backward_are_counted():
    xs = [np.ones(3), np.zeros(3), np.ones(2)]

    def step():
        ab.grad(lambda w: np.stack(ab.map(lambda x, w: (x * w).sum(), xs, w=w)).sum())(np.float64(2.0))

    with ab.options(blocks=False):
        counts = account.count(step)
    assert (counts["launches"], counts["calls"], counts["largest_group"]) == (2, 6, 3)
    assert counts["backward_launches"] >= 4
    counts = account.count(step)  # product and sum are one block
    assert (counts["launches"], counts["calls"], counts["largest_group"]) == (1, 3, 3)
    assert counts["backward_launches"] >= 2
    assert account.count(lambda: None)["launches"] == 0


def test_counting_leaves_the_opss_they_were():
    op = ab.extend.elementwise(lambda x: x + 1, lambda ct, out, x: ct, name="planted")
    before = (op.rule, op.vjp)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        account.count(lambda: 1 / 0)
    assert (op.rule, op.vjp) == before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_the_shares_of_a_tree_are_of_its_phases():
    def f(x):
        return np.tanh(x).sum() if len(x) < 2 else f(x[1:])

    found = account.shares(lambda: ab.map(f, [np.ones(n) for n in range(1, 6)]), 0.3)
    assert sum(found.values()) == pytest.approx(1)
    assert found["backward"] == 0
    assert found["tracing"] > 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_a_look_that_lasts_is_not_looked_at(monkeypatch):
    depths, depth = [], 0

    def interrupted(frame):
        nonlocal depth
        depth += 1
        depths.append(depth)
        signal.raise_signal(signal.SIGALRM)  # the next look is due
        depth -= 1
        return "other"

    monkeypatch.setattr(account, "phase", interrupted)
    account.shares(lambda: signal.raise_signal(signal.SIGALRM), 1e-3)
    assert set(depths) == {1}


def test_a_line_of_a_generated_block_has_a_phase():
    lines = ["    v7 = matmul(v6, v2)", "    v6 = concatenate_0(v0, v1, axis=value_0)", "    v8 = tanh(v7, out=v7)"]
    assert list(map(account._phase_of_line, lines)) == ["products", "gathering", "elementwise"]


def test_phases_are_of_modules_that_there_are():
    root = pathlib.Path(ab.__file__).parent
    for start, _ in account._PHASE_OF:
        assert list(root.glob(f"{start.replace('.', '/')}*")), start


def test_a_stack_outside_the_library_is_of_no_phase():
    assert account.phase(sys._getframe()) == "other"


def test_a_turn_is_filled():
    calls = []
    samples = timing.turn(lambda: calls.append(1), 1e-6, 0.005)
    assert len(calls) == 1 + 1000 * len(samples)  # one to warm up; a sample takes a millisecond or more
    assert 1000 * sum(wall for wall, _ in samples) >= 0.005


def test_spread():
    assert timing.spread([5.0]) == (5.0, 5.0, 5.0)
    assert timing.spread([4.0, 1.0, 2.0, 3.0, 5.0]) == (3.0, 1.5, 4.5)
