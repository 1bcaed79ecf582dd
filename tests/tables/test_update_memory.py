"""How an update runs changes nothing in what it gives: indexers, splits, scratch space, stores past the cache."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.threads import split_work
from autobatch.optim import SGD, Adagrad, Indexer
from autobatch.optim import row_steps as steps_module
from tests import inspect, naive

RANDOM = np.random.default_rng(29)


def make(shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def test_seed_s0_21_s0_22_one_table_with_its_indexer():
    """S0.21, S0.22: the worked example, with a preallocated indexer, and stores that pass the cache or do not."""
    adjoint = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)
    for nontemporal in (False, True):
        table, opt = ab.EmbeddingTable(np.zeros((4, 4), np.float32)), SGD(0.1)
        state = opt.init(table)
        gradient = ab.SparseRows([0, 2, 3], adjoint, 4)
        opt.update(table, gradient, state, indexers=Indexer(3), nontemporal=nontemporal)
        expected = [[-0.1, -0.2, -0.3, -0.4], [0] * 4, [-0.5, -0.6, -0.7, -0.8], [-0.9, -1.0, -1.1, -1.2]]
        np.testing.assert_allclose(table, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3, 4, 6, 40])
def test_s0_24_past_the_cache_to_the_bit(width, dtype):
    """S0.24: the rows that are whole multiples of 16 bytes go straight to memory; nothing else is written."""
    ids, rows = RANDOM.integers(0, 50, 90), make((90, width), dtype)
    start = make((50, width), dtype)
    found = []
    for nontemporal in (False, True):
        whole = np.full((52, width), 77, dtype)
        whole[1:-1] = start
        table, opt = ab.EmbeddingTable(whole[1:-1]), SGD(0.1, weight_decay=0.01, clip_value=1.5)
        with inspect.watched(steps_module, "VectorLayout") as calls:
            opt.update(table, ab.SparseRows(ids, rows, 50), opt.init(table), nontemporal=nontemporal)
        assert (whole[[0, -1]] == 77).all()
        found.append(table.weights.copy())
    np.testing.assert_array_equal(*found)
    summed = np.clip(naive.scatter_add(rows, ids, 50), -1.5, 1.5)
    named = np.unique(ids)
    expected = start - 0.1 * (summed + 0.01 * start)
    np.testing.assert_allclose(found[0][named], expected[named], rtol=1e-4, atol=1e-4)
    whole_lines = width * np.dtype(dtype).itemsize % 16 == 0
    assert bool(calls) == whole_lines


EVERY = {
    "SGD": lambda: SGD(0.1),
    "momentum": lambda: SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: Adagrad(0.1),
    "RowWiseAdagrad": lambda: ab.optim.RowWiseAdagrad(0.1),
    "Adam": lambda: ab.optim.Adam(0.1),
    "AdamW": lambda: ab.optim.AdamW(0.1),
    "RMSProp": lambda: ab.optim.RMSProp(0.1),
    "FTRL": lambda: ab.optim.FTRL(0.1, l1=0.5),
}


@pytest.mark.parametrize("kind", ["dense", "keys"])
@pytest.mark.parametrize("name", EVERY)
def test_s0_24_every_optimiser_stores_past_the_cache_to_the_bit(name, kind):
    """S0.24: of a table, and of one of keys, whose rows lie as a table's do; gradients are added up in the step."""
    assert {type(make_one()).__name__ for make_one in EVERY.values()} == {*ab.optim.__all__} - {"Indexer", "Optimizer"}
    random = np.random.default_rng(3)
    ids, start = random.integers(0, 50, 90), random.standard_normal((50, 20)).astype(np.float32)
    found, rows_known = [], 50 if kind == "dense" else None
    for nontemporal in (False, True):
        if kind == "dense":
            table = ab.EmbeddingTable(start.copy())
        else:
            table = ab.EmbeddingVariable(20)
            table.assign(np.arange(50), start)
        opt, rows = EVERY[name](), np.random.default_rng(4).standard_normal((3, 90, 20)).astype(np.float32)
        state = opt.init(table)
        added = inspect.replaced(steps_module, _CACHED=0)
        with inspect.watched(steps_module, "VectorLayout") as calls, added:
            for step in rows:
                opt.update(table, ab.SparseRows(ids, step, rows_known), state, nontemporal=nontemporal)
        assert bool(calls) == nontemporal
        found.append(ab.lookup(table, np.arange(50)))
    np.testing.assert_array_equal(*found)
    assert (found[0][np.unique(ids)] != start[np.unique(ids)]).any(1).all()


