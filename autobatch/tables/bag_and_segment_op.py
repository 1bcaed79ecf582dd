"""`segment_p`: one op that reduces rows by segment, or looked-up rows by bag, in every mode of `reduction_modes`.

Operands: data (rows, or a table if ids are given), the description of the segments, then, each optional, ids, weights,
the frequency of each id, and the number of segments. Plain operands are already checked, but for segment ids of a
mode that `checks` them itself; of a batch, the batching rule checks them and concatenates all segments. The formula
of each mode's gradient is in `reduction_modes`.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import check_own_dtype, dtype_of, is_bfloat16, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import DTypeError, NeedsLoop, ShapeError, note_example
from autobatch.kernels.bags import SUM
from autobatch.kernels.segment_reductions import run_bounds, sum_runs
from autobatch.kernels.simd_rows import computed_dtype
from autobatch.ops.numpy.creation import arange
from autobatch.ops.rules.dispatch import cast
from autobatch.ops.rules.padding import mask_padding
from autobatch.ops.rules.ragged_checks import (
    check_lane_ids,
    concatenated_tables,
    flattened,
    id_bound,
    own_ids,
    segments_in,
    segments_of_all,
    table_ids,
)
from autobatch.ops.rules.row_gather import pad_by_lane
from autobatch.tables.reduction_modes import (
    MODES,
    STREAMED,
    Mode,
    Norm,
    Rows,
    SegmentCall,
    as_matrix,
    compute_dtype,
    divide_ieee,
    gather_rows,
)
from autobatch.tables.row_access import check_computed, locate, pool, poolable, read_consistently, run_layout
from autobatch.tables.sparse import SparseRows


def bags(
    table: object, ids: object, bounds: np.ndarray, weights: object = None, *, mode: object, frequencies: object = None
) -> Any:
    """Reduce each bag ids[bounds[b]:bounds[b + 1]] of rows of a table; the caller has checked ids and bounds.

    Returns:
        (bags, dim) for one mode, (bags, modes, dim) for a tuple of modes.
    """
    more = [x for x in (weights, frequencies) if x is not None]
    params: dict[str, Any] = {"mode": mode, "count": len(bounds) - 1, "fused": True, "runs": True}
    params |= {"weighted": True} if weights is not None else {}
    params |= {"by_frequency": True} if frequencies is not None else {}
    return segment_p(table, bounds, ids, *more, **params)


def bags_of_rows(table: object, ids: Any, mode: object) -> Any:
    """Reduce the rows of a table that each row of ids (n, k) names; the operands may be batches."""
    if not any(rank_of(x) == BATCH_RANK for x in (table, ids)):
        ids = own_ids(table_ids(table, np.asarray(ids)), id_bound(table))
        return bags(table, ids.reshape(-1), np.arange(len(ids) + 1) * ids.shape[1], mode=mode)
    count, width = shape_of(ids)
    bounds, flat = arange(count + 1) * width, np.reshape(ids, (-1,))
    return segment_p(table, bounds, flat, mode=mode, form="offsets", fused=True)


def check_bag_table(dtype: np.dtype, modes: Sequence[str], weighted: bool = False) -> None:
    """Check that bags over a table of this dtype give results of the same dtype.

    Raises:
        DTypeError: the dtype is not numeric, or the mode or the weights would change it (a mean of integers).
    """
    if is_bfloat16(dtype):
        return
    check_own_dtype(dtype, "a bag over a table")
    if dtype.kind not in "fiu" or not poolable(dtype):
        hint = ": for `or` and `and` call ab.segments.segment_any and ab.segments.segment_all"
        hint = hint if dtype.kind == "b" else ": write .astype(np.float32)"
        raise DTypeError(f"a bag over a table of {dtype}; expected floats or integers{hint}")
    for mode in modes:
        if dtype.kind != "f" and (MODES[mode].result == "float" or weighted):
            raise DTypeError(f"mode {mode!r} of a table of {dtype} does not give {dtype}; use a table of floats")


# Plain arrays.


def _segment(
    data: object,
    *operands: Any,
    mode: str | tuple[str, ...],
    count: int = 1,
    form: str = "segment_ids",
    fused: bool = False,
    weighted: bool = False,
    by_frequency: bool = False,
    runs: bool = False,
    empty: object = None,
    k: int = 0,
) -> np.ndarray:
    """Implementation of both ops: reduce the rows of each of `count` segments.

    Args:
        operands: the segment id of each row, or if `runs` the bounds of contiguous segments, (count + 1,); then ids if
            `fused`, and weights if `weighted`. With form "one" all ids are one bag: it has no description operand,
            and its ids are checked here.
        by_frequency: the last operand is the frequency of each id, by which the gradient is divided.
        empty: the value of a segment without rows; "numpy" means what NumPy gives or raises for no rows.
    """
    if form == "one":
        return _reduce_ids(data, *operands, mode=mode, empty=empty)
    if not isinstance(mode, str):
        parts = [
            _segment(data, *operands, mode=one, count=count, fused=fused, weighted=weighted, runs=runs, empty=empty)
            for one in mode
        ]
        return np.stack(parts, axis=1)
    segments = np.ascontiguousarray(operands[0], np.int64)
    ids = operands[1] if fused else None
    weights = operands[1 + fused] if weighted else None
    dtype = dtype_of(data)
    by_bag_kernel = _is_pooled(MODES[mode], dtype, weighted)
    if not (fused and is_bfloat16(dtype) and by_bag_kernel):
        check_computed(dtype)
    if weights is not None:
        weights = _as_weights(weights, dtype)
    bounds = None
    if by_bag_kernel:
        bounds = segments if runs else _bounds_of(segments, count)
    if bounds is not None and ids is not None and len(shape_of(data)) == 2 and poolable(dtype):
        out = pooled(data, ids if isinstance(ids, np.ndarray) else table_ids(data, ids), bounds, weights, mode)
        return out if empty is None else _fill_empty(out, np.diff(bounds) == 0, empty)
    if runs and fused and mode in STREAMED and isinstance(ids, np.ndarray):
        row = max(math.prod(shape_of(data)[1:]), 1) * dtype.itemsize
        # Modes without a bag kernel look rows up in chunks of about so many bytes.
        starts = np.searchsorted(segments, np.arange(0, len(ids), max((1 << 22) // row, 1)), side="right")
        ends = np.unique([0, *(starts - 1).tolist(), count])  # end of each group of segments looked up together
        if len(ends) > 2:
            parts = [
                _segment(
                    data, segments[a : b + 1] - segments[a], *(x[segments[a] : segments[b]] for x in operands[1:]),
                    mode=mode, count=int(b - a), fused=True, weighted=weighted, runs=True, empty=empty, k=k,
                )
                for a, b in itertools.pairwise(ends.tolist())
            ]  # fmt: skip
            return np.concatenate(parts)
    return _reduce_rows(data, ids, weights, segments, bounds, runs, mode, count, empty, k)


def _reduce_rows(
    data: Any,
    ids: Any,
    weights: Any,
    segments: np.ndarray,
    bounds: np.ndarray | None,
    runs: bool,
    mode: str,
    count: int,
    empty: object,
    k: int,
) -> np.ndarray:
    """Reduce rows where no bag kernel applies; `bounds` is None unless the rows of each segment are contiguous."""
    how, weighted = MODES[mode], weights is not None
    trailing = shape_of(data)[1:]
    if ids is not None and not (how.takes_ids and (how.uses_weights or not weighted)):
        data, ids = gather_rows(data, ids), None
    if weighted and not how.uses_weights:
        data, weights = np.asarray(gather_rows(data, ids)) * weights.reshape(-1, *(1,) * len(trailing)), None
    elif weighted and dtype_of(data).kind != "f":
        data, ids = gather_rows(data, ids), None
        data = data.astype(np.result_type(data.dtype, weights.dtype))
    dtype = how.result_dtype(dtype_of(data))
    x, ids = as_matrix(data, ids, _kernel_dtype(dtype if dtype.kind == "f" else dtype_of(data)))
    if weights is not None:
        weights = np.ascontiguousarray(weights, x.dtype)
    if bounds is not None and ids is None:
        out = _reduce_runs(x, weights, bounds, mode)
    else:
        segments = segments_in(segments) if runs else segments
        out = how.compute(Rows(x, ids, weights, segments, count, k))
    if how.result != "own":
        out = out.astype(dtype, copy=False)
    inner = out.shape[1:-1]  # topk has an axis of k
    out = out.reshape((count,) if mode == "count" else (out.shape[0], *inner, *trailing))
    if empty is None or how.rowwise:
        return out
    lengths = Rows(x, None, None, segments, count).lengths() if bounds is None else np.diff(bounds)
    return _fill_empty(out, lengths == 0, empty)


def _kernel_dtype(dtype: np.dtype) -> np.dtype:
    """Like `compute_dtype`, but small unsigned integers are summed as int64, so that fewer kernels are compiled."""
    return np.dtype(np.int64) if dtype.kind == "u" and dtype.itemsize < 8 else compute_dtype(dtype)


def _as_weights(weights: object, dtype: np.dtype) -> np.ndarray:
    """Convert weights to the computed dtype of float rows; with integer rows they stay, and the rows are promoted."""
    weights = np.asarray(weights)
    if weights.dtype.kind not in "fiub":
        raise DTypeError(f"weights have dtype {weights.dtype}; expected floats or integers")
    if is_bfloat16(dtype):
        return weights.astype(np.float32, copy=False)
    return weights if dtype.kind != "f" else weights.astype(compute_dtype(dtype), copy=False)


def _is_pooled(mode: Mode, dtype: np.dtype, weighted: bool) -> bool:
    """True if a bag kernel computes this reduction in the dtype that the result has."""
    if dtype.kind == "f" or is_bfloat16(dtype):
        return bool(mode.norm is not None or (mode.extremum and not weighted))
    if weighted or dtype.kind not in "iu":
        return False
    return bool(mode.extremum) or (mode.result == "wide" and mode.norm is not None and dtype.itemsize == 8)


def _bounds_of(segments: np.ndarray, count: int) -> np.ndarray | None:
    """The bounds (count + 1,) of the segments if each is one contiguous run of rows, in order; else None."""
    bounds = np.zeros(count + 1, np.int64)
    return bounds if run_bounds(segments, bounds) else None


def _reduce_runs(x: np.ndarray, weights: object, bounds: np.ndarray, mode: str) -> np.ndarray:
    """Reduce contiguous runs of rows; rows of one element use a kernel that is vectorised along the run."""
    norm = MODES[mode].norm
    if x.shape[1] != 1 or norm is None or (weights is not None and norm.kernel != SUM):
        return pooled(x, None, bounds, weights, mode)
    out = _sum_scalars(x, weights, bounds)
    if norm.kernel != SUM:
        out *= _scales(bounds, norm).astype(x.dtype)[:, None]
    return out


def _sum_scalars(x: np.ndarray, weights: object, bounds: np.ndarray) -> np.ndarray:
    out = np.empty((len(bounds) - 1, 1), x.dtype)
    sum_runs(x, weights, bounds, out, run_layout(x.dtype.str[1:], 1))
    return out


def _fill_empty(out: np.ndarray, is_empty: np.ndarray, empty: object) -> np.ndarray:
    """`out` with the rows where `is_empty` is True replaced by the value `empty`."""
    return np.where(is_empty.reshape(-1, *(1,) * (out.ndim - 1)), empty_value(empty, out.dtype), out)


def empty_value(empty: Any, dtype: np.dtype) -> np.ndarray:
    """The value of segments without rows, in the dtype of the result.

    Raises:
        DTypeError: the dtype cannot represent the value.
    """
    try:
        if dtype.kind not in "iu" or float(empty).is_integer():
            return np.asarray(empty, dtype)
    except (OverflowError, TypeError):
        pass
    raise DTypeError(f"empty={empty!s:.60} for a result of {dtype}; give an integer, or make the data a float array")


def pooled(
    table: Any, ids: object, bounds: object, weights: object, mode: str, out: np.ndarray | None = None
) -> np.ndarray:
    """Reduce each bag with the bag kernels, which accumulate in registers; an empty bag gives 0.

    If ids are None, bag b is rows bounds[b] to bounds[b + 1] of the array itself.

    Args:
        out: memory that may be used for the result, with contiguous rows and of the table's dtype.
    """
    table = table if hasattr(table, "_ab_locate") else np.asarray(table)
    return read_consistently(table, lambda: _pooled(table, ids, bounds, weights, mode, out))


def _pooled(table: Any, ids: Any, bounds: Any, weights: Any, mode: str, out: np.ndarray | None) -> np.ndarray:
    dtype, how = table.dtype, MODES[mode]
    found = locate(table, ids)
    real = computed_dtype(found.format)
    if weights is not None:
        weights = np.ascontiguousarray(weights, real)
    norm = how.norm if weights is None else None
    kernel = SUM if norm is None or norm.kernel is None else norm.kernel
    if out is None or out.dtype != real:
        out = np.empty((len(bounds) - 1, found.dim), real)
    pool(found, bounds, weights, kernel, how.pooled, out)
    if norm is None or norm.kernel is None:
        out = _normalise(out, how.norm, weights, bounds)
    return out.astype(dtype, copy=False)


def _normalise(total: np.ndarray, norm: Norm | None, weights: np.ndarray | None, bounds: Any) -> np.ndarray:
    """Divide each sum by its norm (count, root of the count, or sums of the weights); extrema are unchanged."""
    if norm is None or norm.kernel == SUM:
        return total
    if weights is None:
        return total * _scales(bounds, norm).astype(total.dtype)[:, None]
    terms = weights * weights if norm.squares else weights
    divisors = norm.of(_sum_scalars(terms[:, None], None, bounds))
    divisors[np.diff(bounds) == 0] = 1
    return divide_ieee(total, divisors)


def _scales(bounds: Any, norm: Norm) -> np.ndarray:
    """1 / norm of each bag without weights; an empty bag counts as length 1, since its sum is 0 anyway."""
    return 1 / norm.of(np.maximum(np.diff(bounds), 1).astype(np.float64))


def _reduce_ids(data: Any, ids: object, weights: object = None, *, mode: Any, empty: object) -> np.ndarray:
    """Check ids and reduce them as one bag."""
    ids = own_ids(table_ids(data, ids), id_bound(data))
    if weights is not None and shape_of(weights) != ids.shape:
        raise ShapeError(f"weights have shape {shape_of(weights)}; expected one for each id, {ids.shape}")
    if empty == "numpy" and not ids.size:
        return _numpy_empty(data, mode)
    return bags(data, ids, np.array([0, ids.shape[0]]), weights, mode=mode)[0]


def _numpy_empty(data: object, mode: str) -> np.ndarray:
    """What NumPy returns for the reduction of no rows, including its warnings and exceptions."""
    rows = np.empty((0, *shape_of(data)[1:]), dtype_of(data))
    return np.asarray(getattr(np, mode)(rows, axis=0), rows.dtype)


# Batches.


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    given = dict(params)
    form, in_order = given.pop("form", "segment_ids"), given.pop("in_order", False)
    form = "offsets" if given.pop("runs", False) else form
    counted, count = given.pop("counted", False), given.pop("count", None)
    lanes = next(x.batch_size for x in operands if isinstance(x, Batched | Packed))
    if form == "one":
        return _ids_rule(operands, given, lanes)
    data, described, *rest = operands
    if counted:
        count = rest.pop()
        count = np.asarray(count.data if isinstance(count, Batched) else count)
    description, _ = flattened(described, lanes, form)
    if given.get("fused", False):
        ids, _ = flattened(rest[0], lanes, "ids")
        values, found = concatenated_tables(data, ids)
        rows, more = ids.offsets, [found]
        trailing = data.sizes[1:] if isinstance(data, Batched) else shape_of(values)[1:]
    else:
        packed, trailing = flattened(data, lanes, "data")
        rows, values, more = packed.offsets, packed.values, []
    lengths = np.diff(rows)
    more += [_flat_weights(x, lanes, lengths, "row") for x in rest[len(more) :]]
    segments, counts, runs = segments_of_all(description, lengths, form, count, in_order)
    given |= {"runs": True} if runs else {}
    out = op(values, segments, *more, count=int(counts.sum()), **given)
    return _split_by_example(out, params["mode"], data, rows, counts, tuple(trailing), bool(given.get("fused")))


def _split_by_example(
    out: Any, mode: Any, data: object, rows: np.ndarray, counts: np.ndarray, trailing: tuple[Any, ...], fused: bool
) -> Batched:
    """Split the flat result by example: (segments, ...) for each, or (rows, ...) for a mode with a result per row."""
    how = MODES[mode] if isinstance(mode, str) else MODES[mode[0]]
    of = np.diff(rows) if how.rowwise else counts
    if how.positions:
        base = np.repeat(rows[:-1], of).reshape(-1, *(1,) * (ndim_of(out) - 1))
        out = np.where(out < 0, out, out - base)
    inner = shape_of(out)[1 : ndim_of(out) - len(trailing)] if mode != "count" else ()
    trailing = () if mode == "count" else trailing
    placed = pad_by_lane(out, of, data if isinstance(data, Batched) and not fused and how.rowwise else None)
    sizes = (placed.sizes[0], *inner, *trailing)
    if is_boxed(placed.data) and any(isinstance(size, Lengths) for size in trailing):
        return Batched(mask_padding(placed.data, sizes), sizes)
    return Batched(placed.data, sizes)


def _flat_weights(x: object, lanes: int, lengths: np.ndarray, of: str) -> Any:
    """The flat weights of all examples; raises ShapeError for an example that has not one for each row (or id)."""
    weights, _ = flattened(x, lanes, "weights")
    wrong = np.flatnonzero(weights.lengths != lengths)
    if wrong.size:
        lane = int(wrong[0])
        shape, expected = f"({weights.lengths[lane]},)", f"({lengths[lane]},)"
        raise note_example(ShapeError(f"weights have shape {shape}; expected one for each {of}, {expected}"), lane)
    return weights.values


def _ids_rule(operands: Sequence[Any], params: dict[str, Any], lanes: int) -> Batched:
    """Batching rule of form "one": one launch for all bags; padding is dropped before ids are checked."""
    table, mode, empty = operands[0], params["mode"], params.get("empty")
    if isinstance(table, Batched):
        raise NeedsLoop("a bag over a table of each example")
    ids, _ = flattened(operands[1], lanes, "ids")
    values, offsets = ids.values, ids.offsets
    weights = [_flat_weights(x, lanes, ids.lengths, "id") for x in operands[2:]]
    if not is_boxed(values):
        values = np.array(table_ids(table, values))
        check_lane_ids(Packed(values, offsets), id_bound(table))
    out = bags(table, values, offsets, *weights, mode=mode)
    if empty == "numpy" and mode != "sum" and not ids.lengths.all():
        out = np.where((ids.lengths == 0)[:, None], _numpy_empty_row(table, ids.lengths, mode), out)
    return Batched(out, (shape_of(table)[1],))


def _numpy_empty_row(table: object, lengths: np.ndarray, mode: str) -> np.ndarray:
    """The row NumPy gives for an empty bag, with one warning per empty bag, or its exception for the first of them."""
    try:
        return next(iter([_numpy_empty(table, mode) for n in lengths if n == 0]))
    except ValueError as error:
        raise note_example(error, int(np.argmin(lengths))) from None


# Gradients.


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The cotangent of the data (position 0; `SparseRows` if there are ids) or of the weights; else None."""
    if params.get("form") == "one":
        return _ids_vjp(position, ct, out, args, params)
    mode, fused, weighted = params["mode"], params.get("fused", False), params.get("weighted", False)
    by_weights = weighted and position == 2 + fused
    if position != 0 and not by_weights:
        return None
    if isinstance(mode, str):
        found = _mode_cotangent(SegmentCall(segment_p, ct, out, args, params), MODES[mode], by_weights)
    else:
        for j, one in enumerate(mode):
            part = MODES[one].gradient(SegmentCall(segment_p, ct[:, j], out[:, j], args, params), by_weights)  # type: ignore[misc]
            found = part if j == 0 else found + part
    if found is None or isinstance(found, SparseRows):
        return found
    if by_weights:
        return cast(found, dtype_of(args[position]))
    found = cast(found, dtype_of(args[0]))
    if not fused:
        return found
    if params.get("by_frequency"):
        counts = np.asarray(args[-1]).astype(dtype_of(found))
        found = found / counts.reshape(-1, *(1,) * (ndim_of(found) - 1))
    ids = args[2] if is_boxed(args[2]) else table_ids(args[0], args[2])
    return SparseRows.trusted(ids, found, id_bound(args[0]))


