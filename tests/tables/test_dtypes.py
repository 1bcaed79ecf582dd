"""Tables and rows of unusual dtypes: computed with as they are, or refused by a DTypeError that says what to write."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError

IDS, OFFSETS, SEGMENTS = np.array([0, 1, 1, 3]), np.array([0, 2]), np.array([0, 0, 1, 2])
FAMILY = [
    name for name in ab.segments.__all__ if name.startswith("segment_") and "_to_" not in name and "k" not in name[-1]
]


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
@pytest.mark.parametrize("dtype", ["g", "G", ">f4", pytest.param(">f8", marks=pytest.mark.slow), ">i4", "V4", "M8[s]"])
def test_computed_or_refused(name, dtype):
    try:
        found = CALLS[name](np.zeros((4, 3), dtype) if dtype[0] in "VM" else table(dtype))
    except (DTypeError, TypeError, ValueError):  # of ours or NumPy's; Numba's are none of these
        return
    if dtype[0] == ">":
        native = CALLS[name](table(dtype[1:]))
        np.testing.assert_array_equal(found, native)


COMPUTED = ["lookup", "lookup of several", "bag", "bag of greatest"]  # of bfloat16, with the segments of a table
COMPUTED += [f"segment_{mode} of a table" for mode in ("sum", "mean", "sqrtn", "max", "min")]


@pytest.mark.parametrize("name", CALLS)
def test_bfloat16(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weights = table(ml_dtypes.bfloat16)
    if name in COMPUTED:
        found = CALLS[name](weights)
        expected = np.asarray(CALLS[name](weights.astype(np.float32))).astype(weights.dtype)
        assert found.dtype == weights.dtype
        np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    else:
        said = (
            r"of dtype bfloat16, which ml_dtypes brings; expected a dtype of NumPy's own: write \.astype\(np\.float32\)"
        )
        with pytest.raises(DTypeError, match=said):
            CALLS[name](weights)


@pytest.mark.parametrize(
    ("mode", "dim", "of_id"),
    [
        *((mode, 3, "i8") for mode in ("sum", "mean", "max", "min", "sqrtn", ("sum", "max"))),  # less than a register
        *((mode, 130, "i8") for mode in ("mean", "max")),  # more than one tile
        *(pytest.param(mode, 130, "i8", marks=pytest.mark.slow) for mode in ("sum", "min", "sqrtn", ("sum", "max"))),
        *(pytest.param(mode, 3, "i4", marks=pytest.mark.slow) for mode in ("sum", "mean", "max", "min")),
    ],
)
def test_s1_04_bags_of_bfloat16_are_added_up_in_float32(mode, dim, of_id):
    """As those of the same numbers in float32, rounded once, whatever the table and with weights and padding."""
    dtype, random = pytest.importorskip("ml_dtypes").bfloat16, np.random.default_rng(dim)
    weights = random.standard_normal((50, dim)).astype(dtype)
    ids, offsets, of_ids = random.integers(0, 50, 60).astype(of_id), [0, 0, 7, 30], random.random(60, np.float32)
    more = {"per_sample_weights": of_ids, "padding_idx": 3} if mode == "sum" else {}
    known = ab.embedding_bag(ids, weights.astype(np.float32), offsets, mode=mode, **more)
    for table in (weights, ab.EmbeddingTable(weights), ab.SplitTable([weights[:30], weights[30:]])):
        found = ab.embedding_bag(ids, table, offsets, mode=mode, **more)
        for one, exact in zip(found, known, strict=True):
            assert one.dtype == dtype
            np.testing.assert_array_equal(one.astype(np.float32), exact.astype(dtype).astype(np.float32))


def test_bags_of_bfloat16_of_a_batch_and_on_the_fly():
    weights = table(pytest.importorskip("ml_dtypes").bfloat16)
    bags = [np.array(ids, np.int64) for ids in ([0, 1, 3], [], [2])]

    def bag(ids, weights):
        return ab.embedding_bag(ids, weights, [0], mode="mean")[0]

    for found in (
        ab.examples(ab.batch(bag)(ab.PackedBatch.from_examples(bags), weights)),
        ab.map(bag, bags, weights=weights),
    ):
        for one, ids in zip(found, bags, strict=True):
            assert one.dtype == weights.dtype
            np.testing.assert_array_equal(one.astype(np.float32), bag(ids, weights).astype(np.float32))
