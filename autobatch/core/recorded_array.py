"""Base classes of the arrays of all recorders: lazy traces, tapes, and the tracer of blocks.

Such an array stands for a value of one example. Its shape and dtype are known. If Python needs the value itself, the
recorder is asked for it (`_ab_read`): a trace waits until it is computed, the block tracer refuses, a tape has it.
"""

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import with_order


def is_recorded(x: np.ndarray) -> bool:
    """True if a map wraps and records this array of an example; all other arrays are passed as they are.

    That holds for float and complex arrays in native byte order, the byte order of batched results.
    """
    return x.ndim > 0 and x.dtype.kind in "fc" and x.dtype.isnative


def _conversion(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def convert(self: Any, *args: Any) -> Any:
        return function(self._ab_read(name), *args)

    return convert


def _of_value(name: str) -> Callable[..., Any]:
    return _conversion(name, lambda value, *args: getattr(value, name)(*args))


class RecordedArray:
    """Mixin for a recorder's array, to be listed before `ops.array_protocols.ArrayMixin` among the bases.

    A subclass provides `shape`, `dtype`, `__copy__` and `_ab_read(name)`, which returns the value for the method
    `name`. The slots are used by `ops.rules.aliasing`.
    """

    __slots__ = ("__weakref__", "_view", "_views", "_zero_d")

    shape: Any
    dtype: Any
    _view: Any
    _views: Any
    _zero_d: bool

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        keys = getattr(self, "_ab_ids", None)
        if keys is not None:
            return iter(keys.__self__)  # a table of keys; raises, since it cannot be iterated
        return (self[i] for i in range(self.shape[0]))  # type: ignore[index]

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()  # type: ignore[attr-defined]

    __bool__ = _conversion("__bool__", bool)
    __int__ = _conversion("__int__", int)
    __float__ = _conversion("__float__", float)
    __complex__ = _conversion("__complex__", complex)
    __index__ = _conversion("__index__", operator.index)
    __round__ = _conversion("__round__", round)
    __floor__ = _conversion("__floor__", math.floor)
    __ceil__ = _conversion("__ceil__", math.ceil)
    __trunc__ = _conversion("__trunc__", math.trunc)
    __str__ = _conversion("__str__", str)
    __format__ = _conversion("__format__", format)
    item = _of_value("item")
    tolist = _of_value("tolist")
    tobytes = _of_value("tobytes")


class AbstractArray(RecordedArray):
    """A recorded array with an `aval`."""

    __slots__ = ("aval",)

    aval: Any  # its `Aval`

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
        """The class seen by `isinstance`: that of the NumPy value that this stands for."""
        aval = self.aval
        return aval.weak or (aval.dtype.type if aval.scalar else np.ndarray)

    @property
    def _ab_non_c_order(self) -> bool:
        return self.aval.non_c_order

    def _ab_set_order(self, non_c_order: bool) -> None:
        self.aval = with_order(self.aval, non_c_order)

    def copy(self, order: str = "C") -> Any:
        """A copy, like `np.ndarray.copy`; a scalar is immutable, so it returns itself."""
        return self if self.aval.scalar else super().copy(order)  # type: ignore[misc]
