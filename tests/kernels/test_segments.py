"""Segment, coalescing and update kernels as bare loops, with and without ids and weights, sentinels around outputs."""

import itertools

import numpy as np
import pytest

from autobatch.kernels import optimizer_steps, segment_reductions, sparse_gradients
from tests import naive

RANDOM = np.random.default_rng(11)
CASES = [  # few, for each compiles a dozen kernels
    (np.float32, False, False),
    (np.float32, True, True),
    (np.float64, False, True),
    (np.int64, False, False),
]
SENTINEL = 77


def make(shape, dtype):
    return (RANDOM.standard_normal(shape) * 10).astype(dtype)


def guarded(shape, dtype, fill):
    """An output between two rows of sentinels, and the check that they are still there."""
    whole = np.full((shape[0] + 2, *shape[1:]), SENTINEL, dtype)
    out = whole[1:-1]
    out[:] = fill

    def untouched():
        assert (whole[0] == SENTINEL).all()
        assert (whole[-1] == SENTINEL).all()

    return out, untouched


@pytest.mark.parametrize("n", [0, 1, 21])
@pytest.mark.parametrize("width", [0, 1, 2, 5])
@pytest.mark.parametrize(("dtype", "fused", "weighted"), CASES)
def test_segment_kernels(dtype, n, width, fused, weighted):
    table = make((24, width), dtype)
    ids = RANDOM.integers(0, 24, n) if fused else None
    of = RANDOM.integers(0, 4, n)
    x = table[ids] if fused else table[:n]
    source = table if fused else x
    weights = make(n, dtype) if weighted else None
    out, untouched = guarded((4, width), dtype, 0)
    segment_reductions.segment_sum(source, ids, weights, of, out)
    scaled = x if weights is None else x * weights[:, None]
    np.testing.assert_allclose(out, naive.segments(scaled, of, 4, "sum"), rtol=1e-4, atol=1e-4)
    untouched()
    for least, mode in [(False, "max"), (True, "min")]:
        out, untouched = guarded((4, width), dtype, 0)
        seen = np.zeros(4, np.bool_)
        segment_reductions.segment_extremum(source, ids, of, least, seen, out)
        np.testing.assert_array_equal(out, naive.segments(x, of, 4, mode))
        assert seen.tolist() == [i in of for i in range(4)]
        untouched()
    out, untouched = guarded((4, width), dtype, 1)
    segment_reductions.segment_prod(source, ids, of, out)
    np.testing.assert_allclose(out, [x[of == s].prod(0) for s in range(4)], rtol=1e-4)
    untouched()
    factors = make((n, width), dtype)
    (out, untouched), state = guarded((n, width), dtype, 0), np.ones((4, width), dtype)
    segment_reductions.segment_recurrence(factors, x, of, state, out)
    expected = np.ones((4, width), dtype)
    for i, segment in enumerate(of):
        np.testing.assert_allclose(out[i], expected[segment], rtol=1e-4)
        expected[segment] = x[i] + factors[i] * expected[segment]
    np.testing.assert_allclose(state, expected, rtol=1e-4)
    untouched()


def test_first_equal_takes_the_first_of_ties_and_nan():
    x, of = np.array([[1.0, np.nan], [2.0, np.nan], [2.0, 1.0]]), np.zeros(4, np.int64)
    values = np.array([[2.0, np.nan], [0.0, 0.0]])
    for ids, expected in ((np.array([2, 0, 1, 1]), [[0, 1], [-1, -1]]), (None, [[1, 0], [-1, -1]])):
        found, untouched = guarded((2, 2), np.int64, -1)
        segment_reductions.first_equal(x, ids, of if ids is not None else of[:3], values, found)
        assert found.tolist() == expected
        untouched()


def test_nan_is_the_extremum_of_its_segment():
    x, of = np.array([[1.0, np.nan], [np.nan, 1.0], [2.0, np.nan]]), np.zeros(3, np.int64)
    for least in (False, True):
        out = np.zeros((1, 2))
        segment_reductions.segment_extremum(x, None, of, least, np.zeros(1, np.bool_), out)
        assert np.isnan(out).all()


@pytest.mark.parametrize("n", [0, 1, 9])
def test_grouping_positions_by_row(n):
    inverse = RANDOM.integers(0, 3, n)
    count = int(inverse.max(initial=-1)) + 1
    starts, positions = np.zeros(count + 1, np.int64), np.full(n, -5)
    sparse_gradients.group_positions(inverse, starts, positions)
    for k in range(count):
        np.testing.assert_array_equal(positions[starts[k] : starts[k + 1]], np.flatnonzero(inverse == k))


