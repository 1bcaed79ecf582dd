"""`LazyArray`: an array with known shape and dtype, whose values are computed later, batched with like calls.

Its operators and NumPy's protocols are those of `ops.array_protocols.ArrayMixin`.
"""

import functools
import opcode
import sys
import traceback
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from autobatch.core.abstract_eval import Aval
from autobatch.core.diagnostics import is_library
from autobatch.core.op import Op, is_boxed
from autobatch.core.recorded_array import AbstractArray
from autobatch.errors import COPY_FIRST, NeedsLoop
from autobatch.ops.array_protocols import ArrayMixin
from autobatch.ops.numpy.indexing import view_of, write_view
from autobatch.ops.rules.aliasing import is_contiguous, view_record
from autobatch.ops.rules.index_rule import FULL, Spec, parse

_new = object.__new__
_BOUNDS = {int, type(None)}


@functools.lru_cache(maxsize=64)
def _row_spec(ndim: int) -> Spec:
    return (("i",), *[FULL] * (ndim - 1))


class _FastView:
    """A cheap form of `aliasing`'s view record, with two stores: `how` is (signature, derive, restore, args, leads)."""

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
    """Register `out` as a view of `base`, and return it."""
    out._view = record = _new(_FastView)
    record.base = base
    record.how = how
    try:
        base._views.append(weakref.ref(out))
    except AttributeError:
        base._views = [weakref.ref(out)]
    return out


def link_views(views: Sequence[tuple[int, int, tuple[Any, ...]]], outs: Sequence[Any]) -> None:
    """Register views among outputs, for each (view index, base index, how)."""
    for at, base, how in views:
        _link_view(outs[at], outs[base], how)


_STORES = {opcode.opmap.get(name) for name in ("STORE_SUBSCR", "STORE_SLICE")}


def _fits(value: Any, dtype: Any) -> bool:
    """True for a number that an integer dtype holds, and for what is no integer and no float."""
    limits = np.iinfo(dtype)
    return value.dtype.kind not in "iuf" or (bool(np.isfinite(value)) and limits.min <= int(value) <= limits.max)


