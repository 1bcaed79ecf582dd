"""Kinds of tables: each is the 2-D array of its rows, plain, in lock-step and on the fly, gradients included."""

import copy
import ctypes
import pickle

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from autobatch.kernels.simd_rows import computed_dtype
from autobatch.tables.row_access import kernels, lane_layout, locate, pool, row_layout

RANDOM = np.random.default_rng(11)


class Scattered(ab.Table):
    """Rows anywhere in memory, in any order."""

    def __init__(self, weights):
        self.rows = [np.array(row) for row in weights[::-1]][::-1]
        self.shape, self.dtype, self.contexts = weights.shape, weights.dtype, []

    def row_addresses(self, ids, context=ab.Context.NO_CONTEXT):
        self.contexts.append(context)
        return np.array([self.rows[i].ctypes.data for i in ids], np.int64)


def weights(dtype=np.float64, rows=7, dim=5):
    return (10 * np.random.default_rng(4).standard_normal((rows, dim))).astype(dtype)


KINDS = {
    "plain": ab.EmbeddingTable,
    "static": lambda w: ab.EmbeddingTable(w, static=True),
    "strided": lambda w: ab.EmbeddingTable(np.repeat(w, 2, axis=0)[::2]),
    "backwards": lambda w: ab.EmbeddingTable(w[::-1].copy()[::-1]),
    "columns": lambda w: ab.EmbeddingTable(np.asfortranarray(w)),
    "split": lambda w: ab.SplitTable.from_array(w, 3),
    "one chunk": lambda w: ab.SplitTable([w]),
    "scattered": Scattered,
    "8 bits": ab.QuantizedTable.from_weights,
}
TRAINED = [name for name in KINDS if "bits" not in name]
SENTENCES = [np.array(x, np.int64) for x in ([1, 4, 1], [0], [5, 5, 2, 3], [6, 6])]


def looped(words, table, v):
    h = np.zeros(table.shape[1], table.dtype)
    for word in words:
        h = np.tanh(h + table[word])
    return h @ v


def mixed(words, table, v):
    if words[0] > 2:
        return (np.maximum(table, 0) * 2 + table[1:2]).sum() + np.tanh(table[words]).sum()
    return ab.lookup(table, words[:, None]).max() + (table[words].sum(axis=0) @ v)


def bagged(words, table, v):
    several = ab.embedding_bag(words, table, [0, 1], mode=("sqrtn", "max"))
    return np.tanh(ab.embedding_bag(words, table, [0], mode="mean", padding_idx=6)[0]) @ v + several[1][0, 0]


PROGRAMS = (looped, mixed, bagged)
SIMILAR = {"static": bagged, "strided": looped, "backwards": mixed, "columns": bagged, "one chunk": mixed}


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        pytest.param(kind, program, marks=[] if SIMILAR.get(kind, program) is program else [pytest.mark.slow])
        for kind in KINDS
        for program in PROGRAMS
    ],
)
def test_s0_27_to_s0_33_every_way_of_running(kind, program):
    table = KINDS[kind](weights())
    v = RANDOM.standard_normal(5).astype(table.dtype)
    ab.testing.assert_equivalent(program, SENTENCES, table=table, v=v)


@pytest.mark.parametrize("kind", KINDS)
def test_s0_27_s0_31_it_is_a_2_d_array(kind):
    table = KINDS[kind](weights())
    whole = np.array(table)
    assert (table.shape, table.ndim, len(table), table.size) == (whole.shape, 2, 7, 35)
    assert table.dtype == whole.dtype
    ids = np.array([[1, 6], [0, 3]])
    for index in (3, [2, 0], ids, slice(1, 5, 2), (slice(None), 2), (1, 2), ([1, 2], slice(1, 3)), ..., None):
        np.testing.assert_array_equal(table[index], whole[index])
    np.testing.assert_array_equal(table[whole[:, 0] > 0], whole[whole[:, 0] > 0])
    np.testing.assert_array_equal(table[whole > 0], whole[whole > 0])
    np.testing.assert_array_equal(table * 2 - 1, whole * 2 - 1)
    np.testing.assert_array_equal(np.exp(table / 100), np.exp(whole / 100))
    np.testing.assert_array_equal(table.sum(axis=0), whole.sum(axis=0))
    np.testing.assert_array_equal(table.T, whole.T)
    np.testing.assert_array_equal(whole.T @ table, whole.T @ whole)
    np.testing.assert_array_equal(np.concatenate([table, whole]), np.concatenate([whole, whole]))
    np.testing.assert_array_equal(list(table), list(whole))
    np.testing.assert_array_equal(ab.lookup(table, ids), whole[ids[:, 0]] + whole[ids[:, 1]])
    for same in (
        copy.copy(table),
        copy.deepcopy(table),
        *([] if kind == "scattered" else [pickle.loads(pickle.dumps(table))]),
    ):
        np.testing.assert_array_equal(same, whole)
    assert np.asarray(table, np.float16).dtype == np.float16
    for bad in ([7], -1, [[0, 9]]):
        with pytest.raises(BadIdError, match="outside a table of 7 rows"):
            table[bad]


