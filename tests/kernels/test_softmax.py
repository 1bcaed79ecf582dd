"""Softmax of rows of different lengths, against NumPy on each row alone."""

import numpy as np
import pytest

from autobatch.kernels.simd_rows import VectorLayout
from autobatch.kernels.softmax_layer_norm import softmax_gradient, softmax_rows

LANES = VectorLayout("f4", 16)
RNG = np.random.default_rng(0)


def softmax(row):
    out = np.exp(row - row.max())
    return out / out.sum()


def run(x, counts, part):
    """The result with a row before and behind it that must stay, and what the kernel answered."""
    out = np.full((len(x) + 2, x.shape[1]), 77, np.float32)
    scratch = np.arange(32, dtype=np.float32)
    return out, softmax_rows(x, counts, out[1:-1], part, scratch, LANES)


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 31, 32, 50, 64])
def test_each_row_is_that_of_numpy_and_nothing_behind_it_is_read(width):
    counts = np.array([*range(width + 1), width, 0, 1])
    x = RNG.normal(0, 5, (len(counts), width)).astype(np.float32)
    x[np.arange(width) >= counts[:, None]] = np.nan
    out, fine = run(x, counts, (0, len(x)))
    assert fine
    assert (out[[0, -1]] == 77).all()
    for row, count, got in zip(x, counts, out[1:-1], strict=True):
        assert (got[count:] == 0).all()
        if count:
            np.testing.assert_allclose(got[:count], softmax(row[:count]), rtol=2e-6, atol=1e-44)


def test_a_part_of_the_rows_leaves_the_others():
    x = RNG.normal(size=(9, 21)).astype(np.float32)
    counts = np.full(9, 21)
    whole, _ = run(x, counts, (0, 9))
    out, _ = run(x, counts, (2, 5))
    assert (out[:3] == 77).all()
    assert (out[6:] == 77).all()
    assert out[3:6].tobytes() == whole[3:6].tobytes()


@pytest.mark.parametrize("place", [0, 15, 16, 20])
@pytest.mark.parametrize("value", [np.nan, np.inf, -3.4e38])
def test_what_numpy_may_complain_of_is_refused(value, place):
    x = RNG.normal(size=(3, 21)).astype(np.float32)
    x[1] += 1e38 if value == np.float32(-3.4e38) else 0
    x[1, place] = value
    assert not run(x, np.full(3, 21), (0, 3))[1]
    assert run(x, np.array([21, place, 21]), (0, 3))[1]


def test_minus_infinity_weighs_nothing_unless_there_is_nothing_else():
    x = RNG.normal(size=(2, 20)).astype(np.float32)
    x[:, ::3] = -np.inf
    out, fine = run(x, np.full(2, 20), (0, 2))
    assert fine
    assert (out[1:-1, ::3] == 0).all()
    np.testing.assert_allclose(out[1], softmax(x[0]), rtol=2e-6)
    x[1] = -np.inf
    assert not run(x, np.full(2, 20), (0, 2))[1]


def test_the_gradient():
    y = RNG.random((6, 19), np.float32)
    ct = RNG.normal(size=y.shape).astype(np.float32)
    counts = np.array([19, 0, 1, 7, 16, 18])
    behind = np.arange(19) >= counts[:, None]
    y[behind] = ct[behind] = np.nan
    out = np.full_like(y, 77)
    softmax_gradient(y, ct, counts, out, (0, 5))
    assert (out[5] == 77).all()
    for row, above, count, got in zip(y[:5], ct, counts, out, strict=False):
        row, above = row[:count], above[:count]
        np.testing.assert_allclose(got[:count], row * (above - (row * above).sum()), rtol=1e-5, atol=1e-6)
        assert (got[count:] == 0).all()
