"""Reductions of rows into segments named by a segment id for each row, in any order.

Rows and outputs are C-contiguous (rows, width) arrays. Ids are trusted: 0 <= ids[i] < len(out). `seen` is (segments,)
bool, all False on entry, True on return where a segment has rows; the other rows of `out` are left as they were.
"""

from autobatch.kernels.jit import jit

__all__ = ["segment_first_equal", "segment_max", "segment_min", "segment_sum"]


@jit
def segment_sum(x, ids, out):
    """out[ids[i]] += x[i], in order of i; `out` is zero on entry."""
    for i in range(ids.shape[0]):
        segment = ids[i]
        for j in range(x.shape[1]):
            out[segment, j] += x[i, j]


@jit
def segment_max(x, ids, seen, out):
    """The greatest of each column of a segment; NaN if there is one."""
    for i in range(ids.shape[0]):
        segment = ids[i]
        fresh = not seen[segment]
        seen[segment] = True
        for j in range(x.shape[1]):
            if fresh or x[i, j] > out[segment, j] or x[i, j] != x[i, j]:
                out[segment, j] = x[i, j]


@jit
def segment_min(x, ids, seen, out):
    """The least of each column of a segment; NaN if there is one."""
    for i in range(ids.shape[0]):
        segment = ids[i]
        fresh = not seen[segment]
        seen[segment] = True
        for j in range(x.shape[1]):
            if fresh or x[i, j] < out[segment, j] or x[i, j] != x[i, j]:
                out[segment, j] = x[i, j]


@jit
def segment_first_equal(x, ids, values, out):
    """out[s, j]: the first row of segment s with values[s, j] in column j (NaN equals NaN); else as it was."""
    for k in range(ids.shape[0]):
        i = ids.shape[0] - 1 - k
        segment = ids[i]
        for j in range(x.shape[1]):
            a = x[i, j]
            b = values[segment, j]
            if a == b or (a != a and b != b):
                out[segment, j] = i