@pytest.mark.parametrize("opt", [SGD(0.1), Adagrad(0.1)], ids=lambda opt: type(opt).__name__)
def test_s0_25_s0_26_tables_grouped_with_splits_and_scratch(opt):
    """S0.25, S0.26: several tables in one update; threads, splits and scratch change no bit, and are used."""
    starts = [make((n, 24)) for n in (300, 70)]
    grads = [ab.SparseRows(RANDOM.integers(0, len(x), 500), make((500, 24)), len(x)) for x in starts]

    def run(**how):
        tables = [ab.EmbeddingTable(x.copy()) for x in starts]
        opt.update(tables, grads, opt.init(tables), **how)
        return [table.weights.tobytes() for table in tables]

    expected = run()
    indexers = [Indexer() for _ in starts]
    spaces = opt.scratch([ab.EmbeddingTable(x) for x in starts], threads=2)
    assert [space.shape for space in spaces] == [(24,)] * 2
    spaces[0][:] = np.nan
    with inspect.watched(steps_module, "run_together", before=len) as used:
        for splits in (1, 4, 1000):
            assert run(threads=2, num_splits=splits, indexers=indexers, scratch=spaces) == expected
    assert used == [2, 2, 2]
    assert not np.isnan(spaces[0]).any()


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"num_splits": 0}, "num_splits=0; expected at least 1"),
        ({"scratch": [np.zeros((2, 2))]}, r"scratch\[0\] is not a contiguous array of one dimension"),
        ({"scratch": [[0.0]]}, r"scratch\[0\] is not a contiguous array"),
    ],
)
def test_bad_input(how, match):
    opt, table = SGD(0.1), ab.EmbeddingTable(np.zeros((3, 4)))
    with pytest.raises(ValueError, match=match):
        opt.update(table, ab.SparseRows([0], np.ones((1, 4)), 3), opt.init(table), **how)


def test_scratch_that_is_shared_is_refused():
    space, opt, table = np.zeros(4), SGD(0.1), ab.EmbeddingTable(np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"scratch\[1\] shares memory with another"):
        opt.update(table, ab.SparseRows([0], np.ones((1, 4)), 3), opt.init(table), scratch=[space, space])


def test_large_work_is_shared_out_and_small_is_not():
    with ab.options(threads=2):
        assert len(split_work(10, 1 << 20)) == 1
        assert len(split_work(10, 1 << 26)) == 2


@pytest.mark.parametrize("weighted", [None, False, True])
def test_s0_20_sums_that_stay_in_the_cache_change_nothing(weighted):
    """S0.20: ids named many times, their gradients as rows or as the cotangents of bags: one way to the bit."""
    table, ids = RANDOM.standard_normal((30, 5)), RANDOM.integers(0, 20, 200)
    if weighted is None:
        grad = ab.SparseRows(ids, RANDOM.standard_normal((200, 5)), 30)
    else:
        factors = RANDOM.random(200) if weighted else None
        bags = {"mode": "sum", "per_sample_weights": factors}
        ct = RANDOM.standard_normal((50, 5))
        loss = ab.grad(lambda t: (ab.embedding_bag(ids, t, np.arange(0, 200, 4), **bags) * ct).sum())
        grad = loss(ab.EmbeddingTable(table))
    found = []
    optimizers = [ab.optim.Adagrad(lr=0.1)] if weighted is not True else []  # each compiles a kernel for each gradient
    optimizers += [ab.optim.SGD(lr=0.1, clip_norm=0.5, clip_value=0.1)] if weighted is not False else []
    for cached in (steps_module._CACHED, 0):
        for optimizer in optimizers:
            params = {"t": ab.EmbeddingTable(table.copy())}
            with inspect.replaced(steps_module, _CACHED=cached):
                optimizer.update(params, {"t": grad}, optimizer.init(params))
            found.append(np.asarray(params["t"]))
    np.testing.assert_array_equal(found[: len(optimizers)], found[len(optimizers) :])
    assert not np.array_equal(found[0], table)
