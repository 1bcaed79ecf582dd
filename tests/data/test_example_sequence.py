"""`ab.Examples`, `ab.concat` and `.example(i)`: batches as sequences of examples, and one after the other."""

import copy
import math
import pickle

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, ShapeError, StructureError, UnsupportedError
from tests.law import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:ab.collate got strings")

ARRAYS = [np.arange(n, dtype=np.float32) for n in (3, 0, 2, 5, 1)]
FORMS = {
    "packed": lambda: ab.PackedBatch.from_examples(ARRAYS),
    "padded": lambda: ab.MaskedBatch(np.full((5, 9), np.nan, np.float32), [3, 0, 2, 5, 1]),
    "stack": lambda: ab.collate(np.arange(20).reshape(5, 4)),
    "numbers": lambda: ab.collate([1, 2, 3, 4, 5]),
    "nested": lambda: ab.collate([[[1, 2], [3]], [], [[4]], [[], []], [[5]]]),
    "strings": lambda: ab.collate(list("abcde")),
    "tree": lambda: {"x": ab.PackedBatch.from_examples(ARRAYS), "y": ab.collate([0.5] * 5)},
    "shared": lambda: (ab.collate([1, 2, 3, 4, 5]), "same for all"),
}
INDICES = [
    slice(None), slice(1, 4), slice(None, None, -1), slice(4, 1), [3, 0, 0], [-1, -5], [], np.array([2, 4], np.uint8),
    np.array([True, False, True, False, False]), [False] * 5,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_of_examples(form):
    batch = FORMS[form]()
    rows = ab.examples(batch)
    found = ab.Examples(batch)
    assert len(found) == 5
    assert found.shape == (5,)
    assert_same(list(found), rows)
    assert_same([found[i] for i in range(5)], rows)
    assert_same(found[-2], rows[-2])
    assert_same(found[np.int32(1)], rows[1])
    for index in INDICES:
        numbers = np.arange(5)[index if isinstance(index, slice) or len(index) else np.zeros(0, int)]
        fewer = found[index]
        assert type(fewer) is ab.Examples
        assert_same(list(fewer), [rows[i] for i in numbers])


@pytest.mark.parametrize("index", [5, -6, [0, 5], [-6]])
def test_an_example_that_is_not_there(index):
    with pytest.raises(IndexError, match=r"no example -?\d: there are 5"):
        ab.Examples(FORMS["packed"]())[index]


@pytest.mark.parametrize("index", ["a", 1.5, [1.5], [[1]], None])
def test_what_is_no_index(index):
    with pytest.raises(UnsupportedError, match="expected the number of an example"):
        ab.Examples(FORMS["packed"]())[index]


def test_a_mask_is_as_long_as_the_batch():
    with pytest.raises(ShapeError, match="a mask of 2 for 5 examples"):
        ab.Examples(FORMS["packed"]())[[True, False]]


def test_fewer_examples_do_not_keep_the_rest():
    for form in ("packed", "padded", "stack"):
        batch = FORMS[form]()
        fewer = ab.Examples(batch)[1:3].batch
        held = batch.values if form == "packed" else batch.data
        assert not np.shares_memory(np.asarray(fewer.values if form == "packed" else fewer.data), np.asarray(held))


def test_batches_that_share_lengths_share_them_afterwards():
    words = ab.PackedBatch.from_examples(ARRAYS)
    fewer = ab.Examples({"x": words, "y": words * 2})[[3, 1]].batch
    assert fewer["x"].offsets is fewer["y"].offsets


def test_any_data_has_examples():
    assert_same(list(ab.Examples([[1, 2], [3]])), [np.array([1, 2]), np.array([3])])
    assert ab.Examples(ab.Examples([[1], [2, 3]]))[1].tolist() == [2, 3]


def test_examples_are_what_map_takes():
    xs = ab.Examples(FORMS["packed"]())
    assert_same(ab.map(lambda x: x.sum(), xs), [x.sum() for x in ARRAYS])


def test_copies_and_pickles():
    for form in FORMS:
        found = ab.Examples(FORMS[form]())
        for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
            assert_same(list(other), list(found))


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("tree", "shared")])
def test_one_example(form):
    batch = FORMS[form]()
    assert_same([batch.example(i) for i in range(-5, 5)], batch.examples() * 2)
    with pytest.raises(IndexError, match="no example 5: there are 5"):
        batch.example(5)