@pytest.mark.parametrize("kind", TRAINED)
def test_s0_27_it_is_written_to_as_an_array(kind):
    table, whole = KINDS[kind](weights()), weights()
    rows = RANDOM.standard_normal((2, 5))
    for index, value in [(3, 1.5), ([1, 6], rows), (slice(0, 2), 7.0), ((slice(None), 2), np.arange(7.0)), (..., 0.5)]:
        table[index] = value
        whole[index] = value
        np.testing.assert_array_equal(table, whole)
    table.write([4, 0, 4], RANDOM.standard_normal((3, 5)))
    table.write(np.array([4, 0]), rows)
    whole[[4, 0]] = rows
    np.testing.assert_array_equal(table, whole)
    table *= 2
    np.testing.assert_array_equal(table, whole * 2)


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_s0_20_its_gradient_is_sparse_rows(kind, dtype):
    table, ids = KINDS[kind](weights(dtype)), np.array([2, 2, 6])
    found = ab.grad(lambda t: (ab.lookup(t, ids) * 3).sum() + ab.embedding_bag(ids, t, [0, 1], mode="mean").sum())(
        table
    )
    assert isinstance(found, ab.SparseRows)
    assert (found.dtype, found.shape) == (dtype, (7, 5))
    np.testing.assert_allclose(found.to_dense()[:, 0], [0, 0, 3 + 3 + 1 + 0.5, 0, 0, 0, 3 + 0.5], rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, np.int64, np.bool_, np.complex64])
def test_s0_07_split_tables_keep_their_dtype(dtype):
    whole = weights().astype(dtype)
    table = ab.SplitTable.from_array(whole, 2)
    out = ab.lookup(table, [6, 0, 6])
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, whole[[6, 0, 6]])


def test_s0_29_s0_32_a_new_kind_of_table_needs_three_things_only():
    whole = weights()
    table = Scattered(whole)
    np.testing.assert_array_equal(ab.lookup(table, [5, 1]), whole[[5, 1]])
    np.testing.assert_allclose(ab.embedding_bag([5, 1, 1], table, [0, 2], mode="sum"), [whole[5] + whole[1], whole[1]])
    assert len({row.ctypes.data - table.rows[0].ctypes.data for row in table.rows}) == 7
    with pytest.raises(TypeError, match="row_addresses"):
        type("Silent", (ab.Table,), {})()


def test_s0_30_a_table_is_told_what_its_rows_are_for():
    table = Scattered(weights())
    ab.lookup(table, [1])
    ab.embedding_bag([1, 2], table, [0])
    assert set(table.contexts) == {ab.Context.FORWARD}
    table.contexts.clear()
    table.write([1], np.ones((1, 5)))
    assert table.contexts == [ab.Context.UPDATE]
    assert ab.Context.NO_CONTEXT not in table.contexts


def test_addresses_are_checked():
    class Wrong(Scattered):
        def row_addresses(self, ids, context=ab.Context.NO_CONTEXT):
            return np.zeros(len(ids) + 1)

    with pytest.raises(ShapeError, match=r"Wrong.row_addresses gave float64 of shape \(2,\); expected one integer"):
        Wrong(weights())[[1]]


def test_s0_28_static_tables_are_dynamic_ones_to_the_bit():
    ids, offsets = RANDOM.integers(0, 7, 40), [0, 3, 3, 30]
    for dim in (5, 130):
        whole = weights(np.float32, dim=dim)
        for mode in ("sum", "mean", "max"):
            static, dynamic = (ab.embedding_bag(ids, ab.EmbeddingTable(whole, s), offsets, mode=mode) for s in (1, 0))
            assert static.tobytes() == dynamic.tobytes()
    assert ab.EmbeddingTable(ab.EmbeddingTable(whole, static=True)).static


