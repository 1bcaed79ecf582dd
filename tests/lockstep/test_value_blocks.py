"""Tests and returned expressions as blocks: one launch each, for the lanes that come there, with the loop's results.

Mutations that must turn this file red; each was made by hand and seen red:
    - no block for a test: in `FunctionBlocks.value`, `live_after = Names()`;
    - a test that is recorded: in `launch._compiled`, `wanted` kept for results that are no numbers.
"""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, options
from autobatch.lockstep import block_launch
from tests import inspect
from tests.law import agrees, batch_of, equals_loop, ragged, run_again
from tests.lockstep.test_rewrite import body_of, written

RNG = np.random.default_rng(3)
U = np.linalg.qr(RNG.normal(size=(4, 4)))[0] * 0.8
STARTS = [RNG.normal(size=4) * scale for scale in (5.0, 0.01, 1.0, 30.0, 0.3)]


def settles(h, u):
    while np.abs(h @ u).max() > 0.1:
        h = np.tanh(h @ u) * 0.9
    return h


def ways(h, u):
    if np.abs(h @ u).max() > 3.0:
        return np.tanh(h @ u) + np.abs(h).sum()
    elif (h * h).sum() * 2.0 > 1.0:
        h = h - 1.0
    elif (h * h).sum() + h.max() < 0.05:
        return (h @ u).sum() * 2.0 * h
    return np.exp(h - h.max()) / np.exp(h - h.max()).sum()


def in_a_loop(xs, u):
    h = np.zeros(4)
    for x in xs:
        if np.abs(x @ u).sum() > 2.0:
            continue
        h = np.tanh(h @ u + x)
        if np.abs(h).sum() > 1.5:
            return np.exp(h).sum() / 2.0
    return h.sum() * np.abs(h).max()


@pytest.fixture
def ran():
    """(the names of its ops, its number of rows, its program) of every launch of a block."""
    see = lambda out, program, *operands: ([step.op.name for step in program.steps], len(out[0]), program)
    with inspect.watched(block_launch, "launch", after=see) as seen:
        yield seen


def test_a_test_and_a_result_are_bound_before_the_statement():
    def f(h, u):
        while np.abs(h).max() > 1:
            h = h @ u
        return np.tanh(h) * 2 + h

    assert body_of(f) == written(
        """
        _ab_loop_1 = _ab_while((h,))
        for _ab_step_1 in _ab_loop_1:
            if _ab_loop_1.changed:
                h, = _ab_loop_1.values
            _ab_out_1 = _ab_block_1(h)
            if _ab_out_1:
                (_ab_value_1,) = _ab_out_1
                _ab_out_1 = None
            else:
                _ab_value_1 = _ab_call(_ab_call(np.abs, h).max) > 1
            if _ab_loop_1.stops(_ab_value_1, (h,)):
                if _ab_loop_1.is_empty:
                    break
                h, = _ab_loop_1.values
            _ab_out_2 = _ab_block_2(h, u)
            if _ab_out_2:
                (h,) = _ab_out_2
                _ab_out_2 = None
            else:
                h = h @ u
            _ab_loop_1.next((h,))
            _ab_scan_2(_ab_loop_1, (h,), (h, u), (h,), (), ())
        h, = _ab_loop_1.after()
        _ab_out_4 = _ab_block_4(h)
        if _ab_out_4:
            (_ab_value_4,) = _ab_out_4
            _ab_out_4 = None
        else:
            _ab_value_4 = _ab_call(np.tanh, h) * 2 + h
        return _ab_value_4
        """
    )


@pytest.mark.parametrize("f", [settles, ways])
def test_results_are_those_of_the_loop(f):
    equals_loop(f, STARTS, u=U)
    agrees(f, STARTS, u=U)
    agrees(f, STARTS[1:2], u=U)
    agrees(f, STARTS[::-1], u=U)


def test_inside_of_a_loop_over_ragged_rows():
    xs = [x * 0.7 for x in ragged(5, 0, 3, 9, 1, width=4, seed=2)]
    equals_loop(in_a_loop, xs, u=U)
    agrees(in_a_loop, xs, u=U)


def test_a_test_is_one_launch_for_the_lanes_in_the_loop(ran, step_by_step):
    steps = []
    for h in STARTS:
        steps.append(0)
        while np.abs(h @ U).max() > 0.1:
            h = np.tanh(h @ U) * 0.9
            steps[-1] += 1
    run_again(settles, STARTS, u=U)
    ran.clear()
    run_again(settles, STARTS, u=U, times=2)
    tests = [count for names, count, _ in ran if names == ["matmul", "absolute", "max", "greater"]]
    own = [sum(n >= t for n in steps) for t in range(max(steps) + 1)]
    assert tests[-len(own) :] == own
    with options(blocks=False):
        equals_loop(settles, STARTS, u=U)


@pytest.mark.parametrize("f", [settles, ways])
def test_gradients_are_those_of_the_loop_and_a_test_has_none(f, ran):
    g = batch(f, strict=True)
    total = batch(lambda y: (y * y).sum(), strict=True)
    for _ in range(4):
        got, rows = ab.grad(lambda u, h: ab.sum(total(g(h, u))), argnums=(0, 1))(U, batch_of(STARTS))
    want = [ab.grad(lambda u, h: (f(h, u) ** 2).sum(), argnums=(0, 1))(U, h) for h in STARTS]
    np.testing.assert_allclose(got, sum(own for own, _ in want), rtol=1e-9, atol=1e-12)
    for row, (_, own) in zip(rows.examples(), want, strict=True):
        np.testing.assert_allclose(row, own, rtol=1e-9, atol=1e-12)
    tests = [program for names, _, program in ran if names[-1] in ("greater", "less")]
    assert tests
    assert {wanted for program in tests for _, wanted in program.forms} == {()}


def test_the_first_example_whose_test_fails_says_so():
    def f(h, u):
        if (h @ u).reshape(2, 2).sum() + 0.0 > 1.0:
            return h[:2] @ u + 1.0
        return h * 2.0 + h - 1.0

    with pytest.raises(ValueError, match="matmul") as caught:
        batch(f, strict=True)(batch_of([-np.ones(4), np.ones(4) * 9, -np.ones(4)]), np.eye(4))
    assert "example 1" in "".join(caught.value.__notes__)
