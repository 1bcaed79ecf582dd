"""A hash index from 64-bit keys to row numbers, by open addressing; and the per-row records of a table of keys.

An index is a flat array of uint64 with four slots in each cache line: four key codes, then their four rows, so that one
vector comparison tests four keys. A code is the key XOR a constant, and 0 marks an empty slot; the row of the one key
with code 0 (`EMPTY_KEY`) is in `notes`. Probing is linear from the line that the key's hash gives, possibly past the
last such line. A removal moves later keys back, so there are no tombstones. Keys are int64, or uint64 viewed as int64.

An index grows in place. Slots are in the order of the hashes for any number of slots, so keys are moved from the end to
the start. `form` is the progress: (slots before, how many of these are not yet moved, slots after). A key whose old
slot is not yet moved is still there.

Arrays with one entry for each row hold its key, the step of its last update (`DEAD` if the row is free), the number of
its updates, and the mark during which its change was logged."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.base import BaseContext
from numba.core.typing import BaseContext as TypingContext
from numba.core.typing import Signature
from numpy import int64, uint32, uint64

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import intrinsic_or_plain, prefetch_element, prefetch_number, splat

# Indices into the int64 notes of a table of keys: version (odd during a change); rows in use; rows ever used; free
# rows; length of the change log; the row of EMPTY_KEY, or -1; ticket of the last committed change; and
# the number of notes.
VERSION, LIVE, HIGH, FREE, LOGGED, SPECIAL, TICKET, NOTES = range(8)

DEAD = uint32(2**32 - 1)
_MOST = uint32(2**32 - 2)
_CODE = uint64(0xB5297A4D3F84D5B5)
EMPTY_KEY = -(2**64 - 0xB5297A4D3F84D5B5)  # the key whose code is 0, as int64
_AHEAD = 64  # prefetch distance, in keys
_LINE = uint64(8)  # elements: the codes of four slots, and their rows
_ROWS = uint64(4)  # elements from a code to its row


@jit
def hash_key(key):
    """The 64-bit hash of a key: the finaliser of MurmurHash3 (Appleby, 2011)."""
    z = uint64(key)
    z = (z ^ (z >> uint64(33))) * uint64(0xFF51AFD7ED558CCD)
    z = (z ^ (z >> uint64(33))) * uint64(0xC4CEB9FE1A85EC53)
    return z ^ (z >> uint64(33))


def entries(index):
    """The keys (n,) int64 in a part of an index, and their rows (n,) uint64."""
    lines = index.reshape(-1, 2, 4)
    used = lines[:, 0] != 0
    return (lines[:, 0][used] ^ _CODE).view(int64), lines[:, 1][used]


@jit
def assign_partitions(keys, parts, out):
    """out[i] = the part of keys[i], from bits of its hash that the index uses least."""
    for i in range(keys.shape[0]):
        out[i] = int64((hash_key(keys[i]) >> uint64(40)) % uint64(parts))


@jit
def _unpack_form(form):
    return uint64(form[0]), uint64(form[1]), uint64(form[2])


@jit
def _offset(slot):
    """The array position of a slot's code."""
    return (slot << uint64(1)) - (slot & uint64(3))


@jit
def _home_slot(key, form):
    """The slot at which probing for a key begins, the first of a cache line; for at most 2**34 slots."""
    before, left, after = form
    code = hash_key(key) >> uint64(32)
    place = ((code * (before >> uint64(2))) >> uint64(32)) << uint64(2) if left != 0 else left
    return place if place < left else ((code * (after >> uint64(2))) >> uint64(32)) << uint64(2)


