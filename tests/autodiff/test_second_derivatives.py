"""Derivatives of gradients, by `ab.grad` and `ab.jvp`, against differences of the loop's gradient, in every way."""

import itertools
import math

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

RNG = np.random.default_rng(0)
ROWS = [RNG.normal(size=(n, 3)) for n in (3, 2, 4)]
P = {"w": RNG.normal(size=(3, 3)), "u": RNG.normal(size=(3, 3)), "b": RNG.normal(size=3), "s": 1.5}
ALONG = {name: RNG.normal(size=np.shape(value)) for name, value in P.items()}


def recurrent(x, p):
    h = np.zeros(3)
    for row in x:
        h = np.tanh(row @ p["w"] + h @ p["u"] + p["b"])
        if h.sum() > 0:
            h = h * p["s"]
    return (h * h).sum()


def norms(x, p):
    normed = ab.nn.layer_norm(x @ p["w"], p["b"], p["b"]) ** 3
    return normed.sum() * p["s"] + np.linalg.norm(p["b"]) * np.std(x @ p["u"], axis=-1).sum()


def attention(x, p):
    q, k = x @ p["w"], x @ p["u"]
    return (ab.nn.softmax(q @ k.T / np.sqrt(3.0), axis=-1) @ x @ p["b"]).sum() * p["s"]


def losses(x, p):
    logits = x @ p["w"] + p["b"]
    return ab.nn.cross_entropy(logits, np.zeros(len(x), int)).mean() * p["s"] + np.max(x @ p["u"]) ** 2


def writes(x, p):
    a = np.zeros((len(x), 3))
    for i in range(len(x)):
        a[i] = np.sin(x[i] @ p["w"]) * p["s"]
    return (a * a).sum() * p["b"][0]


def numbers(x, p):
    total = 0.0
    for row in x:
        total += math.sqrt(row[0] * row[0] + p["s"] * p["s"])
        if row[1] > 0:
            total *= p["s"]
    return total


def segments(x, p):
    ids = np.zeros(len(x), int)
    return ab.segment_std(x @ p["w"], ids).sum() + (ab.segment_softmax(x @ p["u"], ids)[0] * p["b"]).sum()


FUNCTIONS = [recurrent, norms, attention, losses, writes, numbers, segments]


def moved(step):
    return {name: P[name] + step * ALONG[name] for name in P}


def along(gradient):
    return sum(np.sum(gradient[name] * ALONG[name]) for name in P)


def inner_gradients(f):
    """Functions of the parameters that give the gradient of the sum over the rows, by whichever way is pinned."""

    def of_map(p):
        return ab.grad(lambda p: sum(ab.map(f, ROWS, p=p)))(p)

    def of_batch(p):
        return ab.grad(lambda p: ab.sum(ab.batch(f)(ab.collate(ROWS), p)))(p)

    def in_map(p):
        found = ab.map(lambda x, p: ab.grad(f, 1)(x, p), ROWS, p=p)
        return {name: sum(gradient[name] for gradient in found) for name in p}

    def in_batch(p):
        found = ab.batch(lambda x, p: ab.grad(f, 1)(x, p))(ab.collate(ROWS), p)
        return {name: sum(ab.examples(found[name])) for name in p}

    return of_map, of_batch, in_map, in_batch


CHOSEN = [
    pytest.param(f, "chosen", marks=() if f in (recurrent, losses, numbers) else pytest.mark.slow) for f in FUNCTIONS
]


@pytest.mark.chosen
@pytest.mark.parametrize(
    ("f", "way"),
    [*itertools.product(FUNCTIONS, ["loop", "lockstep", "fly", "compiled"]), *CHOSEN],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_in_every_way(f, way):
    gradient = ab.grad(lambda p: sum(f(x, p) for x in ROWS))
    ends = [gradient(moved(step)) for step in (1e-5, -1e-5)]
    expected = {name: (ends[0][name] - ends[1][name]) / 2e-5 for name in P}
    with ab.options(warn=False) if way == "chosen" else ab.options(way=way, warn=False):
        for inner in inner_gradients(f):
            by_grad = ab.grad(lambda p, inner=inner: along(inner(p)))(P)  # the Hessian is symmetric
            by_jvp = ab.jvp(inner, (P,), (ALONG,))[1]
            for found in (by_grad, by_jvp):
                assert [type(found[name]) for name in P] == [type(P[name]) for name in P]
                for name in P:
                    np.testing.assert_allclose(
                        found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=inner.__name__
                    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("way", ["loop", "lockstep", "fly", "compiled"])
def test_each_examples_own(way, dtype):
    def f(x, w):
        return (np.sqrt(x * x + w * w) * w).sum()

    xs, w = [RNG.normal(size=n).astype(dtype) for n in (3, 0, 1)], dtype(1.3)
    expected = [np.asarray(((2 * w**3 + 3 * w * x**2) / (x * x + w * w) ** 1.5).sum(), dtype)[()] for x in xs]
    for part in (slice(0, 3), slice(0, 1), slice(1, 2), slice(0, 0)):
        with ab.options(way=way, warn=False):
            second = ab.grad(ab.grad(f, 1), 1)
            assert_same(ab.map(second, xs[part], ab.shared(w)), expected[part])


def test_third_derivatives():
    third = ab.grad(ab.grad(ab.grad(lambda x: np.sqrt(x) * x)))
    assert third(4.0) == pytest.approx(-3 / 8 * 4.0**-1.5)
    assert ab.jvp(ab.grad(ab.grad(np.cbrt)), (8.0,), (2.0,))[1] == pytest.approx(2 * 10 / 27 * 8.0 ** (-8 / 3))


@pytest.mark.parametrize("root", [np.sqrt, np.cbrt, lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)])
def test_directions_that_are_zero_in_places(root):
    x, v = np.array([[4.0, 9.0, 1.0]]), np.array([[1.0, 0.0, 0.0]])
    for f in (root, ab.grad(lambda x: root(x).sum()), ab.grad(lambda x: (root(x) * v).sum())):
        expected = (f(x + 1e-6 * v) - f(x - 1e-6 * v)) / 2e-6
        np.testing.assert_allclose(ab.jvp(f, (x,), (v,))[1], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("root", [np.sqrt, np.cbrt, math.sqrt])
def test_what_is_masked_out_stays_out(root):
    """A root of 0 from which no cotangent comes back has no gradient, nor a derivative of one; else it is infinite."""
    if root is not math.sqrt:
        x = np.array([0.0, 4.0])
        masked = ab.grad(lambda x: np.where(x > 0, root(x), 0.0).sum())
        assert masked(x)[0] == 0
        assert ab.grad(lambda x: masked(x).sum())(x)[0] == 0
        assert ab.jvp(masked, (x,), (np.ones(2),))[1][0] == 0
    assert ab.grad(lambda x: root(x))(0.0) == math.inf
    assert ab.jvp(lambda x: root(x), (0.0,), (1.0,))[1] == math.inf
    assert ab.jvp(lambda x: root(x), (0.0,), (0.0,))[1] == 0
