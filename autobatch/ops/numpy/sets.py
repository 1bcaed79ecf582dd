"""Set functions, searches, interpolation, and comparisons of whole arrays, for each example."""

from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.errors import Unsupported
from autobatch.ops.numpy.indexing import getitem
from autobatch.ops.rules.aliasing import zero_d
from autobatch.ops.rules.dispatch import any_shorter, any_true, as_array, expect, implements, leave_to_python, source
from autobatch.ops.rules.op_kinds import looped_op
from autobatch.ops.rules.sizes import differ_somewhere

_first_p = looped_op("unique_index", lambda x, **how: np.unique(x, return_index=True, **how)[1])
_inverse_p = looped_op("unique_inverse", lambda x, **how: np.unique(x, return_inverse=True, **how)[1], dynamic=False)
_counts_p = looped_op("unique_counts", lambda x, **how: np.unique(x, return_counts=True, **how)[1])


@implements(np.unique)
def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: Any = None, *,
    equal_nan: bool = True, sorted: bool = True,
) -> Any:  # fmt: skip
    """np.unique of each example; the gradient of a value goes to its first occurrence."""
    if axis is not None and (ndim_of(ar) != 1 or not isinstance(axis, int)):
        raise Unsupported("np.unique along an axis")
    flat = np.reshape(ar, (-1,))
    first = _first_p(flat, equal_nan=equal_nan)
    out = [getitem(flat, first)]
    if return_index:
        out.append(first)
    if return_inverse:
        out.append(np.reshape(_inverse_p(flat, equal_nan=equal_nan), shape_of(ar)))
    if return_counts:
        out.append(_counts_p(flat, equal_nan=equal_nan))
    return out[0] if len(out) == 1 else tuple(out)


_isin_p = looped_op("isin", lambda x, test, invert=False: np.isin(x, test, invert=invert), dynamic=False)


implements(np.isin)(
    lambda element, test_elements, assume_unique=False, invert=False, *, kind=None: zero_d(
        _isin_p(element, test_elements, invert=bool(invert))
    )
)


@implements(np.setdiff1d)
def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    values = np.reshape(ar1, (-1,)) if assume_unique else unique(ar1)
    return getitem(values, np.isin(values, ar2, invert=True))


_search_p = looped_op("searchsorted", lambda a, v, *, side: np.searchsorted(a, v, side=side), dynamic=False)


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any:
    if sorter is not None:
        a = np.take(a, sorter)
    return _search_p(a, v, side=side)


source(np.allclose)(lambda a, b, rtol=1e-05, atol=1e-08: bool(np.all(np.isclose(a, b, rtol, atol))))
source(np.array_equal, of=(1, 2))(lambda a1, a2: np.shape(a1) == np.shape(a2) and bool(np.all(np.equal(a1, a2))))


implements(np.allclose)(
    lambda a, b, rtol=1e-5, atol=1e-8, equal_nan=False: np.all(np.isclose(a, b, rtol, atol, equal_nan)).item()
)


_array_equal_p = looped_op(
    "array_equal", lambda a, b, equal_nan: np.bool_(np.array_equal(a, b, equal_nan=equal_nan)), dynamic=False
)


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    a, b = as_array(a1), as_array(a2)
    if equal_nan or ndim_of(a) != ndim_of(b) or any(map(differ_somewhere, shape_of(a), shape_of(b))):
        return _array_equal_p(a, b, equal_nan=equal_nan).item()
    return np.all(a == b).item()


@implements(np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> Any:
    """np.interp, differentiable in x and fp."""
    xp, fp, x = as_array(xp), as_array(fp), as_array(x)
    for each in (x, xp, fp):
        expect(each, "np.interp", kinds="iuf")
    xp, fp, x = (each.astype(np.float64, copy=False) for each in (xp, fp, x))  # as NumPy does
    n, points = shape_of(xp)[0], shape_of(fp)
    if any_shorter(xp, 2) or len(points) != 1 or any_true(n != points[0]):
        raise Unsupported("np.interp with a single point, or with as many values as points in some examples only")
    below = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, n - 2)
    x0, x1 = getitem(xp, below), getitem(xp, below + 1)
    y0, y1 = getitem(fp, below), getitem(fp, below + 1)
    with np.errstate(all="ignore"):  # NumPy's own code, in C, reports nothing; at a point is its value, -0.0 too
        slope = (y1 - y0) / (x1 - x0)
        out, back = np.where(x == x0, y0 - (slope * (x0 - x) + 0.0), slope * (x - x0) + y0), slope * (x - x1) + y1
    back = np.where((x == x0) | (np.isnan(back) & (y0 == y1)), y0, back)
    out = np.where(np.isnan(out) & ~np.isnan(x), back, out)  # infinite points
    out = np.where(x < xp[0], fp[0] if left is None else left, out)
    out = np.where(x > xp[n - 1], fp[n - 1] if right is None else right, np.where(x == xp[n - 1], fp[n - 1], out))
    return out if ndim_of(out) else out[()]  # a NumPy scalar, as from NumPy


@source(np.interp)
def _interp_of_one(x, xp, fp):
    places, values, at = np.asarray(xp).astype(np.float64), np.asarray(fp).astype(np.float64), np.float64(x)
    if len(places) != len(values) or len(places) == 0:
        raise ValueError
    if at != at:
        leave_to_python()
    j = int(np.searchsorted(places, at, side="right")) - 1
    if j in (-1, len(places) - 1) or places[j] == at:
        return values[max(j, 0)]
    return (values[j + 1] - values[j]) / (places[j + 1] - places[j]) * (at - places[j]) + values[j]
