"""Promises of the seeds that no other file is about: the four look-ups, the formulas, the fast path and its speed."""

import os

import numba
import numpy as np
import pytest

import autobatch as ab
from autobatch.kernels import bags
from autobatch.kernels.simd_rows import VectorLayout
from autobatch.tables.row_access import lane_layout
from tests import naive

RANDOM = np.random.default_rng(41)


@pytest.mark.parametrize(("dim", "n"), [(1, 1), (3, 2), (8, 8), (100, 100), (101, 64), (128, 128), (257, 128)])
def test_s1_18_kernels_by_block_size(dim, n):
    """S1.18: the kernel is chosen at run time by the length of the rows."""
    assert lane_layout("f4", dim, False).n == n


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled at all")
def test_s1_18_rows_are_added_up_in_vector_registers():
    """S1.18."""
    kernel = numba.njit(error_model="numpy")(bags._sum_columns.py_func)
    table, out = np.ones((3, 8), np.float32), np.zeros((1, 8), np.float32)
    place = (table.ctypes.data, table.strides[0])
    ids, offsets = np.array([2, 0]), np.array([0, 2])
    kernel(place, np.uint64(3), ids, offsets, None, 0, out, (0, 1), 0, 8, None, VectorLayout("f4", 8), None)
    assert out.tolist() == [[2.0] * 8]
    code = next(iter(kernel.inspect_llvm().values()))
    assert "fadd <8 x float>" in code
    assert "fadd float" not in code


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_s1_19_y_plus_a_x(dtype, step, n):
    """S1.19: y += a * x for rows of any stride, one row too; float16 is added up in float32."""
    whole = RANDOM.standard_normal((6, 13)).astype(dtype)
    table = whole[:, ::step][:, :3]
    ids, factors = RANDOM.integers(0, 6, n), RANDOM.standard_normal(n).astype(dtype)
    found = ab.embedding_bag(ids, table, [0], mode="sum", per_sample_weights=factors)
    wide = np.float32 if dtype == np.float16 else dtype
    expected = naive.bags(table.astype(wide), ids, np.array([0, n]), "sum", factors.astype(wide)).astype(dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == np.float16 else 1e-5, atol=1e-6)
    assert found.dtype == dtype
