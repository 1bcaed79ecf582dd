"""Rows in vector registers against NumPy: every format, widths that fit and that do not, nothing written beside."""

import os

import numba
import numpy as np
import pytest

from autobatch.kernels import bags as bags_module
from autobatch.kernels.simd_rows import FORMATS, VectorLayout, computed_dtype
from tests import naive

RANDOM = np.random.default_rng(3)
NUMPYS = [name for name in FORMATS if name[0] != "q" and name != "b2"]


def matrix(format, rows, dim):
    dtype = np.dtype(format)
    if dtype.kind == "f":
        return RANDOM.standard_normal((rows, dim)).astype(dtype)
    low = 0 if dtype.kind == "u" else -50
    return RANDOM.integers(low, 50, (rows, dim)).astype(dtype)


def place(table):
    return (table.__array_interface__["data"][0], table.strides[0])


def guarded(bags, dim, dtype):
    """An output in the middle of a larger array, and the larger array."""
    whole = np.full((bags + 2, dim + 6), 77, dtype)
    return whole[1:-1, 3 : 3 + dim], whole


def untouched(whole):
    edges = whole.copy()
    edges[1:-1, 3:-3] = 77
    return (edges == 77).all()


def guarded_block(bags, dim, dtype):
    """A contiguous output, so that any number of bags takes the same machine code, and what lies before and behind."""
    whole = np.full(16 + bags * dim + 16, 77, dtype)
    return whole[16:-16].reshape(bags, dim), (whole[:16], whole[-16:])


FEW = VectorLayout("f4", 2)  # that of rows of three, which other tests have compiled for, too


@pytest.mark.parametrize(("ids_dtype", "ahead"), [(np.int32, 4), (np.int64, None)])
@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 2, 0, 5, 1, 0]])
def test_s1_02_s1_13_bags_of_any_lengths(lengths, ids_dtype, ahead):
    table, offsets = matrix("f4", 6, 9), np.cumsum([0, *lengths]).astype(ids_dtype)
    ids = RANDOM.integers(0, 6, offsets[-1]).astype(ids_dtype)
    for least, mode in ((None, "max"), (True, "min")):
        out, edges = guarded_block(len(lengths), 9, np.float32)
        bags_module.pool_extremum(place(table), ids, offsets, out, (0, len(lengths)), 9, ahead, FEW, least)
        np.testing.assert_array_equal(out, naive.bags(table, ids, offsets, mode))
        assert (np.array(edges) == 77).all()
    out, edges = guarded_block(len(lengths), 9, np.float32)
    bags_module.pool_sum(place(table), ids, offsets, None, bags_module.SUM, out, (0, len(lengths)), 9, ahead, FEW)
    np.testing.assert_allclose(out, naive.bags(table, ids, offsets, "sum"), rtol=1e-5, atol=1e-6)
    assert (np.array(edges) == 77).all()


ALIKE = ("i2", "u1", "u4")  # whose sums are, to the machine, those of the integers of the other sign
SHAPES = [(format, 21, 4) for format in NUMPYS if format not in ALIKE]
SHAPES += [("f4", 1, 1), ("f4", 3, 2), ("f8", 37, 37)]
RARE = [("f2", 8, 8), *((format, 21, 16) for format in NUMPYS)]


def rare(shapes):
    return [pytest.param(*shape, marks=pytest.mark.slow) for shape in shapes]


@pytest.mark.parametrize(("format", "dim", "n"), [*SHAPES, *rare(RARE), *rare((format, 21, 4) for format in ALIKE)])
def test_s1_04_sums_of_every_format(format, dim, n):
    table, ids, offsets = matrix(format, 5, dim), np.array([4, 0, 0, 2]), np.array([0, 1, 4])
    real = computed_dtype(format)
    out = np.empty((2, dim), real)
    bags_module.pool_sum(
        place(table), ids, offsets, None, bags_module.SUM, out, (0, 2), dim, None, VectorLayout(format, n)
    )
    expected = np.stack([table[4].astype(real), table[0].astype(real) + table[0].astype(real) + table[2].astype(real)])
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("format", "dim", "n"), [*SHAPES, *((format, 21, 4) for format in ALIKE), *rare(RARE)])
def test_s1_04_extremes_of_every_format(format, dim, n):
    table, ids, offsets = matrix(format, 5, dim), np.array([4, 0, 0, 2]), np.array([0, 1, 4])
    out = np.empty((2, dim), computed_dtype(format))
    bags_module.pool_extremum(place(table), ids, offsets, out, (0, 2), dim, None, VectorLayout(format, n), None)
    np.testing.assert_array_equal(out, [table[4], table[[0, 2]].max(0)])


