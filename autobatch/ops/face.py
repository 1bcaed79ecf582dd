"""`ArrayFace`: operators, array methods and NumPy's protocols for every class of ours that stands for an array.

A method here only dispatches: to the op of an operator, or to the function that `ops.table` names.
"""

from typing import Any

import numpy as np

from autobatch.errors import UnsupportedError
from autobatch.ops import elementwise
from autobatch.ops.table import FUNCTIONS, NUMPY_OWN, UFUNCS

__all__ = ["ArrayFace"]


class ArrayFace:
    """Operators and protocols; a subclass has shape, ndim, dtype, `_ab_rank`, `_ab_apply`."""

    __slots__ = ()
    __array_priority__ = 1000

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        op = UFUNCS.get(ufunc)
        if op is None or method != "__call__" or kwargs:
            raise UnsupportedError(f"np.{ufunc.__name__}.{method}")
        return op(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        implementation = FUNCTIONS.get(func)
        if implementation is not None:
            return implementation(*args, **kwargs)
        if func in NUMPY_OWN:
            return func._implementation(*args, **kwargs)
        return self._ab_unsupported(func, args, kwargs)

    def __add__(self, other: Any) -> Any:
        return elementwise.add_p(self, other)

    def __radd__(self, other: Any) -> Any:
        return elementwise.add_p(other, self)

    def __mul__(self, other: Any) -> Any:
        return elementwise.mul_p(self, other)

    def __rmul__(self, other: Any) -> Any:
        return elementwise.mul_p(other, self)
