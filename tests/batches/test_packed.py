"""`PackedBatch`: the five forms of a batch of sets, each made from every other; and what the offsets must be."""

import copy
import itertools
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from autobatch import MaskedBatch, PackedBatch
from autobatch.batches.packed_batch import CSR
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from tests.inspect import Tape

SETS = [[1, 2, 3], [2, 4, 6, 7], [3, 6]]
VALUES = [1, 2, 3, 2, 4, 6, 7, 3, 6]
PADDED = [[1, 2, 3, -1], [2, 4, 6, 7], [3, 6, -1, -1]]
MATRIX = [[0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 1, 1], [0, 0, 0, 1, 0, 0, 1, 0]]

FORMS = {
    "values and lengths": (
        lambda x: (x.values, x.lengths),
        lambda form: PackedBatch.from_lengths(*form),
        (VALUES, [3, 4, 2]),
    ),
    "values and segment ids": (
        lambda x: (x.values, x.segment_ids),
        lambda form: PackedBatch.from_segment_ids(*form),
        (VALUES, [0, 0, 0, 1, 1, 1, 1, 2, 2]),
    ),
    "padded with a filler": (
        lambda x: x.to_padded(-1),
        lambda form: PackedBatch.from_padded(form, filler=-1),
        PADDED,
    ),
    "sparse matrix": (lambda x: x.to_sparse(8).to_dense(), PackedBatch.from_sparse, MATRIX),
    "padded with a mask": (
        lambda x: (x.to_masked().data, x.to_masked().mask),
        lambda form: PackedBatch.from_masked(MaskedBatch(form[0], mask=form[1])),
        (np.maximum(PADDED, 0), np.array(PADDED) >= 0),
    ),
}


def lists(batch):
    return [x.tolist() for x in batch.examples()]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(FORMS, FORMS)))
def test_every_form_becomes_every_other(first, second):
    batch = FORMS[first][1](FORMS[first][2])
    assert lists(batch) == SETS
    write, read, expected = FORMS[second]
    form = write(batch)
    pairs = zip(form, expected, strict=True) if isinstance(expected, tuple) else [(form, expected)]
    for got, wanted in pairs:
        np.testing.assert_array_equal(got, wanted)
    assert lists(read(form)) == SETS


def test_unsorted_segment_ids_keep_the_order_within_an_example():
    batch = PackedBatch.from_segment_ids([4, 1, 3, 6, 3, 2, 7, 2, 6], [1, 0, 2, 1, 0, 1, 1, 0, 2])
    assert lists(batch) == [[1, 3, 2], [4, 6, 2, 7], [3, 6]]
    assert [set(x) for x in lists(batch)] == [set(x) for x in SETS]


def test_features_with_scores_share_offsets():
    ids = PackedBatch.from_lengths([1, 3, 2, 3, 5], [2, 3])
    scores = PackedBatch.from_segment_ids([0.4, 0.7, 0.5, 0.5, 0.1], [0, 0, 1, 1, 1])
    matrix = ids.to_sparse(weights=scores)
    np.testing.assert_array_equal(matrix.to_dense(), [[0, 0.4, 0, 0.7, 0, 0], [0, 0, 0.5, 0.5, 0, 0.1]])
    for given in (matrix, tuple(matrix[:3])):
        ids_again, scores_again = PackedBatch.from_sparse(given, weights=True)
        assert lists(ids_again) == [[1, 3], [2, 3, 5]]
        assert lists(scores_again) == [[0.4, 0.7], [0.5, 0.5, 0.1]]
    with pytest.raises(DTypeError, match="the entries are not counts; weights=True"):
        PackedBatch.from_sparse(matrix)


def test_nested_segments():
    values = PackedBatch.from_lengths([10, 11, 101, 11, 50, 102, 103], [2, 1, 1, 1, 2])
    batch = PackedBatch.from_lengths(values, [2, 3])
    keys = PackedBatch.from_lengths([1, 3, 1, 2, 3], [2, 3])
    maps = [
        dict(zip(k.tolist(), (x.tolist() for x in xs), strict=True))
        for k, xs in zip(keys.examples(), batch.examples(), strict=True)
    ]
    assert maps == [{1: [10, 11], 3: [101]}, {1: [11], 2: [50], 3: [102, 103]}]
    again = PackedBatch.from_examples([list(m.values()) for m in maps], depth=2)
    np.testing.assert_array_equal(again.offsets, batch.offsets)
    np.testing.assert_array_equal(again.values.offsets, values.offsets)
    np.testing.assert_array_equal(again.to_padded(-1)[0], [[10, 11], [101, -1], [-1, -1]])
    assert [[x.tolist() for x in xs] for xs in (batch * 2).examples()] == [[[20, 22], [202]], [[22], [100], [204, 206]]]
    with pytest.raises(UnsupportedError, match="lists of arrays of different lengths"):
        batch.to_masked()
    with pytest.raises(UnsupportedError, match="has no shape"):
        _ = batch.shape
    twin = copy.deepcopy(batch)
    assert twin.batch_size == 2
    assert not np.shares_memory(twin.values.values, batch.values.values)
    np.testing.assert_array_equal(twin.values.values, batch.values.values)


