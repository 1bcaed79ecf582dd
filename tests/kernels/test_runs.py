"""Runs of numbers against NumPy: every length around a vector's, and nothing read beyond the last number."""

import ctypes
import itertools
import mmap
import sys

import numpy as np
import pytest

from autobatch.kernels.bags import MEAN, SQRTN, SUM
from autobatch.kernels.segment_reductions import run_bounds, sum_rows, sum_runs
from autobatch.kernels.simd_rows import VectorLayout

RANDOM = np.random.default_rng(5)
LENGTHS = [0, 1, 15, 16, 17, 31, 0, 63, 64, 65, 129, 5]


def at_the_end_of_a_page(values):
    """A copy of numbers after which comes memory that cannot be read."""
    pages = -(-values.nbytes // mmap.PAGESIZE)
    room = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = np.frombuffer(room, np.uint8)
    first = pages * mmap.PAGESIZE - values.nbytes
    out = whole[first : first + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + pages * mmap.PAGESIZE), mmap.PAGESIZE, 0)
    return out, room


@pytest.mark.parametrize("format", ["f4", "f8", "i8", "u8"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_runs_of_every_length(format, weighted):
    bounds = np.cumsum([0, *LENGTHS])
    x = (RANDOM.random((bounds[-1], 1)) * 20 - (0 if format == "u8" else 10)).astype(format)
    weights = (RANDOM.random(len(x)) * 4).astype(format) if weighted else None
    whole = np.full((len(LENGTHS) + 2, 1), 77, format)
    sum_runs(x, weights, bounds, whole[1:-1], VectorLayout(format, 64 // int(format[1])))
    scaled = x[:, 0] if weights is None else x[:, 0] * weights
    expected = [scaled[start:stop].sum(dtype=format) for start, stop in itertools.pairwise(bounds)]
    np.testing.assert_allclose(whole[1:-1, 0], expected, rtol=1e-4, atol=1e-4)
    assert whole[0] == whole[-1] == 77


@pytest.mark.parametrize(
    ("dim", "n", "weighted"),
    [
        *((dim, n, weighted) for dim, n in ((2, 2), (16, 16), (21, 16)) for weighted in (False, True)),
        *((dim, 256, False) for dim in (300, 512)),
        *(pytest.param(dim, 256, True, marks=pytest.mark.slow) for dim in (300, 512)),
    ],
)
def test_sums_of_runs_of_rows(dim, n, weighted):
    bounds = np.cumsum([0, *LENGTHS])
    x = RANDOM.standard_normal((bounds[-1], dim))
    weights = RANDOM.random(len(x)) if weighted else None
    place, lanes, runs = (x.ctypes.data, x.strides[0]), VectorLayout("f8", n), (1, len(LENGTHS))
    for norm, over in ((SUM, lambda count: 1), (MEAN, lambda count: count), (SQRTN, np.sqrt)):
        beside = 0 if dim == 2 else 3
        whole = np.full((len(LENGTHS), dim + 2 * beside), 77.0)
        out = whole[:, beside : beside + dim]
        sum_rows(place, bounds, weights, norm, out, runs, dim, lanes)
        scaled = x if weights is None else x * weights[:, None]
        expected = [scaled[a:b].sum(0) / over(max(b - a, 1)) for a, b in itertools.pairwise(bounds)]
        np.testing.assert_allclose(out[1:], expected[1:], rtol=1e-9, atol=1e-12)
        assert (whole[0] == 77).all()
        assert (np.delete(whole, np.s_[beside : beside + dim], axis=1) == 77).all()


def test_what_lies_behind_a_run_is_not_in_its_sum():
    x = np.array([[1.0], [2.0], [np.nan], [4.0], [np.inf], [8.0]])
    out = np.empty((4, 1))
    sum_runs(x, None, np.array([0, 2, 2, 3, 4]), out, VectorLayout("f8", 8))
    np.testing.assert_array_equal(out[:, 0], [3, 0, np.nan, 4])


@pytest.mark.skipif(sys.platform == "win32", reason="no mprotect")
def test_the_last_run_ends_where_the_memory_does():
    x, _room = at_the_end_of_a_page(np.arange(1000.0)[:, None])
    out = np.empty((2, 1))
    sum_runs(x, None, np.array([0, 997, 1000]), out, VectorLayout("f8", 8))
    assert out[:, 0].tolist() == [997 * 996 / 2, 997 + 998 + 999]


def test_bounds_of_segments_that_follow_each_other():
    bounds = np.zeros(5, np.int64)
    assert run_bounds(np.array([0, 0, 2, 2, 2]), bounds)
    assert bounds.tolist() == [0, 2, 2, 5, 5]
    assert not run_bounds(np.array([1, 0]), np.zeros(3, np.int64))
