"""Python scalars per lane, with Python's own semantics: operators, builtins and `math`.

`len(x)` or `x.shape[0]` of a ragged batch is an int per example. Such lanes behave as Python's ints, floats and bools,
not as NumPy's: `/` of ints is a float, a zero divisor raises, and an int never wraps. Where int64 or float64 arithmetic
gives exactly Python's result, all lanes are computed at once; else Python's operator runs lane by lane.

`LANE_FUNCTIONS` maps each builtin to the function that converted code calls instead: the same result per example, and
the builtin itself if no argument is a batch.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.any_batch import BINARY_OPERATORS, FORMS, Batch, common_size, narrowed
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.stacking import map_lanes, weak_lanes
from autobatch.core.batched import Batched, Lengths
from autobatch.core.op import is_boxed
from autobatch.facts.operators import COMPARISONS, overflowed
from autobatch.ops.numpy.python_math import OF_NUMBERS, of_number

_INT64 = np.iinfo(np.int64)
_EXACT = 1 << 53  # below, an int is exact as a float64
_SAFE = float(1 << 62)  # a float64 estimate below this bounds an int64 away from overflow


def is_python(value: object) -> bool:
    """True if a value is not an array, NumPy scalar or array of this library, or is a batch of Python scalars."""
    if getattr(value, "scalar", None) is not None:
        return True
    return not (isinstance(value, np.ndarray | np.generic) or is_boxed(value))


def is_pythons(left: object, right: object) -> bool:
    """True if an operator between them is Python's own: also of a complex number before np.float64, a Python float."""
    if (getattr(left, "scalar", None) or type(left)) is not complex or is_python(right):
        return is_python(left) and is_python(right)
    if isinstance(right, Batch):
        x: Any = right
        return getattr(x, "sizes", None) == () and x.dtype == np.float64 and not (x._zero_d or is_boxed(x.data))
    return isinstance(right, np.float64)


# Below, an operand is an array of lanes or one Python number; at least one is an array.


