"""Means, variances, order statistics, counts and histograms, and the functions that ignore NaN (nanmean etc.)."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.diagnostics import at_users_line, of_scalars, warn_as_numpy
from autobatch.core.op import Op, is_boxed
from autobatch.errors import Unsupported
from autobatch.ops.numpy.creation import arange, zeros
from autobatch.ops.numpy.indexing import getitem
from autobatch.ops.numpy.reductions import counts, expand, reduced_sizes, reduces_nothing, shifted, stretched, sum_p
from autobatch.ops.rules import dispatch
from autobatch.ops.rules.dispatch import any_shorter, any_true, cast, check_cast, implements
from autobatch.ops.rules.index_rule import on_axis
from autobatch.ops.rules.op_kinds import looped_op, vjp_columns
from autobatch.ops.rules.padding import fill_p
from autobatch.ops.rules.sizes import array_and_axis, differ_somewhere, has_lengths, normal_axes


def _working(dtype: np.dtype, given: Any) -> np.dtype:
    """The dtype in which NumPy accumulates a mean: float64 for integers, float32 for float16."""
    own = np.float64 if dtype.kind in "iub" else np.float32 if dtype == np.float16 else dtype
    return np.dtype(own if given is None else given)


def _result(dtype: np.dtype, given: Any) -> np.dtype:
    return np.dtype(given if given is not None else np.float64 if dtype.kind in "iub" else dtype)


_exact = lambda dtype: np.dtype(np.float64) if dtype == np.float16 else dtype  # of a count that divides such numbers


def _divisor(x: Batched, axes: Sequence[int], keepdims: bool, less: float = 0) -> Any:
    """The number of reduced elements of each lane less `less`, at least 0, shaped to divide the reduced data."""
    n = np.maximum(np.broadcast_to(counts(x.sizes, axes), (x.batch_size,)) - less, 0)
    return n.reshape((x.batch_size,) + (1,) * (x.rank if keepdims else x.rank - len(axes)))


def _total(x: Batched, axes: tuple[int, ...], keepdims: bool, working: np.dtype) -> Any:
    options = {} if working == dtype_of(x.data) else {"dtype": working}
    return sum_p.rule(sum_p, [x], {"axis": axes, "keepdims": keepdims, **options}).data  # type: ignore[misc]


def _mean_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, axes, keepdims = operands[0], params["axis"], params.get("keepdims", False)
    sizes = reduced_sizes(x.sizes, axes, keepdims)
    of_nothing = x.batch_size and reduces_nothing(x, axes)
    if not (of_nothing or has_lengths(sizes) or any(isinstance(x.sizes[axis], Lengths) for axis in axes)):
        return Batched(op(x.data, **{**params, "axis": shifted(axes)}), sizes)
    dtype, given = dtype_of(x.data), params.get("dtype")
    working, result = _working(dtype, given), _result(dtype, given)
    if of_nothing:
        warn_as_numpy("Mean of empty slice" + "." * (np.lib.NumpyVersion(np.__version__) < "2.4.0"))
    total = _total(x, axes, keepdims, working)
    mean = _divided(total, _divisor(x, axes, keepdims).astype(np.zeros(0, working).real.dtype), sizes)
    return Batched(cast(mean, result), sizes)


def _divided(total: Any, by: Any, sizes: Sequence[Any]) -> Any:
    """`total / by`, warning as NumPy does of an example's: of a number of 8 bytes or more it divides by an int64."""
    return (at_users_line if sizes or dtype_of(total).char in "fF" else of_scalars)(operator.truediv, total, by)


def _count_of(x: Any, axes: tuple[int, ...]) -> int:
    return math.prod(map(shape_of(x).__getitem__, axes))


# Params: axis (sorted, non-negative), keepdims, dtype.
mean_p = Op(
    "mean", np.mean, rule=_mean_rule, kind="reduction",
    vjp=vjp_columns([lambda ct, out, x, axis, keepdims=False: (  # of a mean of all, a number is stretched
        stretched(expand(ct, axis, keepdims or len(axis) == ndim_of(x)) / max(_count_of(x, axis), 1), shape_of(x))
    )]),
)  # fmt: skip


