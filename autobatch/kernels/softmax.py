"""Softmax of float32 rows of different lengths, and its gradient.

`x` and `out` are C-contiguous (rows, width), `counts` says how many elements of each row there are; what is behind them
is not read, and becomes 0. `part` is the first row that is done and the one after the last. `exp` is within 4 ulp of
NumPy's.
"""

from numpy import float64

from autobatch.kernels.jit import jit
from autobatch.kernels.vector_math import choose, divide, equal, exp, fill, highest, less, lowest, subtract, total
from autobatch.kernels.vectors import add, greater, lesser, load, put, zeros

__all__ = ["softmax_gradient", "softmax_rows"]

_LARGEST = 3.4028234663852886e38
_INFINITE = float("inf")


@jit
def softmax_rows(x, counts, out, part, scratch, lanes):
    """out[i] = e**x[i] over its sum; False, and `out` arbitrary, if NumPy might complain of a row.

    Args:
        scratch: the numbers 0 to 15, and room for 16 elements.
        lanes: 16 elements of float32. The last of a row's are written with what is behind them, which the next row
            then overwrites.
    """
    width = x.shape[1]
    source, target, spare = x.ctypes.data, out.ctypes.data, scratch.ctypes.data
    none, every = fill(lanes, -_INFINITE), fill(lanes, _INFINITE)
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
            peak, least = float(highest(top)), float(lowest(low))
            if not (-_LARGEST <= peak <= _LARGEST and least - peak >= -_LARGEST):
                return False
            peaks = fill(lanes, peak)
            tail = choose(inside, exp(subtract(tail, peaks)), zeros(lanes))
            whole = tail
            for j in range(0, full, 16):
                values = exp(subtract(load(lanes, source, start + j, 0), peaks))
                put(target, start + j, values)
                whole = add(whole, values)
            divisor = fill(lanes, total(whole))
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
    """out[i] = y[i] * (ct[i] - the sum of y[i] * ct[i])."""
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
