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


def test_s0_01_a_model_with_tables_is_trained_by_autodiff_and_an_optimiser():
    """S0.01: forward, backward, sparse update, in a loop, until the loss is gone."""
    words = [np.array([0, 2]), np.array([1]), np.array([2, 2, 3])]
    targets = np.array([1.0, -1.0, 0.5])
    params = {"emb": ab.EmbeddingTable(0.1 * RANDOM.standard_normal((5, 5))), "v": RANDOM.standard_normal(5)}
    untouched = params["emb"].weights[4].copy()
    opt = ab.optim.Adagrad(0.3)
    state, losses = opt.init(params), []

    def loss(params):
        found = ab.map(lambda ids, params: params["emb"][ids].sum(axis=0) @ params["v"], words, params=params)
        return sum((y - t) ** 2 for y, t in zip(found, targets, strict=True))

    for _ in range(60):
        value, grads = ab.value_and_grad(loss)(params)
        params, state = opt.update(params, grads, state)
        losses.append(float(value))
    assert losses[-1] < 1e-3 * losses[0]
    np.testing.assert_array_equal(params["emb"].weights[4], untouched)


def test_s0_02_four_functions():
    """S0.02: lookup and maplookup, each into a new array or a given one."""
    tables = [RANDOM.standard_normal((4, 3)), RANDOM.standard_normal((5, 2))]
    ids = [np.array([3, 0]), np.array([[1, 2, 2], [4, 4, 0]])]
    expected = [tables[0][ids[0]], tables[1][ids[1]].sum(axis=1)]
    outs = [np.full((2, 3), np.nan), np.full((2, 2), np.nan)]
    for table, one, want, out in zip(tables, ids, expected, outs, strict=True):
        np.testing.assert_allclose(ab.lookup(table, one), want)
        assert ab.lookup(table, one, out=out) is out
        np.testing.assert_allclose(out, want)
    for found in (ab.maplookup(tables, ids), ab.maplookup(tables, ids, out=[np.empty_like(out) for out in outs])):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("dim", [1, 2, 5, 33])
def test_s0_03_s0_04_the_two_formulas(dim):
    """S0.03: O[i] = A[ids[i]]. S0.04: O[i] = the sum over j of A[ids[i, j]]; rows that are empty lists are zero."""
    table = RANDOM.standard_normal((6, dim)).astype(np.float32)
    for shape in ((0,), (1,), (7,), (3, 4), (2, 1), (0, 3), (3, 0)):
        ids = RANDOM.integers(0, 6, shape)
        out = ab.lookup(ab.EmbeddingTable(table), ids)
        assert out.shape == (shape[0], dim)
        for i, row in enumerate(ids):
            expected = table[row] if ids.ndim == 1 else sum((table[one] for one in row), np.zeros(dim, np.float32))
            np.testing.assert_allclose(out[i], expected, rtol=1e-5, atol=1e-6)


def test_s1_02_a_pretrained_array_and_ids_split_by_offsets():
    """S1.02: the table is the array, not a copy of it; each stretch of the ids is a bag."""
    array = RANDOM.standard_normal((5, 3))
    table = ab.EmbeddingTable(array)
    ids, offsets = np.array([4, 1, 1, 0, 2]), np.array([0, 2, 2])
    found = ab.embedding_bag(ids, table, offsets, mode="sum")
    np.testing.assert_allclose(found, [array[[4, 1]].sum(axis=0), np.zeros(3), array[[1, 0, 2]].sum(axis=0)])
    array[4] = 100.0
    assert ab.embedding_bag(ids, table, offsets, mode="sum")[0, 0] > 90


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


def test_s1_19_booleans_are_or_and_and():
    """S1.19: of booleans the sum is OR, the product AND; NumPy's sum of them counts, and a bag says what to call."""
    table = RANDOM.random((6, 5)) < 0.4
    ids, lengths = np.array([3, 0, 0, 5, 1]), [2, 0, 3]
    bounds = np.cumsum([0, *lengths])
    for reduce, one in ((ab.segment_any, np.any), (ab.segment_all, np.all)):
        found = reduce(table, lengths=lengths, ids=ids)
        assert found.dtype == bool
        for k, row in enumerate(found):
            np.testing.assert_array_equal(row, one(table[ids[bounds[k] : bounds[k + 1]]], axis=0))
    with pytest.raises(ab.errors.DTypeError, match=r"a bag over a table of bool; .* ab.segments.segment_any"):
        ab.embedding_bag(ids, table, [0], mode="sum")
