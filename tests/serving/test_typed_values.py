"""What a request is read as, and the words for what it is not."""

import contextlib
import dataclasses
import functools
import re
import sys
import typing
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.core.current_region import with_deadline
from autobatch.errors import OverTime
from autobatch.serving.typed_values import BadValueError, Reading, check_levels, schema_of
from tests.law import assert_same
from tests.serving import fuzz
from tests.serving.models import Tree


def read(annotation, value, levels=100):
    check_levels(value, levels)
    return Reading().read(value, schema_of(annotation))


class Pair(NamedTuple):
    left: int
    right: float = 0.5


class Query(TypedDict):
    words: list[int]
    weight: typing.NotRequired[float]


@dataclasses.dataclass
class Bounded:
    size: int

    def __post_init__(self):
        if self.size < 0:
            raise ValueError("a size is at least 0")


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (float, 0.5, 0.5),
        (bool, True, True),
        (str, "a", "a"),
        (None, None, None),
        (np.ndarray, [1, 2], np.array([1, 2])),
        (np.ndarray, [[1, 2.5], [3, 4]], np.array([[1, 2.5], [3, 4]])),
        (np.ndarray, 3, np.array(3)),
        (np.ndarray, [], np.array([])),
        (np.ndarray, [True], np.array([True])),
        (npt.NDArray[np.float32], [1, 2], np.array([1, 2], np.float32)),
        (npt.NDArray[np.int64], [], np.array([], np.int64)),
        (npt.NDArray[np.int64], [[], []], np.zeros((2, 0), np.int64)),
        (npt.NDArray[np.uint8], [255], np.array([255], np.uint8)),
        (npt.NDArray[np.float32], np.ones(2, np.float32), np.ones(2, np.float32)),
        (np.float32, 0.1, np.float32(0.1)),
        (list[int], [1, 2], [1, 2]),
        (list[np.ndarray], [[1], [2, 3]], [np.array([1]), np.array([2, 3])]),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (int | None, None, None),
        (typing.Optional[int], 3, 3),  # noqa: UP045
        (int | str, "a", "a"),
        (Literal["a", 3], 3, 3),
        (Pair, {"left": 1}, Pair(1, 0.5)),
        (Query, {"words": [1]}, {"words": [1]}),
        (typing.Annotated[int, []], 3, 3),
        (Any, {"a": [1, "b", None, {"c": 0.5}]}, {"a": [1, "b", None, {"c": 0.5}]}),
        (object, [1, [2]], [1, [2]]),
    ],
)
def test_values_are_read_as_annotated(annotation, value, expected):
    assert_same(read(annotation, value), expected)


def test_records_may_hold_themselves():
    tree = read(Tree, {"word": 1, "children": [{"word": 2}, {"word": 3, "children": [{"word": 4}]}]})
    assert type(tree) is Tree
    assert tree.children[1].children[0].word == 4


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, 2.5, "$: expected int, got float"),
        (int, True, "$: expected int, got bool"),
        (float, "a", "$: expected float, got str"),
        (float, 10**400, "$: expected another value, got this: Number out of range"),
        (str, None, "$: expected str, got null"),
        (np.ndarray, [1, "a"], "$[1]: expected a number, got the string 'a'"),
        (np.ndarray, [[1], [2, 3]], "$[1]: expected a list of 1, got a list of 2"),
        (np.ndarray, [[1], 2], "$[1]: expected a list of 1, got 2"),
        (np.ndarray, [True, 1], "$: expected numbers, or truth values, got both"),
        (np.ndarray, [2**63], "$: expected numbers of int64 or float64, got a number outside its range"),
        (np.ndarray, [1, 2**80], "$: expected numbers of int64 or float64, got a number outside its range"),
        (np.ndarray, [float("inf")], "$: expected numbers of int64 or float64, got a number outside its range"),
        (np.ndarray, {}, "$: expected a number, got an object with nothing"),
        (npt.NDArray[np.int64], [1, 2.0], "$[1]: expected a whole number, got 2.0"),
        (npt.NDArray[np.uint8], [256], "$: expected numbers of uint8, got a number outside its range"),
        (npt.NDArray[np.float32], [1e300], "$: expected numbers of float32, got a number outside its range"),
        (npt.NDArray[np.bool_], [1], "$[0]: expected true or false, got 1"),
        (npt.NDArray[np.float32], np.ones(2), "$: expected an array of float32, got one of float64"),
        (np.ndarray, np.array(["a"]), "$: expected an array of numbers, got one of <U1"),
        (np.float32, [1], "$: expected a number (float32), got a list of 1"),
        (list[int], {"a": 1}, "$: expected array, got object"),
        (list[list[int]], [[1], [2, "x"]], "$[1][1]: expected int, got str"),
        (tuple[int, int], [1], "$: expected array of length 2, got 1"),
        (dict[str, int], {"a": None}, "$[...]: expected int, got null"),
        (int | str, 2.5, "$: expected int | str, got float"),
        (int | list[int], [1, "a"], "$[1]: expected int, got str"),
        (Literal["a", 3], 4, "$: expected one of 'a', 3, got 4"),
        (Tree, {"children": []}, "$.word: expected a value, as Tree has, got nothing"),
        (Tree, {"word": 1, "child": []}, "$.child: expected one of word, children, got another name"),
        (Tree, {"word": 1, "children": [{"word": "a"}]}, "$.children[0].word: expected int, got str"),
        (Bounded, {"size": -1}, "$: expected what Bounded takes, got a size is at least 0"),
        (Any, [[[[[1]]]]], "$: expected at most 4 levels, got more"),
        (Tree, {"word": 1, "children": [{"word": 1, "children": [[]]}]}, "$: expected at most 4 levels"),
    ],
)
def test_what_does_not_fit_is_named(annotation, value, said):
    with pytest.raises(BadValueError, match="^" + re.escape(said)):
        read(annotation, value, 4)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
