"""`ab.jvp` against central differences and the Jacobian by hand; `ab.stop_gradient` in every way of running."""

import types

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

RNG = np.random.default_rng(0)
X, V, W = RNG.normal(size=4), RNG.normal(size=4), RNG.normal(size=(4, 3))
ROWS = [RNG.normal(size=(n, 4)) for n in (2, 0, 3)]


def branching(x):
    h = np.zeros(3)
    for i in range(3):
        if h.sum() < 1:
            h = np.tanh(h + x[:3] * i)
        h = h.copy()
        h[0] = h[0] * 2
    return h


def recurrent(x):
    h = np.zeros(4)
    for _ in range(3):
        h = np.tanh(h * x + x)
    return h


FUNCTIONS = {
    "products": lambda x: np.tanh(x @ W) * x[:3],
    "a number": lambda x: (x * x).sum(),
    "branches and writes": branching,
    "a loop": recurrent,
    "softmax": lambda x: ab.nn.softmax(x) @ W,
    "constant": lambda x: np.ones(2),
    "lock-step": lambda x: ab.sum(ab.batch(lambda r, x: np.tanh(r @ x).sum())(ab.collate(ROWS), x)),
    "on the fly": lambda x: np.stack(ab.map(lambda r, x: np.tanh(r @ x).sum(), ROWS, x=x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jvp_is_the_derivative_along_a_direction(name):
    f = FUNCTIONS[name]
    value, tangent = ab.jvp(f, (X,), (V,))
    assert_same(value, f(X))
    expected = (f(X + 1e-6 * V) - f(X - 1e-6 * V)) / 2e-6
    assert type(tangent) is type(value)
    np.testing.assert_allclose(tangent, expected, rtol=1e-6, atol=1e-8)


def test_jvp_of_trees():
    def f(p, n):
        return {"y": p["a"] * p["b"] * n, "n": n, "first": 2.0 * p["a"][0], "name": "x"}

    p = {"a": X, "b": 2.0}
    value, tangent = ab.jvp(f, (p, 3), ({"a": V, "b": 0.5}, None))
    assert_same(value, f(p, 3))
    assert_same(tangent, {"y": 3 * (2 * V + 0.5 * X), "n": None, "first": np.float64(2 * V[0]), "name": None})
    assert_same(ab.jvp(f, (p, 3), ({"a": None, "b": 0.5}, None))[1]["y"], 1.5 * X)
    assert_same(ab.jvp(lambda x: x * x, (3.0,), (1.0,)), (9.0, 6.0))
    model = types.SimpleNamespace(w=X, units=2)
    assert_same(ab.jvp(lambda m: m.w * m.units, (model,), (types.SimpleNamespace(w=V),))[1], 2 * V)
    table, direction = ab.EmbeddingTable(RNG.normal(size=(5, 3))), RNG.normal(size=(5, 3))
    found = ab.jvp(lambda t: (t[np.array([1, 1, 2])] ** 2).sum(0), (table,), (direction,))[1]
    assert_same(found, (2 * np.asarray(table) * direction)[[1, 1, 2]].sum(0))


def test_jvp_of_float32_is_float32():
    value, tangent = ab.jvp(np.tanh, (X.astype(np.float32),), (V.astype(np.float32),))
    assert (value.dtype, tangent.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize(
    ("primals", "tangents", "error", "message"),
    [
        (X, V, ab.errors.UnsupportedError, "a tuple of primals"),
        ((X, X), (V,), ab.errors.UnsupportedError, "a tuple of primals"),
        ((X,), (V[:2],), ab.errors.ShapeError, r"tangents\[0\] has shape \(2,\)"),
        (({"a": X},), ({"b": V},), ab.errors.StructureError, r"tangents\[0\] is a dict with \['b'\]"),
        ((X,), (np.array(list("abcd")),), ab.errors.DTypeError, "expected floats"),
    ],
)
def test_what_jvp_refuses(primals, tangents, error, message):
    with pytest.raises(error, match=message):
        ab.jvp(lambda *args: 0.0, primals, tangents)


def test_a_batch_is_no_result_of_jvp():
    f = ab.batch(lambda r, x: r @ x)
    with pytest.raises(ab.errors.UnsupportedError, match="returned a batch"):
        ab.jvp(lambda x: f(ab.collate(ROWS), x), (X,), (V,))


def test_no_gradient_flows_through_what_is_stopped():
    assert_same(ab.grad(lambda x: (x * ab.stop_gradient(x)).sum())(X), X)
    assert_same(ab.grad(lambda p: (p["a"] * ab.stop_gradient(p)["a"]).sum())({"a": X}), {"a": X})
    assert ab.grad(lambda x: x * ab.stop_gradient(x))(3.0) == 3.0
    assert_same(ab.jvp(lambda x: x * ab.stop_gradient(x), (X,), (V,))[1], X * V)
    grads = ab.grad(lambda t: (t[[1]] * ab.stop_gradient(t[[1]])).sum())(ab.EmbeddingTable(W))
    assert_same(grads.to_dense()[1], W[1])


def test_what_is_stopped_keeps_its_value_in_every_way():
    assert_same(ab.stop_gradient((X, 3, "a", None, 2.5)), (X, 3, "a", None, 2.5))
    assert not np.shares_memory(ab.stop_gradient(X), X)

    def f(r, w):
        return (np.tanh(r @ w) * ab.stop_gradient(np.exp(r @ w))).sum()

    ab.testing.assert_equivalent(f, ROWS, w=W)
    expected = sum(((1 - np.tanh(r @ W) ** 2) * np.exp(r @ W)).T @ r for r in ROWS).T
    found = ab.grad(lambda w: ab.sum(ab.batch(f)(ab.collate(ROWS), w)))(W)
    np.testing.assert_allclose(found, expected)
