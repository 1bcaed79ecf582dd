"""Functions of Python's `math`, and `float`, for numbers that carry a gradient.

`math.exp(x)` converts its argument to a Python float, by which a recorded number would lose its gradient. In converted
code for differentiation these calls are therefore replaced by `number(math.exp)(x)`. Each function is an op: the
implementation calls Python's function, per element for an array of lanes, so values equal Python's; the vjp is that of
the corresponding ufunc.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op
from autobatch.errors import NeedsLoop
from autobatch.ops.numpy.elementwise import UFUNCS, astype_p
from autobatch.ops.rules.dispatch import top_box
from autobatch.ops.rules.op_kinds import elementwise, elementwise_rule, vjp_columns

_TWO_BY_ROOT_OF_PI = 2.0 / math.sqrt(math.pi)


def _on_each(function: Callable[..., float]) -> Callable[..., Any]:
    """The function, extended to arrays of lanes: called once per element."""

    @functools.wraps(function)
    def call(*numbers: Any) -> Any:
        if not any(isinstance(each, np.ndarray) and each.ndim for each in numbers):
            return function(*numbers)
        arrays = np.broadcast_arrays(*numbers)
        try:
            values = [function(*each) for each in zip(*(array.ravel().tolist() for array in arrays), strict=True)]
        except (ArithmeticError, ValueError) as error:  # the loop finds the failing example
            raise NeedsLoop(f"math.{function.__name__}: {error}") from None
        dtype = bool if values and type(values[0]) is bool else float
        return np.array(values, dtype).reshape(arrays[0].shape)

    return call


def _strong(vjp: Callable[..., Any]) -> Callable[..., Any]:
    """The vjp with Python numbers converted to NumPy scalars, since dividing by a Python 0.0 raises an error."""

    def call(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        own = [np.float64(each) if type(each) in (float, int, bool) else each for each in args]
        return vjp(position, ct, np.float64(out) if type(out) is float else out, own, params)

    return call


def _like(function: Any, ufunc: Any) -> Op:
    """The op of a `math` function whose derivative is that of a ufunc."""
    known: Any = UFUNCS[ufunc]
    return Op(f"math.{function.__name__}", _on_each(function), rule=elementwise_rule, vjp=_strong(known.vjp),
              kind="elementwise", pad=known.pad)  # fmt: skip


def _with(function: Any, *columns: Callable[..., Any] | None) -> Op:
    """The op of a `math` function, with a vjp for each argument, as in `vjp_columns`."""
    out = elementwise(_on_each(function), name=f"math.{function.__name__}")
    out.vjp = _strong(vjp_columns(columns))  # type: ignore[arg-type]
    return out


def _hypot_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return unbroadcast(ct * args[position] / np.where(out == 0, 1.0, out), args[position])


_UFUNC_OF = {
    math.sqrt: np.sqrt, math.exp: np.exp, math.expm1: np.expm1, math.log2: np.log2, math.log10: np.log10,
    math.log1p: np.log1p, math.sin: np.sin, math.cos: np.cos, math.tan: np.tan, math.asin: np.arcsin,
    math.acos: np.arccos, math.atan: np.arctan, math.atan2: np.arctan2, math.sinh: np.sinh, math.cosh: np.cosh,
    math.tanh: np.tanh, math.asinh: np.arcsinh, math.acosh: np.arccosh, math.atanh: np.arctanh, math.fabs: np.fabs,
    math.pow: np.power, math.fmod: np.fmod, math.copysign: np.copysign, math.degrees: np.degrees,
    math.radians: np.radians,
}  # fmt: skip
for _name in ("exp2", "cbrt"):  # since Python 3.11
    if hasattr(math, _name):
        _UFUNC_OF[getattr(math, _name)] = getattr(np, _name)

OPS_OF_NUMBERS: dict[Any, Op] = {function: _like(function, ufunc) for function, ufunc in _UFUNC_OF.items()}
OPS_OF_NUMBERS[math.log] = _with(
    math.log,
    lambda ct, out, x, *base: ct / (x if not base else x * np.log(base[0])),
    lambda ct, out, x, base: -ct * out / (base * np.log(base)),
)
OPS_OF_NUMBERS[math.erf] = _with(math.erf, lambda ct, out, x: ct * (_TWO_BY_ROOT_OF_PI * np.exp(-x * x)))
OPS_OF_NUMBERS[math.erfc] = _with(math.erfc, lambda ct, out, x: ct * (-_TWO_BY_ROOT_OF_PI * np.exp(-x * x)))
OPS_OF_NUMBERS[math.hypot] = _with(math.hypot)
OPS_OF_NUMBERS[math.hypot].vjp = _strong(_hypot_vjp)
OPS_OF_NUMBERS[float] = elementwise(_on_each(float), lambda ct, out, x: ct, name="float")

OPS_OF_NUMBERS |= {
    each: elementwise(_on_each(each), name=f"math.{each.__name__}") for each in (math.isnan, math.isinf, math.isfinite)
}
_CASTS = (np.float64, np.float32)


def _value(x: Any) -> Any:
    """A number of a lazy trace (`_ab_waits`) as its computed value; any other, also on a tape, unchanged."""
    return x._ab_read("__float__") if getattr(x, "_ab_waits", False) else x


def of_number(function: Any, *args: Any) -> Any:
    """Call a function of `OF_NUMBERS` with arguments of which at least one is an array of this library."""
    if function not in _CASTS:
        return OPS_OF_NUMBERS[function](*map(_value, args))
    return astype_p(_value(args[0]), dtype=np.dtype(function)) if not np.ndim(args[0]) else function(*args)


OF_NUMBERS = frozenset({*OPS_OF_NUMBERS, *_CASTS})
"""The functions that `number` accepts."""


@functools.cache
def number(function: Any) -> Callable[..., Any]:
    """A function of `OF_NUMBERS`, wrapped to accept numbers that carry a gradient.

    >>> number(math.sqrt)(4.0)
    2.0
    """

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not args or top_box(args) is None:
            return function(*args, **kwargs)
        return of_number(function, *args)

    return call
