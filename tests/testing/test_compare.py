"""`compare` sees every kind of difference, and only differences."""

import collections
import dataclasses
import types

import numpy as np
import pytest

from autobatch import EmbeddingTable
from autobatch.testing import assert_equivalent
from autobatch.testing.compare import compare, largest_error
from autobatch.testing.compared_ways import ReferenceLoop
from autobatch.testing.equivalence import Reference, check_equivalence

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class State:
    h: np.ndarray
    step: int


class Plain:
    def __init__(self, value):
        self.value = value


SAME = [
    (np.float32([1, np.nan, np.inf]), np.float32([1, np.nan, np.inf])),
    (np.float32([1.0]), np.float32([1.0 + 1e-6])),
    (np.float64([1e8, 0.0]), np.float64([1e8, 1e-3])),  # 0 beside 1e8 is what cancelled
    (np.float16(0.5), np.asarray(np.float16(0.5))),
    (np.array(["a"]), np.array(["a"])),
    (np.array(["NaT"], "M8[s]"), np.array(["NaT"], "M8[s]")),
    (1.0, 1.0 + 1e-14),
    (np.float64([0.0, -0.0]), np.float64([-0.0, 0.0])),
    (complex(1, 2), complex(1, 2)),
    (None, None),
    ("a", "a"),
    (Point(1, [2]), Point(1, [2])),
    (State(np.ones(2), 3), State(np.ones(2), 3)),
    (Plain(np.ones(2)), Plain(np.ones(2))),
    (object(), object()),
    (EmbeddingTable(np.ones((2, 1))), EmbeddingTable(np.ones((2, 1)))),
    ({1, 2}, {2, 1}),
    (np.array([1, None], object), np.array([1, None], object)),
    (np.zeros((0, 3)), np.zeros((0, 3))),
]

DIFFERENT = [
    (np.float32([1, 2]), np.float32([1, 2.5]), "value", "result[1]"),
    (np.float32([1, np.nan]), np.float32([1, 2]), "value", "result[1]"),
    (np.float32([np.inf]), np.float32([-np.inf]), "value", "result[0]"),
    (np.float64([1.0]), np.float64([1.0 + 1e-6]), "value", "result[0]"),
    (np.int64([[1, 2], [3, 4]]), np.int64([[1, 2], [0, 4]]), "value", "result[1, 0]"),
    (np.int64(2**60), np.int64(2**60 + 1), "value", "result"),
    (np.array([True]), np.array([False]), "value", "result[0]"),
    (np.zeros(2, np.float32), np.zeros(2, np.float64), "dtype", "result"),
    (np.zeros(2), np.zeros((2, 1)), "shape", "result"),
    (np.zeros((0, 3)), np.zeros((0, 2)), "shape", "result"),
    (1, np.int64(1), "type", "result"),
    (np.float64(1), 1.0, "type", "result"),
    (1, True, "type", "result"),
    (1, 1.0, "type", "result"),
    (None, 0, "type", "result"),
    ("a", "b", "value", "result"),
    ([1, 2], (1, 2), "structure", "result"),
    ([1, 2], [1], "structure", "result"),
    ((1, 2), Point(1, 2), "structure", "result"),
    (Point(1, 2), Point(1, 3), "value", "result.y"),
    ({"a": 1, "b": 2}, {"a": 1}, "structure", "result"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "structure", "result"),
    ({"a": [1, 2]}, {"a": [1, 3]}, "value", "result['a'][1]"),
    (State(np.ones(2), 3), State(np.ones(2), 4), "value", "result.step"),
    (State(np.ones(2), 3), None, "structure", "result"),
    (Plain(1), Plain(2), "value", "result"),
    (EmbeddingTable(np.ones((2, 1))), EmbeddingTable(np.zeros((2, 1))), "value", "result[0, 0]"),
    (np.array([1, None], object), np.array([1, 2], object), "type", "result[1]"),
    (np.ones(2), [1.0, 1.0], "structure", "result"),
    (np.array(["NaT"], "M8[s]"), np.array([0], "M8[s]"), "value", "result[0]"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_equal(left, right):
    assert compare(left, right) == []
    assert compare(right, left) == []


@pytest.mark.parametrize(("expected", "actual", "what", "path"), DIFFERENT)
def test_different(expected, actual, what, path):
    (difference,) = compare(expected, actual)
    assert (difference.what, difference.path) == (what, path)
    assert compare(actual, expected)


def test_every_leaf_that_differs_is_named():
    found = compare({"a": np.ones(2), "b": (1, "x")}, {"a": np.zeros(2), "b": (1, "y")}, "out")
    assert [difference.path for difference in found] == ["out['a'][0]", "out['b'][1]"]


def test_a_message_has_both_values_and_how_many_differ():
    (difference,) = compare(np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 6.0]))
    assert "5.0" in str(difference)
    assert "expected np.float64(2.0)" in str(difference)
    assert "1 more of 3" in str(difference)


def test_long_values_are_cut_short():
    (difference,) = compare(list(range(1000)), None)
    assert len(str(difference)) < 200


def test_largest_error_is_relative_to_the_largest_value_and_skips_what_is_no_float():
    assert largest_error(("a", 3, np.array([100.0, 1.0])), ("a", 4, np.array([100.0, 2.0]))) == pytest.approx(0.01)
    assert largest_error(np.array([np.nan]), np.array([1.0])) == 0.0


def test_a_float_is_no_more_precise_than_the_coarsest_that_went_in():
    exact = np.array([1.0, 2.0])
    assert compare(exact, exact * (1 + 1e-7))
    assert compare(exact, exact * (1 + 1e-7), precision=4) == []
    assert compare({"x": [1.0]}, {"x": [1.0 + 1e-7]})
    assert compare({"x": [1.0]}, {"x": [1.0 + 1e-7]}, precision=4) == []
    assert compare(exact, exact * 1.01, precision=4)
    assert compare(np.float32(exact), np.float32(exact * 1.001), precision=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_that_are_promoted_afterwards_may_be_in_another_order(dtype):
    class Rounded(ReferenceLoop):
        def call(self, f, args, shared):
            return [np.float64(y * (1 + 1e-8)) for y in super().call(f, args, shared)]

    def promoted(x, w):
        return x @ x / np.sqrt(3) + w

    def check():
        check_equivalence(promoted, [[np.ones(5, dtype)]], {"w": np.float64(2)}, ways=[Rounded()], grad=False)

    if dtype is np.float32:
        check()
    else:
        with pytest.raises(AssertionError, match="value is"):
            check()


def test_the_sign_of_a_zero_that_numpy_takes_by_its_place_is_no_difference():
    signs = [np.array([0.0, -0.0] * n) for n in (1, 2, 5)]
    assert_equivalent(lambda x, y: (np.fmax(x, y), np.fmin(y, x), np.nanmax(x)), signs, [-x for x in signs])


def test_the_arrays_of_a_model_say_how_precisely_results_are_compared():
    """A mean of float32 rows differs by its order of additions, also where the result is float64."""
    model = types.SimpleNamespace(rows=np.ones((4, 3), np.float32))
    reference = Reference(lambda ids, model: np.append(model.rows[ids].mean(0), 1.0), [([1, 2],)], {"model": model})
    assert reference.precision == 4
