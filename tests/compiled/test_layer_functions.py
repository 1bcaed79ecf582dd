"""Functions of `ab.nn` in compiled code: values, types and gradients of vectors and matrices of any size and dtype."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import compiled_map
from tests.compiled.interpreted import interpreted
from tests.compiled.law import outcome, same

VECTORS = [
    np.array(x) for x in ([0.5, -3.0, 2.0], [1.0], [], [0.0, 0.0, -0.0], [40.0, -40.0], [-np.inf, 1.0], [np.nan])
]


def sigmoid(x):
    return ab.nn.sigmoid(x)


def softmax(x):
    return ab.nn.softmax(x)


def log_softmax(x):
    return ab.nn.log_softmax(x)


def relu(x):
    return ab.nn.relu(x)


def layer_norm(x):
    return ab.nn.layer_norm(x)


def layer_norm_of_parameters(x):
    return ab.nn.layer_norm(x, np.arange(1.0, 4.0), np.ones(3))


def causal_mask(x):
    return ab.nn.causal_mask(x), ab.nn.causal_mask(x, -1.0)


def cross_entropy(x):
    labels = np.arange(len(x)) % 3
    return ab.nn.cross_entropy(x, labels), ab.nn.cross_entropy(x[0], 2)


WRITTEN = [sigmoid, softmax, log_softmax, relu]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("f", WRITTEN)
def test_vectors(f, dtype):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        xs = [x.astype(dtype) for x in VECTORS if np.isfinite(x).all() or dtype in (np.float64, np.float32)]
    with interpreted(), np.errstate(invalid="ignore"):
        want = outcome(lambda: [f(x) for x in xs])
        assert same(outcome(lambda: compiled_map(f, [xs], {})), want), want


@pytest.mark.parametrize("f", [*WRITTEN, layer_norm, layer_norm_of_parameters, causal_mask, cross_entropy])
def test_matrices(f):
    xs = [np.random.default_rng(n).normal(0, 2, (n, 3)) for n in (0, 1, 4)][f is cross_entropy :]
    with interpreted():
        assert same(compiled_map(f, [xs], {}), [f(x) for x in xs])


@pytest.mark.parametrize("f", WRITTEN)
def test_gradients(f):
    xs = [x for x in VECTORS if len(x) and np.isfinite(x).all()]

    g = ab.grad(lambda x: (f(x) * (1.0 + x * x)).sum())
    with interpreted():
        with ab.options(way="compiled"):
            found = ab.map(g, xs)
        for ours, x in zip(found, xs, strict=True):
            np.testing.assert_allclose(ours, g(x), rtol=1e-12, atol=1e-14)
