"""Segments that follow each other: where each starts, and the sums of runs of numbers.

Bounds are trusted: run k is the numbers from bounds[k] to before bounds[k + 1].
"""

from numpy import int64, uint64

from autobatch.kernels.jit import jit
from autobatch.kernels.vector_ends import load_first, total
from autobatch.kernels.vectors import add, load, width, zeros

__all__ = ["run_bounds", "sum_runs"]


@jit
def run_bounds(segments, bounds):
    """bounds[k]: the first row of segment k, if segments never fall; else False. `bounds` is zero on entry."""
    n = uint64(segments.shape[0])
    falls = False
    for i in range(uint64(1), n):  # neither loop has a way out or a choice, which would be guessed wrong at each bound
        falls |= segments[i] < segments[i - uint64(1)]
    if falls:
        return False
    for i in range(n):
        bounds[segments[i] + 1] = i + uint64(1)
    for k in range(1, bounds.shape[0]):
        bounds[k] = max(bounds[k], bounds[k - 1])
    return True


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
