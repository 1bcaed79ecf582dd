"""Where each op is defined, as samplers of operands: one table drives every test over all ops."""

import numpy as np


def normal(rng, shape):
    return rng.normal(size=shape)


def positive(rng, shape):
    return rng.uniform(0.3, 2.5, size=shape)


def inside(rng, shape):
    return rng.uniform(-0.9, 0.9, size=shape)


def above_one(rng, shape):
    return rng.uniform(1.2, 3.0, size=shape)


def nonzero(rng, shape):
    return rng.choice([-1.0, 1.0], size=shape) * rng.uniform(0.5, 2.0, size=shape)


def small_ints(rng, shape):
    return rng.integers(-3, 4, size=shape)


DOMAINS = {
    "log": (positive,),
    "log2": (positive,),
    "log10": (positive,),
    "log1p": (positive,),
    "sqrt": (positive,),
    "cbrt": (nonzero,),
    "reciprocal": (nonzero,),
    "absolute": (nonzero,),
    "fabs": (nonzero,),
    "arcsin": (inside,),
    "arccos": (inside,),
    "arctanh": (inside,),
    "tan": (inside,),
    "arccosh": (above_one,),
    "divide": (normal, nonzero),
    "power": (positive, normal),
    "float_power": (positive, normal),
    "remainder": (normal, nonzero),
    "fmod": (normal, nonzero),
    "divmod": (normal, nonzero),
    "divmod[1]": (normal, nonzero),
    "floor_divide": (normal, nonzero),
    "share": (normal, nonzero),
    "ldexp": (normal, small_ints),
    "copysign": (nonzero, nonzero),
    "relu": (nonzero,),
}


def operands(name, nin, rng, shapes):
    """Operands of these shapes inside the domain of the op."""
    samplers = DOMAINS.get(name, (normal,) * nin)
    return [sampler(rng, shape) for sampler, shape in zip(samplers, shapes, strict=True)]


def special_numbers(dtype):
    """What breaks: each end of the dtype, both zeros, what only just has a square, an exponential or a logarithm."""
    info = np.finfo(dtype)
    ends = [info.max, info.tiny, info.smallest_subnormal, info.smallest_subnormal * 3, info.eps, 1 - info.epsneg]
    roots = [
        np.sqrt(info.max),
        np.sqrt(info.tiny),
        np.log(info.max),
        np.log(info.max) * 1.01,
        -np.log(info.tiny) * 1.05,
    ]
    positive = np.array([0.0, np.inf, 0.5, 1.0, 1.5, 2.0, 3.0, 17.25, *ends, *roots], dtype)
    return np.concatenate([positive, -positive, np.array([np.nan], dtype)])