@pytest.mark.parametrize("format", ["f2", "f4", "f8"])
def test_s0_28_a_static_dim_takes_the_fewest_passes_over_a_bag_at_every_dim(format):
    """And never more than a dynamic one, which has as few where its rows end with a vector of 16 bytes, as at 100."""
    fewer = 0
    for dim in range(1, 400):
        most = 512 // computed_dtype(format).itemsize
        static, dynamic = (-(-dim // lane_layout(format, dim, s).n) for s in (True, False))
        assert static == -(-dim // most) <= dynamic
        fewer += static < dynamic
    assert fewer > 20
    assert lane_layout(format, 100, True).n == lane_layout(format, 100, False).n == 100 or format == "f8"


def test_a_small_table_takes_one_layout_wherever_it_lies():
    """What is prefetched is all that depends on it, and rows of a small table are not: no kernel for each place."""

    def compiled_for(dim, size):
        return {row_layout("f4", dim, False, (place, 4 * dim), size)._numba_type_ for place in range(0, 64, 16)}

    assert [len(compiled_for(dim, 1 << 18)) for dim in (5, 8, 16, 64)] == [1, 1, 1, 1]
    assert [len(compiled_for(dim, 1 << 19)) for dim in (8, 16, 64)] == [2, 2, 4]  # of 64: whole cache lines


def test_sums_are_compiled_once_whether_or_not_the_offsets_may_be_written_into():
    table, ids, offsets = ab.EmbeddingTable(np.ones((7, 6))), np.arange(7), np.array([0, 3, 7])
    read_only = offsets.copy()
    read_only.flags.writeable = False
    out = np.empty((2, 6))
    pool(locate(table, ids), offsets, None, kernels.SUM, "sum", out)
    before = len(kernels.pool_sum.signatures)
    pool(locate(table, ids), read_only, None, kernels.SUM, "sum", out)
    np.testing.assert_array_equal(out[:, 0], [3, 4])
    assert len(kernels.pool_sum.signatures) == before


def test_s0_33_a_thin_wrapper_of_the_array():
    whole = weights()
    table = ab.EmbeddingTable(whole)
    whole[2] = 8
    np.testing.assert_array_equal(table[2], np.full(5, 8.0))
    chunks = [whole[:4], whole[4:]]
    split = ab.SplitTable(chunks)
    chunks[1][0] = 9
    np.testing.assert_array_equal(split[4], np.full(5, 9.0))
    assert np.shares_memory(split.chunks[0], whole)


def test_a_memory_mapped_table_is_not_read_whole(tmp_path):
    """A table of 64 GiB of which three rows exist on disk."""
    rows, dim = 1 << 30, 16
    table = ab.EmbeddingTable(np.memmap(tmp_path / "table", np.float32, "w+", shape=(rows, dim)))
    table[[5, rows - 1]] = 2
    table[7] = 3
    ids = np.array([5, rows - 1, 7, 0])
    np.testing.assert_array_equal(table[ids][:, 0], [2, 2, 3, 0])
    np.testing.assert_array_equal(ab.embedding_bag(ids, table, [0, 2], mode="sum")[:, 1], [4, 3])
    found = ab.grad(lambda t: t[ids].sum())(table)
    assert found.rows.shape == (4, dim)
    assert ab.map(lambda x, t: t[x].sum(), [ids, ids[:1]], t=table) == [7 * dim, 2 * dim]
    split = ab.SplitTable([np.memmap(tmp_path / "table", np.float32, "r", 64 * i, (2, dim)) for i in (4, 6)])
    np.testing.assert_array_equal(split[[1, 3]][:, 0], [2, 3])


EVERY_MODE = ("sum", "mean", "max", "min", ("sum", "max"))


@pytest.mark.parametrize(
    ("dim", "modes"),  # each mode of each width compiles kernels, and with weights others
    [
        *((dim, ("sum",)) for dim in (0, 1, 16, 33)),
        (5, EVERY_MODE),
        pytest.param(33, EVERY_MODE, marks=pytest.mark.slow),
    ],
)
def test_s1_15_quantised_rows(dim, modes):
    whole = RANDOM.standard_normal((6, dim)).astype(np.float32)
    table = ab.QuantizedTable.from_weights(whole)
    step = np.ptp(whole, axis=1, keepdims=True) / 255 if dim else 0
    assert (np.abs(np.asarray(table) - whole) <= step * 0.501 + 1e-6).all()
    assert table.packed.shape == (6, dim + 8)
    ids, offsets, factors = np.array([5, 0, 0, 3]), [0, 1, 1], RANDOM.standard_normal(4).astype(np.float32)
    for mode in modes:
        same = ab.embedding_bag(ids, np.asarray(table), offsets, mode=mode)
        np.testing.assert_array_equal(ab.embedding_bag(ids, table, offsets, mode=mode), same)
    if modes == EVERY_MODE:
        both = [ab.embedding_bag(ids, t, offsets, mode="sum", per_sample_weights=factors) for t in (table, table[:])]
        np.testing.assert_array_equal(*both)
    again = ab.QuantizedTable(table.packed)
    assert again.packed is table.packed
    np.testing.assert_array_equal(again, table)


def test_a_quantised_table_is_for_look_ups_only():
    table = ab.QuantizedTable.from_weights(weights())
    params = {"frozen": table, "w": np.ones(5, np.float32)}
    grads = ab.grad(lambda p: (p["frozen"][[1, 2]] @ p["w"]).sum())(params)
    assert grads["frozen"] is None
    np.testing.assert_allclose(grads["w"], table[[1, 2]].sum(axis=0))
    for update in (
        lambda: table.write([0], np.ones((1, 5))),
        lambda: table.__setitem__(0, 1.0),
        lambda: table.row_addresses(np.array([0]), ab.Context.UPDATE),
        lambda: ab.embedding_bag([0], table, [0], max_norm=0.1),
    ):
        with pytest.raises(UnsupportedError, match="a QuantizedTable is for look-ups only"):
            update()


ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ab.SplitTable([]), ShapeError, "no chunks"),
        (lambda: ab.SplitTable([ONES, np.ones((2, 4))]), ShapeError, r"chunk 1 has rows of 4; expected 3"),
        (lambda: ab.SplitTable([ONES, ONES.astype(int)]), DTypeError, r"chunk 1 has dtype int64; expected float64"),
        (lambda: ab.SplitTable([ONES, ONES[:1], ONES]), ShapeError, r"chunk 1 has 1 rows; expected 2"),
        (lambda: ab.SplitTable([ONES[:1], ONES]), ShapeError, r"chunk 1 has 2 rows; expected 1"),
        (lambda: ab.SplitTable([np.asfortranarray(ONES)]), ShapeError, r"chunk 0 has rows with gaps"),
        (lambda: ab.SplitTable.from_array(ONES, 0), ShapeError, r"rows of a chunk=0"),
        (lambda: ab.QuantizedTable(ONES), DTypeError, r"packed rows of dtype float64"),
        (
            lambda: ab.QuantizedTable(np.zeros((2, 7), np.uint8)),
            ShapeError,
            r"shape \(2, 7\); expected codes and 8",
        ),
        (lambda: ab.QuantizedTable(np.zeros((2, 24), np.uint8)[:, ::2]), ShapeError, r"without gaps"),
        (lambda: ab.QuantizedTable.from_weights([[np.inf]]), DTypeError, r"not finite"),
        (lambda: ab.QuantizedTable.from_codes([[256]], 1, 0), DTypeError, r"from 0 to 255"),
        (lambda: ab.QuantizedTable.from_codes([[1]], [1, 2], 0), ShapeError, r"one for each row, \(1,\)"),
        (lambda: ab.EmbeddingTable([[object()]]), DTypeError, r"Python objects"),
    ],
)
def test_tables_that_are_none(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    "table",
    [
        ab.EmbeddingTable(np.arange(12, dtype=np.float32).reshape(4, 3)),
        ab.EmbeddingTable(np.arange(24, dtype=np.float64).reshape(4, 6)[:, :3]),  # with a gap between rows
        ab.SplitTable([np.full((2, 3), 1.0), np.full((2, 3), 2.0), np.full((1, 3), 3.0)]),
    ],
    ids=["one array", "rows with gaps", "chunks"],
)
def test_each_address_is_that_of_its_row(table):
    ids = np.array([3, 0, 2, 3])
    for id, address in zip(ids, table.row_addresses(ids), strict=True):
        memory = ctypes.string_at(int(address), 3 * table.dtype.itemsize)
        np.testing.assert_array_equal(np.frombuffer(memory, table.dtype), np.asarray(table[id]))


@pytest.mark.parametrize(("dim", "n"), [(1, 1), (3, 2), (8, 8), (100, 100), (101, 64), (128, 128), (257, 128)])
def test_s1_18_kernels_by_block_size(dim, n):
    """S1.18: the kernel is chosen at run time by the length of the rows."""
    assert lane_layout("f4", dim, False).n == n
