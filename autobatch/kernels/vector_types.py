"""Elements of a row in vector registers: `Lanes`, the type of their value, and how intrinsics on them are declared."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import config, types
from numba.extending import intrinsic, models, register_model

__all__ = [
    "FORMATS",
    "Lanes",
    "LanesType",
    "VectorType",
    "by_pieces",
    "computed_dtype",
    "either",
    "element",
    "pieces",
    "scalar_of",
    "spread_over",
    "vector_of",
]

FORMATS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "q8", "q4")
_REGISTER = 64  # bytes; wider than the machine's is split by the compiler


class Lanes:
    """n consecutive elements of a row of one format.

    With a `lead`, that many elements come before the first boundary of a machine vector in memory, in all rows: then no
    vector is read across two lines of the cache, which costs twice.
    """

    __slots__ = ("_numba_type_", "format", "lead", "n")

    def __init__(self, format: str, n: int, lead: int = 0) -> None:
        self.format = format
        self.n = n
        self.lead = lead
        self._numba_type_ = LanesType(format, n, lead)  # where the dispatcher looks before it calls any Python


def computed_dtype(format: str) -> np.dtype:
    """What the elements are computed in."""
    return np.dtype(np.float32) if format in ("f2", "q8", "q4") else np.dtype(format)


class LanesType(types.Dummy):
    """The type of `Lanes`: all that is known of them is in it."""

    def __init__(self, format: str, n: int, lead: int) -> None:
        self.format, self.n, self.lead = format, n, lead
        super().__init__(f"Lanes({format},{n},{lead})")


class VectorType(types.Type):
    """The value of some lanes."""

    def __init__(self, code: str, n: int, lead: int) -> None:
        self.code, self.n, self.lead = code, n, lead
        super().__init__(f"Vector({code},{n},{lead})")


register_model(LanesType)(models.OpaqueModel)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        kind = element(fe_type.code)
        parts = [ir.VectorType(kind, k) for _, k in pieces(fe_type)]
        super().__init__(manager, fe_type, ir.LiteralStructType(parts))


@numba.extending.unbox(LanesType)
def _unbox_lanes(typ: Any, obj: Any, c: Any) -> Any:
    return numba.extending.NativeValue(c.context.get_dummy_value())


def vector_of(lanes: LanesType) -> VectorType:
    """The type of the value of some lanes."""
    return VectorType(computed_dtype(lanes.format).str[1:], lanes.n, lanes.lead)


def element(code: str) -> ir.Type:
    """The machine's type of an element."""
    if code == "f2":
        return ir.IntType(16)
    if code in ("f4", "f8"):
        return ir.FloatType() if code == "f4" else ir.DoubleType()
    return ir.IntType(8 * int(code[1:]))


def pieces(vector: VectorType) -> list[tuple[int, int]]:
    """(first element, number of elements) of each machine vector."""
    out, at = [], 0
    for end in (vector.lead, vector.n):
        width = _REGISTER // int(vector.code[1:])
        while at < end:
            while width > end - at:
                width //= 2
            out.append((at, width))
            at += width
    return out


def either(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Compiled code uses the intrinsic; with the compiler switched off, the plain function takes its place.

    It is the intrinsic's `plain`, too, for tests that run a kernel uncompiled.
    """

    def declare(typed: Any) -> Any:
        if vars(config)["DISABLE_JIT"]:
            return plain
        out: Any = intrinsic(typed)
        out.plain = plain
        return out

    return declare


def spread_over(builder: Any, scalar: Any, k: int) -> Any:
    """A machine vector of k times the same."""
    one = ir.VectorType(scalar.type, 1)
    lone = builder.insert_element(ir.Constant(one, ir.Undefined), scalar, ir.IntType(32)(0))
    zero = ir.Constant(ir.VectorType(ir.IntType(32), k), None)
    return builder.shuffle_vector(lone, ir.Constant(one, ir.Undefined), zero)


def by_pieces(vector: Any, combine: Callable[[Any, int, list[Any]], Any], operands: int) -> Any:
    """Code that combines the machine vectors of the first operands, one piece after the other."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out = ir.Constant(context.get_value_type(vector), ir.Undefined)
        rest = list(args[operands:])
        if rest:  # a factor, in the dtype of the elements
            rest = [context.cast(builder, rest[0], signature.args[operands], scalar_of(vector))]
        for index, (_, k) in enumerate(pieces(vector)):
            parts = [builder.extract_value(x, index) for x in args[:operands]]
            out = builder.insert_value(out, combine(builder, k, [*parts, *rest]), index)
        return out

    return codegen


def scalar_of(vector: Any) -> Any:
    """The type of one element of a vector."""
    return numba.from_dtype(np.dtype(vector.code))
