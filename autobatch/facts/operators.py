"""Python's operators, with symbol, syntax, function, methods and ufunc, and where those of NumPy's scalars differ.

`DIFFERENCES` says where an operator between NumPy scalars differs from its ufunc.

NumPy has code of its own for `x + y` of two scalars (or of a scalar and a Python number): an integer that overflows is
reported, complex numbers are ordered by their real parts even if an imaginary part is NaN, and `x ** 0.5` is no square
root. `np.add(x, y)`, and an operator of which one operand is an array, is the ufunc.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary operator.

    Attributes:
        symbol: as in source code. name: its method's name without underscores (`add`, `and`).
        syntax: its class's name in `ast`. function: its function in module `operator`. ufunc: its function for arrays.
        mirrored: for a comparison, the name of the one with exchanged operands (`gt` for `<`); else "".
    """

    symbol: str
    name: str
    syntax: str
    function: Callable[[Any, Any], Any]
    ufunc: np.ufunc
    mirrored: str = ""

    @property
    def inplace(self) -> Callable[[Any, Any], Any]:
        """The in-place function, e.g. `operator.iadd`; comparisons have none (AttributeError)."""
        return getattr(operator, f"i{self.name}")

    @property
    def word(self) -> str:
        """A name that is not one of the keywords `and` and `or`: `bitand`, `bitor`, `bitxor`, else `name`."""
        return f"bit{self.name}" if self.symbol in "&|^" else self.name

    @property
    def method(self) -> str:
        """The special method, e.g. `__add__`."""
        return f"__{self.name}__"

    @property
    def reflected(self) -> str:
        """The reflected method, e.g. `__radd__`; for a comparison, the mirrored comparison's method."""
        return f"__{self.mirrored}__" if self.mirrored else f"__r{self.name}__"

    @property
    def inplace_method(self) -> str:
        """The in-place method, e.g. `__iadd__`."""
        return f"__i{self.name}__"


@dataclass(frozen=True, slots=True)
class Unary:
    """A unary operator; attributes as in `Binary`."""

    symbol: str
    name: str
    syntax: str
    function: Callable[[Any], Any]
    ufunc: np.ufunc


ARITHMETIC = (
    Binary("+", "add", "Add", operator.add, np.add),
    Binary("-", "sub", "Sub", operator.sub, np.subtract),
    Binary("*", "mul", "Mult", operator.mul, np.multiply),
    Binary("/", "truediv", "Div", operator.truediv, np.true_divide),
    Binary("//", "floordiv", "FloorDiv", operator.floordiv, np.floor_divide),
    Binary("%", "mod", "Mod", operator.mod, np.remainder),
    Binary("**", "pow", "Pow", operator.pow, np.power),
    Binary("@", "matmul", "MatMult", operator.matmul, np.matmul),
    Binary("&", "and", "BitAnd", operator.and_, np.bitwise_and),
    Binary("|", "or", "BitOr", operator.or_, np.bitwise_or),
    Binary("^", "xor", "BitXor", operator.xor, np.bitwise_xor),
    Binary("<<", "lshift", "LShift", operator.lshift, np.left_shift),
    Binary(">>", "rshift", "RShift", operator.rshift, np.right_shift),
)
COMPARISONS = (
    Binary("<", "lt", "Lt", operator.lt, np.less, "gt"),
    Binary("<=", "le", "LtE", operator.le, np.less_equal, "ge"),
    Binary(">", "gt", "Gt", operator.gt, np.greater, "lt"),
    Binary(">=", "ge", "GtE", operator.ge, np.greater_equal, "le"),
    Binary("==", "eq", "Eq", operator.eq, np.equal, "eq"),
    Binary("!=", "ne", "NotEq", operator.ne, np.not_equal, "ne"),
)
BINARY = (*ARITHMETIC, *COMPARISONS)
UNARY = (
    Unary("-", "neg", "USub", operator.neg, np.negative),
    Unary("+", "pos", "UAdd", operator.pos, np.positive),
    Unary("~", "invert", "Invert", operator.invert, np.invert),
)

INTEGERS = "bhilqBHILQ"
_REAL = "efdg"
_COMPLEX = "FDG"


