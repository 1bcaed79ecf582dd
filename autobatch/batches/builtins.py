"""Python's builtins and `math` on per-lane values: what converted code calls in their place.

Each function here answers as the builtin does for every example, and is the builtin itself where no argument is a
batch. `LANE_FUNCTIONS` maps a builtin to its form here. What the lanes cannot answer together runs lane by lane,
without a warning: for a Python scalar per lane that is as fast as NumPy.
"""

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.forms import Batch, narrowed
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.results import batch_size_of, per_lane, stack_results, weak_lanes
from autobatch.batches.scalars import BINARY
from autobatch.core.batched import Lengths
from autobatch.core.op import is_boxed

__all__ = [
    "LANE_FUNCTIONS",
    "call_per_lane",
    "lane_abs",
    "lane_bool",
    "lane_complex",
    "lane_divmod",
    "lane_float",
    "lane_int",
    "lane_len",
    "lane_max",
    "lane_min",
    "lane_pow",
    "lane_round",
    "lane_str",
    "lane_sum",
]

_SAFE = float(1 << 62)


def call_per_lane(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function once per lane and stack the results; once, if no argument is a batch.

    >>> from autobatch.batches.masked import MaskedBatch
    >>> call_per_lane(str.upper, ObjectBatch(["a", "b"]))
    ObjectBatch(['A', 'B'])
    """
    if batch_size_of((args, kwargs)) is None:
        return function(*args, **kwargs)
    return stack_results(per_lane(function, args, kwargs))


def lane_len(value: Any) -> Any:
    """`len(x)` of each example: an int where all agree, else an int per lane.

    >>> from autobatch.batches.masked import MaskedBatch
    >>> lane_len(MaskedBatch.from_examples([[1, 2], [3]]))
    MaskedBatch(batch_size=2, example=int, data=[2 1])
    """
    if not isinstance(value, Batch):
        return len(value)
    x = narrowed(value)
    if isinstance(x, ObjectBatch):
        return stack_results(per_lane(len, (x,), {}))
    shape = x.shape
    if not shape:
        if x.scalar is None:
            raise TypeError("len() of unsized object")
        raise TypeError(f"object of type {x.scalar.__name__!r} has no len()")
    return shape[0]


def _is_plain_scalar(x: Any) -> bool:
    """Whether the lanes are scalars with data that NumPy may read."""
    if not isinstance(x, Batch) or getattr(x, "sizes", None) != ():
        return False
    data: Any = getattr(x, "data", None)
    return not is_boxed(data) and data.dtype.kind in "biuf"


def lane_int(x: Any = 0, *base: Any) -> Any:
    """`int(x)` per lane; NaN, infinities and values beyond int64 as Python has them."""
    x = narrowed(x)
    if not base and _is_plain_scalar(x):
        data = x.data
        if data.dtype.kind in "bi":
            return weak_lanes(data.astype(np.int64), int)
        if data.dtype.kind == "f" and (np.abs(data) < _SAFE).all():
            return weak_lanes(data.astype(np.int64), int)
    return call_per_lane(int, x, *base)


def lane_float(x: Any = 0.0) -> Any:
    """`float(x)` per lane."""
    x = narrowed(x)
    if _is_plain_scalar(x):
        return weak_lanes(x.data.astype(np.float64), float)
    return call_per_lane(float, x)


def lane_complex(*args: Any) -> Any:
    """`complex(...)` per lane."""
    return call_per_lane(complex, *args)


def lane_bool(x: Any = False) -> Any:
    """`bool(x)` per lane."""
    x = narrowed(x)
    if _is_plain_scalar(x):
        return weak_lanes(x.data != 0, bool)
    return call_per_lane(bool, x)


def lane_str(*args: Any) -> Any:
    """`str(...)` per lane."""
    return call_per_lane(str, *args)


def lane_abs(x: Any) -> Any:
    """`abs(x)` per lane."""
    return abs(x)


def lane_round(x: Any, *digits: Any) -> Any:
    """`round(x, digits)` per lane: an int per lane without `digits`."""
    x = narrowed(x)
    if not digits and getattr(x, "scalar", None) in (int, bool):
        return weak_lanes(x.data.astype(np.int64), int)
    if not digits and getattr(x, "scalar", None) is float and (np.abs(x.data) < _SAFE).all():
        return weak_lanes(np.rint(x.data).astype(np.int64), int)  # both round half to even
    return call_per_lane(round, x, *digits)


def lane_pow(base: Any, exponent: Any, *modulus: Any) -> Any:
    """`pow(...)` per lane."""
    return call_per_lane(pow, base, exponent, *modulus) if modulus else base**exponent


def lane_divmod(x: Any, y: Any) -> Any:
    """`divmod(x, y)` per lane: a pair of per-lane values."""
    if getattr(x, "scalar", None) is not None or getattr(y, "scalar", None) is not None:
        return BINARY["divmod"](x, y)
    return divmod(x, y)


def lane_min(*args: Any, **kwargs: Any) -> Any:
    """`min(...)` per lane: of several values, or of one iterable."""
    return _extreme(min, operator.lt, args, kwargs)


def lane_max(*args: Any, **kwargs: Any) -> Any:
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
    return call_per_lane(function, *args, **kwargs)


def _same_kind(args: tuple[Any, ...]) -> bool:
    """Whether all are scalars of one type, so that whichever wins the result has that type."""
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
    kind = getattr(a, "scalar", None) or getattr(b, "scalar", None)
    outcome: Any = wins
    if kind is None:
        return np.where(outcome, a, b)
    return weak_lanes(np.where(outcome.data, getattr(a, "data", a), getattr(b, "data", b)), kind)


def lane_sum(x: Any, start: Any = 0) -> Any:
    """`sum(x, start)` per lane. Over a ragged array it is one reduction, unless some example is empty."""
    if not isinstance(x, Batch):
        return sum(x, start)
    x = narrowed(x)
    sizes = getattr(x, "sizes", None)
    if sizes and type(start) is int and start == 0 and x.dtype.kind in "iufc":
        first = sizes[0]
        shortest = first.values.min(initial=1) if isinstance(first, Lengths) else first
        if shortest > 0:
            return np.sum(x, axis=0, dtype=np.result_type(x.dtype, 0))
    return call_per_lane(sum, x, start)


def _of_math(function: Callable[..., Any]) -> Callable[..., Any]:
    def per_example(*args: Any, **kwargs: Any) -> Any:
        return call_per_lane(function, *args, **kwargs)

    per_example.__name__ = function.__name__
    per_example.__doc__ = f"`math.{function.__name__}` per lane."
    return per_example


LANE_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    builtins.len: lane_len,
    builtins.int: lane_int,
    builtins.float: lane_float,
    builtins.complex: lane_complex,
    builtins.bool: lane_bool,
    builtins.str: lane_str,
    builtins.abs: lane_abs,
    builtins.round: lane_round,
    builtins.pow: lane_pow,
    builtins.divmod: lane_divmod,
    builtins.min: lane_min,
    builtins.max: lane_max,
    builtins.sum: lane_sum,
    **{f: _of_math(f) for name, f in vars(math).items() if callable(f) and not name.startswith("_")},
    **{f: _of_math(f) for f in (repr, chr, ord, bin, hex, oct, hash, format, ascii)},
}
