"""Asking for a row before it is needed: rows that ids name lie anywhere, and a miss costs more than a step on them."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from autobatch.kernels.jit import jit

__all__ = ["AHEAD", "prefetch_row"]

AHEAD = 8  # rows

_LINE = 64  # bytes


@intrinsic
def _prefetch(typing_context, address):
    """The machine's prefetch for writing of the cache line at an address; never faults."""

    def generate(context, builder, signature, args):
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], byte), word(1), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.intp), generate


def _prefetch_row(array, row):
    start = array.ctypes.data + row * array.strides[0]
    for byte in range(0, array.shape[1] * array.itemsize, _LINE):
        _prefetch(start + byte)  # type: ignore[call-arg]


def _nothing(array: Any, row: Any) -> None:
    """Without compilation there is nothing to ask for."""


prefetch_row = jit(_nothing if getattr(config, "DISABLE_JIT", 0) else _prefetch_row)
