"""Reductions of looked-up rows, over tables of every dtype and by every way: what NumPy gives, its wider dtypes too."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

DTYPES = "?bBhHiIlLefd"
EXAMPLES = [np.array([0, 1, 5]), np.array([2]), np.array([3, 3, 4, 5, 1])]
REDUCTIONS = {
    **{
        f"{name} {options}": lambda t, ids, name=name, options=options: getattr(t[ids], name)(**options)
        for name in ("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin", "std")
        for options in ({"axis": 0}, {"axis": -1}, {})
    },
    "keepdims": lambda t, ids: t[ids].sum(axis=0, keepdims=True),
    "dtype": lambda t, ids: t[ids].sum(axis=0, dtype=np.float64),
    "running": lambda t, ids: t[ids].cumsum(axis=0),
    "ufunc": lambda t, ids: np.add.reduce(t[ids], axis=0),
    "taken": lambda t, ids: np.take(t, ids, axis=0).sum(0),
    "weighted": lambda t, ids: (t[ids] * ids[:, None]).sum(0),
    "two of one look-up": lambda t, ids: (t[ids].sum(0), t[ids].max(0)),
}


def table(dtype):
    values = np.random.default_rng(0).integers(100, 127, (6, 5))
    return (values > 105) if dtype == "?" else values.astype(dtype)


@pytest.mark.filterwarnings("ignore")  # float16 overflows, as NumPy's does
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_of_rows_has_numpys_dtype_and_value(name):
    f = REDUCTIONS[name]
    for dtype in DTYPES:
        t = table(dtype)
        wants = [f(t, ids) for ids in EXAMPLES]
        ways = [ab.map(lambda ids, t: f(t, ids), EXAMPLES, t=t)]
        for kind in (ab.MaskedBatch, ab.PackedBatch):
            ways.append(ab.examples(ab.batch(f)(t, kind.from_examples(EXAMPLES))))
        ways.append(ab.examples(ab.batch(f)(ab.EmbeddingTable(t), ab.MaskedBatch.from_examples(EXAMPLES))))
        for results in ways:
            assert_same(results, wants, dtype, precision=2 if dtype == "e" else 8)