@hypothesis.given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), st.integers(0, 2))
@hypothesis.settings(max_examples=80, deadline=None)
def test_round_trips(sets, trailing):
    rows = [
        np.array(s, np.int64).reshape(-1, *(1,) * trailing) * np.ones((1,) * (trailing + 1), np.int64) for s in sets
    ]
    batch = PackedBatch.from_examples(rows)
    for again in (
        PackedBatch.from_masked(batch.to_masked()),
        PackedBatch.from_padded(batch.to_padded(-7), filler=-7),
        PackedBatch.from_padded(batch.to_padded(), lengths=batch.lengths),
        PackedBatch.from_segment_ids(batch.values, batch.segment_ids, batch.batch_size),
        pickle.loads(pickle.dumps(batch)),
    ):
        np.testing.assert_array_equal(again.values, batch.values, strict=True)
        np.testing.assert_array_equal(again.offsets, batch.offsets, strict=True)
    assert [x.shape for x in batch.examples()] == [x.shape for x in rows]
    if trailing == 0:
        assert [sorted(x) for x in lists(PackedBatch.from_sparse(batch.to_sparse().to_dense()))] == list(
            map(sorted, sets)
        )


def test_repeated_ids_and_explicit_zeros_in_a_sparse_matrix():
    assert lists(PackedBatch.from_sparse([[0, 2], [0, 0]])) == [[1, 1], []]
    matrix = CSR(np.array([0, 1, 1]), np.array([0, 1, 1]), np.array([0, 2, 3]), (2, 2))
    assert lists(PackedBatch.from_sparse(matrix)) == [[1], [1]]
    assert lists(PackedBatch.from_sparse((None, [4, 2], [0, 2, 2]))) == [[4, 2], []]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64])
