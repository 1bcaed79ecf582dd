"""A plain call of `embedding_bag` takes a short way, which gives what the long way gives, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autobatch as ab
from autobatch.tables.fast_paths import direct_bags as direct
from tests import naive

RANDOM = np.random.default_rng(31)


def long_way(ids, table, offsets, mode, weights, closed):
    """The same call with an argument that changes nothing but the way."""
    return ab.embedding_bag(
        ids, table, offsets, mode=mode, per_sample_weights=weights, include_last_offset=closed, bad_ids="skip"
    )


@pytest.mark.parametrize(
    ("dim", "shift", "gap"), [(1, 0, 0), (3, 0, 0), (3, 0, 2), (33, 1, 3), (64, 0, 0), (64, 13, 0), (130, 1, 0)]
)
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_s1_06_s1_07_any_dim_alignment_and_bags(dim, shift, gap, data):
    """S1.06, S1.07: dims 1-257, rows that start anywhere, empty bags, repeated ids, a table with gaps between rows."""
    compare_with_the_long_way(data, st.just((dim, shift, gap)), of_weights=(3,))


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.data())
def test_s1_06_s1_07_every_dim_and_alignment(data):
    """As above; each dim, and each place in a line of the cache, compiles kernels."""
    places = st.tuples(st.integers(1, 257), st.integers(0, 15), st.sampled_from([0, 0, 3]))
    compare_with_the_long_way(data, places, of_weights=range(258))


def numbers_from_a_line_on(count):
    """The first is at the start of a line of the cache, so that what is compiled is the same each time."""
    whole = np.empty(count + 16, np.float32)
    start = -whole.ctypes.data % 64 // 4
    whole[start : start + count] = RANDOM.standard_normal(count)
    return whole[start : start + count]


def compare_with_the_long_way(data, places, of_weights):
    """`places`: the dim, how far after the start of a line the table starts, and the gap between its rows."""
    dim, shift, gap = data.draw(places)
    lengths = data.draw(st.lists(st.integers(0, 5), max_size=6))
    mode = data.draw(st.sampled_from(["sum", "mean", "sqrtn"]))
    closed = data.draw(st.booleans())
    rows, width = 5, dim + gap
    table = numbers_from_a_line_on(shift + rows * width)[shift:].reshape(rows, width)[:, :dim]
    bounds = np.cumsum([0, *lengths])
    ids = RANDOM.integers(0, rows, bounds[-1])
    weighted = mode == "sum" and dim in of_weights and data.draw(st.booleans())
    weights = RANDOM.standard_normal(len(ids)).astype(np.float32) if weighted else None
    offsets = bounds if closed else bounds[:-1]
    if not closed and not lengths:
        ids, weights = ids[:0], None
    out = direct(ids, table, offsets, mode, weights, closed)
    assert out is not None
    np.testing.assert_array_equal(out, long_way(ids, table, offsets, mode, weights, closed))
    np.testing.assert_allclose(out, naive.bags(table, ids, bounds, mode, weights), rtol=1e-4, atol=1e-5)


def test_it_is_taken_for_tables_and_arrays_of_32_and_64_bits():
    for dtype, id_dtype in ((np.float32, np.int32), (np.float64, np.int64)):
        weight, ids, offsets = np.ones((4, 2), dtype), np.array([3, 0], id_dtype), np.array([0, 1], id_dtype)
        for table in (weight, ab.EmbeddingTable(weight), ab.EmbeddingTable(weight, static=True)):
            assert direct(ids, table, offsets, "sum", None, False).tolist() == [[1, 1]] * 2


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 4), (3, 0)])
def test_rows_of_ids_are_bags(shape):
    table = RANDOM.standard_normal((5, 3))
    ids = RANDOM.integers(0, 5, shape)
    out = direct(ids, table, None, "mean", None, False)
    np.testing.assert_array_equal(out, ab.embedding_bag(ids, table, mode="mean", bad_ids="skip"))
    np.testing.assert_allclose(out, [table[row].mean(axis=0) if len(row) else np.zeros(3) for row in ids] or out)
    if ids.size:
        ids[-1, -1] = 5
        assert direct(ids, table, None, "mean", None, False) is None
        with pytest.raises(ab.errors.BadIdError, match="id 5 at position"):
            ab.embedding_bag(ids, table)


@pytest.mark.parametrize(
    ("ids", "offsets", "match"),
    [
        ([0, 4], [0], "id 4 at position 1, in bag 0 is outside a table of 4 rows"),
        ([0, -1], [0, 1], "id -1 at position 1, in bag 1 is outside"),
        ([0, 1], [1], r"offsets\[0\] is 1; expected 0"),
        ([0, 1], [0, 2, 1], r"offsets\[2\] is 1, below"),
        ([0, 1], [0, 3], r"offsets\[1\] is 3, above the number of values, 2"),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_what_is_wrong_is_said_by_the_long_way(ids, offsets, match, dtype):
    """S1.09, S1.12."""
    arguments = (np.array(ids, dtype), np.ones((4, 3), np.float32), np.array(offsets, dtype))
    assert direct(*arguments, "sum", None, False) is None
    with pytest.raises(ab.errors.BadIdError, match=match):
        ab.embedding_bag(*arguments, mode="sum")


def test_options_are_checked_all_the_same():
    arguments = (np.array([0]), np.ones((4, 3), np.float32), np.array([0]))
    for options in ({"bad_ids": "maybe"}, {"mode": "median"}, {"sparse": True}, {"max_norm": -1.0}):
        with pytest.raises(ab.errors.UnsupportedError, match=f"{next(iter(options))}="):
            ab.embedding_bag(*arguments, **options)


@pytest.mark.parametrize("mode", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("there", [[], [7, -3], [7, -3, 2**63 - 1, 5]], ids=len)
def test_bags_of_keys_are_those_of_a_dense_table_of_all(mode, there):
    users = ab.EmbeddingVariable(5, seed=3)
    users.insert(there)
    keys, offsets = np.array([7, 5, 7, -3, 2**63 - 1]), np.array([0, 0, 3, 5])
    expected = ab.embedding_bag(
        [0, 1, 0, 2, 3], users[[7, 5, -3, 2**63 - 1]], offsets, mode=mode, include_last_offset=True
    )
    found = direct(keys, users, offsets, mode, None, True)
    assert found is not None
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(ab.embedding_bag(keys, users, offsets, mode=mode, include_last_offset=True), expected)
    assert len(users) == len(there)


def test_wrong_offsets_bring_no_key_to_life():
    users = ab.EmbeddingVariable(5, insert_on="lookup")
    with pytest.raises(ab.errors.BadIdError, match="offset"):
        ab.embedding_bag(np.array([1, 2]), users, np.array([1, 0]), mode="sum")
    assert len(users) == 0
