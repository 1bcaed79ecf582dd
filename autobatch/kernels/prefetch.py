"""Asking for a row before it is needed: rows that ids name lie anywhere, and a miss costs more than a step on them."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from autobatch.kernels.jit import jit

__all__ = ["AHEAD", "LINE", "ask_for", "prefetch_row", "prefetch_source"]

AHEAD = 8  # rows
LINE = 64  # bytes of the cache


def ask_for(builder: Any, address: Any, to_write: bool) -> None:
    """Code that has the machine fetch the cache line at an integer address; it never faults."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, byte), word(int(to_write)), word(3), word(1)])


@intrinsic
def _to_write(typing_context, address):
    """The cache line at an address, to be written to."""

    def generate(context, builder, signature, args):
        ask_for(builder, args[0], to_write=True)
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def _to_read(typing_context, address):
    """The cache line at an address, to be read."""

    def generate(context, builder, signature, args):
        ask_for(builder, args[0], to_write=False)
        return context.get_dummy_value()

    return types.void(types.intp), generate


def _prefetch_row(array, row):
    start = array.ctypes.data + row * array.strides[0]
    for byte in range(0, array.shape[1] * array.itemsize, LINE):
        _to_write(start + byte)  # type: ignore[call-arg]


def _prefetch_source(array, row):
    start = array.ctypes.data + row * array.strides[0]
    for byte in range(0, array.shape[1] * array.itemsize, LINE):
        _to_read(start + byte)  # type: ignore[call-arg]


def _nothing(array: Any, row: Any) -> None:
    """Without compilation there is nothing to ask for."""


_compiled = not getattr(config, "DISABLE_JIT", 0)
prefetch_row = jit(_prefetch_row if _compiled else _nothing)  # a row that is to be updated
prefetch_source = jit(_prefetch_source if _compiled else _nothing)  # a row that is to be read
