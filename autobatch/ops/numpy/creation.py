"""Creation of arrays whose sizes may differ between examples, and the `_like` functions.

`np.zeros` and its relatives take no array argument, so NumPy does not dispatch them to this library. Instead, lock-step
looks a function up in `CREATION` and calls the implementation found there if an argument differs between examples.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, is_non_c_order, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import Unsupported
from autobatch.ops.numpy.shaping import broadcast_to_p
from autobatch.ops.rules.aliasing import is_contiguous, is_scalar, stand_in, unclear_view, write_into, zero_d
from autobatch.ops.rules.dispatch import any_true, implements, refuse, top_box
from autobatch.ops.rules.op_kinds import check_numbers, lane_by_lane, python_class
from autobatch.ops.rules.sizes import fill_template, lane_count, lane_sizes, padded_shape, size_operands


def _full_of_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    sizes = lane_sizes(params["shape"], operands)
    for size in sizes:
        if isinstance(size, Lengths) and (size.values < 0).any():
            raise ValueError("negative dimensions are not allowed")
    shape = padded_shape(lane_count(operands), sizes, params["dtype"].itemsize)
    return Batched(np.full(shape, params["value"], params["dtype"]), sizes)


full_of_p = Op(
    "full", lambda *sizes, shape, value, dtype: np.full(fill_template(shape, sizes), value, dtype),
    rule=_full_of_rule, kind="creation",
)  # fmt: skip


def _constant(shape: Any, value: Any, dtype: Any) -> Any:
    template, operands = size_operands(shape)
    if not operands:
        return np.full(template, value, dtype)
    return full_of_p(*operands, shape=template, value=value, dtype=np.dtype(dtype))


def _ordered(out: Any, order: Any) -> Any:
    """A new array, which is in C order, converted to this memory order."""
    return np.copy(out, order=order) if order in ("F", "A") else out


def _of_one_value(name: str, value: int) -> Callable[..., Any]:
    def make(shape: Any, dtype: Any = None, order: str = "C") -> Any:
        return _ordered(_constant(shape, value, dtype or float), order)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"np.{name}; a size may be a per-example integer."
    return make


zeros, ones, empty = _of_one_value("zeros", 0), _of_one_value("ones", 1), _of_one_value("empty", 0)
MADE_LIKE: dict[Any, Any] = {np.zeros: np.zeros_like, np.ones: np.ones_like, np.empty: np.empty_like}


def full(shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C") -> Any:
    """np.full; sizes and the value may differ between examples, and the gradient flows through the value."""
    if not is_boxed(fill_value):
        if ndim_of(fill_value) == 0:
            return _ordered(_constant(shape, np.asarray(fill_value).item(), dtype or dtype_of(fill_value)), order)
        fill_value = np.asarray(fill_value)
    if dtype in (object, "O"):
        raise Unsupported("np.full of objects, which keep their classes")
    if dtype is not None and dtype_of(fill_value) != dtype:
        if python_class(fill_value):  # NumPy's own numbers are cast
            check_numbers(fill_value, np.dtype(dtype))
        fill_value = fill_value.astype(dtype)
    template, operands = size_operands(shape)
    return zero_d(np.copy(broadcast_to_p(fill_value, *operands, shape=template), order=order))


# It has a vjp, which returns None, so that the result is recorded on the operand's tape: values that carry gradients
# can then be written into it.
like_p = Op(
    "full_like", lambda a, fill_value, dtype: np.full_like(a, fill_value, dtype),
    rule=lambda op, operands, params: Batched(np.full(shape_of(operands[0].data), **params), operands[0].sizes),
    vjp=lambda position, ct, out, args, params: None, kind="creation",
)  # fmt: skip


def _like(a: Any, value: Any, dtype: Any, shape: Any, order: Any) -> Any:
    dtype = dtype_of(a) if dtype is None else np.dtype(dtype)
    if shape is None:
        out = zero_d(like_p(a, fill_value=value, dtype=dtype))
        return out if order == "K" else np.copy(out, order=order)
    return _ordered(_constant(shape, value, dtype), order)


def _register_like(value: int, *functions: Callable[..., Any]) -> None:
    @implements(*functions)
    def of_one_value_like(a: Any, dtype: Any = None, order: str = "K", *, shape: Any = None) -> Any:
        return _like(a, value, dtype, shape, order)


_register_like(0, np.zeros_like, np.empty_like)
_register_like(1, np.ones_like)


@implements(np.full_like)
def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", *, shape: Any = None, **_: Any) -> Any:
    dtype = dtype_of(a) if dtype is None else np.dtype(dtype)
    if not is_boxed(fill_value) and ndim_of(fill_value) == 0:
        return _like(a, np.asarray(fill_value).item(), dtype, shape, order)
    if shape is None and order in ("K", "A") and is_non_c_order(a):
        return write_into(_like(a, 0, dtype, None, order), full(shape_of(a), fill_value, dtype))
    return full(shape_of(a) if shape is None else shape, fill_value, dtype, "F" if order == "F" else "C")


def _arange(*bounds: Any, given: int, dtype: np.dtype | None) -> Any:
    values = [bound.item() if isinstance(bound, np.ndarray) else bound for bound in bounds]
    return np.arange(*values, dtype=dtype)


def _arange_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lane_count(operands)
    values = [np.asarray(x.data if isinstance(x, Batched) else x) for x in operands]
    if (dtype := params["dtype"]) is None:
        dtype = np.arange(*(_one_like(x, v.dtype) for x, v in zip(operands, values, strict=True))).dtype
    kinds = [v.dtype for x, v in zip(operands, values, strict=True) if getattr(x, "scalar", type(x)) is not int]
    # Integers up to here are exact as floats, and their sums as int64.
    if any(v.dtype.kind == "O" or (v.dtype.kind in "iu" and (np.abs(v.astype(float)) > 1 << 53).any()) for v in values):
        return lane_by_lane(op, operands, params)
    values = [v.astype(np.int64) if v.dtype.kind in "iu" else v for v in values]
    bounds: list[Any] = [np.zeros(1, np.int64), *values] if len(values) == 1 else values
    start, stop, step = [*bounds, np.ones(1, np.int64)][:3]
    rounded = any(each.kind == "f" and each.itemsize < 8 and each != dtype for each in kinds)
    wraps = bounds is values and not all(_fits(each, start, stop - start, start + step) for each in (dtype, *kinds))
    if rounded or wraps:  # NumPy computes with the bounds' own numbers
        return lane_by_lane(op, operands, params)
    if (step == 0).any():
        raise ZeroDivisionError("division by zero")
    size = Lengths(np.broadcast_to(np.maximum(np.ceil((stop - start) / step), 0).astype(np.int64), (lanes,)))
    steps = np.arange(size.max()).astype(dtype if dtype.kind == "u" else np.int64)  # a falling one wraps
    first = start.astype(dtype).reshape(-1, 1)
    delta = (start + step).astype(dtype).reshape(-1, 1) - first  # from two elements that are rounded, as NumPy does
    return Batched((first + steps * delta).astype(dtype) + np.zeros((lanes, 1), dtype), (size,))


def _fits(dtype: np.dtype, *values: np.ndarray) -> bool:
    """True if an integer dtype holds these integers; True for others."""
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return all(each.dtype.kind != "i" or bool(((each >= limits.min) & (each <= limits.max)).all()) for each in values)


def _one_like(bound: Any, dtype: np.dtype) -> Any:
    """The number 1 in the type that a bound has in one example: a Python number or a NumPy scalar."""
    cls = bound.scalar if isinstance(bound, Batched) else type(bound)
    return cls(1) if cls in (int, float) else dtype.type(1)


arange_p = Op("arange", _arange, rule=_arange_rule, data_dependent=True, kind="creation")


def arange(*bounds: Any, dtype: Any = None, **named: Any) -> Any:
    """np.arange; start, stop and step may differ between examples."""
    given = [*bounds, *(named[key] for key in ("start", "stop", "step") if named.get(key) is not None)]
    if len(given) == 4:
        dtype = given.pop()
    if any(rank_of(bound) == BATCH_RANK for bound in given):
        if dtype in (object, "O"):
            raise Unsupported("np.arange of objects, which keep their classes")
        return arange_p(*given, given=len(given), dtype=None if dtype is None else np.dtype(dtype))
    given = [float(x) if is_boxed(x) and dtype_of(x).kind not in "iu" else x for x in given]
    return np.arange(*[operator.index(x) if is_boxed(x) else x for x in given], dtype=dtype)


def eye(N: Any, M: Any = None, k: int = 0, dtype: Any = float, order: str = "C") -> Any:  # noqa: N803
    """np.eye; the sizes may differ between examples."""
    if any(is_boxed(size) and dtype_of(size).kind not in "iu" for size in (N, M)):
        raise Unsupported("np.eye of a size that is not an int")
    rows = arange(N)
    return (rows[:, None] + k == (rows if M is None else arange(M))).astype(dtype)


def identity(n: Any, dtype: Any = None) -> Any:
    """np.identity; the size may differ between examples."""
    return eye(n, dtype=dtype or float)


def linspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:
    """np.linspace for a number and bounds that may differ between examples; differentiable in the bounds."""
    if axis != 0 or ndim_of(start) or ndim_of(stop):
        raise Unsupported("linspace between arrays")
    if not is_boxed(num):
        num = len(np.linspace(0.0, 1.0, num))  # an index, and not negative
    elif retstep or dtype_of(num).kind not in "iu" or any_true(num < 0):
        raise Unsupported("np.linspace with retstep=, or a number by example that is negative or not an int")
    float_dtype = dtype_of(np.add(start, stop) * 1.0)
    if float_dtype.kind == "f":  # unsigned integers would wrap; a complex zero could change its sign
        start, stop = start * 1.0, stop * 1.0
    steps = arange(num).astype(float_dtype)
    parts = num - 1 if endpoint else num
    step = ((stop - start) / (np.maximum(parts, 1) * 1.0)).astype(float_dtype)
    out = steps * step + start
    if endpoint:
        out = np.where((steps == parts) & (steps > 0), stop, out)
    out = out.astype(float_dtype)
    if dtype is not None:
        out = (np.floor(out) if np.dtype(dtype).kind in "iu" else out).astype(dtype)
    return (out, step if parts > 0 else np.nan) if retstep else out


def array(
    object: Any, dtype: Any = None, *, copy: Any = True, order: Any = "K", subok: bool = False, ndmin: int = 0
) -> Any:
    """np.array of this library's arrays, or of nested lists that contain some."""
    of_objects = _has_objects(object) if dtype is None else np.dtype(dtype).hasobject
    if of_objects and isinstance(object, list | tuple) and top_box(object) is not None:
        given = {"dtype": dtype, "copy": copy, "order": order, "ndmin": ndmin}
        return refuse(np.array, (object,), given, "an array of objects, which keep their classes")
    try:
        out = _stacked(object, None if dtype is None else np.dtype(dtype))
    except ValueError:
        if rank_of(top_box(object)) < BATCH_RANK:
            np.array(_of_their_shapes(object))  # raises NumPy's error, for the nested lists as a whole
        raise
    if not is_boxed(out):
        return np.array(out, dtype=dtype, copy=copy, ndmin=ndmin)
    if dtype is not None and dtype_of(out) != np.dtype(dtype):
        if python_class(out):  # those of a list are checked, and NumPy's own numbers are cast
            check_numbers(out, np.dtype(dtype))
        out = out.astype(dtype, order=order or "K")
    elif out is object and (copy or is_scalar(out)):
        out = np.copy(out, order=order or "K")
    elif order in ("C", "F", "A"):
        out = _in_order(out, order)
    return zero_d(out) if ndim_of(out) >= ndmin else out[(None,) * (ndmin - ndim_of(out))]


