"""Row kernels against slow oracles; run compiled, and as plain Python with NUMBA_DISABLE_JIT=1."""

import os
import subprocess
import sys

import numpy as np
import pytest

from autobatch.kernels import bags, rows
from tests import naive

RANDOM = np.random.default_rng(0)
DTYPES = [np.float32, np.float64, np.int64]


def make(shape, dtype):
    return (RANDOM.standard_normal(shape) * 10).astype(dtype)


@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("width", [0, 1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_and_scatter_are_indexing(dtype, width, n, id_dtype):
    table, ids = make((4, width), dtype), RANDOM.integers(0, 4, n).astype(id_dtype)
    out = np.full((n, width), 99, dtype)
    rows.gather(table, ids, out)
    np.testing.assert_array_equal(out, table[ids])

    sums = np.zeros((4, width), dtype)
    rows.scatter_add(out, ids, sums)
    np.testing.assert_allclose(sums, naive.scatter_add(out, ids, 4))


@pytest.mark.parametrize("masked", [1, 10**15, -7])
def test_gather_where_leaves_masked_rows_and_reads_no_masked_id(masked):
    table = make((3, 2), np.float32)
    out = np.full((3, 2), 7, np.float32)
    rows.gather_where(table, np.array([2, masked, 0]), np.array([True, False, True]), out)
    np.testing.assert_array_equal(out, [table[2], [7, 7], table[0]])


@pytest.mark.parametrize(("ids", "expected"), [([], -1), ([0, 2, 1], -1), ([0, 3, -1], 1), ([2, -1], 1)])
def test_first_bad_id(ids, expected):
    assert rows.first_bad_id(np.array(ids, np.int64), 3) == expected


@pytest.mark.parametrize(("offsets", "expected"), [([], -1), ([0, 2, 2, 5], -1), ([0, 3, 2], 2), ([0, 6], 1)])
def test_first_bad_offset(offsets, expected):
    assert rows.first_bad_offset(np.array(offsets, np.int64), 5) == expected


@pytest.mark.parametrize("high", [1, 3, 50, 2**62])
@pytest.mark.parametrize("n", [0, 1, 40])
def test_unique_in_order_of_first_occurrence(n, high):
    ids = RANDOM.integers(0, high, n)
    slots, inverse, unique = np.full(128, -1), np.empty(n, np.int64), np.empty(n, np.int64)
    count = rows.unique_first_seen(ids, slots, inverse, unique)
    assert unique[:count].tolist() == list(dict.fromkeys(ids.tolist()))
    np.testing.assert_array_equal(unique[inverse], ids)


OFFSETS = [[0], [0, 0], [0, 3], [0, 0, 2, 2, 7, 7]]


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bag_sum(dtype, offsets):
    offsets = np.array(offsets)
    table, ids = make((5, 3), dtype), RANDOM.integers(0, 5, 9)
    out = np.zeros((len(offsets) - 1, 3), dtype)
    bags.bag_sum(table, ids, offsets, out)
    np.testing.assert_allclose(out, naive.bags(table, ids, offsets, "sum"), rtol=1e-5)


def test_first_equal_takes_the_first_of_ties_and_nan():
    table = np.array([[1.0, np.nan], [2.0, np.nan], [2.0, 1.0]])
    found = np.full((2, 2), -1)
    values = np.array([[2.0, np.nan], [0.0, 0.0]])
    bags.first_equal(table, np.array([2, 0, 1, 1]), np.array([0, 4, 4]), values, found)
    assert found.tolist() == [[0, 1], [-1, -1]]
    out = np.zeros((4, 2))
    bags.take_first(np.array([[10.0, 20.0], [1.0, 1.0]]), found, out)
    assert out.tolist() == [[10, 0], [0, 20], [0, 0], [0, 0]]


def test_spread_and_dots_are_transposes_of_the_bag():
    table, ids, offsets = make((5, 3), np.float64), np.array([4, 0, 0, 2]), np.array([0, 1, 1, 4])
    ct, weights = make((3, 3), np.float64), make(4, np.float64)
    bag_of = [0, 2, 2, 2]
    found = np.zeros((4, 3))
    bags.spread(ct, offsets, weights, found)
    np.testing.assert_allclose(found, weights[:, None] * ct[bag_of])
    dots = np.zeros(4)
    bags.bag_dots(table, ids, offsets, ct, dots)
    np.testing.assert_allclose(dots, (table[ids] * ct[bag_of]).sum(1))


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled at all")
def test_importing_compiles_nothing_and_gives_numba_nothing():
    code = (
        "import autobatch, sys\n"
        "from autobatch.kernels.jit import Kernel\n"
        "modules = [m for name, m in sys.modules.items() if name.startswith('autobatch.')]\n"
        "kernels = [value for module in modules for value in vars(module).values() if isinstance(value, Kernel)]\n"
        "assert len(kernels) > 40\n"
        "assert not any('dispatcher' in vars(kernel) for kernel in kernels)\n"
        "assert not any(kernel.signatures for kernel in kernels)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled at all")
def test_a_kernel_is_the_function_that_it_was_made_of():
    assert rows.gather.__name__ == "gather"
    assert rows.gather.__doc__ == rows.gather.py_func.__doc__
    table, out = np.eye(3), np.empty((1, 3))
    rows.gather(table, np.array([2]), out)
    assert out.tolist() == [[0, 0, 1]]
    assert len(rows.gather.signatures) >= 1
