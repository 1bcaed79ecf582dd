"""`LazyArray`: an array whose shape and dtype are known and whose values are computed later, with others alike."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from autobatch.core.op import Op
from autobatch.errors import NeedsLoop
from autobatch.lazy.aval import Aval, laid
from autobatch.lazy.operators import FastOperators
from autobatch.ops.rules.aliasing import stand_in

__all__ = ["LazyArray"]


class LazyArray(FastOperators):
    """A recorded array. Every op on it is recorded too; a use that needs its values waits for them.

    Where the values are: `ref` names a node of `wave`, until it has been launched; `source` is then the array that
    holds them and `row` the row (-1: all of it; -2: all of it, and computed from shared values). A look-up that
    was put off has neither, but `pending`.
    """

    __slots__ = (
        "__weakref__",
        "_view",
        "_views",
        "_zero_d",
        "aval",
        "exposed",
        "pending",
        "ref",
        "row",
        "source",
        "strided",
        "trace",
        "wave",
    )  # fmt: skip

    def __init__(self, trace: Any, aval: Aval, wave: Any, ref: int) -> None:
        self.trace = trace
        self.aval = aval
        self.wave = wave
        self.ref = ref
        self.source = None

    @property
    def _ab_rank(self) -> int:
        return self.trace.level

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.trace.record(op, args, params)

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        return self.trace.unsupported(function, args, kwargs, reason)

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
        crooked = self.aval.crooked
        self.aval, self.wave, self.ref, self.source = new.aval, new.wave, new.ref, new.source
        if self.aval.crooked is not crooked:
            self._ab_lay(crooked)  # which a write leaves as it is
        if new.source is not None:
            self.row = new.row
        elif new.wave is None:
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
    def _ab_crooked(self) -> bool:
        return self.aval.crooked

    def _ab_lay(self, crooked: bool) -> None:
        self.aval = laid(self.aval, crooked)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.aval.dtype

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What `isinstance` sees: the class of what NumPy would have here."""
        aval = self.aval
        return aval.weak or (aval.dtype.type if aval.scalar else np.ndarray)

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
    def _ab_memory(self) -> Any:
        """The array that holds this one and nothing else, if that is one of the caller's."""
        return self.source if self.source is not None and self.row == -1 else self

    def _in_memory(self) -> Any:
        """An array that lies as NumPy's does."""
        if self.aval.scalar or (self.source is not None and self.row == -1):
            return self._value()
        plain = stand_in(self)
        if plain is None:
            self._ab_refuse(NeedsLoop("the strides of an array that may lie in other than C order"))
        return plain

    @property
    def _ab_lookup(self) -> Any:
        return self.source._ab_lookup  # a shared table's; no attribute of anything else

    @property
    def _ab_gradient(self) -> Any:
        return self.source._ab_gradient

    @property
    def size(self) -> int:
        return math.prod(self.aval.shape)

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        return self.aval.dtype.itemsize

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of unsized object")
        return self.aval.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.aval.shape:
            raise TypeError("iteration over a 0-d array")
        if self.wave is None and self.source is None:
            return (self.trace.read_row(self, i) for i in range(self.aval.shape[0]))
        return (self[i] for i in range(self.aval.shape[0]))

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.aval.scalar:
            raise TypeError(f"'numpy.{self.aval.dtype.name}' object does not support item assignment")
        super().__setitem__(index, value)

    def _value(self) -> Any:
        return self.trace.value(self)

    def __bool__(self) -> bool:
        return bool(self._value())

    def __int__(self) -> int:
        return int(self._value())

    def __float__(self) -> float:
        return float(self._value())

    def __complex__(self) -> complex:
        return complex(self._value())

    def __index__(self) -> int:
        return self._value().__index__()

    def __round__(self, ndigits: int | None = None) -> Any:
        return self.trace.wrap(round(self._value()) if ndigits is None else round(self._value(), ndigits))

    def __floor__(self) -> Any:
        return math.floor(self._value())

    def __ceil__(self) -> Any:
        return math.ceil(self._value())

    def __trunc__(self) -> Any:
        return math.trunc(self._value())

    def __hash__(self) -> int:  # type: ignore[override]
        if self.aval.scalar:
            return hash(self._value())
        raise TypeError("unhashable type: 'numpy.ndarray'")

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        value = self._value()
        if hasattr(value, "_ab_rank"):
            return value.__array__(dtype)
        if self.aval.crooked and self.row != -1:
            self._ab_refuse(NeedsLoop("np.asarray of an array that may lie in other than C order"))
        if copy or not isinstance(value, np.ndarray):
            return np.array(value, dtype=dtype)
        out = np.asarray(value, dtype)
        if out is not value:
            return out
        self.exposed = True
        return out if self.trace.park is None else self.trace.inputs.lend(value)

    def item(self, *args: Any) -> Any:
        return self._value().item(*args)

    def tolist(self) -> Any:
        return self._value().tolist()

    def tobytes(self, *args: Any) -> bytes:
        return self._value().tobytes(*args)

    def __str__(self) -> str:
        return str(self._value())

    def __format__(self, spec: str) -> str:
        return format(self._value(), spec)

    def copy(self, order: Any = "C") -> Any:
        return self if self.aval.scalar else super().copy(order)

    def __repr__(self) -> str:
        """What NumPy prints there; while recording by hand, where a look launches nothing, a description."""
        if self.trace.park is None:
            return f"LazyArray(shape={self.aval.shape}, dtype={self.aval.dtype})"
        return repr(self._value())

    def __reduce__(self) -> Any:
        value = np.asarray(self)
        return np.array, (value,)

    def __deepcopy__(self, memo: Any) -> "LazyArray":
        return self.__copy__()

    def __copy__(self) -> "LazyArray":
        out = LazyArray(self.trace, self.aval, self.wave, self.ref)
        out.source = source = self.source
        if source is not None:
            out.row = row = self.row
            if row == -1 and type(source) is np.ndarray and not self.aval.shared:
                out.source = source.view()  # a write to the copy is none to an argument
        elif self.wave is None:
            out.pending = self.pending
        return out
