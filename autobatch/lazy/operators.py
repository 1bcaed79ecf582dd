"""The hot path of recording: operators, ufuncs and plain indices whose signature has been met before.

A first meeting, and everything unusual, goes the general way through `ArrayFace`, which the results of this path equal.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.lazy.aval import WEAK
from autobatch.lazy.constants import constant
from autobatch.ops.face import ArrayFace
from autobatch.ops.numpy.elementwise import UFUNCS
from autobatch.ops.numpy.indexing import _derive, _restore
from autobatch.ops.rules.aliasing import is_contiguous
from autobatch.ops.rules.indexing import FULL, Spec, parse

__all__ = ["FastOperators"]

_new = object.__new__
_NEGATIVE = UFUNCS[np.negative]
_BOUND = (int, type(None))


def _forward(ufunc: Any, slow: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    op = UFUNCS[ufunc]

    def operator(self: Any, other: Any) -> Any:
        trace = self.trace
        wave = trace.wave
        if self.wave is wave or trace.enter(self):
            kind = type(other)
            if kind is type(self):
                if other.wave is wave or trace.enter(other):
                    sig = trace.fast.get((op, self.aval, other.aval))
                    if sig is not None:
                        return trace.append_two(wave, sig, self.ref, other.ref)
            elif kind in WEAK:
                sig = trace.fast.get((op, self.aval, WEAK[kind]))
                if sig is not None:
                    return trace.append_two(wave, sig, self.ref, wave.external(other, -1))
        return slow(self, other)

    return operator


def _reflected(ufunc: Any, slow: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    op = UFUNCS[ufunc]

    def operator(self: Any, other: Any) -> Any:
        trace = self.trace
        wave = trace.wave
        kind = type(other)
        if kind in WEAK and (self.wave is wave or trace.enter(self)):
            sig = trace.fast.get((op, WEAK[kind], self.aval))
            if sig is not None:
                return trace.append_two(wave, sig, wave.external(other, -1), self.ref)
        return slow(self, other)

    return operator


@functools.lru_cache(maxsize=64)
def _row_spec(ndim: int) -> Spec:
    return (("i",), *[FULL] * (ndim - 1))


class _FastView:
    """As `ops.inplace` records a view, made in two stores: `how` is (signature, derive, restore, args, leads)."""

    __slots__ = ("base", "how")

    base: Any
    how: tuple[Any, ...]

    @property
    def derive(self) -> Any:
        return self.how[1]

    @property
    def restore(self) -> Any:
        return self.how[2]

    @property
    def args(self) -> Any:
        return self.how[3]

    @property
    def contiguous(self) -> bool:
        return self.how[4] and is_contiguous(self.base)


def link_views(views: Sequence[tuple[int, int, tuple[Any, ...]]], outs: Sequence[Any]) -> None:
    """Say of outputs which are views of which: for each (view, base, how)."""
    for at, base, how in views:
        out, under = outs[at], outs[base]
        out._view = record = _new(_FastView)
        record.base = under
        record.how = how
        try:
            under._views.append(weakref.ref(out))
        except AttributeError:
            under._views = [weakref.ref(out)]


class FastOperators(ArrayFace):
    """Short cuts for a class that has `trace`, `wave`, `aval` and `ref` (`LazyArray`)."""

    __slots__ = ()

    trace: Any
    source: Any
    row: int
    wave: Any
    aval: Any
    ref: int
    _ab_plain: Any
    _view: Any
    _views: Any

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

    def __neg__(self) -> Any:
        trace = self.trace
        wave = trace.wave
        if self.wave is wave or trace.enter(self):
            sig = trace.fast.get((_NEGATIVE, self.aval))
            if sig is not None:
                return trace.append(wave, sig, self.ref)
        return super().__neg__()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if len(inputs) == 1 and not kwargs and method == "__call__":
            trace = self.trace
            wave = trace.wave
            if self.wave is wave or trace.enter(self):
                sig = trace.fast.get((UFUNCS.get(ufunc), self.aval))
                if sig is not None:
                    return trace.append(wave, sig, self.ref)
        elif len(inputs) == 2 and type(inputs[0]) is np.ndarray and not kwargs and method == "__call__":
            trace = self.trace  # `array + x` begins with NumPy
            if self.wave is trace.wave or trace.enter(self):
                known, ref = constant(trace, inputs[0])
                sig = trace.fast.get((UFUNCS.get(ufunc), known, self.aval))
                if sig is not None:
                    return trace.append_two(trace.wave, sig, ref, self.ref)
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)

    def sum(self, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._reduce("sum", axis, args, kwargs)

    def mean(self, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._reduce("mean", axis, args, kwargs)

    def max(self, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._reduce("max", axis, args, kwargs)

    def min(self, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._reduce("min", axis, args, kwargs)

    def _reduce(self, name: str, axis: Any, args: Any, kwargs: Any) -> Any:
        trace = self.trace
        wave = trace.wave
        if axis == 0 and self.wave is None and self.source is None and not args and not kwargs:
            bag = trace.bag(self, name)
            if bag is not None:
                return bag
        if args or kwargs or type(axis) not in _BOUND or not (self.wave is wave or trace.enter(self)):
            return getattr(super(), name)(axis, *args, **kwargs)
        key = (self.aval, name, axis)
        sig = trace.views.get(key)
        if sig is not None:
            return trace.append(wave, sig, self.ref)
        out = getattr(super(), name)(axis)
        if type(out) is type(self) and out.wave is wave is trace.wave and trace.is_plain_call(out, self):
            trace.views[key] = trace.signature_of(out)
        return out

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        trace = self.trace
        wave = trace.wave
        under = getattr(self, "_view", None)  # of a row of a shared array it has no base
        if (
            kwargs
            or any(type(n) is not int for n in shape)
            or (under is not None and under.base is not None)
            or self._ab_plain is not None
            or not (self.wave is wave or trace.enter(self))
        ):
            return super().reshape(*shape, **kwargs)
        key = (self.aval, "reshape", shape)
        how = trace.views.get(key)
        if how is None:
            out = super().reshape(*shape)
            if type(out) is type(self) and out.wave is trace.wave and trace.is_plain_call(out, self):
                self._note_view(out, key)
            return out
        out = trace.append(wave, how[0], self.ref)
        self._link_view(out, how)
        return out

    def __getitem__(self, index: Any) -> Any:
        aval = self.aval
        if aval.shared:
            return self.trace.read_shared(self, index)
        kind = type(index)
        if kind is slice:
            start, stop, step = index.start, index.stop, index.step
            if not (
                (stop is None or type(stop) is int)
                and (start is None or type(start) is int)
                and (step is None or type(step) is int)
            ):
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
        wave = trace.wave
        if self.source is not None:
            if self.row == -1 and type(self.source) is np.ndarray:
                return self._known_view(index)
        elif self.wave is None and kind is int:
            return trace.read_row(self, index)
        if self.wave is not wave and not trace.enter(self):
            return super().__getitem__(index)
        how = trace.views.get(key)
        if how is None:
            return self._first_view(index, key)
        if kind is int:
            position = np.int64(index)
            how = (None, how[1], how[2], (how[3][0], (position,)), how[4])
            out = trace.append_two(wave, trace.views[key][0], self.ref, wave.external(position, -1))
        else:
            out = trace.append(wave, how[0], self.ref)
        self._link_view(out, how)
        return out

    def _link_view(self, out: Any, how: tuple[Any, ...]) -> None:
        """Say that `out` is a view of this array."""
        out._view = record = _new(_FastView)
        record.base = self
        record.how = how
        try:
            self._views.append(weakref.ref(out))
        except AttributeError:
            self._views = [weakref.ref(out)]

    def _note_view(self, out: Any, key: Any) -> None:
        """Remember how the last node is a view of this array."""
        record = getattr(out, "_view", None)
        if record is not None and record.base is self:
            sig = self.trace.signature_of(out)
            self.trace.views[key] = sig, record.derive, record.restore, record.args, record.contiguous

    def _first_view(self, index: Any, key: Any) -> Any:
        """`self[index]` the general way, remembered for the next time."""
        trace = self.trace
        out = super().__getitem__(index)
        if type(out) is type(self) and out.wave is trace.wave and is_contiguous(self):
            self._note_view(out, key)
        return out

    def _known_view(self, index: Any) -> Any:
        """`self[index]` of a value that is there: nothing to record."""
        part = self.source[index]
        if type(part) is not np.ndarray:
            self.trace.stats.reads += 1
            return part
        out = self.trace.known(part)
        if type(index) is int:
            args: tuple[Any, Any] = _row_spec(self.aval.ndim), (np.int64(index),)
        else:
            spec, operands = parse(self, index)
            args = spec, tuple(operands)
        self._link_view(out, (None, _derive, _restore, args, part.flags.c_contiguous))
        return out
