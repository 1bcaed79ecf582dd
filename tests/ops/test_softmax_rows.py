"""softmax by its kernel, however few the rows: the results, gradients and warnings of NumPy's own."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import nn
from autobatch.ops.nn import softmax_and_norms
from tests import inspect
from tests.law import check
from tests.ops.test_nn import SHAPES, lanes


@pytest.fixture(autouse=True)
def always():
    with inspect.however_small("row kernels"):
        yield


@pytest.fixture
def kernels_that_ran():
    with inspect.watched(softmax_and_norms, "softmax_rows", "softmax_gradient") as ran:
        yield ran


@pytest.mark.parametrize("case", SHAPES)
def test_the_law(case, kernels_that_ran):
    for axis in range(-1, len(SHAPES[case](0, 0)) - 1):
        check(lambda x, axis=axis: nn.softmax(x, axis=axis), lanes(SHAPES[case], "f4"))
    assert set(kernels_that_ran) == {"softmax_rows"}


def attention(x):
    return (ab.nn.softmax(x @ x.T) @ x).sum()


def causal(x):
    return (ab.nn.softmax(ab.nn.causal_mask(x @ x.T)) @ x).sum()


@pytest.mark.parametrize("f", [attention, causal])
def test_gradients_are_those_without_it(f, kernels_that_ran):
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 3)).astype(np.float32) for n in (4, 1, 7, 2)]
    whole = ab.batch(f, strict=True)
    step = ab.grad(lambda x: ab.sum(whole(x)))
    got = step(ab.MaskedBatch.from_examples(xs)).examples()
    assert set(kernels_that_ran) == {"softmax_rows", "softmax_gradient"}
    kernels_that_ran.clear()
    with ab.options(kernels=False):
        for x, g in zip(xs, got, strict=True):
            np.testing.assert_allclose(g, ab.grad(f)(x), rtol=1e-4, atol=1e-5)
    assert not kernels_that_ran


def test_numpy_s_warnings_come_from_examples_alone():
    x = np.full((2, 3), np.nan, np.float32)
    x[0], x[1, :2] = [1, 2, np.inf], [0, 1]
    f = ab.batch(lambda x: ab.nn.softmax(x), strict=True)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        got = f(ab.MaskedBatch(x, lengths=[3, 2])).examples()
    assert np.isnan(got[0]).any()
    np.testing.assert_allclose(got[1], [0.26894143, 0.7310586], rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(ab.MaskedBatch(x, lengths=[2, 2]))
    with np.errstate(under="raise"), pytest.raises(FloatingPointError, match="underflow"):
        ab.nn.softmax(np.array([0, -200], np.float32))


def test_threads_do_not_show(kernels_that_ran):
    x = np.random.default_rng(1).normal(size=(11, 21)).astype(np.float32)
    step = ab.value_and_grad(lambda x: (ab.nn.softmax(x) ** 2).sum())
    value, g = step(x)
    with inspect.replaced(softmax_and_norms, split_work=lambda count, nbytes: [(0, 4), (4, 5), (5, count)]):
        value_of_parts, g_of_parts = step(x)
    assert len(kernels_that_ran) == 8
    assert value == value_of_parts
    assert g.tobytes() == g_of_parts.tobytes()
