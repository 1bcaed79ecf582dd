"""What a request is read as, and the words for what it is not."""

import contextlib
import dataclasses
import re
import typing
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.serving.typed_values import BadValueError, reader
from tests.law import assert_same
from tests.serving.models import Tree


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
    assert_same(reader(annotation)(value, 10), expected)


def test_records_may_hold_themselves():
    tree = reader(Tree)({"word": 1, "children": [{"word": 2}, {"word": 3, "children": [{"word": 4}]}]}, 10)
    assert type(tree) is Tree
    assert tree.children[1].children[0].word == 4


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, 2.5, "$: expected a whole number, got 2.5"),
        (int, True, "$: expected a whole number, got true"),
        (float, "a", "$: expected a number, got the string 'a'"),
        (float, 10**400, "$: expected a number of float64, got a number of 1329 bits"),
        (str, None, "$: expected a string, got null"),
        (np.ndarray, [1, "a"], "$[1]: expected a number, got the string 'a'"),
        (np.ndarray, [[1], [2, 3]], "$[1]: expected numbers of shape (1,), as at $[0], got shape (2,)"),
        (np.ndarray, [[1], 2], "$[1]: expected numbers of shape (1,), as at $[0], got shape ()"),
        (np.ndarray, [True, 1], "$: expected numbers, or truth values, got both"),
        (np.ndarray, [2**63], "$: expected numbers of int64 or float64, got a number that it does not hold"),
        (np.ndarray, [1, 2**80], "$: expected numbers of int64 or float64, got a number that it does not hold"),
        (np.ndarray, [float("inf")], "$: expected numbers of float64, got a number that it does not hold"),
        (np.ndarray, {}, "$: expected a number or a list of numbers, got an object with nothing"),
        (npt.NDArray[np.int64], [1, 2.0], "$[1]: expected a whole number, got 2.0"),
        (npt.NDArray[np.uint8], [256], "$: expected numbers of uint8, got a number that it does not hold"),
        (npt.NDArray[np.float32], [1e300], "$: expected numbers of float32, got a number that it does not hold"),
        (npt.NDArray[np.bool_], [1], "$[0]: expected true or false, got 1"),
        (npt.NDArray[np.float32], np.ones(2), "$: expected an array of float32, got one of float64"),
        (np.ndarray, np.array(["a"]), "$: expected an array of numbers, got one of <U1"),
        (np.float32, [1], "$: expected a number (float32), got a list of 1"),
        (list[int], {"a": 1}, "$: expected a list, got an object with 'a'"),
        (list[list[int]], [[1], [2, "x"]], "$[1][1]: expected a whole number, got the string 'x'"),
        (tuple[int, int], [1], "$: expected a list of 2, got one of 1"),
        (dict[str, int], {"a": None}, "$.a: expected a whole number, got null"),
        (int | str, 2.5, "$: expected int or str, got 2.5"),
        (int | list[int], [1, "a"], "$[1]: expected a whole number, got the string 'a'"),
        (Literal["a", 3], 4, "$: expected one of 'a', 3, got 4"),
        (Tree, {"children": []}, "$.word: expected a value, as Tree has, got nothing"),
        (Tree, {"word": 1, "child": []}, "$.child: expected one of word, children, got the name 'child'"),
        (Tree, {"word": 1, "children": [{"word": "a"}]}, "$.children[0].word: expected a whole number, got the string"),
        (Bounded, {"size": -1}, "$: expected what Bounded takes, got a size is at least 0"),
        (Any, [0, [1e999]], "$[1][0]: expected a number of float64, got inf"),
        (Any, [1e999], "$[0]: expected a number of float64, got inf"),
        (Any, [[[[[1]]]]], "$[0][0][0]: expected at most 3 levels, got more"),
        (np.ndarray, [[[[[1]]]]], "$[0][0][0]: expected at most 3 levels, got more"),
        (Tree, {"word": 1, "children": [{"word": 1, "children": []}]}, "$.children[0].children: expected at most 3"),
    ],
)
def test_what_does_not_fit_is_named(annotation, value, said):
    with pytest.raises(BadValueError, match="^" + re.escape(said)):
        reader(annotation)(value, 3)


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
        found = reader(annotation)(value, 6)
        assert annotation is not Any or found is value


def test_more_levels_than_an_array_has_dimensions_are_named():
    value: Any = 1
    for _ in range(70):
        value = [value]
    with pytest.raises(BadValueError, match=r"^\$: expected lists of fewer levels, for an array, got 70$"):
        reader(np.ndarray)(value, 100)
