"""NumPy functions that compiled code reads as plain Python: values, types and gradients are those of the loop.

To see these tests fail: let the source of `np.vstack` stack its arrays, or leave `axis` out of a source.
"""

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import ran_ways
from tests.law import assert_same, normal

XS = [normal(k, 3, seed=k + 1).astype(np.float32) for k in (2, 0, 3, 1, 4)]
PARAMS = {"scale": np.array([1.5], np.float32)}


def vectors_above_each_other(x):
    return np.vstack([row * 2 for row in x]) if len(x) else x * 2


def matrices_above_each_other(x):
    return np.vstack([row[None] * 2 for row in x]) if len(x) else x * 2


def written_out_above_each_other(x):
    return np.vstack((x, x[:1] * 2))


def rows_of_matrices(x):
    return np.vstack([row[None] for row in x])[0].sum() if len(x) else x.sum()


FUNCTIONS = [
    vectors_above_each_other,
    matrices_above_each_other,
    written_out_above_each_other,
    rows_of_matrices,
    lambda x: np.einsum("ij,kj->ki", x, x),
    lambda x: np.einsum("ti,tj->tij", x, x),
    lambda x: np.einsum("ij,ij->", x, x),
    lambda x: np.pad(x, ((1, 1), (0, 0))),
    lambda x: np.pad(x[:, 0], (2, 1), mode="constant"),
    lambda x: np.repeat(x, 2, axis=1),
    lambda x: np.repeat(x, np.arange(len(x)), axis=0),
    lambda x: np.take(x, [0, 2, 1], axis=1),
    lambda x: np.cumsum(x, axis=0),
    lambda x: np.maximum.accumulate(x, axis=1),
    lambda x: np.diag(x[:, 0]),
]


def in_each_way(f, way):
    """The results, and the value and gradient of a loss of them."""

    def scaled(x, p):
        return f(x * p["scale"])

    def loss(p):
        return sum(np.sum(out * out) for out in ab.map(scaled, XS, p=p))

    with ab.options(way=way), ran_ways() as ran:
        found = ab.map(scaled, XS, p=PARAMS), ab.value_and_grad(loss)(PARAMS)
    assert {each.way for each in ran} <= {way}, ran
    return found


@pytest.mark.parametrize("f", FUNCTIONS)
def test_compiled_results_and_gradients_are_those_of_the_loop(f):
    out, (value, gradient) = in_each_way(f, "compiled")
    want, (loop_value, loop_gradient) = in_each_way(f, "loop")
    assert_same(out, want, precision=5)
    np.testing.assert_allclose(value, loop_value, rtol=1e-4)
    np.testing.assert_allclose(gradient["scale"], loop_gradient["scale"], rtol=1e-4)
    assert gradient["scale"].dtype == loop_gradient["scale"].dtype
