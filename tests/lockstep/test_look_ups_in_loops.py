"""Look-ups by the items of a loop."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from autobatch.errors import FallbackWarning
from tests import inspect
from tests.law import agrees, batch_of
from tests.lockstep.test_recurrences import PARAMS, RNG

EMB = RNG.normal(size=(20, 3))
IDS = [RNG.integers(0, 20, n) for n in (5, 0, 3, 9, 1, 9, 12)]


def by_words(words, p):
    h = np.zeros(4)
    for word in words:
        x = p["emb"][word]
        h = np.tanh(x @ p["w"] + h @ p["u"] + p["b"])
    return h


@pytest.mark.parametrize("make", [np.asarray, ab.EmbeddingTable])
def test_results_are_those_of_the_loop(make):
    agrees(by_words, IDS, p={**PARAMS, "emb": make(EMB)})


@pytest.mark.parametrize("make", [np.asarray, ab.EmbeddingTable])
def test_gradients_of_look_ups_by_items(make):
    f = batch(by_words, strict=True)
    p = {**PARAMS, "emb": make(EMB)}
    for _ in range(3):
        got = ab.grad(lambda p: (f(batch_of(IDS), p).data ** 2).sum())(p)
    want = [ab.grad(lambda p, ids=ids: (by_words(ids, p) ** 2).sum())({**PARAMS, "emb": EMB}) for ids in IDS]
    for name in p:
        dense = got[name].to_dense() if isinstance(got[name], ab.SparseRows) else got[name]
        np.testing.assert_allclose(dense, sum(each[name] for each in want), rtol=1e-7, atol=1e-12)


def test_an_id_out_of_range_is_the_loops_error():
    f = batch(by_words)
    bad = [*IDS[:3], np.array([1, 2, 99]), np.array([77])]
    for make in (np.asarray, ab.EmbeddingTable):
        for _ in range(3):
            with pytest.raises(IndexError, match="99") as caught:
                f(batch_of(bad), p={**PARAMS, "emb": make(EMB)})
            assert "example 3" in caught.value.__notes__[-1]


def test_an_id_that_is_never_reached_is_no_error():
    def f(words, emb):
        h = np.zeros(3)
        for word in words:
            if word < 0:
                break
            h = h * 0.5 + emb[word]
        return h

    agrees(f, [np.array([1, -1, 99, 2]), np.array([3, 4]), np.array([-1])], emb=EMB)


def test_a_write_into_a_looked_up_row_reaches_the_table():
    def f(words, emb):
        for word in words:
            row = emb[word]
            row += 1.0
        return emb.sum()

    mine, plain = EMB.copy(), EMB.copy()
    with pytest.warns(FallbackWarning, match="a view of a plain array that is shared"):
        got = examples(batch(f)(batch_of(IDS), mine))
    want = [f(ids, plain) for ids in IDS]
    np.testing.assert_allclose(got, want)
    np.testing.assert_allclose(mine, plain)


def by_sentences(document, p):
    states = []
    for sentence in document:
        states.append(np.tanh(p["emb"][sentence].mean(axis=0) @ p["w"]))
    return np.stack(states).sum(axis=0)


def test_means_of_the_rows_of_an_item_are_bags():
    documents = [[RNG.integers(0, 20, 1 + n) for n in lengths] for lengths in ((5, 2), (3,), (9, 1, 7), (4, 4))]
    p, f = {"w": PARAMS["w"], "emb": ab.EmbeddingTable(EMB)}, batch(by_sentences, strict=True)
    for _ in range(4):  # blocks are traced when they are used again
        with inspect.bags() as bags:
            got = ab.grad(lambda p: (f(ab.collate(documents), p).data ** 2).sum())(p)
    assert bags == ["mean"] * 3
    want = [ab.grad(lambda p, one=one: (by_sentences(one, p) ** 2).sum())({**p, "emb": EMB}) for one in documents]
    np.testing.assert_allclose(got["w"], sum(each["w"] for each in want), rtol=1e-7)
    np.testing.assert_allclose(got["emb"].to_dense(), sum(each["emb"] for each in want), rtol=1e-7, atol=1e-12)


def by_columns(words, p):  # a hidden Markov model's emissions
    h = np.zeros(4)
    for word in words:
        h = np.tanh(p["columns"][:, word] + h @ p["u"])
    return h


def by_pairs(words, p):  # a score of moves, of positions in an array of the example, and of one from the end
    h, score = np.zeros(4), np.float64(0)
    for word in words:
        h = np.tanh(h @ p["u"] + p["b"] * h[word % 4])
        score = score + p["u"][word % 4, (word + 1) % 4] * h[-(word % 3) - 1]
    return h * score


@pytest.mark.parametrize("f", [by_columns, by_pairs])
def test_positions_by_example_within_a_scan(f, scans):
    p = {**PARAMS, "columns": RNG.normal(size=(4, 20))}
    agrees(f, IDS, p=p)
    assert max(scans) > 1
    step = batch(f, strict=True)
    for _ in range(4):
        got = ab.grad(lambda p: (step(batch_of(IDS), p).data ** 2).sum())(p)
    want = [ab.grad(lambda p, ids=ids: (f(ids, p) ** 2).sum())(p) for ids in IDS]
    for name in p:
        np.testing.assert_allclose(got[name], sum(each[name] for each in want), rtol=1e-7, atol=1e-12)


def test_a_position_out_of_range_within_a_scan_is_the_loops_error():
    p = {**PARAMS, "columns": RNG.normal(size=(4, 20))}
    f = batch(by_columns)
    for _ in range(4):
        f(batch_of(IDS), p)
    with pytest.raises(IndexError, match="index 20 is out of bounds for axis 1 with size 20") as caught:
        f(batch_of([IDS[0], np.array([1, 20, 3]), np.array([-21])]), p)
    assert "example 1" in caught.value.__notes__[-1]
