"""The gradient of a matrix that many small products read is one tall product.

A mutation that must turn this file red, made by hand and seen red: in `Product.gathered`, `parts[1:]` in both factors,
which forgets a part.
"""

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.extend import Scatter
from autobatch.core.cotangent import Contributions, Product
from tests import inspect

RNG = np.random.default_rng(0)
U = RNG.normal(size=(4, 4)) / 2


def steps(u, count):
    h = np.ones((3, 4))
    for _ in range(count):
        h = np.tanh(h @ u)
    return (h * h).sum()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 40])
def test_the_gradient_of_a_matrix_that_every_step_reads(count):
    got = ab.grad(lambda u: steps(u, count))(U)
    want = np.zeros_like(U)
    for at in np.ndindex(*U.shape):
        eps = np.zeros_like(U)
        eps[at] = 1e-6
        want[at] = (steps(U + eps, count) - steps(U - eps, count)) / 2e-6
    np.testing.assert_allclose(got, want, atol=1e-6)


def joined():
    """The number of rows of each product that a gradient has become."""
    return inspect.watched(Product, "to_dense", before=lambda product: len(product.left))


def test_its_products_are_joined():
    with joined() as rows:
        ab.grad(lambda u: steps(u, 40))(U)
    assert rows == [120]


def test_vectors_too():
    def f(u):
        h = np.ones(4)
        for _ in range(5):
            h = np.tanh(h @ u)
        return h.sum()

    with joined() as rows:
        got = ab.grad(f)(U)
    assert rows == [5]
    eps = np.zeros_like(U)
    eps[1, 2] = 1e-6
    np.testing.assert_allclose(got[1, 2], (f(U + eps) - f(U - eps)) / 2e-6, rtol=1e-6)


def test_beside_contributions_of_other_kinds():
    left, right = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 2))
    dense = RNG.normal(size=(3, 2))
    scatter = Scatter(slice(0, 1), np.ones((1, 2)), (3, 2), np.float64, unique=True)
    for parts in ([Product(left, right), dense, scatter, Product(left, right)], [scatter, Product(left, right)]):
        total = Contributions(parts[0], parts[1])
        for part in parts[2:]:
            total.add(part)
        want = sum(part if isinstance(part, np.ndarray) else part.to_dense() for part in parts)
        np.testing.assert_allclose(total.total(), want)


def test_a_matrix_that_is_itself_computed():
    def f(w):
        u = np.tanh(w)
        return steps(u.T, 3) + (u * u).sum()

    got = ab.grad(f)(U)
    eps = np.zeros_like(U)
    eps[0, 3] = 1e-6
    np.testing.assert_allclose(got[0, 3], (f(U + eps) - f(U - eps)) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("starts", "rows"), [((0, 2), 4), ((2, 0), 4), ((0, 1), 4), ((1, 1), 4), ((0, 2, 3), 5), ((0,), 5)]
)
def test_spans_add_up_however_they_lie(starts, rows):
    parts = [
        Scatter(slice(start, start + 2), RNG.normal(size=(2, 3)), (rows, 3), np.float64, unique=True)
        for start in starts
    ]
    want = np.zeros((rows, 3))
    for part in parts:
        want[part.index] += part.values
    np.testing.assert_allclose(Scatter.combine(parts), want)
