"""Bags: a reduction over the rows of a table that a list of ids names, for one list and for many at once.

`bag_p` is the op of one example's bag; its batching rule is one launch of `bags_p`, whatever the lengths.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.op import Op, is_boxed
from autobatch.errors import BadIdError, NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.tables.bag_values import (
    EXTREMA,
    Mode,
    bag_of_each,
    bag_scales,
    reduce_bags,
    table_gradient,
    unexpanded_gradient,
    weights_gradient,
)
from autobatch.tables.ids import as_ids, bad_id_message, check_ids, integer_ids
from autobatch.tables.sparse import SparseRows

__all__ = ["MODES", "bag_p", "bags_p"]

MODES = ("sum", "mean", "sqrtn", "max", "min")


def _bag(table: Any, ids: Any, weights: Any = None, *, mode: str = "sum", empty: str = "zero") -> np.ndarray:
    ids = integer_ids(ids)
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


def _bags(table: Any, ids: Any, offsets: Any, *more: Any, mode: Mode = "sum", by_freq: bool = False) -> np.ndarray:
    """Reduce each bag ids[offsets[b]:offsets[b + 1]]; ids and offsets are checked. An empty bag is 0.

    `more` are the weights, if there are any, and with `by_freq` how often each id is in its call, for the gradient.
    """
    return reduce_bags(table, ids, offsets, more[0] if len(more) > by_freq else None, mode)


def _bags_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    table, ids, offsets = args[:3]
    mode, by_freq = params.get("mode", "sum"), params.get("by_freq", False)
    weights = args[3] if len(args) > 3 + by_freq else None
    if position != 0 and (position != 3 or weights is None):
        return None
    if is_boxed(ids) or is_boxed(offsets):
        raise UnsupportedError("no gradient of a bag whose ids are themselves recorded; take the ids as plain arrays")
    ids = as_ids(ids)
    bag_of = bag_of_each(offsets)
    ids = ids[: bag_of.size]
    boxed = any(is_boxed(x) for x in (ct, out, table, weights))
    if position == 0 and not boxed and isinstance(mode, str) and mode not in EXTREMA and not by_freq:
        wide, factors = unexpanded_gradient(ct, table, offsets, bag_of, weights, mode)
        return SparseRows.spread(ids, wide, bag_of, factors, shape_of(table)[0], dtype_of(table))
    found: Any = None
    for j, one in enumerate((mode,) if isinstance(mode, str) else mode):
        part, value = (ct, out) if isinstance(mode, str) else (ct[:, j], out[:, j])
        if boxed:
            more = _vjp_by_numpy(position, part, (table, ids, bag_of, weights), one, offsets.shape[0] - 1)
        elif position == 3:
            more = weights_gradient(part, value, table, ids, offsets, bag_of, np.asarray(weights), one)
        else:
            more = table_gradient(part, value, table, ids, offsets, bag_of, weights, one)
        found = more if found is None else found + more
    if position == 3:
        return found
    if by_freq:
        found = found / np.asarray(args[-1])[: ids.size, None].astype(dtype_of(found))
    return SparseRows.trusted(ids, found, shape_of(table)[0])


def _vjp_by_numpy(position: int, ct: Any, parts: Sequence[Any], mode: str, bags: int) -> Any:
    """The same in NumPy calls, for operands of an interpreter below (a gradient of a gradient, a recorded example)."""
    table, ids, bag_of, weights = parts
    if mode in EXTREMA or (weights is not None and mode != "sum"):
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
        scales = bag_scales(np.bincount(bag_of, minlength=bags), mode).astype(dtype_of(ct))
        spread = spread * scales[bag_of][:, None]
    return spread


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
    if mode in EXTREMA:
        rows = np.take(table, ids, axis=0)
        same = (rows == out) | ((rows != rows) & (out != out))
        first = np.argmax(same, axis=0) if n else np.zeros(dim, np.int64)
        spread = np.where(np.arange(n)[:, None] == first, ct, np.zeros((), dtype_of(ct)))
    elif weights is None:
        scale = dtype_of(ct).type(1 if mode == "sum" else bag_scales(np.array([n]), mode)[0])
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
        ids = integer_ids(ids)
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
        place = f" at position {at - offsets[lane]} of example {lane}"
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
        _check_bags(integer_ids(packed[0].values), shape_of(table)[0], packed[0].offsets)
    bounds = np.concatenate([[0], (own[:, 1:] + packed[0].offsets[:-1, None]).reshape(-1)])
    out = bags_p(table, packed[0].values, bounds, *(x.values for x in packed[1:]), **params)
    sizes = (own.shape[1] - 1, *shape_of(out)[1:])
    return Batched(np.reshape(out, (lanes, *sizes)), sizes)


bag_p = Op("bag", _bag, rule=_bag_rule, vjp=_bag_vjp, ragged=(1, 2), kind="bag")
bags_p = Op("bags", _bags, rule=_bags_rule, vjp=_bags_vjp, ragged=(1, 3, 4), kind="bag")
