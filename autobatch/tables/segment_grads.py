"""The gradients of the segment reductions, in NumPy calls and ops, so that they run on any interpreter below.

With S the segment of each row, `take(v)` is v[S] and `total(v)` the sum of v over each segment. A reduction of scaled
rows z = w·x has dx = w·dz and dw = Σ x·dz over the trailing dimensions.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.op import Op, is_boxed
from autobatch.kernels import segments as kernels
from autobatch.tables.ids import as_ids
from autobatch.tables.segment_values import compute_dtype, operands_of, segments_in
from autobatch.tables.sparse import SparseRows
from autobatch.tables.table import lookup_p

__all__ = ["segment_vjp"]

_LINEAR = ("sum", "mean", "sqrtn")


class _Call:
    """One call of a reduction, with what its gradients need."""

    def __init__(self, op: Op, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> None:
        self.op, self.args, self.params = op, args, params
        self.data, segments = args[0], as_ids(np.asarray(args[1]))
        self.segments = segments_in(segments) if params.get("runs") else segments
        self.ids, self.weights = operands_of(args[2:], params)
        self.count, self.n = params["count"], self.segments.shape[0]
        self.rest = (1,) * (ndim_of(self.data) - 1)
        dtype = dtype_of(ct)
        self.dtype = compute_dtype(dtype) if dtype.kind == "f" else dtype
        self.ct, self.out = _cast(ct, self.dtype), _cast(out, self.dtype)

    def rows(self) -> Any:
        return _cast(self.data if self.ids is None else lookup_p(self.data, self.ids), self.dtype)

    def factors(self) -> Any:
        """(n, 1, ...): the weights as a column."""
        return np.reshape(_cast(self.weights, self.dtype), (self.n, *self.rest))

    def take(self, values: Any) -> Any:
        return np.take(values, self.segments, axis=0)

    def again(self, mode: str, *values: Any, k: int = 0) -> Any:
        """Another reduction over the same segments: of `values`, or of the same rows."""
        if values:
            return self.op(values[0], self.segments, mode=mode, count=self.count)
        given = {key: value for key, value in self.params.items() if key not in ("mode", "empty", "k")}
        return self.op(*self.args, mode=mode, **given, **({"k": k} if k else {}))

    def numbers(self, squares: bool = False) -> Any:
        """(count, 1, ...): the sum of the weights (of their squares) of each segment, or the number of its rows."""
        if self.weights is None:
            counts = np.maximum(np.bincount(self.segments, minlength=self.count), 1).astype(self.dtype)
            return counts.reshape(-1, *self.rest)
        weights = _cast(self.weights, self.dtype)
        sums = self.again("sum", weights * weights if squares else weights)
        empty = np.bincount(self.segments, minlength=self.count) == 0
        return np.reshape(np.where(empty, self.dtype.type(1), sums), (self.count, *self.rest))

    def over_columns(self, values: Any) -> Any:
        """(n,): the sum over the trailing dimensions."""
        return np.sum(np.reshape(values, (self.n, -1)) if self.n else np.zeros((0, 1), self.dtype), axis=1)


def _cast(x: Any, dtype: np.dtype) -> Any:
    return x if dtype_of(x) == dtype else x.astype(dtype) if hasattr(x, "astype") else np.asarray(x, dtype)


def segment_vjp(op: Op) -> Callable[..., Any]:
    """The vjp of a segment op: positions 0 (data, or the table) and the last, where there are weights."""

    def vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        weighted = bool(params.get("weighted"))
        by_weights = weighted and position == len(args) - 1
        if position != 0 and not by_weights:
            return None
        call, mode = _Call(op, ct, out, args, params), params["mode"]
        if mode in _LINEAR:
            return _linear(call, mode, by_weights)
        if mode == "count":
            return _cast(call.take(call.ct), dtype_of(args[-1])) if by_weights else None
        own = _OWN.get(mode)
        if own is not None:
            found = own(call, by_weights)
        else:
            scaled = _SCALED[mode](call)
            if by_weights:
                found = call.over_columns(call.rows() * scaled)
            else:
                found = scaled if call.weights is None else scaled * call.factors()
        if by_weights:
            return _cast(found, dtype_of(args[-1]))
        return _of_rows(call, found)

    return vjp


def _of_rows(call: _Call, found: Any) -> Any:
    """The cotangent of the data from that of its rows: named by ids where they were looked up."""
    found = _cast(found, dtype_of(call.data))
    if call.ids is None:
        return found
    return SparseRows.trusted(as_ids(call.ids), found, shape_of(call.data)[0])


def _linear(call: _Call, mode: str, by_weights: bool) -> Any:
    norm: Any = None if mode == "sum" else call.numbers(squares=mode == "sqrtn")
    if mode == "sqrtn":
        norm = np.sqrt(norm)
    if by_weights:
        ct, rows = call.ct if norm is None else call.ct / norm, call.rows()
        spread = call.take(ct)
        if mode == "sum":
            found = spread * rows
        elif mode == "mean":
            found = spread * (rows - call.take(call.out))
        else:
            found = spread * (rows - call.take(call.out / norm) * call.factors())
        return _cast(call.over_columns(found), dtype_of(call.weights))
    plain = not any(is_boxed(x) for x in (call.ct, call.data, call.weights, norm))
    if plain and call.ids is not None and dtype_of(call.data).kind == "f":
        ct = call.ct if norm is None else call.ct / norm
        weights = None if call.weights is None else np.asarray(call.weights, call.dtype)
        return SparseRows.spread(
            as_ids(call.ids), ct, call.segments, weights, shape_of(call.data)[0], dtype_of(call.data)
        )
    found = call.take(call.ct if norm is None else call.ct / norm)
    return _of_rows(call, found if call.weights is None else found * call.factors())


def _picked(call: _Call, position_mode: str) -> Any:
    """The cotangent of the one row of each segment (for each column) that made the result."""
    at = call.take(call.again(position_mode))
    here = np.arange(call.n).reshape(-1, *call.rest) == at
    return np.where(here, call.take(call.ct), call.dtype.type(0))


def _scaled_rows(call: _Call) -> Any:
    return call.rows() if call.weights is None else call.rows() * call.factors()


def _prod(call: _Call) -> Any:
    return call.take(call.ct) * others_p(_scaled_rows(call), call.segments, count=call.count)


def _cumsum(call: _Call) -> Any:
    back = call.op(np.flip(call.ct, 0), call.segments[::-1].copy(), mode="cumsum", count=call.count)
    return np.flip(back, 0)


def _sort(call: _Call) -> Any:
    order = np.asarray(call.again("argsort"))
    return np.take_along_axis(call.ct, np.argsort(order, axis=0), 0)


def _topk(call: _Call) -> Any:
    at = np.asarray(call.again("argtopk", k=call.params["k"]))
    width = int(np.prod(at.shape[2:], dtype=np.int64))
    index = np.where(at >= 0, at, call.n).reshape(at.shape[0] * at.shape[1], width)
    place = np.full((call.n + 1, width), index.shape[0], np.int64)  # the last row of each: nothing goes there
    place[index, np.arange(width)] = np.arange(index.shape[0])[:, None]
    flat = np.concatenate([np.reshape(call.ct, index.shape), np.zeros((1, width), call.dtype)])
    return np.reshape(np.take_along_axis(flat, place[: call.n], 0), (call.n, *at.shape[2:]))


def _exps(call: _Call, level: Any) -> Any:
    """exp(x - level of its segment); a level that is not finite counts as 0, as in the reduction."""
    level = np.where(np.isfinite(level), level, call.dtype.type(0))
    return np.exp(call.rows() - call.take(level))


def _logsumexp(call: _Call, by_weights: bool) -> Any:
    found = call.take(call.ct) * _exps(call, call.out)
    if by_weights:
        return call.over_columns(found)
    return found if call.weights is None else found * call.factors()


def _logmeanexp(call: _Call, by_weights: bool) -> Any:
    numbers = call.take(call.numbers())
    spread, exps = call.take(call.ct) / numbers, _exps(call, call.out)
    if by_weights:
        return call.over_columns(spread * (exps - call.dtype.type(1)))
    return spread * exps if call.weights is None else spread * exps * call.factors()


def _softmax(call: _Call, by_weights: bool) -> Any:
    left = call.ct - call.take(call.again("sum", call.out * call.ct))
    if by_weights:
        return call.over_columns(_exps(call, call.again("logsumexp")) * left)
    return call.out * left


def _log_softmax(call: _Call, by_weights: bool) -> Any:
    totals = call.take(call.again("sum", call.ct))
    if by_weights:
        return call.over_columns(call.ct / call.factors() - _exps(call, call.again("logsumexp")) * totals)
    return call.ct - np.exp(call.out) * totals


def _var(call: _Call, by_weights: bool, ct: Any = None, var: Any = None) -> Any:
    ct, var = (call.ct, call.out) if ct is None else (ct, var)
    away = call.rows() - call.take(_cast(call.again("mean"), call.dtype))
    spread = call.take(ct / call.numbers())
    if by_weights:
        return call.over_columns(spread * (away * away - call.take(var)))
    found = call.dtype.type(2) * spread * away
    return found if call.weights is None else found * call.factors()


def _std(call: _Call, by_weights: bool) -> Any:
    return _var(call, by_weights, call.ct / (call.dtype.type(2) * call.out), call.out * call.out)


_OWN: dict[str, Callable[[_Call, bool], Any]] = {
    "logsumexp": _logsumexp,
    "logmeanexp": _logmeanexp,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "var": _var,
    "std": _std,
}
_SCALED: dict[str, Callable[[_Call], Any]] = {
    "max": lambda call: _picked(call, "argmax"),
    "min": lambda call: _picked(call, "argmin"),
    "first": lambda call: _picked(call, "argfirst"),
    "last": lambda call: _picked(call, "arglast"),
    "prod": _prod,
    "cumsum": _cumsum,
    "sort": _sort,
    "topk": _topk,
}


def _others(x: Any, segments: Any, *directions: Any, count: int) -> np.ndarray:
    x, sets = np.asarray(x), 1 << len(directions)
    rows = _matrix(x)
    along = np.empty((len(directions), *rows.shape), x.dtype)
    for own, direction in zip(along, directions, strict=True):
        own[...] = _matrix(np.asarray(direction))
    running, before = np.zeros((count, rows.shape[1], sets), x.dtype), np.empty((*rows.shape, sets), x.dtype)
    running[:, :, 0] = 1
    out = np.empty_like(rows)
    kernels.segment_prod_others(rows, along, np.ascontiguousarray(segments), running, before, out)
    return out.reshape(x.shape)


def _matrix(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.reshape(x.shape[0], math.prod(x.shape[1:])))


def _others_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Linear in each direction, the same in any order of them: a derivative has one more direction, or another one."""
    x, segments, *directions = args
    if position == 1:
        return None
    if position:
        del directions[position - 2]
    return others_p(x, segments, *directions, ct, **params)


# The product of the other rows of each row's segment; with directions, its derivative along all of them.
others_p = Op("segment_prod_others", _others, vjp=_others_vjp, kind="segment")
