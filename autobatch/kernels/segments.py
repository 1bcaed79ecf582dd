"""Reductions of rows into segments named by a segment id for each row, in any order.

Rows and outputs are C-contiguous (rows, width) arrays. Position i reads row i, or row ids[i] where `ids` is not None,
times weights[i] where `weights` is not None. Ids are trusted: 0 <= segments[i] < len(out), 0 <= ids[i] < len(x).
Additions run in the order of the positions, so equal input gives bit-equal output.
"""

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
    "segment_prod_slopes",
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
    """Rows of width 1; a run of one segment is added up in a register."""
    n = segments.shape[0]
    i = 0
    while i < n:
        segment = segments[i]
        total = out[segment]
        while i < n and segments[i] == segment:
            value = x[i if ids is None else ids[i]]
            if weights is not None:
                value = value * weights[i]
            total += value
            i += 1
        out[segment] = total


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
def segment_prod_others(x, segments, running, out):
    """out[i]: the product of the other rows of its segment, zeros counted as they are.

    `running` is (segments, width), one on entry; what was before i is multiplied forward, what comes after backward.
    """
    n = segments.shape[0]
    width = x.shape[1]
    for i in range(n):
        for j in range(width):
            out[i, j] = running[segments[i], j]
            running[segments[i], j] *= x[i, j]
    running[:] = 1
    for k in range(n):
        i = n - 1 - k
        for j in range(width):
            out[i, j] *= running[segments[i], j]
            running[segments[i], j] *= x[i, j]


@jit
def segment_prod_slopes(x, ct, segments, running, slopes, firsts, out):
    """out[i]: the sum, over the other rows k of its segment, of ct[k] times the product of the rows besides i and k.

    It is the slope of the product of the others where each row grows by its ct: products and slopes are carried forward
    and backward. `running` is (segments, width), one on entry, `slopes` as well, zero on entry; `firsts` is as `out`.
    """
    n = segments.shape[0]
    for i in range(n):
        segment = segments[i]
        for j in range(x.shape[1]):
            firsts[i, j] = running[segment, j]
            out[i, j] = slopes[segment, j]
            slopes[segment, j] = slopes[segment, j] * x[i, j] + running[segment, j] * ct[i, j]
            running[segment, j] *= x[i, j]
    running[:] = 1
    slopes[:] = 0
    for k in range(n):
        i = n - 1 - k
        segment = segments[i]
        for j in range(x.shape[1]):
            out[i, j] = out[i, j] * running[segment, j] + firsts[i, j] * slopes[segment, j]
            slopes[segment, j] = slopes[segment, j] * x[i, j] + running[segment, j] * ct[i, j]
            running[segment, j] *= x[i, j]


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
