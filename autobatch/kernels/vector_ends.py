"""A run of numbers as machine vectors: its end, shorter than a vector, without a choice that would be guessed wrong.

The lanes are one machine vector of a format of NumPy's that is computed in its own dtype.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from autobatch.kernels.vector_formats import spread_over
from autobatch.kernels.vectors import Lanes, either, element, plain_load, vector_of

__all__ = ["load_first", "total"]


def _plain_load_first(lanes: Lanes, address: int, count: int) -> np.ndarray:
    out = np.zeros(lanes.n, lanes.format)
    part = min(int(count), lanes.n)
    if part:
        out[:part] = plain_load(Lanes(lanes.format, part), address, 0, part)
    return out


@either(_plain_load_first)
def load_first(typingctx: Any, lanes: Any, address: Any, count: Any) -> Any:
    """The first `count` elements from an address on, all if there are more of them than lanes, and zeros after them."""
    vector = vector_of(lanes)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, count = (context.cast(builder, args[i], signature.args[i], types.int64) for i in (1, 2))
        n = lanes.n
        places = ir.Constant(ir.VectorType(ir.IntType(64), n), list(range(n)))
        mask = builder.icmp_signed("<", places, spread_over(builder, count, n))
        kind = ir.VectorType(element(vector.code), n)
        pointer = builder.inttoptr(address, kind.as_pointer())
        signed = [pointer.type, ir.IntType(32), mask.type, kind]
        name = f"llvm.masked.load.v{n}{_suffix(vector.code)}.p0"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, signed), name)
        found = builder.call(function, [pointer, ir.IntType(32)(1), mask, ir.Constant(kind, None)])
        return builder.insert_value(ir.Constant(context.get_value_type(vector), ir.Undefined), found, 0)

    return vector(lanes, address, count), codegen


def _suffix(code: str) -> str:
    """The name of an element's type in the names of LLVM's intrinsics."""
    return f"{'f' if code[0] == 'f' else 'i'}{8 * int(code[1:])}"


def _plain_total(x: np.ndarray) -> Any:
    with np.errstate(all="ignore"):
        while len(x) > 1:
            x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


@either(_plain_total)
def total(typingctx: Any, x: Any) -> Any:
    """The sum of the elements: of the first and the second half, of the halves of those, and so on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, n = builder.extract_value(args[0], 0), x.n
        while n > 1:
            n //= 2
            none = ir.Constant(value.type, ir.Undefined)
            low, high = (
                builder.shuffle_vector(value, none, ir.Constant(ir.VectorType(ir.IntType(32), n), list(places)))
                for places in (range(n), range(n, 2 * n))
            )
            value = (builder.fadd if x.code[0] == "f" else builder.add)(low, high)
        return builder.extract_element(value, ir.IntType(32)(0))

    return numba.from_dtype(np.dtype(x.code))(x), codegen
