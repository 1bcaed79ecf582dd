"""The same functions on lazy arrays: values, and gradients inside each example."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import Shared, lane, size_of
from tests.numpy_functions.cases import MATRIX, ROWS, UNARY
from tests.numpy_functions.test_composites import JOINED, LANE_SIZES, LINALG
from tests.numpy_functions.test_indexing import READS
from tests.numpy_functions.test_writing import ALIASES, WRITES

CASES = {
    **{f"unary-{name}": (f, ROWS) for name, f in UNARY.items()},
    **{f"matrix-{name}": (f, ROWS) for name, f in MATRIX.items()},
    **{f"read-{name}": case for name, case in READS.items()},
    **{f"write-{name}": case for name, case in WRITES.items()},
    **{f"joined-{name}": case for name, case in JOINED.items()},
    **{f"linalg-{name}": case for name, case in LINALG.items()},
    **{f.__name__: (f, ROWS[::2]) for f in ALIASES},
}
SIZES = {f"sizes-{name}": case for name, case in LANE_SIZES.items()}


def columns(operands):
    return [[lane(operands, i)[k] for i in range(size_of(operands))] for k in range(len(operands))]


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated")  # since NumPy 2.5
@pytest.mark.parametrize("name", [*CASES, *SIZES])
def test_values(name):
    f, *operands = {**CASES, **SIZES}[name]
    wants = [f(*lane(operands, i)) for i in range(size_of(operands))]
    for got, want in zip(ab.map(lambda *args: f(*args), *columns(operands)), wants, strict=True):
        assert np.asarray(got).dtype == np.asarray(want).dtype
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    f, *operands = CASES[name]

    def loss(*args):
        out = f(*args)
        return np.sum(out * 1.5 + out * out)

    first = [x.value if isinstance(x, Shared) else x[0] for x in operands]
    for which in [k for k, x in enumerate(first) if np.asarray(x).dtype.kind == "f"]:
        gradient = ab.grad(loss, argnums=which)
        wants = [gradient(*lane(operands, i)) for i in range(size_of(operands))]
        for got, want in zip(ab.map(gradient, *columns(operands)), wants, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[1:] * x[:-1],
        lambda x: x[[0, 0, 2]] ** 3,
        lambda x: np.where(x > 0, x * x, x**3),
        lambda x: np.concatenate([x, x * x]).reshape(2, -1)[1] * x,
        lambda x: np.stack([x, x * x])[::-1].T ** 2,
        lambda x: np.tile(x, 2) * np.roll(np.repeat(x, 2), 1),
    ],
)
def test_gradients_of_gradients(f):
    x = np.array([0.5, -1.0, 2.0])
    inner = ab.grad(lambda x: np.sum(f(x)))
    got = ab.grad(lambda x: np.sum(inner(x) * np.arange(3.0)))(x)
    for k in range(3):
        step = np.zeros(3)
        step[k] = 1e-5
        want = np.sum((inner(x + step) - inner(x - step)) * np.arange(3.0)) / 2e-5
        np.testing.assert_allclose(got[k], want, rtol=1e-5, atol=1e-6)
