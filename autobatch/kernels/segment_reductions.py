"""Reductions of rows by segment, where each row has a segment id (in any order), or segments are runs given by bounds.

Rows and outputs are C-contiguous (rows, width) arrays. Position i reads row i, or row ids[i] where `ids` is not None,
times weights[i] where `weights` is not None. Ids of rows are not checked. A kernel that returns a bool reads each id of
a segment once, and returns False, with `out` incomplete, if one is not in [0, number of segments); others trust them.
Additions run in the order of the positions, so equal input gives bit-equal output.

Run k is the rows bounds[k] to bounds[k + 1], exclusive; bounds are not checked. A long run is summed in four parts,
independent of each other, since a processor can start four additions in the time that one takes.
"""

import math

from numpy import int64, uint64

from autobatch.kernels.bags import MEAN, SUM
from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import (
    AHEAD,
    add,
    load,
    prefetch,
    prefetch_row,
    prefetch_source,
    scaled,
    store,
    width,
    zeros,
)
from autobatch.kernels.vector_math import load_first, reduce_sum


def segment_sum(x, ids, weights, segments, out):
    """out[segments[i]] += weights[i] * row i; `out` is zero on entry."""
    if x.shape[1] == 1:  # a kernel of its own: beside the other loop it has too few registers
        return sum_scalars(x.reshape(-1), ids, weights, segments, out.reshape(-1))
    return sum_vectors(x, ids, weights, segments, out)


@jit
def segment_count(segments, out):
    """out[segments[i]] += 1; `out` is zero on entry."""
    count, n = uint64(out.shape[0]), uint64(segments.shape[0])
    rest = n - n % uint64(16)
    for i in range(uint64(0), rest, uint64(16)):  # the compiler unrolls a loop with an exit only if its length is known
        for j in range(uint64(16)):
            segment = uint64(segments[i + j])
            if segment >= count:
                return False
            out[segment] += 1
    for i in range(rest, n):
        segment = uint64(segments[i])
        if segment >= count:
            return False
        out[segment] += 1
    return True


@jit
def sum_vectors(x, ids, weights, segments, out):
    """`segment_sum` of rows of any width."""
    width, count, n = x.shape[1], uint64(out.shape[0]), segments.shape[0]
    following = uint64(segments[0]) if n else count  # as in `sum_scalars`: the check then costs nothing
    for i in range(n):
        if i + AHEAD < n:
            if ids is not None:
                prefetch_source(x, ids[i + AHEAD])
            prefetch_row(out, segments[i + AHEAD])
        segment = following
        if segment >= count:
            return False
        following = uint64(segments[min(i + 1, n - 1)])
        into = out[segment]
        values = x[i if ids is None else ids[i]]
        weight = x.dtype.type(1) if weights is None else weights[i]
        for j in range(width):
            into[j] += values[j] if weights is None else weight * values[j]
    return True


@jit
def sum_scalars(x, ids, weights, segments, out):
    """`segment_sum` of numbers (n,); unsigned indices avoid the compiler's test for negative ones."""
    count, n = uint64(out.shape[0]), uint64(segments.shape[0])
    rest = n - n % uint64(8)
    for i in range(uint64(0), rest, uint64(8)):  # as in `segment_count`
        read = _eight(segments, i)  # before the writes, which the processor would have to compare with each read
        for j in range(8):
            segment = read[j]
            if segment >= count:
                return False
            out[segment] += _weighted(x, ids, weights, i + uint64(j))
    for i in range(rest, n):
        segment = uint64(segments[i])
        if segment >= count:
            return False
        out[segment] += _weighted(x, ids, weights, i)
    return True


@jit
def _eight(ids, i):
    a, b, c, d = uint64(ids[i]), uint64(ids[i + uint64(1)]), uint64(ids[i + uint64(2)]), uint64(ids[i + uint64(3)])
    e, f, g = uint64(ids[i + uint64(4)]), uint64(ids[i + uint64(5)]), uint64(ids[i + uint64(6)])
    return a, b, c, d, e, f, g, uint64(ids[i + uint64(7)])


