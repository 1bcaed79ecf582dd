"""Reductions of bags and segments (sum, mean, max, softmax, logsumexp …): each declared once, with its gradient.

A mode has its row in `MODES`, at the end. What computes it takes `Rows`, plain arrays whose segments and ids have been
checked. Gradients are written in NumPy calls and ops, so that they run on any interpreter below: with S the segment of
each row, `call.take(v)` is v[S] and `call.again("sum", v)` the sum of v over each segment. A reduction of scaled rows
z = w·x has dx = w·dz and dw = Σ x·dz over the trailing dimensions.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.op import Op, is_boxed
from autobatch.kernels import segment_reductions as kernels
from autobatch.kernels.bags import MEAN, SQRTN, SUM
from autobatch.ops.rules.dispatch import cast
from autobatch.ops.rules.ragged_checks import as_ids, segments_in, table_ids
from autobatch.tables.row_access import gather


class Norm(NamedTuple):
    """The divisor of a segment's sum: a function of n, or with weights of Σw or Σw².

    Attributes:
        of: the divisor, of the total of ones, weights or squares.
        squares: whether the total with weights is that of their squares.
        slope: the derivative of the divisor by each weight, of the weights and the divisor of their segment.
        kernel: which norm the bag kernels divide by themselves; None: they do not, and the sums are divided after them.
    """

    of: Callable[[Any], Any]
    squares: bool
    slope: Callable[[Any, Any], Any]
    kernel: int | None = None


class Mode(NamedTuple):
    """One reduction.

    Attributes:
        compute: the reduced rows, (count, width) of the dtype of the rows or the one that the mode has.
        gradient: `gradient(call, by_weights)`, the cotangent of each row, or of each weight; None: no gradient.
        result: "same" dtype as the rows; "float": integers become float64; "wide": as `np.sum`'s; "own".
        norm: of a sum over a norm, which a bag kernel adds up; None for any other reduction.
        extremum: whether it is the "greatest" or the "least" that a bag kernel finds; "" for any other reduction.
        weights_own: weights mean more than a factor of each row, and `compute` takes them; else rows come scaled.
        by_ids: `compute` reads row ids[i] of a table; else rows are gathered first.
        rowwise: the result has a row for each row, not for each segment.
        positions: the result holds positions among the rows, -1 for none.
        bag: `embedding_bag` takes it.
    """

    compute: Callable[["Rows"], np.ndarray]
    gradient: Callable[["Call", bool], Any] | None = None
    result: str = "same"
    norm: Norm | None = None
    extremum: str = ""
    weights_own: bool = False
    by_ids: bool = False
    rowwise: bool = False
    positions: bool = False
    bag: bool = False

    @property
    def pooled(self) -> str:
        """The pass of the bag kernels that makes it: "sum", "max" or "min"; "" if none does."""
        return "sum" if self.norm is not None else {"greatest": "max", "least": "min", "": ""}[self.extremum]

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype of the result for rows of a dtype, as NumPy's reduction has it."""
        if self.result == "float":
            return dtype if dtype.kind == "f" else np.dtype(np.float64)
        return compute_dtype(dtype) if self.result == "wide" and dtype.kind != "f" else dtype


MODES: dict[str, Mode] = {}
BAG_MODES: list[str] = []  # those of embedding_bag, in the order in which errors name them
BagMode = Literal["sum", "mean", "max", "min", "sqrtn"]  # the same, for type checkers


def declare(name: str, mode: Mode) -> None:
    """Make a reduction known by its name: to the segment functions, and where it is one of bags to `embedding_bag`."""
    MODES[name] = mode
    if mode.bag:
        BAG_MODES.append(name)


STREAMED = ("logsumexp", "logmeanexp")
"""Modes that look up the rows of some segments at a time, since no bag kernel has them."""


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """In which values are added up: float32 for float16, 64 bits for integers, in the byte order of the machine."""
    if dtype.kind == "f":
        return np.dtype(np.float32) if dtype.itemsize == 2 else dtype.newbyteorder("=")
    return np.dtype(np.uint64) if dtype.kind == "u" else np.dtype(np.int64)


