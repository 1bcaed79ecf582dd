"""Every kind of table is trained as the array of its rows is: gradients in all ways of running, then a step."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import UnsupportedError
from tests import naive
from tests.tables.test_table_kinds import KINDS, SENTENCES, TRAINED, weights

OPTIMISERS = [
    ab.optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ab.optim.Adagrad(0.1),
    ab.optim.RowWiseAdagrad(0.1),
    ab.optim.Adam(0.1),
    ab.optim.AdamW(0.1),
    ab.optim.RMSProp(0.1, momentum=0.5, centered=True),
    ab.optim.FTRL(0.1, l1=0.01),
]


def score(words, params):
    rows = params["emb"][words]
    return np.tanh(rows.sum(axis=0) @ params["v"]) + ab.embedding_bag(words, params["emb"], [0], mode="mean").sum()


def as_loop(params):
    return sum(score(words, params) for words in SENTENCES)


WAYS = {
    "plain": as_loop,
    "on the fly": lambda params: sum(ab.map(score, SENTENCES, params=params)),
    "lock-step": lambda params: ab.sum(ab.batch(score)(ab.MaskedBatch.from_examples(SENTENCES), params)),
}


def numeric(table, v):
    """The gradient of the loop over plain arrays, which knows nothing of tables."""
    sentences = [np.asarray(words) for words in SENTENCES]

    def loss(dense):
        return sum(np.tanh(dense[w].sum(axis=0) @ v) + dense[w].mean(axis=0).sum() for w in sentences)

    return naive.numeric_gradient(loss, table)


NUMBER = len(OPTIMISERS)
THESE = [  # each kind in each way, and each kind or way with each optimiser; or all three together
    pytest.param(kind, way, chosen, marks=[] if len(chosen) == 3 else [pytest.mark.slow])
    for i, kind in enumerate(TRAINED)
    for j, way in enumerate(WAYS)
    for chosen in ([OPTIMISERS[(i + 3 * j + k) % NUMBER] for k in range(3)], OPTIMISERS)
]


@pytest.mark.parametrize(("kind", "way", "optimisers"), THESE)
def test_s0_19_s0_20_s0_27_trained_as_its_array(kind, way, optimisers):
    """S0.19, S0.20, S0.27: the step that a dense array would take, of the rows that were read, and of no other."""
    v = np.random.default_rng(5).standard_normal(5)
    for opt in optimisers:
        table, dense = KINDS[kind](0.1 * weights()), 0.1 * weights()
        params, plain = {"emb": table, "v": v.copy()}, {"emb": ab.EmbeddingTable(dense), "v": v.copy()}
        state, plain_state = opt.init(params), opt.init(plain)
        for _ in range(2):
            grads = ab.grad(WAYS[way])(params)
            assert isinstance(grads["emb"], ab.SparseRows)
            np.testing.assert_allclose(grads["emb"].to_dense(), numeric(np.array(table), params["v"]), atol=1e-6)
            params, state = opt.update(params, grads, state)
            found = ab.grad(as_loop)(plain)
            plain, plain_state = opt.update(plain, found, plain_state)
        assert params["emb"] is table
        np.testing.assert_allclose(np.asarray(table), dense, rtol=1e-9, atol=1e-12)
        assert not np.allclose(dense[1], 0.1 * weights()[1])


def test_s0_30_an_update_says_that_it_is_one():
    """S0.30: rows are asked for with `UPDATE` before they are written."""
    table = KINDS["scattered"](weights())
    opt = ab.optim.SGD(0.1)
    state = opt.init(table)
    table.contexts.clear()
    opt.update(table, ab.SparseRows([3, 1, 3], np.ones((3, 5)), 7), state)
    assert ab.Context.UPDATE in table.contexts


def test_a_table_may_lie_in_files(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.zeros((4, 5), np.float32))
    chunks = [np.load(tmp_path / f"{i}.npy", mmap_mode="r+") for i in range(3)]
    table = ab.SplitTable(chunks)
    opt = ab.optim.SGD(1.0)
    opt.update(table, ab.SparseRows([9, 2], np.ones((2, 5), np.float32), 12), opt.init(table))
    for chunk in chunks:
        chunk.flush()
    assert [np.load(tmp_path / f"{i}.npy").sum() for i in range(3)] == [-5, 0, -5]


def test_a_quantised_table_is_not_trained():
    """Codes hold no small step; a table of codes is made again from trained weights."""
    table = ab.QuantizedTable.from_weights(weights())
    before = table.packed.copy()
    opt = ab.optim.SGD(0.1)
    params = {"emb": table, "v": np.ones(5, np.float32)}
    grads = ab.grad(lambda p: (p["emb"][[1, 2]] @ p["v"]).sum())(params)
    opt.update(params, grads, opt.init(params))
    np.testing.assert_array_equal(table.packed, before)
    with pytest.raises(UnsupportedError, match="QuantizedTable for look-ups only"):
        opt.update(table, ab.SparseRows([0], np.ones((1, 5), np.float32), 7), opt.init(table))


def test_a_split_table_that_is_read_only_is_refused_before_anything_is_written():
    chunk = np.zeros((4, 5))
    chunk.flags.writeable = False
    table = ab.SplitTable([np.zeros((4, 5)), chunk])
    opt = ab.optim.SGD(0.1)
    params = [np.ones(3), table]
    with pytest.raises(UnsupportedError, match=r"params\[1\] is read-only"):
        opt.update(params, [np.ones(3), ab.SparseRows([5], np.ones((1, 5)), 8)], opt.init(params))
    assert params[0].tolist() == [1, 1, 1]
