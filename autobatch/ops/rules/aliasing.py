"""NumPy's aliasing for this library's arrays: a view stores its base; a write updates the base and all live views.

Every op makes a new value; an in-place write replaces the value of the *object* written to (`_ab_rebind`). A view made
by basic indexing, reshape, transpose and the like stores how to derive it from its base and how to write it back. A
base holds its views by weak references only, so unused views are freed.

An array without dimensions may stand for a NumPy 0-d array, which can be written in place, or for a NumPy scalar, which
is immutable. Code that creates a 0-d array marks it by `zero_d`.

Whether a reshape is a view or a copy depends on the memory layout of NumPy's array (`core.abstract_eval`). If that is
unknown, a write into either while both are alive raises `NeedsLoop`: in the loop, NumPy's own arrays decide.

Slots that a subclass of `ArrayMixin` needs for this (they may stay unset): `_view`, `_views`, `_zero_d`, `__weakref__`.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from autobatch.core.abstract_eval import dtype_of, is_non_c_order, ndim_of, shape_of, unknown_lengths
from autobatch.core.batched import Batched, same_size
from autobatch.core.current_region import current_region
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import COPY_FIRST, NeedsLoop, Unsupported, UnsupportedError
from autobatch.ops.rules.dispatch import check_cast, top_box
from autobatch.ops.rules.sizes import differ_somewhere


class _View:
    """How to derive a view from its base (`derive(base, *args)`) and to write it back (`restore(base, new, *args)`)."""

    __slots__ = ("args", "base", "contiguous", "derive", "non_c_order", "restore")
    is_unclear = False

    def __init__(self, base: Any, derive: Any, restore: Any, args: tuple[Any, ...], contiguous: bool) -> None:
        self.base = base
        self.derive = derive
        self.restore = restore
        self.args = args
        self.contiguous = contiguous
        self.non_c_order = False


class _UnclearView(_View):
    """A possible view. It holds its base weakly: once the base is freed, a write is safe."""

    __slots__ = ("weak",)
    is_unclear = True

    def __init__(self, base: Any) -> None:
        self.weak = weakref.ref(base)
        self.derive = self.restore = _unclear
        self.args = ()
        self.contiguous = self.non_c_order = False

    @property
    def base(self) -> Any:
        return self.weak()


NON_C_ORDER = _View(None, None, None, (), False)  # `_view` of an array that is not a view and may not be in C order
NON_C_ORDER.non_c_order = True


def view_record(box: Any) -> Any:
    """The `_View` of an array; None if it is not a view, or a possible view whose base was freed."""
    record = getattr(box, "_view", None)
    return None if record is NON_C_ORDER or (type(record) is _UnclearView and record.base is None) else record


def views_up(box: Any) -> Iterator[tuple[Any, Any]]:
    """An array with its `view_record`, then the array that it is a view of, and so on; the last one has no base."""
    while (record := view_record(box)) is not None and (base := record.base) is not None:
        yield box, record
        box = base
    yield box, record


def root_of(box: Any) -> Any:
    """The array at the end of a chain of views; the array itself if it is no view, None if nothing holds its base."""
    *_, (root, record) = views_up(box)
    return root if record is None else None


def view(
    out: Any,
    base: Any,
    derive: Callable[..., Any],
    restore: Callable[..., Any] | None,
    args: tuple[Any, ...],
    contiguous: bool = False,
) -> Any:
    """Mark `out` as a view of `base`, and return it.

    Args:
        derive: `derive(base, *args)` returns the view's value for a base.
        restore: `restore(base, new, *args)` returns the base's value after a write of `new`; None: read-only.
        contiguous: the view is contiguous if its base is, so that a reshape of it is a view again.
    """
    if out is base or not hasattr(type(out), "_view") or is_scalar(base):
        return out
    zero_d(out)
    _register(out, base, _View(base, derive, restore, args, contiguous and is_contiguous(base)))
    return out


def _register(out: Any, base: Any, record: _View) -> None:
    record.non_c_order = is_non_c_order(out)
    out._view = record
    if hasattr(base, "_ab_rebind"):
        views = getattr(base, "_views", None)
        if views is None:
            base._views = [weakref.ref(out)]
        else:
            # Drop dead weak references when the number of views is this times a power of two.
            if len(views) >= 32 and len(views) & (len(views) - 1) == 0:
                views[:] = [ref for ref in views if ref() is not None]
            views.append(weakref.ref(out))


def zero_d(out: Any) -> Any:
    """Mark a result without dimensions as a 0-d array rather than a NumPy scalar, and return it."""
    if hasattr(type(out), "_zero_d") and not ndim_of(out):
        out._zero_d = True
    return out


# For results without dimensions that NumPy returns as 0-d arrays, not scalars: `x[..., 0]` of a vector.
zero_d_p = Op(
    "zero_d", np.asarray, rule=lambda op, operands, params: Batched(operands[0].data, operands[0].sizes),
    vjp=lambda position, ct, out, args, params: ct,
)  # fmt: skip


def is_scalar(box: Any) -> bool:
    """True if this stands for a NumPy scalar, which is immutable, rather than a 0-d array."""
    cls: Any = type(box)  # it is asked what there is, as `__getattr__` of the arrays takes its time
    if not is_boxed(box) or ndim_of(box) or (hasattr(cls, "_zero_d") and getattr(box, "_zero_d", False)):
        return False
    if box._ab_rank == BATCH_RANK:
        return True
    aval = box.aval if hasattr(cls, "aval") else None  # only recorded arrays have it, from the op that made them
    return aval is None or aval.scalar


def unclear_view(out: Any, base: Any) -> Any:
    """Mark `out` as either a view or a copy of `base`, depending on unknown strides; return it."""
    zero_d(out)
    if rank_of(out) == BATCH_RANK and current_region() is None:
        return out
    if out is base or not hasattr(type(out), "_view") or is_scalar(base):
        return out
    if any(type(size) is int and not size for size in shape_of(out)):  # an empty array cannot be written to
        return out
    if view_record(base) is None and hasattr(type(base), "__weakref__"):
        _register(out, base, _UnclearView(base))
        if type(known := getattr(base, "_frozen", None)) is list:  # copies of the base must know of it as well
            known.append(weakref.ref(out))
            out._frozen = known
    else:
        _register(out, base, _View(base, _unclear, _unclear, (), False))
    return out


def is_unclear(box: Any) -> bool:
    """True if it is unknown whether the array, or a base of it, is a view or a copy."""
    record = view_record(box)
    return record is not None and (record.derive is _unclear or is_unclear(record.base))


def _unclear(box: Any, *_: Any) -> NoReturn:
    raise report_error(
        box,
        NeedsLoop("a write into an array that may be a view of another or a copy, by its strides", instead=COPY_FIRST),
    )


def set_order(out: Any, non_c_order: bool) -> Any:
    """Set whether a new array may have another memory order than C, and return it."""
    if hasattr(out, "_ab_set_order"):
        out._ab_set_order(non_c_order)
    return out


def is_contiguous(box: Any) -> bool:
    """True if NumPy's array would certainly be C-contiguous: a new array, or a contiguous view of one."""
    record = getattr(box, "_view", None)
    return not getattr(box, "_ab_non_c_order", False) if record is None else record.contiguous


