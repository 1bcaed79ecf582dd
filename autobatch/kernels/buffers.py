"""Copying rows between arrays that are known by their address: one pass over any number of buffers.

Addresses, row numbers and widths are trusted; the caller keeps the arrays alive.
"""

import ctypes

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from autobatch.kernels.jit import jit

__all__ = ["CONSECUTIVE", "MISSING", "ONE_BUFFER", "SAME", "SEVERAL", "gather_buffers", "locate"]

MISSING, SAME, CONSECUTIVE, ONE_BUFFER, SEVERAL = range(5)

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


@jit
def locate(refs, first, position, count, buffer_of, row_of, which, rows):
    """Find where one operand of each call of a group is.

    Args:
        refs: (R,) int64, the references of all calls; that of call i is `refs[first[i] + position]`: a place if it is
            >= 0, else place `count - 1 - ref`.
        buffer_of, row_of: (P,) int64, the buffer that each place is in (-1: none), and its row there.
        which, rows: (n,) int64, receive the buffer and the row of each call's operand.

    Returns:
        MISSING: some are in no buffer, and nothing else is known; SAME: all are one place; CONSECUTIVE: rows of one
        buffer, one after the other; ONE_BUFFER: rows of one buffer; SEVERAL: of several buffers.
    """
    start = refs[first[0] + position]
    same, single, consecutive, missing = True, True, True, False
    for i in range(first.shape[0]):
        ref = refs[first[i] + position]
        same &= ref == start
        at = ref if ref >= 0 else count - 1 - ref
        which[i] = buffer_of[at]
        rows[i] = row_of[at]
        missing |= which[i] < 0
        single &= which[i] == which[0]
        consecutive &= rows[i] == rows[0] + i
    if same:
        return SAME
    if missing:
        return MISSING
    if single:
        return CONSECUTIVE if consecutive else ONE_BUFFER
    return SEVERAL
