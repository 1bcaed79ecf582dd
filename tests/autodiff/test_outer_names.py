"""Parameters that a differentiated function reads under a global or enclosing name, not from its argument."""

import dataclasses
import functools
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.api import transforms

params = {"w": np.ones(3), "b": np.zeros(())}
weights = np.zeros(3)
XS = [np.arange(3.0), np.ones(3)]


@dataclasses.dataclass
class Model:
    """Has an attribute of a global name."""

    weights: np.ndarray


def of_global(p, x):
    return x @ params["w"]


def partly_of_global(p, x):
    return x @ p["w"] + params["b"]


@ab.batch
def scores(x):
    return x @ params["w"]


def through_a_function(p, x):
    return ab.mean(scores(ab.collate([x, x])))


def through_a_map(p, x):
    return sum(ab.map(scores, [x, x]))


def in_an_inner_function(p, x):
    return sum([(lambda v: v * params["w"][0])(v) for v in x])


@pytest.mark.parametrize(
    "f", [of_global, partly_of_global, through_a_function, through_a_map, in_an_inner_function, ab.batch(of_global)]
)
@pytest.mark.parametrize("way", ["auto", "loop", "compiled"])
def test_what_is_read_from_outside_is_warned_of_and_has_no_gradient(f, way):
    transforms._looked_at.clear()
    with pytest.warns(UserWarning, match="reads params from outside, where it is a constant"), ab.options(way=way):
        found = ab.grad(f)(params, XS[0])
    assert found["b"] == 0.0


def test_so_is_what_an_enclosing_function_names():
    own = [np.ones(3)]

    def loss(p):
        return (own[0] ** 2).sum()

    with pytest.warns(UserWarning, match="loss reads own from outside"):
        value, gradient = ab.value_and_grad(loss)(own)
    assert value == 3.0
    np.testing.assert_array_equal(gradient, [np.zeros(3)])


def of_the_argument(params, x):
    return x @ params["w"] * 0.0


def of_an_attribute(model, x):
    return (x * model.weights * 0.0).sum()


def of_the_size(p, x):
    return (x @ p["w"]) * len(params) + p["b"]


def of_another_object(p, x):
    return x @ params["w"]


@pytest.mark.parametrize(
    ("f", "given"),
    [
        (of_the_argument, params),
        (of_an_attribute, Model(weights)),
        (of_the_size, params),
        (of_another_object, {"w": np.ones(3)}),
        (functools.partial(of_the_argument, x=XS[0]), params),
    ],
)
def test_a_zero_gradient_of_the_argument_itself_is_not(f, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ab.grad(f)(given, *([] if isinstance(f, functools.partial) else [XS[0]]))


def test_gradients_of_batches_are_not_looked_at():
    def loss(x):
        return ab.mean(x) * 0.0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ab.grad(loss)(ab.collate(XS))
        ab.map(lambda x: ab.grad(lambda v: (v * 0.0).sum())(x), XS)
