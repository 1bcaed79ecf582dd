"""Functions of Python's `math`, and `float`, for numbers that carry a gradient.

`math.exp(x)` converts its argument to a Python float, by which a recorded number would lose its gradient. In converted
code for differentiation these calls are therefore replaced by `number(math.exp)(x)`. Each function is an op: the
implementation calls Python's function, per element for an array of lanes, so values equal Python's; the vjp is that of
the ufunc whose op names the function.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.op import Op
from autobatch.errors import NeedsLoop
from autobatch.ops.numpy.elementwise import astype_p
from autobatch.ops.rules.dispatch import UFUNCS, top_box
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


def _like(known: Op) -> Op:
    """The op of the `math` function that an op declares, with its derivative."""
    function: Any = known.number
    if known.vjp is None:
        return elementwise(_on_each(function), name=f"math.{function.__name__}")

    def vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if len(args) != known.impl.nin:  # type: ignore[attr-defined]  # of any number of operands, each is the first
            position, args = 0, (args[position], out)
        return known.vjp(position, ct, out, args, params)  # type: ignore[misc]

    return Op(f"math.{function.__name__}", _on_each(function), rule=elementwise_rule, vjp=_strong(vjp),
              kind="elementwise", pad=known.pad, ufunc=known.impl, native=known.native)  # fmt: skip


def _with(function: Any, *columns: Callable[..., Any] | None) -> Op:
    """The op of a `math` function, with a vjp for each argument, as in `vjp_columns`."""
    out = elementwise(_on_each(function), name=f"math.{function.__name__}")
    out.vjp = _strong(vjp_columns(columns))  # type: ignore[arg-type]
    return out


OPS_OF_NUMBERS: dict[Any, Op] = {op.number: _like(op) for op in UFUNCS.values() if getattr(op, "number", None)}  # type: ignore[attr-defined, arg-type]
OPS_OF_NUMBERS[math.log] = _with(
    math.log,
    lambda ct, out, x, *base: ct / (x if not base else x * np.log(base[0])),
    lambda ct, out, x, base: -ct * out / (base * np.log(base)),
)
OPS_OF_NUMBERS[math.erf] = _with(math.erf, lambda ct, out, x: ct * (_TWO_BY_ROOT_OF_PI * np.exp(-x * x)))
OPS_OF_NUMBERS[math.erfc] = _with(math.erfc, lambda ct, out, x: ct * (-_TWO_BY_ROOT_OF_PI * np.exp(-x * x)))
OPS_OF_NUMBERS[float] = elementwise(_on_each(float), lambda ct, out, x: ct, name="float")
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
