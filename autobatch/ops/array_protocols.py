"""`ArrayMixin`: operators, array methods and NumPy's protocols for every class that stands for an array.

Its methods only dispatch: to the op of an operator, or to the implementation registered in `ops.rules.dispatch`.
"""

import copy
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of
from autobatch.core.diagnostics import hide_frames, hiding_frames
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.core.recorded_array import AbstractArray, RecordedArray
from autobatch.errors import OWN_LENGTHS, NeedsLoop, Unsupported
from autobatch.facts.operators import ARITHMETIC, COMPARISONS, DIFFERENCES, UNARY, Binary
from autobatch.ops.numpy.cumulative_and_sorting import accumulate
from autobatch.ops.numpy.elementwise import elementwise_of, operator_of
from autobatch.ops.numpy.function_table import like_function, unsupported_reason
from autobatch.ops.numpy.indexing import add_at, getitem, setitem
from autobatch.ops.numpy.reductions import ufunc_reduction
from autobatch.ops.numpy.shaping import FlatIterator
from autobatch.ops.rules.aliasing import cast_for_write, is_scalar, write
from autobatch.ops.rules.dispatch import (
    FUNCTIONS,
    NUMPY_OWN,
    UFUNCS,
    UNSUPPORTED,
    as_array,
    cast,
    check_cast,
    is_default,
    name_of,
    refuse,
    top_box,
)
from autobatch.ops.rules.op_kinds import as_called, python_class

