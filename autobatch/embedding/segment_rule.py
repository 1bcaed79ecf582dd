"""The segment ops, and their batching rule: the segments of all examples, one after the other, in one launch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed, Size
from autobatch.core.op import Op, is_boxed
from autobatch.embedding.ids import as_ids, check_ids
from autobatch.embedding.representations import segments_of
from autobatch.embedding.segment_grads import segment_vjp
from autobatch.embedding.segment_values import POSITIONS, ROWWISE, segment
from autobatch.errors import ShapeError, note_example
from autobatch.ops.kinds import fill, select

__all__ = ["flattened", "own_rows", "segment_p", "segment_rows_p"]


def flattened(x: Any, lanes: int, what: str) -> tuple[Packed, tuple[Size, ...]]:
    """The rows of all examples one after the other, without padding, and the sizes of a row."""
    if isinstance(x, Packed):
        return x, tuple(shape_of(x.values)[1:])
    if not isinstance(x, Batched):
        if not ndim_of(x):
            raise ShapeError(f"{what} is a single number; expected rows, (n, ...)")
        n, shape = shape_of(x)[0], shape_of(x)[1:]
        tiled = np.concatenate([x] * lanes) if lanes else np.reshape(x, (-1, *shape))[:0]
        return Packed(tiled, np.arange(lanes + 1) * n), tuple(shape)
    if not x.sizes:
        raise ShapeError(f"{what} is a single number; expected rows, (n, ...)")
    if any(isinstance(size, Lengths) for size in x.sizes[1:]):
        x = Batched(fill(x, 0), x.sizes)  # what a column's padding holds must not warn, nor reach a weight's gradient
    size, shape = x.sizes[0], shape_of(x.data)
    flat = np.reshape(x.data, (shape[0] * shape[1], *shape[2:]))
    if not isinstance(size, Lengths):
        return Packed(flat, np.arange(shape[0] + 1) * shape[1]), x.sizes[1:]
    return Packed(flat[np.flatnonzero(size.mask(shape[1]))], _offsets(size.values)), x.sizes[1:]


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def own_rows(table: Any, ids: Packed) -> tuple[Any, np.ndarray]:
    """One table and ids into it: shared, or those of the examples one below the other."""
    found = as_ids(np.asarray(ids.values) if is_boxed(ids.values) else ids.values)
    if found.ndim != 1:
        raise ShapeError(f"ids have shape {found.shape[1:]} more; expected one dimension")
    lane_of = np.repeat(np.arange(ids.batch_size), ids.lengths)
    if isinstance(table, Batched | Packed):
        rows, _ = flattened(table, ids.batch_size, "data")
        counts, base, table = rows.lengths, rows.offsets[:-1], rows.values
    else:
        counts, base = np.full(ids.batch_size, shape_of(table)[0]), np.zeros(ids.batch_size, np.int64)
    wrong = np.flatnonzero((found < 0) | (found >= counts[lane_of]))
    if wrong.size:
        lane = int(lane_of[wrong[0]])
        _in_lane(lane, lambda: check_ids(found[ids.offsets[lane] : ids.offsets[lane + 1]], int(counts[lane])))
    return table, found + base[lane_of]


def _in_lane(lane: int, check: Any) -> None:
    try:
        check()
    except Exception as error:
        raise note_example(error, lane)  # noqa: B904 - the same error, with its note


def _all_segments(described: Packed, rows: np.ndarray, form: str, count: Any, in_order: bool) -> Any:
    """The segments of all examples numbered one after the other, and how many each example has.

    Each example is checked as it would be alone: all at once, and the first that fails once more by itself.
    """
    values = as_ids(np.asarray(described.values), form)
    lanes, offsets = described.batch_size, described.offsets
    counts = np.broadcast_to(-1 if count is None else count, (lanes,))

    def alone(lane: int) -> Any:
        own = None if counts[lane] < 0 else int(counts[lane])
        found = values[offsets[lane] : offsets[lane + 1]]
        return segments_of(int(rows[lane]), form, found, own, in_order=in_order)

    if form == "segment_ids" and values.ndim == 1:
        lane_of = np.repeat(np.arange(lanes), described.lengths)
        last = counts
        if count is None:
            last = np.zeros(lanes, np.int64)
            np.maximum.at(last, lane_of, values + 1)
        steps = (values[1:] < values[:-1]) & (lane_of[1:] == lane_of[:-1]) if in_order else np.zeros(0, bool)
        good = (described.lengths == rows).all() and (last >= 0).all() and not steps.any()
        if good and not ((values < 0) | (values >= last[lane_of])).any():
            return values + _offsets(last)[:-1][lane_of], last
    out: list[np.ndarray] = []
    numbers: list[int] = []
    for lane in range(lanes):
        try:
            found, number = alone(lane)
        except Exception as error:
            raise note_example(error, lane)  # noqa: B904 - the same error, with its note
        out.append(found + sum(numbers))
        numbers.append(number)
    return np.concatenate([np.zeros(0, np.int64), *out]), np.array(numbers, np.int64)


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    given = dict(params)
    form, in_order = given.pop("form", "segment_ids"), given.pop("in_order", False)
    counted, count = given.pop("counted", False), given.pop("count", None)
    lanes = next(x.batch_size for x in operands if isinstance(x, Batched | Packed))
    data, described, *rest = operands
    if counted:
        count = rest.pop()
        count = np.asarray(count.data if isinstance(count, Batched) else count)
    fused, weighted = given.get("fused", False), given.get("weighted", False)
    description, _ = flattened(described, lanes, form)
    if fused:
        ids, _ = flattened(rest[0], lanes, "ids")
        values, found = own_rows(data, ids)
        rows, more = ids.offsets, [found]
        trailing = data.sizes[1:] if isinstance(data, Batched) else shape_of(values)[1:]
    else:
        packed, trailing = flattened(data, lanes, "data")
        rows, values, more = packed.offsets, packed.values, []
    lengths = np.diff(rows)
    if weighted:
        weights, _ = flattened(rest[-1], lanes, "weights")
        wrong = np.flatnonzero(weights.lengths != lengths)
        if wrong.size:
            lane = int(wrong[0])
            shape = f"({weights.lengths[lane]},)"
            message = f"weights have shape {shape}; expected one for each row, ({lengths[lane]},)"
            raise note_example(ShapeError(message), lane)
        more.append(weights.values)
    segments, counts = _all_segments(description, lengths, form, count, in_order)
    out = op(values, segments, *more, count=int(counts.sum()), **given)
    mode = params["mode"]
    if mode in POSITIONS:
        of = lengths if mode in ROWWISE else counts
        base = np.repeat(rows[:-1], of).reshape(-1, *(1,) * (ndim_of(out) - 1))
        out = np.where(out < 0, out, out - base)
    inner = tuple(shape_of(out)[1 : 1 + (mode in ("topk", "argtopk"))])
    trailing = () if mode == "count" else tuple(trailing)
    out_of = data if isinstance(data, Batched) and not fused and mode in ROWWISE else None
    lanes_out = _by_lane(out, lengths if mode in ROWWISE else counts, out_of)
    sizes = (lanes_out.sizes[0], *inner, *trailing)
    if is_boxed(lanes_out.data) and any(isinstance(size, Lengths) for size in trailing):
        return Batched(select(lanes_out.data, sizes), sizes)
    return Batched(lanes_out.data, sizes)


def _by_lane(out: Any, counts: np.ndarray, like: Batched | None) -> Batched:
    """Rows of all examples, one after the other, as a batch of examples that have `counts` rows each (as `like`)."""
    lanes, shape = counts.shape[0], shape_of(out)[1:]
    if like is not None:
        size, extent = like.sizes[0], shape_of(like.data)[1]
    else:
        alike = lanes == 0 or bool((counts == counts[0]).all())
        size = (int(counts[0]) if lanes else 0) if alike else Lengths(counts)
        extent = int(counts.max(initial=0))
    if not isinstance(size, Lengths):
        return Batched(np.reshape(out, (lanes, size, *shape)), (size,))
    mask = size.mask(extent)
    index = np.full(mask.shape, shape_of(out)[0])
    index[mask] = np.arange(shape_of(out)[0])
    padded = np.concatenate([out, np.zeros((1, *shape), out.dtype)])
    return Batched(padded[index], (size,))


# Operands: data, what describes the segments, ids (fused), weights (weighted), num_segments (counted).
# Params: mode, count (how many segments), form, in_order, empty, k. The results of `segment_p` have a row for each
# segment, those of `segment_rows_p` one for each row.
segment_p = Op("segment", segment, rule=_rule, ragged=(0, 1, 2, 3), kind="segment")
segment_rows_p = Op("segment_rows", segment, rule=_rule, kind="segment")
segment_p.vjp = segment_rows_p.vjp = segment_vjp(segment_p)
