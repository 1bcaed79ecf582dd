"""Copying rows between arrays that are known by their address: one pass over any number of buffers.

Addresses, row numbers and widths are trusted; the caller keeps the arrays alive.
"""

import ctypes

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from autobatch.kernels.jit import jit

__all__ = ["CONSECUTIVE", "MISSING", "ONE_BUFFER", "SAME", "SEVERAL", "gather_buffers", "locate", "place_launches"]

MISSING, SAME, CONSECUTIVE, ONE_BUFFER, SEVERAL = range(5)

if numba.config.DISABLE_JIT:  # intrinsics exist only in compiled code

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
def locate(refs, offsets, calls, position, buffer_of, row_of, which, rows):
    """Find where one operand of each call of a group is.

    Args:
        refs: (R,) int64, the references of all calls; that of call i is `refs[offsets[i] + position]`: a place if it is
            >= 0, else counted from the end of the places.
        calls: (n,) int64, the calls of the group.
        buffer_of, row_of: (P,) int64, the buffer that each place is in (-1: none), and its row there.
        which, rows: (n,) int64, receive the buffer and the row of each call's operand.

    Returns:
        MISSING: some are in no buffer, and nothing else is known; SAME: all are one place; CONSECUTIVE: rows of one
        buffer, one after the other; ONE_BUFFER: rows of one buffer; SEVERAL: of several buffers.
    """
    start = refs[offsets[calls[0]] + position]
    same, single, consecutive, missing = True, True, True, False
    for i in range(calls.shape[0]):
        ref = refs[offsets[calls[i]] + position]
        same &= ref == start
        which[i] = buffer_of[ref]
        rows[i] = row_of[ref]
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


@jit
def place_launches(order, starts, offsets, refs, places, outputs, first, buffer_of, row_of, which, rows, how, heads):
    """Give the results of all launches their rows, and find the operands of all.

    The outputs of the calls of a launch are consecutive rows of a buffer for each output, numbered from `first` on.

    Args:
        order, starts: the calls in launch order, (N,) int64, and where each launch begins there, (K + 1,) int64.
        offsets, refs, buffer_of, row_of: as for `locate`.
        places: (N,) int64, where the first output of each call is; outputs: (K,) int64, how many a launch has.
        which, rows: (R,) int64, receive the buffers and rows of the operands: of one launch after the other, and in
            each of one operand after the other.
        how, heads: for each of these operands what `locate` found, and the reference of the first call.
    """
    for k in range(outputs.shape[0]):
        for i in range(starts[k], starts[k + 1]):
            for j in range(outputs[k]):
                buffer_of[places[order[i]] + j] = first + j
                row_of[places[order[i]] + j] = i - starts[k]
        first += outputs[k]
    at = 0
    operand = 0
    for k in range(outputs.shape[0]):
        calls = order[starts[k] : starts[k + 1]]
        n = calls.shape[0]
        begin = offsets[calls[0]]
        for position in range(offsets[calls[0] + 1] - begin):
            how[operand] = locate(
                refs, offsets, calls, position, buffer_of, row_of, which[at : at + n], rows[at : at + n]
            )
            heads[operand] = refs[begin + position]
            operand += 1
            at += n
