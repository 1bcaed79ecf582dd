"""Every vjp is itself differentiable: the gradient of a gradient, by two tapes, against differences of the gradient."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import nn
from tests.inspect import Tape
from tests.law import dense
from tests.ops.samples import operands
from tests.ops.test_contractions import SUBSCRIPTS
from tests.ops.test_elementwise import OPS, SMOOTH, arity

rng = np.random.default_rng(0)
X = rng.normal(size=(3, 4))
W = rng.normal(size=(4, 2))
FUNCTIONS = {
    "sum": (lambda x: np.sum(x * x, axis=0), X),
    "prod": (lambda x: np.prod(x, axis=1), X),
    "max": (lambda x: np.max(x * x, axis=0), X),
    "mean": (lambda x: np.mean(x * x, axis=(0, 1)), X),
    "var": (lambda x: np.var(x, axis=0), X),
    "std": (lambda x: np.std(x, axis=1, ddof=1), X),
    "cumsum": (lambda x: np.cumsum(x, axis=1) ** 2, X),
    "cumprod": (lambda x: np.cumprod(x, axis=1), X),
    "sort": (lambda x: np.sort(x, axis=1) ** 2, X),
    "matmul": (lambda x: (x @ W) ** 2, X),
    "gram": (lambda x: x @ x.T, X),
    "tensordot": (lambda x: np.tensordot(x, x, ([0], [0])), X),
    "outer": (lambda x: np.outer(x[0], x[1]), X),
    "softmax": (nn.softmax, X),
    "log_softmax": (nn.log_softmax, X),
    "logsumexp": (nn.logsumexp, X),
    "layer_norm": (lambda x: nn.layer_norm(x, x[0], x[1]), X),
    "cross_entropy": (lambda x: nn.cross_entropy(x, np.array([0, 3, 1])), X),
    "gelu": (nn.gelu, X),
    "causal": (lambda x: nn.softmax(nn.causal_mask(x)), X),
}


def gradient(f, x, weights):
    tape = Tape()
    leaf = tape.leaf(x)
    out = f(leaf)
    if not hasattr(out, "_ab_tape") or out._ab_tape is not tape:
        return None
    return tape.backward([out], [weights], [leaf._ab_index])[0]


def check_second(f, x, rtol=1e-4):
    weights = np.random.default_rng(1).normal(size=np.shape(f(x)))
    inner = np.random.default_rng(2).normal(size=x.shape)
    tape = Tape()
    leaf = tape.leaf(x)
    grad = gradient(f, leaf, weights)
    grad = grad.to_dense() if hasattr(grad, "to_dense") else grad
    got = np.zeros_like(x)
    if getattr(grad, "_ab_tape", None) is tape:
        got = dense(tape.backward([np.sum(grad * inner)], [np.array(1.0)], [leaf._ab_index])[0], x)
    want = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        ends = []
        for step in (1e-5, -1e-5):
            moved = x.copy()
            moved[index] += step
            ends.append(np.sum(dense(gradient(f, moved, weights), x) * inner))
        want[index] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("name", SMOOTH)
def test_elementwise(name):
    op = OPS[name]
    if op is OPS.get("clip"):
        check_second(lambda a: op(a, -0.5, 0.5) ** 2, X)
        return
    args = operands(name, arity(op), np.random.default_rng(4), [(3,)] * arity(op))
    for which, x in enumerate(args):
        if x.dtype.kind == "f":
            check_second(lambda a, which=which: op(*(a if k == which else b for k, b in enumerate(args))) ** 2, x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    check_second(*FUNCTIONS[name])


@pytest.mark.parametrize("spec", SUBSCRIPTS)
def test_einsum(spec):
    args = [np.random.default_rng(k).normal(size=[n + 2 for n in shape]) for k, shape in enumerate(SUBSCRIPTS[spec])]
    for which, x in enumerate(args):
        check_second(lambda a, w=which: np.einsum(spec, *(a if k == w else b for k, b in enumerate(args))) ** 2, x)


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ij,ik->jk", [(1, 4), (3, 4)]),
        ("ij,ij->ij", [(1, 4), (3, 1)]),
        ("ij,ij->", [(1, 4), (3, 1)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ii,ij->j", [(3, 3), (1, 2)]),
        ("...j,...j->...", [(1, 4), (3, 4)]),
    ],
)
def test_einsum_of_dimensions_that_are_stretched(spec, shapes):
    args = [np.random.default_rng(k).normal(size=shape) for k, shape in enumerate(shapes)]
    ab.testing.check_grads(lambda *given: np.einsum(spec, *given) ** 2, *args)
    for which, x in enumerate(args):
        check_second(lambda a, w=which: np.einsum(spec, *(a if k == w else b for k, b in enumerate(args))) ** 2, x)
