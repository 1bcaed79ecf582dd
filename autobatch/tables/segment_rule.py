"""The segment ops, and their batching rule: the segments of all examples, one after the other, in one launch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.op import Op, is_boxed
from autobatch.errors import ShapeError, note_example
from autobatch.ops.rules.padding import select
from autobatch.tables.flattening import by_lane, flattened, in_lane, offsets_from, own_rows
from autobatch.tables.ids import as_ids
from autobatch.tables.representations import segments_of
from autobatch.tables.segment_grads import segment_vjp
from autobatch.tables.segment_values import POSITIONS, ROWWISE, segment, segments_in

__all__ = ["segment_p", "segment_rows_p"]


def _all_segments(described: Packed, rows: np.ndarray, form: str, count: Any, in_order: bool) -> Any:
    """The segments of all examples numbered one after the other, how many each example has, and whether as runs.

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
            return values + offsets_from(last)[:-1][lane_of], last, False
    elif values.ndim == 1:
        lengths, numbers_of = _lengths_of(described, values, form)
        if lengths is not None and (counts < 0).all() | (counts == numbers_of).all():
            bounds = offsets_from(lengths)
            ends = offsets_from(numbers_of)
            if (lengths >= 0).all() and (lengths <= rows.sum()).all() and (np.diff(bounds[ends]) == rows).all():
                return bounds, numbers_of, True
    out: list[np.ndarray] = []
    numbers: list[int] = []
    for lane in range(lanes):
        found, number, runs = in_lane(lane, lambda lane=lane: alone(lane))  # type: ignore[misc]
        found = segments_in(found) if runs else found
        out.append(found + sum(numbers))
        numbers.append(number)
    return np.concatenate([np.zeros(0, np.int64), *out]), np.array(numbers, np.int64), False


def _lengths_of(described: Packed, values: np.ndarray, form: str) -> tuple[np.ndarray | None, np.ndarray]:
    """The lengths of the segments of all examples, None where offsets do not start at 0; how many each example has."""
    if form == "lengths":
        return values, described.lengths
    if not described.lengths.all() or values[described.offsets[:-1]].any():
        return None, described.lengths
    inside = np.ones(len(values), np.bool_)
    inside[described.offsets[:-1]] = False
    return np.diff(values, prepend=0)[inside], described.lengths - 1


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    given = dict(params)
    form, in_order = given.pop("form", "segment_ids"), given.pop("in_order", False)
    form = "offsets" if given.pop("runs", False) else form
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
    segments, counts, runs = _all_segments(description, lengths, form, count, in_order)
    given |= {"runs": True} if runs else {}
    out = op(values, segments, *more, count=int(counts.sum()), **given)
    mode = params["mode"]
    if mode in POSITIONS:
        of = lengths if mode in ROWWISE else counts
        base = np.repeat(rows[:-1], of).reshape(-1, *(1,) * (ndim_of(out) - 1))
        out = np.where(out < 0, out, out - base)
    inner = tuple(shape_of(out)[1 : 1 + (mode in ("topk", "argtopk"))])
    trailing = () if mode == "count" else tuple(trailing)
    out_of = data if isinstance(data, Batched) and not fused and mode in ROWWISE else None
    lanes_out = by_lane(out, lengths if mode in ROWWISE else counts, out_of)
    sizes = (lanes_out.sizes[0], *inner, *trailing)
    if is_boxed(lanes_out.data) and any(isinstance(size, Lengths) for size in trailing):
        return Batched(select(lanes_out.data, sizes), sizes)
    return Batched(lanes_out.data, sizes)


# Operands: data, what describes the segments, ids (fused), weights (weighted), num_segments (counted).
# Params: mode, count (how many segments), form, in_order, empty, k. The results of `segment_p` have a row for each
# segment, those of `segment_rows_p` one for each row.
segment_p = Op("segment", segment, rule=_rule, ragged=(0, 1, 2, 3), kind="segment")
segment_rows_p = Op("segment_rows", segment, rule=_rule, kind="segment")
segment_p.vjp = segment_rows_p.vjp = segment_vjp(segment_p)
