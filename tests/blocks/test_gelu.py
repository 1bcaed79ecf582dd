"""gelu in a kernel: the results, gradients and limits of NumPy's own."""

import math
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import options
from autobatch.blocks import kernel_cache
from autobatch.blocks.kernel_cache import wait_for_kernels

pytestmark = pytest.mark.usefixtures("compiled_at_once")

X = np.linspace(-14.5, 9, 512, dtype=np.float32).reshape(16, 32)


def layer(x, w):
    y = ab.nn.gelu(x @ w) * x
    return y + 1.0


def test_results_and_gradients_are_those_without_it():
    w = np.eye(32, dtype=np.float32)
    f = ab.batch(layer, strict=True)
    step = ab.value_and_grad(lambda w, x: ab.sum(f(x, w)), argnums=(0, 1))
    for _ in range(4):
        out = f(ab.MaskedBatch(X), w).data
        value, grads = step(w, ab.MaskedBatch(X))
        assert wait_for_kernels()
    assert (
        sum("normal_cdf(" in text.split("def kernel")[1] for text in kernel_cache._known) >= 2
    )  # forward and backward
    with options(kernels=False):
        np.testing.assert_allclose(out, f(ab.MaskedBatch(X), w).data, rtol=1e-6, atol=1e-30)
        other, wanted = step(w, ab.MaskedBatch(X))
    np.testing.assert_allclose(value, other, rtol=1e-5)
    np.testing.assert_allclose(grads[0], wanted[0], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(grads[1].data, wanted[1].data, rtol=1e-5, atol=1e-6)


def test_its_limits_are_those_of_one_example():
    f = ab.batch(lambda x: ab.nn.gelu(x) * 2.0 + 0.0, strict=True)
    x = X.copy()
    x[3, :3] = [-np.inf, np.inf, -math.inf]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            out = f(ab.MaskedBatch(x)).data
            assert wait_for_kernels()
    assert out[3, :3].tolist() == [0.0, np.inf, 0.0]
    np.testing.assert_allclose(out[4:], 2 * ab.nn.gelu(x[4:]), rtol=1e-6, atol=1e-30)
