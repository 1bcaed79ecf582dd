"""Rows of a table that each example names any number of: a reduction of them is one bag launch, whatever the table."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning
from tests import inspect
from tests.law import batch_of, equals_loop

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(9, 4)).astype(np.float32)
IDS = [np.array(ids, np.int64) for ids in ([3, 3, 0], [8], [1, 7, 2, 5], [6, 6])]
WITH_EMPTY = [*IDS, np.array([], np.int64)]


@pytest.fixture
def launches():
    with inspect.bags() as modes:
        yield modes


def total(ids, table):
    return table[ids].sum(0)


def average(ids, table):
    return table[ids].mean(axis=0)


def largest(ids, table):
    return np.max(table[ids], axis=0)


def smallest(ids, table):
    return table[ids].min(0)


MODES = {total: "sum", average: "mean", largest: "max", smallest: "min"}


@pytest.mark.parametrize("kind", [np.asarray, ab.EmbeddingTable])
@pytest.mark.parametrize("f", MODES)
def test_packed_ids_are_reduced_in_one_launch(f, kind, launches):
    table = kind(TABLE)
    results = ab.batch(f, strict=True)(ab.PackedBatch.from_examples(IDS), table).examples()
    assert launches == [MODES[f]]
    for result, ids in zip(results, IDS, strict=True):
        wanted = f(ids, TABLE)
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.parametrize("ids", [IDS, WITH_EMPTY])
def test_a_plain_array_is_a_table_too(ids, launches):
    results = ab.batch(total, strict=True)(ab.PackedBatch.from_examples(ids), TABLE).examples()
    assert launches == ["sum"]
    for result, own in zip(results, ids, strict=True):
        np.testing.assert_allclose(result, total(own, TABLE), rtol=1e-6)


@pytest.mark.parametrize("kind", [np.asarray, ab.EmbeddingTable])
@pytest.mark.parametrize("f", MODES)
def test_gradients(f, kind):
    ab.testing.assert_equivalent(f, IDS, grad=True, table=kind(TABLE.copy()))


def test_what_numpy_says_of_no_rows_is_said(launches):
    batch = ab.PackedBatch.from_examples(WITH_EMPTY)
    with pytest.raises(ValueError, match="zero-size array to reduction"):
        ab.batch(largest)(batch, TABLE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = ab.batch(average)(batch, TABLE).examples()
    assert np.isnan(results[-1]).all()
    assert any("Mean of empty slice" in str(each.message) for each in caught)
    assert not launches


def test_rows_that_are_used_otherwise_are_looked_up(launches):
    def f(ids, table):
        rows = table[ids]
        return rows * 2, rows.sum(0), rows.sum(), len(rows), rows.shape

    batch = ab.batch(f, strict=True)(ab.PackedBatch.from_examples(WITH_EMPTY), TABLE)
    for result, ids in zip(ab.examples(batch), WITH_EMPTY, strict=True):
        for a, b in zip(result[:3], f(ids, TABLE)[:3], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        assert result[3:] == f(ids, TABLE)[3:]
    assert not launches  # they are there by then


def test_ids_that_count_from_the_end_of_an_array():
    ids = [np.array([-1, 0]), np.array([2, -9, 4])]
    for batch in (ab.PackedBatch, ab.MaskedBatch):
        results = ab.batch(total, strict=True)(batch.from_examples(ids), TABLE).examples()
        for result, own in zip(results, ids, strict=True):
            np.testing.assert_allclose(result, total(own, TABLE), rtol=1e-6)


def test_an_id_that_is_not_in_an_array_raises_what_numpy_raises():
    ids = [np.array([1, 2]), np.array([3, 9])]
    for batch in (ab.PackedBatch, ab.MaskedBatch):
        with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 9") as caught:
            ab.batch(total)(batch.from_examples(ids), TABLE)
        assert caught.value.__notes__ == ["raised for example 1"]


def test_a_table_that_changes_between_look_up_and_reduction():
    def f(ids):
        table = np.arange(18.0).reshape(9, 2).copy()
        rows = table[ids]
        table[3] = 100.0
        view = table[:]
        more = view[ids]
        table[8] = -5.0
        return rows.sum(0), more.sum(0), table[ids].sum(0)

    for batch in (ab.PackedBatch, ab.MaskedBatch):
        results = ab.examples(ab.batch(f)(batch.from_examples(IDS)))
        for result, ids in zip(results, IDS, strict=True):
            np.testing.assert_array_equal(result, f(ids))


def test_one_argument_that_is_table_and_target_runs_as_the_loop():
    def f(ids, table):
        rows = table[ids]
        table[0] += 1
        return rows.sum(0)

    tables = TABLE.copy(), TABLE.copy()
    with pytest.warns(FallbackWarning, match="an update in place of a ndarray"):
        results = ab.batch(f)(ab.PackedBatch.from_examples(IDS), tables[0]).examples()
    for result, ids in zip(results, IDS, strict=True):
        np.testing.assert_allclose(result, f(ids, tables[1]), rtol=1e-6)
    np.testing.assert_array_equal(tables[0], tables[1])


def test_no_examples_and_one():
    for ids in ([], IDS[:1]):
        packed = ab.PackedBatch.from_lengths(np.concatenate([np.zeros(0, np.int64), *ids]), [len(x) for x in ids])
        results = ab.batch(total, strict=True)(packed, TABLE).examples()
        assert len(results) == len(ids)
        for result, own in zip(results, ids, strict=True):
            np.testing.assert_allclose(result, total(own, TABLE), rtol=1e-6)


def test_tables_that_differ_by_example_have_rows_from_0_to_their_own_last():
    tables = [np.arange(2.0 * n).reshape(n, 2) + 10 * n for n in (3, 1, 4)]
    ids = [np.array([0, 2, 0]), np.array([0]), np.array([3, 0, 1, 3])]
    equals_loop(lambda table, x: ab.lookup(table, x) * 2.0, tables, ids)
    for wrong in ([0, 1], [-1, 0]):
        with pytest.raises(IndexError, match=f"id {max(wrong, key=abs)}.*") as error:
            ab.batch(ab.lookup)(batch_of(tables), batch_of([ids[0], np.array(wrong), ids[2]]))
        assert "example 1" in "".join(error.value.__notes__)
