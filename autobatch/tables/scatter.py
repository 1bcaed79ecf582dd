"""Reading and replacing rows by id: `gather`, `scatter_assign`, `scatter_add` and `scatter_weighted_sum`.

They are ops: in batched code, a call on one example's data runs once for all examples. Ids must satisfy
0 <= id < number of rows, and may repeat.
"""

from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from autobatch.ops.rules.dispatch import cast
from autobatch.ops.rules.ragged_checks import (
    as_ids,
    as_integers,
    check_ids,
)
from autobatch.tables.bag_and_segment_op import segment_p
from autobatch.tables.lookup import check_out, lookup_p
from autobatch.tables.segments import segment_count, segment_last, segment_sum
from autobatch.tables.table import EmbeddingTable


@hiding_frames
def gather(data: Any, ids: ArrayLike) -> np.ndarray:
    """`data[ids]`, the rows named by ids, but negative ids are errors.

    Args:
        data: (n, ...) rows or a table. ids: integers of any rank.

    Returns:
        (*ids.shape, ...). The gradient of a table is `SparseRows`.

    Raises:
        BadIdError: an id outside the rows. DTypeError: ids that are not integers.

    Source: Caffe2's `Gather`.

    >>> gather(np.array([[1, 2], [3, 4], [5, 6]]), [2, 0])
    array([[5, 6],
           [1, 2]])
    """
    data = data if hasattr(data, "dtype") else np.asarray(data)
    if rank_of(data) != BATCH_RANK and not ndim_of(data):
        raise ShapeError("data is a single number; expected rows, (n, ...)")
    ids = ids if is_boxed(ids) else as_integers(ids)
    if rank_of(data) == BATCH_RANK and ndim_of(ids) != 1:
        return np.reshape(lookup_p(data, np.reshape(ids, (-1,))), (*shape_of(ids), *shape_of(data)[1:]))
    return lookup_p(data, ids)


@hiding_frames
def scatter_assign(data: ArrayLike, ids: ArrayLike, rows: ArrayLike, *, out: object = None) -> np.ndarray:
    """`data` with row ids[i] replaced by rows[i], for each i; if an id repeats, its last row stays.

    Args:
        data: (n, ...). ids: (k,) integers. rows: (k, ...), of a dtype that can be cast to that of `data`.
        out: an array of the shape and dtype of `data` for the result; `out=data` works in place.

    Returns:
        A new array, or `out`. The gradient goes to `rows`, and to the rows of `data` that are not replaced.

    Raises:
        BadIdError: an id is out of range. ShapeError: `rows` has a wrong shape. DTypeError: ids are not integers.

    Source: Caffe2's `ScatterAssign`.

    >>> scatter_assign(np.array([1.0, 2.0, 3.0]), [2, 0], [30.0, 10.0])
    array([10.,  2., 30.])
    """
    return _scatter("assign", data, ids, rows, out)


@hiding_frames
def scatter_add(data: ArrayLike, ids: ArrayLike, rows: ArrayLike, *, out: Any = None) -> np.ndarray:
    """`data` with rows[i] added to row ids[i], for each i in order; the rows of repeated ids are all added.

    Arguments, result and errors as for `scatter_assign`. The rows of repeated float16 ids are summed in float32.

    >>> scatter_add(np.array([1.0, 2.0, 3.0]), [2, 0, 2], [30.0, 10.0, 4.0])
    array([11.,  2., 37.])
    """
    return _scatter("add", data, ids, rows, out)


@hiding_frames
def scatter_weighted_sum(data: Any, weight: Any, ids: Any, *rows_and_weights: Any, out: Any = None) -> np.ndarray:
    """`data` with each named row scaled by `weight`, plus a weighted sum of the given rows.

    Row ids[i] becomes weight · data[ids[i]] + Σ wⱼ · rowsⱼ[i]; other rows do not change. The row of an id that occurs k
    times is scaled k times, and all of its rows are added.

    Args:
        data: (n, ...). weight: a number. ids: (k,) integers.
        rows_and_weights: rows₁, w₁, rows₂, w₂ …, alternating arrays (k, ...) and numbers.
        out: an array for the result; `out=data` works in place.

    Returns:
        An array of the shape and dtype of `data`; `out` if it is given.

    Raises:
        BadIdError, ShapeError, DTypeError: as in `scatter_assign`; ShapeError also for rows without a weight.

    Source: Caffe2's `ScatterWeightedSum`.

    >>> scatter_weighted_sum(np.array([1.0, 2.0]), 0.5, [1], [10.0], 2.0)
    array([ 1., 21.])
    """
    if not rows_and_weights or len(rows_and_weights) % 2:
        raise ShapeError(f"{len(rows_and_weights)} arguments after ids; expected rows, weight, and so on in pairs")
    data = data if hasattr(data, "dtype") else np.asarray(data)
    ids = ids if is_boxed(ids) else as_ids(ids)
    weight = _weight(weight)
    pairs = [(rows, _weight(w)) for rows, w in zip(rows_and_weights[::2], rows_and_weights[1::2], strict=True)]
    total = sum((_array(rows) * w for rows, w in pairs[1:]), start=_array(pairs[0][0]) * pairs[0][1])
    named = scatter_add(np.zeros_like(data), ids, np.zeros_like(total) + dtype_of(data).type(1))
    factors = weight * np.power(weight, np.maximum(named - 1, 0))  # in this form, differentiable at weight 0
    scaled = np.where(named == 0, data, data * factors.astype(dtype_of(data)))
    return scatter_add(scaled, ids, total, out=out)


