"""Softmax and layer normalisation of float32 rows, and their gradients.

All arrays are C-contiguous (rows, width); `part` is the range (first row, end) to compute. `counts` is the number of
elements of each row in a softmax: later elements are not read, and their results are 0. The `exp` is within 4 ulp of
NumPy's. In layer normalisation widths are multiples of 16; a row makes several passes, of which only the first reads
from memory and the others from the cache.
"""

import math

from numpy import float32, float64, sqrt

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import add, greater, lesser, load, put, scaled, zeros
from autobatch.kernels.vector_math import (
    choose,
    divide,
    equal,
    exp,
    fill,
    less,
    multiply,
    reduce_max,
    reduce_min,
    reduce_sum,
    subtract,
)

_LARGEST = 3.4028234663852886e38  # of float32


@jit
def softmax_rows(x, counts, out, part, scratch, lanes):
    """out[i] = softmax(x[i]); returns False, with `out` arbitrary, if NumPy might warn about a row (overflow, NaN).

    Args:
        scratch: (32,): the numbers 0 to 15, then space for 16 elements.
        lanes: 16 elements of float32. The last vector of a row may be written beyond the row's end, which the next row
            then overwrites.
    """
    width = x.shape[1]
    source, target, spare = x.ctypes.data, out.ctypes.data, scratch.ctypes.data
    none, every = fill(lanes, -math.inf), fill(lanes, math.inf)
    places = load(lanes, spare, 0, 0)
    for i in range(part[0], part[1]):
        start, count = i * width, int(counts[i])
        if count:
            full = (count - 1) // 16 * 16
            inside = less(places, fill(lanes, count - full))
            fits = start + full + 16 <= part[1] * width
            if fits:
                tail = load(lanes, source, start + full, 0)
            else:
                for j in range(full, count):
                    scratch[16 + j - full] = x[i, j]
                tail = load(lanes, spare, 16, 0)
            tail = choose(inside, tail, none)
            top, low = tail, choose(equal(tail, none), every, tail)
            for j in range(0, full, 16):
                values = load(lanes, source, start + j, 0)
                top = greater(top, values)
                low = lesser(low, choose(equal(values, none), every, values))
            peak, least = float(reduce_max(top)), float(reduce_min(low))
            if not (-_LARGEST <= peak <= _LARGEST and least - peak >= -_LARGEST):
                return False
            peaks = fill(lanes, peak)
            tail = choose(inside, exp(subtract(tail, peaks)), zeros(lanes))
            whole = tail
            for j in range(0, full, 16):
                values = exp(subtract(load(lanes, source, start + j, 0), peaks))
                put(target, start + j, values)
                whole = add(whole, values)
            divisor = fill(lanes, reduce_sum(whole))
            for j in range(0, full, 16):
                put(target, start + j, divide(load(lanes, target, start + j, 0), divisor))
            tail = divide(tail, divisor)
            if fits:
                put(target, start + full, tail)
            else:
                put(spare, 16, tail)
                for j in range(full, count):
                    out[i, j] = scratch[16 + j - full]
        for j in range(count, width):
            out[i, j] = 0
    return True


@jit
def softmax_gradient(y, ct, counts, out, part):
    """out[i] = y[i] * (ct[i] - sum(y[i] * ct[i])), for the softmax y."""
    for i in range(part[0], part[1]):
        count = counts[i]
        along = 0.0
        for j in range(count):
            along += float64(y[i, j]) * ct[i, j]
        along = y.dtype.type(along)
        for j in range(count):
            out[i, j] = y[i, j] * (ct[i, j] - along)
        for j in range(count, y.shape[1]):
            out[i, j] = 0


@jit
def _moments(lanes, source, start, width, eps):
    """(mean of a row, 1 / sqrt(variance + eps)); the second is -1 if NumPy might warn about the row."""
    whole = zeros(lanes)
    for j in range(0, width, 16):
        whole = add(whole, load(lanes, source, start + j, 0))
    mean = float32(reduce_sum(whole) / float32(width))
    means, squares = fill(lanes, mean), zeros(lanes)
    for j in range(0, width, 16):
        centered = subtract(load(lanes, source, start + j, 0), means)
        squares = add(squares, multiply(centered, centered))
    variance = float32(float32(reduce_sum(squares) / float32(width)) + eps)
    if not 0 < variance <= _LARGEST:
        return mean, float32(-1)
    return mean, float32(float32(1) / sqrt(variance))


@jit
def layer_norm_rows(x, out, part, eps, lanes):
    """out[i] = (x[i] - mean) / sqrt(variance + eps); False, with `out` arbitrary, if NumPy might warn of a row.

    Args:
        eps: float32, added to the variance.
        lanes: 16 elements of float32.
    """
    width = x.shape[1]
    source, target = x.ctypes.data, out.ctypes.data
    for i in range(part[0], part[1]):
        start = i * width
        mean, inverse = _moments(lanes, source, start, width, eps)
        if inverse < 0:
            return False
        means = fill(lanes, mean)
        for j in range(start, start + width, 16):
            put(target, j, scaled(subtract(load(lanes, source, j, 0), means), inverse))
    return True


@jit
def layer_norm_gradient(x, ct, out, part, eps, lanes):
    """out[i] = the cotangent of x[i], given the cotangent ct[i] of `layer_norm_rows`; returns False as that does."""
    width = x.shape[1]
    source, above, target = x.ctypes.data, ct.ctypes.data, out.ctypes.data
    for i in range(part[0], part[1]):
        start = i * width
        mean, inverse = _moments(lanes, source, start, width, eps)
        if inverse < 0:
            return False
        means, plain, along = fill(lanes, mean), zeros(lanes), zeros(lanes)
        for j in range(start, start + width, 16):
            g = load(lanes, above, j, 0)
            plain = add(plain, g)
            along = add(along, multiply(g, scaled(subtract(load(lanes, source, j, 0), means), inverse)))
        shift = fill(lanes, float32(reduce_sum(plain) / float32(width)))
        slope = float32(reduce_sum(along) / float32(width))
        for j in range(start, start + width, 16):
            standard = scaled(subtract(load(lanes, source, j, 0), means), inverse)
            g = subtract(subtract(load(lanes, above, j, 0), shift), scaled(standard, slope))
            put(target, j, scaled(g, inverse))
    return True