# NumPy's functions turn Python numbers into NumPy scalars; Python's operators keep them weak in dtype promotion.
PYTHON_OPERATORS = {each.ufunc: each.function for each in (*ARITHMETIC, *COMPARISONS, *UNARY)} | {np.absolute: abs}
# A NumPy scalar as the left operand calls the ufunc for its operator, too.
_OF_SCALAR = {ufunc: operator_of(ufunc, PYTHON_OPERATORS[ufunc], unclear=True) for ufunc in DIFFERENCES}
_ORDERS = {each.ufunc for each in COMPARISONS}
_UFUNC_DEFAULTS = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "out": None, "dtype": None}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `__array_ufunc__`; some of the operands are this library's arrays.

    Raises:
        Unsupported: the ufunc, its method or an option has no batching rule.
    """
    if method == "__call__":
        return _call(ufunc, inputs, kwargs)
    if method == "outer":
        a, b = (_impl(np.asarray)(x) if is_boxed(x) else np.asarray(x) for x in inputs)  # no number is weak
        if ndim_of(b):
            a = np.expand_dims(a, tuple(range(ndim_of(a), ndim_of(a) + ndim_of(b))))
        return _call(ufunc, (a, b), kwargs)
    if method == "accumulate" and not ndim_of(inputs[0]):
        raise TypeError("cannot accumulate on a scalar")
    function: Any = ufunc_reduction(ufunc) if method == "reduce" else None
    if method == "accumulate":
        function = functools.partial(accumulate, ufunc)
    elif function is None:
        raise Unsupported(f"{name_of(ufunc)}.{method} has no batching rule")
    options = {key: value for key, value in kwargs.items() if value is not None or key == "axis"}
    options.setdefault("axis", 0)
    if function not in FUNCTIONS:  # NumPy's functions look at their options themselves
        options = {
            key: value for key, value in options.items() if not is_default(key, value, _UFUNC_DEFAULTS.get(key, ufunc))
        }
        if unknown := options.keys() - {"axis", "dtype", "keepdims", "initial", "where"}:
            raise Unsupported(f"{name_of(ufunc)}.{method} with {min(unknown)}=")
    return function(*inputs, **options)


def _call(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    op = UFUNCS.get(ufunc) or elementwise_of(ufunc)
    if op is None:
        raise Unsupported(UNSUPPORTED.get(ufunc, f"{name_of(ufunc)} has no batching rule"))
    if not kwargs:
        return op(*inputs)
    given = {key: value for key, value in kwargs.items() if not is_default(key, value, _UFUNC_DEFAULTS.get(key, ufunc))}
    dtype = given.pop("dtype", None)
    if given:
        raise Unsupported(f"{name_of(ufunc)}({', '.join(given)}=...) has no batching rule")
    return op(*inputs) if dtype is None else op(*inputs, dtype=np.dtype(dtype))


def _impl(function: Callable[..., Any]) -> Callable[..., Any]:
    """The registered implementation of a NumPy function, which skips NumPy's dispatch; itself if there is none."""
    return FUNCTIONS.get(function, function)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """An ndarray method that calls a NumPy function with the array as its first argument."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return FUNCTIONS.get(function, function)(self, *args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    method.__name__ = method.__qualname__ = function.__name__
    method.__doc__ = f"As `{name_of(function)}` of the array."
    return method


def _op_of(ufunc: np.ufunc) -> Callable[..., Any]:
    op = operator_of(ufunc, PYTHON_OPERATORS[ufunc])
    return _power(op) if ufunc is np.power else op


_POWERS: dict[tuple[type, Any], np.ufunc] = {(int, 2): np.square, (int, -1): np.reciprocal, (float, 0.5): np.sqrt}


def _power(op: Callable[..., Any]) -> Callable[..., Any]:
    """The operator `**`: NumPy computes these powers by another function, as `np.power` itself does for "f" and "d"."""

    def power(x: Any, y: Any) -> Any:
        kind = dtype_of(x).char
        if kind in "?egFDG" and is_boxed(x) and not is_scalar(x):
            ufunc = _POWERS.get((type(y), y)) if type(y) in (int, float) else None
            if ufunc is not None and (kind != "?" or y == 2):
                return UFUNCS[ufunc](x)
            if is_boxed(y) and python_class(y) in (int, float):
                return refuse(operator.pow, (x, y), {}, "a power of such numbers by an unknown exponent")
        return op(x, y)

    return power


def _repeat_list(count: Any, items: list[Any] | tuple[Any, ...]) -> Any:
    """`items * count` for a NumPy scalar `count`: it repeats a list as a Python int does (an array would multiply)."""
    if dtype_of(count).kind not in "iu":
        return refuse(operator.mul, (items, count), {}, "")
    return NotImplemented  # Python then calls list.__mul__, which calls count.__index__


_OPERANDS = (int, float, complex, list, tuple, np.generic, np.ndarray)


def _is_of_values(ufunc: np.ufunc, self: Any, other: Any) -> bool:
    """True for an operator of recorded values by which Python asks an operand that is not an array, as of `Decimal`."""
    kind = type(other)
    if kind is not float and kind is not int and not isinstance(other, _OPERANDS) and not hasattr(kind, "__array__"):
        return hasattr(type(self), "_ab_waits")
    return ufunc is np.matmul and is_scalar(self) and hasattr(type(self), "_ab_waits")


def _of_values(native: Callable[..., Any], *operands: Any) -> Any:
    return native(*[x._ab_read(native.__name__) if hasattr(type(x), "_ab_waits") else x for x in operands])


def _binary(which: Binary) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The methods of an operator: (forward, reflected, in-place)."""
    ufunc, native = which.ufunc, which.function
    op = _op_of(ufunc)

    def forward(self: Any, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", self) is None:
            return NotImplemented
        if _is_of_values(ufunc, self, other):
            return _of_values(native, self, other)
        try:
            if ufunc is np.multiply and isinstance(other, list | tuple) and is_scalar(self):
                return _repeat_list(self, other)
            return op(self, other)
        except Exception as error:
            hide_frames(error)
            raise

    def reflected(self: Any, other: Any) -> Any:
        if _is_of_values(ufunc, self, other):
            return _of_values(native, other, self)
        if type(other) is complex and isinstance(self, AbstractArray) and is_scalar(self) and self.dtype == np.float64:
            number: Any = self
            return native(other, number._ab_read(native.__name__))  # of np.float64, a Python float, by Python
        try:
            if ufunc is np.multiply and isinstance(other, list | tuple) and is_scalar(self):
                return _repeat_list(self, other)
            return op(other, self)
        except Exception as error:
            hide_frames(error)
            raise

    def inplace(self: Any, other: Any) -> Any:
        if is_scalar(self):  # immutable: `x += y` rebinds the name
            return forward(self, other)
        if _is_of_values(ufunc, self, other):
            write(self, which.inplace(np.array(self._ab_read("copy")), other))
            return self
        write(self, cast_for_write(op(self, other), self, ufunc))
        return self

    return forward, reflected, inplace


def _divmod(x: Any, y: Any) -> Any:
    are_arrays = all(is_boxed(each) or isinstance(each, int | float | np.generic | np.ndarray) for each in (x, y))
    return UFUNCS[np.divmod](x, y) if are_arrays and not (python_class(x) and python_class(y)) else (x // y, x % y)


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    op = _op_of(ufunc)
    return lambda self: op(self)


def _equality(which: Binary) -> Callable[[Any, Any], Any]:
    ufunc, forward = which.ufunc, _binary(which)[0]

    def compare(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, str):
            differs = ufunc is np.not_equal
            if is_scalar(self):
                return differs if other is None else np.bool_(differs)
            return np.full_like(self, differs, dtype=bool)
        return forward(self, other)

    return compare


def _of_objects(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A ufunc of lists, or of arrays of objects, whose items keep their classes only one example at a time."""
    arrays = tuple(FUNCTIONS[np.array](x) if isinstance(x, list | tuple) else x for x in inputs)
    called = ufunc if method == "__call__" else getattr(ufunc, method)
    if any(type(x) is np.ndarray and x.dtype.hasobject for x in arrays) or top_box(arrays) is None:
        return refuse(called, inputs, kwargs, "arrays of objects")
    return called(*arrays, **kwargs)


class ArrayMixin:
    """Base class with the operators, methods and NumPy protocols of an array.

    A subclass defines `shape`, `ndim`, `dtype`, `size`, `_ab_rank`, `_ab_apply(op, args, params)`,
    `_ab_unsupported(function, args, kwargs, reason)` and `_ab_rebind(new)`, by which an in-place write makes the object
    take over the value of `new` (this library's array or a plain one). So that writes reach views, its `__slots__`
    contain `_view`, `_views`, `_zero_d` and `__weakref__`, which may stay unset. It also defines `__iter__`, `__len__`,
    `__bool__`, `__int__`, `__float__`, `__index__` and `__array__`.
    """

    __slots__ = ()
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        try:
            if ufunc in _ORDERS and type(inputs[0]) is np.ndarray and not inputs[0].ndim:  # `scalar < x` makes it one
                inputs = (inputs[0][()], *inputs[1:])
            is_operator = issubclass(type(inputs[0]), np.generic)
            table = _OF_SCALAR if is_operator and ufunc in _OF_SCALAR else UFUNCS
            op = table.get(ufunc) if method == "__call__" and not kwargs else None
            for x in inputs if method != "at" else ():  # where a tuple is an index
                if type(x) is list or type(x) is tuple or (type(x) is np.ndarray and x.dtype.hasobject):
                    return _of_objects(ufunc, method, inputs, kwargs)
            if op is None:
                return self._of_ufunc(ufunc, method, inputs, kwargs)
            return (op if is_operator else as_called(op, inputs))(*inputs)
        except Exception as error:
            hide_frames(error)
            raise

    def _of_ufunc(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop("out", None)
        if out is not None:
            return _ufunc_into(ufunc, method, inputs, kwargs, out)
        if method == "at":
            return _ufunc_at(ufunc, inputs)
        called = ufunc if method == "__call__" else getattr(ufunc, method)
        try:
            if kwargs.get("where", True) is not True and method != "reduce":
                raise Unsupported("where= without out= leaves elements unset")
            return call_ufunc(ufunc, method, inputs, kwargs)
        except Unsupported as declined:
            why = declined.reason
        return refuse(called, inputs, kwargs, why)

    @hiding_frames
    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        implementation = FUNCTIONS.get(func) or NUMPY_OWN.get(func) or like_function(func)
        if implementation is not None:
            return implementation(*args, **kwargs)
        return refuse(func, args, kwargs, unsupported_reason(func) or "")

    def __getitem__(self, index: Any) -> Any:
        try:
            return getitem(self, index)
        except Exception as error:
            hide_frames(error)
            raise

    @hiding_frames
    def __setitem__(self, index: Any, value: Any) -> None:
        setitem(self, index, value)

    def __contains__(self, value: Any) -> bool:
        keys = getattr(self, "_ab_ids", None)
        return bool(np.any(self == value)) if keys is None else value in keys.__self__  # a table of keys

    __abs__ = _unary(np.absolute)

    def __divmod__(self: Any, other: Any) -> Any:
        return _divmod(self, other)

    def __rdivmod__(self: Any, other: Any) -> Any:
        return _divmod(other, self)

    # methods and attributes of ndarray, by way of NumPy's functions

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> None:
        write(self, _impl(np.sort)(self, axis=axis, kind=kind, order=order, stable=stable))

    def partition(self, *args: Any, **kwargs: Any) -> None:
        write(self, _impl(np.partition)(self, *args, **kwargs))

    # shapes

    @hiding_frames
    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> Any:
        shape = shape[0] if len(shape) == 1 else shape
        return _impl(np.reshape)(self, shape, order=order, copy=copy)

    def flatten(self, order: str = "C") -> Any:
        if order == "K":
            return _impl(np.copy)(_impl(np.ravel)(self, order))
        return _impl(np.reshape)(self, (-1,), order=order, copy=True)

    def transpose(self, *axes: Any) -> Any:
        all_in_one = len(axes) == 1 and (axes[0] is None or np.ndim(axes[0]))
        return _impl(np.transpose)(self, (axes[0] if all_in_one else axes) or None)

    @property
    def T(self) -> Any:  # noqa: N802
        return _impl(np.transpose)(self)

    @property
    def mT(self) -> Any:  # noqa: N802
        if ndim_of(self) < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return _impl(np.swapaxes)(self, -1, -2)

    @property
    def flat(self) -> Any:
        return FlatIterator(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        FlatIterator(self)[:] = value

    # selection

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return _impl(np.compress)(condition, self, axis=axis, out=out)

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        _impl(np.put)(self, indices, values, mode)

    def fill(self, value: Any) -> None:
        setitem(self, Ellipsis, value)

    # values

    @hiding_frames
    def astype(
        self, dtype: Any, order: Any = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        dtype = np.dtype(dtype)
        if dtype == dtype_of(self) and not copy:
            return self if order == "K" else _impl(np.asarray)(self, order=order)
        check_cast(dtype_of(self), dtype, casting)
        out = _impl(np.astype)(self, dtype)
        return out if order == "K" else np.copy(out, order=order)

    def copy(self, order: str = "C") -> Any:
        return _impl(np.copy)(self, order)

    def conj(self) -> Any:
        return _impl(np.conjugate)(self) if dtype_of(self).kind == "c" else self  # NumPy returns the same object, too

    conjugate = conj

    @property
    def real(self) -> Any:
        return _impl(np.real)(self)

    @property
    def imag(self) -> Any:
        return _impl(np.imag)(self)

    @property
    def itemsize(self) -> int:
        return dtype_of(self).itemsize

    @property
    def nbytes(self) -> Any:
        return self.size * self.itemsize  # type: ignore[attr-defined]

    def item(self, *index: Any) -> Any:
        """The element at `index` (default: the only element) as a Python scalar."""
        return np.asarray(self).item(*index)

    def tolist(self) -> Any:
        return np.asarray(self).tolist()

    @hiding_frames
    def view(self, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs:
            return getitem(self, Ellipsis)
        if args and type(args[0]) is int:
            raise TypeError(f"Cannot interpret '{args[0]}' as a data type: write x.reshape(...)")
        own = lambda x, *args, **kwargs: np.asarray(x).view(*args, **kwargs)
        return refuse(own, (self, *args), kwargs, "ndarray.view of another dtype has no batching rule")


for _name, _own in vars(np.ndarray).items():  # the other methods that are functions of NumPy, too
    if _name[0] != "_" and callable(_own) and hasattr(np, _name) and _name not in (*vars(ArrayMixin), "resize"):
        setattr(ArrayMixin, _name, _method(getattr(np, _name)))
for _each in ARITHMETIC:
    _forward, _reflected, _inplace = _binary(_each)
    setattr(ArrayMixin, _each.method, _forward)
    setattr(ArrayMixin, _each.reflected, _reflected)
    setattr(ArrayMixin, _each.inplace_method, _inplace)
for _each in COMPARISONS:
    _compare = _equality(_each) if _each.symbol in ("==", "!=") else _binary(_each)[0]
    setattr(ArrayMixin, _each.method, _compare)
for _one in UNARY:
    setattr(ArrayMixin, f"__{_one.name}__", _unary(_one.ufunc))


def _ufunc_into(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any], out: tuple[Any, ...]) -> Any:
    """A ufunc call with `out=`: the result is written into the given array."""
    target = out[0]
    called = ufunc if method == "__call__" else getattr(ufunc, method)
    if len(out) != 1 or target is None or (method == "outer" and "where" in kwargs):
        return refuse(called, inputs, {**kwargs, "out": out}, f"{name_of(called)} into several out=, or with where=")
    if not is_boxed(target):
        if rank_of(top_box((inputs, kwargs))) == BATCH_RANK:
            why = "a result that differs between examples is written into an array that they share"
            raise NeedsLoop(why, instead=OWN_LENGTHS)
        return refuse(called, inputs, {**kwargs, "out": out}, "a plain array as out=")
    if is_scalar(target):
        raise TypeError("return arrays must be of ArrayType")
    where = kwargs.pop("where", True) if method == "__call__" else True
    if where is not True:
        inputs = tuple(_set_elsewhere(ufunc, inputs, where))
    new = called(*inputs, **kwargs)
    new = cast_for_write(new if where is True else np.where(where, new, target), target, ufunc)
    write(target, new)
    return target


def _set_elsewhere(ufunc: np.ufunc, inputs: tuple[Any, ...], where: Any) -> Iterator[Any]:
    """The operands, Python's numbers in the ufunc's dtype, with 1 where `where` is False: nothing is reported there."""
    kinds = [dtype_of(x) if python_class(x) in (None, bool) else python_class(x) for x in inputs]
    for given, kind, dtype in zip(inputs, kinds, ufunc.resolve_dtypes((*kinds, None)), strict=False):
        x = np.multiply(np.ones((), dtype), given) if isinstance(kind, type) else given
        is_exponent = ufunc is np.power and not ndim_of(x) and dtype.kind == "f"  # one, which may be a root
        yield x if is_exponent else np.where(where, x, np.ones((), dtype_of(x)))


def _ufunc_at(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> None:
    """`np.add.at(x, index, values)` and `np.subtract.at`: repeated positions accumulate."""
    target, index, *values = inputs
    if ufunc not in (np.add, np.subtract) or not is_boxed(target):
        if not is_boxed(target) and rank_of(top_box((inputs,))) == BATCH_RANK:
            raise NeedsLoop("np.add.at into an array that the examples share")
        refuse(ufunc.at, inputs, {}, "")
        return
    added = as_array(values[0])
    if not np.can_cast(dtype_of(added), dtype_of(target), "same_kind"):  # NumPy cuts each sum off
        refuse(ufunc.at, inputs, {}, "np.add.at of values that do not fit into the array's dtype")
        return
    add_at(target, index, added if ufunc is np.add else -cast(added, dtype_of(target)))


class StandIn(RecordedArray, ArrayMixin):
    """Data of a batch in a form other than an array; converted to an array only when an operation needs one.

    A subclass defines `shape`, `dtype`, `_ab_rebind`, `_ab_apply` with the ops that it runs without the array, and
    `_ab_force`, which returns the array.
    """

    __slots__ = ()
    _ab_rank = BATCH_RANK - 1

    def _ab_force(self) -> Any:
        raise TypeError(f"{type(self).__name__} does not define `_ab_force`")

    def _ab_read(self, name: str) -> Any:
        return self._ab_force()

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        def forced(x: Any) -> Any:
            return x._ab_force() if isinstance(x, StandIn) else x

        return function(*map(forced, args), **{key: forced(value) for key, value in kwargs.items()})

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._ab_force(), dtype)

    def __copy__(self) -> Any:
        return copy.copy(self._ab_force())

    def __repr__(self) -> str:
        return repr(self._ab_force())