def stand_in(box: Any) -> np.ndarray | None:
    """A plain array with the shape and strides that NumPy's array would have; a view of a stand-in if `box` is a view.

    None if they are unknown: for views of a batch, for views whose index is not computed yet, and for unknown sizes. A
    new array is in C order, unless its class knows its strides (`_ab_plain`) or it may be in another order (None).
    """
    record = view_record(box)
    if record is None or record.base is None:
        plain = getattr(box, "_ab_plain", None)
        if isinstance(plain, np.ndarray):
            return plain
        shape = shape_of(box)
        return None if is_non_c_order(box) or unknown_lengths(shape) else np.empty(shape, dtype_of(box))
    base = stand_in(record.base) if rank_of(record.base) < BATCH_RANK else None
    if base is None or record.restore is _unclear or top_box(list(record.args)) is not None:
        return None
    out = record.derive(base, *record.args)
    return out if type(out) is np.ndarray and np.may_share_memory(out, base) else None


def has_views(box: Any) -> bool:
    """True if a write into this array may change another array: it is a view, or has live views."""
    if view_record(box) is not None:
        return True
    return any(ref() is not None for ref in getattr(box, "_views", None) or ())


def may_overlap(a: Any, b: Any) -> bool:
    """True if a write into one of these arrays may change the other."""
    ends, exposed = [], False
    for box in (a, b):
        chain = [each for each, _ in views_up(box)]
        exposed |= any(getattr(each, "exposed", False) for each in chain)
        ends.append(getattr(chain[-1], "_ab_memory", chain[-1]))
    one, two = ends
    plain = [type(end) is np.ndarray for end in ends]
    if all(plain):
        return np.may_share_memory(one, two)
    return one is two or (exposed and any(plain))  # exposed: np.asarray gave out the memory as a plain array