@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64])
@pytest.mark.parametrize("factors", [False, True])
def test_rows_that_are_not_repeated(dtype, factors):
    sources, of = make((3, 4), dtype), np.array([2, 0, 2, 1, 1])
    by = make(5, dtype) if factors else None
    rows = sources[of] if by is None else sources[of] * by[:, None]
    starts, positions = np.array([0, 2, 4, 5]), np.array([0, 2, 1, 4, 3])
    sums = [rows[0] + rows[2], rows[1] + rows[4], rows[3]]
    squares = np.zeros(3)
    sparse_gradients.row_squares(0, 3, np.empty(4, dtype), starts, positions, sources, of, by, squares)
    np.testing.assert_allclose(squares, (np.array(sums) ** 2).sum(1), rtol=1e-4)
    acc = np.empty(4, dtype)
    sparse_gradients.row_gradient(acc, 1, starts, positions, sources, of, by, dtype(0.5), dtype(1))
    np.testing.assert_allclose(acc, np.clip(0.5 * sums[1], -1, 1), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_updates_touch_the_named_rows_only(dtype):
    ids, grads = np.array([3, 1]), make((2, 2), dtype)
    pieces = (np.array([0, 1, 2]), np.array([0, 1]), grads, None, None, dtype(1), dtype(-1), None)
    for kernel, states, numbers in [
        (optimizer_steps.sgd_rows, 0, (0.1, 0.0)),
        (optimizer_steps.momentum_rows, 1, (0.1, 0.0, 0.9)),
        (optimizer_steps.adagrad_rows, 1, (0.1, 0.0, 1e-10)),
        (optimizer_steps.adam_rows, 2, (0.1, 0.0, 0.0, 0.9, 0.99, 0.1, 0.01, 1.0, 1e-8)),
        (optimizer_steps.rms_rows, 3, (0.1, 0.0, 0.9, 0.1, 1e-8, 0.9)),
        (optimizer_steps.ftrl_rows, 2, (0.1, 0.0, 1.0, 0.0, 0.0)),
    ]:
        weights = make((4, 2), dtype)
        before, state = weights.copy(), [np.zeros((4, 2), dtype) for _ in range(states)]
        more = (False,) if kernel is optimizer_steps.momentum_rows else ()
        with np.errstate(invalid="ignore"):
            kernel(weights, *state, ids, 0, 2, np.empty(2, dtype), pieces, *map(dtype, numbers), *more)
        np.testing.assert_array_equal(weights[[0, 2]], before[[0, 2]])
        assert (weights[ids] != before[ids]).all()
        assert all((s[ids] != 0).all() and (s[[0, 2]] == 0).all() for s in state)


def test_the_row_wise_update():
    weights, sums, g = np.ones((3, 2)), np.zeros((3, 1)), np.array([[3.0, 4.0]])
    pieces = (np.array([0, 1]), np.array([0]), g, None, None, 1.0, -1.0, None)
    optimizer_steps.row_adagrad_rows(weights, sums, np.array([1]), 0, 1, np.empty(2), pieces, 0.1, 0.0, 0.0)
    assert sums[:, 0].tolist() == [0, 12.5, 0]
    np.testing.assert_allclose(weights[1], 1 - 0.1 * g[0] / np.sqrt(12.5))


N = 21  # more than a kernel reads at once
KERNELS = {
    "segment_sum": lambda of, out: (np.ones((N, out.shape[1])), None, None, of, out),
    "segment_count": lambda of, out: (of, out),
    "segment_extremum": lambda of, out: (np.ones((N, 1)), None, of, False, np.zeros(len(out), np.bool_), out),
    "first_equal": lambda of, out: (np.ones((N, 1)), None, of, out * 0 + 1.0, out),
    "segment_prod": lambda of, out: (np.ones((N, 1)), None, of, out),
}


@pytest.mark.parametrize("bad", [-1, 3, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_checks_segment_ids_neither_writes_nor_reads_beyond_them(name, bad):
    for width, at in itertools.product((1, 2) if name == "segment_sum" else (1,), range(N)):
        memory = np.zeros((9,) if name == "segment_count" else (9, width))
        of, out = np.arange(N) % 3, memory[3:6]
        of[at] = bad
        assert not getattr(segment_reductions, name)(*KERNELS[name](of, out))
        assert not memory[:3].any()
        assert not memory[6:].any()