def test_every_float16():
    table = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 64)
    out = np.empty(table.shape, np.float32)
    bags_module.gather_rows(place(table), np.arange(len(table)), out, (0, len(table)), 64, None, VectorLayout("f2", 64))
    np.testing.assert_array_equal(out, table.astype(np.float32))


@pytest.mark.parametrize("n", [64, 8, 1])
def test_every_bfloat16(n):
    table = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 64)
    out = np.empty(table.shape, np.float32)
    bags_module.gather_rows(place(table), np.arange(len(table)), out, (0, len(table)), 64, None, VectorLayout("b2", n))
    np.testing.assert_array_equal(out.view(np.uint32), table.astype(np.uint32) << 16)


@pytest.mark.parametrize("n", [1, 2, pytest.param(8, marks=pytest.mark.slow), 12])
def test_s1_15_codes_with_a_scale_and_a_bias(n):
    dim = 12
    codes = RANDOM.integers(0, 256, (3, dim)).astype(np.uint8)
    numbers = RANDOM.standard_normal((3, 2)).astype(np.float32)
    packed = np.concatenate([codes, numbers.view(np.uint8)], axis=1)
    out = np.empty((4, dim), np.float32)
    ids = np.array([2, 0, 1, 2])
    bags_module.gather_rows(place(packed), ids, out, (0, 4), dim, 2, VectorLayout("q8", n))
    np.testing.assert_array_equal(out, (codes.astype(np.float32) * numbers[:, :1] + numbers[:, 1:])[ids])


@pytest.mark.parametrize(("norm", "by"), [(bags_module.SUM, [1, 1, 1]), (bags_module.MEAN, [2, 1, 3])])
def test_weights_norms_and_parts(norm, by):
    table, ids, offsets = matrix("f8", 5, 6), np.array([4, 0, 0, 2, 1]), np.array([0, 2, 2, 5])
    weights = RANDOM.standard_normal(5)
    (out, edges), lanes = guarded_block(3, 6, np.float64), VectorLayout("f8", 2)
    for bags in ((0, 1), (1, 3)):
        bags_module.pool_sum(place(table), ids, offsets, weights, norm, out, bags, 6, None, lanes)
    sums = naive.bags(table, ids, offsets, "sum", weights)
    np.testing.assert_allclose(out, sums / np.array(by)[:, None], atol=1e-12)
    assert (np.array(edges) == 77).all()
    bags_module.pool_sum(place(table), ids, offsets, None, bags_module.SQRTN, out, (0, 3), 6, None, lanes)
    np.testing.assert_allclose(out, naive.bags(table, ids, offsets, "sqrtn"), atol=1e-12)


