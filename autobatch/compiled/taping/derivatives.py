"""Partial derivatives as text: the vjps of the ops, run on symbols of numbers, a cotangent of 1.0 going in."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.compiled.translation.exact_types import DTYPES
from autobatch.core.op import Op
from autobatch.facts import operators
from autobatch.ops.numpy.elementwise import share_p
from autobatch.ops.numpy.python_math import OPS_OF_NUMBERS
from autobatch.ops.rules.dispatch import UFUNCS

NAMED: dict[str, Any] = {
    **{op.number[1]: function for function, op in OPS_OF_NUMBERS.items() if op.number},
    **{each.symbol: each.ufunc for each in operators.BINARY},
    "abs": np.absolute, "squared": np.square, "modulo": np.remainder,
}  # fmt: skip
"""What the names and signs in compiled text stand for."""

_IN_MATH = {getattr(np, name[5:], None): name for name in NAMED if name.startswith("math.")}
_WRITTEN = {
    **_IN_MATH, np.sign: "sign_of", np.exp2: "np.exp2", np.negative: "-", np.invert: "not ", np.bitwise_or: "or",
    **{each.ufunc: each.symbol for each in (*operators.ARITHMETIC[:4], *operators.COMPARISONS)},
}  # fmt: skip


class _Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """A float that stands for its text; `is_root`: it is infinite where what it is divided by is zero."""

    _ab_rank, dtype, shape, is_root = 0, np.dtype(float), (), False

    def __init__(self, text: str) -> None:
        self.text = text

    def __bool__(self) -> bool:
        raise TypeError("a derivative that asks for the values of its operands has no text")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any) -> Any:
        for one, other in (operands, operands[::-1]) if ufunc is np.multiply else ():
            if not isinstance(one, _Symbol) and abs(one) == 1:
                return other if one == 1 else -other
        word, texts = _WRITTEN.get(ufunc, f"np.{ufunc.__name__}"), list(map(_text, operands))
        if word.startswith("np.") and getattr(np, word[3:], None) is not ufunc:
            raise TypeError(f"{word} is not a NumPy function")
        if "." in word or "_" in word:
            return _Symbol(f"{word}({', '.join(texts)})")
        return _Symbol(f"({f' {word} '.join(texts)})" if len(texts) > 1 else f"({word}{texts[0]})")

    def __array_function__(self, function: Any, classes: Any, args: Sequence[Any], named: Any) -> "_Symbol":
        if function is not np.where:
            raise TypeError(f"{function} has no text")
        condition, one, other = map(_text, args)
        return _Symbol(f"({one} if {condition} else {other})")

    def _ab_apply(self, op: Op, args: Sequence[Any], params: Any) -> "_Symbol":
        if op is not share_p:
            raise TypeError(f"{op} has no text")
        share, of = map(_text, args)
        out = _Symbol(f"({share} / {of} if {of} != 0 else math.copysign(real(INF), {of}))")
        out.is_root = True
        return out


def _text(x: Any) -> str:
    """`real` is the tape's dtype: a number of Python's would make doubles of floats of single precision."""
    return x.text if isinstance(x, _Symbol) else f"real({float(x)!r})".replace("inf", "INF").replace("nan", "NAN")


def meaning_of(head: str, count: int) -> Any:
    """The function that compiled text applies to `count` operands; None for what is not differentiated as a whole."""
    return np.negative if head == "-" and count == 1 else NAMED.get(head)


def is_constant(ufunc: np.ufunc) -> bool:
    """True if the result of a ufunc carries no gradient."""
    op = UFUNCS.get(ufunc)
    return isinstance(op, Op) and op.vjp is None


def partials_of(function: Any, count: int) -> tuple[list[str], bool] | None:
    """The partial derivatives of a ufunc or a function of `math`, one for each of `count` operands; None if unknown.

    In their text {0} and {1} are the operands, {y} is the result, `real` the tape's dtype. The second value: they are
    infinite where the result is zero.
    """
    op = OPS_OF_NUMBERS.get(function) or UFUNCS.get(function)
    return None if not isinstance(op, Op) or op.vjp is None else _traced(op, count)


@functools.lru_cache(maxsize=256)
def _traced(op: Op, count: int) -> tuple[list[str], bool] | None:
    symbols = [_Symbol(f"{{{place}}}") for place in range(count)]
    try:
        found = [op.vjp(place, np.float64(1.0), _Symbol("{y}"), symbols, {}) for place in range(count)]  # type: ignore[misc]
    except Exception:  # a vjp that is no formula of the operands, such as one of the user's
        return None
    texts = [_text(0.0 if each is None else each) for each in found]
    return texts, any(isinstance(each, _Symbol) and each.is_root for each in found)


CONSTANT = frozenset((
    *(name for name in DTYPES if "int" in name), "uint64", "boolean", "len", "extent", "address", "floor_divide",
    "add", "subtract", "multiply", "integer_power",
    *(f"np.{ufunc.__name__}" for ufunc in UFUNCS if is_constant(ufunc)),
    *(op.name for op in OPS_OF_NUMBERS.values() if op.vjp is None),
))  # fmt: skip
"""Functions of compiled lines whose results carry no gradient: they make integers, count, round and test."""
