"""`embedding_bag` of a batch: the bags of all examples, one after the other, as one call."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Batched, Lengths, Packed, padding_mask
from autobatch.core.op import Op, is_boxed
from autobatch.errors import BadIdError, NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.ops.rules.padding import fill, select
from autobatch.tables.bag_call import Call, Options, checked_offsets, per_id, reduced
from autobatch.tables.ids import bad_id_message, integer_ids

__all__ = ["embedding_bag_p"]


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    options = Options(**params)
    table, ids, *rest = operands
    offsets = rest.pop(0) if options.offsets else None
    weights = rest.pop(0) if options.weights else None
    lanes = next(x.batch_size for x in operands if isinstance(x, Batched | Packed))
    rank = ids.rank if isinstance(ids, Batched) else len(shape_of(ids.values if isinstance(ids, Packed) else ids))
    if rank not in (1, 2):
        raise ShapeError(f"input has {rank} dimensions; expected (N,) with offsets, or (B, n)")
    values, lengths, inner = _flat(ids, lanes)
    if is_boxed(values) or any(is_boxed(x) for x in (getattr(offsets, "data", None), getattr(offsets, "values", None))):
        raise NeedsLoop("ids or offsets of an interpreter below")
    values = integer_ids(values, "input")
    if inner is not None and offsets is not None:
        raise ShapeError("offsets with ids of two dimensions, of which each row is a bag; leave offsets out")
    if inner is None and offsets is None:
        raise ShapeError("offsets are needed with ids of one dimension; offsets=[0] makes them one bag")
    starts = np.concatenate([[0], np.cumsum(lengths)])
    if inner is None:
        own = _flat(offsets if isinstance(offsets, Batched | Packed) else integer_ids(offsets, "offsets"), lanes)
        counts, bounds = _bounds(own, lengths, starts, options.include_last_offset)
    else:
        counts, per_bag = inner
        bounds = np.concatenate([[0], np.cumsum(per_bag)])
    lane_of_bag = np.repeat(np.arange(lanes), counts)
    lane_of_id = np.repeat(np.arange(lanes), lengths)
    if weights is not None:
        weights = _weights(weights, lanes, lengths, options, bounds, lane_of_id)
    table, num_rows, shift, dims = _table(table, lanes)
    if dims is not None and isinstance(options.empty, tuple):
        raise NeedsLoop("empty= as a row for tables of different dims")
    _check_ids(values, num_rows, lane_of_id, starts, options)
    call = Call(values, bounds, weights, lane_of_id, shift)
    out = reduced(table, call, options, num_rows)
    return _placed(out, counts, lane_of_bag, dims)


def _flat(x: Any, lanes: int) -> tuple[Any, np.ndarray, Any]:
    """The values of all examples, how many each has, and for matrices (rows of each example, length of each row)."""
    if isinstance(x, Packed):
        shape = shape_of(x.values)
        rows = x.lengths
        if len(shape) == 1:
            return x.values, rows, None
        width = shape[1]
        return np.reshape(x.values, (-1,)), rows * width, (rows, np.full(shape[0], width))
    if not isinstance(x, Batched):
        shape = shape_of(x)
        data = np.broadcast_to(x, (lanes, *shape))
        x = Batched(data, shape)
    mask = padding_mask(x.sizes, x.data.shape[1:])
    places = None if mask is None else np.flatnonzero(np.broadcast_to(mask, x.data.shape))
    flat = np.reshape(x.data, (x.data.size,))
    flat = flat if places is None else flat[places]
    sizes = [size.values if isinstance(size, Lengths) else np.full(lanes, size, np.int64) for size in x.sizes]
    if len(sizes) == 1:
        return flat, sizes[0], None
    return flat, sizes[0] * sizes[1], (sizes[0], np.repeat(sizes[1], sizes[0]))


def _bounds(flat: Any, lengths: np.ndarray, starts: np.ndarray, closed: bool) -> tuple[np.ndarray, np.ndarray]:
    """How many bags each example has, and the bounds of all bags among all ids. Each example's offsets are checked."""
    offsets, counts, _ = flat
    lanes = len(counts)
    ends = np.cumsum(counts)
    for lane in range(lanes):
        own = offsets[ends[lane] - counts[lane] : ends[lane]]
        try:
            checked_offsets(own, int(lengths[lane]), closed)
        except Exception as error:
            raise note_example(error, lane) from None
    if closed:
        keep = np.ones(len(offsets), np.bool_)
        keep[ends - 1] = False
        offsets, counts = offsets[keep], counts - 1
    moved = offsets.astype(np.int64) + np.repeat(starts[:-1], counts)
    return counts, np.append(moved, starts[-1])


