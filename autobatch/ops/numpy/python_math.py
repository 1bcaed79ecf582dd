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
from autobatch.ops.rules.op_kinds import elementwise


def _slope(x: Any) -> Any:
    return 2.0 / math.sqrt(math.pi) * np.exp(-x * x)


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


def _like(known: Op) -> Op:
    """The op of the `math` function that an op declares, with its derivative."""
    function, ufunc = known.number[0], known.impl  # type: ignore[index]
    op = elementwise(_on_each(function), name=f"math.{function.__name__}", pad=known.pad, number=known.number)
    op.ufunc = ufunc

    def vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        out, *own = [np.float64(x) if type(x) in (float, int, bool) else x for x in (out, *args)]  # 1 / 0.0 would raise
        if len(own) != ufunc.nin:  # type: ignore[attr-defined]  # of any number of operands, each is the first
            position, own = 0, [own[position], out]
        return known.vjp(position, ct, out, own, params)  # type: ignore[misc]

    op.vjp = known.vjp and vjp
    return op


OPS_OF_NUMBERS: dict[Any, Op] = {op.number[0]: _like(op) for op in UFUNCS.values() if getattr(op, "number", None)}  # type: ignore[attr-defined, arg-type]
OPS_OF_NUMBERS |= {
    math.log: elementwise(
        _on_each(math.log), lambda ct, out, x, *base: ct / (x if not base else x * np.log(base[0])),
        lambda ct, out, x, base: -ct * out / (base * np.log(base)), name="math.log", number=math.log,
    ),
    math.erf: elementwise(_on_each(math.erf), lambda ct, out, x: ct * _slope(x), name="math.erf", number=math.erf),
    math.erfc: elementwise(_on_each(math.erfc), lambda ct, out, x: -ct * _slope(x), name="math.erfc", number=math.erfc),
    float: elementwise(_on_each(float), lambda ct, out, x: ct, name="float"),
}  # fmt: skip
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
