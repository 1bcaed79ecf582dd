"""Repetition and padding: repeat, tile, resize, pad; each is a read at positions computed for each example."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.ops.creation import arange, full
from autobatch.ops.indexing import getitem
from autobatch.ops.rules.dispatch import Declined, implements
from autobatch.ops.rules.grouping import lanewise
from autobatch.ops.rules.indexing import on_axis
from autobatch.ops.rules.sizes import axes_of, normalise_axis

__all__ = ["pad", "repeat", "roll", "tile"]

_repeat_places_p = lanewise("repeat_places", lambda n, repeats: np.repeat(np.arange(n), repeats))


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """np.repeat; the counts may differ between examples and between elements."""
    if axis is None:
        a, axis = np.reshape(a, (-1,)), 0
    axis = normalise_axis(axis, ndim_of(a))
    n = shape_of(a)[axis]
    if not is_boxed(repeats):
        repeats = np.asarray(repeats)
        repeats = int(repeats) if repeats.ndim == 0 else repeats
    if ndim_of(repeats) == 0:
        if not is_boxed(repeats) and repeats < 0:
            raise ValueError("repeats may not contain negative values.")
        places = arange(n * repeats) // np.maximum(repeats, 1)
    else:
        places = _repeat_places_p(n, repeats)
    return getitem(a, on_axis(axis, places))


@implements(np.tile)
def tile(A: Any, reps: Any) -> Any:  # noqa: N803
    """np.tile; the counts may differ between examples."""
    counts = list(reps) if isinstance(reps, list | tuple) or (not is_boxed(reps) and ndim_of(reps)) else [reps]
    rank = max(ndim_of(A), len(counts))
    counts = [1] * (rank - len(counts)) + counts
    out = A[(None,) * (rank - ndim_of(A))] if rank > ndim_of(A) else np.copy(A)
    for axis, count in enumerate(counts):
        if is_boxed(count) or count != 1:
            n = shape_of(out)[axis]
            out = getitem(out, on_axis(axis, arange(n * count) % np.maximum(n, 1)))
    return out


@implements(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    shape = tuple(new_shape) if isinstance(new_shape, list | tuple) else (new_shape,)
    flat = np.reshape(a, (-1,))
    total: Any = 1
    for size in shape:
        total = total * size
    n = shape_of(flat)[0]
    return np.reshape(getitem(flat, arange(total) % np.maximum(n, 1)), shape)


def _pairs(value: Any, rank: int) -> list[tuple[Any, Any]]:
    """A pad width (or value) for each side of each axis, from the short forms NumPy takes."""
    if type(value) is np.ndarray:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return [(value, value)] * rank
    items = [tuple(item) if isinstance(item, list | tuple | np.ndarray) else item for item in value]
    if all(isinstance(item, tuple) for item in items):
        pairs = [item if len(item) == 2 else (item[0], item[0]) for item in items]
        pairs = pairs * rank if len(pairs) == 1 else pairs
    else:
        pairs = [(items[0], items[-1])] * rank
    if len(pairs) != rank:
        raise ValueError(f"operands could not be broadcast together: {len(pairs)} pad widths for {rank} dimensions")
    return pairs


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """np.pad; widths may differ between examples. Modes constant, edge, wrap, reflect, symmetric, empty."""
    rank = ndim_of(array)
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(axis, pad_width.get(axis - rank, 0)) for axis in range(rank)]
        pad_width = [item if isinstance(item, tuple) else (item, item) for item in pad_width]
    widths = _pairs(pad_width, rank)
    if mode == "empty":
        mode = "constant"
    if mode == "constant":
        values = _pairs(kwargs.pop("constant_values", 0), rank)
    if kwargs or mode not in ("constant", "edge", "wrap", "reflect", "symmetric"):
        raise Declined(f"np.pad with mode={mode!r} or its options")
    out = array
    for axis, (before, after) in enumerate(widths):
        if not is_boxed(before) and not is_boxed(after):
            if before < 0 or after < 0:
                raise ValueError("index can't contain negative values")
            if before == after == 0:
                continue
        if mode == "constant":
            out = np.concatenate(
                [_side(out, axis, before, values[axis][0]), out, _side(out, axis, after, values[axis][1])], axis
            )
        else:
            n = shape_of(out)[axis]
            places = arange(before + n + after) - before
            out = getitem(out, on_axis(axis, _places(mode, n, places)))
    return out if out is not array else np.copy(array)


def _side(x: Any, axis: int, width: Any, value: Any) -> Any:
    shape: Sequence[Any] = (*shape_of(x)[:axis], width, *shape_of(x)[axis + 1 :])
    return full(shape, value, dtype_of(x))


def _places(mode: str, n: Any, i: Any) -> Any:
    if mode == "edge":
        return np.clip(i, 0, n - 1)
    if mode == "wrap":
        return i % np.maximum(n, 1)
    period = 2 * n if mode == "symmetric" else 2 * n - 2
    j = i % np.maximum(period, 1)
    back = period - 1 - j if mode == "symmetric" else period - j
    return np.where(j >= n, back, j)


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
