"""What a segment reduction computes, on plain arrays whose segments and ids have been checked."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.errors import DTypeError
from autobatch.kernels import segments as kernels
from autobatch.kernels.runs import run_bounds, sum_runs
from autobatch.tables.access import lanes_of_runs
from autobatch.tables.bag_values import EXTREMA, bag_scales, reduce_bags
from autobatch.tables.bags import MODES, bags_p
from autobatch.tables.ids import as_ids
from autobatch.tables.table import EmbeddingTable, lookup_p

__all__ = ["POSITIONS", "ROWWISE", "compute_dtype", "operands_of", "segment", "segments_in"]

ROWWISE = frozenset(("softmax", "log_softmax", "cumsum", "sort", "argsort"))
POSITIONS = frozenset(("argmax", "argmin", "argfirst", "arglast", "argsort", "argtopk"))
_FLOAT_RESULT = frozenset(("mean", "sqrtn", "logsumexp", "logmeanexp", "softmax", "log_softmax", "var", "std"))
_ADDING = frozenset(("sum", "prod", "cumsum"))
_OWN_WEIGHTS = _FLOAT_RESULT | {"sum", "count"}  # what weights mean there is not a factor of each row alone


def operands_of(rest: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """(ids, weights) of an op's last operands, None where there is none."""
    fused, weighted = params.get("fused", False), params.get("weighted", False)
    return rest[0] if fused else None, rest[int(fused)] if weighted else None


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which values are added up: float32 for float16, 64 bits for integers."""
    if dtype.kind == "f":
        return np.dtype(np.float32) if dtype == np.float16 else dtype
    return np.dtype(np.uint64) if dtype.kind == "u" else np.dtype(np.int64)


def _kernel_dtype(dtype: np.dtype) -> np.dtype:
    """As `compute_dtype`, with fewer kernels to compile: what int64 holds is added up as int64."""
    return np.dtype(np.int64) if dtype.kind == "u" and dtype.itemsize < 8 else compute_dtype(dtype)


def _result_dtype(mode: str, dtype: np.dtype) -> np.dtype:
    """As NumPy's reduction: the sum of small integers is int64, their mean float64."""
    if mode in _FLOAT_RESULT:
        return dtype if dtype.kind == "f" else np.dtype(np.float64)
    if mode in _ADDING and dtype.kind != "f":
        return compute_dtype(dtype)
    return dtype


def segment(
    data: Any,
    segments: Any,
    *rest: Any,
    mode: str,
    count: int,
    fused: bool = False,
    weighted: bool = False,
    empty: Any = None,
    k: int = 0,
    runs: bool = False,
) -> np.ndarray:
    """Reduce the rows of each of `count` segments; the implementation of the ops.

    Args:
        segments: the segment of each row; with `runs` the bounds of segments that follow each other, (count + 1,).
    """
    ids, weights = operands_of(rest, {"fused": fused, "weighted": weighted})
    segments = np.ascontiguousarray(as_ids(segments))
    if dtype_of(data).kind not in "fiub":
        raise DTypeError(f"a segment reduction of {dtype_of(data)}; expected floats, integers or booleans")
    bounds = None
    if mode in MODES and not (weighted and mode in EXTREMA):
        bounds = segments if runs else _bounds_of(segments, count)
    if bounds is not None and ids is not None and len(shape_of(data)) == 2 and dtype_of(data).kind == "f":
        by = () if weights is None else (_weights(weights, dtype_of(data)),)
        return _filled(bags_p.impl(data, as_ids(ids), bounds, *by, mode=mode), np.diff(bounds) == 0, mode, empty)
    rows = data.weights if isinstance(data, EmbeddingTable) else data
    if ids is not None and (type(rows) is not np.ndarray or not _reads_in_place(rows, mode, weighted)):
        rows, ids = lookup_p(data, ids), None
    rows = np.asarray(rows)
    if weighted:
        weights = _weights(weights, rows.dtype)
        if mode not in _OWN_WEIGHTS:
            rows, weights = rows * weights.reshape(-1, *(1,) * (rows.ndim - 1)), None
        elif rows.dtype.kind != "f":
            rows = rows.astype(np.result_type(rows.dtype, weights.dtype))
    dtype = _result_dtype(mode, rows.dtype)
    x = _matrix(rows, _kernel_dtype(dtype if dtype.kind == "f" else rows.dtype))
    if weights is not None:
        weights = np.ascontiguousarray(weights, x.dtype)
    ids = None if ids is None else np.ascontiguousarray(as_ids(ids))
    if bounds is not None and ids is None:
        out = _of_runs(x, weights, bounds, mode)
    else:
        segments = segments_in(segments) if runs else segments
        out = _MODES[mode](x, ids, weights, segments, count, k)
    if mode not in POSITIONS and mode not in ("any", "all", "count"):
        out = out.astype(dtype, copy=False)
    shape = (*out.shape[: 2 if mode in ("topk", "argtopk") else 1], *rows.shape[1:])
    if mode == "count":
        shape = (count,)
    if empty is None or mode in ROWWISE:
        return out.reshape(shape)
    bare = np.bincount(segments, minlength=count) == 0 if bounds is None else np.diff(bounds) == 0
    return _filled(out.reshape(shape), bare, mode, empty)


