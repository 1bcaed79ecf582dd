"""`ObjectBatch`: any Python object per example; whatever is done to it is done lane by lane."""

import collections
import pickle

import numpy as np
import pytest

from autobatch import MaskedBatch, options
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.stacking import lanes_of
from autobatch.errors import FallbackWarning, UnsupportedError
from tests.inspect import forget_warnings

Point = collections.namedtuple("Point", "x y")


def test_operators_are_pythons_own():
    assert (ObjectBatch(["a", [1]]) * 2).examples() == ["aa", [1, 1]]
    assert ("<" + ObjectBatch(["a", "b"])).examples() == ["<a", "<b"]
    assert (ObjectBatch([2**70, 1]) + 1).examples() == [2**70 + 1, 2]
    assert (ObjectBatch([None, 1]) == ObjectBatch([None, 2])).examples() == [True, False]
    assert (-ObjectBatch([1, 2.5])).examples() == [-1, -2.5]


def test_lanes_that_agree_again_are_padded_again():
    out = ObjectBatch([2**70, 3]) - ObjectBatch([2**70, 1])
    assert isinstance(out, MaskedBatch)
    assert out.examples() == [0, 2]


def test_attributes_calls_and_items():
    points = ObjectBatch([Point(1, "a"), {"x": 0}])
    assert ObjectBatch([Point(1, 2), Point(3, 4)]).x.examples() == [1, 3]
    assert ObjectBatch(["a", "bc"]).upper().examples() == ["A", "BC"]
    assert points[ObjectBatch([0, "x"])].examples() == [1, 0]
    assert ObjectBatch([len, str])([1, 2]).examples() == [2, "[1, 2]"]
    with pytest.raises(AttributeError, match="'int' object has no attribute 'x'") as caught:
        _ = ObjectBatch([Point(1, 2), 3]).x
    assert caught.value.__notes__ == ["raised for example 1"]


def test_writes_reach_the_objects():
    lists = [[1], [2, 3]]
    batch = ObjectBatch(lists)
    batch[0] = MaskedBatch([10.0, 20.0])
    assert lists == [[10.0], [20.0, 3]]
    batch.append(5)
    assert lists == [[10.0, 5], [20.0, 3, 5]]
    batch += [7]
    assert lists == [[10.0, 5, 7], [20.0, 3, 5, 7]]
    assert batch.examples()[0] is lists[0]


def test_arrays_of_different_rank_warn_and_are_right():
    arrays = [np.arange(3.0), np.ones((2, 2))]
    forget_warnings()
    with pytest.warns(FallbackWarning, match="the examples differ in structure, rank or dtype"):
        total = np.sum(ObjectBatch(arrays))
    assert total.examples() == [x.sum() for x in arrays]
    with options(warn=False):
        for got in (ObjectBatch(arrays) * MaskedBatch([2.0, 3.0]), MaskedBatch([2.0, 3.0]) * ObjectBatch(arrays)):
            for x, y in zip(lanes_of(got, 2), [arrays[0] * 2, arrays[1] * 3], strict=True):
                np.testing.assert_array_equal(x, y, strict=True)
        joined = np.concatenate([MaskedBatch([[1.0], [2.0]]), ObjectBatch([np.zeros(1), np.zeros(2, np.float32)])])
        assert [x.tolist() for x in joined.examples()] == [[1, 0], [2, 0, 0]]
    with options(strict=True), pytest.raises(UnsupportedError, match="strict=True allows no loop"):
        np.exp(ObjectBatch(arrays))


def test_what_no_single_value_can_say_is_refused():
    batch = ObjectBatch([1, "a"])
    for act, match in [
        (len, r"write \.batch_size"),
        (iter, r"\.examples\(\) lists the examples"),
        (hash, "not hashable"),
        (np.asarray, "is not an array"),
    ]:
        with pytest.raises(UnsupportedError, match=match):
            act(batch)
    for values in ([[], [1]], ["a", [1]]):
        with pytest.raises(UnsupportedError, match=r"bool\(\) of a batch, which holds 2 examples"):
            bool(ObjectBatch(values))


def test_pickling_and_repr():
    batch = pickle.loads(pickle.dumps(ObjectBatch([1, "a", None, 2.0])))
    assert batch.examples() == [1, "a", None, 2.0]
    assert repr(batch) == "ObjectBatch([1, 'a', None, ...], batch_size=4)"
    assert ObjectBatch([]).examples() == []


@pytest.mark.parametrize(
    ("other", "start"), [(np.float32(2), r"np.float32\(0.0\)"), (np.ones(2), r"np.zeros\(\(2,\), np.float64\)")]
)
def test_where_a_python_number_is_the_reason_it_is_said_what_to_start_from(other, start):
    mixed = ObjectBatch([other, 0.0])
    forget_warnings()
    with pytest.warns(FallbackWarning, match=f"0.0, a Python float, and {other.dtype}; start from {start}"):
        np.exp(mixed)
