"""NaN, infinities, denormals, signed zeros and the ends of each dtype in a step: as its formula has them, by class.

Of dense arrays, arrays with gaps, tables and tables of keys alike. Broken once: weight decay of 0 times an infinity.
"""

import numpy as np
import pytest

import autobatch as ab
from autobatch.optim import RowWiseAdagrad
from tests import naive
from tests.law import assert_same_classes
from tests.ops.samples import special_numbers
from tests.tables.test_optim import CASES, FIRST

STEPS = [*CASES, (RowWiseAdagrad(0.1), naive.row_wise_adagrad, {"lr": 0.1})]
KINDS = [  # each option in float64, each optimiser in each dtype: each compiles kernels
    pytest.param(*step, dtype, id=f"{type(step[0]).__name__}{i}-{dtype}", marks=[pytest.mark.slow] if rare else [])
    for i, step in enumerate(STEPS)
    for dtype in ("f2", "f4", "f8")
    for rare in [dtype != "f8" and FIRST.get(type(step[0]), step[0]) is not step[0]]
]


def problem(dtype):
    """A parameter and a gradient in which each special number meets each."""
    numbers = special_numbers(dtype)
    return [x.copy() for x in np.meshgrid(numbers, numbers)]


def keyed(weights):
    table = ab.EmbeddingVariable(weights.shape[1], dtype=weights.dtype)
    table.assign(np.arange(len(weights)), weights)
    return table


def spaced(weights):
    whole = np.zeros((weights.shape[0], 2 * weights.shape[1]), weights.dtype)
    whole[:, ::2] = weights
    return whole[:, ::2]


PLACES = {"dense": np.copy, "gaps": spaced, "table": lambda x: ab.EmbeddingTable(x.copy()), "keys": keyed}


def sparse(rows, count):
    return ab.SparseRows(np.arange(len(rows)), rows, count)


def expected(oracle, options, weights, gradient):
    """The formula in the dtype that a step computes in, float32 for float16."""
    real = np.result_type(weights.dtype, np.float32)
    with np.errstate(all="ignore"):
        return oracle(weights, [gradient.astype(real)], **options, real=real).astype(weights.dtype)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("optimizer", "oracle", "options", "dtype"), KINDS)
def test_one_step(optimizer, oracle, options, dtype, place):
    weights, gradient = problem(dtype)
    if place in ("table", "keys"):
        gradient = gradient + gradient.dtype.type(0)  # a sum begins at zero, so that of one -0.0 is 0.0
    want = expected(oracle, options, weights, gradient)
    table = PLACES[place](weights)
    given = gradient
    if place in ("table", "keys"):
        given = sparse(gradient, len(weights) if place == "table" else None)
    optimizer.update(table, given, optimizer.init(table))
    found = table[np.arange(len(weights))] if place == "keys" else np.asarray(table)
    assert_same_classes(found, want, place)


def test_a_step_into_float16_that_overflows_is_made_whole():
    """However NumPy is told to treat overflow: there is no state between before and after."""
    params = [np.full(3, 6e4, np.float16), np.ones(3)]
    optimizer = ab.optim.SGD(1.0)
    with np.errstate(all="raise"):
        optimizer.update(params, [np.full(3, -6e4, np.float16), np.ones(3)], optimizer.init(params))
    assert [x.tolist() for x in params] == [[np.inf] * 3, [0.0] * 3]


CLIPPINGS = {"value": {"clip_value": 1.5}, "norm": {"clip_norm": 2.0}, "both": {"clip_norm": 1e3, "clip_value": 0.5}}
GRADIENTS = {
    "all": lambda g: g,
    "no NaN": lambda g: np.where(np.isnan(g), g.dtype.type(1), g),  # the norm is infinite
    "finite": lambda g: np.where(np.isfinite(g), g, g.dtype.type(1)),  # of float64, the sum of its squares is not
    "huge": lambda g: np.full_like(g, np.sqrt(np.finfo(g.dtype).max)),  # a square is finite, their sum is not
    "small": lambda g: np.where(np.abs(g) < 1, g, np.finfo(g.dtype).smallest_subnormal),
}


def clipped(gradient, dtype, clip_norm=None, clip_value=None):
    """The formula of `torch.nn.utils.clip_grad_norm_`, and then that of `clip_grad_value_`."""
    gradient = gradient.astype(np.result_type(dtype, np.float32))
    if clip_norm is not None:
        norm = np.sqrt(np.sum(gradient.astype(np.float64) ** 2))
        scale = np.minimum(1.0, clip_norm / (norm + 1e-6))
        gradient = gradient * gradient.dtype.type(scale) if scale != 1 else gradient
    return gradient if clip_value is None else np.clip(gradient, -clip_value, clip_value)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("which", GRADIENTS)
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("dtype", [pytest.param("f2", marks=pytest.mark.slow), "f4", "f8"])
def test_clipping(dtype, clipping, which):
    weights, gradient = problem(dtype)
    gradient = GRADIENTS[which](gradient) + gradient.dtype.type(0)
    options = CLIPPINGS[clipping]
    with np.errstate(all="ignore"):
        want = expected(naive.sgd, {"lr": 0.1}, weights, clipped(gradient, dtype, **options))
    for place, put in PLACES.items():
        given = gradient
        if place in ("table", "keys"):
            given = sparse(gradient, len(weights) if place == "table" else None)
        table, optimizer = put(weights), ab.optim.SGD(0.1, **options)
        optimizer.update(table, given, optimizer.init(table))
        found = table[np.arange(len(weights))] if place == "keys" else np.asarray(table)
        assert_same_classes(found, want, place)


def test_a_norm_of_many_parameters_that_is_infinite():
    params = [np.ones(2), np.ones(2)]
    optimizer = ab.optim.SGD(1.0, clip_norm=1.0)
    optimizer.update(params, [np.full(2, 9e153), np.full(2, 9e153)], optimizer.init(params))
    assert [x.tolist() for x in params] == [[1.0, 1.0]] * 2
