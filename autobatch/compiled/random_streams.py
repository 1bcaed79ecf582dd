"""`np.random.Generator` in compiled code: the streams of `default_rng(seed)`, bit for bit.

A stream is six uint64: the state and the increment of PCG64 (high word first), whether half of a 64-bit number is
left for the next draw of 32 bits, and that half.

Source: M. E. O'Neill, PCG (2014); NumPy's `SeedSequence`, `pcg64.h` and `distributions.c`, whose tables are Numba's.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.random._constants import (
    fe_double,
    fi_double,
    ke_double,
    ki_double,
    we_double,
    wi_double,
    ziggurat_exp_r,
    ziggurat_nor_inv_r,
    ziggurat_nor_r,
)

from autobatch.kernels.jit import jit

_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64, as in NumPy
_32 = np.uint64(0xFFFFFFFF)


@intrinsic
def _stepped(typing_context, high, low, add_high, add_low):
    """The next state of PCG64, as a high and a low word."""
    numba: Any = types
    pair = numba.UniTuple(types.uint64, 2)

    def generate(context, builder, signature, args):
        word, wide = ir.IntType(64), ir.IntType(128)

        def joined(one, two):
            return builder.or_(builder.shl(builder.zext(one, wide), wide(64)), builder.zext(two, wide))

        out = builder.add(builder.mul(joined(*args[:2]), wide(_MULTIPLIER)), joined(*args[2:]))
        parts = [builder.trunc(builder.lshr(out, wide(64)), word), builder.trunc(out, word)]
        return cgutils.pack_array(builder, parts)

    return pair(*[types.uint64] * 4), generate


@jit
def _mixed(value, constant):
    """A word of entropy, hashed."""
    value = ((value ^ constant) * ((constant * np.uint64(0x931E8875)) & _32)) & _32
    return value ^ (value >> np.uint64(16))


@jit
def new_stream(seed):
    """The stream of `default_rng(seed)`, for a seed that is not negative."""
    pool = np.zeros(4, np.uint64)
    constant = np.uint64(0x43B0D7E5)
    entropy = (np.uint64(seed) & _32, np.uint64(seed) >> np.uint64(32))
    for i in range(4):
        pool[i] = _mixed(entropy[i] if i < 2 else np.uint64(0), constant)
        constant = (constant * np.uint64(0x931E8875)) & _32
    for i in range(4):
        for j in range(4):
            if i != j:
                hashed = _mixed(pool[i], constant)
                constant = (constant * np.uint64(0x931E8875)) & _32
                both = (np.uint64(0xCA01F9DD) * pool[j] - np.uint64(0x4973F715) * hashed) & _32
                pool[j] = both ^ (both >> np.uint64(16))
    words = np.zeros(4, np.uint64)
    constant = np.uint64(0x8B51F9DD)
    for i in range(8):
        value = pool[i % 4] ^ constant
        constant = (constant * np.uint64(0x58F38DED)) & _32
        value = (value * constant) & _32
        value ^= value >> np.uint64(16)
        words[i // 2] |= value << np.uint64(32 * (i % 2))
    out = np.zeros(6, np.uint64)
    out[2] = (words[2] << np.uint64(1)) | (words[3] >> np.uint64(63))
    out[3] = (words[3] << np.uint64(1)) | np.uint64(1)
    _step(out)
    low = out[1] + words[1]
    out[0] += words[0] + np.uint64(low < out[1])
    out[1] = low
    _step(out)
    return out


@jit
def _step(stream):
    stream[0], stream[1] = _stepped(stream[0], stream[1], stream[2], stream[3])


@jit
def _next_64(stream):
    _step(stream)
    value, turn = stream[0] ^ stream[1], stream[0] >> np.uint64(58)
    return (value >> turn) | (value << ((np.uint64(64) - turn) & np.uint64(63)))


@jit
def _next_32(stream):
    if stream[4] != 0:
        stream[4] = 0
        return stream[5]
    value = _next_64(stream)
    stream[4] = 1
    stream[5] = value >> np.uint64(32)
    return value & _32


@jit
def next_float(stream):
    """A float in [0, 1)."""
    return np.float64(_next_64(stream) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def next_normal(stream):
    """A number of the standard normal distribution."""
    while True:
        word = _next_64(stream)
        place = np.int64(word & np.uint64(0xFF))
        word >>= np.uint64(8)
        size = (word >> np.uint64(1)) & np.uint64(0x000FFFFFFFFFFFFF)
        x = np.float64(size) * wi_double[place]
        if word & np.uint64(1):
            x = -x
        if size < ki_double[place]:
            return x
        if place == 0:
            while True:
                xx = -ziggurat_nor_inv_r * math.log1p(-next_float(stream))
                yy = -math.log1p(-next_float(stream))
                if yy + yy > xx * xx:
                    if (size >> np.uint64(8)) & np.uint64(1):
                        return -(ziggurat_nor_r + xx)
                    return ziggurat_nor_r + xx
        elif (fi_double[place - 1] - fi_double[place]) * next_float(stream) + fi_double[place] < math.exp(-0.5 * x * x):
            return x


@jit
def next_exponential(stream):
    """A number of the standard exponential distribution."""
    while True:
        word = _next_64(stream) >> np.uint64(3)
        place = np.int64(word & np.uint64(0xFF))
        word >>= np.uint64(8)
        x = np.float64(word) * we_double[place]
        if word < ke_double[place]:
            return x
        if place == 0:
            return ziggurat_exp_r - math.log1p(-next_float(stream))
        if (fe_double[place - 1] - fe_double[place]) * next_float(stream) + fe_double[place] < math.exp(-x):
            return x


@jit
def next_whole(stream, low, most):
    """A random integer from `low` to `low + most`, both included; `most` is below 2**32 - 1."""
    if most == 0:
        return low
    count = np.uint64(most) + np.uint64(1)
    product = _next_32(stream) * count
    left = product & _32
    if left < count:
        threshold = (_32 - np.uint64(most)) % count
        while left < threshold:
            product = _next_32(stream) * count
            left = product & _32
    return low + np.int64(product >> np.uint64(32))


@jit
def shuffle_places(stream, count):
    """The indices of `count` elements in the order that a shuffle puts them into."""
    out = np.arange(count)
    for i in range(count - 1, 0, -1):
        mask = np.uint64(i)
        for shift in (1, 2, 4, 8, 16):
            mask |= mask >> np.uint64(shift)
        j = _next_32(stream) & mask
        while j > np.uint64(i):
            j = _next_32(stream) & mask
        out[i], out[j] = out[j], out[i]
    return out
