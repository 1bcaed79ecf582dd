"""Every vjp is linear in its cotangent, also as a function that is differentiated: `ab.jvp` and second derivatives.

A guard such as "0 where the cotangent is 0" may give the right numbers and still have the wrong derivative there. So
the transpose of each vjp is taken at several cotangents: it has to be the derivative of the function at all of them.
"""

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import Tape
from tests.law import dense
from tests.numpy_functions.cases import MATRIX, UNARY
from tests.ops.samples import operands
from tests.ops.test_contractions import SUBSCRIPTS
from tests.ops.test_elementwise import OPS, arity
from tests.ops.test_nested_gradients import FUNCTIONS, gradient

MORE = {
    "norm": np.linalg.norm,
    "norms": lambda x: np.linalg.norm(x, axis=0, keepdims=True),
    "nuclear": lambda x: np.linalg.norm(x, "nuc"),
    "nanstd": lambda x: np.nanstd(x, axis=0),
    "corrcoef": np.corrcoef,
    "rms_norm": lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True)),
    "segment std": lambda x: ab.segment_std(x, np.array([0, 0, 1])),
    "root of cube": lambda x: np.cbrt(x) * np.sqrt(np.abs(x)),
    "hypot": lambda x: np.hypot(x, x[0]),
    "power": lambda x: np.abs(x) ** 0.5,
}


def check_linear(f, x, rtol=1e-5):
    out = np.asarray(f(x))
    if out.dtype.kind != "f":
        return
    rng = np.random.default_rng(1)
    direction = rng.normal(size=x.shape)
    one, two = rng.normal(size=(2, *out.shape))
    holes = one * (rng.random(out.shape) < 0.5)
    apart = dense(gradient(f, x, one), x) * 2.0 - dense(gradient(f, x, two), x) * 3.0
    np.testing.assert_allclose(dense(gradient(f, x, 2.0 * one - 3.0 * two), x), apart, rtol=1e-9, atol=1e-9)
    assert not dense(gradient(f, x, np.zeros(out.shape)), x).any()
    slope = (np.asarray(f(x + 1e-6 * direction)) - np.asarray(f(x - 1e-6 * direction))) / 2e-6
    for ct in (one, holes, np.zeros(out.shape)):
        tape = Tape()
        leaf = tape.leaf(ct)
        back = gradient(f, x, leaf)
        back = back.to_dense() if hasattr(back, "to_dense") else back
        moved = np.zeros(out.shape)
        if getattr(back, "_ab_tape", None) is tape:
            moved = dense(tape.backward([np.sum(back * direction)], [np.array(1.0)], [leaf._ab_index])[0], out)
        np.testing.assert_allclose(moved, slope, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in OPS if arity(OPS[name]) in (1, 2)])
def test_elementwise(name):
    op = OPS[name]
    args = operands(name, arity(op), np.random.default_rng(4), [(3,)] * arity(op))
    for which, x in enumerate(args):
        if x.dtype.kind == "f" and op.vjp is not None:
            check_linear(lambda a, which=which: op(*(a if k == which else b for k, b in enumerate(args))), x)


EVERY = UNARY | MATRIX | MORE
CASES = FUNCTIONS | {name: (f, FUNCTIONS["sum"][1]) for name, f in EVERY.items() if name != "astype"}


@pytest.mark.parametrize("name", CASES)
def test_function(name):
    check_linear(*CASES[name])


@pytest.mark.parametrize("spec", SUBSCRIPTS)
def test_einsum(spec):
    args = [np.random.default_rng(k).normal(size=[n + 2 for n in shape]) for k, shape in enumerate(SUBSCRIPTS[spec])]
    for which, x in enumerate(args):
        check_linear(lambda a, w=which: np.einsum(spec, *(a if k == w else b for k, b in enumerate(args))), x)
