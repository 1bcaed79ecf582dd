"""The representations of ragged data, and every conversion between them.

Values one after the other, with the length of each segment, its offsets, or a segment id for each value (sorted or
not); padded with a filler; a sparse matrix with a row for each segment, whose columns are the values.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Lengths
from autobatch.core.op import Op, is_boxed
from autobatch.errors import DTypeError, ShapeError
from autobatch.ops.rules.ragged_checks import (
    as_ids,
    by_lane,
    check_offsets,
    check_sorted,
    check_total,
    columns_of,
    count_segments,
    filler_lengths,
    flattened,
    in_lane,
    lengths_of,
    offsets_from,
    pad_rows,
    read_csr,
)

__all__ = [
    "lengths_to_offsets",
    "lengths_to_padded",
    "lengths_to_segment_ids",
    "lengths_to_sparse",
    "offsets_to_lengths",
    "offsets_to_segment_ids",
    "padded_to_lengths",
    "segment_ids_to_lengths",
    "segment_ids_to_offsets",
    "sort_segments",
    "sparse_to_lengths",
]


def lengths_to_segment_ids(lengths: Any) -> Any:
    """The segment of each row: `[1, 3, 0, 2]` gives `[0, 1, 1, 1, 3, 3]`.

    Args:
        lengths: (segments,) integers, none negative.

    Returns:
        (rows,) int64, as many as the lengths add up to.

    Raises:
        ShapeError: not one dimension, or a negative length. DTypeError: not integers.

    Source: Caffe2's `LengthsToSegmentIds`.

    >>> lengths_to_segment_ids([1, 3, 0, 2])
    array([0, 1, 1, 1, 3, 3])
    """
    return number_p(lengths if is_boxed(lengths) else lengths_of(lengths))


def lengths_to_offsets(lengths: Any) -> Any:
    """The (segments + 1,) offsets of segments of these lengths: their starts, and last the end.

    Args:
        lengths: (segments,) integers, none negative.

    Returns:
        (segments + 1,) int64.

    Raises:
        ShapeError: not one dimension, or a negative length. DTypeError: not integers.

    >>> lengths_to_offsets([1, 3, 0, 2])
    array([0, 1, 4, 4, 6])
    """
    return offsets_from(lengths if is_boxed(lengths) else lengths_of(lengths))


def offsets_to_lengths(offsets: Any) -> Any:
    """The number of rows of each segment, from the (segments + 1,) offsets.

    Args:
        offsets: (segments + 1,) integers that start with 0 and do not fall.

    Returns:
        (segments,) int64.

    Raises:
        BadIdError: offsets that do not start with 0 or that fall.

    >>> offsets_to_lengths([0, 1, 4, 4, 6])
    array([1, 3, 0, 2])
    """
    if not is_boxed(offsets):
        offsets = as_ids(offsets, "offsets")
        offsets = check_offsets(offsets, int(offsets.max(initial=0)))
    return np.diff(offsets)


def offsets_to_segment_ids(offsets: Any) -> Any:
    """The segment of each row, from the (segments + 1,) offsets.

    Args:
        offsets: (segments + 1,) integers that start with 0 and do not fall.

    Returns:
        (rows,) int64.

    >>> offsets_to_segment_ids([0, 1, 4, 4, 6])
    array([0, 1, 1, 1, 3, 3])
    """
    return lengths_to_segment_ids(offsets_to_lengths(offsets))


def segment_ids_to_lengths(segment_ids: Any, num_segments: int | None = None) -> Any:
    """The number of rows of each segment, in any order; without `num_segments`, up to the greatest id.

    Args:
        segment_ids: (rows,) integers, the segment of each row, in any order.
        num_segments: how many segments there are; by default up to the greatest id.

    Returns:
        (segments,) int64.

    Raises:
        BadIdError: an id that is negative or not below `num_segments`.

    Source: Caffe2's `SegmentIdsToLengths`.

    >>> segment_ids_to_lengths([0, 1, 1, 1, 3, 3])
    array([1, 3, 0, 2])
    """
    if is_boxed(segment_ids):
        return np.bincount(segment_ids, minlength=0 if num_segments is None else num_segments)
    ids = as_ids(segment_ids, "segment_ids")
    return np.bincount(ids, minlength=count_segments(ids, num_segments))


def segment_ids_to_offsets(segment_ids: Any, num_segments: int | None = None) -> Any:
    """The (segments + 1,) offsets of segments whose ids are sorted: their starts, and last the end.

    Args:
        segment_ids: (rows,) integers, the segment of each row, which do not fall.
        num_segments: how many segments there are; by default up to the greatest id.

    Returns:
        (segments + 1,) int64.

    Raises:
        BadIdError: ids that fall (`sort_segments` sorts values and ids), that are negative or not below `num_segments`.

    >>> segment_ids_to_offsets([0, 1, 1, 1, 3, 3])
    array([0, 1, 4, 4, 6])
    """
    if not is_boxed(segment_ids):
        segment_ids = as_ids(segment_ids, "segment_ids")
        check_sorted(segment_ids)
    return lengths_to_offsets(segment_ids_to_lengths(segment_ids, num_segments))


def sort_segments(values: Any, segment_ids: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values and their segment ids, sorted by segment; the order within a segment is kept.

    Args:
        values: (rows, ...).
        segment_ids: (rows,) integers, the segment of each row, in any order.

    Returns:
        (values, segment_ids), both in the order of the segments.

    Raises:
        BadIdError: a negative id. ShapeError: not one id for each row. DTypeError: ids that are no integers.

    >>> sort_segments([4, 1, 3, 6], [1, 0, 2, 1])
    (array([1, 4, 6, 3]), array([0, 1, 1, 2]))
    """
    values, ids = np.asarray(values), as_ids(segment_ids, "segment_ids")
    count_segments(ids, None)
    if not values.ndim or values.shape[0] != ids.shape[0]:
        raise ShapeError(
            f"segment_ids have shape {ids.shape} for values of shape {values.shape}; expected one for each"
        )
    order = np.argsort(ids, kind="stable")
    return values[order], ids[order]


