"""Gradients of real scalars by way of complex numbers."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import UnsupportedError
from tests import naive

X = np.array([0.5, -1.5, 2.0])
TURN, SHIFT = np.array([1 + 2j, -1 + 0.5j, 0.3 - 1j]), np.array([0.2 - 1j, 0.7j, 1.1])


def matrix(z):
    return np.outer(z, z) + np.eye(3)


FUNCTIONS = {
    "absolute": np.abs,
    "absolute_squared": lambda z: np.abs(z) ** 2,
    "angle": np.angle,
    "conjugate": lambda z: (np.conj(z) * z * z).imag,
    "divide": lambda z: (1 / z).real,
    "power": lambda z: (z**2.5).imag,
    "exp": lambda z: np.exp(z).imag,
    "log": lambda z: np.log(z).real,
    "tanh": lambda z: np.tanh(z).real,
    "prod": lambda z: np.prod(z).real,
    "cumprod": lambda z: np.cumprod(z).imag,
    "var": np.var,
    "std": lambda z: np.std(z, ddof=1),
    "norm": np.linalg.norm,
    "vdot": lambda z: np.vdot(z, z * SHIFT).imag,
    "einsum": lambda z: np.einsum("i,j->ij", z, np.conj(z)).imag.sum(0),
    "where": lambda z: np.where(z.real > 0, z, z * 2).imag,
    "sort": lambda z: np.sort(z).imag,
    "convolve": lambda z: np.convolve(z, z).imag,
    "inv": lambda z: np.linalg.inv(matrix(z)).imag,
    "det": lambda z: np.linalg.det(matrix(z)).imag,
    "solve": lambda z: np.linalg.solve(matrix(z), z).imag,
    "logdet": lambda z: np.linalg.slogdet(matrix(z)).logabsdet,
    "phase": lambda z: np.linalg.slogdet(matrix(z)).sign.real,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_by_way_of_complex_numbers(name):
    def f(x):
        out = FUNCTIONS[name](x * TURN + SHIFT)
        return np.sum(out * np.arange(1.0, 1 + np.size(out)).reshape(np.shape(out)))

    np.testing.assert_allclose(ab.grad(f)(X), naive.numeric_gradient(f, X), rtol=1e-5, atol=1e-6)


def test_the_sign_of_a_complex_number_is_not_constant():
    with pytest.raises(UnsupportedError, match="sign of complex numbers"):
        ab.grad(lambda x: np.sign(x * TURN + SHIFT).real.sum())(X)
