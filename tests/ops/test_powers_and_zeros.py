"""Powers that NumPy computes by other functions, and the signs of zeros of extremes, to the bit in every way."""

import itertools

import numpy as np
import pytest

import autobatch as ab
from tests.law import every_way_is_exact

PARTS = [-np.inf, -0.0, 0.0, 2.0, np.inf, np.nan]
POWERS = {
    "root": lambda x, e: x**0.5,
    "inverse": lambda x, e: x**-1,
    "inverse by a float": lambda x, e: x**-1.0,
    "square": lambda x, e: x**2,
    "np.power": lambda x, e: np.power(x, 0.5),
    "np.power by a NumPy number": lambda x, e: np.power(x, np.float64(0.5)),
    "by a NumPy number": lambda x, e: x ** np.float64(0.5),
    "by an array": lambda x, e: x ** np.full(x.shape, 0.5),
    "by what is shared": lambda x, e: x**e,
    "np.power by what is shared": lambda x, e: np.power(x, e),
    "by its own float": lambda x, e: x ** float(x[1].real),
    "by its own int": lambda x, e: x ** int(x[2].real),
    "by its own number": lambda x, e: x ** x[1].real,
    "np.power by its own number": lambda x, e: np.power(x, x[1].real),
    "of a number": lambda x, e: x[0] ** 0.5,
    "of a number by its own": lambda x, e: x[0] ** x[1],
    "np.power of a number": lambda x, e: np.power(x[0], 0.5),
    "of an array without dimensions": lambda x, e: x[..., 0] ** 0.5,
    "np.float_power": lambda x, e: np.float_power(x, 0.5),
}


def in_place(x, e):
    y = x.copy()
    y **= 0.5
    z = x.copy()
    z **= -1
    return y, z


@pytest.mark.parametrize("name", [*POWERS, "in place"])
@pytest.mark.parametrize("dtype", [np.complex128, np.float64, np.float32, np.float16, np.longdouble])
def test_powers_of_special_numbers(name, dtype):
    f = POWERS.get(name, in_place)
    numbers = list(itertools.starmap(complex, itertools.product(PARTS, PARTS))) if dtype is np.complex128 else PARTS
    xs = [np.array([each, 0.5, -1], dtype) for each in numbers]
    with np.errstate(all="ignore"):
        for e in (0.5, -1) if "shared" in name else (2,):
            every_way_is_exact(f, xs, e=e)
            every_way_is_exact(f, xs[:1], e=e)


EXTREMES = {
    "min": lambda x: x.min(initial=0.0),
    "max": lambda x: x.max(initial=-0.0),
    "min from below": lambda x: np.min(x, initial=-0.0),
    "reduce": lambda x: np.maximum.reduce(x, initial=0.0),
    "where": lambda x: np.min(x, initial=0.0, where=x > -1),
    "nanmax of nothing": lambda x: np.nanmax(x, initial=x.dtype.type(-3), where=x > 5),
    "nanmin of nothing": lambda x: np.nanmin(x, axis=0, initial=7.0, where=x > 5, keepdims=True),
    "by axis": lambda x: np.stack([x, -x]).max(axis=1, initial=-0.0),
    "across": lambda x: np.stack([x, -x]).max(axis=0),
    "of more": lambda x: np.concatenate([x, [0.0, -0.0]]).min(),
    "fmin": lambda x: np.fmin.reduce(x, initial=0.0),
    "sum": lambda x: (x.sum(), x.sum(initial=-0.0), np.sum(x, initial=np.float32(-0.0), keepdims=True), (x * 2).sum()),
    "sum by axis": lambda x: (np.add.reduce(np.stack([x, -x]), 1, initial=-0.0), np.nansum(x, initial=-0.0)),
    "sum of some": lambda x: (x.sum(initial=-0.0, where=x > 5), np.sum(x, where=x < 5)),
    "complex sum": lambda x: (np.conj(x + 0j).sum(initial=-0.0), np.sum(-x * 1j, initial=1 - 0j, where=x > 5)),
    "complex product": lambda x: (np.conj(x.astype(complex)).prod(initial=-0.0), (x * 1j).prod(where=x < 1)),
}


