"""layer_norm by its kernel, however few the rows: the results, gradients and warnings of NumPy's own."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import nn
from autobatch.ops.nn import softmax_and_norms
from tests import inspect
from tests.law import check

RNG = np.random.default_rng(0)
W, B = RNG.normal(size=(2, 32)).astype(np.float32)


@pytest.fixture(autouse=True)
def ran():
    """The kernels that ran."""
    names = "layer_norm_rows", "layer_norm_gradient"
    with inspect.however_small("row kernels"), inspect.watched(softmax_and_norms, *names) as seen:
        yield seen


def rows(*lengths, width=32, dtype=np.float32):
    return [RNG.normal(1, 2, (n, width)).astype(dtype) for n in lengths]


@pytest.mark.parametrize("lengths", [(3, 1, 4), (2, 2), (1,)])
def test_the_law(lengths, ran):
    check(nn.layer_norm, rows(*lengths))
    check(lambda x: nn.layer_norm(x, W, B), rows(*lengths))
    assert set(ran) == {"layer_norm_rows"}


@pytest.mark.parametrize("f", [lambda x, w, b: ab.nn.layer_norm(x, w, b), lambda x, w, b: ab.nn.layer_norm(x * w)])
def test_gradients_are_those_without_it(f, ran):
    xs = rows(4, 1, 7, 2)
    whole = ab.batch(lambda x, w, b: (f(x, w, b) * np.cos(x)).sum(), strict=True)
    step = ab.grad(lambda x, w, b: ab.sum(whole(x, w, b)), argnums=(0, 1, 2))
    got = step(ab.MaskedBatch.from_examples(xs), W, B)
    assert set(ran) == {"layer_norm_rows", "layer_norm_gradient"}
    ran.clear()
    with ab.options(kernels=False):
        want = step(ab.MaskedBatch.from_examples(xs), W, B)
    assert not ran
    for a, b in zip(got[0].examples(), want[0].examples(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(got[1:], want[1:], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_gradient_of_a_gradient_and_other_dtypes_are_numpy_s(ran):
    def squared(x):
        return (ab.grad(lambda x: (ab.nn.layer_norm(x) ** 3).sum())(x) ** 2).sum()

    x = rows(2)[0]
    with ab.options(kernels=False):
        want = ab.grad(squared)(x)
    np.testing.assert_allclose(ab.grad(squared)(x), want, rtol=1e-3, atol=1e-3)
    ran.clear()
    for dtype in (np.float64, np.float16):
        assert ab.nn.layer_norm(rows(2, dtype=dtype)[0]).dtype == dtype
    ab.nn.layer_norm(rows(2, width=20)[0])
    ab.nn.layer_norm(rows(2)[0], axis=0)
    assert not ran


def test_numpy_s_warnings_and_values_where_there_is_something_to_warn_of():
    x = rows(3)[0]
    x[1, 4] = np.inf
    found = []
    for kernels in (True, False):
        with ab.options(kernels=kernels), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found.append((ab.nn.layer_norm(x), sorted({str(each.message) for each in caught})))
    assert found[0][1] == found[1][1] != []
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
