"""Moving rows: gather, scatter-add, and which rows a list of ids names.

Tables and outputs are C-contiguous (rows, width) arrays. Ids are trusted: 0 <= ids[i] < rows. Additions run in the
order of `ids`, so equal input gives bit-equal output.
"""

from autobatch.kernels.jit import jit

__all__ = [
    "add_picked",
    "first_bad_id",
    "first_bad_offset",
    "gather",
    "gather_where",
    "scatter_add",
    "split_addresses",
    "unique_first_seen",
]


@jit
def first_bad_id(ids, num_rows):
    """The position of the first id outside [0, num_rows), -1 if there is none."""
    if not ids.shape[0]:
        return -1
    low = ids[0]
    high = ids[0]
    for i in range(ids.shape[0]):  # without a way out, so that the compiler can take many ids at a time
        low = min(low, ids[i])
        high = max(high, ids[i])
    if low >= 0 and high < num_rows:
        return -1
    for i in range(ids.shape[0]):
        if ids[i] < 0 or ids[i] >= num_rows:
            break
    return i


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
def gather(table, ids, out):
    """out[i] = table[ids[i]]"""
    for i in range(ids.shape[0]):
        row = ids[i]
        for j in range(table.shape[1]):
            out[i, j] = table[row, j]


@jit
def add_picked(values, places, ids, out):
    """out[ids[i]] += values[places[i]]"""
    for i in range(ids.shape[0]):
        row = ids[i]
        place = places[i]
        for j in range(out.shape[1]):
            out[row, j] += values[place, j]


@jit
def split_addresses(bases, strides, chunk, ids, out):
    """out[i]: the address of row ids[i] of a table in chunks of `chunk` rows, each with its base and stride."""
    for i in range(ids.shape[0]):
        part = ids[i] // chunk
        out[i] = bases[part] + strides[part] * (ids[i] - part * chunk)


@jit
def gather_where(table, ids, mask, out):
    """out[i] = table[ids[i]] where mask[i]; other rows stay as they are, and their ids are not read."""
    for i in range(ids.shape[0]):
        if mask[i]:
            row = ids[i]
            for j in range(table.shape[1]):
                out[i, j] = table[row, j]


@jit
def scatter_add(rows, ids, out):
    """out[ids[i]] += rows[i]"""
    for i in range(ids.shape[0]):
        row = ids[i]
        for j in range(rows.shape[1]):
            out[row, j] += rows[i, j]


@jit
def unique_first_seen(ids, slots, inverse, unique):
    """Number the distinct ids in the order of their first occurrence; returns how many there are.

    Args:
        slots: a power of two of int64, more than there are ids, all -1: an open-addressing hash table of numbers.
        inverse: out, the number of each id.
        unique: out, the id of each number; as long as `ids`.
    """
    mask = slots.shape[0] - 1
    count = 0
    for i in range(ids.shape[0]):
        key = ids[i]
        slot = ((((key ^ (key >> 31)) & 0x7FFFFFFF) * 0x9E3779B1) >> 20) & mask
        while slots[slot] >= 0 and unique[slots[slot]] != key:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            unique[count] = key
            count += 1
        inverse[i] = slots[slot]
    return count
