"""mean, var, std and what is made of reductions: nansum, nanprod, nanmean, count_nonzero, ptp."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.op import Op, is_boxed
from autobatch.ops.composite_sets import searchsorted
from autobatch.ops.creation import arange, zeros
from autobatch.ops.reductions import counts, expand, keep, no_options, normal_axes, reduced_sizes, shifted, sum_p
from autobatch.ops.rules.dispatch import Declined, implements
from autobatch.ops.rules.grouping import lanewise
from autobatch.ops.rules.padding import fill_p, unbroadcast
from autobatch.ops.rules.sizes import has_lengths

__all__ = ["bincount", "corrcoef", "cov", "digitize", "histogram", "mean_p", "var_p"]

_NO = np._NoValue


def _working(dtype: np.dtype, given: Any) -> np.dtype:
    """The dtype that NumPy accumulates a mean in."""
    if given is not None:
        return np.dtype(given)
    if dtype.kind in "iub":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _result(dtype: np.dtype, given: Any) -> np.dtype:
    if given is not None:
        return np.dtype(given)
    return np.dtype(np.float64) if dtype.kind in "iub" else dtype


def _divisor(x: Batched, axes: Sequence[int], keepdims: bool, less: float = 0) -> Any:
    """The number of reduced elements of each lane less `less`, at least 0, shaped to divide the reduced data."""
    n = np.maximum(np.broadcast_to(counts(x.sizes, axes), (x.batch_size,)) - less, 0)
    return n.reshape((x.batch_size,) + (1,) * (x.rank if keepdims else x.rank - len(axes)))


def _mean(x: Any, *, axis: tuple[int, ...], keepdims: bool = False, dtype: Any = None) -> Any:
    return np.mean(x, axis=axis, keepdims=keepdims, dtype=dtype)


def _total(x: Batched, axes: tuple[int, ...], keepdims: bool, working: np.dtype) -> Any:
    options = {} if working == dtype_of(x.data) else {"dtype": working}
    return sum_p.rule(sum_p, [x], {"axis": axes, "keepdims": keepdims, **options}).data  # type: ignore[misc]


def _mean_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, axes, keepdims = operands[0], params["axis"], params.get("keepdims", False)
    sizes = reduced_sizes(x.sizes, axes, keepdims)
    if not any(isinstance(x.sizes[axis], Lengths) for axis in axes) and not has_lengths(sizes):
        return Batched(op(x.data, **{**params, "axis": shifted(axes)}), sizes)
    dtype, given = dtype_of(x.data), params.get("dtype")
    working, result = _working(dtype, given), _result(dtype, given)
    if np.any(np.asarray(counts(x.sizes, axes)) == 0) and x.batch_size:
        warnings.warn("Mean of empty slice.", RuntimeWarning, stacklevel=2)
    total = _total(x, axes, keepdims, working)
    mean = total / _divisor(x, axes, keepdims).astype(np.zeros(0, working).real.dtype)
    return Batched(mean if dtype_of(mean) == result else mean.astype(result), sizes)


def _count_of(x: Any, axes: tuple[int, ...]) -> int:
    return int(np.prod([shape_of(x)[axis] for axis in axes], dtype=np.int64))


def _mean_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, axes = args[0], params["axis"]
    ct = expand(ct, axes, params.get("keepdims", False)) / max(_count_of(x, axes), 1)
    return unbroadcast(np.broadcast_to(ct, shape_of(x)), x)


# Params: axis (sorted, non-negative), keepdims, dtype.
mean_p = Op("mean", _mean, rule=_mean_rule, vjp=_mean_vjp, kind="reduction")


def _var(x: Any, *, axis: tuple[int, ...], keepdims: bool = False, dtype: Any = None, ddof: float = 0) -> Any:
    return np.var(x, axis=axis, keepdims=keepdims, dtype=dtype, ddof=ddof)


def _var_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, axes, keepdims = operands[0], params["axis"], params.get("keepdims", False)
    sizes = reduced_sizes(x.sizes, axes, keepdims)
    if not has_lengths(x.sizes):
        return Batched(op(x.data, **{**params, "axis": shifted(axes)}), sizes)
    ddof, given, dtype = params.get("ddof", 0), params.get("dtype"), dtype_of(x.data)
    working = _working(dtype, given)
    result = np.zeros(0, _result(dtype, given)).real.dtype
    real = np.zeros(0, working).real.dtype
    if np.any(np.asarray(counts(x.sizes, axes)) - ddof <= 0) and x.batch_size:
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=2)
    mask: Any = padding_mask(x.sizes, x.data.shape[1:])
    data = fill_p(x.data, mask, value=0)
    data = data if dtype == working else data.astype(working)
    clean = Batched(data, x.sizes)
    n = np.maximum(_divisor(x, axes, True), 1).astype(real)
    centered = fill_p(data - _total(clean, axes, True, working) / n, mask, value=0)
    squares = (centered * np.conjugate(centered)).real if working.kind == "c" else centered * centered
    var = _total(Batched(squares, x.sizes), axes, keepdims, real) / _divisor(x, axes, keepdims, ddof).astype(real)
    return Batched(var if dtype_of(var) == result else var.astype(result), sizes)


def _var_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, axes = args[0], params["axis"]
    n = _count_of(x, axes)
    if n == 0:
        return np.zeros(shape_of(x), dtype_of(x))
    wide = x.astype(np.float32) if dtype_of(x) == np.float16 else x
    centered = wide - np.mean(wide, axis=axes, keepdims=True)
    if dtype_of(x).kind == "c":
        centered = np.conjugate(centered)
    ct = expand(ct, axes, params.get("keepdims", False))
    return unbroadcast(2 * ct * centered / np.maximum(n - params.get("ddof", 0), 0), x)


# Params: axis (sorted, non-negative), keepdims, dtype, ddof.
var_p = Op("var", _var, rule=_var_rule, vjp=_var_vjp, kind="reduction")


@implements(np.mean)
def _np_mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = _NO, *, where: Any = _NO
) -> Any:
    no_options(out=out, where=where)
    given = {} if dtype is None else {"dtype": np.dtype(dtype)}
    return mean_p(a, axis=normal_axes(axis, ndim_of(a)), keepdims=keep(keepdims), **given)


@implements(np.var)
def _np_var(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = _NO, *,
    where: Any = _NO, mean: Any = _NO, correction: Any = _NO,
) -> Any:  # fmt: skip
    no_options(out=out, where=where, mean=mean)
    if correction is not _NO:
        if ddof != 0:
            raise ValueError("ddof and correction can't be provided simultaneously.")
        ddof = correction
    given = {} if dtype is None else {"dtype": np.dtype(dtype)}
    return var_p(a, axis=normal_axes(axis, ndim_of(a)), keepdims=keep(keepdims), ddof=ddof, **given)


@implements(np.std)
def _np_std(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = _NO, *,
    where: Any = _NO, mean: Any = _NO, correction: Any = _NO,
) -> Any:  # fmt: skip
    no_options(out=out, where=where, mean=mean)
    return np.sqrt(np.var(a, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims, correction=correction))


def _without_nan(a: Any, value: float) -> Any:
    return np.where(np.isnan(a), np.asarray(value, dtype_of(a)), a) if dtype_of(a).kind in "fc" else a


@implements(np.nansum)
def _np_nansum(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = _NO, initial: Any = _NO,
    where: Any = _NO,
) -> Any:  # fmt: skip
    return np.sum(_without_nan(a, 0), axis=axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)


@implements(np.nanprod)
def _np_nanprod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = _NO, initial: Any = _NO,
    where: Any = _NO,
) -> Any:  # fmt: skip
    return np.prod(_without_nan(a, 1), axis=axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)


@implements(np.count_nonzero)
def _np_count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    if axis is None and not keepdims:
        raise Declined("np.count_nonzero without an axis, which is a Python integer")
    return np.sum(a != 0, axis=axis, dtype=np.intp, keepdims=keepdims)


@implements(np.ptp)
def _np_ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = _NO) -> Any:
    no_options(out=out)
    return np.subtract(np.max(a, axis=axis, keepdims=keepdims), np.min(a, axis=axis, keepdims=keepdims))


@implements(np.cov)
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    if y is not None or fweights is not None or aweights is not None or dtype is not None or ndim_of(m) != 2:
        raise Declined("np.cov with weights, a second set or one variable")
    x = m if rowvar else m.T
    ddof = ddof if ddof is not None else int(not bias)
    centred = x - np.mean(x, axis=1, keepdims=True)
    return np.matmul(centred, np.conjugate(centred.T)) * (1 / (shape_of(x)[1] - ddof))


@implements(np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    c = cov(x, y, rowvar, dtype=dtype)
    spread = np.sqrt(np.diagonal(c))
    return np.clip(c / spread[:, None] / spread[None, :], -1, 1)


@implements(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    """np.bincount; as long as the example's largest number asks. Differentiable in the weights."""
    if ndim_of(x) != 1:
        raise ValueError("object too deep for desired array")
    if weights is None:
        return _count_p(x, least=minlength)
    total = _bins_p(x, least=minlength)
    weights = weights.astype(np.float64) if dtype_of(weights) != np.float64 else weights
    hits = np.reshape(x, (1, -1)) == np.reshape(arange(total), (-1, 1))
    return np.sum(np.where(hits, weights, zeros(())), axis=1)


