"""Row kernels: finding invalid ids and distinct ids, locating recorded operands, and copying rows between buffers.

Ids, addresses, row numbers and widths are not checked, except where a kernel's purpose is to check them; the caller
keeps the arrays alive.
"""

import ctypes

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy import uint64

from autobatch.kernels.jit import jit


@jit
def first_bad_id(ids, num_rows):
    """The position of the first id outside [0, num_rows), -1 if there is none."""
    if not ids.shape[0]:
        return -1
    low = high = ids[0]
    for i in range(ids.shape[0]):  # no early exit, so that the compiler vectorises the loop
        low = min(low, ids[i])
        high = max(high, ids[i])
    if low >= 0 and high < num_rows:
        return -1
    for i in range(ids.shape[0]):
        if ids[i] < 0 or ids[i] >= num_rows:
            break
    return i


@jit
def copy_ids(ids, out):
    """Copy ids, of which there is one at least, into `out`; returns the least and the greatest of those copied."""
    low = high = ids[0]
    for i in range(ids.shape[0]):
        found = ids[i]
        out[i] = found
        low = min(low, found)
        high = max(high, found)
    return low, high


@jit
def first_bad_offset(offsets, total):
    """The position of the first offset that is below its predecessor (0 before the first) or above `total`, or -1."""
    last = 0
    for i in range(offsets.shape[0]):
        if offsets[i] < last or offsets[i] > total:
            return i
        last = offsets[i]
    return -1


@jit
def split_addresses(bases, strides, chunk, ids, out):
    """out[i]: the address of row ids[i] of a table in chunks of `chunk` rows, each with its base and stride."""
    for i in range(ids.shape[0]):
        part = ids[i] // chunk
        out[i] = bases[part] + strides[part] * (ids[i] - part * chunk)


@jit
def unique_first_seen(ids, slots, inverse, unique):
    """Number the distinct ids in the order of their first occurrence; returns how many there are.

    Args:
        slots: a power of two of int64, more than there are ids, all -1: an open-addressing hash table of numbers.
        inverse: out, the number of each id.
        unique: out, the id of each number; as long as `ids`.
    """
    mask = uint64(slots.shape[0] - 1)
    count = 0
    for i in range(uint64(ids.shape[0])):
        key = ids[i]
        slot = (((uint64(key ^ (key >> 31)) & uint64(0x7FFFFFFF)) * uint64(0x9E3779B1)) >> uint64(20)) & mask
        number = slots[slot]
        while number >= 0 and unique[uint64(number)] != key:
            slot = (slot + uint64(1)) & mask
            number = slots[slot]
        if number < 0:
            number = slots[slot] = count
            unique[uint64(count)] = key
            count += 1
        inverse[i] = number
    return count


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
def copy_spans(starts, lengths, width, out):
    """Copy `lengths[i]` rows of `width` bytes from the address `starts[i]`, for each i, one after the other.

    Args:
        out: the address that receives them.
    """
    for i in range(starts.shape[0]):
        _copy(out, starts[i], lengths[i] * width)
        out += lengths[i] * width


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
def place_results(order, starts, places, outputs, first, buffer_of, row_of):
    """Assign buffers and rows to the results of all launches.

    A launch has one buffer for each output, numbered from `first` on; its calls' results are consecutive rows of it.

    Args:
        order, starts: the calls in launch order, (N,) int64, and the start of each launch in it, (K + 1,) int64.
        places: (N,) int64, the place of each call's first output; outputs: (K,) int64, the outputs of each launch.
        buffer_of, row_of: as for `locate`.
    """
    for k in range(outputs.shape[0]):
        for i in range(starts[k], starts[k + 1]):
            for j in range(outputs[k]):
                buffer_of[places[order[i]] + j] = first + j
                row_of[places[order[i]] + j] = i - starts[k]
        first += outputs[k]


@jit
def locate_operands(order, starts, offsets, refs, buffer_of, row_of, which, rows, how, heads):
    """Find the operands of all launches.

    Args:
        order, starts: as for `place_results`; offsets, refs, buffer_of, row_of: as for `locate`.
        which, rows: (R,) int64, receive the buffers and rows of the operands: of one launch after the other, and in
            each of one operand after the other.
        how, heads: for each of these operands what `locate` found, and the reference of the first call. Nothing is
            said of launches whose calls differ in the number of their operands.
    """
    at = 0
    operand = 0
    for k in range(starts.shape[0] - 1):
        calls = order[starts[k] : starts[k + 1]]
        n = calls.shape[0]
        begin = offsets[calls[0]]
        arity = offsets[calls[0] + 1] - begin
        total = 0
        alike = True
        for i in range(n):
            own = offsets[calls[i] + 1] - offsets[calls[i]]
            total += own
            alike &= own == arity
        if not alike:  # the operands of a call are one list
            at += total
            operand += arity
            continue
        for position in range(arity):
            how[operand] = locate(
                refs, offsets, calls, position, buffer_of, row_of, which[at : at + n], rows[at : at + n]
            )
            heads[operand] = refs[begin + position]
            operand += 1
            at += n