def _weight(value: Any) -> Any:
    if not is_boxed(value) and (np.ndim(value) or np.asarray(value).dtype.kind not in "biufc"):
        raise DTypeError(f"weight {value!r:.60}; expected a number")
    return value


def _array(x: object) -> Any:
    found = x if hasattr(x, "dtype") else np.asarray(x)
    if dtype_of(found).kind == "O":
        raise DTypeError(f"{x!r:.60}; expected an array of numbers")
    return found


def _check(data: ArrayLike, ids: np.ndarray) -> None:
    if ids.ndim != 1:
        raise ShapeError(f"ids have shape {ids.shape}; expected one dimension")
    check_ids(ids, shape_of(data)[0])


def _check_rows(data: ArrayLike, ids: ArrayLike, rows: ArrayLike) -> None:
    expected = (*shape_of(ids), *shape_of(data)[1:])
    if tuple(shape_of(rows)) != expected:
        raise ShapeError(f"rows have shape {shape_of(rows)}; expected one for each id, {expected}")
    if not np.can_cast(dtype_of(rows), dtype_of(data), "same_kind"):
        raise DTypeError(f"rows have dtype {dtype_of(rows)}, which {dtype_of(data)} cannot hold: write .astype")


def _scatter(mode: str, data: Any, ids: Any, rows: Any, out: Any) -> Any:
    data = data.weights if isinstance(data, EmbeddingTable) else _array(data)
    ids, rows = ids if is_boxed(ids) else as_ids(ids), _array(rows)
    operands = (data, ids, rows)
    if not ndim_of(data):
        raise ShapeError("data is a single number; expected rows, (n, ...)")
    if any(rank_of(x) == BATCH_RANK for x in operands):
        if out is not None:
            raise UnsupportedError("out= with batched operands; use the result")
        return _composed(mode, *operands)
    ids = np.asarray(ids)
    _check(data, ids)
    _check_rows(data, ids, rows)
    if out is None and any(is_boxed(x) for x in operands):
        return _composed(mode, data, ids, rows)
    if out is None:
        out = np.array(data)
        _apply(mode, out, ids, rows)
        return out
    target = out.weights if isinstance(out, EmbeddingTable) else out
    if is_boxed(target) or any(is_boxed(x) for x in operands):
        raise UnsupportedError("out= with values that carry a gradient or are recorded; use the result")
    check_out(target, data.shape, data.dtype)
    if target is data:
        _apply(mode, target, ids, rows)
    else:  # in one write
        target[...] = _scatter(mode, data, ids, rows, None)
    return out


def _composed(mode: str, data: Any, ids: Any, rows: Any) -> Any:
    """The result by reductions of the rows of each id, which have rules and gradients."""
    count, more = shape_of(data)[0], (None,) * (ndim_of(data) - 1)
    if mode == "add":
        return data + cast(segment_sum(rows, ids, num_segments=count), dtype_of(data))
    last = cast(segment_last(rows, ids, num_segments=count), dtype_of(data))
    return np.where((segment_count(rows, ids, num_segments=count) > 0)[(slice(None), *more)], last, data)


def _apply(mode: str, target: np.ndarray, ids: np.ndarray, rows: object) -> None:
    rows = np.asarray(rows, target.dtype)
    if mode == "assign":
        target[ids] = rows  # of repeated ids the last stays
        return
    unique, inverse = np.unique(ids, return_inverse=True)
    if len(unique) == len(ids):
        target[ids] += rows
        return
    target[unique] += segment_p(rows, inverse, mode="sum", count=len(unique)).astype(target.dtype, copy=False)
