"""Bags: a reduction over the rows of a table that a list of ids names, for one list and for many at once.

`bag_p` is the op of one example's bag; its batching rule is one launch of `bags_p`, whatever the lengths.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.op import Op, is_boxed
from autobatch.embedding.ids import as_ids, bad_id_message, check_ids
from autobatch.embedding.sparse import SparseRows
from autobatch.errors import BadIdError, DTypeError, NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.kernels import bags as kernels

__all__ = ["MODES", "bag_p", "bags_p"]

MODES = ("sum", "mean", "sqrtn", "max", "min")
_EXTREMA = {"max": kernels.bag_max, "min": kernels.bag_min}


def _bag(table: Any, ids: Any, weights: Any = None, *, mode: str = "sum", empty: str = "zero") -> np.ndarray:
    ids = as_ids(ids)
    check_ids(ids, shape_of(table)[0])
    if weights is not None and shape_of(weights) != ids.shape:
        raise ShapeError(f"weights of shape {shape_of(weights)} for ids of shape {ids.shape}; expected one for each id")
    if empty == "numpy" and not ids.size:
        return _numpy_empty(np.asarray(table), mode)
    offsets = np.array([0, ids.shape[0]])
    return _bags(table, ids, offsets, *(() if weights is None else (weights,)), mode=mode)[0]


def _numpy_empty(weights: np.ndarray, mode: str) -> np.ndarray:
    """What NumPy gives for the reduction of no rows, with its warnings and exceptions."""
    rows = np.empty((0, *weights.shape[1:]), weights.dtype)
    reduce: Any = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[mode]
    return np.asarray(reduce(rows, axis=0), weights.dtype)


def _bags(table: Any, ids: Any, offsets: Any, weights: Any = None, *, mode: str = "sum") -> np.ndarray:
    """Reduce each bag ids[offsets[b]:offsets[b + 1]]; ids and offsets are checked. An empty bag is 0."""
    rows, weights = np.asarray(table), None if weights is None else np.asarray(weights)
    if rows.dtype.kind not in "fiu":
        raise DTypeError(f"a bag over a table of {rows.dtype}; expected floats or integers")
    dtype = rows.dtype
    if dtype.kind != "f" and (mode in ("mean", "sqrtn") or weights is not None):
        raise DTypeError(f"mode {mode!r} over a table of {dtype} is no {dtype}; make the table a float one")
    rows, ids = _kernel_form(rows, ids)
    out = np.zeros((offsets.shape[0] - 1, rows.shape[1]), rows.dtype)
    if mode in _EXTREMA:
        if weights is not None:
            raise UnsupportedError(f"weights with mode={mode!r}; only sum, mean and sqrtn take them")
        _EXTREMA[mode](rows, ids, offsets, out)
    elif weights is None:
        kernels.bag_sum(rows, ids, offsets, out)
        if mode != "sum":
            out *= _scales(np.diff(offsets), mode).astype(out.dtype)[:, None]
    else:
        weights = np.ascontiguousarray(weights, rows.dtype)
        kernels.bag_weighted_sum(rows, ids, weights, offsets, out)
        if mode != "sum":
            with np.errstate(divide="ignore", invalid="ignore"):  # where the weights sum to 0, IEEE decides
                out /= _weight_norm(weights, offsets, mode)[:, None]
    return out.astype(dtype, copy=False)


def _kernel_form(rows: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that a kernel reads well (C-contiguous, 4 bytes or more), gathered first where the table is otherwise."""
    if rows.flags.c_contiguous and rows.dtype.itemsize >= 4:
        return rows, np.ascontiguousarray(ids)
    wide = {"f": np.float32, "i": np.int32, "u": np.uint32}[rows.dtype.kind]
    dtype = rows.dtype if rows.dtype.itemsize >= 4 else wide
    return np.ascontiguousarray(rows[ids], dtype), np.arange(ids.shape[0])


