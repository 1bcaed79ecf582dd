"""Whatever calls its attributes `values` and `offsets` is checked where it comes in."""

import types

import numpy as np
import pytest

import autobatch as ab

TABLE = ab.EmbeddingTable(np.arange(8.0).reshape(4, 2))
IDS = np.array([0, 1, 3])
WRONG = {
    "past the end": ([0, 2, 300], "above the number of values"),
    "before the end": ([0, 2], "offsets"),
    "falling": ([0, 2, 1, 3], "below offsets"),
    "negative": ([-5, 2, 3], "expected 0"),
    "not from 0": ([1, 3], "expected 0"),
    "empty": (np.zeros(0, int), "offsets are empty"),
    "floats": ([0.0, 3.0], "offsets have dtype float64"),
    "two dimensions": ([[0, 3]], "one dimension"),
    "none": (None, "offsets"),
}


def alike(values, offsets):
    return types.SimpleNamespace(values=values, offsets=offsets if offsets is None else np.array(offsets))


@pytest.mark.parametrize("weights", [None, np.ones(3)], ids=["plain", "weighted"])
@pytest.mark.parametrize(("offsets", "message"), WRONG.values(), ids=WRONG)
def test_a_bag_checks_what_looks_like_a_packed_batch(offsets, message, weights):
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        ab.embedding_bag(alike(IDS, offsets), TABLE, per_sample_weights=weights, mode="sum")
    packed = ab.PackedBatch(IDS, [0, 3])
    packed.offsets = alike(IDS, offsets).offsets
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        ab.embedding_bag(packed, TABLE, per_sample_weights=weights, mode="sum")


def test_what_is_right_is_taken():
    want = ab.embedding_bag(IDS, TABLE, np.array([0, 2]), mode="sum")
    np.testing.assert_array_equal(ab.embedding_bag(alike(IDS, [0, 2, 3]), TABLE, mode="sum"), want)


def test_weights_have_the_offsets_of_the_ids():
    ids = ab.PackedBatch(IDS, [0, 2, 3])
    for offsets in ([0, 1, 3], [0, 3]):
        weights = ab.PackedBatch(np.ones(3), offsets)
        with pytest.raises(ValueError, match="weights have other offsets"):
            ab.embedding_bag(ids, TABLE, per_sample_weights=weights, mode="sum")


def test_other_doors_take_packed_batches_only():
    ids, other = ab.PackedBatch(IDS, [0, 2, 3]), alike(np.ones(300), [0, 2, 3])
    with pytest.raises(TypeError, match="weights are a SimpleNamespace; expected a PackedBatch"):
        ids.to_sparse(4, weights=other)
    with pytest.raises(TypeError, match="values are a SimpleNamespace; expected a PackedBatch"):
        ab.packed_to_maps(ids, other)
    with pytest.raises(TypeError, match="keys are a SimpleNamespace; expected a PackedBatch"):
        ab.packed_to_maps(other, ids)
