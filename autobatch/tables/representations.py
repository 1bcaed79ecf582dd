"""Conversions between the representations of ragged data: lengths, offsets, segment ids, padded and sparse.

The first three describe concatenated values (segment ids may be unsorted). Padded data has a filler after each
segment's values. A sparse matrix has a row for each segment, and an entry in the column of each value.
"""

from typing import Any

import numpy as np

from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Lengths
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, ShapeError
from autobatch.kernels.segment_reductions import segment_count
from autobatch.ops.numpy.creation import arange
from autobatch.ops.rules.ragged_checks import (
    as_integers,
    check_offsets,
    check_sorted,
    check_total,
    columns_of,
    filler_lengths,
    lengths_of,
    offsets_from,
    own_segments,
    read_csr,
)
from autobatch.ops.rules.row_gather import pad_rows

__all__ = [
    "lengths_to_offsets", "lengths_to_padded", "lengths_to_segment_ids", "lengths_to_sparse", "offsets_to_lengths",
    "offsets_to_segment_ids", "padded_to_lengths", "segment_ids_to_lengths", "segment_ids_to_offsets", "sort_segments",
    "sparse_to_lengths",
]  # fmt: skip


def lengths_to_segment_ids(lengths: ArrayLike) -> np.ndarray:
    """The segment of each row: `[1, 3, 0, 2]` gives `[0, 1, 1, 1, 3, 3]`.

    Args:
        lengths: (segments,) integers, none negative.

    Returns:
        (rows,) int64, where rows is the sum of the lengths.

    Raises:
        ShapeError: not one dimension, or a negative length. DTypeError: not integers.

    Source: Caffe2's `LengthsToSegmentIds`.

    >>> lengths_to_segment_ids([1, 3, 0, 2])
    array([0, 1, 1, 1, 3, 3])
    """
    own: Any = lengths if is_boxed(lengths) else lengths_of(lengths)
    if len(shape_of(own)) != 1:
        raise ShapeError(f"lengths have shape {shape_of(own)}; expected one dimension")
    return np.repeat(arange(shape_of(own)[0]), own)


def lengths_to_offsets(lengths: ArrayLike) -> np.ndarray:
    """The offsets (segments + 1,) of segments with these lengths: the start of each, and the end of the last.

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


def offsets_to_lengths(offsets: Any) -> np.ndarray:
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
        offsets = as_integers(offsets, "offsets")
        offsets = check_offsets(offsets, int(offsets.max(initial=0)))
    return np.diff(offsets)


def offsets_to_segment_ids(offsets: ArrayLike) -> np.ndarray:
    """The segment of each row, from the (segments + 1,) offsets.

    Args:
        offsets: (segments + 1,) integers that start with 0 and do not fall.

    Returns:
        (rows,) int64.

    >>> offsets_to_segment_ids([0, 1, 4, 4, 6])
    array([0, 1, 1, 1, 3, 3])
    """
    return lengths_to_segment_ids(offsets_to_lengths(offsets))


def segment_ids_to_lengths(segment_ids: Any, num_segments: int | None = None) -> np.ndarray:
    """The number of rows of each segment.

    Args:
        segment_ids: (rows,) integers, the segment of each row, in any order.
        num_segments: the number of segments; None: the greatest id + 1.

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
    ids, count = own_segments(segment_ids, num_segments, own=False)
    out = np.zeros(count, np.int64)
    if segment_count(ids, out):
        return out
    return np.bincount(own_segments(segment_ids, num_segments)[0], minlength=count)


def segment_ids_to_offsets(segment_ids: object, num_segments: int | None = None) -> np.ndarray:
    """The offsets (segments + 1,) of segments given by sorted ids: the start of each, and the end of the last.

    Args:
        segment_ids: (rows,) integers, the segment of each row, in ascending order.
        num_segments: the number of segments; None: the greatest id + 1.

    Returns:
        (segments + 1,) int64.

    Raises:
        BadIdError: ids are not sorted (see `sort_segments`), negative, or not below `num_segments`.

    >>> segment_ids_to_offsets([0, 1, 1, 1, 3, 3])
    array([0, 1, 4, 4, 6])
    """
    if not is_boxed(segment_ids):
        segment_ids, num_segments = own_segments(segment_ids, num_segments)
        check_sorted(segment_ids)
    return lengths_to_offsets(segment_ids_to_lengths(segment_ids, num_segments))


