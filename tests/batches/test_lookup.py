"""Look-ups by batches of ids: padded ids are never read, packed ids stay packed, a bad id names its example."""

import numpy as np
import pytest

from autobatch import EmbeddingTable, MaskedBatch, PackedBatch, grad, lookup
from autobatch.errors import BadIdError

WEIGHTS = np.random.default_rng(0).normal(size=(10, 3))
IDS = [[1, 2, 2], [], [9]]


def poisoned(ids):
    data = np.full((len(ids), 4), 10**9)
    for row, x in zip(data, ids, strict=True):
        row[: len(x)] = x
    return MaskedBatch(data, lengths=[len(x) for x in ids])


def packed(ids):
    return PackedBatch.from_examples([np.array(x, np.int64) for x in ids])


@pytest.mark.parametrize("make", [poisoned, packed])
@pytest.mark.parametrize("table", [WEIGHTS, EmbeddingTable(WEIGHTS)], ids=["array", "table"])
def test_rows_of_each_example(make, table):
    got = lookup(table, make(IDS))
    assert isinstance(got, PackedBatch if make is packed else MaskedBatch)
    for a, ids in zip(got.examples(), IDS, strict=True):
        np.testing.assert_array_equal(a, WEIGHTS[np.array(ids, np.int64)], strict=True)
    for a, ids in zip((got.sum(axis=0) * 2).examples(), IDS, strict=True):
        np.testing.assert_allclose(a, WEIGHTS[np.array(ids, np.int64)].sum(axis=0) * 2, strict=True)


@pytest.mark.parametrize("make", [poisoned, packed])
def test_a_bad_id_names_its_example(make):
    with pytest.raises(BadIdError, match="10") as caught:
        lookup(EmbeddingTable(WEIGHTS), make([[1], [2, 10]]))
    assert caught.value.__notes__ == ["raised for example 1"]


@pytest.mark.parametrize("make", [poisoned, packed])
def test_the_gradient_is_the_loops(make):
    def loss(weights, ids):
        return np.sum(np.tanh(lookup(weights, ids)).sum(axis=0) ** 2)

    def total(weights):
        return sum(loss(weights, ids) for ids in [np.array(x, np.int64) for x in IDS])

    def batched(weights):
        return np.sum(loss(weights, make(IDS)).data)

    got, expected = grad(batched)(WEIGHTS), grad(total)(WEIGHTS)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
