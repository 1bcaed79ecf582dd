"""Tables and look-ups: NumPy indexing is the oracle; ids outside the table are errors that say where."""

import pickle

import numpy as np
import pytest

from autobatch import EmbeddingTable, SparseRows, lookup
from autobatch.errors import BadIdError, DTypeError, ShapeError
from tests import naive

RANDOM = np.random.default_rng(1)
DTYPES = [np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint16, np.bool_, np.complex64]


def make(shape, dtype=np.float32):
    return (RANDOM.standard_normal(shape) * 10).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_seed_s0_07_tables_keep_their_dtype(dtype):
    weights = make((4, 3), np.float64).astype(dtype)
    out = lookup(EmbeddingTable(weights), [3, 0, 3])
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, weights[[3, 0, 3]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int16, np.int64])
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 4)])
def test_summed_lookup_keeps_the_dtype(shape, dtype):
    weights, ids = make((5, 5), np.float64).astype(dtype), RANDOM.integers(0, 5, shape)
    out = lookup(weights, ids)
    assert (out.dtype, out.shape) == (dtype, (shape[0], 5))
    np.testing.assert_allclose(out, [weights[row].sum(0, dtype=dtype) for row in ids] or out, rtol=1e-2)


@pytest.mark.parametrize("ids", [[], [0], [[0, 1], [2, 2]], np.zeros((2, 0, 3), int), np.int64(2), 3])
def test_indexing_with_integers_is_numpys(ids):
    weights = make((4, 3))
    table = EmbeddingTable(weights)
    expected = weights[np.asarray(ids, np.int64)]
    assert table[ids].shape == expected.shape
    np.testing.assert_array_equal(table[ids], expected)


@pytest.mark.parametrize(
    "index", [slice(1, 3), ..., None, (0, 1), np.array([True, False, True, False]), (slice(None), 0)]
)
def test_other_indexing_is_numpys(index):
    weights = make((4, 3))
    np.testing.assert_array_equal(EmbeddingTable(weights)[index], weights[index])


def test_a_table_is_an_array_like_without_a_copy():
    weights = make((4, 3))
    table = EmbeddingTable(weights)
    assert np.asarray(table) is weights
    assert (table.shape, table.ndim, table.dtype, len(table), table.size) == ((4, 3), 2, np.float32, 4, 12)
    assert np.asarray(table, np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.ones(4, np.float32) @ table, np.ones(4, np.float32) @ weights)
    table[1] = 0
    assert not weights[1].any()
    again = pickle.loads(pickle.dumps(table))
    np.testing.assert_array_equal(again.weights, weights)
    assert repr(EmbeddingTable(np.zeros((1, 1)))) == "EmbeddingTable(array([[0.]]))"


def test_strided_rows():
    base = make((8, 6))
    for weights in (base[::2, ::2], np.asfortranarray(base[:4, :3]), base[:4, 1:4]):
        np.testing.assert_array_equal(lookup(EmbeddingTable(weights), [3, 0]), weights[[3, 0]])
        np.testing.assert_allclose(lookup(EmbeddingTable(weights), [[3, 0]])[0], weights[3] + weights[0])


def test_out_is_filled_and_returned():
    weights = make((4, 3))
    out = np.empty((2, 3), np.float32)
    assert lookup(weights, [3, 1], out=out) is out
    np.testing.assert_array_equal(out, weights[[3, 1]])
    wide = np.empty((2, 6), np.float32)[:, ::2]
    np.testing.assert_array_equal(
        lookup(weights, [[3, 1], [0, 0]], out=wide), [weights[3] + weights[1], 2 * weights[0]]
    )
    overlapping = weights[:2]
    expected = weights[[1, 0]].copy()
    np.testing.assert_array_equal(lookup(weights, [1, 0], out=overlapping), expected)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda t: t[[0, 4]], BadIdError, r"id 4 at position 1 is outside a table of 4 rows"),
        (lambda t: t[-1], BadIdError, r"id -1 .* a table has no negative ids"),
        (lambda t: t[[[0, 1], [2, 7]]], BadIdError, r"id 7 at position \(1, 1\)"),
        (lambda t: lookup(t, [0.5]), DTypeError, r"ids have dtype float64; expected integers"),
        (lambda t: lookup(t, [True]), DTypeError, r"ids have dtype bool"),
        (lambda t: lookup(t, [[0], [1, 2]]), ShapeError, r"different lengths"),
        (lambda t: lookup(t, 1), ShapeError, r"ids of shape \(\); expected \(n,\)"),
        (lambda t: lookup(t, np.zeros((1, 1, 1), int)), ShapeError, r"ids of shape \(1, 1, 1\)"),
        (lambda t: lookup(np.ones(3), [0]), ShapeError, r"a table of shape \(3,\)"),
        (
            lambda t: lookup(t, [0], out=np.empty((2, 3))),
            ShapeError,
            r"shape \(2, 3\); expected float32 of",
        ),
        (
            lambda t: lookup(t, [0], out=np.empty((1, 3))),
            DTypeError,
            r"out is float64 of shape",
        ),
        (lambda t: lookup(t, np.array([2**63], np.uint64)), BadIdError, r"9223372036854775808"),
        (lambda t: EmbeddingTable(np.ones(3)), ShapeError, r"weights of shape \(3,\)"),
    ],
)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call(EmbeddingTable(make((4, 3))))