ANNOTATIONS = [int, float, np.ndarray, npt.NDArray[np.int8], list[float], Tree, Pair, Query, int | None, Any]


@settings(deadline=None)
@given(TREES, st.sampled_from(ANNOTATIONS))
def test_any_value_is_read_or_named(value, annotation):
    with contextlib.suppress(BadValueError):
        found = read(annotation, value, 6)
        assert annotation is not Any or found is value


def test_more_levels_than_an_array_has_dimensions_are_named():
    value: Any = 1
    for _ in range(70):
        value = [value]
    with pytest.raises(BadValueError, match=r"^\$: expected at most 64 levels of lists, for an array, got more$"):
        read(np.ndarray, value)


@dataclasses.dataclass
class Plus:
    left: "Plus | Minus | int"
    right: "Plus | Minus | int"
    op: Literal["+"]


@dataclasses.dataclass
class Minus:
    left: "Plus | Minus | int"
    right: "Plus | Minus | int"
    op: Literal["-"]


@dataclasses.dataclass
class Named:
    inner: "Named | Numbered | None" = None
    name: str = ""


@dataclasses.dataclass
class Numbered:
    inner: "Named | Numbered | None" = None
    name: int = 0


def test_a_union_of_records_is_read_by_their_tags():
    leaf = {"left": 1, "right": 2, "op": "-"}
    assert read(Plus | Minus, {"left": leaf, "right": 3, "op": "+"}) == Plus(Minus(1, 2, "-"), 3, "+")
    with pytest.raises(BadValueError, match=r"^\$\.left\.left: expected"):
        read(Plus | Minus, {"left": {**leaf, "left": "x"}, "right": 3, "op": "+"})
    with pytest.raises(BadValueError, match=r"^\$\.op: expected one of '\+', got the string '\*'"):
        read(Plus | Minus, {**leaf, "op": "*"})


def test_a_union_of_records_without_tags_is_the_first_that_suits():
    assert read(Named | Numbered, {"inner": {"name": 3}, "name": "a"}) == Named(Numbered(None, 3), "a")
    assert read(Named | Numbered, {"inner": {"inner": {}}}) == Named(Named(Named()))
    assert read(list[int] | list[str], ["a"]) == ["a"]
    assert_same(read(np.ndarray | str | None, [1, 2]), np.array([1, 2]))


def calls_of(work):
    """How many functions were called, of Python or C."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        with contextlib.suppress(BadValueError):
            work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("annotation", "last"),
    [
        (Plus | Minus, {"left": 1, "right": 2, "op": "-"}),
        (Plus | Minus, {"left": 1, "right": "x", "op": "-"}),
        (Named | Numbered, {"name": 1}),
        (Named | Numbered, {"name": None}),
    ],
)
def test_a_union_is_read_in_linear_time(annotation, last):
    def nested(depth):
        value = last
        for _ in range(depth):
            value = {"inner": value} if "name" in last else {"left": value, "right": 1, "op": "-"}
        return value

    few, many = (calls_of(functools.partial(read, annotation, nested(depth))) for depth in (4, 16))
    assert many < 5 * few


def test_a_clients_texts_are_shortened():
    for annotation, value in ((Tree, {"x" * 10_000: 1}), (Literal["a"], "x" * 10_000), (np.ndarray, ["x" * 10_000])):
        with pytest.raises(BadValueError, match=r"^.{1,400}$"):
            read(annotation, value)


def test_a_budget_of_processor_time_ends_the_reading():
    with with_deadline(0.0), pytest.raises(OverTime, match=r"^$"):
        Reading().read({"word": 1}, schema_of(Tree))


@pytest.mark.fuzz
def test_crafted_bodies():
    assert fuzz.FUZZERS["request bodies"](range(40)).startswith("40 without a difference")
