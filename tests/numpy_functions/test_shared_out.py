"""A NumPy call with `out=` on arrays that all examples share has its effect once for each example, in their order.

None of its operands belongs to an example, so it is not to be taken for a constant that is computed once.
"""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import PackedBatch
from tests.law import assert_same, batch_of, loop, ragged

XS = ragged(3, 1, 4, 2)
TOTALS, COUNTS, PLACES = np.zeros(3), np.arange(3), {"b": np.zeros(2)}


def _reset():
    TOTALS[:], COUNTS[:], PLACES["b"][:] = 0, [0, 1, 2], 0


def by_name(x):
    np.add(TOTALS, 1, out=TOTALS)
    return x + TOTALS[0]


def by_position(x):
    np.multiply(TOTALS, 2, TOTALS)
    np.add(TOTALS, 1, TOTALS)
    return np.tanh(x * 2) + 1


def in_a_tuple(x):
    np.add(TOTALS, 1, out=(TOTALS,))
    return x * 2


def of_the_result(x):
    y = np.add(TOTALS, 1, out=TOTALS) * 2 + 1
    return np.tanh(x) * 2 + y[0]


def cumulative(x):
    np.cumsum(COUNTS, out=COUNTS)
    return x + 1


def clipped(x):
    np.clip(TOTALS + 1, 0, 100, out=TOTALS)
    return np.tanh(x) * 2


def product(x):
    np.matmul(np.eye(3), TOTALS + 1, out=TOTALS)
    return np.tanh(x) * 2


def concatenated(x):
    np.concatenate([TOTALS[:1] + 1, TOTALS[1:]], out=TOTALS)
    return np.tanh(x) * 2


def concatenated_by_position(x):
    np.concatenate([TOTALS[:1] + 1, TOTALS[1:]], 0, TOTALS)
    return np.tanh(x) * 2


def of_a_container(x):
    np.subtract(PLACES["b"], 1, out=PLACES["b"])
    return np.tanh(x) * 2


def in_a_branch(x):
    if x[0] > 0:
        np.add(TOTALS, 1, out=TOTALS)
    return np.tanh(x) * 2


def in_a_loop(x):
    for _ in range(len(x)):
        np.add(TOTALS, 1, out=TOTALS)
    return np.tanh(x) * 2


def by_another_name(x):
    out = TOTALS
    np.add(out, 1, out=out)
    return np.tanh(x) * 2


def _helper(out):
    np.add(out, 1, out=out)


def in_a_helper(x):
    _helper(TOTALS)
    return np.tanh(x) * 2


def by_a_method(x):
    TOTALS.cumsum(out=TOTALS)
    (TOTALS + 1).round(0, TOTALS)
    return np.tanh(x) * 2


def _lockstep(make):
    def run(f):
        with ab.options(way="lockstep"):
            return ab.examples(ab.batch(f)(make(XS)))

    return run


def _map(way):
    def run(f):
        with ab.options(way=way):
            return ab.map(f, XS)

    return run


WAYS = {
    "padded": _lockstep(batch_of),
    "packed": _lockstep(PackedBatch.from_examples),
    "fly": _map("fly"),
    "compiled": _map("compiled"),
}
FUNCTIONS = [
    by_name, by_position, in_a_tuple, of_the_result, cumulative, clipped, product, concatenated,
    concatenated_by_position, of_a_container, in_a_branch, in_a_loop, by_another_name, in_a_helper, by_a_method,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", FUNCTIONS)
def test_once_for_each_example(f, way):
    _reset()
    wanted = loop(f, XS)
    state = [TOTALS.copy(), COUNTS.copy(), PLACES["b"].copy()]
    for time in ("first", "second"):  # the second finds all code written
        _reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = WAYS[way](f)
        assert_same(found, wanted, f"{time} results")
        assert_same([TOTALS, COUNTS, PLACES["b"]], state, f"{time} effects")
