"""NumPy's aliasing for arrays of ours: a view remembers its base, and a write reaches the base and every live view.

Every op makes a new value; a write gives the *object* that was written to that new value (`_ab_rebind`). A view made by
basic indexing, reshape, transpose and their like records how it is derived from its base and how a new view is put
back. Bases know their views by weak references only, so a view that nobody holds costs nothing.

Slots that a subclass of `ArrayFace` needs for this (they may stay unset): `_view`, `_views`, `__weakref__`.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import NeedsLoop, UnsupportedError

__all__ = ["cast_for_write", "is_contiguous", "view", "write"]

_PRUNE = 32  # look for dead views each time their number has doubled from here


class _View:
    """How a view follows from its base (`derive(base, *args)`) and goes back into it (`restore(base, new, *args)`)."""

    __slots__ = ("args", "base", "contiguous", "derive", "restore")

    def __init__(self, base: Any, derive: Any, restore: Any, args: tuple[Any, ...], contiguous: bool) -> None:
        self.base = base
        self.derive = derive
        self.restore = restore
        self.args = args
        self.contiguous = contiguous


def view(
    out: Any,
    base: Any,
    derive: Callable[..., Any],
    restore: Callable[..., Any],
    args: tuple[Any, ...],
    contiguous: bool = False,
) -> Any:
    """Declare `out` a view of `base`, and return it.

    Args:
        derive: `derive(base, *args)` gives the view's value from the base's.
        restore: `restore(base, new, *args)` gives the base's value once the view's is `new`.
        contiguous: the view is contiguous if its base is, so that reshaping it gives a view again.
    """
    if out is base or not hasattr(out, "_ab_rebind"):
        return out
    out._view = _View(base, derive, restore, args, contiguous and is_contiguous(base))
    if hasattr(base, "_ab_rebind"):
        views = getattr(base, "_views", None)
        if views is None:
            base._views = [weakref.ref(out)]
        else:
            if len(views) >= _PRUNE and len(views) & (len(views) - 1) == 0:
                views[:] = [ref for ref in views if ref() is not None]
            views.append(weakref.ref(out))
    return out


def is_contiguous(box: Any) -> bool:
    """Whether NumPy's array for this one would be C-contiguous: a fresh array, or a contiguous view of one."""
    record = getattr(box, "_view", None)
    return record is None or record.contiguous


def write(box: Any, new: Any) -> None:
    """Give `box` the value `new`, and with it its base and every live view of either.

    Raises:
        NeedsLoop: `box` is a per-example view of an array that the examples share.
    """
    record = getattr(box, "_view", None)
    if record is not None:
        base = record.base
        if not hasattr(_root(base), "_ab_rebind"):
            kind = NeedsLoop if rank_of(box) == BATCH_RANK else UnsupportedError
            error = kind("a write into a view of a plain array that is shared; copy it first (.copy())")
            refuse = getattr(box, "_ab_refuse", None)
            if refuse is not None:
                refuse(error)
            raise error
        write_through = record.restore(base, new, *record.args)
        box._ab_rebind(new)
        _refresh(box, None)
        _write_base(base, write_through, box)
        return
    box._ab_rebind(new)
    if getattr(box, "_views", None):
        _refresh(box, None)


def _root(base: Any) -> Any:
    """What a view of a view is a view of in the end."""
    while (record := getattr(base, "_view", None)) is not None:
        base = record.base
    return base


def _write_base(base: Any, new: Any, source: Any) -> None:
    record = getattr(base, "_view", None)
    if record is not None:
        above = record.restore(record.base, new, *record.args)
        base._ab_rebind(new)
        _refresh(base, source)
        _write_base(record.base, above, base)
        return
    base._ab_rebind(new)
    _refresh(base, source)


def _refresh(base: Any, source: Any) -> None:
    """Derive the live views of `base` anew, all but `source`, which is up to date."""
    for ref in getattr(base, "_views", None) or ():
        child = ref()
        if child is None or child is source:
            continue
        record = child._view
        if record.base is base:
            child._ab_rebind(record.derive(base, *record.args))
            _refresh(child, None)


def cast_for_write(new: Any, box: Any, ufunc: Any = None) -> Any:
    """`new` as NumPy stores the result of an in-place operation into `box`: same shape, same-kind cast.

    Raises:
        UFuncTypeError: the cast is not of the same kind (`int_array += 0.5`).
        ValueError: the result does not have the shape of `box`.
    """
    dtype, target = dtype_of(new), dtype_of(box)
    if dtype != target:
        if not np.can_cast(dtype, target, "same_kind"):
            if ufunc is not None:
                ufunc(np.empty(0, dtype), *([np.empty(0, dtype)] * (ufunc.nin - 1)), out=np.empty(0, target))
            raise TypeError(f"Cannot cast array data from {dtype!r} to {target!r} according to the rule 'same_kind'")
        new = new.astype(target)
    if ndim_of(new) != ndim_of(box):
        raise ValueError(
            f"non-broadcastable output operand with shape {shape_of(box)} doesn't match "
            f"the broadcast shape {shape_of(new)}"
        )
    return _same_shape(new, box) if is_boxed(new) or is_boxed(box) else new


def _same_shape(new: Any, box: Any) -> Any:
    for have, want in zip(shape_of(new), shape_of(box), strict=True):
        if not is_boxed(have) and not is_boxed(want) and have != want:
            raise ValueError(
                f"non-broadcastable output operand with shape {shape_of(box)} doesn't match "
                f"the broadcast shape {shape_of(new)}"
            )
    return new