def _stacked(item: Any, dtype: np.dtype | None) -> Any:
    if not isinstance(item, list | tuple):
        return item
    parts = [_stacked(part, dtype) for part in item]
    if not any(map(is_boxed, parts)):
        return item
    return np.stack(parts if dtype is None else [_converted(part, dtype) for part in parts])


def _converted(part: Any, dtype: np.dtype) -> Any:
    """A part of an array in its dtype, as NumPy converts each: they need not have a common one that holds them."""
    if not is_boxed(part):
        return np.array([part], dtype)[0]  # of a list, NumPy checks that the dtype holds each number
    if not hasattr(part, "dtype"):
        raise Unsupported("np.array of objects")
    if python_class(part) or (not ndim_of(part) and dtype.kind != "u"):
        check_numbers(part, dtype)
    return part if dtype_of(part) == dtype else np.astype(part, dtype)


def _has_objects(item: Any) -> bool:
    """True if an item of nested lists is of no number's type that an array could have."""
    if isinstance(item, list | tuple):
        return any(map(_has_objects, item))
    if is_boxed(item):
        return rank_of(item) == BATCH_RANK and not isinstance(item, Batched | Packed)
    return item is None or (type(item) is int and not -(2**63) <= item < 2**64) or np.asarray(item).dtype.hasobject