class LazyArray(AbstractArray, ArrayMixin):
    """A recorded array. Every op on it is recorded too; a use that needs its values waits until they are computed.

    Before the launch, `ref` is its node in `segment`. After it, `source` is the array that holds the value and `row`
    the row of it (-1: the whole array; -2: the whole array, a result of shared values only). A deferred look-up (see
    `deferred_lookups`) has neither segment nor source, but `pending`.
    """

    __slots__ = ("exposed", "pending", "ref", "row", "segment", "source", "strided", "trace")

    trace: Any
    segment: Any
    ref: int
    source: Any
    row: int
    pending: Any
    exposed: bool

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

    def __getitem__(self, index: Any) -> Any:
        if self.aval.shared:
            return self.trace.read_shared(self, index)
        cls = type(index)
        if cls is slice:
            is_simple = {type(index.start), type(index.stop), type(index.step)} <= _BOUNDS
        else:
            n = self.aval.shape[0] if self.aval.shape else 0
            is_simple = cls is int and -n <= index < n
        if is_simple and self.source is not None:
            if self.row == -1 and type(self.source) is np.ndarray:
                return self._known_view(index)
        elif is_simple and self.segment is None and cls is int:
            return self.trace.read_row(self, index)
        return super().__getitem__(index)

    def _known_view(self, index: Any) -> Any:
        """`self[index]` of a computed value, without recording anything."""
        part = self.source[index]
        if type(part) is not np.ndarray:
            self.trace.stats.reads += 1
            return part
        if type(index) is int:
            args: tuple[Any, Any] = _row_spec(self.aval.ndim), (np.int64(index),)
        else:
            spec, operands = parse(self, index)
            args = spec, tuple(operands)
        return _link_view(self.trace.computed(part), self, (None, view_of, write_view, args, part.flags.c_contiguous))

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.aval.scalar:
            raise TypeError(f"'numpy.{self.aval.dtype.name}' object does not support item assignment")
        super().__setitem__(index, value)

    def __iter__(self) -> Iterator[Any]:
        if self.segment is None and self.source is None and self.aval.shape:
            return (self.trace.read_row(self, i) for i in range(self.aval.shape[0]))
        return super().__iter__()

    # Writes and memory layout.

    def _ab_rebind(self, new: Any) -> None:
        """Take over the value of `new`; in-place writes end with this."""
        if self.aval.shared and self.row == -1:
            self._refuse_write("an example writes into a shared array, which the examples after it would see")
        if getattr(self, "exposed", False):
            self._refuse_write("an array is written to after np.asarray made another name for it")
        if self.source is not None and self.row == -1:
            if not self.trace.inputs.note_write(self):
                self._refuse_write("an example writes into an argument that is read-only")
            self.strided = self._ab_plain  # a write does not change the strides
        if type(new) is not LazyArray:
            new = self.trace.computed(np.array(new))
        non_c_order = self.aval.non_c_order
        if new.aval.non_c_order and not non_c_order:  # written through a transposed view
            new = new.copy()
        self.aval, self.segment, self.ref, self.source = new.aval, new.segment, new.ref, new.source
        self._ab_set_order(non_c_order)  # a write does not change the memory order
        if new.source is not None:
            self.row = new.row
        elif new.segment is None:
            self.pending = new.pending

    def _refuse_write(self, why: str) -> NoReturn:
        self._ab_refuse(NeedsLoop(why, instead=COPY_FIRST))

    def _ab_refuse(self, error: Exception) -> NoReturn:
        """Raise, and make the examples run as a loop even if the running one catches the error."""
        self.trace.failed = error
        raise error

    @property
    def _ab_plain(self) -> Any:
        """A plain array with the same strides, if this one was given in other than C order; else None."""
        kept = getattr(self, "strided", None)
        source = self.source
        if kept is not None or source is None or self.row != -1:
            return kept
        if type(source) is not np.ndarray:
            return getattr(source, "_ab_plain", None)
        return None if source.flags.c_contiguous else source

    @property
    def _ab_shared(self) -> Any:
        """The array itself if all examples share it, so that its values are known; else this handle."""
        return self.source if self.aval.shared and type(self.source) is np.ndarray else self

    @property
    def _ab_memory(self) -> Any:
        """The caller's array, if this handle stands for the whole of it; else the handle itself."""
        return self.source if self.source is not None and self.row == -1 else self

    def expose(self) -> None:
        """Note that user code has a plain array of this memory, which writes into this one or its base must reach."""
        box: Any = self
        while isinstance(box, LazyArray):
            box.exposed = True
            box = getattr(view_record(box), "base", None)

    @property
    def base(self) -> Any:
        self._ab_refuse(NeedsLoop("the base of an array"))

    ctypes = data = base

    def _of_memory(self, name: str) -> Any:
        if not self.aval.scalar and (self.source is None or self.row != -1):
            self._ab_refuse(NeedsLoop(f"the {name} of an array that the example has computed"))
        return getattr(self.trace.value(self), name)

    flags = property(functools.partial(_of_memory, name="flags"))
    strides = property(functools.partial(_of_memory, name="strides"))

    @property
    def _ab_lookup(self) -> Any:
        return self.source._ab_lookup  # AttributeError unless the source is a shared table

    @property
    def _ab_ids(self) -> Any:
        return self.source._ab_ids  # AttributeError unless the source is a table of keys

    @property
    def _ab_gradient(self) -> Any:
        return self.source._ab_gradient

    def __copy__(self) -> "LazyArray":
        out = LazyArray(self.trace, self.aval, self.segment, self.ref)
        out.source = source = self.source
        if source is not None:
            out.row = row = self.row
            if row == -1 and type(source) is np.ndarray and not self.aval.shared:
                out.source = source.view()  # so that a write to the copy is not taken for a write to an argument
        elif self.segment is None:
            out.pending = self.pending
        return out

    # Uses that need the values.

    _ab_waits = True  # reading a value may suspend the example

    def _ab_read(self, name: str) -> Any:
        value = self.trace.read(self, name)
        if name == "__int__" and not (is_boxed(value) or self.aval.shape or (_fits(value, np.int8) and value >= 0)):
            codes = [frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(2))]
            if any(code.co_exceptiontable and not is_library(code.co_filename) for code in codes):
                self._refuse_store(sys._getframe(2))  # without a handler, what raises is run again anyway
        return value

    def _refuse_store(self, user: Any) -> None:
        """Refuse if this frame runs `x[index] = value`, where NumPy checks its own numbers by the dtype of `x`.

        It casts the `__array__` of another object unchecked, and checks its `__int__` for unsigned dtypes too.
        """
        if user.f_code.co_code[user.f_lasti] in _STORES:
            self._ab_refuse(NeedsLoop("a number is written into a part of an array, whose dtype may not hold it"))

    def __round__(self, *ndigits: Any) -> Any:
        return self.trace.wrap(super().__round__(*ndigits))

    def __hash__(self) -> int:  # type: ignore[override]
        if self.aval.scalar:
            return hash(self.trace.value(self))
        raise TypeError("unhashable type: 'numpy.ndarray'")

    def __contains__(self, item: Any) -> bool:
        if self.aval.scalar:
            raise TypeError(f"argument of type 'numpy.{self.aval.dtype.name}' is not iterable")
        return super().__contains__(item)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        value = self.trace.value(self)
        if is_boxed(value):
            return value.__array__(dtype)
        if self.aval.scalar and (dtype is None or np.dtype(dtype).kind == "i") and not _fits(value, dtype or np.int8):
            self._refuse_store(sys._getframe(1))
        if self.aval.non_c_order and self.aval.ndim > 1 and self.row != -1:
            self._ab_refuse(NeedsLoop("np.asarray of an array that may not be in C order"))
        if dtype is not None and not np.can_cast(value.dtype, dtype, "safe"):
            dtype = None  # NumPy casts what it gets, or raises, by the rule of whoever asked
        if copy or not isinstance(value, np.ndarray):
            return np.array(value, dtype=dtype)
        out = np.asarray(value, dtype)
        if out is not value:
            return out
        self.expose()
        return out if self.trace.park is None else self.trace.inputs.lend(value)

    @property
    def _ab_value_outside(self) -> Any:
        """The value as it is outside of the trace: an array, a scalar, or what is on a tape."""
        value = self.trace.value(self)
        return value if self.aval.scalar or is_boxed(value) else np.asarray(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._ab_value_outside.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        """Like NumPy's; while recording by hand (`ab.lazy`) a description, so that printing launches nothing."""
        if self.trace.park is None:
            return f"LazyArray(shape={self.aval.shape}, dtype={self.aval.dtype})"
        return repr(self.trace.value(self))


def _from_value(name: str) -> property:
    return property(lambda self: getattr(self._ab_value_outside, name))


for _name in {*dir(np.ndarray), *dir(np.float64), *dir(np.complex128)}.difference(dir(LazyArray)):
    if not _name.startswith("_"):
        setattr(LazyArray, _name, _from_value(_name))
LazyArray.__name__ = "numpy.ndarray"  # shown in Python's own error messages, which an example may catch and read