def lengths_to_padded(values: Any, lengths: Any, filler: Any = 0) -> np.ndarray:
    """(segments, longest, ...): the values of each segment in a row, `filler` after them.

    Args:
        values: (rows, ...), one segment's after the other.
        lengths: (segments,) integers, none negative.
        filler: a number of the values' dtype.

    Returns:
        An array of the values' dtype.

    Raises:
        ShapeError: lengths that do not add up to the number of values. DTypeError: a filler that is no such value.

    >>> lengths_to_padded([1, 2, 3, 4], [3, 1], filler=-1)
    array([[ 1,  2,  3],
           [ 4, -1, -1]])
    """
    values, lengths = np.asarray(values), lengths_of(lengths)
    check_total(lengths, values.shape[0] if values.ndim else 0)
    try:
        fits = filler != filler or np.asarray(filler).astype(values.dtype) == filler
    except (OverflowError, TypeError):
        fits = False
    if np.ndim(fits) or not fits:
        raise DTypeError(f"filler {filler!r:.60} is not a value of {values.dtype}")
    return pad_rows(values, Lengths(lengths), filler)


def padded_to_lengths(padded: Any, filler: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values one after the other and their lengths, from rows that are padded with `filler` at their end.

    Args:
        padded: (segments, longest, ...); a position is padding where all of it is `filler` (NaN is NaN).

    Returns:
        (values, lengths): (rows, ...) of the same dtype, and (segments,) int64.

    Raises:
        ShapeError: fewer than two dimensions, or a filler before a value.

    >>> padded_to_lengths([[1, 2, 3], [4, -1, -1]], filler=-1)
    (array([1, 2, 3, 4]), array([3, 1]))
    """
    padded = np.asarray(padded)
    if padded.ndim < 2:
        raise ShapeError(f"padded data of shape {padded.shape}; expected (segments, longest, ...)")
    lengths = filler_lengths(padded, filler)
    return padded[np.arange(padded.shape[1]) < lengths[:, None]], lengths


def lengths_to_sparse(
    values: Any, lengths: Any, scores: Any = None, num_columns: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sparse matrix of ids: a row for each segment, an entry in the column of each of its values.

    Args:
        values: (n,) ids of columns. scores: (n,) the entries; None: ones.

    Returns:
        (data, indices, indptr), as `scipy.sparse.csr_matrix` takes it.

    Raises:
        BadIdError: a value that is no column.

    >>> lengths_to_sparse([1, 2, 4], [2, 1])
    (array([1, 1, 1]), array([1, 2, 4]), array([0, 2, 3]))
    """
    ids, _ = columns_of(values, num_columns)
    check_total(lengths_of(lengths), ids.shape[0])
    data = np.ones(ids.shape[0], np.int64) if scores is None else np.asarray(scores)
    if data.shape != ids.shape:
        raise ShapeError(f"scores have shape {data.shape}; expected one for each value, {ids.shape}")
    return data, ids, lengths_to_offsets(lengths)


def sparse_to_lengths(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values, lengths, scores) of a sparse matrix: the columns of each row's entries, how many, and the entries.

    Args:
        matrix: a SciPy sparse matrix, its (data, indices, indptr), or a dense matrix, of which the entries that are not
            zero count.

    Returns:
        (values, lengths, scores): (entries,) int64 columns, (rows,) int64, and (entries,) of the matrix's dtype.

    Raises:
        ShapeError, DTypeError, BadIdError: no matrix, or parts that do not describe one.

    >>> sparse_to_lengths([[0, 1, 1, 0, 0], [0, 0, 0, 0, 1]])
    (array([1, 2, 4]), array([2, 1]), array([1, 1, 1]))
    """
    data, ids, offsets = read_csr(matrix)
    return ids, np.diff(offsets), data


def _number(lengths: Any) -> np.ndarray:
    lengths = lengths_of(lengths)
    return np.repeat(np.arange(lengths.shape[0]), lengths)


def _number_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lengths, _ = flattened(operands[0], operands[0].batch_size, "lengths")
    for lane, (start, stop) in enumerate(itertools.pairwise(lengths.offsets.tolist())):
        in_lane(lane, lambda own=lengths.values[start:stop]: lengths_of(own))  # type: ignore[misc]
    values = as_ids(lengths.values, "lengths")
    own = np.arange(len(values)) - np.repeat(lengths.offsets[:-1], lengths.lengths)
    totals = np.diff(offsets_from(values)[lengths.offsets])
    return by_lane(np.repeat(own, values), totals)


# The number of each row's segment, from the lengths.
number_p = Op("lengths_to_segment_ids", _number, rule=_number_rule, data_dependent=True, kind="segment")
