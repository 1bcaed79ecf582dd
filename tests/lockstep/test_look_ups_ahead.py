"""Look-ups by a loop's items, and matrices laid out for its steps: once for many steps, and nothing else shows."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from autobatch.errors import FallbackWarning
from autobatch.testing import inspect
from tests.law import agrees, batch_of, run_again
from tests.lockstep.test_hoisting import PARAMS, RNG, SENTENCES, rnn

EMB = RNG.normal(size=(20, 3))
IDS = [RNG.integers(0, 20, n) for n in (5, 0, 3, 9, 1, 9, 12)]


def by_words(words, p):
    h = np.zeros(4)
    for word in words:
        x = p["emb"][word]
        h = np.tanh(x @ p["w"] + h @ p["u"] + p["b"])
    return h


@pytest.mark.parametrize("make", [np.asarray, ab.EmbeddingTable])
def test_look_ups_by_items_and_their_products_are_one_for_all_steps(products, make):
    p = {**PARAMS, "emb": make(EMB)}
    agrees(by_words, IDS, p=p)
    products.clear()
    run_again(by_words, IDS, p=p, times=1)
    steps = [sum(len(x) > t for x in IDS) for t in range(12)]
    assert [n for width, n in products if width == 3] == [sum(steps[:8]), sum(steps[8:])]


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
    with pytest.warns(FallbackWarning, match="known by another name"):
        got = examples(batch(f)(batch_of(IDS), mine))
    want = [f(ids, plain) for ids in IDS]
    np.testing.assert_allclose(got, want)
    np.testing.assert_allclose(mine, plain)


@pytest.fixture
def blocks_of_columns():
    """Whatever the machine and the size."""
    with inspect.column_blocks(lambda shape: shape == (4, 4), unpacked=5 * 4 * 2) as made:
        yield made


def test_the_matrix_of_the_state_is_laid_out_once(blocks_of_columns):
    def f(xs, p):
        h = np.zeros(4)
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"] + p["b"])
        return h

    def g(h, p, n):
        while n > 0:
            h = np.tanh(h @ p["u"])
            n = n - 1
        return h

    agrees(f, SENTENCES, p=PARAMS)
    blocks_of_columns.clear()
    run_again(f, SENTENCES, p=PARAMS, times=1)
    assert blocks_of_columns == [(4, 4)]
    states, counts = list(RNG.normal(size=(6, 4))), [9, 12, 7, 0, 8, 9]
    agrees(lambda h, n, p: g(h, p, n), states, counts, p=PARAMS)
    blocks_of_columns.clear()
    run_again(g, states, p=PARAMS, n=12, times=2)
    assert blocks_of_columns == [(4, 4)] * 2


def test_gradients_by_blocks_of_columns(blocks_of_columns):
    def f(xs, p):
        h = np.zeros(4)
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"] + p["b"])
        return h

    g = batch(f, strict=True)
    for _ in range(3):
        got = ab.grad(lambda p: (g(batch_of(SENTENCES), p).data ** 2).sum())(PARAMS)
    assert blocks_of_columns
    want = [ab.grad(lambda p, x=x: (rnn(x, p) ** 2).sum())(PARAMS) for x in SENTENCES]
    for name in PARAMS:
        np.testing.assert_allclose(got[name], sum(each[name] for each in want), rtol=1e-7, atol=1e-12)