def write(box: Any, new: Any) -> None:
    """Set the value of `box` to `new`, and update its base and every live view of either.

    Raises:
        NeedsLoop: `box` is a batch that views a plain array shared by the examples (not a batch: UnsupportedError).
        ValueError: it is a read-only view.
    """
    if is_read_only(box):
        raise ValueError("assignment destination is read-only")
    if view_record(box) is not None and not hasattr(root_of(box), "_ab_rebind"):
        why = "a write into a view of a plain array that is shared; copy it first (.copy())"
        raise report_error(box, NeedsLoop(why) if rank_of(box) == BATCH_RANK else UnsupportedError(why))
    _write(box, new, None)


def report_error(box: Any, error: Exception) -> Exception:
    """Return `error` after reporting it to the interpreter of `box`: the loop runs even if user code catches it."""
    refuse = getattr(box, "_ab_refuse", None)
    if refuse is not None:
        refuse(error)
    return error


def is_read_only(box: Any) -> bool:
    """True if this is a read-only view, such as NumPy's `broadcast_to` gives, or a view of one."""
    *views, _ = views_up(box)
    return any(record.restore is None for _, record in views)


def _write(box: Any, new: Any, source: Any) -> None:
    """Set the value of `box`, recompute its views except `source` (already up to date), and write into its base."""
    record = view_record(box)
    above = None
    if record is not None:
        if record.restore is _unclear:
            _unclear(box)
        above = record.restore(record.base, new, *record.args)
    _rebind(box, new)
    if getattr(box, "_views", None):
        _update_views(box, source)
    if record is not None:
        _write(record.base, above, box)


def _rebind(box: Any, new: Any) -> None:
    box._ab_rebind(zero_d_p(new) if is_scalar(new) else new)  # a 0-d array stays one


def _update_views(base: Any, source: Any) -> None:
    """Recompute the live views of `base`, except `source`, which is up to date."""
    for ref in getattr(base, "_views", None) or ():
        child = ref()
        if child is None or child is source:
            continue
        record = child._view
        if record.base is base:
            if record.derive is _unclear:
                _unclear(child)
            _rebind(child, record.derive(base, *record.args))
            _update_views(child, None)


def cast_for_write(new: Any, box: Any, ufunc: np.ufunc | None = None) -> Any:
    """Convert `new` as NumPy does to store an in-place operation's result in `box`: same shape, same-kind cast.

    Raises:
        UFuncTypeError: the cast is not of the same kind (`int_array += 0.5`).
        ValueError: the result does not have the shape of `box`, or `box` is read-only.
    """
    if is_read_only(box):
        raise ValueError("output array is read-only")
    dtype, target = dtype_of(new), dtype_of(box)
    if dtype != target:
        if not np.can_cast(dtype, target, "same_kind"):
            if ufunc is not None:
                ufunc(np.empty(0, dtype), *([np.empty(0, dtype)] * (ufunc.nin - 1)), out=np.empty(0, target))
            check_cast(dtype, target, "same_kind")
        new = new.astype(target)
    if ndim_of(new) != ndim_of(box):
        raise ValueError(
            f"non-broadcastable output operand with shape {shape_of(box)} doesn't match "
            f"the broadcast shape {shape_of(new)}"
        )
    return _same_shape(new, box) if is_boxed(new) or is_boxed(box) else new


def _same_shape(new: Any, box: Any) -> Any:
    if isinstance(new, Batched) and isinstance(box, Batched) and all(map(same_size, new.sizes, box.sizes)):
        return new
    for have, want in zip(shape_of(new), shape_of(box), strict=True):
        if is_boxed(have) or is_boxed(want):
            if differ_somewhere(have, want):
                raise report_error(box, NeedsLoop("a result of another shape than the array that it is written to"))
        elif have != want:
            raise ValueError(
                f"non-broadcastable output operand with shape {shape_of(box)} doesn't match "
                f"the broadcast shape {shape_of(new)}"
            )
    return new


def write_into(out: Any, new: Any) -> Any:
    """Write a result into `out`, this library's array that was given as out=, and return it.

    Raises:
        Unsupported: `out` is a plain array.
    """
    if not is_boxed(out):
        raise Unsupported("a plain array as out=")
    if is_scalar(out):
        raise TypeError("output must be an array")
    write(out, cast_for_write(new, out))
    return out
