"""What a variable is connected to: gathering, sparse steps, saving and sending; columns of features; its whole life."""

import os
import pickle
import weakref
from ctypes import c_char

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError


def gradient(keys, dtype=np.float32):
    return ab.SparseRows(np.asarray(keys), np.arange(1.0, 1 + len(keys) * 3, dtype=dtype).reshape(-1, 3), None)


def test_it_is_gathered_from_stepped_saved_and_sent(tmp_path):
    """One variable through all of them, by what a table is used by everywhere else."""
    users = ab.EmbeddingVariable(3, seed=5)
    opt = ab.optim.Adagrad(lr=0.1)
    state = opt.init(users)
    keys = np.array([-(2**63), 7, 7, 2**63 - 1])
    before = users[keys]
    opt.update(users, gradient(keys), state)
    gathered = users[keys]
    assert (gathered < before).all()
    with ab.Checkpoints(tmp_path / "run") as saver:
        saver.save(1, users, state)
        restored = saver.restore()
    sent = pickle.loads(pickle.dumps(users))
    for other in (restored.params, sent):
        np.testing.assert_array_equal(other[keys], gathered)
        opt.update(other, gradient(keys), pickle.loads(pickle.dumps(state)) if other is sent else restored.state)
    opt.update(users, gradient(keys), state)
    np.testing.assert_array_equal(restored.params[keys], users[keys])
    np.testing.assert_array_equal(sent[keys], users[keys])


@pytest.mark.skipif(not hasattr(os, "writev"), reason="a system without vectors of buffers")
def test_rows_are_sent_from_where_they_lie():
    """{pointer, length} of each row goes to the system, which reads the rows themselves: no copy is made of them."""
    users = ab.EmbeddingVariable(3)
    users.insert(np.arange(1000))
    keys = np.array([999, 4, 4, 0])
    buffers = [(c_char * users.row_bytes).from_address(address) for address in users.row_addresses(keys).tolist()]
    users.assign([4], [[1, 2, 3]])  # after the addresses were taken
    out, into = os.pipe()
    try:
        assert os.writev(into, buffers) == len(keys) * users.row_bytes
        got = np.frombuffer(os.read(out, 4096), np.float32).reshape(-1, 3)
    finally:
        os.close(out)
        os.close(into)
    np.testing.assert_array_equal(got, users[keys])
    assert got[1].tolist() == [1, 2, 3]


WORDS = {"query": ["red", "shoes", "red"], "shop": ["anna"], "seen": []}
RECORDS = [WORDS, {"query": ["hat"], "shop": ["anna"], "seen": ["x", "y"]}, {"query": [], "shop": [""], "seen": ["x"]}]


def columns():
    return {name: ab.EmbeddingVariable(2, seed=place, name=name) for place, name in enumerate(WORDS)}


@ab.batch
def embedded(record, tables):
    """ONE record: the columns of strings, each embedded by its own table, beside each other."""
    return np.concatenate([tables[name][ab.hash_keys(record[name])].sum(0) for name in ("query", "shop", "seen")])


def test_a_column_of_strings_is_embedded_by_its_own_table():
    tables = columns()
    found = ab.map(embedded, RECORDS, tables=tables)
    assert np.shape(found) == (3, 6)
    np.testing.assert_array_equal(found[0][:2], tables["query"][ab.hash_keys(WORDS["query"])].sum(0))
    assert found[0][4:].tolist() == [0, 0]


def test_columns_are_trained_and_grow_with_what_they_see():
    tables, opt = columns(), ab.optim.SGD(lr=1.0)
    grads = ab.grad(lambda t: sum(row.sum() for row in ab.map(embedded, RECORDS, tables=t)))(tables)
    alone = ab.grad(lambda t: sum(embedded(record, t).sum() for record in RECORDS))(tables)
    for name in tables:
        for each in (grads, alone):
            ids, rows = each[name].coalesce().ids, each[name].coalesce().rows
            times = [sum(record[name].count(word) for record in RECORDS) for word in words_of(name)]
            order = np.argsort(ids)
            np.testing.assert_array_equal(ids[order], np.sort(ab.hash_keys(words_of(name))))
            expected = np.repeat(times, 2).reshape(-1, 2)[np.argsort(ab.hash_keys(words_of(name)))]
            np.testing.assert_array_equal(rows[order], expected)
    opt.update(tables, grads, opt.init(tables))
    assert {name: len(table) for name, table in tables.items()} == {"query": 3, "shop": 2, "seen": 2}


def words_of(name):
    return list(dict.fromkeys(word for record in RECORDS for word in record[name]))


def test_it_is_made_asked_for_its_shape_filled_gathered_from_and_let_go():
    users = ab.EmbeddingVariable(3, seed=1)
    assert users.shape == (0, 3)
    assert not users.contains([5, 6]).any()
    with pytest.raises(BadIdError, match="key 5 is not in the table"):
        users.row_addresses([5])
    first = users[[5, 6]]
    users.insert([5, 6])
    assert users.shape == (2, 3)
    assert users.contains([[5, 6]]).tolist() == [[True, True]]
    np.testing.assert_array_equal(users[[5, 6]], first)
    memory = weakref.ref(users._store._rows)
    del users
    assert memory() is None, "its memory goes with the last who names it"


def adagrad(w, g, lr):
    return w - lr * g / (np.abs(g) + 1e-10)


def adam(w, g, lr):
    return w - lr * g / (np.abs(g) + 1e-8)


def ftrl(w, g, lr):
    """From zero sums: McMahan et al., "Ad Click Prediction" (2013), without regularisation."""
    n, z = g * g, g - np.abs(g) / lr * w
    return -z / ((1.0 + np.sqrt(n)) / lr)


@pytest.mark.parametrize(("name", "formula"), [("Adagrad", adagrad), ("Adam", adam), ("FTRL", ftrl)])
def test_a_sparse_step_is_its_formula_on_the_rows_that_are_named(name, formula):
    users = ab.EmbeddingVariable(3, dtype=np.float64, seed=2)
    users.insert([1, 2, 3])
    before, opt = users[[1, 2, 3]], getattr(ab.optim, name)(0.1)
    grad = gradient([3, 1, 3], np.float64)
    opt.update(users, grad, opt.init(users))
    rows = grad.rows
    expected = [formula(before[0], rows[1], 0.1), before[1], formula(before[2], rows[0] + rows[2], 0.1)]
    np.testing.assert_allclose(users[[1, 2, 3]], expected, rtol=1e-12)
