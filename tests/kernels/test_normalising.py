"""Layer normalisation of rows and its gradient, against NumPy in float64."""

import numpy as np
import pytest

from autobatch.kernels.simd_rows import VectorLayout
from autobatch.kernels.softmax_layer_norm import layer_norm_gradient, layer_norm_rows

LANES = VectorLayout("f4", 16)
EPS = np.float32(1e-5)
RNG = np.random.default_rng(0)


def norm(x, eps):
    centered = x - x.mean(1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(1, keepdims=True) + eps)


def gradient(x, ct, eps):
    standard = norm(x, eps)
    deviation = np.sqrt(x.var(1, keepdims=True) + eps)
    return (ct - ct.mean(1, keepdims=True) - standard * (ct * standard).mean(1, keepdims=True)) / deviation


def arrays(rows, width):
    return [RNG.normal(3, 2, (rows, width)).astype(np.float32) for _ in range(2)]


def run(kernel, *given, part, eps=EPS):
    """The result with a row before and behind it that must stay, and what the kernel answered."""
    out = np.full((len(given[0]) + 2, given[0].shape[1]), 77, np.float32)
    return out, kernel(*given, out[1:-1], part, eps, LANES)


@pytest.mark.parametrize("width", [16, 32, 48, 64, 256])
def test_rows_and_their_gradients(width):
    x, ct = arrays(7, width)
    for kernel, given, want in (
        (layer_norm_rows, (x,), norm(x.astype(float), 1e-5)),
        (layer_norm_gradient, (x, ct), gradient(x.astype(float), ct.astype(float), 1e-5)),
    ):
        out, fine = run(kernel, *given, part=(0, 7))
        assert fine
        assert (out[[0, -1]] == 77).all()
        np.testing.assert_allclose(out[1:-1], want, rtol=2e-5, atol=2e-6)
        part, _ = run(kernel, *given, part=(2, 5))
        assert (part[[0, 1, 2, 6, 7, 8]] == 77).all()
        assert part[3:6].tobytes() == out[3:6].tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e30])
def test_what_numpy_may_complain_of_is_refused(value):
    x, ct = arrays(3, 32)
    x[1, 17] = value
    assert not run(layer_norm_rows, x, part=(0, 3))[1]
    assert not run(layer_norm_gradient, x, ct, part=(0, 3))[1]
    assert run(layer_norm_rows, x, part=(2, 3))[1]


def test_a_row_of_one_number_without_eps_is_refused():
    x = np.ones((2, 16), np.float32)
    assert not run(layer_norm_rows, x, part=(0, 2), eps=np.float32(0))[1]
    assert (run(layer_norm_rows, x, part=(0, 2))[0][1:-1] == 0).all()
