"""Functions that move data about, composed of indexing, reshape, concatenate and where."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.ops.creation import CREATION, arange, zeros
from autobatch.ops.indexing import getitem
from autobatch.ops.indexing_set import setitem_p
from autobatch.ops.indexing_spec import on_axis, parse
from autobatch.ops.inplace import unclear_view, view
from autobatch.ops.rules.kinds import elementwise
from autobatch.ops.rules.sizes import axes_of, normalise_axis
from autobatch.ops.table import Declined, implements

__all__ = ["flip", "placed", "tri"]


def placed(x: Any, index: Any, value: Any) -> Any:
    """`x` as it is after `x[index] = value`; `x` itself stays as it is."""
    spec, operands = parse(x, index)
    return setitem_p(x, value, *operands, spec=spec)


def _boxed(x: Any) -> Any:
    return x if is_boxed(x) else np.asarray(x)


# order along axes


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    axes = axes_of(axis, ndim_of(m))
    return m[tuple(slice(None, None, -1) if place in axes else slice(None) for place in range(ndim_of(m)))]


@implements(np.fliplr)
def fliplr(m: Any) -> Any:
    if ndim_of(m) < 2:
        raise ValueError("Input must be >= 2-d.")
    return flip(m, 1)


@implements(np.flipud)
def flipud(m: Any) -> Any:
    if ndim_of(m) < 1:
        raise ValueError("Input must be >= 1-d.")
    return flip(m, 0)


@implements(np.rot90)
def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    one, two = axes_of(tuple(axes), ndim_of(m))
    if one == two:
        raise ValueError(f"Axes={tuple(axes)} for array of ndim={ndim_of(m)} must be different.")
    k %= 4
    if k == 2:
        return flip(m, (one, two))
    if k == 1:
        return np.swapaxes(flip(m, two), one, two)
    return flip(np.swapaxes(m, one, two), two) if k == 3 else m[...]


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """np.roll; shifts may differ between examples."""
    if axis is None:
        return np.reshape(roll(np.reshape(a, (-1,)), shift, 0), shape_of(a))
    axes = axes_of(axis, ndim_of(a))
    several = isinstance(shift, list | tuple) or (not is_boxed(shift) and ndim_of(shift))
    shifts = list(shift) if several else [shift] * len(axes)
    if len(shifts) != len(axes):
        axes = axes * len(shifts) if len(axes) == 1 else axes
    for place, by in zip(axes, shifts, strict=True):
        n = shape_of(a)[place]
        a = getitem(a, on_axis(place, (arange(n) - by) % np.maximum(n, 1)))
    return a


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    rank = ndim_of(a)
    axis = normalise_axis(axis, rank)
    start = start + rank if start < 0 else start
    if not 0 <= start <= rank:
        raise np.exceptions.AxisError(
            f"rollaxis: start arg requires {-rank} <= start < {rank + 1}, but {start} was given"
        )
    return np.moveaxis(a, axis, start - 1 if axis < start else start)


# ranks and stacks


def _atleast(x: Any, rank: int) -> Any:
    x = _boxed(x)
    have = ndim_of(x)
    if have >= rank:
        return x
    if rank == 3 and have == 2:
        return x[:, :, None]
    if rank == 3 and have == 1:
        return x[None, :, None]
    return x[(None,) * (rank - have)]


def _each(function: Any, arrays: tuple[Any, ...]) -> Any:
    return function(arrays[0]) if len(arrays) == 1 else tuple(function(x) for x in arrays)


@implements(np.atleast_1d)
def atleast_1d(*arys: Any) -> Any:
    return _each(lambda x: _atleast(x, 1), arys)


@implements(np.atleast_2d)
def atleast_2d(*arys: Any) -> Any:
    return _each(lambda x: _atleast(x, 2), arys)


@implements(np.atleast_3d)
def atleast_3d(*arys: Any) -> Any:
    return _each(lambda x: _atleast(x, 3), arys)


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    return np.concatenate([_atleast(x, 2) for x in tup], 0, dtype=dtype, casting=casting)  # type: ignore[call-overload]


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    parts = [_atleast(x, 1) for x in tup]
    axis = 0 if parts and ndim_of(parts[0]) == 1 else 1
    return np.concatenate(parts, axis, dtype=dtype, casting=casting)  # type: ignore[call-overload]


@implements(np.dstack)
def dstack(tup: Any) -> Any:
    return np.concatenate([_atleast(x, 3) for x in tup], 2)


@implements(np.column_stack)
def column_stack(tup: Any) -> Any:
    parts = [_boxed(x) for x in tup]
    return np.concatenate([_atleast(x, 2).T if ndim_of(x) < 2 else x for x in parts], 1)


@implements(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    if axis is None:
        arr, values, axis = np.reshape(_boxed(arr), (-1,)), np.reshape(_boxed(values), (-1,)), 0
    return np.concatenate((arr, values), axis=axis)


@implements(np.block)
def block(arrays: Any) -> Any:
    depth, rank = _block_depth(arrays)
    return _block(arrays, 1, depth, max(depth, rank))


def _block_depth(item: Any) -> tuple[int, int]:
    if not isinstance(item, list):
        return 0, ndim_of(item)
    depths = [_block_depth(part) for part in item]
    return 1 + max(d for d, _ in depths), max(r for _, r in depths)


def _block(item: Any, level: int, depth: int, rank: int) -> Any:
    if isinstance(item, list):
        return np.concatenate([_block(part, level + 1, depth, rank) for part in item], axis=-(depth - level + 1))
    return _atleast(item, rank) if rank < 3 else _boxed(item)[(None,) * (rank - ndim_of(item))]


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    if axis is None:
        arr, axis = np.reshape(arr, (-1,)), 0
    axis = normalise_axis(axis, ndim_of(arr))
    n = shape_of(arr)[axis]
    if is_boxed(n) or is_boxed(obj):
        raise Declined("np.delete at places that differ between examples")
    return arr[on_axis(axis, np.delete(np.arange(n), obj))]


@implements(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    if not isinstance(obj, int) or (axis is not None and ndim_of(values) != ndim_of(arr) - 1):
        raise Declined("np.insert at several places")
    if axis is None:
        arr, axis, values = np.reshape(arr, (-1,)), 0, np.reshape(_boxed(values), (-1,))
        if shape_of(values) != (1,):
            raise Declined("np.insert of several values")
    else:
        axis = normalise_axis(axis, ndim_of(arr))
        values = np.expand_dims(_boxed(values), axis)
    parts = (arr[on_axis(axis, slice(None, obj))], values.astype(dtype_of(arr)), arr[on_axis(axis, slice(obj, None))])
    return np.concatenate(parts, axis)


# broadcasting against each other


_first_p = elementwise(
    lambda x, y: np.broadcast_to(x, np.broadcast_shapes(np.shape(x), np.shape(y))),
    lambda ct, out, x, y: ct,
    None,
    name="broadcast_against",
)


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Any, ...]:
    arrays = [_boxed(x) for x in args]
    out = []
    for place, x in enumerate(arrays):
        wide = x
        for other in (*arrays[:place], *arrays[place + 1 :]):
            wide = _first_p(wide, other)
        out.append(unclear_view(wide, x))
    return tuple(out)


@implements(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    rank = len(xi)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[0], places[1] = 1, 0
    out = tuple(
        np.reshape(_boxed(x), (1,) * place + (-1,) + (1,) * (rank - place - 1))
        for x, place in zip(xi, places, strict=True)
    )
    return out if sparse else broadcast_arrays(*out)


@implements(np.ix_)
def ix_(*args: Any) -> tuple[Any, ...]:
    rank = len(args)
    out = []
    for place, x in enumerate(args):
        if ndim_of(x) != 1:
            raise ValueError("Cross index must be 1 dimensional")
        x = np.nonzero(_boxed(x))[0] if dtype_of(x).kind == "b" else _boxed(x)
        out.append(x[(*(None,) * place, slice(None), *(None,) * (rank - place - 1))])
    return tuple(out)


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


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    shape = window_shape if isinstance(window_shape, list | tuple) else (window_shape,)
    axes = axes_of(axis, ndim_of(x))
    if len(shape) != 1 or len(axes) != 1:
        raise Declined("sliding windows along several axes")
    size = shape_of(x)[axes[0]]
    if is_boxed(size):
        raise Declined("sliding windows along lengths that differ between examples")
    if shape[0] > size:
        raise ValueError("window shape cannot be larger than input array shape")
    places = np.arange(size - shape[0] + 1)[:, None] + np.arange(shape[0])
    return np.moveaxis(x[on_axis(axes[0], places)], axes[0] + 1, -1)