def quotient(values: Any, by: Any) -> Any:
    """values / by, where IEEE decides what is by 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return values / by


def gathered(data: Any, ids: Any) -> Any:
    """The rows that ids name, or all of them."""
    if ids is None:
        return np.asarray(data)
    table = data if hasattr(data, "_ab_locate") else np.asarray(data)
    return gather(table, ids) if table.ndim == 2 else table[ids]


def in_place(data: Any, ids: np.ndarray | None, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """(rows, width) of a dtype and ids into them, as kernels read them; rows that do not lie so are gathered first."""
    rows = data if type(data) is np.ndarray else getattr(data, "_ab_whole", None)
    if ids is not None and (rows is None or rows.dtype != dtype or not rows.flags.c_contiguous):
        rows, ids = gathered(data, ids), None
    rows = np.asarray(data) if rows is None else rows
    matrix = np.ascontiguousarray(rows.reshape(rows.shape[0], math.prod(rows.shape[1:])), dtype)
    return matrix, None if ids is None else np.ascontiguousarray(as_ids(ids))


# What a mode computes.


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a reduction reads, row i being x[i], or x[ids[i]].

    Attributes:
        x: (n, width), C-contiguous. ids: (n,) or None. weights: (n,) of the dtype of x, or None.
        segments: (n,) the segment of each row. count: how many segments. k: of topk.
    """

    x: np.ndarray
    ids: np.ndarray | None
    weights: np.ndarray | None
    segments: np.ndarray
    count: int
    k: int = 0

    def of(self, x: np.ndarray, weights: np.ndarray | None = None) -> "Rows":
        """Other rows of the same segments."""
        return Rows(x, None, weights, self.segments, self.count, self.k)

    def total(self) -> np.ndarray:
        """(count, width): the weighted sums."""
        out = np.zeros((self.count, self.x.shape[1]), self.x.dtype)
        kernels.segment_sum(self.x, self.ids, self.weights, self.segments, out)
        return out

    def divisors(self, norm: Norm) -> np.ndarray:
        """(count, 1): the norm of each segment; that of one row for an empty one."""
        counts, one = np.bincount(self.segments, minlength=self.count)[:, None], self.x.dtype.type(1)
        if self.weights is None:
            return norm.of(np.maximum(counts, 1).astype(self.x.dtype))
        terms = self.weights * self.weights if norm.squares else self.weights
        return norm.of(np.where(counts > 0, self.of(terms.reshape(-1, 1)).total(), one))

    def filled(self, value: Any, dtype: Any = None) -> np.ndarray:
        """(count, width) of one value."""
        return np.full((self.count, self.x.shape[1]), value, dtype or self.x.dtype)


def _var(rows: Rows) -> np.ndarray:
    out, means = rows.filled(0), MODES["mean"].compute(rows)
    kernels.segment_squares(rows.x, rows.ids, rows.weights, rows.segments, means, out)
    return quotient(out, rows.divisors(_MEAN))


def _extremum(least: bool) -> Callable[[Rows], np.ndarray]:
    def run(rows: Rows) -> np.ndarray:
        out = rows.filled(0)
        kernels.segment_extremum(rows.x, rows.ids, rows.segments, least, np.zeros(rows.count, np.bool_), out)
        return out

    return run


def _position(least: bool) -> Callable[[Rows], np.ndarray]:
    def run(rows: Rows) -> np.ndarray:
        out = rows.filled(-1, np.int64)
        kernels.first_equal(rows.x, rows.ids, rows.segments, _extremum(least)(rows), out)
        return out

    return run


def _at(position: Callable[[Rows], np.ndarray]) -> Callable[[Rows], np.ndarray]:
    """For each column the rows at positions, 0 where those are -1."""

    def run(rows: Rows) -> np.ndarray:
        at = position(rows)
        if not rows.segments.size:
            return np.zeros(at.shape, rows.x.dtype)
        found = rows.x[np.maximum(at, 0), np.arange(rows.x.shape[1])]
        return np.where(at < 0, rows.x.dtype.type(0), found)

    return run


def _prod(rows: Rows) -> np.ndarray:
    out = rows.filled(1)
    kernels.segment_prod(rows.x, rows.ids, rows.segments, out)
    return out