@jit
def find_rows(keys, index, form, special, out, lo, hi):
    """out[i] = the row of keys[i], or -1 if it is missing; returns the number of missing keys.

    Keys are hashed in groups, which the compiler vectorises, and their lines are prefetched before they are probed.

    Args:
        special: the row of `EMPTY_KEY`, or -1.
    """
    missing = 0
    form = _unpack_form(form)
    farther = np.empty(_AHEAD, np.int64)  # keys not decided by their first line
    _home_positions(keys, form, out, lo, min(lo + _AHEAD, hi))
    for i in range(uint64(lo), uint64(min(lo + _AHEAD, hi))):
        prefetch_element(index, out[i])
    for first in range(lo, hi, _AHEAD):
        last = min(first + _AHEAD, hi)
        _home_positions(keys, form, out, last, min(last + _AHEAD, hi))
        count = uint64(0)
        for i in range(uint64(first), uint64(last)):
            prefetch_element(index, out[min(i + uint64(_AHEAD), uint64(hi - 1))])
            line = uint64(out[i])
            code = uint64(keys[i]) ^ _CODE
            place = _match_in_line(index, line, code)
            if place < _ROWS and code != 0:
                out[i] = int64(index[line + place + _ROWS])
            elif index[line + uint64(3)] == 0 and code != 0:
                out[i] = int64(-1)
                missing += 1
            else:
                prefetch_element(index, int64(line + _LINE))
                farther[count] = int64(i)
                count += uint64(1)
        for k in range(count):
            at = uint64(farther[k])
            out[at] = _probe(keys[at], index, uint64(out[at]), special)
            missing += out[at] < 0
    return missing


@jit
def _home_positions(keys, form, out, lo, hi):
    """out[i] = the array position at which probing for keys[i] begins."""
    for i in range(uint64(lo), uint64(hi)):
        out[i] = int64(_home_slot(keys[i], form) << uint64(1))


@jit
def find_sorted(keys, known, out, lo, hi):
    """out[i] = the index of keys[i] in the ascending array `known`, or -1; by binary search."""
    for i in range(lo, hi):
        key = keys[i]
        first, count = 0, known.shape[0]
        while count > 1:
            half = count >> 1
            first = first + half if known[first + half] <= key else first
            count -= half
        out[i] = first if count == 1 and known[first] == key else -1


def _plain_match_in_line(index: Any, line: Any, code: object) -> uint64:
    found = np.flatnonzero(index[line : line + _ROWS] == code)
    return uint64(found[0] if found.size else 4)