def segments_in(bounds: np.ndarray) -> np.ndarray:
    """The segment of each row, where segments follow each other."""
    return np.repeat(np.arange(bounds.shape[0] - 1), np.diff(bounds))


def _bounds_of(segments: np.ndarray, count: int) -> np.ndarray | None:
    """The bounds of the segments, if they follow each other."""
    bounds = np.zeros(count + 1, np.int64)
    return bounds if run_bounds(segments, bounds) else None


def _of_runs(x: np.ndarray, weights: Any, bounds: np.ndarray, mode: str) -> np.ndarray:
    """A reduction of rows that stand beside each other; numbers are added up without a vector for each."""
    if x.shape[1] != 1 or mode in EXTREMA or (weights is not None and mode != "sum"):
        return reduce_bags(x, None, bounds, weights, mode)
    out = np.empty((len(bounds) - 1, 1), x.dtype)
    sum_runs(x, weights, bounds, out, lanes_of_runs(x.dtype.str[1:], 1))
    if mode != "sum":
        out[:, 0] *= bag_scales(np.diff(bounds), mode).astype(x.dtype)
    return out


def _filled(out: np.ndarray, bare: np.ndarray, mode: str, empty: Any) -> np.ndarray:
    """With the value asked for where a segment has no rows."""
    if empty is None:
        return out
    if out.dtype.kind in "iu" and not float(empty).is_integer():
        raise DTypeError(f"empty={empty} for a result of {out.dtype}; give an integer, or make the data a float array")
    return np.where(bare.reshape(-1, *(1,) * (out.ndim - 1)), np.asarray(empty, out.dtype), out)


def _reads_in_place(rows: np.ndarray, mode: str, weighted: bool) -> bool:
    """Whether a kernel reads the table's rows where they are; else they are gathered first."""
    direct = mode in ("sum", "mean", "sqrtn", "max", "min", "prod", "cumsum", "var", "std", "argmax", "argmin")
    own = not weighted or mode in ("sum", "mean", "sqrtn", "var", "std")
    return direct and own and rows.flags.c_contiguous and _kernel_dtype(_result_dtype(mode, rows.dtype)) == rows.dtype


def _weights(weights: Any, dtype: np.dtype) -> np.ndarray:
    """Weights in the dtype of float rows; beside integers they stay as they are, and the rows are promoted."""
    weights = np.asarray(weights)
    if weights.dtype.kind not in "fiub":
        raise DTypeError(f"weights have dtype {weights.dtype}; expected floats or integers")
    if dtype.kind != "f":
        return weights
    return weights.astype(compute_dtype(dtype) if dtype == np.float16 else dtype, copy=False)


def _matrix(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(rows.shape[0], math.prod(rows.shape[1:])), dtype)


