"""Reductions over bags of rows, the rows held in vector registers. Bag b is ids[offsets[b]:offsets[b + 1]].

Row i of a table is at the address `base + stride * i`, (base, stride) being `table`, in the format of the `Lanes`; with
addresses for ids, it is (0, 1). `out` is C-contiguous (bags, dim) of the computed dtype; `bags` are the first of its
rows that is written and the one after the last, zeros for an empty bag. The columns are covered by the lanes, at most
`dim`, a pass over a bag's ids for each time, the last time moved back so that it ends with the row. `ahead` is how many
ids before it is read a row is asked for; None where the table is in the cache anyway. Ids and offsets are trusted, and
counted with unsigned numbers: of others the compiler asks each time whether they count from the end.
"""

from numpy import int64, uint64

from autobatch.kernels.jit import jit
from autobatch.kernels.vectors import add, greater, lesser, load, prefetch, put, scaled, store, width, zeros

__all__ = ["pool_all", "pool_max", "pool_min", "pool_sum", "put_rows", "unpack_rows"]


@jit
def pool_sum(table, ids, offsets, weights, scales, out, bags, dim, ahead, lanes):
    """out[b] = scales[b] * the sum of weights[i] * row(ids[i]); weights and scales may be None."""
    base, stride = table
    final = uint64(max(ids.shape[0] - 1, 0))
    for b in range(bags[0], bags[1]):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            total = zeros(lanes)
            for i in range(uint64(offsets[b]), uint64(offsets[b + 1])):
                if ahead is not None:
                    prefetch(lanes, base + stride * int64(ids[min(uint64(i) + uint64(ahead), final)]), column)
                x = load(lanes, base + stride * int64(ids[i]), column, dim)
                if weights is None:  # noqa: SIM108 - not a choice to the compiler, which knows which
                    total = add(total, x)
                else:
                    total = add(total, scaled(x, weights[i]))
            if scales is None:
                store(out, b, column, total)
            else:
                store(out, b, column, scaled(total, scales[b]))


@jit
def pool_max(table, ids, offsets, out, bags, dim, ahead, lanes):
    """The greatest of each column; NaN if there is one."""
    base, stride = table
    final = uint64(max(ids.shape[0] - 1, 0))
    for b in range(bags[0], bags[1]):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            best = zeros(lanes)
            if offsets[b] < offsets[b + 1]:
                best = load(lanes, base + stride * int64(ids[offsets[b]]), column, dim)
            for i in range(uint64(offsets[b] + 1), uint64(offsets[b + 1])):
                if ahead is not None:
                    prefetch(lanes, base + stride * int64(ids[min(uint64(i) + uint64(ahead), final)]), column)
                best = greater(best, load(lanes, base + stride * int64(ids[i]), column, dim))
            store(out, b, column, best)


@jit
def pool_min(table, ids, offsets, out, bags, dim, ahead, lanes):
    """The least of each column; NaN if there is one."""
    base, stride = table
    final = uint64(max(ids.shape[0] - 1, 0))
    for b in range(bags[0], bags[1]):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            best = zeros(lanes)
            if offsets[b] < offsets[b + 1]:
                best = load(lanes, base + stride * int64(ids[offsets[b]]), column, dim)
            for i in range(uint64(offsets[b] + 1), uint64(offsets[b + 1])):
                if ahead is not None:
                    prefetch(lanes, base + stride * int64(ids[min(uint64(i) + uint64(ahead), final)]), column)
                best = lesser(best, load(lanes, base + stride * int64(ids[i]), column, dim))
            store(out, b, column, best)


@jit
def pool_all(table, ids, offsets, sums, greatest, least, bags, dim, ahead, lanes):
    """The sum, the greatest and the least of each column, in one pass."""
    base, stride = table
    final = uint64(max(ids.shape[0] - 1, 0))
    for b in range(bags[0], bags[1]):
        for start in range(0, dim, width(lanes)):
            column = min(start, dim - width(lanes))
            total, high, low = zeros(lanes), zeros(lanes), zeros(lanes)
            if offsets[b] < offsets[b + 1]:
                high = load(lanes, base + stride * int64(ids[offsets[b]]), column, dim)
                low = high
                total = add(total, high)
            for i in range(uint64(offsets[b] + 1), uint64(offsets[b + 1])):
                if ahead is not None:
                    prefetch(lanes, base + stride * int64(ids[min(uint64(i) + uint64(ahead), final)]), column)
                x = load(lanes, base + stride * int64(ids[i]), column, dim)
                total, high, low = add(total, x), greater(high, x), lesser(low, x)
            store(sums, b, column, total)
            store(greatest, b, column, high)
            store(least, b, column, low)


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
