"""Large containers that examples share: no Python code runs for each item, and no batch among the items is missed."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.pytree import has_more_parts, leaves, leaves_of_kind
from tests import inspect
from tests.law import assert_same, ragged

MANY = 30_000
EXAMPLES = ragged(3, 0, 5, 4)


@dataclasses.dataclass
class Weights:
    name: str
    by_key: object


CONTAINERS = {
    "dict": {i: float(i) for i in range(MANY)},
    "list": [float(i) for i in range(MANY)],
    "tuple": tuple(range(MANY)),
    "of dicts": {7: {"a": dict.fromkeys(range(MANY), 1.0)}},
    "dataclass": {7: Weights("w", [2.5] * MANY)},
}


def scored(x, table):
    item = table[7]
    if isinstance(item, dict):
        item = item["a"][3]
    elif isinstance(item, Weights):
        item = item.by_key[1]
    return (x * 2.0).sum() + item


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "loop"])
@pytest.mark.parametrize("table", CONTAINERS.values(), ids=CONTAINERS)
def test_no_python_code_runs_for_each_item(table, way):
    batched, batch = ab.batch(scored), ab.MaskedBatch.from_examples(EXAMPLES)
    with ab.options(way=way):
        for call in (lambda: ab.examples(batched(batch, table)), lambda: ab.map(scored, EXAMPLES, table=table)):
            assert_same(call(), [scored(x, table) for x in EXAMPLES])
            assert inspect.python_calls(call) < MANY // 5  # what a first call sets up is among them


def test_no_python_code_runs_for_each_item_under_a_gradient():
    table, batch = CONTAINERS["dict"], ab.MaskedBatch.from_examples(EXAMPLES)
    batched = ab.batch(lambda w, x, table: (x * w).sum() + table[7])
    gradient = ab.grad(lambda w: ab.sum(batched(w, batch, table)))
    expected = sum(ab.grad(lambda w, x=x: (x * w).sum() + table[7])(1.5) for x in EXAMPLES)
    np.testing.assert_allclose(gradient(1.5), expected)
    assert inspect.python_calls(lambda: gradient(1.5)) < MANY // 10


@pytest.mark.chosen
def test_the_choice_of_the_way_runs_no_python_code_for_each_item():
    batched, batch = ab.batch(scored), ab.MaskedBatch.from_examples(EXAMPLES)
    for table in CONTAINERS.values():
        batched(batch, table)
        assert inspect.python_calls(lambda table=table: batched(batch, table)) < MANY // 10


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "loop"])
@pytest.mark.parametrize("where", ["value", "nested", "last of a list"])
def test_a_batch_among_many_numbers_is_found(where, way):
    batch = ab.MaskedBatch.from_examples(EXAMPLES)

    def made(x):
        numbers = {i: float(i) for i in range(MANY)}
        return {
            "value": {**numbers, "x": x},
            "nested": {**numbers, "x": Weights("w", [None, (1, {"x": x})])},
            "last of a list": [*numbers.values(), x],
        }[where]

    def total(table):
        found = table["x"] if isinstance(table, dict) else table[-1]
        return (found.by_key[1][1]["x"] if isinstance(found, Weights) else found).sum() + table[7]

    with ab.options(way=way):
        assert_same(ab.examples(ab.batch(total)(made(batch))), [total(made(x)) for x in EXAMPLES])


def test_a_container_that_changes_between_calls_is_read_anew():
    batched, batch = ab.batch(lambda x, table: x.sum() + table[3]), ab.MaskedBatch.from_examples(EXAMPLES)
    table = dict.fromkeys(range(MANY), 1.0)
    for value in (1.0, 2.0, batch, np.float32(3), 4):
        table[3] = value
        own = EXAMPLES if value is batch else [value] * len(EXAMPLES)
        assert_same(ab.examples(batched(batch, table)), [x.sum() + each for x, each in zip(EXAMPLES, own, strict=True)])


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "loop"])
def test_a_container_that_holds_itself_is_shared(way):
    table = {"a": 2.0}
    table["self"] = [table]
    batched, batch = ab.batch(lambda x, table: x.sum() + table["self"][0]["a"]), ab.MaskedBatch.from_examples(EXAMPLES)
    assert batched(EXAMPLES[0], table) == EXAMPLES[0].sum() + 2.0
    with ab.options(way=way):
        assert_same(ab.examples(batched(batch, table)), [x.sum() + 2.0 for x in EXAMPLES])


def test_leaves_of_a_kind_are_those_leaves():
    array, part = np.zeros(2), [1, True]
    tree = {"a": (1, [2.5, array]), "b": Weights("w", {"c": 3, "d": part}), "e": part, "f": np.int64(4)}
    for kinds in (int, (int, float), np.ndarray, (np.ndarray, str), complex):
        expected = [leaf for leaf in leaves({**tree, "e": 0}) if isinstance(leaf, kinds)]
        found = leaves_of_kind({**tree, "g": part, "e": 0}, kinds)
        assert list(map(id, found)) == list(map(id, expected))
    assert leaves_of_kind(array, np.ndarray)[0] is array
    assert has_more_parts(tree, 15)
    assert not has_more_parts(tree, 16)


def test_leaves_of_tuples_within_tuples():
    array = np.ones(2)
    plain, found = ((1, (2, 3)), [(4, [5.0])]), ((1, (2, array)), [(4, [5.0, array])])
    assert leaves_of_kind(({"a": array}, plain), np.ndarray) == [array]
    assert list(map(id, leaves_of_kind((plain, found), np.ndarray))) == [id(array)] * 2
    endless = [1, (2, 3)]
    endless += [endless, endless]
    assert leaves_of_kind(endless, np.ndarray) == []
    assert leaves_of_kind(endless, int) == [1, 2, 3]