def _var_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, axes, keepdims = operands[0], params["axis"], params.get("keepdims", False)
    sizes = reduced_sizes(x.sizes, axes, keepdims)
    ddof, given, dtype = params.get("ddof", 0), params.get("dtype"), dtype_of(x.data)
    too_few = x.batch_size and np.any(np.asarray(counts(x.sizes, axes)) - ddof <= 0)
    if not has_lengths(x.sizes) and not too_few:
        return Batched(op(x.data, **{**params, "axis": shifted(axes)}), sizes)
    working = _working(dtype, given)
    result = np.zeros(0, _result(dtype, given)).real.dtype
    real = np.zeros(0, working).real.dtype
    if too_few:
        warn_as_numpy("Degrees of freedom <= 0 for slice")
    if x.rank and reduces_nothing(x, axes):
        np.zeros(1, real) / 0  # warns as the mean of nothing does
    mask: Any = padding_mask(x.sizes, x.data.shape[1:])
    data = x.data if mask is None else fill_p(x.data, mask, value=0)
    data = data if dtype == working else data.astype(working)
    clean = Batched(data, x.sizes)
    n = np.maximum(_divisor(x, axes, True), 1).astype(_exact(real))
    centered = data - cast(_total(clean, axes, True, working) / n, working)
    centered = centered if mask is None else fill_p(centered, mask, value=0)
    squares = (centered * np.conjugate(centered)).real if working.kind == "c" else np.square(centered)
    total = _total(Batched(squares, x.sizes), axes, keepdims, real)
    var = _divided(total, _divisor(x, axes, keepdims, ddof).astype(_exact(real)), sizes)
    return Batched(cast(var, result), sizes)


def _var_vjp(ct: Any, out: Any, x: Any, axis: tuple[int, ...], keepdims: bool = False, ddof: Any = 0) -> Any:
    n = _count_of(x, axis)
    if n == 0:
        return np.zeros(shape_of(x), dtype_of(x))
    wide = cast(x, _working(dtype_of(x), None))
    centered = wide - np.mean(wide, axis=axis, keepdims=True)
    centered = np.conjugate(centered) if dtype_of(x).kind == "c" else centered
    return 2 * expand(ct, axis, keepdims) * centered / np.maximum(n - ddof, 0)


# Params: axis (sorted, non-negative), keepdims, dtype, ddof.
var_p = Op("var", np.var, rule=_var_rule, vjp=vjp_columns([_var_vjp]), kind="reduction")


def _typed(dtype: Any) -> dict[str, Any]:
    return {} if dtype is None else {"dtype": np.dtype(dtype)}


def _chosen_total(a: Any, axis: Any, dtype: Any, keepdims: Any, where: Any) -> tuple[Any, Any]:
    """The sum of the elements that `where` chooses, and how many there are, as real numbers of the sum's precision."""
    total = np.sum(a, axis=axis, dtype=_working(dtype_of(a), dtype), keepdims=keepdims, where=where)
    counted = np.sum(np.where(where, np.ones_like(a, dtype=np.int64), 0), axis=axis, keepdims=keepdims)
    return total, counted.astype(_exact(total.real.dtype))


@implements(np.mean)
def _np_mean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
    if where is not True:
        total, counted = _chosen_total(a, axis, dtype, keepdims, where)
        return cast(total / counted, _result(dtype_of(a), dtype))
    return mean_p(a, axis=normal_axes(axis, ndim_of(a)), keepdims=bool(keepdims), **_typed(dtype))


def _holds_variance(a: Any, dtype: Any) -> None:
    if dtype is not None and np.dtype(dtype).kind not in ("c" if dtype_of(a).kind == "c" else "fc"):
        raise Unsupported("a variance in a dtype that cuts numbers off")


