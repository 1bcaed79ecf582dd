"""Row kernels against slow oracles; run compiled, and as plain Python with NUMBA_DISABLE_JIT=1."""

import os
import subprocess
import sys

import numpy as np
import pytest

from autobatch.kernels import rows
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


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled at all")
def test_importing_compiles_nothing_and_gives_numba_nothing():
    code = (
        "import autobatch.public, sys\n"
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
