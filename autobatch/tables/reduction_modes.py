"""Reductions of bags and segments (sum, mean, max, softmax, logsumexp …): each declared once, with its gradient.

Each reduction is a `Mode` in `MODES`, declared at the end of this file. Its `compute` takes `Rows`: plain arrays whose
segments and ids have been checked. Gradients are written in NumPy calls and ops, so that they also work on batches and
tapes. With S the segment of each row, `call.take(v)` is v[S], and `call.reduce("sum", v)` is the sum of v over each
segment. A reduction of scaled rows z = w·x has dx = w·dz, and dw = x·dz summed over the trailing dimensions.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.op import Op, is_boxed
from autobatch.errors import BadIdError
from autobatch.kernels import segment_reductions as kernels
from autobatch.kernels.bags import MEAN, SQRTN, SUM
from autobatch.ops.numpy.elementwise import share_p
from autobatch.ops.rules.dispatch import cast
from autobatch.ops.rules.ragged_checks import segments_in, table_ids
from autobatch.tables.row_access import gather


class Norm(NamedTuple):
    """The divisor of a segment's sum: a function of the number of rows n, or with weights of Σw or Σw².

    Attributes:
        of: computes the divisor from that total.
        squares: True if the total with weights is Σw².
        slope: `slope(weights, divisors)`, the derivative of each row's divisor with respect to its weight.
        kernel: the bag kernels' constant if they divide by this norm; None: the sums are divided afterwards.
    """

    of: Callable[[Any], Any]
    squares: bool
    slope: Callable[[Any, Any], Any]
    kernel: int | None = None


class Mode(NamedTuple):
    """One reduction.

    Attributes:
        compute: computes the reduced rows, (count, width).
        gradient: `gradient(call, by_weights)`, the cotangent of each row, or of each weight; None: no gradient.
        result: the dtype: "same" as the rows; "float": integers give float64; "wide": as `np.sum`; "own": of `compute`.
        norm: for a sum divided by a norm, which bag kernels compute; else None.
        extremum: "greatest" or "least", which bag kernels compute; "" for any other reduction.
        uses_weights: `compute` takes the weights; else rows are multiplied by their weights first.
        takes_ids: `compute` reads row ids[i] of a table; else rows are gathered first.
        rowwise: the result has one row for each row of the data, not for each segment.
        positions: the result holds positions among the rows, -1 for none.
        checks: `compute` reads segment ids by kernels that check them, or by `np.take`; else they are copied first.
        bag: `embedding_bag` accepts this mode.
    """

    compute: Callable[["Rows"], np.ndarray]
    gradient: Callable[["SegmentCall", bool], Any] | None = None
    result: str = "same"
    norm: Norm | None = None
    extremum: str = ""
    uses_weights: bool = False
    takes_ids: bool = False
    rowwise: bool = False
    positions: bool = False
    checks: bool = True
    bag: bool = False

    @property
    def pooled(self) -> str:
        """The bag kernel that computes it: "sum", "max" or "min"; "" if none does."""
        return "sum" if self.norm is not None else {"greatest": "max", "least": "min", "": ""}[self.extremum]

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype of the result for rows of this dtype, as in NumPy's reduction."""
        if self.result == "float":
            return dtype if dtype.kind == "f" else np.dtype(np.float64)
        return compute_dtype(dtype) if self.result == "wide" and dtype.kind != "f" else dtype


MODES: dict[str, Mode] = {}
BAG_MODES: list[str] = []  # the modes of embedding_bag, in the order of error messages
BagMode = Literal["sum", "mean", "max", "min", "sqrtn"]  # `BAG_MODES` for type checkers


def declare(name: str, mode: Mode) -> None:
    """Register a reduction under a name, for the segment functions and, if `mode.bag`, for `embedding_bag`."""
    MODES[name] = mode
    if mode.bag:
        BAG_MODES.append(name)


