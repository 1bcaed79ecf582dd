"""The representations of ragged data (S3.01 to S3.09), each converted into each other."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError, DTypeError, ShapeError

# The seed's example: {1, 2, 3}, {2, 4, 6, 7}, {3, 6}.
VALUES = np.array([1, 2, 3, 2, 4, 6, 7, 3, 6])
LENGTHS = np.array([3, 4, 2])
OFFSETS = np.array([0, 3, 7, 9])
SEGMENT_IDS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
PADDED = np.array([[1, 2, 3, -1], [2, 4, 6, 7], [3, 6, -1, -1]])
MATRIX = np.array([[0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 1, 1], [0, 0, 0, 1, 0, 0, 1, 0]])
UNSORTED = np.array([4, 1, 3, 6, 3, 2, 7, 2, 6]), np.array([1, 0, 2, 1, 0, 1, 1, 0, 2])


def same(found, *expected):
    for left, right in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_s3_01_values_with_lengths():
    same(ab.lengths_to_offsets(LENGTHS), OFFSETS)
    same(ab.offsets_to_lengths(OFFSETS), LENGTHS)
    same(ab.lengths_to_padded(VALUES, LENGTHS, filler=-1), PADDED)
    assert [x.tolist() for x in ab.PackedBatch.from_lengths(VALUES, LENGTHS).examples()] == [
        [1, 2, 3],
        [2, 4, 6, 7],
        [3, 6],
    ]


def test_s3_02_sorted_segment_ids():  # and S3.08, S3.09
    same(ab.lengths_to_segment_ids(LENGTHS), SEGMENT_IDS)
    same(ab.offsets_to_segment_ids(OFFSETS), SEGMENT_IDS)
    same(ab.segment_ids_to_lengths(SEGMENT_IDS), LENGTHS)
    same(ab.segment_ids_to_offsets(SEGMENT_IDS), OFFSETS)
    same(ab.PackedBatch.from_segment_ids(VALUES, SEGMENT_IDS).offsets, OFFSETS)
    same(ab.PackedBatch(VALUES, OFFSETS).segment_ids, SEGMENT_IDS)


def test_s3_08_and_s3_09_empty_segments():
    same(ab.lengths_to_segment_ids([1, 3, 0, 2]), [0, 1, 1, 1, 3, 3])
    same(ab.segment_ids_to_lengths([0, 1, 1, 1, 3, 3]), [1, 3, 0, 2])
    same(ab.segment_ids_to_lengths([1, 0], 3), [1, 1, 0])
    same(ab.segment_ids_to_offsets([0, 2], 4), [0, 1, 1, 2, 2])
    same(ab.lengths_to_offsets([]), [0])
    same(ab.segment_ids_to_lengths([]), [])
    same(ab.lengths_to_padded([], []), np.zeros((0, 0)))


def test_s3_03_unsorted_segment_ids():
    values, ids = ab.sort_segments(*UNSORTED)
    same(ids, SEGMENT_IDS)
    same(ab.segment_ids_to_lengths(UNSORTED[1]), LENGTHS)
    assert [sorted(x.tolist()) for x in ab.PackedBatch.from_segment_ids(*UNSORTED).examples()] == [
        [1, 2, 3],
        [2, 4, 6, 7],
        [3, 6],
    ]
    same(values, ab.PackedBatch.from_segment_ids(*UNSORTED).values)
    with pytest.raises(BadIdError, match="segment_ids fall, from 1 to 0 at position 1"):
        ab.segment_ids_to_offsets(UNSORTED[1])


def test_s3_04_padded():
    same(ab.padded_to_lengths(PADDED, filler=-1), VALUES, LENGTHS)
    same(ab.PackedBatch.from_padded(PADDED, filler=-1).values, VALUES)
    same(ab.PackedBatch(VALUES, OFFSETS).to_padded(-1), PADDED)
    floats = np.array([[1.0, np.nan], [np.nan, np.nan]])
    same(ab.padded_to_lengths(floats, filler=np.nan), [1.0], [1, 0])
    wide = np.array([[[1, -1], [-1, -1]]])
    same(ab.padded_to_lengths(wide, filler=-1), [[1, -1]], [1])


def test_s3_05_sparse():
    same(ab.lengths_to_sparse(VALUES, LENGTHS), np.ones(9), VALUES, OFFSETS)
    same(ab.sparse_to_lengths(MATRIX), VALUES, LENGTHS, np.ones(9))
    same(ab.sparse_to_lengths(ab.lengths_to_sparse(VALUES, LENGTHS)), VALUES, LENGTHS, np.ones(9))
    same(ab.PackedBatch.from_sparse(MATRIX).values, VALUES)
    same(ab.PackedBatch(VALUES, OFFSETS).to_sparse().to_dense(), MATRIX)


def test_s3_05_sparse_as_scipy_has_it():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.csr_matrix(MATRIX)
    same(ab.sparse_to_lengths(matrix), VALUES, LENGTHS, np.ones(9))
    same(ab.sparse_to_lengths(matrix.tocoo()), VALUES, LENGTHS, np.ones(9))
    same(scipy_sparse.csr_matrix(ab.lengths_to_sparse(VALUES, LENGTHS), (3, 8)).toarray(), MATRIX)
    data = np.random.default_rng(0).standard_normal((8, 5))
    np.testing.assert_allclose(matrix @ data, ab.segment_sum(data, lengths=LENGTHS, ids=VALUES))


def test_s3_06_scores_beside_ids():
    examples = [{1: 0.4, 3: 0.7}, {2: 0.5, 3: 0.5, 5: 0.1}]
    ids, scores = ab.maps_to_packed(examples)
    same(ids.values, [1, 3, 2, 3, 5])
    same(scores.values, [0.4, 0.7, 0.5, 0.5, 0.1])
    same(ids.lengths, [2, 3])
    same(ids.segment_ids, [0, 0, 1, 1, 1])
    assert ab.packed_to_maps(ids, scores) == examples
    data, columns, offsets = ab.lengths_to_sparse(ids.values, ids.lengths, scores=scores.values)
    same(ab.sparse_to_lengths((data, columns, offsets)), ids.values, ids.lengths, scores.values)
    table = np.arange(12.0).reshape(6, 2)
    found = ab.segment_sum(table, offsets=ids.offsets, ids=ids.values, weights=scores.values)
    np.testing.assert_allclose(
        found, [0.4 * table[1] + 0.7 * table[3], 0.5 * table[2] + 0.5 * table[3] + 0.1 * table[5]]
    )


def test_s3_07_lists_of_maps_of_lists():
    examples = [{1: [10, 11], 3: [101]}, {1: [11], 2: [50], 3: [102, 103]}]
    keys, values = ab.maps_to_packed(examples)
    same(values.values.values, [10, 11, 101, 11, 50, 102, 103])
    same(values.values.lengths, [2, 1, 1, 1, 2])
    same(keys.values, [1, 3, 1, 2, 3])
    same(keys.lengths, [2, 3])
    assert values.offsets.tolist() == keys.offsets.tolist()
    back = ab.packed_to_maps(keys, values)
    assert [{key: x.tolist() for key, x in example.items()} for example in back] == examples


def test_s3_07_empty_maps_and_lists():
    keys, values = ab.maps_to_packed([{}, {4: []}, {}])
    same(keys.lengths, [0, 1, 0])
    same(values.values.lengths, [0])
    assert [list(example) for example in ab.packed_to_maps(keys, values)] == [[], [4], []]
    keys, values = ab.maps_to_packed([{}])
    assert ab.packed_to_maps(keys, values) == [{}]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: ab.lengths_to_segment_ids([1, -2]), ShapeError, r"lengths\[1\] is -2"),
        (lambda: ab.lengths_to_segment_ids([[1]]), ShapeError, r"lengths have shape \(1, 1\)"),
        (lambda: ab.lengths_to_offsets([1.5]), DTypeError, r"lengths have dtype float64"),
        (lambda: ab.offsets_to_lengths([0, 3, 1]), BadIdError, r"offsets\[2\] is 1, below"),
        (lambda: ab.offsets_to_lengths([1, 3]), BadIdError, r"offsets\[0\] is 1"),
        (lambda: ab.offsets_to_lengths([]), BadIdError, r"offsets are empty"),
        (lambda: ab.segment_ids_to_lengths([0, -1]), BadIdError, r"segment id -1 at position 1 is negative"),
        (lambda: ab.segment_ids_to_lengths([0, 9], 3), BadIdError, r"segment id 9 at position 1 is outside 3"),
        (lambda: ab.sort_segments([1, 2], [0]), ShapeError, r"segment_ids of shape \(1,\) for values"),
        (lambda: ab.lengths_to_padded([1, 2], [3]), ShapeError, r"lengths add up to 3; expected the number of values"),
        (lambda: ab.lengths_to_padded([1, 2], [2], filler=0.5), DTypeError, r"filler 0.5 is not a value of int64"),
        (lambda: ab.padded_to_lengths([1, 2], 0), ShapeError, r"padded data of shape \(2,\)"),
        (lambda: ab.padded_to_lengths([[0, 2]], 0), ShapeError, r"row 0 has the filler 0 before a value"),
        (lambda: ab.padded_to_lengths([[0.5]], 10**400), DTypeError, r"filler 10+ is not a value of float64"),
        (lambda: ab.lengths_to_sparse([1, -2], [2]), BadIdError, r"id -2 at position 1 is not a column"),
        (lambda: ab.lengths_to_sparse([1, 8], [2], num_columns=8), BadIdError, r"id 8 at position 1"),
        (lambda: ab.lengths_to_sparse([1], [1], scores=[1, 2]), ShapeError, r"scores have shape \(2,\)"),
        (lambda: ab.sparse_to_lengths(([1, 1], [0], [0, 1])), ShapeError, r"\(2,\) entries for \(1,\)"),
        (
            lambda: ab.sparse_to_lengths(([1], [0], [0, 2])),
            ShapeError,
            r"offsets\[1\] is 2, above the number",
        ),
        (lambda: ab.sparse_to_lengths([1, 2]), ShapeError, r"a matrix of shape \(2,\)"),
        (lambda: ab.maps_to_packed([{1: 2}, [3]]), DTypeError, r"example 1 is a list; expected a dict"),
        (lambda: ab.maps_to_packed([{1: 2}, {1: [3]}]), ShapeError, r"example 1 has a list under key 1"),
        (lambda: ab.maps_to_packed([{"a": 2}]), DTypeError, r"keys have dtype <U1; expected integers"),
    ],
)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_column_0_is_a_column():
    same(ab.lengths_to_sparse([0, 3, 0], [1, 2]), np.ones(3), [0, 3, 0], [0, 1, 3])
    same(ab.lengths_to_sparse([0], [1], num_columns=1), np.ones(1), [0], [0, 1])
    with pytest.raises(BadIdError, match="id 0 at position 0"):
        ab.lengths_to_sparse([0], [1], num_columns=0)