@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sparse_rows(n, dtype):
    ids, rows = RANDOM.integers(0, 6, n), make((n, 2), dtype)
    sparse = SparseRows(ids, rows, 6)
    dense = naive.scatter_add(rows.astype(np.float64), ids, 6)
    rtol = 0.02 if dtype == np.float16 else 1e-5
    assert (sparse.shape, sparse.dtype, sparse.ndim) == ((6, 2), dtype, 2)
    np.testing.assert_allclose(sparse.to_dense(), dense, rtol, 1e-1 if dtype == np.float16 else 1e-4)
    once = sparse.coalesce()
    expected_ids, expected_rows = naive.coalesce(ids, rows)
    assert once.ids.tolist() == expected_ids
    np.testing.assert_allclose(
        once.rows, np.reshape(expected_rows, (-1, 2)), rtol, 1e-1 if dtype == np.float16 else 1e-4
    )
    np.testing.assert_allclose((sparse + sparse).to_dense(), 2 * dense, rtol, 1e-1)
    np.testing.assert_allclose((2 * sparse * np.float32(1.5) / 3).to_dense(), dense, rtol, 1e-1)
    np.testing.assert_allclose((-sparse).to_dense(), -dense, rtol, 1e-1)
    np.testing.assert_allclose(np.ones((6, 2), dtype) + sparse, dense + 1, rtol, 1e-1)
    assert sum([sparse]) is sparse
    assert (sparse * 2).dtype == dtype


@pytest.mark.parametrize(
    ("make_it", "error", "match"),
    [
        (lambda: SparseRows([0, 1], np.ones((1, 2)), 3), ShapeError, r"ids of shape \(2,\) and rows of shape \(1, 2\)"),
        (lambda: SparseRows([3], np.ones((1, 2)), 3), BadIdError, r"id 3 at position 0"),
        (
            lambda: SparseRows([0], np.ones((1, 2)), 3) * np.ones(2),
            ShapeError,
            r"expected a number: write .to_dense\(\)",
        ),
        (
            lambda: SparseRows([0], np.ones((1, 2)), 3) + SparseRows([0], np.ones((1, 2)), 4),
            ValueError,
            r"do not add up",
        ),
    ],
)
def test_bad_sparse_rows(make_it, error, match):
    with pytest.raises(error, match=match):
        make_it()


def test_a_bad_id_says_where_it_stands():
    """S1.09: the id, its position and the table's size; of one id alone no position."""
    table = EmbeddingTable(np.ones((3, 2)))
    for ids, match in (
        (7, r"^id 7 is outside a table of 3 rows$"),
        (np.int64(-1), r"^id -1 is outside a table of 3 rows; a table has no negative ids$"),
        ([0, 7], r"^id 7 at position 1 is outside"),
        ([[0, 1], [1, 7]], r"^id 7 at position \(1, 1\) is outside"),
        (np.array([0, 2**64 - 1], np.uint64), r"^ids hold 18446744073709551615 at position 1, which is beyond any"),
        (np.uint64(2**63), r"^ids hold 9223372036854775808, which is beyond any table"),
    ):
        with pytest.raises(BadIdError, match=match):
            table[ids]
