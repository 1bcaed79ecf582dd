"""Reductions of rows into segments named by a segment id for each row, in any order.

Rows and outputs are C-contiguous (rows, width) arrays. Position i reads row i, or row ids[i] where `ids` is not None,
times weights[i] where `weights` is not None. Ids are trusted: 0 <= segments[i] < len(out), 0 <= ids[i] < len(x).
Additions run in the order of the positions, so equal input gives bit-equal output.
"""

from numpy import uint64

from autobatch.kernels.jit import jit
from autobatch.kernels.prefetch import AHEAD, prefetch_row, prefetch_source

__all__ = [
    "segment_argmax",
    "segment_argmin",
    "segment_cumsum",
    "segment_max",
    "segment_min",
    "segment_prod",
    "segment_prod_others",
    "segment_squares",
    "segment_sum",
]


@jit
def segment_sum(x, ids, weights, segments, out):
    """out[segments[i]] += weights[i] * row i; `out` is zero on entry."""
    width = x.shape[1]
    if width == 1:
        _sum_numbers(x[:, 0], ids, weights, segments, out[:, 0])
        return
    n = segments.shape[0]
    for i in range(n):
        if i + AHEAD < n:
            if ids is not None:
                prefetch_source(x, ids[i + AHEAD])
            prefetch_row(out, segments[i + AHEAD])
        row = i if ids is None else ids[i]
        into = out[segments[i]]
        values = x[row]
        if weights is None:
            for j in range(width):
                into[j] += values[j]
        else:
            weight = weights[i]
            for j in range(width):
                into[j] += weight * values[j]


@jit
def _sum_numbers(x, ids, weights, segments, out):
    """Rows of width 1, in a loop without a choice; nobody asks of an unsigned index whether it counts from the end."""
    for i in range(uint64(segments.shape[0])):
        value = x[i if ids is None else uint64(ids[i])]
        out[uint64(segments[i])] += value if weights is None else value * weights[i]


@jit
def segment_max(x, ids, segments, seen, out):
    """The greatest of each column of a segment; NaN if there is one. `seen` is all False on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = segments[i]
        if not seen[segment]:
            seen[segment] = True
            for j in range(x.shape[1]):
                out[segment, j] = x[row, j]
        else:
            for j in range(x.shape[1]):
                a = x[row, j]
                b = out[segment, j]
                out[segment, j] = a if a > b or a != a else b


@jit
def segment_min(x, ids, segments, seen, out):
    """The least of each column of a segment; NaN if there is one. `seen` is all False on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = segments[i]
        if not seen[segment]:
            seen[segment] = True
            for j in range(x.shape[1]):
                out[segment, j] = x[row, j]
        else:
            for j in range(x.shape[1]):
                a = x[row, j]
                b = out[segment, j]
                out[segment, j] = a if a < b or a != a else b


@jit
def segment_argmax(x, ids, segments, out):
    """The first position of the greatest of each column (of the first NaN, if there is one); -1 on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = segments[i]
        for j in range(x.shape[1]):
            best = out[segment, j]
            if best < 0:
                out[segment, j] = i
            else:
                a = x[row, j]
                b = x[best if ids is None else ids[best], j]
                if b == b and (a > b or a != a):
                    out[segment, j] = i


@jit
def segment_argmin(x, ids, segments, out):
    """The first position of the least of each column (of the first NaN, if there is one); -1 on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = segments[i]
        for j in range(x.shape[1]):
            best = out[segment, j]
            if best < 0:
                out[segment, j] = i
            else:
                a = x[row, j]
                b = x[best if ids is None else ids[best], j]
                if b == b and (a < b or a != a):
                    out[segment, j] = i


@jit
def segment_prod(x, ids, segments, out):
    """out[segments[i]] *= row i; `out` is one on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = segments[i]
        for j in range(x.shape[1]):
            out[segment, j] *= x[row, j]


@jit
def segment_prod_others(x, directions, segments, running, before, out):
    """out[i]: the product of the other rows of its segment, zeros counted as they are, or how it changes.

    With k `directions`, (k, n, width), it is the part of the product of (row + e1 * direction 1 + e2 * direction 2 ...)
    that has every e once: a derivative in all directions. Products are carried forward and backward as polynomials
    in the e, the factor of a set of them at the number whose bits are the set. `running` is (segments, width, 2**k),
    one for the empty set and else zero on entry, `before` is as `out` for each set.
    """
    n = segments.shape[0]
    sets = running.shape[2]
    for i in range(n):
        segment = segments[i]
        for j in range(x.shape[1]):
            for some in range(sets):
                before[i, j, some] = running[segment, j, some]
            _times_row(running, segment, x, directions, i, j)
    running[:] = 0
    running[:, :, 0] = 1
    for k in range(n):
        i = n - 1 - k
        segment = segments[i]
        for j in range(x.shape[1]):
            total = before[i, j, 0] * running[segment, j, sets - 1]
            for some in range(1, sets):
                total += before[i, j, some] * running[segment, j, sets - 1 - some]
            out[i, j] = total
            _times_row(running, segment, x, directions, i, j)


@jit
def _times_row(running, segment, x, directions, i, j):
    """The polynomial of a segment times that of row i, x + e1 * direction 1 + ..., each e at most once."""
    sets = running.shape[2]
    for k in range(sets):
        some = sets - 1 - k  # a set before the sets that are a part of it
        total = running[segment, j, some] * x[i, j]
        for e in range(directions.shape[0]):
            if some >> e & 1:
                total += running[segment, j, some - (1 << e)] * directions[e, i, j]
        running[segment, j, some] = total


@jit
def segment_squares(x, ids, weights, segments, means, out):
    """out[segments[i]] += weights[i] * (row i - means[segments[i]])**2; `out` is zero on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = segments[i]
        for j in range(x.shape[1]):
            d = x[row, j] - means[segment, j]
            if weights is None:
                out[segment, j] += d * d
            else:
                out[segment, j] += weights[i] * d * d


@jit
def segment_cumsum(x, ids, segments, running, out):
    """out[i]: the sum of the rows of its segment up to i; `running` is (segments, width), zero on entry."""
    for i in range(segments.shape[0]):
        row = i if ids is None else ids[i]
        segment = segments[i]
        for j in range(x.shape[1]):
            total = running[segment, j] + x[row, j]
            running[segment, j] = total
            out[i, j] = total
