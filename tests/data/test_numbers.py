"""A number that is Python's stays Python's through every door of data, and each example's keeps its own type."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.batches.objects import ObjectBatch
from autobatch.errors import ShapeError
from tests.data.number_doors import DOORS, WAYS, W, compare, outcome, same
from tests.law import assert_same

KINDS = [
    [2, 0], [True, False], [0.5, -0.0], [1j, 2 + 1j], [10**30, 3], [2**63, 1], [1, 2.0], [True, 2], [1j, 2.0],
    [2, np.int64(3)], [np.int64(3), 2], [1.0, np.float32(0.1)],
]  # fmt: skip

ONE_LINE = {
    "7 // n": lambda n, w: 7 // n,
    "10 ** 30": lambda n, w: n * 10**30,
    "n + n": lambda n, w: n + n,
    "n / 0": lambda n, w: n / 0,
    "n * w": lambda n, w: n * w,
    "w ** n": lambda n, w: w**n,
    "-n": lambda n, w: -n,
    "~n": lambda n, w: ~n,
    "type": lambda n, w: type(n).__name__,
    "isinstance": lambda n, w: isinstance(n, int),
    "str": lambda n, w: str(n),
    "array": lambda n, w: np.array([n, 1]),
    "if": lambda n, w: 1 if n else 2.0,
    "n": lambda n, w: n,
}


@pytest.mark.parametrize("door", DOORS)
def test_the_examples_of_a_door_are_those_that_came_in(door):
    for xs in KINDS:
        assert same(DOORS[door](xs).examples(), xs), xs
        assert same([DOORS[door](xs).example(i) for i in range(len(xs))], xs), xs


@pytest.mark.parametrize("name", ONE_LINE)
def test_one_line_functions_see_pythons_numbers(name):
    f = ONE_LINE[name]
    for xs in KINDS[:10]:
        expected = outcome(lambda xs=xs: [f(x, W) for x in xs])
        for way in ("batch in lock-step", "batch on the fly", "map on the fly"):
            found = outcome(lambda xs=xs, way=way: WAYS[way](f, xs, "from_examples"))
            assert same(found, expected), (way, xs)


def test_numbers_of_one_type_are_one_array():
    batch = ab.MaskedBatch.from_examples([2, 0])
    assert (batch.scalar, batch.shape, batch.dims) == (int, (), ())
    assert_same(batch.data, np.array([2, 0]))
    assert_same(batch.mask, np.array([True, True]))
    assert isinstance(ab.MaskedBatch.from_examples([1, 2.0]), ObjectBatch)


def test_numpys_numbers_stay_numpys():
    for xs in (np.int64([2, 0]), list(np.float32([2, 0])), [np.array(2), np.array(0)]):
        batch = ab.MaskedBatch.from_examples(xs)
        assert batch.scalar is None
        assert_same(batch.examples(), [np.asarray(x)[()] for x in xs])


def test_a_number_has_no_dimension_to_vary():
    with pytest.raises(ShapeError, match=r"dims=\(True,\); expected 0 bools"):
        ab.MaskedBatch.from_examples([1, 2], dims=(True,))
    for numbers in ([1, 2], iter([1, 2]), range(2)):
        with pytest.raises(ShapeError, match=r"no dimensions|dims=\(\)"):
            ab.PackedBatch.from_examples(numbers)


def test_labels_and_ids_of_python_are_class_ids_and_table_rows():
    labels, logits = [2, 0, 1], np.float32([[1, 2, 3], [0, 1, 0], [5, 5, 5]])
    table = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    batch = ab.MaskedBatch.from_examples(labels)
    loss = ab.batch(ab.nn.cross_entropy)(ab.MaskedBatch(logits), batch)
    assert_same(loss.examples(), [ab.nn.cross_entropy(x, y) for x, y in zip(logits, labels, strict=True)])
    for rows in (table, ab.EmbeddingTable(table)):
        assert_same(ab.batch(lambda i, rows: rows[i])(batch, rows).examples(), [table[i] for i in labels])


def test_numbers_of_several_types_join_to_objects():
    joined = ab.concat([ab.collate([1, 2]), ab.collate(np.float32([3])), ab.collate([True])])
    assert same(joined.examples(), [1, 2, np.float32(3), True])


def test_a_users_batched_function_is_given_pythons_numbers():
    seen = []

    def batched(batch):
        seen.extend(map(type, batch.examples()))
        return [7 // n for n in batch.examples()]

    ab.testing.assert_same(lambda n: 7 // n, batched, [2, 3], layout="batch")
    assert set(seen) == {int}


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_functions_of_random_numbers(first):
    for seed in range(first, first + 25):
        compare(seed)


OBJECTS = {
    "a NumPy number beside a large one": lambda n, w: np.array([n, np.int64(3)]),
    "an element beside a large one": lambda n, w: np.array([w[0] * n, 10**30]),
    "an element beside None": lambda n, w: np.asarray([w[0] * n, None]),
    "numbers of each other's class": lambda n, w: np.subtract((w[0], 10**30), w @ w * n),
    "given as objects": lambda n, w: np.array([w[0] * n, 1], dtype=object),
    "a dict": lambda n, w: [np.real({"a": n}), np.asarray({"a": n}), np.ravel({"a": n})],
    "compared with a complex number": lambda n, w: (n != 1j, n != 1j, n == 1j),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_arrays_of_objects_hold_the_objects_of_the_loop(name):
    for xs in ([2, 0, 10**30], [3, 4, 5], [1.5, np.float64(1.0), 2.0], [2, np.int64(3), True]):
        expected = outcome(lambda xs=xs: [OBJECTS[name](x, W) for x in xs])
        for way, run in WAYS.items():
            if way != "compiled text":
                found = outcome(lambda run=run, xs=xs: run(OBJECTS[name], xs, "from_examples"))
                assert same(found, expected), f"{way}: {found}, expected {expected}"