def _guarded(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    """A ufunc of ints as int64; None if it overflows."""

    def call(x: Any, y: Any) -> Any:
        out = ufunc(x, y)
        return None if overflowed(ufunc, out, x, y).any() else out

    return call


def _has_zero(y: object) -> bool:
    return not y.all() if isinstance(y, np.ndarray) else y == 0


def _is_exact(x: Any) -> bool:
    """True if float64 holds these ints exactly (also the smallest int64, whose np.abs is itself)."""
    return bool((np.abs(x) <= _EXACT).all()) if isinstance(x, np.ndarray) else -_EXACT <= x <= _EXACT


def _int_division(ufunc: np.ufunc) -> Callable[..., Any]:
    """A ufunc that divides ints as Python does, except by zero and for the smallest int64; None for these."""
    return lambda x, y: None if _has_zero(y) or np.any(np.equal(x, _INT64.min)) else ufunc(x, y)


def _finite_only(ufunc: np.ufunc) -> Callable[..., Any]:
    """A ufunc that agrees with Python's operator only for finite operands and a nonzero divisor; else None."""

    def divide(x: Any, y: Any) -> Any:
        finite = not _has_zero(y) and np.isfinite(x).all() and np.isfinite(y).all()
        return ufunc(x, y) if finite else None

    return divide


# {operator: (fast path for ints and bools as int64, fast path for floats)}. A function returns None if NumPy's result
# differs from Python's; then, and for all other operators, Python's operator runs lane by lane.
_FAST: dict[str, tuple[Any, Any]] = {
    "add": (_guarded(np.add), np.add),
    "sub": (_guarded(np.subtract), np.subtract),
    "mul": (_guarded(np.multiply), np.multiply),
    "truediv": (
        lambda x, y: None if _has_zero(y) or not (_is_exact(x) and _is_exact(y)) else np.true_divide(x, y),
        lambda x, y: None if _has_zero(y) else np.true_divide(x, y),
    ),
    "floordiv": (_int_division(np.floor_divide), _finite_only(np.floor_divide)),
    "mod": (_int_division(np.remainder), _finite_only(np.remainder)),
    "and": (np.bitwise_and, None),
    "or": (np.bitwise_or, None),
    "xor": (np.bitwise_xor, None),
    **{each.name: (each.ufunc, each.ufunc) for each in COMPARISONS},
}


def _binary(name: str, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    on_ints, on_floats = _FAST.get(name, (None, None))

    def call(a: Any, b: Any) -> Any:
        a, b = narrowed(a), narrowed(b)
        kind_a, kind_b = getattr(a, "scalar", None) or type(a), getattr(b, "scalar", None) or type(b)
        if isinstance(a, Batch) and isinstance(b, Batch):
            common_size((a, b))
        out: Any = None
        if kind_a in (int, bool) and kind_b in (int, bool):
            if on_ints is not None and (type(a) is not int or _fits(a)) and (type(b) is not int or _fits(b)):
                out = on_ints(_ints(a), _ints(b))
        elif on_floats is not None and _exact(a, kind_a) and _exact(b, kind_b):
            with np.errstate(all="ignore"):
                out = on_floats(_data(a), _data(b))
        if out is None:
            return map_lanes(function, a, b)
        if name in ("and", "or", "xor") and kind_a is kind_b is bool:
            out = out.astype(np.bool_)
        return weak_lanes(out, {"b": bool, "f": float}.get(out.dtype.kind, int))

    return call


def _fits(value: int) -> bool:
    return _INT64.min <= value <= _INT64.max


def _exact(x: Any, cls: type) -> bool:
    """True if float64 holds a real operand exactly, so that NumPy's mixed arithmetic equals Python's."""
    return _is_exact(x if type(x) is int else x.data) if cls is int else cls in (float, bool)


def _data(x: Any) -> Any:
    if getattr(x, "scalar", None) is None:
        return float(x)
    return x.data if x.scalar is float else x.data.astype(np.float64)


def _ints(x: Any) -> Any:
    if getattr(x, "scalar", None) is None:
        return int(x)
    return x.data if x.scalar is int else x.data.astype(np.int64)


def reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The operator with its operands exchanged."""
    return lambda a, b: function(b, a)


BINARY: dict[str, Callable[[Any, Any], Any]] = {name: _binary(name, f) for name, f in BINARY_OPERATORS.items()}


def _except_min(ufunc: np.ufunc) -> Callable[[Any], Any]:
    """A unary ufunc that agrees with Python's operator except for the smallest int64; None for that."""

    def call(x: Any) -> Any:
        own = x.data if x.scalar is float else _ints(x)
        return None if x.scalar is not float and np.any(np.equal(own, _INT64.min)) else ufunc(own)

    return call


def _unary(function: Callable[..., Any], fast: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(a: Any) -> Any:
        a = narrowed(a)
        out = None if a.scalar is complex else fast(a)
        return map_lanes(function, a) if out is None else weak_lanes(out, float if out.dtype.kind == "f" else int)

    return call


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": _unary(operator.neg, _except_min(np.negative)),
    "pos": _unary(operator.pos, lambda x: x.data if x.scalar is float else _ints(x)),
    "abs": _unary(abs, _except_min(np.abs)),
    "invert": _unary(operator.invert, lambda x: np.invert(x.data) if x.scalar is int else None),
}


def lane_len(value: Any) -> Any:
    """`len(x)` of each example: an int where all agree, else an int per lane.

    >>> from autobatch.batches.padded_batch import MaskedBatch
    >>> lane_len(MaskedBatch.from_examples([[1, 2], [3]]))
    MaskedBatch(batch_size=2, example=int, examples=[2 1])
    """
    if not isinstance(value, Batch):
        return len(value)
    x = narrowed(value)
    if isinstance(x, ObjectBatch):
        return map_lanes(len, x)
    shape = x.shape
    if not shape:
        if x.scalar is None:
            raise TypeError("len() of unsized object")
        raise TypeError(f"object of type {x.scalar.__name__!r} has no len()")
    return shape[0]


def _is_plain_scalar(x: object) -> bool:
    """True if the lanes are real scalars whose data is a plain NumPy array."""
    if not isinstance(x, Batch) or getattr(x, "sizes", None) != ():
        return False
    data: Any = getattr(x, "data", None)
    return not is_boxed(data) and data.dtype.kind in "biuf"


def lane_int(x: Any = 0, *base: Any) -> Any:
    """`int(x)` per lane; NaN, infinities and values beyond int64 as Python has them."""
    x = narrowed(x)
    if not base and _is_plain_scalar(x):
        code = x.data.dtype.kind
        if code in "bi" or (code == "f" and (np.abs(x.data) < _SAFE).all()):
            return weak_lanes(x.data.astype(np.int64), int)
    return map_lanes(int, x, *base)


def lane_float(x: Any = 0.0) -> Any:
    """`float(x)` per lane."""
    x = narrowed(x)
    return weak_lanes(x.data.astype(np.float64), float) if _is_plain_scalar(x) else _differentiable(float)(x)


def lane_pow(base: Any, exponent: Any, *modulus: Any) -> Any:
    """`pow(...)` per lane."""
    return map_lanes(pow, base, exponent, *modulus) if modulus else base**exponent


def lane_min(*args: object, **kwargs: object) -> Any:
    """`min(...)` per lane: of several values, or of one iterable."""
    return _extreme(min, operator.lt, args, kwargs)


def lane_max(*args: object, **kwargs: object) -> Any:
    """`max(...)` per lane: of several values, or of one iterable."""
    return _extreme(max, operator.gt, args, kwargs)


def _extreme(function: Callable[..., Any], better: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
    args = tuple(narrowed(arg) for arg in args)
    if len(args) == 1 and not kwargs and isinstance(args[0], list | tuple) and args[0]:
        args = tuple(narrowed(arg) for arg in args[0])
        if len(args) == 1:
            return args[0]
    if len(args) > 1 and not kwargs and _same_kind(args):
        best = args[0]
        for arg in args[1:]:  # Python keeps the first of equals, and a NaN only if it comes first
            wins = better(arg, best)
            best = _choose(wins, arg, best)
        return best
    if len(args) > 1 and not kwargs and all(_scalar_kind(arg) in (float, np.float64) for arg in args):
        return _extreme_of_both(better, args)
    return map_lanes(function, *args, **kwargs)


def _extreme_of_both(better: Callable[[Any, Any], Any], args: Any) -> Any:
    """min or max of Python floats mixed with np.float64: each lane has the type of its extreme value."""
    datas: list[Any] = [getattr(arg, "data", arg) if isinstance(arg, Batch) else float(arg) for arg in args]
    if any(map(is_boxed, datas)):
        return map_lanes(min if better is operator.lt else max, *args)
    best, kinds = datas[0], [_scalar_kind(arg) is float for arg in args]
    python: Any = kinds[0]
    for is_python, data in zip(kinds[1:], datas[1:], strict=True):
        wins: Any = better(data, best)
        best, python = np.where(wins, data, best), np.where(wins, is_python, python)
    size = common_size(arg for arg in args if isinstance(arg, Batch))
    best, python = np.broadcast_to(best, size).copy(), np.broadcast_to(python, size)
    if python.all():
        return weak_lanes(best, float)
    if not python.any():
        return FORMS["masked"].of(Batched(best, ()))
    return ObjectBatch(
        [one if is_python else other for one, other, is_python in zip(best.tolist(), best, python, strict=True)]
    )


def _same_kind(args: tuple[Any, ...]) -> bool:
    """True if all are scalars of one type, which is then the result's type in every lane."""
    kinds = {_scalar_kind(arg) for arg in args}
    return len(kinds) == 1 and None not in kinds


def _scalar_kind(x: Any) -> Any:
    if getattr(x, "scalar", None) is not None:
        return x.scalar if x.scalar is not complex else None
    if isinstance(x, Batch):
        return x.data.dtype if getattr(x, "sizes", None) == () and hasattr(x, "data") else None
    if isinstance(x, np.generic):
        return x.dtype
    if type(x) is int and not -(1 << 63) <= x < 1 << 63:
        return None
    return type(x) if type(x) in (int, float, bool) else None


def _choose(wins: Any, a: Any, b: Any) -> Any:
    if not isinstance(wins, Batch):
        return a if wins else b
    scalar = getattr(a, "scalar", None) or getattr(b, "scalar", None)
    outcome: Any = wins
    if scalar is None:
        return np.where(outcome, a, b)
    return weak_lanes(np.where(outcome.data, getattr(a, "data", a), getattr(b, "data", b)), scalar)


def lane_sum(x: Any, start: Any = 0) -> Any:
    """`sum(x, start)` per lane. Over a ragged array it is one reduction, unless some example is empty."""
    if not isinstance(x, Batch):
        return sum(x, start)
    x = narrowed(x)
    sizes = getattr(x, "sizes", None)
    if sizes and type(start) is int and start == 0 and x.dtype.kind in "iufc":
        first = sizes[0]
        shortest = first.values.min(initial=1) if isinstance(first, Lengths) else first
        dtype = np.result_type(x.dtype, 0)
        if shortest > 0 and (len(sizes) > 1 or dtype.kind not in "iu" or _sums_fit(x, dtype)):
            return np.sum(x, axis=0, dtype=dtype)
    return map_lanes(sum, x, start)


def _sums_fit(x: Any, dtype: np.dtype) -> bool:
    """True if the sum of any items of an example fits into the integer dtype, in which an overflow is reported."""
    sizes = np.sum(np.abs(x.astype(np.float64)), axis=0)
    return bool((np.asarray(sizes.data) < np.iinfo(dtype).max / 2).all())


def _differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers, called per lane, through which gradients flow."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(narrowed(arg) for arg in args)
        datas = [arg.data for arg in args if getattr(arg, "sizes", None) == () and hasattr(arg, "data")]
        if kwargs or not any(map(is_boxed, datas)):
            return map_lanes(function, *args, **kwargs)
        out = of_number(function, *args)
        return weak_lanes(out.data, float if out.dtype.kind == "f" else bool)

    return call


_PER_LANE: list[Callable[..., Any]] = [bool, complex, round, str, repr, chr, ord, bin, hex, oct, hash, format, ascii]
_PER_LANE += [function for name, function in vars(math).items() if callable(function) and not name.startswith("_")]
_NUMBERS = [function for function in _PER_LANE if function in OF_NUMBERS]

LANE_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{function: functools.partial(map_lanes, function) for function in _PER_LANE},
    **{function: _differentiable(function) for function in _NUMBERS},
    len: lane_len,
    int: lane_int,
    float: lane_float,
    abs: abs,  # a batch has the method that it calls
    divmod: divmod,
    pow: lane_pow,
    min: lane_min,
    max: lane_max,
    sum: lane_sum,
}