def _weights(
    weights: Any, lanes: int, lengths: np.ndarray, options: Options, bounds: np.ndarray, lane_of_id: np.ndarray
) -> Any:
    """The weight of each id."""
    if options.positional and not isinstance(weights, Batched | Packed):
        return per_id(weights, bounds)
    values, found, _ = _flat(weights, lanes)
    if options.positional:
        return _own_positions(values, found, bounds, lane_of_id)
    wrong = np.flatnonzero(found != lengths)
    if wrong.size:
        lane = int(wrong[0])
        raise note_example(ShapeError(f"{found[lane]} per_sample_weights for {lengths[lane]} ids"), lane)
    return values


def _own_positions(values: Any, found: np.ndarray, bounds: np.ndarray, lane_of_id: np.ndarray) -> Any:
    """The weight of each id by its position in its bag, where each example has weights of its own."""
    sizes = np.diff(bounds)
    position = np.arange(len(lane_of_id)) - np.repeat(bounds[:-1], sizes)
    wrong = np.flatnonzero(position >= found[lane_of_id])
    if wrong.size:
        lane = int(lane_of_id[wrong[0]])
        most = int(position[lane_of_id == lane].max()) + 1
        message = f"positional_weights have shape ({found[lane]},); expected one for each position, ({most},) or more"
        raise note_example(ShapeError(message), lane)
    return np.take(values, (np.cumsum(found) - found)[lane_of_id] + position, axis=0)


def _table(table: Any, lanes: int) -> tuple[Any, np.ndarray, np.ndarray | None, Lengths | None]:
    """The table, the rows of each example, how far its ids are moved where each has a table of its own, and the dims of
    those where they differ."""
    if not isinstance(table, Batched):
        return table, np.full(lanes, shape_of(table)[0]), None, None
    dims = table.sizes[1] if isinstance(table.sizes[1], Lengths) else None
    data = table.data if dims is None else fill(table, 0)
    _, padded, dim = shape_of(data)
    rows = table.sizes[0].values if isinstance(table.sizes[0], Lengths) else np.full(lanes, table.sizes[0])
    return np.reshape(data, (lanes * padded, dim)), rows, np.arange(lanes) * padded, dims


def _check_ids(
    ids: np.ndarray, num_rows: np.ndarray, lane_of_id: np.ndarray, starts: np.ndarray, options: Options
) -> None:
    if options.bad_ids == "skip":
        return
    bad = np.flatnonzero((ids < 0) | (ids >= num_rows[lane_of_id]))
    if bad.size:
        lane = int(lane_of_id[bad[0]])
        place = f" at position {bad[0] - starts[lane]} of example {lane}"
        raise note_example(BadIdError(bad_id_message(int(ids[bad[0]]), place, int(num_rows[lane]))), lane)


def _placed(out: Any, counts: np.ndarray, lane_of_bag: np.ndarray, dims: Lengths | None) -> Batched:
    """The bags of each example side by side."""
    lanes, shape = len(counts), shape_of(out)[1:]
    most = int(counts.max(initial=0))
    trailing = shape if dims is None else (*shape[:-1], dims)
    if (counts == most).all():
        placed = Batched(np.reshape(out, (lanes, most, *shape)), (most, *trailing))
    else:
        size = Lengths(counts)
        mask = size.mask(most)
        index = np.zeros((lanes, most), np.int64)
        index[mask] = np.arange(len(lane_of_bag))
        wide = mask.reshape(lanes, most, *(1,) * len(shape))
        data = np.where(wide, np.take(out, index, axis=0), np.zeros((), out.dtype))
        placed = Batched(data, (size, *trailing))
    return placed if dims is None else Batched(select(placed.data, placed.sizes), placed.sizes)


def _impl(table: Any, ids: Any, *rest: Any, **params: Any) -> np.ndarray:
    """One example: a batch of it alone."""
    operands = [table, *(Batched(np.asarray(x)[None], shape_of(x)) for x in (ids, *rest))]
    if params["positional"]:
        operands[-1] = rest[-1]
    return _rule(embedding_bag_p, operands, params).data[0]


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    raise UnsupportedError("no gradient of bags of examples that differ in kind; call embedding_bag example by example")


embedding_bag_p = Op("embedding_bag", _impl, rule=_rule, vjp=_vjp, ragged=(1, 2, 3), kind="bag")
