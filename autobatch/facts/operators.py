"""Python's operators are listed once, each with its symbol, syntax, function, methods and ufunc."""

import ast
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
        syntax: its class in `ast`. function: its function in module `operator`. ufunc: its function for arrays.
        mirrored: for a comparison, the name of the one with exchanged operands (`gt` for `<`); else "".
    """

    symbol: str
    name: str
    syntax: type[ast.operator | ast.cmpop]
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
    syntax: type[ast.unaryop]
    function: Callable[[Any], Any]
    ufunc: np.ufunc


ARITHMETIC = (
    Binary("+", "add", ast.Add, operator.add, np.add),
    Binary("-", "sub", ast.Sub, operator.sub, np.subtract),
    Binary("*", "mul", ast.Mult, operator.mul, np.multiply),
    Binary("/", "truediv", ast.Div, operator.truediv, np.true_divide),
    Binary("//", "floordiv", ast.FloorDiv, operator.floordiv, np.floor_divide),
    Binary("%", "mod", ast.Mod, operator.mod, np.remainder),
    Binary("**", "pow", ast.Pow, operator.pow, np.power),
    Binary("@", "matmul", ast.MatMult, operator.matmul, np.matmul),
    Binary("&", "and", ast.BitAnd, operator.and_, np.bitwise_and),
    Binary("|", "or", ast.BitOr, operator.or_, np.bitwise_or),
    Binary("^", "xor", ast.BitXor, operator.xor, np.bitwise_xor),
    Binary("<<", "lshift", ast.LShift, operator.lshift, np.left_shift),
    Binary(">>", "rshift", ast.RShift, operator.rshift, np.right_shift),
)
COMPARISONS = (
    Binary("<", "lt", ast.Lt, operator.lt, np.less, "gt"),
    Binary("<=", "le", ast.LtE, operator.le, np.less_equal, "ge"),
    Binary(">", "gt", ast.Gt, operator.gt, np.greater, "lt"),
    Binary(">=", "ge", ast.GtE, operator.ge, np.greater_equal, "le"),
    Binary("==", "eq", ast.Eq, operator.eq, np.equal, "eq"),
    Binary("!=", "ne", ast.NotEq, operator.ne, np.not_equal, "ne"),
)
BINARY = (*ARITHMETIC, *COMPARISONS)
UNARY = (
    Unary("-", "neg", ast.USub, operator.neg, np.negative),
    Unary("+", "pos", ast.UAdd, operator.pos, np.positive),
    Unary("~", "invert", ast.Invert, operator.invert, np.invert),
)
