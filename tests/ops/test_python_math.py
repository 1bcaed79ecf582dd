"""Python's `math` and `float` of numbers with a gradient, in every way: values are Python's, gradients central
differences. Broken once by hand: a vjp without its sign, `float` left to Python, a lane's error swallowed."""

import math
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.ops.numpy.python_math import OF_NUMBERS

INSIDE = {math.acos: 0.3, math.asin: 0.3, math.atanh: 0.3, math.acosh: 1.7}
TWO = (math.atan2, math.pow, math.fmod, math.copysign)
SAME = {np.float64, np.float32, math.isnan, math.isinf, math.isfinite}


def _difference(f, x, step=1e-6):
    return (f(x + step) - f(x - step)) / (2 * step)


@pytest.mark.parametrize("function", sorted(OF_NUMBERS - SAME, key=lambda f: f.__name__), ids=lambda f: f.__name__)
def test_values_are_pythons_and_gradients_are_differences(function):
    x = INSIDE.get(function, 0.8)
    more = (1.3,) if function in TWO else ()
    value, gradient = ab.value_and_grad(lambda x: function(x, *more))(x)
    assert value == function(x, *more)
    assert type(value) is type(function(x, *more))
    assert type(gradient) is float
    assert gradient == pytest.approx(_difference(lambda x: function(x, *more), x), abs=1e-6)
    if more:
        second = ab.grad(lambda y: function(x, y))(1.3)
        assert second == pytest.approx(_difference(lambda y: function(x, y), 1.3), abs=1e-6)


def decay(x, p):
    level = 0.0
    for value in x:
        a = float(value) * p
        level = math.exp(-a * a) + level * 0.5 + math.hypot(a, 2.0, level) + math.log(a * a + 2.0, 3.0)
        if math.isinf(level):
            return 0.0
    return math.sqrt(level)


@pytest.mark.parametrize("way", ["loop", "fly", "lockstep", "compiled"])
def test_every_way_gives_the_loops_gradient(way):
    xs = [np.linspace(-1.0, 1.0, n) for n in (1, 4, 2, 5)]
    decorated = ab.batch(decay)
    expected = sum(ab.grad(decay, argnums=1)(x, 1.1) for x in xs)
    assert expected == pytest.approx(_difference(lambda p: sum(decay(x, p) for x in xs), 1.1), abs=1e-6)
    with ab.options(way=way), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = ab.MaskedBatch.from_examples(xs)
        assert ab.grad(lambda p: ab.sum(decorated(batch, p)))(1.1) == pytest.approx(expected)
        assert ab.grad(lambda p: sum(ab.map(decay, xs, p=p)))(1.1) == pytest.approx(expected)
        each = ab.map(ab.grad(decay), xs, p=1.1)
    for got, x in zip(each, xs, strict=True):
        np.testing.assert_allclose(got, ab.grad(decay)(x, 1.1))


@pytest.mark.parametrize("function", [*TWO, math.hypot, math.log], ids=lambda f: f.__name__)
@pytest.mark.parametrize("place", [0, 1])
def test_the_gradient_of_a_shared_number_is_one_number(function, place):
    def each(x, p):
        return function(p, x) if place == 0 else function(x, p)

    def total(xs, p):
        return ab.sum(ab.batch(each)(ab.MaskedBatch(xs), p))

    xs = np.array([0.8, 1.4, 2.3])
    for chosen in (xs, xs[:1]):
        with ab.options(way="lockstep"):
            own, shared = ab.grad(total, argnums=(0, 1))(chosen, 1.3)
        assert type(shared) is float
        assert shared == pytest.approx(sum(ab.grad(each, argnums=1)(x, 1.3) for x in chosen))
        np.testing.assert_allclose(own, [ab.grad(each)(x, 1.3) for x in chosen])


@pytest.mark.parametrize("way", ["loop", "fly", "lockstep"])
def test_errors_are_pythons(way):
    with ab.options(way=way), pytest.raises(ValueError, match=r"math domain error|expected a positive input") as caught:
        ab.grad(lambda p: sum(ab.map(lambda x, p: math.log(x - p), [3.0, 2.0, 1.0], p=p)))(2.0)
    assert any("example 1" in note for note in caught.value.__notes__)


def test_edges():
    assert ab.grad(lambda x: math.sqrt(x))(0.0) == math.inf
    assert ab.grad(lambda x: x**0.5)(0.0) == math.inf
    assert ab.value_and_grad(lambda x: (x // 2.0) * x)(5.0) == (10.0, 2.0)
    value, gradient = ab.value_and_grad(lambda x: math.exp(x))(np.float32(1.0))
    assert value == math.exp(np.float32(1.0))
    assert type(gradient) is np.float32
    assert ab.grad(ab.grad(lambda x: math.sin(x) * x))(0.7) == pytest.approx(2 * math.cos(0.7) - 0.7 * math.sin(0.7))
