"""`ab.collate` of Python's own data and of NumPy's: what is a record, what is an example, what is refused and how."""

import collections
import dataclasses
import datetime
import enum
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, OptionError, ShapeError, StructureError, UnsupportedError
from tests.law import assert_same


@dataclasses.dataclass
class Sentence:
    words: list
    score: float


Pair = collections.namedtuple("Pair", "words score")


ROWS = [np.array([1, 2, 3]), np.array([], np.int64), np.array([4])]


@pytest.mark.filterwarnings("ignore:ab.collate got strings")
@pytest.mark.parametrize(
    ("data", "kind", "expected"),
    [
        ([[1, 2, 3], [], [4]], ab.PackedBatch, ROWS),
        ([(1, 2, 3), (), (4,)], ab.PackedBatch, ROWS),
        (ROWS, ab.PackedBatch, ROWS),
        ([np.array([1, 2, 3]), np.array([]), [4]], ab.PackedBatch, ROWS),
        (np.array([*ROWS, None], object)[:3], ab.PackedBatch, ROWS),
        ((x for x in [[1, 2, 3], [], [4]]), ab.PackedBatch, ROWS),
        ([[1, 2], [3, 4]], ab.MaskedBatch, [np.array([1, 2]), np.array([3, 4])]),
        ([[[1, 2], [3, 4]], [[5, 6]]], ab.PackedBatch, [np.array([[1, 2], [3, 4]]), np.array([[5, 6]])]),
        ([np.zeros((2, 2)), np.ones((3, 3))], ab.MaskedBatch, [np.zeros((2, 2)), np.ones((3, 3))]),
        ([[[1, 2], [3]], [], [[4]]], ab.PackedBatch, [[np.array([1, 2]), np.array([3])], [], [np.array([4])]]),
        ([[np.zeros(2), np.ones(1)], [np.zeros(1)]], ab.PackedBatch, [[np.zeros(2), np.ones(1)], [np.zeros(1)]]),
        (np.arange(6).reshape(3, 2), ab.MaskedBatch, list(np.arange(6).reshape(3, 2))),
        (np.arange(3), ab.MaskedBatch, [np.int64(0), np.int64(1), np.int64(2)]),
        ([np.float32(1), np.float32(2)], ab.MaskedBatch, [np.float32(1), np.float32(2)]),
        ([1, 2, 3], ab.MaskedBatch, [1, 2, 3]),
        ([True, False], ab.MaskedBatch, [True, False]),
        (range(3), ab.MaskedBatch, [0, 1, 2]),
        ([[], []], ab.MaskedBatch, [np.zeros(0), np.zeros(0)]),
        ([[2**63], [1 + 2**63, 2**63]], ab.PackedBatch, [np.array([2**63]), np.array([1 + 2**63, 2**63])]),
        (["a", "b"], None, ["a", "b"]),
        ([["a"], ["b", "c"]], None, [["a"], ["b", "c"]]),
        ([2**70, 1], None, [2**70, 1]),
    ],
)
def test_examples_come_back(data, kind, expected):
    found = ab.collate(data)
    assert kind is None or type(found) is kind
    assert_same(found.examples(), expected)


def test_records_are_trees_of_batches():
    words, other = np.array([1, 2]), np.array([3])
    for make in (Sentence, Pair, lambda w, s: {"words": w, "score": s}, lambda w, s: (w, s)):
        batch = ab.collate([make([1, 2], 0.5), make([3], 1.0)])
        assert type(batch) is type(make([], 0.0))
        assert_same(ab.examples(batch), [make(words, 0.5), make(other, 1.0)])


def test_records_in_lists_are_lists_of_each_field():
    data = [[{"id": 1, "at": 0.5}], [], [{"id": 2, "at": 1.5}, {"id": 3, "at": 2.5}]]
    batch = ab.collate(data)
    assert_same(batch["id"].examples(), [np.array([1]), np.zeros(0, np.int64), np.array([2, 3])])
    assert_same(batch["at"].examples(), [np.array([0.5]), np.zeros(0), np.array([1.5, 2.5])])
    assert batch["id"].offsets is batch["at"].offsets


