"""Random rows by a counter-based generator: element j of a row is a hash of the row's key and j, and of nothing else.

`ops/nn/init.py` makes the keys of seed and row. The hash is that of `ops/nn/dropout_and_masks.py`: SplitMix64's
finaliser over key + (j + 1) times its increment. A normal number is the inverse normal distribution function of a
uniform one: algorithm AS 241 (PPND16) of M. J. Wichura, Applied Statistics 37 (1988), with about 16 correct digits."""

import math

import numpy as np
from numpy import float64, int64, uint64

from autobatch.kernels.jit import jit

_FAR = 1.3887943864964021e-11  # exp(-25): below it, the tail has its own formula


@jit
def _bits(key, j):
    z = key + (uint64(j) + uint64(1)) * uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    z = z ^ (z >> uint64(31))
    return float64(z >> uint64(11))


@jit
def uniform_rows(keys, low, high, out):
    """Fill out with uniform numbers in [low, high), row i from keys[i]."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = low + (high - low) * (_bits(keys[i], j) * 2.0**-53)


@jit
def normal_rows(keys, mean, std, out):
    """Fill out with normal numbers of this mean and standard deviation, row i from keys[i]."""
    p, x = np.empty(out.shape[1]), np.empty(out.shape[1])
    for i in range(out.shape[0]):
        _uniform_open(keys[i], p)
        _inverse_in_the_middle(p, x)
        _inverse_at_the_sides(p, x)
        _inverse_at_the_ends(p, x)
        for j in range(out.shape[1]):
            out[i, j] = mean + std * x[j]


# These loops are separate so that each is simple enough for the compiler to vectorise.


@jit
def _uniform_open(key, p):
    for j in range(p.shape[0]):
        p[j] = (_bits(key, j) + 0.5) * 2.0**-53


@jit
def _inverse_in_the_middle(p, x):
    for j in range(p.shape[0]):
        x[j] = _middle(p[j] - 0.5)


@jit
def _inverse_at_the_sides(p, x):
    for j in range(p.shape[0]):
        side = _side(p[j] if p[j] < 0.5 else 1 - p[j])
        side = -side if p[j] < 0.5 else side
        x[j] = x[j] if abs(p[j] - 0.5) <= 0.425 else side


@jit
def _inverse_at_the_ends(p, x):
    ends = 0
    for j in range(p.shape[0]):
        ends += (p[j] < _FAR) | (1 - p[j] < _FAR)
    if not ends:
        return
    for j in range(p.shape[0]):
        if p[j] < _FAR or 1 - p[j] < _FAR:
            x[j] = math.copysign(_end(min(p[j], 1 - p[j])), p[j] - 0.5)


@jit
def _polynomial(x, c0, c1, c2, c3, c4, c5, c6, c7):
    return ((((((c7 * x + c6) * x + c5) * x + c4) * x + c3) * x + c2) * x + c1) * x + c0


@jit
def _log(x):
    """The logarithm of a positive normal number: the algorithm of fdlibm's C libraries, without branches."""
    bits = float64(x).view(int64)
    exponent = (bits - int64(0x3FE6A09E667F3BCD)) >> 52  # such that the mantissa is between sqrt(1/2) and sqrt(2)
    f = int64(bits - (exponent << 52)).view(float64) - 1
    s = f / (2 + f)
    z = s * s
    series = z * _polynomial(
        z, 6.666666666666735130e-1, 3.999999999940941908e-1, 2.857142874366239149e-1, 2.222219843214978396e-1,
        1.818357216161805012e-1, 1.531383769920937332e-1, 1.479819860511658591e-1, 0.0,
    )  # fmt: skip
    return exponent * 0.6931471805599453 + (f - s * (f - series))


@jit
def _middle(q):
    """The inverse distribution function at q + 1/2, for |q| <= 0.425."""
    r = 0.180625 - q * q
    above = _polynomial(
        r, 3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
        4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3,
    )  # fmt: skip
    below = _polynomial(
        r, 1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3,
    )  # fmt: skip
    return q * above / below


@jit
def _side(p):
    """Minus the inverse distribution function at p, for _FAR <= p < 0.075."""
    r = math.sqrt(-_log(p)) - 1.6
    above = _polynomial(
        r, 1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
        1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4,
    )  # fmt: skip
    below = _polynomial(
        r, 1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9,
    )  # fmt: skip
    return above / below


@jit
def _end(p):
    """Minus the inverse distribution function at p, for p < _FAR."""
    r = math.sqrt(-math.log(p)) - 5
    above = _polynomial(
        r, 6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
        2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7,
    )  # fmt: skip
    below = _polynomial(
        r, 1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15,
    )  # fmt: skip
    return above / below
