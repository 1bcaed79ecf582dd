"""From the arguments of a segment function to its op: descriptions checked where they are plain."""

import operator
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import ShapeError
from autobatch.ops.rules.dispatch import top_box
from autobatch.tables import bag_direct
from autobatch.tables.ids import as_ids, check_ids
from autobatch.tables.representations import segments_of
from autobatch.tables.segment_direct import direct
from autobatch.tables.segment_rule import segment_p, segment_rows_p
from autobatch.tables.segment_values import ROWWISE

__all__ = ["Segments", "reduce", "topk"]


class Segments(NamedTuple):
    """How rows belong to segments: the arguments that all segment functions share."""

    segment_ids: Any
    lengths: Any
    offsets: Any
    ids: Any
    weights: Any
    num_segments: Any
    sorted: bool

    def description(self) -> tuple[str, Any]:
        """Which of the three forms is given, and its value."""
        given = [form for form in ("segment_ids", "lengths", "offsets") if getattr(self, form) is not None]
        if len(given) != 1:
            raise ShapeError("the segments are given by exactly one of segment_ids, lengths= and offsets=")
        return given[0], _array(getattr(self, given[0]), given[0])


def reduce(mode: str, data: Any, how: Segments, empty: Any = None, **params: Any) -> Any:
    """One segment function, on operands of any interpreter."""
    op = segment_rows_p if mode in ROWWISE else segment_p
    form, described = how.description()
    if empty is None:
        out = None
        if how.ids is how.weights is None:
            out = direct(mode, data, form, described, how.num_segments)
        elif form == "offsets" and how.num_segments is None and how.ids is not None:
            out = bag_direct.direct(how.ids, data, described, mode, how.weights, True)
        if out is not None:
            return out
    data, weights = _array(data), how.weights if how.weights is None else _array(how.weights)
    ids = how.ids if how.ids is None else _array(how.ids, "ids")
    if empty is not None:
        if mode in ROWWISE:
            raise TypeError(f"segment_{mode} takes no empty=: its result has a row for each row of the data")
        if shape_of(empty) != ():
            raise ShapeError(f"empty has shape {shape_of(empty)}; expected one number")
        params["empty"] = empty
    params |= {"mode": mode} | ({"fused": True} if ids is not None else {})
    params |= {"weighted": True} if weights is not None else {}
    rest = [x for x in (ids, weights) if x is not None]
    if any(rank_of(x) == BATCH_RANK for x in (data, described, how.num_segments, *rest)):
        count = how.num_segments
        if rank_of(count) == BATCH_RANK:
            return op(data, described, *rest, count, form=form, in_order=how.sorted, counted=True, **params)
        return op(data, described, *rest, form=form, in_order=how.sorted, count=_number(count), **params)
    if not ndim_of(data):
        raise ShapeError("data is a single number; expected rows, (n, ...)")
    n = shape_of(data)[0]
    if ids is not None:
        ids = as_ids(np.asarray(ids))
        if ids.ndim != 1:
            raise ShapeError(f"ids have shape {ids.shape}; expected one dimension")
        check_ids(ids, n)
        n, rest[0] = ids.shape[0], ids
    found = segments_of(n, form, np.asarray(described), _number(how.num_segments), in_order=how.sorted)
    segments, count, runs = found
    params |= {"runs": True} if runs else {}
    if weights is not None and shape_of(weights) != (n,):
        raise ShapeError(f"weights have shape {shape_of(weights)}; expected one for each row, ({n},)")
    return op(data, segments, *rest, count=count, **params)


def topk(data: Any, how: Segments, k: int, empty: Any) -> tuple[Any, Any]:
    """The values and the positions of the k greatest of each segment."""
    k = operator.index(k)
    if k < 0:
        raise ShapeError(f"k={k}; expected at least 0")
    positions = reduce("argtopk", data, how, k=k)
    values = reduce("topk", data, how, k=k)
    if empty is not None:
        values = np.where(positions < 0, np.asarray(empty, values.dtype), values)
    return values, positions


def _array(x: Any, integers: str = "") -> Any:
    """An operand as an op takes it; a list may hold values of an interpreter, and an empty one may be of integers."""
    if hasattr(x, "dtype"):
        return x
    if isinstance(x, list | tuple) and top_box(x) is not None:
        return np.stack(list(x))
    if integers:
        return as_ids(x, integers)
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ShapeError("nested lists of different lengths; make them one list, and describe it by lengths") from error


def _number(count: Any) -> int | None:
    if count is None:
        return None
    if is_boxed(count):
        count = np.asarray(count)
    count = operator.index(count)
    if count < 0:
        raise ShapeError(f"num_segments={count}; expected at least 0")
    return count
