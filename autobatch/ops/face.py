"""`ArrayFace`: operators, array methods and NumPy's protocols for every class of ours that stands for an array.

A method here only dispatches: to the op of an operator, or to the function that `ops.table` names.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.ops import catalogue, elementwise
from autobatch.ops.face_methods import ArrayMethods
from autobatch.ops.indexing import add_at, getitem, setitem
from autobatch.ops.rules.aliasing import cast_for_write, is_scalar, write
from autobatch.ops.rules.dispatch import FUNCTIONS, NUMPY_OWN, Declined, refuse, top_box
from autobatch.ops.table_rest import reason, twin
from autobatch.ops.ufunc_methods import call_ufunc

__all__ = ["ArrayFace", "iterate"]

UFUNCS = elementwise.UFUNCS
assert catalogue.MODULES  # imported: the tables are complete


def iterate(x: Any) -> Iterator[Any]:
    """The items of an array of ours along its first dimension, of a length known here.

    Raises:
        TypeError: an array without dimensions.
    """
    if ndim_of(x) == 0:
        raise TypeError("iteration over a 0-d array")
    return (getitem(x, i) for i in range(shape_of(x)[0]))


def _op(ufunc: Any) -> Callable[..., Any]:
    def undeclared(*operands: Any) -> Any:
        return refuse(ufunc, operands, {}, "")

    return UFUNCS.get(ufunc, undeclared)


def _binary(ufunc: Any) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The operator of a ufunc, the reflected and the in-place one."""
    op = _op(ufunc)

    def forward(self: Any, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", self) is None:
            return NotImplemented
        return op(self, other)

    def reflected(self: Any, other: Any) -> Any:
        return op(other, self)

    def inplace(self: Any, other: Any) -> Any:
        if is_scalar(self):  # which is not updated in place
            return op(self, other)
        _write_back(self, op(self, other), ufunc)
        return self

    return forward, reflected, inplace


def _write_back(target: Any, new: Any, ufunc: Any) -> None:
    write(target, cast_for_write(new, target, ufunc))


def _unary(ufunc: Any) -> Callable[[Any], Any]:
    op = _op(ufunc)
    return lambda self: op(self)


_power = _binary(np.power)[0]


def _equality(ufunc: Any) -> Callable[[Any, Any], Any]:
    op = _op(ufunc)

    def compare(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return np.full_like(self, ufunc is np.not_equal, dtype=bool)
        return op(self, other)

    return compare


class ArrayFace(ArrayMethods):
    """Operators, methods and protocols of an array.

    A subclass has `shape`, `ndim`, `dtype`, `size`, `_ab_rank`, `_ab_apply(op, args, params)`,
    `_ab_unsupported(function, args, kwargs, reason)` and `_ab_rebind(new)`, which takes over the value of `new` (an
    array of ours or a plain one) and is what an in-place write does to the object. For writes to reach views its
    `__slots__` hold `_view`, `_views`, `_zero_d` and `__weakref__`; they may stay unset. `__iter__`, `__len__`,
    `__bool__`, `__int__`, `__float__`, `__index__` and `__array__` are its own.
    """

    __slots__ = ()
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs:
            op = UFUNCS.get(ufunc)
            if op is not None:
                return op(*inputs)
        out = kwargs.pop("out", None)
        if out is not None:
            return _ufunc_into(ufunc, method, inputs, kwargs, out)
        if method == "at":
            return _ufunc_at(ufunc, inputs)
        called = ufunc if method == "__call__" else getattr(ufunc, method)
        try:
            where = kwargs.pop("where", True)
            if where is not True:
                raise Declined("where= without out= leaves elements unset")
            return call_ufunc(ufunc, method, inputs, kwargs)
        except Declined as declined:
            why = declined.reason
        if where is not True:
            kwargs["where"] = where
        return refuse(called, inputs, kwargs, why)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        implementation = FUNCTIONS.get(func)
        if implementation is not None:
            return implementation(*args, **kwargs)
        if func in NUMPY_OWN:
            return func._implementation(*args, **kwargs)
        creation = twin(func)
        if creation is not None:
            return creation(*args, **kwargs)
        return refuse(func, args, kwargs, reason(func) or "")

    def __getitem__(self, index: Any) -> Any:
        return getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        setitem(self, index, value)

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(self == value))

    __add__, __radd__, __iadd__ = _binary(np.add)
    __sub__, __rsub__, __isub__ = _binary(np.subtract)
    __mul__, __rmul__, __imul__ = _binary(np.multiply)
    __truediv__, __rtruediv__, __itruediv__ = _binary(np.divide)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary(np.floor_divide)
    __mod__, __rmod__, __imod__ = _binary(np.remainder)
    __matmul__, __rmatmul__, __imatmul__ = _binary(np.matmul)
    __and__, __rand__, __iand__ = _binary(np.bitwise_and)
    __or__, __ror__, __ior__ = _binary(np.bitwise_or)
    __xor__, __rxor__, __ixor__ = _binary(np.bitwise_xor)
    __lshift__, __rlshift__, __ilshift__ = _binary(np.left_shift)
    __rshift__, __rrshift__, __irshift__ = _binary(np.right_shift)
    _, __rpow__, __ipow__ = _binary(np.power)
    __neg__ = _unary(np.negative)
    __pos__ = _unary(np.positive)
    __abs__ = _unary(np.absolute)
    __invert__ = _unary(np.invert)
    __eq__ = _equality(np.equal)
    __ne__ = _equality(np.not_equal)
    __lt__ = _binary(np.less)[0]
    __le__ = _binary(np.less_equal)[0]
    __gt__ = _binary(np.greater)[0]
    __ge__ = _binary(np.greater_equal)[0]

    def __pow__(self, other: Any) -> Any:
        if type(other) is int and other == 2 and dtype_of(self).kind == "b" and ndim_of(self):
            return UFUNCS[np.square](self)  # as NumPy does for every dtype; only for bools the result has another one
        return _power(self, other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self


def _ufunc_into(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any], out: tuple[Any, ...]) -> Any:
    """A ufunc with `out=`: the result is written into the array that was given."""
    target = out[0]
    if len(out) != 1 or target is None:
        return refuse(ufunc, inputs, {**kwargs, "out": out}, f"np.{ufunc.__name__} with several outputs into out=")
    called = ufunc if method == "__call__" else getattr(ufunc, method)
    if not is_boxed(target):
        top = top_box((inputs, kwargs))
        if rank_of(top) == BATCH_RANK:
            raise NeedsLoop("a result that differs between examples is written into an array that they share")
        return refuse(called, inputs, {**kwargs, "out": out}, "a plain array as out=")
    where = kwargs.pop("where", True)
    if where is not True:
        inputs = tuple(np.where(where, x, np.ones((), dtype_of(x))) for x in inputs)
    new = called(*inputs, **kwargs)
    new = cast_for_write(new if where is True else np.where(where, new, target), target, ufunc)
    if ndim_of(new) != ndim_of(target):
        raise UnsupportedError("out= must have the rank of the result")
    write(target, new)
    return target


def _ufunc_at(ufunc: Any, inputs: tuple[Any, ...]) -> None:
    """`np.add.at(x, index, values)` and `np.subtract.at`: repeated positions count each time."""
    target, index, *values = inputs
    if ufunc not in (np.add, np.subtract) or not is_boxed(target):
        if not is_boxed(target) and rank_of(top_box((inputs,))) == BATCH_RANK:
            raise NeedsLoop("np.add.at into an array that the examples share")
        refuse(ufunc.at, inputs, {}, "")
        return
    add_at(target, index, values[0] if ufunc is np.add else -values[0])