@implements(np.var)
def _np_var(
    a: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, keepdims: bool = False, *,
    correction: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    _holds_variance(a, dtype)
    if correction is not None:
        if ddof != 0:
            raise ValueError("ddof and correction can't be provided simultaneously.")
        ddof = correction
    dtype = dtype_of(a) if dtype is None and dtype_of(a) == np.float16 else dtype  # NumPy adds in it, but for a mean
    if where is not True:
        total, counted = _chosen_total(a, axis, dtype, True, where)
        own = total.dtype
        centered = np.where(where, cast(a, own) - cast(total / np.maximum(counted, 1), own), np.zeros((), own))
        squares = np.sum((centered * np.conjugate(centered)).real, axis=axis, keepdims=True)
        var = squares / np.maximum(counted - ddof, 0)
        var = cast(var, np.zeros(0, _result(dtype_of(a), dtype)).real.dtype)
        return var if keepdims else np.squeeze(var, normal_axes(axis, ndim_of(a)))
    return var_p(a, axis=normal_axes(axis, ndim_of(a)), keepdims=bool(keepdims), ddof=ddof, **_typed(dtype))


@implements(np.std)
def _np_std(
    a: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, keepdims: bool = False, *,
    correction: Any = np._NoValue, where: Any = True,
) -> Any:  # fmt: skip
    _holds_variance(a, dtype)
    return np.sqrt(np.var(a, axis, dtype, ddof=ddof, keepdims=keepdims, correction=correction, where=where))


@dispatch.source()
def _mean_less(x, axis=None, keepdims=False, ddof=0):
    total = np.sum(x if x.dtype.kind == "f" else x * 1.0, axis, keepdims=keepdims)
    count = x.size // max(np.size(total), 1) - ddof
    if count <= 0:
        dispatch.leave_to_python()
    return total / count


dispatch.source(np.mean, sums=True)(lambda a, axis=None, keepdims=False: _mean_less(np.asarray(a), axis, keepdims))


@dispatch.source(np.var, sums=True)
def _var_of_one(a, axis=None, ddof=0, keepdims=False):
    x = np.asarray(a)
    off = x - _mean_less(x, axis, keepdims=True)
    return _mean_less(off * off, axis, keepdims, ddof)


dispatch.source(np.std, sums=True)(
    lambda a, axis=None, ddof=0, keepdims=False: np.sqrt(_var_of_one(a, axis, ddof, keepdims))
)


_COUNTED = type(np.count_nonzero([0]))  # Python's int before NumPy 2.4


@implements(np.count_nonzero)
def _np_count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    count = np.sum(a != 0, axis=axis, dtype=np.intp, keepdims=keepdims)
    return count.item() if axis is None and not keepdims and _COUNTED is int else count


dispatch.source(np.count_nonzero, of=(1,))(lambda a: _COUNTED((np.asarray(a) != 0).sum()))


@implements(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    """np.bincount; the result's length is the example's largest number plus one. Differentiable in the weights."""
    if ndim_of(x) != 1:
        raise ValueError("object too deep for desired array")
    if weights is None:
        return _count_p(x, least=minlength)
    if any_shorter(x, 1):  # for an empty x, NumPy ignores weights
        if is_boxed(shape_of(x)[0]):
            raise Unsupported("np.bincount of no numbers")
        return _count_p(x, least=minlength)
    if ndim_of(weights) != 1 or differ_somewhere(shape_of(x)[0], shape_of(weights)[0]):
        raise Unsupported("np.bincount with weights of another shape")
    check_cast(dtype_of(weights), np.float64, "safe")
    total = _bins_p(x, least=minlength)
    weights = cast(weights, np.dtype(np.float64))
    hits = np.reshape(x, (1, -1)) == np.reshape(arange(total), (-1, 1))
    return np.sum(np.where(hits, weights, zeros(())), axis=1)


_bins_p = looped_op("bincount_length", lambda x, *, least: np.int64(max(least, len(np.bincount(x)))), dynamic=False)


_count_p = looped_op("bincount", lambda x, *, least: np.bincount(x, minlength=least))


@implements(np.histogram)
def histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None) -> Any:
    if is_boxed(bins) or isinstance(bins, str):
        raise Unsupported("np.histogram with bins that are estimated, or that differ by example")
    if ndim_of(bins):
        edges = np.asarray(bins)
        return _histogram_p(a, bins=tuple(edges.tolist()), density=bool(density)), edges
    how = {"bins": bins, "range": range}
    return _histogram_p(a, density=bool(density), **how), _bin_edges_p(a, **how)


_histogram_p = looped_op("histogram", lambda a, **how: np.histogram(a, **how)[0], dynamic=False)
_bin_edges_p = looped_op("bin_edges", np.histogram_bin_edges, dynamic=False)


def _order_statistic(a: Any, axis: Any, keepdims: bool, pick: Callable[..., Any]) -> Any:
    """A statistic computed from a few elements of the sorted array; NaN if the reduced elements contain NaN.

    Args:
        pick: `pick(n, at)` computes it; `n` is the axis's length, `at(i)` returns the i-th smallest elements.
    """
    if isinstance(axis, tuple) or (axis is None and keepdims):
        raise Unsupported("an order statistic over several axes")
    a, axis = array_and_axis(a, axis)
    n, dtype = shape_of(a)[axis], dtype_of(a)
    if np.any(np.asarray(n.data if is_boxed(n) else n) == 0):
        raise Unsupported("an order statistic of nothing")
    ordered = np.sort(a, axis=axis)
    out = pick(n, lambda place: getitem(ordered, on_axis(axis, place)))
    if dtype.kind == "f":
        last = getitem(ordered, on_axis(axis, n - 1))
        out = np.where(np.isnan(last), last, out).astype(dtype)
    if keepdims:
        return np.expand_dims(out, axis)
    return out if ndim_of(out) else out[()]  # a scalar, as a reduction returns


def _beside(n: Any, like: Any) -> Any:
    """A per-example number, reshaped to broadcast against each example's array; a shared number is unchanged."""
    return np.reshape(n, (1,) * ndim_of(like)) if is_boxed(n) and ndim_of(like) else n


@implements(np.median)
def median(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """np.median; the gradient goes to the middle elements."""
    if dtype_of(a).kind not in "biuf":
        raise Unsupported("np.median of complex numbers")
    wide = {2: np.float32}.get(dtype_of(a).itemsize, dtype_of(a)) if dtype_of(a).kind == "f" else np.float64

    def middle(n: Any, at: Callable[[Any], Any]) -> Any:
        low, high = at((n - 1) // 2).astype(wide), at(n // 2).astype(wide)  # the sum would overflow in int8 or float16
        return np.where(_beside(n % 2 == 1, low), low + 0.0, (low + high + 0.0) / 2.0)  # a mean has no -0.0

    return _order_statistic(a, axis, keepdims, middle)


@dispatch.source(np.median, of=(1,), sums=True)
def _median_of_one(a):
    x = np.sort(np.asarray(a))
    n = len(x)
    if n == 0 or x[n - 1] != x[n - 1]:
        dispatch.leave_to_python()
    return np.mean(x[(n - 1) // 2 : n // 2 + 1])


@implements(np.quantile)
def quantile(a: Any, q: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """np.quantile by linear interpolation; q is one number, or a list of numbers, that all examples share."""
    if is_boxed(q) or ndim_of(q) > 1:
        raise Unsupported("np.quantile of quantiles that differ between examples, or of a table of quantiles")
    if ndim_of(q):
        if dtype_of(a) != np.float64:
            raise Unsupported("np.quantile of a list of quantiles, which NumPy computes in double precision")
        return np.stack([quantile(a, each, axis, keepdims=keepdims) for each in np.asarray(q).tolist()])
    if not 0 <= q <= 1:
        raise ValueError("Quantiles must be in the range [0, 1]")
    if type(q) not in (int, float) and dtype_of(a) != np.float64:
        raise Unsupported("np.quantile for a NumPy number, which takes part in the promotion")
    if dtype_of(a).kind != "f":
        raise Unsupported("np.quantile of integers")

    def between(n: Any, at: Callable[[Any], Any]) -> Any:
        place = (n - 1) * float(q)
        below = np.floor(place).astype(np.int64)
        low, high = at(below), at(np.minimum(below + 1, n - 1))
        part, gap = _beside(place - below + (n == 1), low), high - low  # of one number NumPy takes it from above
        above, beneath = (cast(share, dtype_of(a)) for share in (part, 1 - part))  # as Python floats, in NumPy
        return np.where(part >= 0.5, high - gap * beneath, low + gap * above)

    return _order_statistic(a, axis, keepdims, between)


@implements(np.percentile)
def percentile(a: Any, q: Any, axis: Any = None, keepdims: bool = False) -> Any:
    if is_boxed(q):
        raise Unsupported("np.percentile of percentiles that differ between examples")
    q = q / 100 if type(q) in (int, float) else np.true_divide(q, 100)
    if not np.all((q >= 0) & (q <= 1)):
        raise ValueError("Percentiles must be in the range [0, 100]")
    return quantile(a, q, axis, keepdims=keepdims)


def _present(a: Any, axis: Any, keepdims: bool, ddof: Any = 0) -> Any:
    """Where the elements are numbers; Unsupported if they are no more than the degrees of freedom somewhere."""
    if dtype_of(a).kind != "f":
        return True
    found = ~np.isnan(a)
    if any_true(np.sum(found, axis=axis, keepdims=keepdims) <= ddof):
        raise Unsupported("a slice of nothing but NaN, or of as many degrees of freedom as elements")
    return found


@implements(np.nanmean)
def _nanmean(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    dtype = dtype_of(a) if dtype_of(a).kind == "f" else None
    return np.mean(a, axis, dtype, keepdims=keepdims, where=_present(a, axis, keepdims))


@implements(np.nanvar)
def _nanvar(a: Any, axis: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
    return np.var(a, axis, ddof=ddof, keepdims=keepdims, where=_present(a, axis, keepdims, ddof))


implements(np.nanstd)(
    lambda a, axis=None, ddof=0, keepdims=False: np.sqrt(np.nanvar(a, axis, ddof=ddof, keepdims=keepdims))
)


def _no_nan(out: Any) -> Any:
    if any_true(np.isnan(out)):
        raise Unsupported("a slice of nothing but NaN")  # of which NumPy warns
    return out


# Of arrays that are not plain, NumPy's own code gives NaN where `where=` leaves nothing but `initial`.
implements(np.nanmax)(lambda a, axis=None, **params: _no_nan(np.fmax.reduce(a, axis, **params)))
implements(np.nanmin)(lambda a, axis=None, **params: _no_nan(np.fmin.reduce(a, axis, **params)))