BOUNDED = {
    "own bounds": lambda x: np.clip(x[0], x[1], x[2]),
    "0 and 2": lambda x: np.clip(x[0], 0, 2),
    "zeros": lambda x: np.clip(x[0], -0.0, 0.0),
    "zeros the wrong way": lambda x: np.clip(x[0], 0.0, -0.0),
    "a Python number": lambda x: np.clip(float(x[0]), 0, 2),
    "a Python bound": lambda x: np.clip(x[0], float(x[1]), 2),
    "one bound": lambda x: (np.clip(x[0], 0, None), np.clip(x[0], None, x[1])),
    "an array": lambda x: np.clip(x, 0, 2),
    "an array and own bounds": lambda x: x.clip(x[1], x[2]),
    "arrays": lambda x: np.clip(x, x[::-1], 2),
    "of two": lambda x: (np.maximum(x[0], x[1]), np.minimum(x[0], x[1]), np.maximum(x, -x)),
    "Python's": lambda x: (max(x[0], 0.0), min(x[0], x[1]), max(0.0, x[0])),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_signs_of_zeros_at_bounds(name):
    rows = [*itertools.product([0.0, -0.0, 1.0, -1.0], repeat=3), *itertools.product([0.0, np.nan, -2.0], repeat=3)]
    for dtype in (np.float64, np.float32, np.float16):
        every_way_is_exact(BOUNDED[name], [np.array(row, dtype) for row in rows])


@pytest.mark.parametrize("name", EXTREMES)
def test_signs_of_zeros(name):
    draw = np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        for lengths in ([1, 1], [0, 1, 1], [1, 2, 1, 9, 17, 9], [8] * 4, [33] * 3, [2, 4, 8, 16, 31, 32, 40]):
            every_way_is_exact(EXTREMES[name], [draw.choice([0.0, -0.0], n).astype(dtype) for n in lengths])


@pytest.mark.parametrize("special", [[], [np.inf, -np.inf, np.nan]], ids=["finite", "special"])
def test_what_is_interpolated_at_a_point_is_its_value(special):
    """Of -0.0, too, where the sum that gives the values between two points is 0.0."""
    draw, rows = np.random.default_rng(0), []
    for n in (0, 1, 4, 9, *[30] * 20):
        points = np.sort(draw.choice([-2.0, -1.0, -0.0, 1.0, 2.0, 3.0], 4, replace=False))
        values = draw.choice([-0.0, 0.0, 1.0, -1.0, *special], 4)
        rows.append(np.concatenate([points, values, draw.choice([*points, 0.5, -0.5, 5.0, np.inf], n)]))
    every_way_is_exact(lambda row: np.interp(row[8:], row[:4], row[4:8]), rows)
    f = ab.batch(lambda x: np.interp(x, np.arange(3.0), np.array([-0.0, 2.0, 5.0])))
    slopes = ab.grad(lambda x: ab.sum(f(ab.MaskedBatch(x))))(np.array([0.0, 1.0, 0.5, 1.5]))
    assert slopes.tolist() == [2.0, 3.0, 2.0, 3.0]


M = np.array([True, False, True])
CHOSEN = {
    "a float": lambda x, n: np.fmod(x, 0.1, where=M, out=x),
    "from the left": lambda x, n: np.divide(0.1, x, where=M, out=np.zeros_like(x)),
    "its own": lambda x, n: np.nextafter(x, float(x[0]), where=M, out=x),
    "a root": lambda x, n: np.power(x, 0.5, where=M, out=np.zeros_like(x)),
    "too large": lambda x, n: np.add(x.astype(np.int8), n, where=M, out=np.zeros(3, np.int8)),
    "by nothing": lambda x, n: np.divide(x, 0.0, where=x > np.inf, out=np.zeros_like(x)),
    "reduced": lambda x, n: np.add.reduce(np.stack([x, x]), 1, where=M, out=np.zeros(2, x.dtype)),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_numbers_where_only_some_elements_are_computed(name, dtype):
    """Python's numbers take the array's dtype, and an exponent stays one, whatever `where=` leaves out."""
    xs = [np.array(each, dtype) for each in ([1.7, -2, 0.3], [-0.0, 0.5, 3.1], [4, 0.0, 7.3])]
    for n in (100, 300):
        every_way_is_exact(CHOSEN[name], xs, n=n)


def test_an_outer_operation_leaves_what_it_does_not_compute():
    def f(x):
        out = np.zeros((3, 3))
        np.add.outer(x, x, out=out, where=x > 0)
        return out

    xs = [np.array([1.0, -2, 3]), np.array([-1.0, 2, -3]), np.array([5.0, 6, 0])]
    with ab.options(warn=False):
        np.testing.assert_array_equal(ab.examples(ab.batch(f)(ab.MaskedBatch.from_examples(xs))), [f(x) for x in xs])


COMPLEX = {
    "product": lambda p, z: np.prod(p * z),
    "its method": lambda p, z: (p * z).prod(),
    "its ufunc": lambda p, z: np.multiply.reduce(p * z),
    "of numbers": lambda p, z: np.nanprod(p * z),
    "of quotients": lambda p, z: np.prod(p / z),
    "kept": lambda p, z: np.prod(p * z, keepdims=True),
    "from": lambda p, z: np.prod(p * z, initial=-0.0),
    "running": lambda p, z: np.cumprod(p * z),
    "sum": lambda p, z: np.sum(p * z, initial=complex(-0.0, -0.0)),
    "first": lambda p, z: (p * z)[0],
    "real": lambda p, z: (p * np.copysign(0.0, z.real))[-1],
    "product of reals": lambda p, z: np.prod(p * z.real),
}
NUMBERS = [complex(a, b) for a in (*PARTS, 1.0) for b in (*PARTS, 1.0)]


def in_a_loop(p, z):
    h = np.complex128(1)
    for x in p * z:
        h = x * h
    return h


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "loop"])
@pytest.mark.parametrize("f", [*COMPLEX.values(), in_a_loop], ids=[*COMPLEX, "loop"])
def test_values_within_gradients_are_the_loops(f, way):
    """To the bit, for examples of different sizes, of which p is what the gradient is taken by."""
    rng = np.random.default_rng(0)
    zs = [np.array([NUMBERS[i] for i in rng.integers(len(NUMBERS), size=n)]) for n in rng.integers(1, 5, 40)]
    with np.errstate(all="ignore"), ab.options(way=way, warn=False):
        expected = [f(2.0, z) for z in zs]
        for batch in (None, ab.MaskedBatch.from_examples(zs), ab.PackedBatch.from_examples(zs)):

            def loss(p, batch=batch):
                mapped = batch is None
                found = ab.map(f, ab.shared(p), zs) if mapped else ab.examples(ab.batch(f)(p, batch))
                return sum(np.real(x).sum() * 0.0 for x in found), found

            _, found = ab.value_and_grad(loss, has_aux=True)(2.0)[0]
            for one, other in zip(found, expected, strict=True):
                assert one.dtype == other.dtype
                parts = [np.atleast_1d(x).view(float) for x in (one, other)]
                np.testing.assert_array_equal(*parts)
                np.testing.assert_array_equal(*(np.signbit(x[~np.isnan(x)]) for x in parts))


def test_the_gradient_of_a_complex_product_of_examples_of_different_sizes():
    zs = [np.array([1 + 2j, 3 - 1j]), np.array([2j]), np.array([1j, 1 + 1j, -2.0])]
    f = lambda p, z: np.real(np.prod(p * z))
    expected = sum(np.real(len(z) * 1.5 ** (len(z) - 1) * np.prod(z)) for z in zs)
    for batch in (ab.MaskedBatch.from_examples(zs), ab.PackedBatch.from_examples(zs)):
        found = ab.grad(lambda p, batch=batch: ab.sum(ab.batch(f)(p, batch)))(1.5)
        np.testing.assert_allclose(found, expected)