@jit
def _weighted(x, ids, weights, i):
    value = x[i if ids is None else uint64(ids[i])]
    return value if weights is None else value * weights[i]


@jit
def segment_extremum(x, ids, segments, least, seen, out):
    """out[k]: the maximum (minimum if `least`) of each column; NaN if it has one. `seen` is all False on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = uint64(segments[i])
        if segment >= uint64(out.shape[0]):
            return False
        if not seen[segment]:
            seen[segment] = True
            for j in range(x.shape[1]):
                out[segment, j] = x[row, j]
        else:
            for j in range(x.shape[1]):
                a = x[row, j]
                b = out[segment, j]
                out[segment, j] = a if (a < b if least else a > b) or a != a else b
    return True


@jit
def first_equal(x, ids, segments, values, out):
    """out[k, j]: the first position in segment k with values[k, j] in column j (NaN equals NaN); unchanged if none."""
    n = segments.shape[0]
    for i in range(n - 1, -1, -1):
        segment = uint64(segments[i])
        if segment >= uint64(out.shape[0]):
            return False
        row = x[i if ids is None else ids[i]]
        wanted = values[segment]
        into = out[segment]
        for j in range(x.shape[1]):
            a, b = row[j], wanted[j]
            if a == b or (a != a and b != b):
                into[j] = i
    return True


@jit
def segment_prod(x, ids, segments, out):
    """out[segments[i]] *= row i; `out` is one on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = uint64(segments[i])
        if segment >= uint64(out.shape[0]):
            return False
        for j in range(x.shape[1]):
            out[segment, j] *= x[row, j]
    return True


@jit
def segment_recurrence(factors, terms, segments, state, out):
    """out[i]: the state of its segment before row i, which changes it to terms[i] + factors[i] * state.

    `state` is (segments, width); on entry it holds the initial states.
    """
    for i in range(segments.shape[0]):
        segment = segments[i]
        for j in range(factors.shape[1]):
            before = state[segment, j]
            out[i, j] = before
            state[segment, j] = terms[i, j] + factors[i, j] * before


# Prefetch distance in rows, if a row takes more than one pass: the hardware prefetches only contiguous reads.
_RUN_AHEAD = 4
_MANY = uint64(32)  # rows of a run from which four partial sums are faster
_TOGETHER = uint64(1024)  # segment ids that are compared before it is asked whether they fall


@jit
def run_bounds(segments, bounds):
    """bounds[k]: the first row of segment k; `bounds` is zero on entry. Returns False if segment ids ever fall.

    Also returns False if an id is negative or too large for the bounds, now or, if another thread writes into the ids,
    when it is read again.
    """
    n = uint64(segments.shape[0])
    falls = False
    for first in range(uint64(1), n, _TOGETHER):
        for i in range(first, min(first + _TOGETHER, n)):  # no branch: it would be mispredicted at each bound
            falls |= segments[i] < segments[i - uint64(1)]
        if falls:
            return False
    for i in range(n):
        segment = uint64(segments[i])
        if segment >= uint64(bounds.shape[0] - 1):
            return False
        bounds[segment + uint64(1)] = i + uint64(1)
    for k in range(1, bounds.shape[0]):
        bounds[k] = max(bounds[k], bounds[k - 1])
    return True


@jit
def are_valid_bounds(bounds, rows):
    """True if bounds start at 0, never fall and end with the number of rows."""
    last = bounds.shape[0] - 1
    falls = last < 0 or bounds[0] != 0 or bounds[last] != rows
    for k in range(uint64(max(last, 0))):
        falls |= bounds[k + uint64(1)] < bounds[k]
    return not falls