def overflowed(ufunc: np.ufunc, out: Any, x: Any, y: Any = 0) -> np.ndarray:
    """True where the integers `out` are not the exact `ufunc` (add, subtract, multiply, negative, absolute) of x and y.

    Args:
        out: the result as computed in its own dtype, wrapped around.
        x, y: the operands, or Python numbers that fit into the dtype of `out`.

    >>> x = np.array([100, 50], np.int8)
    >>> overflowed(np.add, x + x, x, x)
    array([ True, False])
    """
    dtype = out.dtype
    if dtype.itemsize < 8:
        operands = (x, y)[: ufunc.nin]
        return ufunc(*operands, dtype=np.int64) != out
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    if ufunc is np.multiply:
        return _wrong_products(out, x, y)
    if dtype.kind == "u":
        return {np.add: out < x, np.subtract: x < y, np.negative: x != 0}.get(ufunc, np.zeros(out.shape, np.bool_))
    if ufunc is np.add:
        return ((x ^ out) & (y ^ out)) < 0
    return ((x ^ y) & (x ^ out)) < 0 if ufunc is np.subtract else x == np.iinfo(dtype).min


def _wrong_products(out: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    limit = float(np.iinfo(out.dtype).max)
    size = np.abs(np.multiply(x, y, dtype=np.float64))
    wrong = size > limit * (1 + 2**-50)
    if np.iinfo(out.dtype).min == 0:
        wrong |= np.multiply(x, y, dtype=np.float64) < 0
    close = ~wrong & (size > limit * (1 - 2**-50))
    if close.any():
        exact = np.multiply(x, y, dtype=object)
        wrong |= close & np.asarray(exact != out, np.bool_)
    return wrong


@dataclass(frozen=True)
class ScalarDifference:
    """How the operator between scalars differs from its ufunc.

    Attributes:
        chars: the characters of the dtypes that it concerns: an operand has one of them, and what operands promote to.
        suspects: `suspects(out, *operands)` is True where the operator may report or give something else than `out`,
            the result of the ufunc.
        values: results other than integers may differ there; otherwise only what is reported, the same at each place.
        quiet: the floating-point errors that the ufunc reports where the operator does not; all places with one are
            suspects.
    """

    chars: str
    suspects: Callable[..., np.ndarray]
    values: bool = False
    quiet: tuple[str, ...] = ()


def _overflow(ufunc: np.ufunc) -> ScalarDifference:
    return ScalarDifference(INTEGERS, functools.partial(overflowed, ufunc))


def _overflow_or_rounding(out: np.ndarray, x: Any, y: Any) -> np.ndarray:
    if out.dtype.char in INTEGERS:
        return overflowed(np.multiply, out, x, y)
    large = np.finfo(out.dtype).max / 4
    return ~((np.abs(out.real) < large) & (np.abs(out.imag) < large))


def _imaginary_nan(out: np.ndarray, x: Any, y: Any) -> np.ndarray:
    return np.isnan(x) | np.isnan(y)


def _division(out: np.ndarray, x: Any, y: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        return ~np.isfinite(np.divide(x, y, dtype=np.float16))


def _infinity_or_root(out: np.ndarray, x: Any, y: Any) -> np.ndarray:
    infinite = ~np.isfinite(out)
    with np.errstate(all="ignore"):
        for each in (x, y):
            if type(each) is float:  # the ufunc's dtype may not hold it
                infinite = infinite | np.isinf(np.asarray(each, out.dtype))
    if type(y) in (int, float) and y != 0.5:
        return infinite
    return infinite | (np.equal(y, 0.5) & (np.equal(x, 0) | np.equal(x, -np.inf)))


_ordered = ScalarDifference(_COMPLEX, _imaginary_nan, values=True, quiet=("invalid",))
DIFFERENCES: dict[Any, ScalarDifference] = {
    **{ufunc: _overflow(ufunc) for ufunc in (np.add, np.subtract, np.negative, np.absolute)},
    np.multiply: ScalarDifference(INTEGERS + _COMPLEX, _overflow_or_rounding, values=True, quiet=("over", "invalid")),
    **dict.fromkeys((np.less, np.less_equal, np.greater, np.greater_equal), _ordered),
    np.floor_divide: ScalarDifference("e", _division),
    np.remainder: ScalarDifference("e", _division),
    np.power: ScalarDifference(_REAL, _infinity_or_root, values=True, quiet=("over", "divide", "invalid")),
}
"""The ufuncs whose operator differs for scalars; for all other ufuncs and dtypes the two are the same."""
