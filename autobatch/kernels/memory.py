"""Copying rows between arrays that are known by their address: one pass over any number of buffers.

Addresses, row numbers and widths are trusted; the caller keeps the arrays alive.
"""

import ctypes

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from autobatch.kernels.jit import jit

__all__ = ["gather_buffers"]

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]  # intrinsics exist only in compiled code

    def _copy(target, source, nbytes):
        ctypes.memmove(int(target), int(source), int(nbytes))

else:

    @intrinsic
    def _copy(typing_context, target, source, nbytes):
        """memcpy between two integer addresses."""

        def generate(context, builder, signature, args):
            pointer = context.get_value_type(types.voidptr)
            to, start = (builder.inttoptr(address, pointer) for address in args[:2])
            cgutils.raw_memcpy(builder, to, start, args[2], 1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate


@jit
def gather_buffers(addresses, strides, which, rows, width, out):
    """Row i of the output becomes row `rows[i]` of buffer `which[i]`.

    Args:
        addresses: (K,) int64, of each buffer's row 0; strides: (K,) int64, bytes from one row to the next.
        which, rows: (n,) int64.
        width: bytes of a row, which is contiguous.
        out: the address of n rows, one after the other.
    """
    for i in range(which.shape[0]):
        k = which[i]
        _copy(out + i * width, addresses[k] + rows[i] * strides[k], width)