RIGHT = np.array([4, 0, 0, 2, 1])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("ids", "offsets", "closed", "right"),
    [
        (RIGHT, [0, 2, 2, 5], True, True),
        (RIGHT, [0, 2, 2], False, True),
        (RIGHT, [0], False, True),
        (RIGHT, [0, 5], False, True),
        (RIGHT[:0], [0, 0], True, True),
        (RIGHT[:0], [0], True, True),
        (RIGHT[:0], [], False, True),
        (np.arange(3000) % 5, [0, 0, 1, 1500, 2999], False, True),
        (np.arange(3000) % 5, np.arange(0, 3000, 75), False, True),
        (np.where(np.arange(3000) == 2999, 5, 0), np.arange(0, 3000, 75), False, False),
        (np.where(np.arange(3000) == 127, -1, 0), np.arange(0, 3000, 75), False, False),
        (np.where(np.arange(3000) == 127, 5, 0), np.arange(0, 3000, 75), False, False),
        (np.zeros(300, int), [0, 299, *[300] * 20, 299], False, False),
        (RIGHT, [0, 2, 2, 4], True, False),
        (RIGHT, [0, 2, 2, 6], False, False),
        (RIGHT, [1, 2], False, False),
        (RIGHT, [-1, 2], False, False),
        (RIGHT, [0, 3, 2, 5], True, False),
        (RIGHT, [0, 6, 2, 5], True, False),
        (RIGHT, [], False, False),
        (RIGHT[:0], [], True, False),
        (RIGHT, [0], True, False),
        (np.array([0, 5, 1]), [0], False, False),
        (np.array([0, -1, 1]), [0], False, False),
        (np.where(np.arange(3000) == 2999, 5, 0), [0, 0, 1, 1500, 2999], False, False),
        (np.where(np.arange(3000) == 1700, -5, 0), [0, 0, 1, 1500, 3000], True, False),
    ],
)
def test_s1_09_s1_12_checked_in_the_pass_that_reads(ids, offsets, closed, right, dtype):
    """`pool_sum_checked` says whether ids and offsets are right, and writes only to its output if they are not."""
    table, offsets = matrix("f4", 5, 9), np.array(offsets, dtype)
    bags = max(len(offsets) - closed, 0)
    out, edges = guarded_block(bags, 9, np.float32)
    arguments = (
        place(table),
        5,
        ids.astype(dtype),
        offsets,
        closed,
        None,
        bags_module.SUM,
        out,
        9,
        None,
        FEW,
        None,
    )
    assert bags_module.pool_sum_checked(*arguments) == right
    assert (np.array(edges) == 77).all()
    if right:
        bounds = offsets if closed or not bags else np.append(offsets, len(ids))
        expected = naive.bags(table, ids, bounds, "sum") if bags else np.zeros((0, 9))
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)


def test_rows_are_put_where_they_belong():
    whole = np.zeros((6, 9), np.float32)
    rows, lanes = matrix("f4", 3, 5), VectorLayout("u1", 16)
    table = whole[::2, 2:7]
    bags_module.scatter_rows(place(table), np.array([2, 0, 2]), place(rows), 20, lanes)
    np.testing.assert_array_equal(table, [rows[1], np.zeros(5), rows[2]])
    assert np.count_nonzero(whole) == 10


def test_addresses_for_ids():
    rows = [np.full(3, i, np.float64) for i in range(4)]
    addresses = np.array([row.__array_interface__["data"][0] for row in rows])[[3, 1, 1]]
    out = np.empty((1, 3))
    bags_module.pool_sum(
        (0, 1), addresses, np.array([0, 3]), None, bags_module.SUM, out, (0, 1), 3, None, VectorLayout("f8", 2)
    )
    np.testing.assert_array_equal(out, [[5.0] * 3])


@pytest.mark.parametrize(
    ("format", "lead", "n"), [pytest.param("f4", 12, 64, marks=pytest.mark.slow), ("f4", 1, 16), ("f8", 6, 37)]
)
def test_where_vectors_start_and_how_long_they_are_changes_nothing_else(format, lead, n):
    table, ids, offsets = matrix(format, 5, 64), RIGHT, np.array([0, 2, 2, 5])
    results = []
    for lanes in (
        VectorLayout(format, n),
        VectorLayout(format, n, lead, across=True),
        *([VectorLayout(format, n, register=32)] if n > 16 else []),
    ):
        out, whole = guarded(3, 64, np.dtype(format))
        bags_module.pool_sum(place(table), ids, offsets, None, bags_module.MEAN, out, (0, 3), 64, 2, lanes)
        assert untouched(whole)
        results.append(out.copy())
    for result in results[1:]:
        np.testing.assert_array_equal(results[0], result)
    np.testing.assert_allclose(results[0], naive.bags(table, ids, offsets, "mean"), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled at all")
def test_s1_18_rows_are_added_up_in_vector_registers():
    """S1.18."""
    kernel = numba.njit(error_model="numpy")(bags_module._sum_columns.py_func)
    table, out = np.ones((3, 8), np.float32), np.zeros((1, 8), np.float32)
    ids, offsets = np.array([2, 0]), np.array([0, 2])
    kernel(place(table), np.uint64(3), ids, offsets, None, 0, out, (0, 1), 0, 8, None, VectorLayout("f4", 8), None)
    assert out.tolist() == [[2.0] * 8]
    code = next(iter(kernel.inspect_llvm().values()))
    assert "fadd <8 x float>" in code
    assert "fadd float" not in code
