"""Reductions over bags of rows, accumulated in vector registers. Bag b is ids[offsets[b]:offsets[b + 1]].

`table` is (base, stride): row i is at the address base + stride * i, in the format of the `VectorLayout` `lanes`; if
ids are addresses, `table` is (0, 1). `out` is C-contiguous (bags, dim) of the computed dtype; rows [bags[0], bags[1])
of it are written, zeros for an empty bag. The lanes cover at most `dim` columns: there is one pass over a bag's ids for
each group of columns, the last group moved back so that it ends with the row. `ahead` is the prefetch distance in ids,
None if the table is in the cache anyway. Only `pool_sum_checked` checks ids and offsets. Loop variables are unsigned,
since for signed indices the compiler adds a test for negative ones. In `pool_extremum`, ids may be None: row i is then
the i-th row, and bags are runs of rows.
"""

import math

from numpy import int64, uint64

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import add, greater, held, lesser, load, prefetch, put, scaled, store, width, zeros

SUM, MEAN, SQRTN = range(3)
_ANY = uint64(2**64 - 1)  # the number of rows if ids are not checked: greater than any id or address


@jit
def _row(ids, i):
    if ids is None:
        return int64(i)
    return int64(ids[i])


@jit
def pool_sum(table, ids, offsets, weights, norm, out, bags, dim, ahead, lanes):
    """out[b] = the sum of weights[i] * row(ids[i]), divided by 1, n or sqrt(n) as `norm` says; weights may be None.

    If the last offset is missing, the last bag takes all remaining ids.
    """
    _sum_bags(table, _ANY, ids, offsets, weights, norm, out, bags, dim, ahead, lanes, None)


@jit
def pool_sum_checked(table, rows, ids, offsets, closed, weights, norm, out, dim, ahead, lanes, padding):
    """`pool_sum` that checks ids and offsets; returns False, with `out` arbitrary, if they are invalid.

    Offsets must start at 0 and never fall; if `closed`, the last one must be the number of ids, else the last bag takes
    all remaining ids. Ids must be in [0, rows); each is checked before its row is read. Ids equal to `padding` (if not
    None) are skipped and not counted.
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
    """`pool_sum` that returns False, with `out` incomplete, if an id is not in [0, rows) or an offset falls."""
    # Each pass over columns is made for so many bags together.
    together = bags[1] - bags[0] if dim == width(lanes) else 16
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
    """One pass of `_sum_bags`: the columns from `column` on that fit into the lanes.

    The check of an id is hidden by the addition, which takes longer. Because of its exit the compiler also does not
    unroll the loop, so the end of a bag is mispredicted only once.
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
        skipped = uint64(0)
        if ahead is not None:
            middle = min(stop, asking)
            while i < middle:
                row = int64(ids[i])
                if uint64(row) >= rows:
                    return False
                prefetch(lanes, table[0] + table[1] * int64(ids[i + uint64(ahead)]), column)
                if _is_padding(row, padding):
                    skipped += uint64(1)
                else:
                    found = _add_row(found, table, row, i, weights, column, dim, lanes)
                i += uint64(1)
        while i < stop:
            row = int64(ids[i])
            if uint64(row) >= rows:
                return False
            if _is_padding(row, padding):
                skipped += uint64(1)
            else:
                found = _add_row(found, table, row, i, weights, column, dim, lanes)
            i += uint64(1)
        if norm != SUM:
            count = float(max(stop - start - skipped, uint64(1)))
            found = scaled(found, 1 / (count if norm == MEAN else math.sqrt(count)))
        store(out, int64(b), column, found)
    return True


@jit
def _is_padding(row, padding):
    if padding is None:
        return False
    return row == padding


@jit
def _add_row(found, table, row, i, weights, column, dim, lanes):
    x = load(lanes, table[0] + table[1] * row, column, dim)
    return add(found, x) if weights is None else add(found, scaled(x, weights[i]))


@jit
def pool_extremum(table, ids, offsets, out, bags, dim, ahead, lanes, least):
    """out[b] = the maximum of each column, or the minimum if `least` is not None; NaN if there is a NaN."""
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
                best = _elementwise_extremum(best, load(lanes, base + stride * _row(ids, i), column, dim), least)
            store(out, b, column, best)


@jit
def _elementwise_extremum(best, x, least):
    return greater(best, x) if least is None else lesser(best, x)


@jit
def gather_rows(table, ids, out, rows, dim, ahead, lanes):
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
def scatter_rows(table, ids, rows, dim, lanes):
    """Set row ids[i] to rows[i], in the order of the ids; both have `dim` elements in the format of the lanes."""
    base, stride = table
    source, step = rows
    for i in range(ids.shape[0]):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            put(base + stride * int64(ids[i]), column, load(lanes, source + step * i, column, dim))
