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


def gelu(x):
    return ab.nn.gelu(x)


def logsumexp(x):
    return ab.nn.logsumexp(x), ab.nn.logsumexp(x, axis=0, keepdims=True), ab.nn.logsumexp(x, None)


def first_axis(x):
    return ab.nn.softmax(x, axis=0), ab.nn.log_softmax(x, 0), ab.nn.logsumexp(x, axis=0), ab.nn.logsumexp(x, (0, 1))


def layer_norm_along(x):
    return ab.nn.layer_norm(x, axis=0, eps=0.1), ab.nn.layer_norm(x, eps=1)


def layer_norm(x):
    return ab.nn.layer_norm(x)


def layer_norm_of_parameters(x):
    return ab.nn.layer_norm(x, np.arange(1.0, 4.0), np.ones(3))


def causal_mask(x):
    return ab.nn.causal_mask(x), ab.nn.causal_mask(x, -1.0)


def cross_entropy(x):
    labels = np.arange(len(x)) % 3
    return ab.nn.cross_entropy(x, labels), ab.nn.cross_entropy(x[0], 2)


OF_NUMBERS = [sigmoid, relu, gelu]
WRITTEN = [*OF_NUMBERS, softmax, log_softmax]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("f", [*WRITTEN, logsumexp])
def test_vectors(f, dtype):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        xs = [x.astype(dtype) for x in VECTORS if np.isfinite(x).all() or dtype in (np.float64, np.float32)]
    with interpreted(), np.errstate(invalid="ignore"):
        want = outcome(lambda: [f(x) for x in xs])
        assert same(outcome(lambda: compiled_map(f, [xs], {})), want), want


OF_ROWS = [logsumexp, first_axis, layer_norm, layer_norm_of_parameters, layer_norm_along, causal_mask, cross_entropy]


@pytest.mark.parametrize("f", [*WRITTEN, *OF_ROWS])
def test_matrices(f):
    xs = [np.random.default_rng(n).normal(0, 2, (n, 3)) for n in (0, 1, 4)]
    xs = [*xs, np.array([[-np.inf, 1.0], [-np.inf, -np.inf]])] if f in (logsumexp, first_axis) else xs
    xs = xs[f in (cross_entropy, first_axis, layer_norm_along) :]
    with interpreted(), np.errstate(invalid="ignore"):
        assert same(compiled_map(f, [xs], {}), [f(x) for x in xs])


@pytest.mark.parametrize("f", OF_NUMBERS)
@pytest.mark.parametrize("dtype", [float, np.float64, np.float32, int, np.int8, bool, np.bool_])
def test_numbers(f, dtype):
    xs = [dtype(x) for x in (0.5, -3, 2, 0, -0.0, 40, -40)]
    xs += [dtype(x) for x in (np.inf, -np.inf, np.nan, 1000, -1000)] if np.dtype(dtype).kind == "f" else []
    with interpreted(), np.errstate(all="ignore"):
        assert same(compiled_map(f, [xs], {}), [f(x) for x in xs])


def attributes(x):
    return np.zeros(2, x.dtype) + x, x.ndim, x.size, x.shape


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
def test_attributes_of_numbers(dtype):
    with interpreted():
        assert same(compiled_map(attributes, [[dtype(1)]], {}), [attributes(dtype(1))])


def at_an_axis(x):
    return ab.nn.softmax(x, axis=1)


def test_an_axis_that_there_is_not():
    with interpreted(), pytest.raises(np.exceptions.AxisError, match="axis 1 is out of bounds"):
        compiled_map(at_an_axis, [[np.ones(3)]], {})


@pytest.mark.parametrize("f", [*WRITTEN, lambda x: ab.nn.logsumexp(x, keepdims=True)])
def test_gradients(f):
    _same_gradients(lambda x: (f(x) * (1.0 + x * x)).sum(), [x for x in VECTORS if len(x) and np.isfinite(x).all()])


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 1)])
def test_gradients_along_an_axis(axis):
    def loss(x):
        w = 1.0 + x * x
        if axis == (0, 1):
            return ab.nn.logsumexp(x, (0, 1))
        both = ab.nn.softmax(x * w, axis=axis) + ab.nn.log_softmax(w, axis) * w
        return np.sum(both) + np.sum(ab.nn.logsumexp(x * w, axis=axis)) + np.sum(ab.nn.logsumexp(x, axis, True) * w)

    xs = [np.random.default_rng(n).normal(0, 2, (n, 3)).astype(np.float32 if n == 2 else float) for n in (1, 4, 2)]
    _same_gradients(loss, [*xs[:2], np.array([[-np.inf, 1.0]])] if axis == (0, 1) else xs[:2])
    _same_gradients(loss, xs[2:])


@pytest.mark.parametrize("f", OF_NUMBERS)
@pytest.mark.parametrize("dtype", [float, np.float32])
def test_gradients_of_numbers(f, dtype):
    _same_gradients(lambda x: f(x[0]) * x[1] + f(f(x[1])), [np.array(x, dtype) for x in ([0.5, 2], [-3, 0.25], [0, 1])])


def _same_gradients(loss, xs):
    g = ab.grad(loss)
    with interpreted(), ab.options(way="compiled"):
        found = ab.map(g, xs)
    for ours, x in zip(found, xs, strict=True):
        want = g(x)
        assert ours.dtype == want.dtype
        np.testing.assert_allclose(ours, want, *((1e-5, 1e-6) if x.dtype == np.float32 else (1e-12, 1e-14)))
