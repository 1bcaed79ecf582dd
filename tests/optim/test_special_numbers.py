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
from tests.tables.test_optim import CASES

STEPS = [*CASES, (RowWiseAdagrad(0.1), naive.row_wise_adagrad, {"lr": 0.1})]
NAMES = [f"{type(opt).__name__}{i}" for i, (opt, *_) in enumerate(STEPS)]
DTYPES = ("f2", "f4", "f8")


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
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("optimizer", "oracle", "options"), STEPS, ids=NAMES)
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
