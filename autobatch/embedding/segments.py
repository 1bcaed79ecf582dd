"""Segment reductions: rows of data reduced by the segment they belong to.

One function for each reduction over all representations of the segments: an id for each row (in any order), lengths, or
offsets.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import Op, is_boxed
from autobatch.embedding.ids import as_ids, check_offsets
from autobatch.embedding.table import lookup_p
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from autobatch.kernels import segments as kernels

__all__ = [
    "lengths_to_offsets",
    "lengths_to_segment_ids",
    "segment_ids_to_lengths",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_p",
    "segment_sum",
]

_EXTREMA = {"max": kernels.segment_max, "min": kernels.segment_min}


def lengths_to_segment_ids(lengths: Any) -> np.ndarray:
    """The segment of each row: `[1, 3, 0, 2]` gives `[0, 1, 1, 1, 3, 3]`.

    >>> lengths_to_segment_ids([1, 3, 0, 2])
    array([0, 1, 1, 1, 3, 3])
    """
    lengths = _lengths(lengths)
    return np.repeat(np.arange(lengths.shape[0]), lengths)


def lengths_to_offsets(lengths: Any) -> np.ndarray:
    """Where each segment starts, and last where they end, (segments + 1,).

    >>> lengths_to_offsets([1, 3, 0, 2])
    array([0, 1, 4, 4, 6])
    """
    return np.concatenate([[0], np.cumsum(_lengths(lengths))])


def segment_ids_to_lengths(segment_ids: Any, num_segments: int | None = None) -> np.ndarray:
    """How many rows each segment has; without `num_segments`, up to the greatest id.

    >>> segment_ids_to_lengths([0, 1, 1, 1, 3, 3])
    array([1, 3, 0, 2])
    """
    ids = as_ids(segment_ids, "segment_ids")
    return np.bincount(ids, minlength=_num_segments(ids, num_segments))


def _lengths(lengths: Any) -> np.ndarray:
    lengths = as_ids(lengths, "lengths")
    if lengths.ndim != 1:
        raise ShapeError(f"lengths have shape {lengths.shape}; expected one dimension")
    if lengths.size and lengths.min() < 0:
        at = int(np.argmax(lengths < 0))
        raise ShapeError(f"lengths[{at}] is {lengths[at]}; a length is at least 0")
    return lengths


def _num_segments(ids: np.ndarray, num_segments: int | None) -> int:
    if ids.ndim != 1:
        raise ShapeError(f"segment_ids have shape {ids.shape}; expected one dimension")
    if num_segments is not None and num_segments < 0:
        raise ShapeError(f"num_segments={num_segments}; expected at least 0")
    wrong = ids < 0 if num_segments is None else (ids < 0) | (ids >= num_segments)
    if wrong.any():
        at = int(np.argmax(wrong))
        why = "negative" if ids[at] < 0 else f"outside {num_segments} segments"
        raise BadIdError(f"segment id {ids[at]} at position {at} is {why}")
    return int(ids.max(initial=-1)) + 1 if num_segments is None else int(num_segments)


def segment_sum(
    data: Any,
    segment_ids: Any = None,
    *,
    lengths: Any = None,
    offsets: Any = None,
    ids: Any = None,
    weights: Any = None,
    num_segments: int | None = None,
    empty: float | None = None,
) -> Any:
    """The sum of the rows of each segment.

    Args:
        data: (n, ...) rows; with `ids`, a table of which row i is `data[ids[i]]`.
        segment_ids: (n,) the segment of each row, in any order. Or `lengths`, (segments,), or `offsets`,
            (segments + 1,) from 0 to n, of segments that follow each other. Exactly one of the three.
        weights: (n,) a factor for each row.
        num_segments: how many segments there are; None: up to the greatest id.
        empty: the value of a segment without rows; None is 0.

    Returns:
        (segments, ...), of the dtype of `data`.

    Raises:
        BadIdError: a segment id outside `num_segments`, an id outside the table, offsets that fall.
        ShapeError: shapes that do not fit together, or not exactly one description of the segments.
        DTypeError: ids that are not integers.

    Source: Caffe2's sparse operations (`SortedSegmentSum`, `UnsortedSegmentSum`, their `Sparse*` and `*Weighted*`).

    >>> segment_sum(np.array([[1, 2], [11, 5], [3, 3], [11, 9]]), [0, 0, 1, 1])
    array([[12,  7],
           [14, 12]])
    """
    return _reduce("sum", data, segment_ids, lengths, offsets, ids, weights, num_segments, empty)


def segment_mean(
    data: Any,
    segment_ids: Any = None,
    *,
    lengths: Any = None,
    offsets: Any = None,
    ids: Any = None,
    weights: Any = None,
    num_segments: int | None = None,
    empty: float | None = None,
) -> Any:
    """The mean of the rows of each segment; with weights Σwx/Σw. Arguments as for `segment_sum`.

    >>> segment_mean(np.array([1.0, 3.0, 5.0]), lengths=[2, 0, 1])
    array([2., 0., 5.])
    """
    return _reduce("mean", data, segment_ids, lengths, offsets, ids, weights, num_segments, empty)


def segment_max(
    data: Any,
    segment_ids: Any = None,
    *,
    lengths: Any = None,
    offsets: Any = None,
    ids: Any = None,
    num_segments: int | None = None,
    empty: float | None = None,
) -> Any:
    """The greatest of each column of a segment; its gradient goes to the first. Arguments as for `segment_sum`.

    >>> segment_max(np.array([1.0, 3.0, -5.0]), [1, 1, 0])
    array([-5.,  3.])
    """
    return _reduce("max", data, segment_ids, lengths, offsets, ids, None, num_segments, empty)


def segment_min(
    data: Any,
    segment_ids: Any = None,
    *,
    lengths: Any = None,
    offsets: Any = None,
    ids: Any = None,
    num_segments: int | None = None,
    empty: float | None = None,
) -> Any:
    """The least of each column of a segment; its gradient goes to the first. Arguments as for `segment_sum`.

    >>> segment_min(np.array([1.0, 3.0, -5.0]), [1, 1, 0])
    array([-5.,  1.])
    """
    return _reduce("min", data, segment_ids, lengths, offsets, ids, None, num_segments, empty)


def _reduce(
    mode: str,
    data: Any,
    segment_ids: Any,
    lengths: Any,
    offsets: Any,
    ids: Any,
    weights: Any,
    num_segments: int | None,
    empty: float | None,
) -> Any:
    if not hasattr(data, "dtype"):
        data = np.asarray(data)
    if ids is not None:
        data = lookup_p(data, ids if is_boxed(ids) else as_ids(ids))
    if not ndim_of(data):
        raise ShapeError("data is a single number; expected rows, (n, ...)")
    n = shape_of(data)[0]
    segments, count = _segments(n, segment_ids, lengths, offsets, num_segments)
    if mode == "mean" and dtype_of(data).kind != "f":
        raise DTypeError(f"the mean of {dtype_of(data)} is no {dtype_of(data)}; make the data a float array")
    rest = (1,) * (ndim_of(data) - 1)
    if weights is not None:
        if shape_of(weights) != (n,):
            raise ShapeError(f"weights have shape {shape_of(weights)}; expected one for each row, ({n},)")
        weights = weights if is_boxed(weights) else np.asarray(weights, dtype_of(data))
        data = data * np.reshape(weights, (n, *rest))
    counts = np.bincount(segments, minlength=count)
    out = segment_p(data, segments, num_segments=count, mode="sum" if mode == "mean" else mode)
    if mode == "mean" and weights is not None:
        norm = segment_p(weights, segments, num_segments=count, mode="sum")
        out = out / np.reshape(np.where(counts > 0, norm, dtype_of(norm).type(1)), (count, *rest))
    elif mode == "mean":
        out = out / np.maximum(counts, 1).astype(dtype_of(data)).reshape(count, *rest)
    if empty is None:
        return out
    return np.where(counts.reshape(count, *rest) == 0, dtype_of(out).type(empty), out)


def _segments(n: int, segment_ids: Any, lengths: Any, offsets: Any, num_segments: int | None) -> tuple[np.ndarray, int]:
    """The segment of each of n rows, and how many segments there are."""
    if sum(x is not None for x in (segment_ids, lengths, offsets)) != 1:
        raise ShapeError("the segments are given by exactly one of segment_ids, lengths= and offsets=")
    if any(is_boxed(x) for x in (segment_ids, lengths, offsets)):
        raise UnsupportedError("segments that differ from example to example; reduce each example by itself")
    if segment_ids is not None:
        found = as_ids(segment_ids, "segment_ids")
        count = _num_segments(found, num_segments)
        if found.shape != (n,):
            raise ShapeError(f"segment_ids have shape {found.shape}; expected one for each row, ({n},)")
        return found, count
    if offsets is not None:
        bounds = as_ids(offsets, "offsets")
        check_offsets(bounds, n, closed=True)
        lengths = np.diff(bounds)
    lengths = _lengths(lengths)
    if lengths.sum() != n:
        raise ShapeError(f"the lengths add up to {lengths.sum()}; expected the number of rows, {n}")
    if num_segments is not None and num_segments != lengths.shape[0]:
        raise ShapeError(f"num_segments={num_segments}, but {lengths.shape[0]} segments are given; leave it out")
    return np.repeat(np.arange(lengths.shape[0]), lengths), lengths.shape[0]


def _segment(data: Any, ids: np.ndarray, *, num_segments: int, mode: str) -> np.ndarray:
    data = np.asarray(data)
    if data.dtype.kind not in "fiu":
        raise DTypeError(f"a segment reduction of {data.dtype}; expected floats or integers")
    shape = (num_segments, *data.shape[1:])
    x = _matrix(data)
    out = np.zeros((num_segments, x.shape[1]), x.dtype)
    if mode == "sum":
        kernels.segment_sum(x, ids, out)
    else:
        _EXTREMA[mode](x, ids, np.zeros(num_segments, np.bool_), out)
    return out.astype(data.dtype, copy=False).reshape(shape)


def _matrix(data: np.ndarray) -> np.ndarray:
    """(n, width), C-contiguous; float16 as float32, in which it is added up."""
    width = int(np.prod(data.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(data.reshape(data.shape[0], width), np.float32 if data.dtype == np.float16 else None)


def _segment_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position != 0:
        return None
    data, ids = args
    if params["mode"] == "sum":
        return np.take(ct, ids, axis=0)
    if any(is_boxed(x) for x in (ct, out, data)):
        raise UnsupportedError(f"no gradient of the gradient of segment_{params['mode']}")
    x, values = _matrix(data), _matrix(out)
    first = np.full(values.shape, -1, np.int64)
    kernels.segment_first_equal(x, ids, values, first)
    found = np.zeros(x.shape, ct.dtype)
    segment, column = np.nonzero(first >= 0)
    found[first[segment, column], column] = ct.reshape(values.shape)[segment, column]
    return found.reshape(data.shape)


segment_p = Op("segment", _segment, vjp=_segment_vjp, kind="segment")
