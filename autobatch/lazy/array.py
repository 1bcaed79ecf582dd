"""`LazyArray`: an array whose shape and dtype are known and whose values are computed later, with others alike.

Operators, ufuncs, reductions and plain indices whose signature has been met before are recorded on a short path. A
first meeting, and everything unusual, goes the general way through `ArrayFace`, which the results of the short path
equal.
"""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from autobatch.core.abstract_eval import WEAK, Aval
from autobatch.core.op import Op
from autobatch.core.recorded import AbstractArray
from autobatch.errors import NeedsLoop
from autobatch.ops.array_protocols import ArrayFace
from autobatch.ops.numpy.elementwise import UFUNCS
from autobatch.ops.numpy.indexing import view_of, write_view
from autobatch.ops.rules.aliasing import is_contiguous, stand_in
from autobatch.ops.rules.index_rule import FULL, Spec, parse

_new = object.__new__
_NEGATIVE = UFUNCS[np.negative]
_BOUND = (int, type(None))


def _forward(ufunc: Any, slow: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    op = UFUNCS[ufunc]

    def operator(self: Any, other: Any) -> Any:
        trace = self.trace
        segment = trace.segment
        if self.segment is segment or trace.enter(self):
            kind = type(other)
            if kind is LazyArray:
                if other.segment is segment or trace.enter(other):
                    sig = trace.fast.get((op, self.aval, other.aval))
                    if sig is not None:
                        return trace.append_two(segment, sig, self.ref, other.ref)
            elif kind in WEAK:
                sig = trace.fast.get((op, self.aval, WEAK[kind]))
                if sig is not None:
                    return trace.append_two(segment, sig, self.ref, segment.external(other))
        return slow(self, other)

    return operator


def _reflected(ufunc: Any, slow: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    op = UFUNCS[ufunc]

    def operator(self: Any, other: Any) -> Any:
        trace = self.trace
        segment = trace.segment
        kind = type(other)
        if kind in WEAK and (self.segment is segment or trace.enter(self)):
            sig = trace.fast.get((op, WEAK[kind], self.aval))
            if sig is not None:
                return trace.append_two(segment, sig, segment.external(other), self.ref)
        return slow(self, other)

    return operator


def _reduction(name: str) -> Callable[..., Any]:
    """`sum`, `mean`, `max` or `min`: of a look-up that was put off, over its rows, one bag."""
    slow = getattr(ArrayFace, name)

    def reduction(self: Any, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        trace = self.trace
        if axis == 0 and self.segment is None and self.source is None and not args and not kwargs:
            bag = trace.bag(self, name)
            if bag is not None:
                return bag
        if args or kwargs or type(axis) not in _BOUND or not (self.segment is trace.segment or trace.enter(self)):
            return slow(self, axis, *args, **kwargs)
        key = (self.aval, name, axis)
        sig = trace.shortcuts.get(key)
        if sig is not None:
            return trace.append(trace.segment, sig, self.ref)
        out = slow(self, axis)
        if trace.is_plain_call(out, self):
            trace.shortcuts[key] = trace.signature_of(out)
        return out

    return reduction


@functools.lru_cache(maxsize=64)
def _row_spec(ndim: int) -> Spec:
    return (("i",), *[FULL] * (ndim - 1))


class _FastView:
    """As `ops.inplace` records a view, made in two stores: `how` is (signature, derive, restore, args, leads)."""

    __slots__ = ("base", "how")

    base: Any
    how: tuple[Any, ...]

    derive = property(lambda self: self.how[1])
    restore = property(lambda self: self.how[2])
    args = property(lambda self: self.how[3])

    @property
    def contiguous(self) -> bool:
        return self.how[4] and is_contiguous(self.base)


def _link_view(out: Any, base: Any, how: tuple[Any, ...]) -> Any:
    """Say that `out` is a view of `base`, and return it."""
    out._view = record = _new(_FastView)
    record.base = base
    record.how = how
    try:
        base._views.append(weakref.ref(out))
    except AttributeError:
        base._views = [weakref.ref(out)]
    return out


def link_views(views: Sequence[tuple[int, int, tuple[Any, ...]]], outs: Sequence[Any]) -> None:
    """Say of outputs which are views of which: for each (view, base, how)."""
    for at, base, how in views:
        _link_view(outs[at], outs[base], how)


class LazyArray(AbstractArray, ArrayFace):
    """A recorded array. Every op on it is recorded too; a use that needs its values waits for them.

    Where the values are: `ref` names a node of `segment`, until it has been launched; `source` is then the array that
    holds them and `row` the row (-1: all of it; -2: all of it, and computed from shared values). A look-up that
    was put off has neither, but `pending`.
    """

    __slots__ = ("exposed", "pending", "ref", "row", "segment", "source", "strided", "trace")

    trace: Any
    segment: Any
    ref: int
    source: Any
    row: int
    pending: Any

    def __init__(self, trace: Any, aval: Aval, segment: Any, ref: int) -> None:
        self.trace = trace
        self.aval = aval
        self.segment = segment
        self.ref = ref
        self.source = None

    @property
    def _ab_rank(self) -> int:
        return self.trace.level

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.trace.record(op, args, params)

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        return self.trace.unsupported(function, args, kwargs, reason)

    # Operators and methods with a short path.

    __add__ = _forward(np.add, ArrayFace.__add__)
    __radd__ = _reflected(np.add, ArrayFace.__radd__)
    __sub__ = _forward(np.subtract, ArrayFace.__sub__)
    __rsub__ = _reflected(np.subtract, ArrayFace.__rsub__)
    __mul__ = _forward(np.multiply, ArrayFace.__mul__)
    __rmul__ = _reflected(np.multiply, ArrayFace.__rmul__)
    __truediv__ = _forward(np.divide, ArrayFace.__truediv__)
    __rtruediv__ = _reflected(np.divide, ArrayFace.__rtruediv__)
    __matmul__ = _forward(np.matmul, ArrayFace.__matmul__)
    __lt__ = _forward(np.less, ArrayFace.__lt__)
    __le__ = _forward(np.less_equal, ArrayFace.__le__)
    __gt__ = _forward(np.greater, ArrayFace.__gt__)
    __ge__ = _forward(np.greater_equal, ArrayFace.__ge__)
    sum = _reduction("sum")
    mean = _reduction("mean")
    max = _reduction("max")
    min = _reduction("min")

    def __neg__(self) -> Any:
        trace = self.trace
        segment = trace.segment
        if self.segment is segment or trace.enter(self):
            sig = trace.fast.get((_NEGATIVE, self.aval))
            if sig is not None:
                return trace.append(segment, sig, self.ref)
        return super().__neg__()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if len(inputs) == 1 and not kwargs and method == "__call__":
            trace = self.trace
            segment = trace.segment
            if self.segment is segment or trace.enter(self):
                sig = trace.fast.get((UFUNCS.get(ufunc), self.aval))
                if sig is not None:
                    return trace.append(segment, sig, self.ref)
        elif len(inputs) == 2 and type(inputs[0]) is np.ndarray and not kwargs and method == "__call__":
            trace = self.trace  # `array + x` begins with NumPy
            if self.segment is trace.segment or trace.enter(self):
                known, ref = trace.constant(inputs[0])
                sig = trace.fast.get((UFUNCS.get(ufunc), known, self.aval))
                if sig is not None:
                    return trace.append_two(trace.segment, sig, ref, self.ref)
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        trace = self.trace
        segment = trace.segment
        under = getattr(self, "_view", None)  # of a row of a shared array it has no base
        if (
            kwargs
            or any(type(n) is not int for n in shape)
            or (under is not None and under.base is not None)
            or self._ab_plain is not None
            or not (self.segment is segment or trace.enter(self))
        ):
            return super().reshape(*shape, **kwargs)
        key = (self.aval, "reshape", shape)
        how = trace.shortcuts.get(key)
        if how is not None:
            return _link_view(trace.append(segment, how[0], self.ref), self, how)
        out = super().reshape(*shape)
        if trace.is_plain_call(out, self):
            self._note_view(out, key)
        return out

    def __getitem__(self, index: Any) -> Any:
        aval = self.aval
        if aval.shared:
            return self.trace.read_shared(self, index)
        kind = type(index)
        if kind is slice:
            start, stop, step = index.start, index.stop, index.step
            if type(start) not in _BOUND or type(stop) not in _BOUND or type(step) not in _BOUND:
                return super().__getitem__(index)
            key: Any = (aval, start, stop, step)
        elif kind is int:
            n = aval.shape[0] if aval.shape else 0
            if not -n <= index < n:
                return super().__getitem__(index)
            key = (aval, int)
        else:
            return super().__getitem__(index)
        trace = self.trace
        segment = trace.segment
        if self.source is not None:
            if self.row == -1 and type(self.source) is np.ndarray:
                return self._known_view(index)
        elif self.segment is None and kind is int:
            return trace.read_row(self, index)
        if self.segment is not segment and not trace.enter(self):
            return super().__getitem__(index)
        how = trace.shortcuts.get(key)
        if how is None:
            out = super().__getitem__(index)
            if type(out) is LazyArray and out.segment is trace.segment and is_contiguous(self):
                self._note_view(out, key)
            return out
        if kind is slice:
            return _link_view(trace.append(segment, how[0], self.ref), self, how)
        position = np.int64(index)
        out = trace.append_two(segment, how[0], self.ref, segment.external(position))
        return _link_view(out, self, (None, how[1], how[2], (how[3][0], (position,)), how[4]))

    def _note_view(self, out: Any, key: Any) -> None:
        """Remember how the last node is a view of this array."""
        record = getattr(out, "_view", None)
        if record is not None and record.base is self:
            sig = self.trace.signature_of(out)
            self.trace.shortcuts[key] = sig, record.derive, record.restore, record.args, record.contiguous

    def _known_view(self, index: Any) -> Any:
        """`self[index]` of a value that is there: nothing to record."""
        part = self.source[index]
        if type(part) is not np.ndarray:
            self.trace.stats.reads += 1
            return part
        if type(index) is int:
            args: tuple[Any, Any] = _row_spec(self.aval.ndim), (np.int64(index),)
        else:
            spec, operands = parse(self, index)
            args = spec, tuple(operands)
        return _link_view(self.trace.known(part), self, (None, view_of, write_view, args, part.flags.c_contiguous))

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.aval.scalar:
            raise TypeError(f"'numpy.{self.aval.dtype.name}' object does not support item assignment")
        super().__setitem__(index, value)

    def __iter__(self) -> Iterator[Any]:
        if self.segment is None and self.source is None and self.aval.shape:
            return (self.trace.read_row(self, i) for i in range(self.aval.shape[0]))
        return super().__iter__()

    # Writes, and where the values lie in memory.

    def _ab_rebind(self, new: Any) -> None:
        """Become `new`: what an in-place write leaves in its target."""
        if self.aval.shared and self.row == -1:
            self._ab_refuse(NeedsLoop("an example writes into a shared array, which the examples after it would see"))
        if getattr(self, "exposed", False):
            self._ab_refuse(NeedsLoop("an array is written to after np.asarray made another name for it"))
        if self.source is not None and self.row == -1:
            self.trace.inputs.note_write(self)
            self.strided = self._ab_plain  # what a write leaves as it is
        if type(new) is not LazyArray:
            new = self.trace.known(np.array(new))
        non_c_order = self.aval.non_c_order
        self.aval, self.segment, self.ref, self.source = new.aval, new.segment, new.ref, new.source
        self._ab_set_order(non_c_order)  # which a write leaves as it is
        if new.source is not None:
            self.row = new.row
        elif new.segment is None:
            self.pending = new.pending

    def _ab_refuse(self, error: Exception) -> NoReturn:
        """Fail such that the examples run as a loop, whatever the running one makes of the error."""
        self.trace.failed = error
        raise error

    @property
    def _ab_plain(self) -> Any:
        """An array of the same strides, where it came as one that is not in C order."""
        kept = getattr(self, "strided", None)
        source = self.source
        if kept is not None or source is None or self.row != -1:
            return kept
        if type(source) is not np.ndarray:
            return getattr(source, "_ab_plain", None)
        return None if source.flags.c_contiguous else source

    @property
    def _ab_memory(self) -> Any:
        """The array that holds this one and nothing else, if that is one of the caller's."""
        return self.source if self.source is not None and self.row == -1 else self

    def _in_memory(self) -> Any:
        """An array that lies as NumPy's does."""
        if self.aval.scalar or (self.source is not None and self.row == -1):
            return self.trace.value(self)
        plain = stand_in(self)
        if plain is None:
            self._ab_refuse(NeedsLoop("the strides of an array that may lie in other than C order"))
        return plain

    @property
    def flags(self) -> Any:
        return self._in_memory().flags

    @property
    def strides(self) -> tuple[int, ...]:
        plain = self._in_memory()
        if 1 in plain.shape and getattr(self, "_view", None) is not None:
            self._ab_refuse(NeedsLoop("the strides of axes of one"))  # which differ by how a view was made
        return plain.strides

    @property
    def base(self) -> Any:
        self._ab_refuse(NeedsLoop("the base of an array"))

    ctypes = data = base

    @property
    def _ab_lookup(self) -> Any:
        return self.source._ab_lookup  # a shared table's; no attribute of anything else

    @property
    def _ab_ids(self) -> Any:
        return self.source._ab_ids  # a table of keys'

    @property
    def _ab_gradient(self) -> Any:
        return self.source._ab_gradient

    def __copy__(self) -> "LazyArray":
        out = LazyArray(self.trace, self.aval, self.segment, self.ref)
        out.source = source = self.source
        if source is not None:
            out.row = row = self.row
            if row == -1 and type(source) is np.ndarray and not self.aval.shared:
                out.source = source.view()  # a write to the copy is none to an argument
        elif self.segment is None:
            out.pending = self.pending
        return out

    # Uses that need the values.

    _ab_waits = True  # its example does, for its value

    def _ab_read(self, name: str) -> Any:
        return self.trace.value(self)

    def __round__(self, *ndigits: Any) -> Any:
        return self.trace.wrap(super().__round__(*ndigits))

    def __hash__(self) -> int:  # type: ignore[override]
        if self.aval.scalar:
            return hash(self.trace.value(self))
        raise TypeError("unhashable type: 'numpy.ndarray'")

    def __contains__(self, item: Any) -> bool:
        keys = getattr(self, "_ab_ids", None)
        return bool((self == item).any()) if keys is None else item in keys.__self__  # a table of keys

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        value = self.trace.value(self)
        if hasattr(value, "_ab_rank"):
            return value.__array__(dtype)
        if self.aval.non_c_order and self.row != -1:
            self._ab_refuse(NeedsLoop("np.asarray of an array that may lie in other than C order"))
        if copy or not isinstance(value, np.ndarray):
            return np.array(value, dtype=dtype)
        out = np.asarray(value, dtype)
        if out is not value:
            return out
        self.exposed = True
        return out if self.trace.park is None else self.trace.inputs.lend(value)

    def __reduce__(self) -> Any:
        return np.array, (np.asarray(self),)

    def __repr__(self) -> str:
        """What NumPy prints there; while recording by hand, where a look launches nothing, a description."""
        if self.trace.park is None:
            return f"LazyArray(shape={self.aval.shape}, dtype={self.aval.dtype})"
        return repr(self.trace.value(self))


LazyArray.__name__ = "numpy.ndarray"  # what Python's own errors about it say, which an example may catch and read
