"""Reading and replacing rows by id: `gather`, `scatter_assign`, `scatter_add` and `scatter_weighted_sum`.

They are ops: in batched code, a call on one example's data runs once for all examples. Ids must satisfy
0 <= id < number of rows, and may repeat.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Packed
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import DTypeError, ShapeError, UnsupportedError, note_example
from autobatch.ops.rules.ragged_checks import (
    as_ids,
    as_integers,
    check_ids,
    concatenated_tables,
    flattened,
)
from autobatch.ops.rules.row_gather import pad_by_lane
from autobatch.tables.bag_and_segment_op import segment_p
from autobatch.tables.lookup import check_out, lookup_p
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
    return lookup_p(data, ids if is_boxed(ids) else as_integers(ids))


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
    if not ndim_of(data):
        raise ShapeError("data is a single number; expected rows, (n, ...)")
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
    if any(rank_of(x) == BATCH_RANK for x in operands):
        if out is not None:
            raise UnsupportedError("out= with batched operands; use the result")
        return scatter_p(*operands, mode=mode)
    ids = np.asarray(ids)
    _check(data, ids)
    _check_rows(data, ids, rows)
    if out is None:
        return scatter_p(data, ids, rows, mode=mode)
    target = out.weights if isinstance(out, EmbeddingTable) else out
    if is_boxed(target) or any(is_boxed(x) for x in operands):
        raise UnsupportedError("out= with values that carry a gradient or are recorded; use the result")
    check_out(target, data.shape, data.dtype)
    if target is data:
        _apply(mode, target, ids, rows)
    else:  # in one write
        target[...] = _impl(data, ids, rows, mode=mode)
    return out


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


def _impl(data: ArrayLike, ids: ArrayLike, rows: ArrayLike, *, mode: str) -> np.ndarray:
    out = np.array(data)
    _apply(mode, out, np.asarray(ids), rows)
    return out


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    data, ids, rows = args[0], np.asarray(args[1]), args[2]
    if position == 2:
        found = np.take(ct, ids, axis=0)
        if params["mode"] == "assign":
            last = np.full(shape_of(data)[0], -1)
            last[ids] = np.arange(ids.size)
            kept = (last[ids] == np.arange(ids.size)).reshape(-1, *(1,) * (ndim_of(ct) - 1))
            found = np.where(kept, found, dtype_of(ct).type(0))
        return found if dtype_of(found) == dtype_of(rows) else found.astype(dtype_of(rows))
    if position != 0:
        return None
    if params["mode"] == "add":
        return ct
    named = np.zeros((shape_of(data)[0], *(1,) * (ndim_of(ct) - 1)), np.bool_)
    named[ids] = True
    return np.where(named, dtype_of(ct).type(0), ct)


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """Batching rule: concatenate the data of all examples, and shift the ids of each to its rows."""
    data, ids, rows = operands
    lanes = next(x.batch_size for x in operands if isinstance(x, Batched | Packed))
    own, trailing = flattened(data, lanes, "data")
    packed, _ = flattened(ids, lanes, "ids")
    values, _ = flattened(rows, lanes, "rows")
    wrong = np.flatnonzero(values.lengths != packed.lengths)
    if wrong.size:
        lane = int(wrong[0])
        message = f"{values.lengths[lane]} rows for {packed.lengths[lane]} ids; expected one for each id"
        raise note_example(ShapeError(message), lane)
    if not np.can_cast(dtype_of(values.values), dtype_of(own.values), "same_kind"):
        _check_rows(own.values, packed.values, values.values)
    if shape_of(values.values)[1:] != shape_of(own.values)[1:]:
        raise ShapeError(f"rows of shape {shape_of(values.values)[1:]} into rows of shape {shape_of(own.values)[1:]}")
    _, moved = concatenated_tables(own, packed)
    out = op(own.values, moved, values.values, **params)
    found = pad_by_lane(out, own.lengths, data if isinstance(data, Batched) else None)
    return Batched(found.data, (found.sizes[0], *trailing))


scatter_p = Op("scatter", _impl, rule=_rule, vjp=_vjp, ragged=(1, 2), kind="segment")
