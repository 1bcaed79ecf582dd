"""Reductions over bags of rows, the rows held in vector registers. Bag b is ids[offsets[b]:offsets[b + 1]].

Row i of a table is at the address `base + stride * i`, (base, stride) being `table`, in the format of the
`VectorLayout`; with addresses for ids, it is (0, 1). `out` is C-contiguous (bags, dim) of the computed dtype; `bags`
are the first of its rows that is written and the one after the last, zeros for an empty bag. The columns are covered by
the lanes, at most `dim`, a pass over a bag's ids for each time, the last time moved back so that it ends with the row.
`ahead` is how many ids before it is read a row is asked for; None where the table is in the cache anyway. Ids and
offsets are trusted, but by `checked_sum`, and counted with unsigned numbers: of others the compiler asks each time
whether they count from the end. Where the greatest and the least get None for ids, row i is the i-th, and bags are runs
of rows.
"""

import math

from numpy import int64, uint64

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import add, greater, held, lesser, load, prefetch, put, scaled, store, width, zeros

SUM, MEAN, SQRTN = range(3)
_FEW = 16  # bags that take their passes together
_ANY = uint64(2**64 - 1)  # rows of a table whose ids are trusted: more than an id or an address can name


@jit
def _row(ids, i):
    if ids is None:
        return int64(i)
    return int64(ids[i])


@jit
def pool_sum(table, ids, offsets, weights, norm, out, bags, dim, ahead, lanes):
    """out[b] = the sum of weights[i] * row(ids[i]), over nothing, n or the root of n; weights may be None.

    Without a last offset the last bag takes all ids that are left.
    """
    _sum_bags(table, _ANY, ids, offsets, weights, norm, out, bags, dim, ahead, lanes, None)


@jit
def checked_sum(table, rows, ids, offsets, closed, weights, norm, out, dim, ahead, lanes, padding):
    """`pool_sum` of ids and offsets that are not checked yet; False, and `out` arbitrary, if they are not right.

    Offsets start at 0, never fall and, with `closed`, end with the number of ids; without, the last bag takes all that
    are left. Ids are in [0, rows). No row is read before its id is checked. Ids that are `padding`, which may be None,
    are left out and not counted.
    """
    total = uint64(ids.shape[0])
    bags = offsets.shape[0] - closed
    if bags <= 0:
        return bags == 0 and total == 0 and (not closed or offsets[0] == 0)
    if offsets[0] != 0 or (closed and uint64(offsets[bags]) != total):
        return False
    return _sum_bags(table, uint64(rows), ids, offsets, weights, norm, out, (0, bags), dim, ahead, lanes, padding)


@jit
def _sum_bags(table, rows, ids, offsets, weights, norm, out, bags, dim, ahead, lanes, padding):
    """`pool_sum` of ids in [0, rows) and offsets that never fall; False, and not all is done, if they are not so."""
    together = bags[1] - bags[0] if dim == width(lanes) else _FEW
    for b in range(bags[0], bags[1], max(together, 1)):
        part = (b, min(b + together, bags[1]))
        for first in range(0, dim, width(lanes)):
            column = min(first, dim - width(lanes))
            if not _sum_columns(
                table, rows, ids, offsets, weights, norm, out, part, column, dim, ahead, lanes, padding
            ):
                return False
    return True


@jit
def _sum_columns(table, rows, ids, offsets, weights, norm, out, bags, column, dim, ahead, lanes, padding):
    """The columns of `_sum_bags` from one column on that the lanes hold.

    An addition takes longer than the look at an id beside it. With that way out the compiler leaves the loop as short
    as it is, too, so that the end of a bag is guessed wrong once, not once for each loop that it would be made into.
    """
    total = uint64(ids.shape[0])
    known = uint64(offsets.shape[0] - 1)
    table = (table[0], held(table[1]))
    asking = total - min(total, uint64(0 if ahead is None else ahead))
    stop = uint64(offsets[uint64(bags[0])])
    for b in range(uint64(bags[0]), uint64(bags[1])):
        i = stop
        start = stop
        stop = uint64(offsets[b + uint64(1)]) if b < known else total
        if stop < start or stop > total:
            return False
        found = zeros(lanes)
        left_out = uint64(0)
        if ahead is not None:
            middle = min(stop, asking)
            while i < middle:
                row = int64(ids[i])
                if uint64(row) >= rows:
                    return False
                prefetch(lanes, table[0] + table[1] * int64(ids[i + uint64(ahead)]), column)
                if _is(row, padding):
                    left_out += uint64(1)
                else:
                    found = _with_row(found, table, row, i, weights, column, dim, lanes)
                i += uint64(1)
        while i < stop:
            row = int64(ids[i])
            if uint64(row) >= rows:
                return False
            if _is(row, padding):
                left_out += uint64(1)
            else:
                found = _with_row(found, table, row, i, weights, column, dim, lanes)
            i += uint64(1)
        if norm != SUM:
            count = float(max(stop - start - left_out, uint64(1)))
            found = scaled(found, 1 / (count if norm == MEAN else math.sqrt(count)))
        store(out, int64(b), column, found)
    return True


@jit
def _is(row, padding):
    if padding is None:
        return False
    return row == padding


@jit
def _with_row(found, table, row, i, weights, column, dim, lanes):
    x = load(lanes, table[0] + table[1] * row, column, dim)
    return add(found, x) if weights is None else add(found, scaled(x, weights[i]))


@jit
def pool_extremum(table, ids, offsets, out, bags, dim, ahead, lanes, least):
    """The greatest of each column, or with anything but None for `least` that; NaN if there is one."""
    base, stride = table
    final = uint64(0) if ids is None else uint64(max(ids.shape[0] - 1, 0))
    for b in range(bags[0], bags[1]):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            best = zeros(lanes)
            if offsets[b] < offsets[b + 1]:
                best = load(lanes, base + stride * _row(ids, uint64(offsets[b])), column, dim)
            for i in range(uint64(offsets[b] + 1), uint64(offsets[b + 1])):
                if ahead is not None:
                    prefetch(lanes, base + stride * int64(ids[min(uint64(i) + uint64(ahead), final)]), column)
                best = _further(best, load(lanes, base + stride * _row(ids, i), column, dim), least)
            store(out, b, column, best)


@jit
def _further(best, x, least):
    return greater(best, x) if least is None else lesser(best, x)


@jit
def unpack_rows(table, ids, out, rows, dim, ahead, lanes):
    """out[i] = row(ids[i]), for i in [rows[0], rows[1])."""
    base, stride = table
    final = uint64(max(ids.shape[0] - 1, 0))
    for i in range(uint64(rows[0]), uint64(rows[1])):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            if ahead is not None:
                prefetch(lanes, base + stride * int64(ids[min(uint64(i) + uint64(ahead), final)]), column)
            store(out, int64(i), column, load(lanes, base + stride * int64(ids[i]), column, dim))


@jit
def put_rows(table, ids, rows, dim, lanes):
    """The row ids[i] becomes rows[i], both of `dim` elements in the format of the lanes; in the order of the ids."""
    base, stride = table
    source, step = rows
    for i in range(ids.shape[0]):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            put(base + stride * int64(ids[i]), column, load(lanes, source + step * i, column, dim))
