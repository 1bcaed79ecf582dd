"""Segments that follow each other: where each starts, and the sums of runs of rows and of numbers.

Bounds are trusted: run k is what lies from bounds[k] to before bounds[k + 1]. Where a run is long enough it is added up
in four parts, for an addition takes as long as four can be started in.
"""

import math

from numpy import int64, uint64

from autobatch.kernels.jit import jit
from autobatch.kernels.pooling import MEAN, SUM
from autobatch.kernels.vector_ends import load_first, total
from autobatch.kernels.vectors import add, load, prefetch, scaled, store, width, zeros

__all__ = ["are_bounds", "run_bounds", "sum_rows", "sum_runs"]

_AHEAD = 4  # rows, of those that take more than one pass: the machine fetches by itself only what follows
_MANY = uint64(32)  # rows of a run that is worth it
_NARROW = 64  # elements of a row of which four parts fit the registers


@jit
def run_bounds(segments, bounds):
    """bounds[k]: the first row of segment k, if segments never fall; else False. `bounds` is zero on entry.

    Segments that never fall are checked: with one that is none of those that there are bounds for, False as well.
    """
    n = uint64(segments.shape[0])
    falls = False
    for i in range(uint64(1), n):  # neither loop has a way out or a choice, which would be guessed wrong at each bound
        falls |= segments[i] < segments[i - uint64(1)]
    if falls or (n and (segments[0] < 0 or segments[n - uint64(1)] >= bounds.shape[0] - 1)):
        return False
    for i in range(n):
        bounds[segments[i] + 1] = i + uint64(1)
    for k in range(1, bounds.shape[0]):
        bounds[k] = max(bounds[k], bounds[k - 1])
    return True


@jit
def are_bounds(bounds, rows):
    """Whether bounds start at 0, never fall and end with the number of rows."""
    last = bounds.shape[0] - 1
    falls = last < 0 or bounds[0] != 0 or bounds[last] != rows
    for k in range(uint64(max(last, 0))):
        falls |= bounds[k + uint64(1)] < bounds[k]
    return not falls


@jit
def sum_rows(table, bounds, weights, norm, out, runs, dim, lanes):
    """out[k]: the sum of weights[i] * row i of run k, over nothing, n or the root of n, for the runs of a range.

    Row i is at the address `base + stride * i`, (base, stride) being `table`; `out` is as for `pooling.pool_sum`, and
    so is how the lanes cover the `dim` columns. Weights may be None.
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
    """The columns of `sum_rows` from one column on that the lanes hold; a choice more for each run can be seen."""
    stop = uint64(bounds[uint64(first)])
    for k in range(uint64(first), uint64(last)):
        start = stop
        stop = uint64(bounds[k + uint64(1)])
        found = zeros(lanes)
        if weights is None and width(lanes) <= _NARROW and width(lanes) == dim and stop - start >= _MANY:
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
                prefetch(lanes, place + _AHEAD * table[1], column)
            x = load(lanes, place, column, dim)
            found = add(found, x) if weights is None else add(found, scaled(x, weights[i]))
        store(out, int64(k), column, found)


@jit
def sum_runs(x, weights, bounds, out, lanes):
    """out[k, 0]: the sum of weights[i] * x[i, 0] over run k of numbers; the lanes are one machine vector of them."""
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
    """The sum of some numbers, in four partial vectors while there are so many, then in one."""
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
    return total(add(a, load_first(lanes, place, stop - start)))