def test_mappings_that_are_no_dicts_are_dicts_of_their_fields():
    """Such as a UserDict or a data set of xarray's, which are not made from their fields alone."""
    rows = [{"x": np.array([1, 2]), "y": 3}, {"x": np.array([4]), "y": 5}]
    for kind in (collections.UserDict, types.MappingProxyType, collections.ChainMap, collections.OrderedDict):
        assert_same(ab.examples(ab.collate(list(map(kind, rows)))), rows)
        nested = ab.collate([(kind({"inner": kind(row)}), 1) for row in rows])
        assert_same(ab.examples(nested), [({"inner": row}, 1) for row in rows])


def test_a_dict_or_tuple_holds_columns():
    columns = {"words": [[1, 2], [3]], "label": np.array([0.0, 1.0])}
    batch = ab.collate(columns)
    assert_same(batch["words"].examples(), [np.array([1, 2]), np.array([3])])
    assert_same(batch["label"].examples(), [np.float64(0), np.float64(1)])
    assert type(ab.collate((columns["words"], columns["label"]))) is tuple
    assert_same(ab.collate({"words": batch["words"], "label": [0.0, 1.0]})["label"].examples(), [0.0, 1.0])


def test_structured_arrays_are_records():
    data = np.array([(1, 2.5), (3, 4.5)], [("id", np.int32), ("at", np.float64)])
    expected = [{"id": np.int32(1), "at": np.float64(2.5)}, {"id": np.int32(3), "at": np.float64(4.5)}]
    assert_same(ab.examples(ab.collate(data)), expected)


def test_an_array_is_not_copied():
    data = np.zeros((5, 3))
    assert ab.collate(data).data is data


def test_batches_come_back():
    batch = ab.collate([[1, 2], [3]])
    assert ab.collate(batch) is batch
    assert ab.collate(ab.Examples(batch)) is batch


class Numbers(list):
    """A list of a class of its own, as configuration readers have."""


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


DAY = datetime.date(2020, 1, 1)
OBJECTS = [
    [Level.LOW, Level.HIGH],
    [2**70, 1],
    [[2**70], [1, 2]],
    [[2**63], [1]],
    [[DAY], [DAY, DAY], []],
    [[DAY], [DAY]],
    [[["a"], ["b"]], [["c"]]],
    [[["a"]], [["c"]]],
    [[Level.LOW], [Level.HIGH, Level.LOW]],
    list(np.array(["a", "bb"])),
    [list(np.array(["a", "bb"])), []],
    ["a", np.str_("b")],
    [np.bytes_(b"a")],
    [[{1}], [{2}]],
]


@pytest.mark.filterwarnings("ignore:ab.collate got strings")
@pytest.mark.parametrize("examples", OBJECTS, ids=str)
def test_what_no_array_holds_is_a_batch_of_objects(examples):
    found = ab.collate(examples).examples()
    assert found == examples
    assert [type(x) for x in found] == [type(x) for x in examples]


@pytest.mark.parametrize("examples", [[[1], [1, 2]], [[1, 2], [3, 4]], [[[1], [2, 3]], [[4]]]], ids=str)
def test_lists_of_any_class_are_lists(examples):
    def own(x):
        return Numbers(map(own, x)) if isinstance(x, list) else x

    assert_same(ab.collate(own(examples)).examples(), ab.collate(examples).examples())


@pytest.mark.parametrize("door", [ab.MaskedBatch.from_examples, ab.PackedBatch.from_examples])
def test_from_examples_is_that_door(door):
    assert_same(door(x for x in ([1, 2], [3])).examples(), [np.array([1, 2]), np.array([3])])
    assert_same(door(ab.collate([[1, 2], [3]])).examples(), [np.array([1, 2]), np.array([3])])
    with pytest.raises(UnsupportedError, match=r"ab\.collate gives a tree of batches"):
        door({"words": [[1], [2, 3]]})