def sort_segments(values: object, segment_ids: object) -> tuple[np.ndarray, np.ndarray]:
    """Sort values and their segment ids by segment; the order within a segment does not change.

    Args:
        values: (rows, ...).
        segment_ids: (rows,) integers, the segment of each row, in any order.

    Returns:
        (values, segment_ids), both in the order of the segments.

    Raises:
        BadIdError: a negative id. ShapeError: not one id for each row. DTypeError: ids that are not integers.

    >>> sort_segments([4, 1, 3, 6], [1, 0, 2, 1])
    (array([1, 4, 6, 3]), array([0, 1, 1, 2]))
    """
    values, (ids, _) = np.asarray(values), own_segments(segment_ids, None)
    if not values.ndim or values.shape[0] != ids.shape[0]:
        raise ShapeError(f"segment_ids of shape {ids.shape} for values of shape {values.shape}; expected one for each")
    order = np.argsort(ids, kind="stable")
    return values[order], ids[order]


def lengths_to_padded(values: object, lengths: object, filler: object = 0) -> np.ndarray:
    """Pad segments: an array (segments, longest, ...) with the values of each segment, followed by `filler`.

    Args:
        values: (rows, ...), the concatenated values of the segments.
        lengths: (segments,) integers, none negative.
        filler: a number of the values' dtype.

    Returns:
        An array of the values' dtype.

    Raises:
        ShapeError: the sum of the lengths is not the number of values. DTypeError: the dtype cannot hold the filler.

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


def padded_to_lengths(padded: object, filler: object) -> tuple[np.ndarray, np.ndarray]:
    """The concatenated values and the lengths of segments that are padded with `filler` at their end.

    Args:
        padded: (segments, longest, ...); a position is padding if all its elements equal `filler` (also if NaN).

    Returns:
        (values, lengths): (rows, ...) of the same dtype, and (segments,) int64.

    Raises:
        ShapeError: fewer than two dimensions, or padding before a value.

    >>> padded_to_lengths([[1, 2, 3], [4, -1, -1]], filler=-1)
    (array([1, 2, 3, 4]), array([3, 1]))
    """
    padded = np.asarray(padded)
    if padded.ndim < 2:
        raise ShapeError(f"padded data of shape {padded.shape}; expected (segments, longest, ...)")
    lengths = filler_lengths(padded, filler)
    return padded[np.arange(padded.shape[1]) < lengths[:, None]], lengths


def lengths_to_sparse(
    values: ArrayLike, lengths: ArrayLike, scores: object = None, num_columns: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A sparse matrix with a row for each segment, and an entry in the column of each of its values.

    Args:
        values: (n,) column numbers. scores: (n,) the entries; None: ones.

    Returns:
        (data, indices, indptr), the arguments of `scipy.sparse.csr_matrix`.

    Raises:
        BadIdError: a value is negative or not below `num_columns`.

    >>> lengths_to_sparse([1, 2, 4], [2, 1])
    (array([1, 1, 1]), array([1, 2, 4]), array([0, 2, 3]))
    """
    ids, _ = columns_of(values, num_columns)
    check_total(lengths_of(lengths), ids.shape[0])
    data = np.ones(ids.shape[0], np.int64) if scores is None else np.asarray(scores)
    if data.shape != ids.shape:
        raise ShapeError(f"scores have shape {data.shape}; expected one for each value, {ids.shape}")
    return data, ids, lengths_to_offsets(lengths)


def sparse_to_lengths(matrix: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values, lengths, scores) of a sparse matrix: its entries' columns row by row, their number per row, and values.

    Args:
        matrix: a SciPy sparse matrix, its (data, indices, indptr), or a dense matrix, whose nonzero entries are taken.

    Returns:
        (values, lengths, scores): (entries,) int64 columns, (rows,) int64, and (entries,) of the matrix's dtype.

    Raises:
        ShapeError, DTypeError, BadIdError: the argument is not a matrix, or its parts are inconsistent.

    >>> sparse_to_lengths([[0, 1, 1, 0, 0], [0, 0, 0, 0, 1]])
    (array([1, 2, 4]), array([2, 1]), array([1, 1, 1]))
    """
    data, ids, offsets = read_csr(matrix)
    return ids, np.diff(offsets), data


for _name in __all__:
    globals()[_name] = hiding_frames(globals()[_name])
