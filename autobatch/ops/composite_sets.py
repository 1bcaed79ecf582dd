"""Sets, searches and counts of each example."""

from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.ops.composite_lanes import lanewise
from autobatch.ops.creation import arange, zeros
from autobatch.ops.indexing import getitem
from autobatch.ops.table import Declined, implements

__all__ = ["bincount", "digitize", "isin", "searchsorted", "unique"]


def _first(x: np.ndarray, *, equal_nan: bool) -> Any:
    return np.unique(x, return_index=True, equal_nan=equal_nan)[1]


def _inverse(x: np.ndarray, *, equal_nan: bool) -> Any:
    return np.unique(x, return_inverse=True, equal_nan=equal_nan)[1]


def _counts(x: np.ndarray, *, equal_nan: bool) -> Any:
    return np.unique(x, return_counts=True, equal_nan=equal_nan)[1]


_first_p = lanewise("unique_index", _first)
_inverse_p = lanewise("unique_inverse", _inverse, dynamic=False)
_counts_p = lanewise("unique_counts", _counts)


@implements(np.unique)
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """np.unique of each example; values carry gradients to their first occurrence."""
    if axis is not None and ndim_of(ar) != 1:
        raise Declined("np.unique along an axis")
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


@implements(np.unique_values)
def unique_values(x: Any, /) -> Any:
    return unique(x, equal_nan=False)


@implements(np.union1d)
def union1d(ar1: Any, ar2: Any) -> Any:
    return unique(np.concatenate((ar1, ar2), axis=None))


_isin_p = lanewise("isin", lambda x, test: np.isin(x, test), dynamic=False)


@implements(np.isin)
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> Any:
    found = _isin_p(element, test_elements)
    return ~found if invert else found


@implements(np.setdiff1d)
def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    values = np.reshape(ar1, (-1,)) if assume_unique else unique(ar1)
    return getitem(values, isin(values, ar2, invert=True))


@implements(np.intersect1d)
def intersect1d(ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False) -> Any:
    if return_indices:
        raise Declined("np.intersect1d with return_indices")
    values = unique(ar1)
    return getitem(values, isin(values, ar2))


_search_p = lanewise("searchsorted", lambda a, v, *, side: np.searchsorted(a, v, side=side), dynamic=False)


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any:
    if sorter is not None:
        a = np.take(a, sorter)
    return _search_p(a, v, side=side)


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


_bins_p = lanewise("bincount_length", lambda x, *, least: np.int64(max(least, len(np.bincount(x)))), dynamic=False)


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


_count_p = lanewise("bincount", lambda x, *, least: np.bincount(x, minlength=least))


@implements(np.lexsort)
def lexsort(keys: Any, axis: int = -1) -> Any:
    if axis not in (-1, 0) or any(ndim_of(key) != 1 for key in keys):
        raise Declined("np.lexsort of arrays of several dimensions")
    return _lexsort_p(*keys)


_lexsort_p = lanewise("lexsort", lambda *keys: np.lexsort(keys), dynamic=False)


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
