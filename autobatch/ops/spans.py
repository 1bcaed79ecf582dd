"""Consecutive rows of an array, and their place in one of zeros: each op is the other's transpose."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched
from autobatch.core.cotangent import Scatter
from autobatch.core.op import Op, is_boxed

__all__ = ["rows_between", "span_p"]


def rows_between(x: Any, start: int, stop: int) -> Any:
    """`x[start:stop]`, of an array that nobody writes into."""
    return x[start:stop] if type(x) is np.ndarray else span_p(x, start=start, stop=stop)


def _span(x: Any, *, start: int, stop: int) -> Any:
    return x[start:stop]


def _span_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,) = operands
    start, stop, _ = slice(params["start"], params["stop"]).indices(x.sizes[0])
    return Batched(x.data[:, start:stop], (stop - start, *x.sizes[1:]))


def _span_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    (x,) = args
    if is_boxed(ct):
        return place_p(ct, start=params["start"], rows=x.shape[0])
    rows = slice(params["start"], params["start"] + len(ct))
    return Scatter(rows, ct, x.shape, x.dtype, unique=True)


def _place(x: Any, *, start: int, rows: int) -> Any:
    out = np.zeros((rows, *x.shape[1:]), x.dtype)
    out[start : start + len(x)] = x
    return out


def _place_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return span_p(ct, start=params["start"], stop=params["start"] + args[0].shape[0])


def _place_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,) = operands
    start, rows, width = params["start"], params["rows"], x.sizes[0]
    zeros = [np.zeros((x.data.shape[0], n, *x.data.shape[2:]), x.data.dtype) for n in (start, rows - start - width)]
    return Batched(np.concatenate([zeros[0], x.data, zeros[1]], axis=1), (rows, *x.sizes[1:]))


span_p = Op("span", _span, rule=_span_rule, vjp=_span_vjp, kind="rows")
place_p = Op("place", _place, rule=_place_rule, vjp=_place_vjp, kind="rows")
