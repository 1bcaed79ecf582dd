"""Where each op is defined, as samplers of operands: one table drives every test over all ops."""


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
    "ldexp": (normal, small_ints),
    "copysign": (nonzero, nonzero),
    "relu": (nonzero,),
}


def operands(name, nin, rng, shapes):
    """Operands of these shapes inside the domain of the op."""
    samplers = DOMAINS.get(name, (normal,) * nin)
    return [sampler(rng, shape) for sampler, shape in zip(samplers, shapes, strict=True)]