STREAMED = ("logsumexp", "logmeanexp")
"""Modes without a bag kernel, for which table rows are gathered for a group of segments at a time, to save memory."""


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of accumulators: float32 for float16, 64 bits for integers, in native byte order."""
    if dtype.kind == "f":
        return np.dtype(np.float32) if dtype.itemsize == 2 else dtype.newbyteorder("=")
    return np.dtype(np.uint64) if dtype.kind == "u" else np.dtype(np.int64)


def divide_ieee(values: Any, by: Any) -> Any:
    """values / by, where a division by 0 gives inf or NaN without a warning."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return values / by


def gather_rows(data: Any, ids: Any) -> Any:
    """The rows data[ids], or all rows if ids are None."""
    if ids is None:
        return np.asarray(data)
    table = data if hasattr(data, "_ab_locate") else np.asarray(data)
    return gather(table, ids) if table.ndim == 2 else table[ids]


def as_matrix(data: object, ids: np.ndarray | None, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """(matrix, ids) for kernels: a C-contiguous (rows, width) of this dtype; else gathered rows and None."""
    rows = data if type(data) is np.ndarray else getattr(data, "_ab_whole", None)
    if ids is not None and (rows is None or rows.dtype != dtype or not rows.flags.c_contiguous):
        rows, ids = gather_rows(data, ids), None
    rows = np.asarray(data) if rows is None else rows
    matrix = np.ascontiguousarray(rows.reshape(rows.shape[0], math.prod(rows.shape[1:])), dtype)
    return matrix, None if ids is None else np.ascontiguousarray(ids, np.int64)


# What a mode computes.


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """The operands of a reduction; row i is x[i], or x[ids[i]] if there are ids.

    A segment id may be out of bounds, or changed by another thread: `run` checks it while a kernel reads it.

    Attributes:
        x: (n, width), C-contiguous. ids: (n,) or None. weights: (n,) of the dtype of x, or None.
        segments: (n,) the segment of each row. count: the number of segments. k: the k of topk.
    """

    x: np.ndarray
    ids: np.ndarray | None
    weights: np.ndarray | None
    segments: np.ndarray
    count: int
    k: int = 0

    def with_values(self, x: np.ndarray, weights: np.ndarray | None = None) -> "Rows":
        """The same segments with other rows and weights."""
        return Rows(x, None, weights, self.segments, self.count, self.k)

    def run(self, kernel: Callable[..., bool], *args: Any) -> Any:
        """`kernel(*args)`, then its last argument, which it filled; raises BadIdError for a wrong segment id."""
        if not kernel(*args):
            raise BadIdError("a segment id is outside the segments")
        return args[-1]

    def total(self) -> np.ndarray:
        """(count, width): the weighted sum of each segment."""
        return self.run(kernels.segment_sum, self.x, self.ids, self.weights, self.segments, self.filled(0))

    def lengths(self) -> np.ndarray:
        """(count,): the number of rows of each segment."""
        return self.run(kernels.segment_count, self.segments, np.zeros(self.count, np.int64))

    def divisors(self, norm: Norm) -> np.ndarray:
        """(count, 1): the norm of each segment; that of one row for an empty one."""
        counts, one = self.lengths()[:, None], self.x.dtype.type(1)
        if self.weights is None:
            return norm.of(np.maximum(counts, 1).astype(self.x.dtype))
        terms = self.weights * self.weights if norm.squares else self.weights
        return norm.of(np.where(counts > 0, self.with_values(terms.reshape(-1, 1)).total(), one))

    def filled(self, value: Any, dtype: Any = None) -> np.ndarray:
        """An array (count, width) filled with one value."""
        return np.full((self.count, self.x.shape[1]), value, dtype or self.x.dtype)


def _var(rows: Rows) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        away = rows.x - np.take(MODES["mean"].compute(rows), rows.segments, axis=0)
        squares = np.square(away, out=away)
    return divide_ieee(rows.with_values(squares, rows.weights).total(), rows.divisors(_MEAN))


def _extremum(least: bool) -> Callable[[Rows], np.ndarray]:
    def run(rows: Rows) -> np.ndarray:
        seen = np.zeros(rows.count, np.bool_)
        return rows.run(kernels.segment_extremum, rows.x, rows.ids, rows.segments, least, seen, rows.filled(0))

    return run


def _extremum_position(least: bool) -> Callable[[Rows], np.ndarray]:
    def run(rows: Rows) -> np.ndarray:
        operands = rows.x, rows.ids, rows.segments, _extremum(least)(rows)
        return rows.run(kernels.first_equal, *operands, rows.filled(-1, np.int64))

    return run


def _values_at(position: Callable[[Rows], np.ndarray]) -> Callable[[Rows], np.ndarray]:
    """Computes for each column the values at given positions, 0 where a position is -1."""

    def run(rows: Rows) -> np.ndarray:
        at = position(rows)
        if not rows.segments.size:
            return np.zeros(at.shape, rows.x.dtype)
        found = rows.x[np.maximum(at, 0), np.arange(rows.x.shape[1])]
        return np.where(at < 0, rows.x.dtype.type(0), found)

    return run


def _prod(rows: Rows) -> np.ndarray:
    return rows.run(kernels.segment_prod, rows.x, rows.ids, rows.segments, rows.filled(1))


def _peak_and_exps(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(peak, exp(x - peak of its segment)), where peak is each segment's maximum, or 0 if that is not finite."""
    peak = MODES["max"].compute(rows.with_values(rows.x))
    peak = np.where(np.isfinite(peak), peak, rows.x.dtype.type(0))
    exps = np.take(peak, rows.segments, axis=0)
    np.subtract(rows.x, exps, out=exps)
    return peak, np.exp(exps, out=exps)


def _logsumexp(rows: Rows) -> np.ndarray:
    peak, exps = _peak_and_exps(rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = peak + np.log(rows.with_values(exps, rows.weights).total())
    out[rows.lengths() == 0] = 0
    return out


def _logmeanexp(rows: Rows) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _logsumexp(rows) - np.log(rows.divisors(_MEAN))


def _softmax(rows: Rows) -> np.ndarray:
    exps = _peak_and_exps(rows)[1]
    if rows.weights is not None:
        exps *= rows.weights[:, None]
    return divide_ieee(exps, np.take(rows.with_values(exps).total(), rows.segments, axis=0))


def _log_softmax(rows: Rows) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = rows.x if rows.weights is None else rows.x + np.log(rows.weights)[:, None]
        return scaled - np.take(_logsumexp(rows), rows.segments, axis=0)


def _cumsum(rows: Rows) -> np.ndarray:
    before = _recurrence(np.ones_like(rows.x), rows.x, rows.segments, start=0, count=rows.count)
    with np.errstate(invalid="ignore", over="ignore"):
        return before + rows.x


def _order(x: Any, segments: Any, descending: bool = False) -> np.ndarray:
    """(n, width): the stable order of rows by segment, then by value, with NaN greatest."""
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
    lengths = rows.lengths()
    starts = np.cumsum(lengths) - lengths
    out = np.full((rows.count, rows.k, rows.x.shape[1]), -1, np.int64)
    segment, rank = np.nonzero(np.arange(rows.k) < lengths[:, None])
    out[segment, rank] = _order(rows.x, rows.segments, descending=True)[starts[segment] + rank]
    return out


def _end_position(last: bool) -> Callable[[Rows], np.ndarray]:
    """Computes the position of the first (or last) row of each segment, -1 for an empty one."""
    step = slice(None) if last else slice(None, None, -1)

    def run(rows: Rows) -> np.ndarray:
        out = rows.filled(-1, np.int64)
        out[rows.segments[step]] = np.arange(rows.segments.shape[0])[step, None]  # the last assignment counts
        return out

    return run


def _count(rows: Rows) -> np.ndarray:
    if rows.weights is None:
        return rows.lengths()
    return rows.with_values(rows.weights.reshape(-1, 1)).total()


# Gradients.


class SegmentCall:
    """One call of a reduction, with helpers for its gradients.

    Attributes:
        n, count: the numbers of rows and segments. rest: (1,) * dimensions of a row. dtype: the dtype to compute in.
    """

    def __init__(self, op: Op, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> None:
        self.op, self.params = op, params
        fused, weighted = int(params.get("fused", False)), int(params.get("weighted", False))
        self.args = args[: 2 + fused + weighted]
        self.data, segments = args[0], np.asarray(args[1])
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
        """True if all operands are plain arrays, which kernels take."""
        return not any(is_boxed(x) for x in (self.ct, self.out, self.data, self.ids, self.weights))

    def rows(self) -> Any:
        return cast(self.data if self.ids is None else self.data[self.ids], self.dtype)

    def factors(self) -> Any:
        """(n, 1, ...): the weights as a column."""
        return np.reshape(cast(self.weights, self.dtype), (self.n, *self.rest))

    def take(self, values: Any) -> Any:
        return np.take(values, self.segments, axis=0)

    def reduce(self, mode: str, *values: Any, k: int = 0) -> Any:
        """Another reduction over the same segments: of `values`, or if there are none of the call's own rows."""
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
        sums = self.reduce("sum", weights * weights if norm.squares else weights)
        return norm.of(np.reshape(np.where(counts == 0, self.dtype.type(1), sums), (self.count, *self.rest)))

    def sum_trailing(self, values: Any) -> Any:
        """(n,): the sum over the trailing dimensions."""
        return np.sum(np.reshape(values, (self.n, math.prod(shape_of(values)[1:]))), axis=1)

    def dots(self, ct: object) -> Any:
        """(n,): the dot product of each row with the cotangent of its segment."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self.sum_trailing(self.take(ct) * self.rows())


def _sum_gradient(norm: Norm | None) -> Callable[[SegmentCall, bool], Any]:
    """The gradient of a sum divided by a norm, S / N; with respect to a weight it is (x - out · dN/dw) / N."""

    def gradient(call: SegmentCall, by_weights: bool) -> Any:
        divisor = None if norm is None else call.divisors(norm)
        ct = call.ct if divisor is None else divide_ieee(call.ct, divisor)
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


def _scaled_gradient(gradient: Callable[[SegmentCall], Any]) -> Callable[[SegmentCall, bool], Any]:
    """The gradient of a reduction of rows times weights, from its gradient with respect to these products."""

    def both(call: SegmentCall, by_weights: bool) -> Any:
        scaled = gradient(call)
        if by_weights:
            return call.sum_trailing(call.rows() * scaled)
        return scaled if call.weights is None else scaled * call.factors()

    return both


def _selection_gradient(position: str) -> Callable[[SegmentCall, bool], Any]:
    """The gradient of a selection: for each column, the cotangent goes to the one row that was selected."""

    def gradient(call: SegmentCall) -> Any:
        at = call.reduce(position)
        here = np.arange(call.n).reshape(-1, *call.rest) == call.take(at)
        return np.where(here, call.take(call.ct), call.dtype.type(0))

    return _scaled_gradient(gradient)


def _prod_gradient(call: SegmentCall) -> Any:
    """The product of all other rows, without a division: the rows before times the rows after."""
    scaled = call.rows() if call.weights is None else call.rows() * call.factors()
    back = call.segments[::-1].copy()
    before = recurrence_p(scaled, np.zeros_like(scaled), call.segments, start=1, count=call.count)
    after = recurrence_p(np.flip(scaled, 0), np.zeros_like(scaled), back, start=1, count=call.count)
    return call.take(call.ct) * before * np.flip(after, 0)


def _cumsum_gradient(call: SegmentCall) -> Any:
    back = call.op(np.flip(call.ct, 0), call.segments[::-1].copy(), mode="cumsum", count=call.count)
    return np.flip(back, 0)


def _sort_gradient(call: SegmentCall) -> Any:
    order = np.asarray(call.reduce("argsort"))
    return np.take_along_axis(call.ct, np.argsort(order, axis=0), 0)


def _topk_gradient(call: SegmentCall) -> Any:
    at = np.asarray(call.reduce("argtopk", k=call.params["k"]))
    width = int(np.prod(at.shape[2:], dtype=np.int64))
    index = np.where(at >= 0, at, call.n).reshape(at.shape[0] * at.shape[1], width)
    place = np.full((call.n + 1, width), index.shape[0], np.int64)  # the extra row is for missing values
    place[index, np.arange(width)] = np.arange(index.shape[0])[:, None]
    flat = np.concatenate([np.reshape(call.ct, index.shape), np.zeros((1, width), call.dtype)])
    return np.reshape(np.take_along_axis(flat, place[: call.n], 0), (call.n, *at.shape[2:]))


def _shifted_exp(call: SegmentCall, level: Any) -> Any:
    """exp(x - level of its segment), where a level that is not finite counts as 0, as in the reduction."""
    level = np.where(np.isfinite(level), level, call.dtype.type(0))
    return np.exp(call.rows() - call.take(level))


def _logsumexp_gradient(call: SegmentCall, by_weights: bool) -> Any:
    found = call.take(call.ct) * _shifted_exp(call, call.out)
    if by_weights:
        return call.sum_trailing(found)
    return found if call.weights is None else found * call.factors()


def _logmeanexp_gradient(call: SegmentCall, by_weights: bool) -> Any:
    spread, exps = call.take(call.ct) / call.take(call.divisors(_MEAN)), _shifted_exp(call, call.out)
    if by_weights:
        return call.sum_trailing(spread * (exps - call.dtype.type(1)))
    return spread * exps if call.weights is None else spread * exps * call.factors()


def _softmax_gradient(call: SegmentCall, by_weights: bool) -> Any:
    left = call.ct - call.take(call.reduce("sum", call.out * call.ct))
    if by_weights:
        return call.sum_trailing(_shifted_exp(call, call.reduce("logsumexp")) * left)
    return call.out * left


def _log_softmax_gradient(call: SegmentCall, by_weights: bool) -> Any:
    totals = call.take(call.reduce("sum", call.ct))
    if by_weights:
        return call.sum_trailing(call.ct / call.factors() - _shifted_exp(call, call.reduce("logsumexp")) * totals)
    return call.ct - np.exp(call.out) * totals


def _var_gradient(call: SegmentCall, by_weights: bool, ct: object = None, var: object = None) -> Any:
    ct, var = (call.ct, call.out) if ct is None else (ct, var)
    away = call.rows() - call.take(cast(call.reduce("mean"), call.dtype))
    spread = call.take(ct / call.divisors(_MEAN))
    if by_weights:
        return call.sum_trailing(spread * (away * away - call.take(var)))
    found = call.dtype.type(2) * spread * away
    return found if call.weights is None else found * call.factors()


def _std_gradient(call: SegmentCall, by_weights: bool) -> Any:
    return _var_gradient(call, by_weights, share_p(call.ct, call.dtype.type(2) * call.out), call.out * call.out)


def _count_gradient(call: SegmentCall, by_weights: bool) -> Any:
    return call.take(call.ct) if by_weights else None


def _recurrence(factors: object, terms: object, segments: object, *, start: float, count: int) -> np.ndarray:
    factors = np.asarray(factors)
    rows, added = (as_matrix(x, None, factors.dtype)[0] for x in (factors, np.asarray(terms)))
    out = np.empty_like(rows)
    state = np.full((count, rows.shape[1]), start, rows.dtype)
    kernels.segment_recurrence(rows, added, np.ascontiguousarray(segments), state, out)
    return out.reshape(factors.shape)


def _recurrence_vjp(position: int, ct: Any, out: object, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The vjp: the cotangents of the states are the same recurrence, run from the last row to the first."""
    factors, _, segments = args
    if position == 2:
        return None
    back = recurrence_p(np.flip(factors, 0), np.flip(ct, 0), segments[::-1].copy(), start=0, count=params["count"])
    return np.flip(back, 0) if position else np.flip(back, 0) * out


# recurrence(factors, terms, segments, start=, count=): a linear recurrence in each segment. The state begins as
# `start`; out[i] is the state before row i, which changes it to terms[i] + factors[i] * state.
recurrence_p = Op("segment_recurrence", _recurrence, vjp=_recurrence_vjp, kind="segment")


# The modes.

_SUM = Norm(lambda total: np.ones_like(total), False, lambda w, divisor: 0 * w, SUM)
_MEAN = Norm(lambda total: total, False, lambda w, divisor: 1, MEAN)
_SQRTN = Norm(np.sqrt, True, lambda w, divisor: w / divisor, SQRTN)


def normed_sum(norm: Norm) -> Mode:
    """A mode, of bags too: the sum of the rows divided by a norm."""
    compute = lambda rows: divide_ieee(rows.total(), rows.divisors(norm))
    return Mode(compute, _sum_gradient(norm), "float", norm, uses_weights=True, takes_ids=True, bag=True)


# fmt: off
declare("sum", Mode(Rows.total, _sum_gradient(None), "wide", _SUM, uses_weights=True, takes_ids=True, bag=True))
declare("mean", normed_sum(_MEAN))
declare("sqrtn", normed_sum(_SQRTN))
declare("max", Mode(_extremum(False), _selection_gradient("argmax"), extremum="greatest", takes_ids=True, bag=True))
declare("min", Mode(_extremum(True), _selection_gradient("argmin"), extremum="least", takes_ids=True, bag=True))
declare("prod", Mode(_prod, _scaled_gradient(_prod_gradient), "wide", takes_ids=True))
declare("var", Mode(_var, _var_gradient, "float", uses_weights=True))
declare("std", Mode(lambda rows: np.sqrt(_var(rows)), _std_gradient, "float", uses_weights=True))
declare("logsumexp", Mode(_logsumexp, _logsumexp_gradient, "float", uses_weights=True))
declare("logmeanexp", Mode(_logmeanexp, _logmeanexp_gradient, "float", uses_weights=True))
declare("softmax", Mode(_softmax, _softmax_gradient, "float", uses_weights=True, rowwise=True))
declare("log_softmax", Mode(_log_softmax, _log_softmax_gradient, "float", uses_weights=True, rowwise=True))
declare("cumsum", Mode(_cumsum, _scaled_gradient(_cumsum_gradient), "wide", rowwise=True, checks=False))
declare("sort", Mode(_sort, _scaled_gradient(_sort_gradient), rowwise=True, checks=False))
declare("topk", Mode(_values_at(_argtopk), _scaled_gradient(_topk_gradient), checks=False))
declare("first", Mode(_values_at(_end_position(False)), _selection_gradient("argfirst"), checks=False))
declare("last", Mode(_values_at(_end_position(True)), _selection_gradient("arglast"), checks=False))
declare("any", Mode(lambda rows: rows.with_values((rows.x != 0).astype(np.int64)).total() > 0, result="own"))
declare("all", Mode(lambda rows: rows.with_values((rows.x == 0).astype(np.int64)).total() == 0, result="own"))
declare("count", Mode(_count, _count_gradient, "own", uses_weights=True))
declare("argmax", Mode(_extremum_position(False), takes_ids=True, positions=True, result="own"))
declare("argmin", Mode(_extremum_position(True), takes_ids=True, positions=True, result="own"))
declare("argsort", Mode(_argsort, positions=True, rowwise=True, result="own", checks=False))
declare("argtopk", Mode(_argtopk, positions=True, result="own", checks=False))
declare("argfirst", Mode(_end_position(False), positions=True, result="own", checks=False))
declare("arglast", Mode(_end_position(True), positions=True, result="own", checks=False))
# fmt: on