def _mode_cotangent(call: SegmentCall, how: Mode, by_weights: bool) -> Any:
    """The cotangent for one mode; for norms of looked-up rows, `SparseRows` that repeat each bag's row lazily."""
    ids, norm = call.ids, how.norm
    expanded = by_weights or not call.plain or dtype_of(call.data).kind != "f" or "by_frequency" in call.params
    if ids is None or norm is None or expanded:
        return None if how.gradient is None else how.gradient(call, by_weights)
    ct = call.ct if norm.kernel == SUM else divide_ieee(call.ct, call.divisors(norm))
    weights = None if call.weights is None else np.asarray(call.weights, call.dtype)
    return SparseRows.spread(ids, ct, call.segments, weights, id_bound(call.data), dtype_of(call.data))


def _ids_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The vjp of form "one": describe the same bag by bounds, and use `_vjp`."""
    table, ids, *weights = args
    if position == 1:
        return None
    bounds = np.array([0, shape_of(ids)[0]])
    given = {"mode": params["mode"], "count": 1, "runs": True, "fused": True, "weighted": bool(weights)}
    return _vjp(position and 3, ct[None], out[None], (table, bounds, ids, *weights), given)


# Params: mode, count (number of segments), form, in_order, empty, k; and which operands are given: fused (ids),
# weighted, by_frequency, counted. `segment_p` gives a row for each segment; `segment_rows_p` gives one for each data
# row, so its calls run together only if they have the same number of rows (it is not declared `ragged`).
segment_p = Op("segment", _segment, rule=_rule, vjp=_vjp, ragged=(0, 1, 2, 3, 4), kind="segment")
segment_rows_p = Op("segment_rows", _segment, rule=_rule, vjp=_vjp, kind="segment")