@jit
def sum_rows(table, bounds, weights, norm, out, runs, dim, lanes):
    """out[k]: the sum of weights[i] * row i over run k, divided by 1, n or sqrt(n) as `norm` says; weights may be None.

    `runs` is (first run, end). Row i is at the address `base + stride * i`, where `table` is (base, stride); `out`, and
    the way in which lanes cover the `dim` columns, are as for `bags.pool_sum`.
    """
    if dim == width(lanes):
        _sum_columns(table, bounds, weights, out, runs[0], runs[1], 0, width(lanes), lanes)
    else:
        for k in range(runs[0], runs[1]):
            for first in range(0, dim, width(lanes)):
                _sum_columns(table, bounds, weights, out, k, k + 1, min(first, dim - width(lanes)), dim, lanes)
    if norm != SUM:
        for k in range(runs[0], runs[1]):
            rows = float(max(bounds[k + 1] - bounds[k], 1))
            factor = out.dtype.type(1 / (rows if norm == MEAN else math.sqrt(rows)))
            for j in range(dim):
                out[k, j] *= factor


@jit
def _sum_columns(table, bounds, weights, out, first, last, column, dim, lanes):
    """One pass of `sum_rows`: the columns from `column` on that fit into the lanes."""
    stop = uint64(bounds[uint64(first)])
    for k in range(uint64(first), uint64(last)):
        start = stop
        stop = uint64(bounds[k + uint64(1)])
        found = zeros(lanes)
        # Four partial sums of a row of so many elements fit into registers.
        if weights is None and width(lanes) <= 64 and width(lanes) == dim and stop - start >= _MANY:
            b = c = d = found
            while start + uint64(4) <= stop:
                place = table[0] + table[1] * int64(start)
                found = add(found, load(lanes, place, column, dim))
                b = add(b, load(lanes, place + table[1], column, dim))
                c = add(c, load(lanes, place + 2 * table[1], column, dim))
                d = add(d, load(lanes, place + 3 * table[1], column, dim))
                start += uint64(4)
            found = add(add(found, b), add(c, d))
        for i in range(start, stop):
            place = table[0] + table[1] * int64(i)
            if width(lanes) != dim:
                prefetch(lanes, place + _RUN_AHEAD * table[1], column)
            x = load(lanes, place, column, dim)
            found = add(found, x) if weights is None else add(found, scaled(x, weights[i]))
        store(out, int64(k), column, found)


@jit
def sum_runs(x, weights, bounds, out, lanes):
    """out[k, 0]: the sum of weights[i] * x[i, 0] over run k; the lanes are one machine vector."""
    many = uint64(width(lanes))
    for k in range(uint64(out.shape[0])):
        start = uint64(bounds[k])
        stop = uint64(bounds[k + uint64(1)])
        if weights is None:
            out[k, 0] = _sum_run(x.ctypes.data, x.itemsize, start, stop, many, lanes)
        else:
            found = x.dtype.type(0)
            for i in range(start, stop):
                found += x[i, 0] * weights[i]
            out[k, 0] = found


@jit
def _sum_run(first, size, start, stop, many, lanes):
    """The sum of contiguous numbers, in four partial vectors while enough remain, then in one."""
    place = first + int64(start) * size
    a = zeros(lanes)
    if stop - start > uint64(4) * many:
        b = c = d = a
        while start + uint64(4) * many <= stop:
            a = add(a, load(lanes, place, 0, 0))
            b = add(b, load(lanes, place, many, 0))
            c = add(c, load(lanes, place, uint64(2) * many, 0))
            d = add(d, load(lanes, place, uint64(3) * many, 0))
            start += uint64(4) * many
            place += int64(uint64(4) * many) * size
        a = add(add(a, b), add(c, d))
    while start + many <= stop:
        a = add(a, load(lanes, place, 0, 0))
        start += many
        place += int64(many) * size
    return reduce_sum(add(a, load_first(lanes, place, stop - start)))
