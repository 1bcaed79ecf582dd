"""Functions that move data about, composed of indexing, reshape, concatenate and where."""

from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.ops.creation import CREATION, arange, zeros
from autobatch.ops.indexing import placed
from autobatch.ops.rules.aliasing import view
from autobatch.ops.rules.dispatch import Declined, implements

__all__ = ["tri"]


# order along axes


# ranks and stacks


# broadcasting against each other


# diagonals and triangles


def tri(N: Any, M: Any = None, k: int = 0, dtype: Any = float, **_: Any) -> Any:  # noqa: N803
    """np.tri; the sizes may differ between examples."""
    return _below(N, N if M is None else M, k).astype(dtype)


CREATION[np.tri] = implements(np.tri)(tri)


def _below(rows: Any, columns: Any, k: int) -> Any:
    return arange(rows)[:, None] + k >= arange(columns)


@implements(np.tril)
def tril(m: Any, k: int = 0) -> Any:
    m = _square_of(m)
    rows, columns = shape_of(m)[-2:]
    return np.where(_below(rows, columns, k), m, np.zeros((), dtype_of(m)))


@implements(np.triu)
def triu(m: Any, k: int = 0) -> Any:
    m = _square_of(m)
    rows, columns = shape_of(m)[-2:]
    return np.where(_below(rows, columns, k - 1), np.zeros((), dtype_of(m)), m)


def _square_of(m: Any) -> Any:
    return np.broadcast_to(m, (shape_of(m)[0], shape_of(m)[0])) if ndim_of(m) == 1 else m


@implements(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    if ndim_of(a) < 2:
        raise ValueError("diag requires an array of at least two dimensions")
    return view(_diagonal(a, offset, axis1, axis2), a, _diagonal, None, (offset, axis1, axis2))


def _diagonal(a: Any, offset: int, axis1: int, axis2: int) -> Any:
    if not is_boxed(a):
        return np.diagonal(a, offset, axis1, axis2)
    a = np.moveaxis(a, (axis1, axis2), (-2, -1))
    rows, columns = shape_of(a)[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    i = arange(np.maximum(np.minimum(rows - down, columns - right), 0))
    return a[..., i + down, i + right]


@implements(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    if ndim_of(v) == 2:
        return diagonal(v, k)
    if ndim_of(v) != 1:
        raise ValueError("Input must be 1- or 2-d.")
    n = shape_of(v)[0]
    i = arange(n)
    return placed(zeros((n + abs(k), n + abs(k)), dtype_of(v)), (i + max(-k, 0), i + max(k, 0)), v)


@implements(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Any:
    return diag(np.reshape(v, (-1,)), k)


@implements(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    if out is not None:
        raise Declined("trace with out=")
    return np.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@implements(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    if ndim_of(a) != 2 or wrap or not is_boxed(a):
        raise Declined("fill_diagonal of other than two dimensions")
    rows, columns = shape_of(a)
    i = arange(np.minimum(rows, columns))
    a[i, i] = val