@intrinsic_or_plain(_plain_match_in_line)
def _match_in_line(typingctx: TypingContext, index: types.Type, line: types.Type, code: types.Type) -> Any:
    """The index of `code` among the four codes at array position `line`, 4 if none; by one vector comparison."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        word, codes = ir.IntType(64), ir.VectorType(ir.IntType(64), 4)
        held = builder.load(builder.bitcast(builder.gep(array.data, [args[1]]), codes.as_pointer()))
        held.align = 8
        equal = builder.icmp_unsigned("==", held, splat(builder, args[2], 4))
        found = builder.zext(builder.bitcast(equal, ir.IntType(4)), word)
        return builder.cttz(builder.or_(found, word(16)), ir.IntType(1)(1))

    return types.uint64(index, types.uint64, types.uint64), codegen


@jit
def _probe(key, index, line, special):
    """The row of a key, or -1; `line` is the array position of the line at which to begin."""
    code = uint64(key) ^ _CODE
    if code == 0:
        return int64(special)
    while True:
        place = _match_in_line(index, line, code)
        if place < _ROWS:
            return int64(index[line + place + _ROWS])
        if index[line + uint64(3)] == 0:
            return int64(-1)
        line += _LINE


@jit
def _insert(index, form, code, row):
    slot = _home_slot(code ^ _CODE, form)
    while index[_offset(slot)] != 0 and index[_offset(slot)] != code:
        slot += uint64(1)
    index[_offset(slot) + _ROWS] = uint64(row)
    index[_offset(slot)] = code


@jit
def move_slots(index, form, count):
    """Move the keys of the last `count` slots not yet moved, and those probed past them; updates `form`."""
    first, end = uint64(form[1] - count), uint64(form[1])
    while index[_offset(end)] != 0:
        end += uint64(1)
    held = np.empty((int64(end - first), 2), np.uint64)
    for slot in range(first, end):
        held[slot - first, 0] = index[_offset(slot)]
        held[slot - first, 1] = index[_offset(slot) + _ROWS]
        index[_offset(slot)] = 0
    form[1] = first
    for i in range(held.shape[0]):
        if held[i, 0] != 0:
            _insert(index, _unpack_form(form), held[i, 0], held[i, 1])


@jit
def _remove(key, index, form):
    """Remove a key from the index, if it is there, and move back the keys that were probed past it."""
    code = uint64(key) ^ _CODE
    hole = _home_slot(key, form)
    while index[_offset(hole)] != code:
        if index[_offset(hole)] == 0:
            return
        hole += uint64(1)
    slot = hole + uint64(1)
    while index[_offset(slot)] != 0:
        if _home_slot(index[_offset(slot)] ^ _CODE, form) <= hole:
            index[_offset(hole) + _ROWS] = index[_offset(slot) + _ROWS]
            index[_offset(hole)] = index[_offset(slot)]
            hole = slot
        slot += uint64(1)
    index[_offset(hole)] = 0


@jit
def commit_rows(
    ticket, index, form, notes, gone, born, from_free, named, step, counted, mark, row_keys, facts, free, log
):
    """Commit a staged change of a table of keys; a repeated call with the same ticket has no effect.

    Args:
        gone: rows whose keys are removed.
        born: (keys, rows) of the new keys; the first `from_free` rows are the top of the stack `free`.
        named: changed rows, new ones included; step: their new version, if >= 0.
        counted: True if this is an update, which increments their counts.
        mark: the current mark of the change log, 0 if changes are not logged.
        facts: (versions, counts, marks) of each row, adjacent in memory.
        free: the stack of free rows. log: the changed rows.
    """
    if notes[TICKET] == ticket:
        return
    form = _unpack_form(form)
    versions, counts, marks = facts
    keys, rows = born
    for i in range(keys.shape[0]):
        if i + _AHEAD < keys.shape[0]:
            prefetch_number(index, _offset(_home_slot(keys[i + _AHEAD], form)))
        code = uint64(keys[i]) ^ _CODE
        if code == 0:
            notes[SPECIAL] = rows[i]
        else:
            _insert(index, form, code, rows[i])
        row_keys[rows[i]] = keys[i]
        counts[rows[i]] = 0
        marks[rows[i]] = 0
        versions[rows[i]] = 0
    notes[FREE] -= from_free
    notes[HIGH] += keys.shape[0] - from_free
    notes[LIVE] += keys.shape[0] - gone.shape[0]
    for i in range(named.shape[0]):
        if i + _AHEAD < named.shape[0]:
            prefetch_number(versions, named[i + _AHEAD])
        row = named[i]
        if step >= 0:
            versions[row] = min(uint32(step), _MOST)
        if counted and counts[row] < _MOST:
            counts[row] += uint32(1)
        if mark > 0 and marks[row] != uint32(mark):
            marks[row] = uint32(mark)
            log[notes[LOGGED]] = row
            notes[LOGGED] += 1
    for i in range(gone.shape[0]):
        versions[gone[i]] = DEAD
        free[notes[FREE]] = gone[i]
        notes[FREE] += 1
    for i in range(gone.shape[0]):
        if row_keys[gone[i]] == EMPTY_KEY:
            notes[SPECIAL] = -1
        else:
            _remove(row_keys[gone[i]], index, form)
    notes[TICKET] = ticket


@jit
def set_counts(keys, counts, enough, index, form):
    """Set the count of each key, or remove the key if its count is at least `enough`; repeating it has no effect.

    `EMPTY_KEY` is skipped.
    """
    form = _unpack_form(form)
    for i in range(keys.shape[0]):
        if keys[i] != EMPTY_KEY:
            if counts[i] < enough:
                _insert(index, form, uint64(keys[i]) ^ _CODE, counts[i])
            else:
                _remove(keys[i], index, form)


@jit
def _counter(z, hash, size):
    """The position of a key's counter number `hash`: double hashing with the two halves of the hash z."""
    step = (z >> uint64(32)) | uint64(1)
    return int64(((z & uint64(0xFFFFFFFF)) + uint64(hash) * step) % uint64(size))


@jit
def least_counter(keys, counters, hashes, out):
    """out[i] = the minimum of the counters of keys[i]."""
    for i in range(keys.shape[0]):
        z = hash_key(keys[i])
        least = int64(counters[_counter(z, 0, counters.shape[0])])
        for k in range(1, hashes):
            least = min(least, int64(counters[_counter(z, k, counters.shape[0])]))
        out[i] = least


@jit
def raise_counters(keys, counters, hashes, seen):
    """Raise the counters of each key to at least seen[i] + 1, at most 255; repeating it has no effect."""
    for i in range(keys.shape[0]):
        z = hash_key(keys[i])
        for k in range(hashes):
            at = _counter(z, k, counters.shape[0])
            counters[at] = max(int64(counters[at]), min(seen[i] + 1, int64(255)))