_bins_p = lanewise("bincount_length", lambda x, *, least: np.int64(max(least, len(np.bincount(x)))), dynamic=False)


_count_p = lanewise("bincount", lambda x, *, least: np.bincount(x, minlength=least))


@implements(np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    if is_boxed(bins):
        raise Declined("np.digitize with bins that differ between examples")
    bins = np.asarray(bins)
    steps = np.diff(bins)
    if (steps >= 0).all():
        return searchsorted(bins, x, side="left" if right else "right")
    if (steps <= 0).all():
        return len(bins) - searchsorted(bins[::-1], x, side="left" if right else "right")
    raise ValueError("bins must be monotonically increasing or decreasing")


@implements(np.histogram)
def histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    if density or weights is not None or is_boxed(bins) or isinstance(bins, str):
        raise Declined("np.histogram with density, weights or bins that are estimated")
    if ndim_of(bins) == 0:
        if range is None:
            raise Declined("np.histogram whose range follows from the data")
        bins = np.histogram_bin_edges(np.empty(0), bins, range)
    edges = tuple(np.asarray(bins).tolist())
    return _histogram_p(a, edges=edges), np.asarray(bins)


_histogram_p = lanewise("histogram", lambda a, *, edges: np.histogram(a, np.array(edges))[0], dynamic=False)
