"""Layer normalisation of float32 rows, and its gradient.

All arrays are C-contiguous (rows, width), width a multiple of 16; `part` is the first row that is done and the one
after the last. Each row is read from memory once: its sums, and what is written, are made of what the cache holds.
"""

from numpy import float32, sqrt

from autobatch.kernels.jit import jit
from autobatch.kernels.vector_math import fill, multiply, subtract, total
from autobatch.kernels.vectors import add, load, put, scaled, zeros

__all__ = ["layer_norm_gradient", "layer_norm_rows"]

_LARGEST = 3.4028234663852886e38


@jit
def _moments(lanes, source, start, width, eps):
    """The mean of a row and the inverse of its deviation; (nan, nan) if NumPy might complain of it."""
    whole = zeros(lanes)
    for j in range(0, width, 16):
        whole = add(whole, load(lanes, source, start + j, 0))
    mean = float32(total(whole) / float32(width))
    means, squares = fill(lanes, mean), zeros(lanes)
    for j in range(0, width, 16):
        centered = subtract(load(lanes, source, start + j, 0), means)
        squares = add(squares, multiply(centered, centered))
    variance = float32(float32(total(squares) / float32(width)) + eps)
    if not 0 < variance <= _LARGEST:
        return mean, float32(-1)
    return mean, float32(float32(1) / sqrt(variance))


@jit
def layer_norm_rows(x, out, part, eps, lanes):
    """out[i] = x[i] less its mean, over its deviation; False, and `out` arbitrary, if NumPy might complain of a row.

    Args:
        eps: float32, what is added to the variance.
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
    """out[i] = what `layer_norm_rows` of x[i] hands back of the cotangent ct[i]; False as there."""
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
        shift = fill(lanes, float32(total(plain) / float32(width)))
        slope = float32(total(along) / float32(width))
        for j in range(start, start + width, 16):
            standard = scaled(subtract(load(lanes, source, j, 0), means), inverse)
            g = subtract(subtract(load(lanes, above, j, 0), shift), scaled(standard, slope))
            put(target, j, scaled(g, inverse))
    return True