def _scales(lengths: np.ndarray, mode: str) -> np.ndarray:
    """1 / n or 1 / sqrt(n) of each bag; 1 for an empty one, whose sum is 0 anyway."""
    n = np.maximum(lengths, 1).astype(np.float64)
    return 1 / (n if mode == "mean" else np.sqrt(n))


def _weight_norm(weights: np.ndarray, offsets: np.ndarray, mode: str) -> np.ndarray:
    """The sum of the weights of each bag, or the root of the sum of their squares; 1 for an empty bag."""
    out = np.zeros((offsets.shape[0] - 1, 1), weights.dtype)
    values = weights if mode == "mean" else weights * weights
    kernels.bag_sum(values[:, None], np.arange(weights.shape[0]), offsets, out)
    norm = out[:, 0] if mode == "mean" else np.sqrt(out[:, 0])
    norm[np.diff(offsets) == 0] = 1
    return norm


def _bags_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    table, ids, offsets = args[:3]
    weights = args[3] if len(args) > 3 else None
    if position not in (0, 3) or (weights is None and position == 3):
        return None
    if is_boxed(ids) or is_boxed(offsets):
        raise UnsupportedError("no gradient of a bag whose ids are themselves recorded; take the ids as plain arrays")
    mode = params.get("mode", "sum")
    ids = as_ids(ids)
    bag_of = np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))
    ids = ids[: bag_of.size]
    if any(is_boxed(x) for x in (ct, out, table, weights)):
        return _vjp_by_numpy(position, ct, out, (table, ids, bag_of, weights), mode, args)
    if position == 3:
        return _weights_gradient(ct, out, np.asarray(table), ids, offsets, bag_of, np.asarray(weights), mode)
    rows, row_ids = _kernel_form(np.asarray(table), ids)
    wide = np.ascontiguousarray(ct, rows.dtype)
    found = np.zeros((ids.size, wide.shape[1]), rows.dtype)
    if mode in _EXTREMA:
        first = np.full(wide.shape, -1, np.int64)
        kernels.first_equal(rows, row_ids, offsets, np.ascontiguousarray(out, rows.dtype), first)
        kernels.take_first(wide, first, found)
    else:
        kernels.spread(wide, offsets, _coefficients(offsets, bag_of, weights, mode, rows.dtype), found)
    return SparseRows.trusted(ids, found.astype(dtype_of(table), copy=False), shape_of(table)[0])


def _coefficients(offsets: Any, bag_of: np.ndarray, weights: Any, mode: str, dtype: Any) -> np.ndarray:
    """What each row counts for in its bag's result."""
    if weights is None:
        return np.ones(bag_of.size, dtype) if mode == "sum" else _scales(np.diff(offsets), mode).astype(dtype)[bag_of]
    weights = np.ascontiguousarray(weights, dtype)[: bag_of.size]
    if mode == "sum":
        return weights
    with np.errstate(divide="ignore", invalid="ignore"):
        return weights / _weight_norm(weights, offsets, mode)[bag_of]


def _weights_gradient(
    ct: Any, out: Any, rows: np.ndarray, ids: np.ndarray, offsets: Any, bag_of: Any, weights: np.ndarray, mode: str
) -> np.ndarray:
    rows, row_ids = _kernel_form(rows, ids)
    ct = np.ascontiguousarray(ct, rows.dtype)
    dots = np.zeros(weights.shape[0], rows.dtype)
    kernels.bag_dots(rows, row_ids, offsets, ct, dots)
    if mode != "sum":
        n = bag_of.size
        with np.errstate(divide="ignore", invalid="ignore"):
            norm = _weight_norm(np.ascontiguousarray(weights[:n], rows.dtype), offsets, mode)[bag_of]
            level = np.sum(ct * out, axis=1, dtype=rows.dtype)[bag_of]
            dots[:n] = dots[:n] / norm - level * (1 / norm if mode == "mean" else weights[:n] / (norm * norm))
    return dots.astype(weights.dtype, copy=False)