def test_offsets_of_any_integer_dtype(dtype):
    batch = PackedBatch([1.0, 2.0], np.array([0, 1, 2], dtype))
    assert batch.offsets.dtype == np.int64
    assert lists(batch) == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: PackedBatch([1, 2], [1, 2]), ShapeError, r"offsets\[0\] is 1; expected 0"),
        (lambda: PackedBatch([1, 2], [0, 2, 1]), ShapeError, r"offsets\[2\] is 1, below offsets\[1\] = 2"),
        (lambda: PackedBatch([1, 2], [0, 1]), ShapeError, "the last of the offsets is 1, but there are 2 values"),
        (lambda: PackedBatch([1, 2], []), ShapeError, "offsets are empty"),
        (lambda: PackedBatch([1, 2], [0.0, 2.0]), DTypeError, "offsets have dtype float64; expected integers"),
        (lambda: PackedBatch([1, 2], [[0, 2]]), ShapeError, r"offsets have shape \(1, 2\)"),
        (lambda: PackedBatch(1, [0, 1]), ShapeError, r"values of shape \(\)"),
        (
            lambda: PackedBatch([1], np.array([0, 2**63], np.uint64)),
            BadIdError,
            "offsets hold 9223372036854775808 at position 1",
        ),
        (
            lambda: PackedBatch.from_lengths([1, 2], [1, 2]),
            ShapeError,
            "the lengths add up to 3; expected the number of values, 2",
        ),
        (lambda: PackedBatch.from_lengths([1], [2, -1]), ShapeError, r"lengths\[1\] is -1; a length is at least 0"),
        (
            lambda: PackedBatch.from_segment_ids([1, 2], [0]),
            ShapeError,
            r"segment_ids have shape \(1,\)",
        ),
        (
            lambda: PackedBatch.from_segment_ids([1, 2], [0, 2], 2),
            BadIdError,
            r"segment id 2 at position 1 is outside 2 segments",
        ),
        (lambda: PackedBatch.from_segment_ids([1, 2], [0, -1]), BadIdError, "segment id -1 at position 1"),
        (
            lambda: PackedBatch.from_padded([[-1, 2]], filler=-1),
            ShapeError,
            "row 0 has the filler -1 before a value",
        ),
        (lambda: PackedBatch.from_padded([[1]]), ShapeError, "either filler= or lengths="),
        (lambda: PackedBatch.from_padded([1]), ShapeError, r"padded data of shape \(1,\)"),
        (lambda: PackedBatch.from_padded([[1]], lengths=[2]), ShapeError, "length 2 of example 0"),
        (lambda: PackedBatch.from_examples([1, 2]), ShapeError, "example 0 has no dimensions"),
        (lambda: PackedBatch.from_examples([[[1]], [[1, 2]]]), ShapeError, r"example 1 has shape \(1, 2\)"),
        (lambda: PackedBatch.from_examples([]), ShapeError, "an empty sequence of examples"),
        (lambda: PackedBatch.from_sparse([1, 2]), ShapeError, r"a matrix of shape \(2,\)"),
        (lambda: PackedBatch.from_sparse(([1], [1, 2], [0, 2])), ShapeError, r"\(1,\) entries for \(2,\) column"),
        (lambda: PackedBatch([1, -1], [0, 2]).to_sparse(), BadIdError, "id -1 at position 1"),
        (lambda: PackedBatch([1, 9], [0, 2]).to_sparse(8), BadIdError, r"id 9 at position 1 is not a column in 0\.\.7"),
        (lambda: PackedBatch([1.5], [0, 1]).to_sparse(), DTypeError, "values have dtype float64"),
        (lambda: PackedBatch([1], [0, 1]).to_padded(0.5), DTypeError, "filler 0.5 is not a value of int64"),
        (lambda: PackedBatch(MaskedBatch([1]), [0, 1]), UnsupportedError, "not a padded batch"),
        (lambda: PackedBatch([[1, 2], [3]], [0, 2]), ShapeError, r"not one array .*; use PackedBatch\.from_examples"),
        (lambda: PackedBatch(np.array([1, None]), [0, 2]), DTypeError, "array of values is object; a batch of arrays"),
        (lambda: PackedBatch.from_lengths(["a"], [1]), DTypeError, "array of values is <U1; a batch of arrays"),
        (lambda: PackedBatch.from_segment_ids([None], [0]), DTypeError, "array of values is object"),
        (
            lambda: PackedBatch.from_masked(MaskedBatch(np.ones((1, 2, 2)), [[1, 1]])),
            ShapeError,
            "only the first dimension",
        ),
    ],
)
def test_what_does_not_fit(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_empty_batches_and_examples():
    none = PackedBatch(np.zeros((0, 3)), [0])
    assert (none.batch_size, none.examples(), none.to_masked().data.shape) == (0, [], (0, 0, 3))
    empty = PackedBatch(np.zeros((0, 3)), [0, 0, 0])
    assert [x.shape for x in empty.examples()] == [(0, 3), (0, 3)]
    assert [x.shape for x in empty.to_masked().examples()] == [(0, 3), (0, 3)]
    assert lists(PackedBatch.from_segment_ids([5], [2])) == [[], [], [5]]


def test_nan_as_filler():
    batch = PackedBatch.from_padded([[1.0, np.nan], [2.0, 3.0]], filler=np.nan)
    assert lists(batch) == [[1.0], [2.0, 3.0]]
    np.testing.assert_array_equal(batch.to_padded(np.nan), [[1.0, np.nan], [2.0, 3.0]])


def test_the_face_is_the_examples():
    batch = PackedBatch(np.zeros((3, 2), np.float32), [0, 2, 3])
    assert (batch.ndim, batch.dtype, batch.shape[1]) == (2, np.float32, 2)
    assert batch.shape[0].examples() == [2, 1]
    assert batch.size.examples() == [4, 2]
    assert repr(PackedBatch([1, 2], [0, 2])) == "PackedBatch(batch_size=1, of=int64, lengths=[2], examples=[[1 2]])"
    for act, match in [
        (len, r"write \.batch_size"),
        (iter, "iteration over"),
        (hash, "not hashable"),
        (np.asarray, "not one"),
    ]:
        with pytest.raises(UnsupportedError, match=match):
            act(batch)


def test_gradients_pass_through_the_conversions():
    tape = Tape()
    leaf = tape.leaf(np.array([1.0, 2.0, 3.0, 4.0]))
    batch = PackedBatch(leaf, [0, 3, 3, 4])
    masked = batch.to_masked()
    back = PackedBatch.from_masked(masked * masked)
    np.testing.assert_array_equal(back.values._ab_value, [1.0, 4.0, 9.0, 16.0])
    (ct,) = tape.backward([back.values], [np.ones(4)], [leaf._ab_index])
    np.testing.assert_array_equal(ct.to_dense() if hasattr(ct, "to_dense") else ct, [2.0, 4.0, 6.0, 8.0])
    (ct,) = tape.backward(
        [masked.data], [np.where(masked.mask, 1.0, 1e9)], [leaf._ab_index]
    )  # nothing flows back from padding
    np.testing.assert_array_equal(ct.to_dense() if hasattr(ct, "to_dense") else ct, np.ones(4))