def test_dims_are_those_that_are_asked_for():
    assert ab.MaskedBatch.from_examples(np.zeros((2, 3)), dims=[True]).dims == (True,)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ShapeError, "no examples"),
        ("abc", UnsupportedError, r"got str"),
        (5, UnsupportedError, r"got int"),
        (np.array(5), ShapeError, "without dimensions"),
        ([[1], [2.5, 1.0]], DTypeError, "example 1 is float64, example 0 is int64"),
        (
            [np.int8(1), np.int32(2)],
            DTypeError,
            r"example 1 is int32, .*\[np\.asarray\(x, 'int32'\) for x in examples\]",
        ),
        ([Level.LOW, 1], StructureError, "example 1 has int, example 0 Level"),
        ({"a": np.array(5)}, ShapeError, r"without dimensions at \['a'\]"),
        ([{"a": [1]}, {"a": [0.5]}], DTypeError, r"example 1 at \['a'\] is float64"),
        ([{"a": np.zeros(2)}, {"a": np.zeros((2, 2))}], ShapeError, r"example 1 at \['a'\] has 2 dimensions"),
        ([{"a": 1}, {"a": 1, "b": 2}], StructureError, "example 1 and example 0 differ in the keys 'b'"),
        ([{"a": {"b": [1]}}, {"a": {"b": ["x"]}}], StructureError, r"example 1 has str at \['a'\]\['b'\]"),
        ([[1], {"a": 1}], StructureError, "example 1 has dict, example 0 list"),
        ([{"a": 1}, [1]], StructureError, "example 1 has list, example 0 dict"),
        ([(1, 2), (1, "a", 2)], StructureError, "example 1 is a tuple of 3, example 0 of 2"),
        ([ab.PackedBatch([1], [0, 1])], UnsupportedError, r"ab\.concat makes one batch"),
        ({"a": [1], "b": [1, 2]}, ShapeError, "column 'b' has 2 examples, column 'a' 1"),
        ({}, StructureError, "without fields"),
        (np.ma.masked_array([1, 2], [0, 1]), UnsupportedError, r"x\.filled\(value\)"),
        ([np.array(["a"]), np.array(["b"])], DTypeError, "a batch of arrays holds numbers"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(data, error, message):
    with pytest.raises(error, match=message):
        ab.collate(data)


MISSING = [[1, 2], None, [None, 5]]


def test_missing_values_ask_for_a_policy():
    with pytest.raises(ShapeError, match=r"example 1 has a missing value; .*nulls='drop'.*nulls=0"):
        ab.collate(MISSING)
    with pytest.raises(ShapeError, match=r"example 2 has a missing value at \['x'\]\[\.\.\.\]"):
        ab.collate({"x": [[1], [2], [3, None]]})
    with pytest.raises(OptionError, match="nulls='zero'"):
        ab.collate([[1]], nulls="zero")


def test_missing_values_are_dropped_or_stood_for():
    assert_same(ab.collate(MISSING, nulls="drop").examples(), [np.array([1, 2]), np.array([5])])
    assert_same(ab.collate(MISSING, nulls=0).examples(), [np.array([1, 2]), np.zeros(0, np.int64), np.array([0, 5])])
    assert_same(ab.collate([1.5, None], nulls=-1).examples(), [1.5, -1.0])
    empty = np.zeros(0, np.int64)
    assert_same(ab.collate([[1, 2], [3, 4], None], nulls=0).examples(), [np.array([1, 2]), np.array([3, 4]), empty])
    assert_same(ab.collate([np.ones((2, 3)), None], nulls=0).examples(), [np.ones((2, 3)), np.zeros((0, 3))])
    with pytest.raises(DTypeError, match="nulls=nan is not a value of int64"):
        ab.collate(MISSING, nulls=np.nan)
    with pytest.raises(DTypeError, match="the missing value is not"):
        ab.collate(["a", None], nulls=0)


def test_a_dropped_example_is_dropped_with_all_of_its_columns():
    data = {"words": [[1], None, [2]], "label": [1.0, 2.0, None], "name": ["a", "b", "c"]}
    found = ab.examples(ab.collate(data, nulls="drop"))
    assert_same(found, [{"words": np.array([1]), "label": 1.0, "name": "a"}])