def _vjp_by_numpy(position: int, ct: Any, out: Any, parts: Sequence[Any], mode: str, args: Sequence[Any]) -> Any:
    """The same in NumPy calls, for operands of an interpreter below (a gradient of a gradient, a recorded example)."""
    table, ids, bag_of, weights = parts
    bags = args[2].shape[0] - 1
    if mode in _EXTREMA or (weights is not None and mode != "sum"):
        raise UnsupportedError(
            f"no gradient of the gradient of a bag with mode={mode!r}{' and weights' if weights is not None else ''}; "
            "write it as a reduction of table[ids]"
        )
    spread = np.take(ct, bag_of, axis=0)
    if position == 3:
        dots = np.sum(spread * np.take(table, ids, axis=0), axis=1)
        rest = shape_of(weights)[0] - ids.size
        return np.concatenate([dots, np.zeros(rest, dtype_of(dots))]) if rest else dots
    if weights is not None:
        spread = spread * weights[: ids.size, None]
    elif mode != "sum":
        scales = _scales(np.bincount(bag_of, minlength=bags), mode).astype(dtype_of(ct))
        spread = spread * scales[bag_of][:, None]
    return SparseRows.trusted(ids, spread, shape_of(table)[0])


def _bag_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    table, ids = args[:2]
    weights = args[2] if len(args) > 2 else None
    if position == 1 or (position == 2 and weights is None):
        return None
    if is_boxed(ids) or any(is_boxed(x) for x in (ct, out, table, weights)):
        return _bag_vjp_by_numpy(position, ct, out, (table, ids, weights), params.get("mode", "sum"))
    ids = as_ids(ids)
    bags = (table, ids, np.array([0, ids.shape[0]]), *(() if weights is None else (weights,)))
    return _bags_vjp(position and 3, ct[None], out[None], bags, {"mode": params.get("mode", "sum")})


def _bag_vjp_by_numpy(position: int, ct: Any, out: Any, args: Sequence[Any], mode: str) -> Any:
    table, ids, weights = args
    n, dim = shape_of(ids)[0], shape_of(table)[1]
    if position == 2:
        if mode != "sum":
            raise UnsupportedError(f"no gradient of the gradient of a bag with mode={mode!r} and weights")
        return np.sum(np.take(table, ids, axis=0) * ct, axis=1)
    if mode in _EXTREMA:
        rows = np.take(table, ids, axis=0)
        same = (rows == out) | ((rows != rows) & (out != out))
        first = np.argmax(same, axis=0) if n else np.zeros(dim, np.int64)
        spread = np.where(np.arange(n)[:, None] == first, ct, np.zeros((), dtype_of(ct)))
    elif weights is None:
        scale = dtype_of(ct).type(1 if mode == "sum" else _scales(np.array([n]), mode)[0])
        spread = np.broadcast_to(ct * scale, (n, dim))
    elif mode == "sum":
        spread = weights[:, None] * ct
    else:
        raise UnsupportedError(f"no gradient of the gradient of a bag with mode={mode!r} and weights")
    return SparseRows.trusted(ids, spread, shape_of(table)[0])


def _packed(x: Any, lanes: int) -> Packed:
    """Each example's values without padding, one after the other."""
    if isinstance(x, Packed):
        return x
    if not isinstance(x, Batched):
        n = shape_of(x)[0]
        return Packed(np.concatenate([x] * lanes) if lanes else x[:0], np.arange(lanes + 1) * n)
    size, shape = x.sizes[0], x.data.shape
    if not isinstance(size, Lengths):
        return Packed(np.reshape(x.data, (shape[0] * shape[1],)), np.arange(shape[0] + 1) * shape[1])
    flat = np.reshape(x.data, (shape[0] * shape[1],))
    return Packed(flat[np.flatnonzero(size.mask(shape[1]))], np.concatenate([[0], np.cumsum(size.values)]))