def _peak_and_exps(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The greatest of each segment where it is finite, else 0, and exp(x - that)."""
    peak = MODES["max"].compute(rows.of(rows.x))
    peak = np.where(np.isfinite(peak), peak, rows.x.dtype.type(0))
    exps = np.take(peak, rows.segments, axis=0)
    np.subtract(rows.x, exps, out=exps)
    return peak, np.exp(exps, out=exps)


def _logsumexp(rows: Rows) -> np.ndarray:
    peak, exps = _peak_and_exps(rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = peak + np.log(rows.of(exps, rows.weights).total())
    out[np.bincount(rows.segments, minlength=rows.count) == 0] = 0
    return out


def _logmeanexp(rows: Rows) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _logsumexp(rows) - np.log(rows.divisors(_MEAN))


def _softmax(rows: Rows) -> np.ndarray:
    exps = _peak_and_exps(rows)[1]
    if rows.weights is not None:
        exps *= rows.weights[:, None]
    return quotient(exps, np.take(rows.of(exps).total(), rows.segments, axis=0))


def _log_softmax(rows: Rows) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = rows.x if rows.weights is None else rows.x + np.log(rows.weights)[:, None]
        return scaled - _logsumexp(rows)[rows.segments]


def _cumsum(rows: Rows) -> np.ndarray:
    out = np.empty((rows.segments.shape[0], rows.x.shape[1]), rows.x.dtype)
    kernels.segment_cumsum(rows.x, rows.ids, rows.segments, rows.filled(0), out)
    return out


def _order(x: Any, segments: Any, descending: bool = False) -> np.ndarray:
    """(n, width): rows by segment, then by value (NaN greatest), equal ones in the order in which they stand."""
    n = segments.shape[0]
    key = np.broadcast_to(segments[:, None], x.shape)
    if not descending:
        return np.lexsort((x, key), axis=0)
    return n - 1 - np.lexsort((x[::-1], -key[::-1]), axis=0)[::-1]


def _argsort(rows: Rows) -> np.ndarray:
    out = np.empty(rows.x.shape, np.int64)
    out[np.argsort(rows.segments, kind="stable")] = _order(rows.x, rows.segments)
    return out


def _sort(rows: Rows) -> np.ndarray:
    return np.take_along_axis(rows.x, _argsort(rows), 0)


def _argtopk(rows: Rows) -> np.ndarray:
    lengths = np.bincount(rows.segments, minlength=rows.count)
    starts = np.cumsum(lengths) - lengths
    out = np.full((rows.count, rows.k, rows.x.shape[1]), -1, np.int64)
    segment, rank = np.nonzero(np.arange(rows.k) < lengths[:, None])
    out[segment, rank] = _order(rows.x, rows.segments, descending=True)[starts[segment] + rank]
    return out


def _end(last: bool) -> Callable[[Rows], np.ndarray]:
    """The position of the first or of the last row of each segment, -1 where there is none."""
    step = slice(None) if last else slice(None, None, -1)

    def run(rows: Rows) -> np.ndarray:
        out = rows.filled(-1, np.int64)
        out[rows.segments[step]] = np.arange(rows.segments.shape[0])[step, None]  # the last assignment stays
        return out

    return run


def _count(rows: Rows) -> np.ndarray:
    if rows.weights is None:
        return np.bincount(rows.segments, minlength=rows.count)
    return rows.of(rows.weights.reshape(-1, 1)).total()


# Gradients.


class Call:
    """One call of a reduction, with what its gradients need.

    Attributes:
        n, count: how many rows and segments. rest: ones, as many as a row has dimensions. dtype: what is computed in.
    """

    def __init__(self, op: Op, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> None:
        self.op, self.params = op, params
        fused, weighted = int(params.get("fused", False)), int(params.get("weighted", False))
        self.args = args[: 2 + fused + weighted]
        self.data, segments = args[0], as_ids(np.asarray(args[1]))
        self.segments = segments_in(segments) if params.get("runs") else segments
        ids = args[2] if fused else None
        self.ids = ids if ids is None or is_boxed(ids) else table_ids(args[0], ids)
        self.weights = args[2 + fused] if weighted else None
        self.count, self.n = params["count"], self.segments.shape[0]
        self.rest = (1,) * (ndim_of(self.data) - 1)
        dtype = dtype_of(ct)
        self.dtype = compute_dtype(dtype) if dtype.kind == "f" else dtype
        self.ct, self.out = cast(ct, self.dtype), cast(out, self.dtype)

    @property
    def plain(self) -> bool:
        """Whether all is of NumPy, so that a kernel may do it."""
        return not any(is_boxed(x) for x in (self.ct, self.out, self.data, self.ids, self.weights))

    def rows(self) -> Any:
        return cast(self.data if self.ids is None else self.data[self.ids], self.dtype)

    def factors(self) -> Any:
        """(n, 1, ...): the weights as a column."""
        return np.reshape(cast(self.weights, self.dtype), (self.n, *self.rest))

    def take(self, values: Any) -> Any:
        return np.take(values, self.segments, axis=0)

    def again(self, mode: str, *values: Any, k: int = 0) -> Any:
        """Another reduction over the same segments: of `values`, or of the same rows."""
        if values:
            return self.op(values[0], self.segments, mode=mode, count=self.count)
        own = {key: self.params[key] for key in ("fused", "weighted", "runs", "count") if key in self.params}
        return self.op(*self.args, mode=mode, **own, **({"k": k} if k else {}))

    def divisors(self, norm: Norm) -> Any:
        """(count, 1, ...): the norm of each segment; that of one row for an empty one."""
        counts = np.bincount(self.segments, minlength=self.count)
        if self.weights is None:
            return norm.of(np.maximum(counts, 1).astype(self.dtype).reshape(-1, *self.rest))
        weights = cast(self.weights, self.dtype)
        sums = self.again("sum", weights * weights if norm.squares else weights)
        return norm.of(np.reshape(np.where(counts == 0, self.dtype.type(1), sums), (self.count, *self.rest)))

    def over_columns(self, values: Any) -> Any:
        """(n,): the sum over the trailing dimensions."""
        return np.sum(np.reshape(values, (self.n, math.prod(shape_of(values)[1:]))), axis=1)

    def dots(self, ct: Any) -> Any:
        """(n,): the product of each row with the cotangent of its segment."""
        if not self.plain or is_boxed(ct):
            return self.over_columns(self.take(ct) * self.rows())
        x, ids = in_place(self.data, self.ids, self.dtype)
        out = np.empty(self.n, self.dtype)
        kernels.row_dots(x, ids, self.segments, np.ascontiguousarray(ct).reshape(self.count, x.shape[1]), out)
        return out


def _of_sum(norm: Norm | None) -> Callable[[Call, bool], Any]:
    """The gradient of a sum over a norm, S / N: by a weight (x - out · dN/dw) / N."""

    def gradient(call: Call, by_weights: bool) -> Any:
        divisor = None if norm is None else call.divisors(norm)
        ct = call.ct if divisor is None else quotient(call.ct, divisor)
        if not by_weights:
            found = call.take(ct)
            return found if call.weights is None else found * call.factors()
        found = call.dots(ct)
        if norm is None:
            return found
        level = np.sum(np.reshape(ct * call.out, (call.count, math.prod(shape_of(ct)[1:]))), axis=1)
        column = (call.n,)
        return found - call.take(level) * norm.slope(
            np.reshape(cast(call.weights, call.dtype), column), np.reshape(call.take(divisor), column)
        )

    return gradient


def _of_scaled(gradient: Callable[[Call], Any]) -> Callable[[Call, bool], Any]:
    """The gradient by rows and by weights of a reduction of scaled rows, from that by scaled rows."""

    def both(call: Call, by_weights: bool) -> Any:
        scaled = gradient(call)
        if by_weights:
            return call.over_columns(call.rows() * scaled)
        return scaled if call.weights is None else scaled * call.factors()

    return both


def _picked(position: str) -> Callable[[Call, bool], Any]:
    """The cotangent of the one row of each segment (for each column) that made the result."""

    def gradient(call: Call) -> Any:
        if call.plain:
            return _picked_by_kernel(call, position)
        at = call.again(position)
        here = np.arange(call.n).reshape(-1, *call.rest) == call.take(at)
        return np.where(here, call.take(call.ct), call.dtype.type(0))

    return _of_scaled(gradient)


def _picked_by_kernel(call: Call, position: str) -> np.ndarray:
    trailing = call.out.shape[1:]
    shape = (call.count, math.prod(trailing))
    if position in ("argmax", "argmin") and call.weights is None:  # the row that is the result is found sooner by it
        x, ids = in_place(call.data, call.ids, call.dtype)
        at = np.full(shape, -1)
        kernels.first_equal(x, ids, call.segments, np.ascontiguousarray(call.out).reshape(shape), at)
    else:
        at = call.again(position).reshape(shape)
    out = np.zeros((call.n, shape[1]), call.dtype)
    kernels.scatter_add_columns(np.ascontiguousarray(call.ct).reshape(shape), at, out)
    return out.reshape(call.n, *trailing)


def _prod_gradient(call: Call) -> Any:
    """The product of the rows before times that of the rows after: right where some are zero."""
    scaled = call.rows() if call.weights is None else call.rows() * call.factors()
    back = call.segments[::-1].copy()
    before = recurrence_p(scaled, np.zeros_like(scaled), call.segments, start=1, count=call.count)
    after = recurrence_p(np.flip(scaled, 0), np.zeros_like(scaled), back, start=1, count=call.count)
    return call.take(call.ct) * before * np.flip(after, 0)


def _cumsum_gradient(call: Call) -> Any:
    back = call.op(np.flip(call.ct, 0), call.segments[::-1].copy(), mode="cumsum", count=call.count)
    return np.flip(back, 0)


def _sort_gradient(call: Call) -> Any:
    order = np.asarray(call.again("argsort"))
    return np.take_along_axis(call.ct, np.argsort(order, axis=0), 0)


def _topk_gradient(call: Call) -> Any:
    at = np.asarray(call.again("argtopk", k=call.params["k"]))
    width = int(np.prod(at.shape[2:], dtype=np.int64))
    index = np.where(at >= 0, at, call.n).reshape(at.shape[0] * at.shape[1], width)
    place = np.full((call.n + 1, width), index.shape[0], np.int64)  # the last row of each: nothing goes there
    place[index, np.arange(width)] = np.arange(index.shape[0])[:, None]
    flat = np.concatenate([np.reshape(call.ct, index.shape), np.zeros((1, width), call.dtype)])
    return np.reshape(np.take_along_axis(flat, place[: call.n], 0), (call.n, *at.shape[2:]))


def _exps(call: Call, level: Any) -> Any:
    """exp(x - level of its segment); a level that is not finite counts as 0, as in the reduction."""
    level = np.where(np.isfinite(level), level, call.dtype.type(0))
    return np.exp(call.rows() - call.take(level))


def _logsumexp_gradient(call: Call, by_weights: bool) -> Any:
    found = call.take(call.ct) * _exps(call, call.out)
    if by_weights:
        return call.over_columns(found)
    return found if call.weights is None else found * call.factors()


def _logmeanexp_gradient(call: Call, by_weights: bool) -> Any:
    spread, exps = call.take(call.ct) / call.take(call.divisors(_MEAN)), _exps(call, call.out)
    if by_weights:
        return call.over_columns(spread * (exps - call.dtype.type(1)))
    return spread * exps if call.weights is None else spread * exps * call.factors()


def _softmax_gradient(call: Call, by_weights: bool) -> Any:
    left = call.ct - call.take(call.again("sum", call.out * call.ct))
    if by_weights:
        return call.over_columns(_exps(call, call.again("logsumexp")) * left)
    return call.out * left


def _log_softmax_gradient(call: Call, by_weights: bool) -> Any:
    totals = call.take(call.again("sum", call.ct))
    if by_weights:
        return call.over_columns(call.ct / call.factors() - _exps(call, call.again("logsumexp")) * totals)
    return call.ct - np.exp(call.out) * totals


def _var_gradient(call: Call, by_weights: bool, ct: Any = None, var: Any = None) -> Any:
    ct, var = (call.ct, call.out) if ct is None else (ct, var)
    away = call.rows() - call.take(cast(call.again("mean"), call.dtype))
    spread = call.take(ct / call.divisors(_MEAN))
    if by_weights:
        return call.over_columns(spread * (away * away - call.take(var)))
    found = call.dtype.type(2) * spread * away
    return found if call.weights is None else found * call.factors()


def _std_gradient(call: Call, by_weights: bool) -> Any:
    return _var_gradient(call, by_weights, call.ct / (call.dtype.type(2) * call.out), call.out * call.out)


def _count_gradient(call: Call, by_weights: bool) -> Any:
    return call.take(call.ct) if by_weights else None


def _recurrence(factors: Any, terms: Any, segments: Any, *, start: float, count: int) -> np.ndarray:
    factors = np.asarray(factors)
    rows, added = (in_place(x, None, factors.dtype)[0] for x in (factors, np.asarray(terms)))
    out = np.empty_like(rows)
    state = np.full((count, rows.shape[1]), start, rows.dtype)
    kernels.segment_recurrence(rows, added, np.ascontiguousarray(segments), state, out)
    return out.reshape(factors.shape)


def _recurrence_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The cotangents of the states, which are a recurrence from the last row to the first."""
    factors, _, segments = args
    if position == 2:
        return None
    back = recurrence_p(np.flip(factors, 0), np.flip(ct, 0), segments[::-1].copy(), start=0, count=params["count"])
    return np.flip(back, 0) if position else np.flip(back, 0) * out


# recurrence(factors, terms, segments, start=, count=): what each row's segment has become before it, beginning with
# `start`, where row i makes it terms[i] + factors[i] * what it was: with terms of 0 and a start of 1 a running product.
recurrence_p = Op("segment_recurrence", _recurrence, vjp=_recurrence_vjp, kind="segment")


# The modes.

_SUM = Norm(lambda total: np.ones_like(total), False, lambda w, divisor: 0 * w, SUM)
_MEAN = Norm(lambda total: total, False, lambda w, divisor: 1, MEAN)
_SQRTN = Norm(np.sqrt, True, lambda w, divisor: w / divisor, SQRTN)


def over(norm: Norm, *, bag: bool = False) -> Mode:
    """The sum of the rows over a norm."""
    compute = lambda rows: quotient(rows.total(), rows.divisors(norm))
    return Mode(compute, _of_sum(norm), "float", norm, weights_own=True, by_ids=True, bag=bag)


# fmt: off
declare("sum", Mode(Rows.total, _of_sum(None), "wide", _SUM, weights_own=True, by_ids=True, bag=True))
declare("mean", over(_MEAN, bag=True))
declare("sqrtn", over(_SQRTN, bag=True))
declare("max", Mode(_extremum(False), _picked("argmax"), extremum="greatest", by_ids=True, bag=True))
declare("min", Mode(_extremum(True), _picked("argmin"), extremum="least", by_ids=True, bag=True))
declare("prod", Mode(_prod, _of_scaled(_prod_gradient), "wide", by_ids=True))
declare("var", Mode(_var, _var_gradient, "float", weights_own=True, by_ids=True))
declare("std", Mode(lambda rows: np.sqrt(_var(rows)), _std_gradient, "float", weights_own=True, by_ids=True))
declare("logsumexp", Mode(_logsumexp, _logsumexp_gradient, "float", weights_own=True))
declare("logmeanexp", Mode(_logmeanexp, _logmeanexp_gradient, "float", weights_own=True))
declare("softmax", Mode(_softmax, _softmax_gradient, "float", weights_own=True, rowwise=True))
declare("log_softmax", Mode(_log_softmax, _log_softmax_gradient, "float", weights_own=True, rowwise=True))
declare("cumsum", Mode(_cumsum, _of_scaled(_cumsum_gradient), "wide", by_ids=True, rowwise=True))
declare("sort", Mode(_sort, _of_scaled(_sort_gradient), rowwise=True))
declare("topk", Mode(_at(_argtopk), _of_scaled(_topk_gradient)))
declare("first", Mode(_at(_end(False)), _picked("argfirst")))
declare("last", Mode(_at(_end(True)), _picked("arglast")))
declare("any", Mode(lambda rows: rows.of((rows.x != 0).astype(np.int64)).total() > 0, result="own"))
declare("all", Mode(lambda rows: rows.of((rows.x == 0).astype(np.int64)).total() == 0, result="own"))
declare("count", Mode(_count, _count_gradient, "own", weights_own=True))
declare("argmax", Mode(_position(False), by_ids=True, positions=True, result="own"))
declare("argmin", Mode(_position(True), by_ids=True, positions=True, result="own"))
declare("argsort", Mode(_argsort, positions=True, rowwise=True, result="own"))
declare("argtopk", Mode(_argtopk, positions=True, result="own"))
declare("argfirst", Mode(_end(False), positions=True, result="own"))
declare("arglast", Mode(_end(True), positions=True, result="own"))
# fmt: on
