"""Python's operators: the symbol, the syntax, the function, the methods and the ufunc of each, once."""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator of two operands.

    Attributes:
        symbol: as it is written. name: of its method without underscores (`add`, `and`).
        syntax: its class in `ast`. function: that of the module `operator`. ufunc: what it does to arrays.
        mirrored: of a comparison, the name of the one with its operands exchanged.
    """

    symbol: str
    name: str
    syntax: type[ast.operator | ast.cmpop]
    function: Callable[[Any, Any], Any]
    ufunc: np.ufunc
    mirrored: str = ""

    @property
    def inplace(self) -> Callable[[Any, Any], Any]:
        """`operator.iadd` for `+`; a comparison has none."""
        return getattr(operator, f"i{self.name}")

    @property
    def word(self) -> str:
        """Its name where `and` and `or` are taken: `bitand`."""
        return f"bit{self.name}" if self.symbol in "&|^" else self.name

    @property
    def method(self) -> str:
        """`__add__`."""
        return f"__{self.name}__"

    @property
    def reflected(self) -> str:
        """`__radd__`; of a comparison the method of the mirrored one."""
        return f"__{self.mirrored}__" if self.mirrored else f"__r{self.name}__"

    @property
    def inplace_method(self) -> str:
        """`__iadd__`."""
        return f"__i{self.name}__"


@dataclass(frozen=True, slots=True)
class Unary:
    """An operator of one operand; attributes as those of `Binary`."""

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