def _bag_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """One launch for all examples; padding is dropped before the ids are looked at."""
    table = operands[0]
    if isinstance(table, Batched):
        raise NeedsLoop("a bag over a table of each example")
    lanes = next(x.batch_size for x in operands if isinstance(x, Batched | Packed))
    packed = [_packed(x, lanes) for x in operands[1:] if x is not None]
    ids, offsets = packed[0].values, packed[0].offsets
    lengths, mode = np.diff(offsets), params.get("mode", "sum")
    _check_weights(packed, lengths)
    if not is_boxed(ids):
        ids = as_ids(ids)
        _check_bags(ids, shape_of(table)[0], offsets)
    out = bags_p(table, ids, offsets, *(x.values for x in packed[1:]), mode=mode)
    if params.get("empty") == "numpy" and mode != "sum" and not lengths.all():
        out = np.where((lengths == 0)[:, None], _empties(table, lengths, mode), out)
    return Batched(out, (shape_of(table)[1],))


def _check_weights(packed: Sequence[Packed], lengths: np.ndarray) -> None:
    for weights in packed[1:]:
        wrong = np.flatnonzero(weights.lengths != lengths)
        if wrong.size:
            lane = int(wrong[0])
            error = ShapeError(f"{weights.lengths[lane]} weights for {lengths[lane]} ids in example {lane}")
            raise note_example(error, lane)


def _check_bags(ids: np.ndarray, num_rows: int, offsets: np.ndarray) -> None:
    try:
        check_ids(ids, num_rows, offsets)
    except BadIdError:
        at = int(np.flatnonzero((ids < 0) | (ids >= num_rows))[0])
        lane = int(np.searchsorted(offsets, at, side="right")) - 1
        place = f"position {at - offsets[lane]} of example {lane}"
        raise note_example(BadIdError(bad_id_message(int(ids[at]), place, num_rows)), lane) from None


def _empties(table: Any, lengths: np.ndarray, mode: str) -> np.ndarray:
    """The row that NumPy gives for an empty bag, with its warnings once for each, or its exception for the first."""
    rows = np.empty((0, shape_of(table)[1]), dtype_of(table))
    try:
        return next(iter([_numpy_empty(rows, mode) for n in lengths if n == 0]))
    except ValueError as error:
        raise note_example(error, int(np.argmin(lengths))) from None


def _bags_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """Several bags in each example: the bags of all examples, one after the other."""
    table, ids, offsets = operands[:3]
    if isinstance(table, Batched) or (isinstance(offsets, Batched) and offsets.is_ragged):
        raise NeedsLoop("bags whose number or table differs from example to example")
    lanes = next(x.batch_size for x in operands if isinstance(x, Batched | Packed))
    packed = [_packed(x, lanes) for x in (ids, *operands[3:])]
    own = offsets.data if isinstance(offsets, Batched) else np.broadcast_to(offsets, (lanes, *shape_of(offsets)))
    if np.any(own[:, -1] != packed[0].lengths):
        raise NeedsLoop("offsets that leave ids out")
    _check_weights(packed, packed[0].lengths)
    if not is_boxed(packed[0].values):
        _check_bags(as_ids(packed[0].values), shape_of(table)[0], packed[0].offsets)
    bounds = np.concatenate([[0], (own[:, 1:] + packed[0].offsets[:-1, None]).reshape(-1)])
    out = bags_p(table, packed[0].values, bounds, *(x.values for x in packed[1:]), **params)
    dim = shape_of(table)[1]
    return Batched(np.reshape(out, (lanes, own.shape[1] - 1, dim)), (own.shape[1] - 1, dim))


bag_p = Op("bag", _bag, rule=_bag_rule, vjp=_bag_vjp, ragged=(1, 2), kind="bag")
bags_p = Op("bags", _bags, rule=_bags_rule, vjp=_bags_vjp, kind="bag")
