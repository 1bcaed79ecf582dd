"""Gradients by Python floats: NumPy's functions give NumPy's scalars, Python's operators Python's numbers."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.op import Op
from autobatch.ops.rules.dispatch import UFUNCS
from tests.law import assert_same

OPERANDS = [(0.3, 0.7, 0.5), (0.7, 0.3, 0.5), (-0.4, 0.6, -0.1), (-0.2, -0.7, -0.3), (1.5, 2.5, 2.0)]
DIFFERENTIABLE = [ufunc for ufunc, op in UFUNCS.items() if isinstance(op, Op) and op.vjp and op.kind == "elementwise"]


@pytest.mark.parametrize("ufunc", DIFFERENTIABLE, ids=lambda ufunc: ufunc.__name__)
def test_the_gradient_is_that_by_a_numpy_scalar(ufunc):
    for operands in OPERANDS:
        for at in range(ufunc.nin):

            def slope(kind, at=at, given=operands[: ufunc.nin]):
                numbers = list(map(kind, given))

                def f(x):
                    return ufunc(*numbers[:at], x, *numbers[at + 1 :])

                try:
                    return ab.value_and_grad(f)(numbers[at])
                except TypeError as error:  # ldexp of two floats
                    return str(error)

            with np.errstate(all="ignore"):
                found, expected = slope(float), slope(np.float64)
            if isinstance(found, tuple):
                assert type(found[1]) is float
                found, expected = [(value, np.float64(gradient)) for value, gradient in (found, expected)]
            assert_same(found, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.add(x, 1.0), lambda x: np.add(1, x), lambda x: np.negative(x), lambda x: np.absolute(x),
        lambda x: np.divide(x, 0.0), lambda x: np.remainder(x, 0.0), lambda x: np.floor_divide(x, 0.0),
        lambda x: np.power(x, 0.6), lambda x: np.power(x, -1), lambda x: np.multiply(np.multiply(x, x), 2),
        lambda x: x + 1, lambda x: -x, lambda x: abs(x), lambda x: x * ((x > -9) + (x > -8) + (x == x)),
        lambda x: x * (np.greater(x, -9) + np.greater(x, -8)), lambda x: x**2 % 0.3,
    ],
)  # fmt: skip
def test_the_value_has_the_type_of_the_plain_call(f):
    for x in (-0.4, 0.8):
        assert_same(ab.value_and_grad(f)(x)[0], f(x))
        assert_same(ab.value_and_grad(lambda x, f=f: ab.value_and_grad(f)(x)[0])(x)[0], f(x))


@pytest.mark.parametrize("x", [-0.4, -1.7, 0.8])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: abs(x**0.6), lambda x: (x**1.5).real, lambda x: abs((-2.0) ** x), lambda x: abs(x**1.5) ** 0.5,
        lambda x: np.abs(np.power(np.array([x, -2.0]), x * (1 + 0j))).sum(),
    ],
)  # fmt: skip
def test_a_power_that_is_complex(f, x):
    step = 1e-6
    assert ab.grad(f)(x) == pytest.approx((f(x + step) - f(x - step)) / (2 * step), rel=1e-5)


def test_adding_to_places_of_an_array_that_is_made():
    def by_a_list(x):
        y = np.zeros(3)
        y[[0, 2]] += x
        return y.sum()

    def by_a_mask(x):
        y = np.ones(4)
        y[y > 0] *= x
        part = y[[1, 1]]
        part -= x * x
        return y.sum() + part.sum()

    for x in (2.0, np.float64(2.0)):
        assert ab.value_and_grad(by_a_list)(x) == (4.0, 2.0)
        assert ab.value_and_grad(by_a_mask)(x) == (8.0 + 4.0 - 8.0, 4.0 + 2.0 - 8.0)
