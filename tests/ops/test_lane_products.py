"""Products of two ragged matrices, lane by lane without padding.

Found red by breaking once each: in `einsum._lanes`, `lane` for `lane.T`, and `stop - n` one further; in
`einsum._lane_by_lane`, no look at `same_size`.
"""

import numpy as np
import pytest

import autobatch as ab
from autobatch.ops.numpy import contractions
from tests import inspect

LENGTHS = [3, 0, 7, 1, 5, 7]


def matrices(lengths, width, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, width)).astype(dtype) for n in lengths]


def attended(x, w):
    q, k, v = x @ w[0], x @ w[1], x @ w[2]
    return ab.nn.softmax(q @ k.T) @ v


def gram(x, w):
    return x.T @ x, x @ x.T, (x @ w[0]).T @ x


def by_letters(x, w):
    y = x @ w[1]
    return np.einsum("ij,kj->ki", x, y), np.einsum("ij,ik->kj", x, y), np.einsum("ij,kj->ik", x, y).sum(0)


def stretched(x, y):
    return np.einsum("ij,ik->jk", x * 2.0, y * 2.0)


@pytest.fixture
def always():
    with inspect.however_small("products by lane"):
        yield


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("f", [attended, gram, by_letters], ids=lambda f: f.__name__)
def test_the_law(f, dtype, always):
    w = np.random.default_rng(1).normal(size=(3, 4, 4)).astype(dtype)
    ab.testing.assert_equivalent(f, matrices(LENGTHS, 4, dtype=dtype), w=w)


def test_lanes_that_are_stretched(always):
    xs, ys = matrices([3, 1, 7, 1, 5], 4), matrices([1, 6, 7, 1, 1], 3)
    ab.testing.assert_equivalent(stretched, xs, ys, grad=False)


@pytest.mark.parametrize("f", [attended, gram, by_letters], ids=lambda f: f.__name__)
def test_where_it_pays(f):
    w = (np.random.default_rng(1).normal(size=(3, 64, 64)) / 8).astype(np.float32)
    xs = matrices(range(1, 200, 7), 64)
    with inspect.watched(contractions, "_lane_by_lane", after=lambda out, *_: out is not None) as used:
        found = ab.examples(ab.batch(f)(ab.MaskedBatch.from_examples(xs), w))
    assert any(used)
    for one, x in zip(found, xs, strict=True):
        for a, b in zip(one, f(x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