@pytest.mark.parametrize("form", ["packed", "padded", "stack"])
def test_an_index_of_a_batch_is_one_of_each_example(form):
    with pytest.raises(IndexError, match="out of bounds") as caught:
        FORMS[form]()[8]
    (note,) = caught.value.__notes__
    assert note == "indices and axes of a batch are each example's: axis=-1 is its last, x.example(i) is one"
    with pytest.raises(IndexError, match="out of bounds") as caught:
        ab.batch(lambda x: x[8])(FORMS[form]())
    assert not any("x.example" in note for note in getattr(caught.value, "__notes__", ()))


# concat


@pytest.mark.parametrize("form", FORMS)
def test_concat_is_one_list_after_the_other(form):
    batch = FORMS[form]()
    parts = [ab.Examples(batch)[a:b] for a, b in ((0, 2), (2, 2), (2, 3), (3, 5))]
    for given in (parts, [part.batch for part in parts]):
        assert_same(ab.examples(ab.concat(given)), ab.examples(batch))
    assert_same(ab.examples(ab.concat([batch])), ab.examples(batch))


def test_concat_of_forms():
    static, packed, padded = (
        ab.collate(np.ones((2, 3))),
        ab.collate([[1.0], [2.0, 3.0]]),
        ab.MaskedBatch([[4.0, 9]], [1]),
    )
    for order in ([static, packed, padded], [padded, static], [packed, static], [static, padded, packed]):
        assert_same(ab.concat(order).examples(), [x for batch in order for x in batch.examples()])
    assert type(ab.concat([static, padded])) is ab.MaskedBatch
    assert type(ab.concat([static, packed])) is ab.PackedBatch
    square = ab.collate([np.ones((1, 1)), np.ones((2, 2))])
    rows = ab.collate([np.ones((1, 3)), np.ones((2, 3))])
    assert_same(ab.concat([square, rows]).examples(), square.examples() + rows.examples())
    assert_same(ab.concat([static, ab.collate(np.zeros((0, 3)))]).examples(), static.examples())


def test_concat_carries_gradients():
    def loss(x, y):
        both = ab.concat([ab.PackedBatch(x, [0, 2]), ab.MaskedBatch(y, [1])])
        return ab.sum(both * both)

    x, y = np.array([1.0, 2.0]), np.array([[3.0, 9.0]])
    assert_same(ab.grad(loss, argnums=(0, 1))(x, y), (2 * x, np.array([[6.0, 0.0]])))


@pytest.mark.parametrize("shared", [math.nan, np.float32(math.nan), np.array([math.nan, 1])], ids=str)
def test_equal_shared_values_are_one(shared):
    x = ab.collate([[1, 2], [3]])
    found = ab.concat([(x, shared), (x, copy.copy(shared))])
    assert_same(found[1], shared)
    assert found[0].batch_size == 4


def test_what_concat_refuses():
    x = ab.collate([[1, 2], [3]])
    with pytest.raises(ShapeError, match="no batches"):
        ab.concat([])
    with pytest.raises(UnsupportedError, match=r"ab\.concat\(\[a, b\]\)"):
        ab.concat(x)
    with pytest.raises(DTypeError, match="batch 1 has examples of float64, batch 0 of int64"):
        ab.concat([x, x * 1.0])
    with pytest.raises(DTypeError, match=r"batch 1 has examples of int64 at \['a'\], batch 0 of int32"):
        ab.concat([{"a": ab.collate(np.int32([1]))}, {"a": ab.collate(np.array([1]))}])
    with pytest.raises(ShapeError, match="batch 1 has examples of 0 dimensions"):
        ab.concat([x, ab.collate(np.arange(2))])
    with pytest.raises(
        StructureError, match=r"batch 1 is \{'b': \[\*, \*\]\}; expected the structure of batch 0, \{'a': \*\}"
    ):
        ab.concat([{"a": x}, {"b": [x, x]}])
    with pytest.raises(StructureError, match="a different shared value"):
        ab.concat([(x, 1), (x, 2)])
    with pytest.raises(UnsupportedError, match="got no batch"):
        ab.concat([[1], [2]])