def _sum(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    out = np.zeros((count, x.shape[1]), x.dtype)
    kernels.segment_sum(x, ids, weights, segments, out)
    return out


def _numbers(weights: Any, segments: Any, count: int, dtype: Any) -> np.ndarray:
    """(count, 1): the sum of the weights of each segment, or how many rows it has; 1 for an empty one."""
    counts = np.bincount(segments, minlength=count)
    if weights is None:
        return np.maximum(counts, 1).astype(dtype)[:, None]
    sums = _sum(weights.reshape(-1, 1), None, None, segments, count)
    return np.where(counts[:, None] > 0, sums, dtype.type(1))


def _divided(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):  # where the weights sum to 0, IEEE decides
        return values / by


def _mean(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    return _divided(_sum(x, ids, weights, segments, count), _numbers(weights, segments, count, x.dtype))


def _sqrtn(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    squares = None if weights is None else weights * weights
    return _divided(_sum(x, ids, weights, segments, count), np.sqrt(_numbers(squares, segments, count, x.dtype)))


def _var(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    out = np.zeros((count, x.shape[1]), x.dtype)
    kernels.segment_squares(x, ids, weights, segments, _mean(x, ids, weights, segments, count), out)
    return _divided(out, _numbers(weights, segments, count, x.dtype))


def _std(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    return np.sqrt(_var(x, ids, weights, segments, count))


def _extremum(kernel: Callable[..., None]) -> Callable[..., np.ndarray]:
    def run(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
        out = np.zeros((count, x.shape[1]), x.dtype)
        kernel(x, ids, segments, np.zeros(count, np.bool_), out)
        return out

    return run


def _position(kernel: Callable[..., None]) -> Callable[..., np.ndarray]:
    def run(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
        out = np.full((count, x.shape[1]), -1, np.int64)
        kernel(x, ids, segments, out)
        return out

    return run


def _prod(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    out = np.ones((count, x.shape[1]), x.dtype)
    kernels.segment_prod(x, ids, segments, out)
    return out


def _peak_and_exps(x: Any, segments: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The greatest of each segment where it is finite, else 0, and exp(x - that)."""
    peak = _MODES["max"](x, None, None, segments, count)
    peak = np.where(np.isfinite(peak), peak, x.dtype.type(0))
    exps = np.take(peak, segments, axis=0)
    np.subtract(x, exps, out=exps)
    return peak, np.exp(exps, out=exps)


def _logsumexp(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    peak, exps = _peak_and_exps(x, segments, count)
    sums = _sum(exps, None, weights, segments, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = peak + np.log(sums)
    out[np.bincount(segments, minlength=count) == 0] = 0
    return out


def _logmeanexp(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _logsumexp(x, ids, weights, segments, count) - np.log(_numbers(weights, segments, count, x.dtype))


def _softmax(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    exps = _peak_and_exps(x, segments, count)[1]
    if weights is not None:
        exps *= weights[:, None]
    return _divided(exps, np.take(_sum(exps, None, None, segments, count), segments, axis=0))


def _log_softmax(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = x if weights is None else x + np.log(weights)[:, None]
        return scaled - _logsumexp(x, None, weights, segments, count)[segments]


def _cumsum(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    out = np.empty((segments.shape[0], x.shape[1]), x.dtype)
    kernels.segment_cumsum(x, ids, segments, np.zeros((count, x.shape[1]), x.dtype), out)
    return out


def _order(x: Any, segments: Any, descending: bool = False) -> np.ndarray:
    """(n, width): rows by segment, then by value (NaN greatest), equal ones in the order in which they stand."""
    n = segments.shape[0]
    key = np.broadcast_to(segments[:, None], x.shape)
    if not descending:
        return np.lexsort((x, key), axis=0)
    return n - 1 - np.lexsort((x[::-1], -key[::-1]), axis=0)[::-1]


def _argsort(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    out = np.empty(x.shape, np.int64)
    out[np.argsort(segments, kind="stable")] = _order(x, segments)
    return out


def _sort(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    return np.take_along_axis(x, _argsort(x, ids, weights, segments, count), 0)


def _argtopk(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    lengths = np.bincount(segments, minlength=count)
    starts = np.cumsum(lengths) - lengths
    out = np.full((count, k, x.shape[1]), -1, np.int64)
    segment, rank = np.nonzero(np.arange(k) < lengths[:, None])
    out[segment, rank] = _order(x, segments, descending=True)[starts[segment] + rank]
    return out


def _topk(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    at = _argtopk(x, ids, weights, segments, count, k)
    if not len(x):
        return np.zeros(at.shape, x.dtype)
    found = np.take_along_axis(x, np.maximum(at, 0).reshape(count * k, x.shape[1]), 0).reshape(at.shape)
    return np.where(at < 0, x.dtype.type(0), found)


def _one_row(last: bool) -> Callable[..., np.ndarray]:
    """The position of the first or of the last row of each segment, -1 where there is none."""

    def run(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
        at = np.arange(segments.shape[0])
        out = np.full(count, -1, np.int64)
        step = slice(None) if last else slice(None, None, -1)
        out[segments[step]] = at[step]  # the last assignment stays
        return np.repeat(out[:, None], x.shape[1], axis=1)

    return run


def _row_at(last: bool) -> Callable[..., np.ndarray]:
    find = _one_row(last)

    def run(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
        at = find(x[:, :1], None, None, segments, count)[:, 0] if x.shape[1] else np.zeros(count, np.int64)
        out = np.zeros((count, x.shape[1]), x.dtype)
        named = at >= 0
        out[named] = x[at[named]] if x.shape[1] else 0
        return out

    return run


def _any(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    return _sum((x != 0).astype(np.int64), None, None, segments, count) > 0


def _all(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    return _sum((x == 0).astype(np.int64), None, None, segments, count) == 0


def _count(x: Any, ids: Any, weights: Any, segments: Any, count: int, k: int = 0) -> np.ndarray:
    if weights is None:
        return np.bincount(segments, minlength=count)
    return _sum(weights.reshape(-1, 1), None, None, segments, count)


_MODES: dict[str, Callable[..., np.ndarray]] = {
    "argmax": _position(kernels.segment_argmax),
    "argmin": _position(kernels.segment_argmin),
    "sum": _sum,
    "mean": _mean,
    "sqrtn": _sqrtn,
    "var": _var,
    "std": _std,
    "max": _extremum(kernels.segment_max),
    "min": _extremum(kernels.segment_min),
    "prod": _prod,
    "logsumexp": _logsumexp,
    "logmeanexp": _logmeanexp,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "cumsum": _cumsum,
    "sort": _sort,
    "argsort": _argsort,
    "topk": _topk,
    "argtopk": _argtopk,
    "first": _row_at(False),
    "last": _row_at(True),
    "argfirst": _one_row(False),
    "arglast": _one_row(True),
    "any": _any,
    "all": _all,
    "count": _count,
}
