"""Tables and rows of unusual dtypes: computed with as they are, or refused by a DTypeError that says what to write."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError

IDS, OFFSETS, SEGMENTS = np.array([0, 1, 1, 3]), np.array([0, 2]), np.array([0, 0, 1, 2])
FAMILY = [name for name in ab.__all__ if name.startswith("segment_") and "_to_" not in name and "k" not in name[-1]]


def table(dtype):
    return np.arange(12.0).reshape(4, 3).astype(dtype)


CALLS = {
    "lookup": lambda t: ab.lookup(t, IDS),
    "lookup of several": lambda t: ab.lookup(t, IDS.reshape(2, 2)),
    "bag": lambda t: ab.embedding_bag(IDS, t, OFFSETS, mode="sum"),
    "bag of greatest": lambda t: ab.embedding_bag(IDS, t, OFFSETS, mode="max"),
    "sgd": lambda t: ab.optim.SGD(0.1).update(t, np.ones_like(t), ab.optim.SGD(0.1).init(t))[0],
    "adam": lambda t: ab.optim.Adam(0.1).update(t, sparse(t.dtype), ab.optim.Adam(0.1).init(t))[0],
    "coalesce": lambda t: sparse(t.dtype).coalesce().to_dense(),
    "scatter": lambda t: ab.scatter_add(t, [0, 0], np.ones((2, 3), t.dtype)),
    "gradient": lambda t: ab.grad(lambda p: np.sum(ab.segment_sum(p, SEGMENTS)))(t),
} | {
    name: lambda t, name=name: getattr(ab, name)(t, SEGMENTS) for name in FAMILY
} | {
    f"{name} of a table": lambda t, name=name: getattr(ab, name)(t, ids=IDS, lengths=[2, 2]) for name in FAMILY
}  # fmt: skip


def sparse(dtype):
    return ab.SparseRows([0, 0], np.ones((2, 3), dtype), 4)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["g", "G", ">f4", ">f8", ">i4", "V4", "M8[s]"])
def test_computed_or_refused(name, dtype):
    try:
        found = CALLS[name](np.zeros((4, 3), dtype) if dtype[0] in "VM" else table(dtype))
    except (DTypeError, TypeError, ValueError):  # of ours or NumPy's; Numba's are none of these
        return
    if dtype[0] == ">":
        native = CALLS[name](table(dtype[1:]))
        np.testing.assert_array_equal(found, native)


@pytest.mark.parametrize("name", CALLS)
def test_bfloat16(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weights = table(ml_dtypes.bfloat16)
    if name == "lookup":
        assert CALLS[name](weights).dtype == weights.dtype
    else:
        with pytest.raises(DTypeError, match=r"bfloat16.*astype\(np.float32\)"):
            CALLS[name](weights)
