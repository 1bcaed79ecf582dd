"""Order statistics and the functions that leave NaN out, composed of sorting, selection and reductions."""

from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.ops.indexing import getitem
from autobatch.ops.rules.dispatch import Declined, as_array, implements
from autobatch.ops.rules.indexing import on_axis
from autobatch.ops.rules.sizes import axes_of, normalise_axis

__all__ = ["median", "nanmax", "nanmean", "nanmin", "nanstd", "nanvar", "quantile"]


def _one_axis(a: Any, axis: Any, keepdims: bool) -> tuple[Any, int]:
    """The array with what is reduced along one axis."""
    if axis is None:
        if keepdims:
            raise Declined("keepdims over all axes")
        return np.reshape(a, (-1,)), 0
    if isinstance(axis, tuple):
        raise Declined("order statistics over several axes")
    return a, normalise_axis(axis, ndim_of(a))


@implements(np.median)
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """np.median; the gradient goes to the middle elements."""
    if out is not None or overwrite_input or dtype_of(a).kind not in "biuf":
        raise Declined("np.median with out= or overwrite_input=")
    a, axis = _one_axis(a, axis, keepdims)
    n = shape_of(a)[axis]
    if np.any(_plain(n) == 0):
        raise Declined("np.median of nothing")
    wide = {2: np.float32}.get(dtype_of(a).itemsize, dtype_of(a)) if dtype_of(a).kind == "f" else np.float64
    ordered = np.sort(a, axis=axis).astype(wide)  # as NumPy's mean of the two does: int8 or float16 would overflow
    low, high, last = (_at(ordered, axis, place) for place in ((n - 1) // 2, n // 2, n - 1))
    middle = np.where(_odd(n, low), low * 1.0, (low + high) / 2.0)
    if dtype_of(a).kind == "f":
        middle = np.where(np.isnan(last), last, middle).astype(dtype_of(a))
    return np.expand_dims(middle, axis) if keepdims else _scalar(middle)


def _scalar(x: Any) -> Any:
    """A 0-d array, which `np.where` gives, as the scalar that a reduction gives."""
    return x[()] if ndim_of(x) == 0 else x


def _plain(n: Any) -> Any:
    return np.asarray(n.data if is_boxed(n) else n)


def _odd(n: Any, like: Any) -> Any:
    return np.reshape(n % 2 == 1, (1,) * ndim_of(like)) if is_boxed(n) else n % 2 == 1


def _at(x: Any, axis: int, place: Any) -> Any:
    return getitem(x, on_axis(axis, place))


@implements(np.quantile)
def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    """np.quantile by linear interpolation, for a shared q or a list of some."""
    if out is not None or method != "linear" or weights is not None or is_boxed(q) or ndim_of(q) > 1:
        raise Declined("np.quantile with weights, a table of quantiles or a method other than linear")
    if ndim_of(q):
        if dtype_of(a) != np.float64:
            raise Declined("np.quantile of a list of quantiles, which NumPy computes in double precision")
        return np.stack([quantile(a, each, axis, keepdims=keepdims) for each in np.asarray(q).tolist()])
    if not 0 <= q <= 1:
        raise ValueError("Quantiles must be in the range [0, 1]")
    if dtype_of(a).kind != "f":
        raise Declined("np.quantile of integers")
    a, axis = _one_axis(a, axis, keepdims)
    n = shape_of(a)[axis]
    if np.any(_plain(n) == 0):
        raise Declined("np.quantile of nothing")
    ordered = np.sort(a, axis=axis)
    place = (n - 1) * float(q)
    below = np.floor(place).astype(np.int64)
    part = place - below
    low, high, last = (_at(ordered, axis, i) for i in (below, np.minimum(below + 1, n - 1), n - 1))
    part = np.reshape(part, (1,) * ndim_of(low)) if is_boxed(part) and ndim_of(low) else part
    gap = high - low
    out = np.where(part >= 0.5, high - gap * (1 - part), low + gap * part)
    out = np.where(np.isnan(last), last, out).astype(dtype_of(a))
    return np.expand_dims(out, axis) if keepdims else _scalar(out)


@implements(np.percentile)
def percentile(a: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    if is_boxed(q):
        raise Declined("np.percentile of percentiles that differ between examples")
    q = np.true_divide(q, 100)
    if not np.all((q >= 0) & (q <= 1)):
        raise ValueError("Percentiles must be in the range [0, 100]")
    return quantile(a, q, *args, **kwargs)


@implements(np.average)
def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = np._NoValue
) -> Any:
    if returned:
        raise Declined("np.average with returned=True")
    if weights is None:
        return np.mean(a, axis=axis, keepdims=keepdims)
    a, weights = as_array(a), as_array(weights)
    shape, given = tuple(shape_of(a)), tuple(shape_of(weights))
    if len(given) != len(shape) and (len(given) != 1 or not isinstance(axis, int)):
        raise Declined("np.average with weights of another rank along several axes")
    if len(given) != len(shape):
        weights = np.reshape(weights, (-1,) + (1,) * (len(shape) - normalise_axis(axis, len(shape)) - 1))
    elif any(not is_boxed(n) and not is_boxed(m) and n != m for n, m in zip(shape, given, strict=True)):
        raise Declined("np.average with weights of another shape")
    integer = dtype_of(a).kind in "biu"
    dtype = np.result_type(dtype_of(a), dtype_of(weights), *(["f8"] if integer else []))
    if len(given) != len(shape):
        weights = weights + np.zeros_like(a, dtype=dtype_of(weights))
    total = np.sum(weights.astype(dtype), axis=axis, keepdims=keepdims)
    if np.any(_values(total == 0)):
        raise Declined("np.average with weights that sum to zero")
    return np.sum(a.astype(dtype) * weights, axis=axis, keepdims=keepdims) / total


# without NaN


def _floating(a: Any) -> bool:
    return dtype_of(a).kind == "f"


def _extreme(name: str, a: Any, axis: Any, keepdims: Any, empty: float) -> Any:
    reduce = getattr(np, name)
    keepdims = bool(_given(keepdims))
    if not _floating(a):
        return reduce(a, axis=axis, keepdims=keepdims)
    gone = np.isnan(a)
    out = reduce(np.where(gone, np.asarray(empty, dtype_of(a)), a), axis=axis, keepdims=keepdims)
    nothing = np.all(gone, axis=axis, keepdims=keepdims)
    if np.any(_values(nothing)):
        raise Declined("a slice of nothing but NaN")
    return out


def _values(x: Any) -> Any:
    """Whether it is so anywhere; padding is none of it."""
    return any(np.any(example) for example in x.examples()) if hasattr(x, "examples") else np.asarray(x)


def _given(value: Any) -> Any:
    return None if value is np._NoValue else value


@implements(np.nanmax)
def nanmax(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = None, initial: Any = None, where: Any = None
) -> Any:
    if out is not None or _given(initial) is not None or _given(where) is not None:
        raise Declined("np.nanmax with out=, initial= or where=")
    return _extreme("max", a, axis, keepdims, -np.inf)


@implements(np.nanmin)
def nanmin(
    a: Any, axis: Any = None, out: Any = None, keepdims: Any = None, initial: Any = None, where: Any = None
) -> Any:
    if out is not None or _given(initial) is not None or _given(where) is not None:
        raise Declined("np.nanmin with out=, initial= or where=")
    return _extreme("min", a, axis, keepdims, np.inf)


def _present(a: Any, axis: Any, keepdims: bool) -> Any:
    count = np.sum(~np.isnan(a), axis=axis, keepdims=keepdims)
    if np.any(_values(count == 0)):
        raise Declined("a slice of nothing but NaN")
    return count


@implements(np.nanmean)
def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = None, *, where: Any = None
) -> Any:
    keep = bool(_given(keepdims))
    if out is not None or dtype is not None or _given(where) is not None:
        raise Declined("np.nanmean with out=, dtype= or where=")
    if not _floating(a):
        return np.mean(a, axis=axis, keepdims=keep)
    total = np.sum(np.where(np.isnan(a), np.zeros((), dtype_of(a)), a), axis=axis, keepdims=keep)
    return (total / _present(a, axis, keep)).astype(dtype_of(a))


@implements(np.nanvar)
def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = None,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    keep = bool(_given(keepdims))
    if any(_given(x) is not None for x in (out, dtype, where, mean, correction)):
        raise Declined("np.nanvar with out=, dtype=, where=, mean= or correction=")
    if not _floating(a):
        return np.var(a, axis=axis, ddof=ddof, keepdims=keep)
    gone, zero = np.isnan(a), np.zeros((), dtype_of(a))
    centre = nanmean(a, axis=axis, keepdims=True)
    apart = np.where(gone, zero, np.where(gone, zero, a) - centre)
    count = _present(a, axis, keep) - ddof
    if np.any(_values(count <= 0)):
        raise Declined("np.nanvar with as many degrees of freedom as elements")
    return (np.sum(apart * apart, axis=axis, keepdims=keep) / count).astype(dtype_of(a))


@implements(np.nanstd)
def nanstd(a: Any, *args: Any, **kwargs: Any) -> Any:
    return np.sqrt(nanvar(a, *args, **kwargs))


def _without(a: Any, value: float) -> Any:
    return np.where(np.isnan(a), np.asarray(value, dtype_of(a)), a) if _floating(a) else a


@implements(np.apply_over_axes)
def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    out = a
    for axis in axes_of(axes, ndim_of(a)):
        result = func(out, axis)
        out = result if ndim_of(result) == ndim_of(a) else np.expand_dims(result, axis)
    return out
