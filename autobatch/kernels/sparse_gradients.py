"""Sparse gradients of rows: grouping positions by the row they name, and summing each row's gradient.

The gradient at position i is sources[segments[i]] * factors[i]; `segments` None means i, and `factors` None means 1.
So a reduction's cotangent is not copied for each row that it read. Ids are not checked. Sums run in the order of the
positions, so equal inputs give bit-equal outputs.
"""

import numpy as np

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import AHEAD, prefetch_source


@jit
def group_positions(inverse, starts, positions):
    """Group positions by row number: those i with inverse[i] == k are positions[starts[k]:starts[k + 1]], ascending.

    `starts`, (row numbers + 1,), must be zero on entry; it becomes a histogram, then its prefix sum.
    """
    count = starts.shape[0] - 1
    for i in range(inverse.shape[0]):
        starts[inverse[i]] += 1
    total = 0
    for k in range(count):
        here = starts[k]
        starts[k] = total
        total += here
    for i in range(inverse.shape[0]):
        k = inverse[i]
        positions[starts[k]] = i
        starts[k] += 1
    for k in range(count, 0, -1):
        starts[k] = starts[k - 1]
    starts[0] = 0


@jit
def row_gradient(acc, k, starts, positions, sources, segments, factors, scale, limit):
    """acc = the gradient of unique row k (sources[k] if `positions` is None), scaled and clipped to [-limit, limit]."""
    width = acc.shape[0]
    if positions is None:
        for j in range(width):
            acc[j] = sources[k, j]
    else:
        acc[:] = 0
        for p in range(starts[k], starts[k + 1]):
            if p + AHEAD < positions.shape[0]:
                later = positions[p + AHEAD]
                prefetch_source(sources, later if segments is None else segments[later])
            at = positions[p]
            source = sources[at if segments is None else segments[at]]
            factor = source.dtype.type(1) if factors is None else factors[at]
            for j in range(width):
                acc[j] += source[j] if factors is None else factor * source[j]
    if scale != 1:
        for j in range(width):
            acc[j] *= scale
    if limit >= 0:
        for j in range(width):
            if acc[j] > limit:
                acc[j] = limit
            elif acc[j] < -limit:
                acc[j] = -limit


@jit
def row_squares(lo, hi, acc, starts, positions, sources, segments, factors, out):
    """out[k] = the sum of the squares of the gradient of unique row k."""
    for k in range(lo, hi):
        row_gradient(acc, k, starts, positions, sources, segments, factors, 1, -1)
        total = 0.0
        for j in range(acc.shape[0]):
            wide = np.float64(acc[j])  # in Numba, `float(x)` of a float32 stays float32
            total += wide * wide
        out[k] = total