def _of_their_shapes(item: Any) -> Any:
    return [_of_their_shapes(part) for part in item] if isinstance(item, list | tuple) else np.empty(shape_of(item))


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None) -> Any:
    """np.asarray of this library's arrays, or of nested lists that contain some."""
    if is_boxed(a) and not copy and dtype is None and not is_scalar(a) and order in (None, "K"):
        return a
    return array(a, dtype, copy=copy, order=order)


def _in_order(x: Any, order: Any) -> Any:
    """The array itself if it is in this memory order, else a copy; if that is unknown, an unclear view."""
    if order != "F" and is_contiguous(x) and getattr(x, "_ab_plain", None) is None:
        return x
    plain = stand_in(x)
    if plain is not None:
        return x if np.asarray(plain, order=order) is plain else np.copy(x, order=order)
    return unclear_view(np.copy(x, order=order), x)


_MADE: dict[Any, Callable[..., Any]] = {
    np.zeros: zeros, np.ones: ones, np.empty: empty, np.full: full, np.arange: arange, np.eye: eye,
    np.identity: identity, np.linspace: linspace, np.array: array, np.asarray: asarray, np.asanyarray: asarray,
    np.ascontiguousarray: lambda a, dtype=None: array(a, dtype, copy=False, order="C", ndmin=1),
}  # fmt: skip
CREATION: dict[Callable[..., Any], Callable[..., Any]] = {
    function: implements(function)(ours) for function, ours in _MADE.items()
}


@implements(np.vander)
def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:  # noqa: N803
    if ndim_of(x) != 1:
        raise ValueError("x must be a one-dimensional array or sequence.")
    powers = arange(shape_of(x)[0] if N is None else N)
    return x[:, None] ** (powers if increasing else powers[::-1])
