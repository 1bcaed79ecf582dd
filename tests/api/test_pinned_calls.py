"""`way=` and `strict=` at the decorator and in `ab.map`: for that function, and for that call."""

import copy
import functools
import pickle
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import UnsupportedError
from tests.law import assert_same

WAYS = ["loop", "lockstep", "fly", "compiled", "auto"]
XS = [np.arange(3.0), np.arange(1.0), np.arange(5.0)]


def drawn(xs):
    total = np.float64(0)
    for x in xs:
        total = total + x * x
    return total


def seen(xs):
    """Whether this runs on a plain array: by the loop."""
    return type(xs) is np.ndarray and ab.config.way == "loop"


@ab.batch(way="loop")
def in_the_loop(xs):
    return seen(xs)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_loops_results(way):
    expected = [drawn(x) for x in XS]
    decorated = ab.batch(drawn, way=way)
    assert_same(ab.map(drawn, XS, way=way), expected)
    assert_same(ab.map(decorated, XS), expected)
    assert_same(decorated(ab.MaskedBatch.from_examples(XS)).examples(), expected)
    assert_same(decorated(XS[0]), expected[0])


def test_a_way_is_pinned_for_the_call_only():
    assert ab.map(seen, XS, way="loop") == [True] * 3
    assert ab.map(in_the_loop, XS) == [True] * 3
    assert in_the_loop(ab.collate(XS)).examples() == [True] * 3
    assert ab.map(lambda x: ab.config.way, [1, 2], way="fly") == ["fly", "fly"]
    assert ab.config.way != "loop"
    assert ab.map(in_the_loop, XS, way="fly") == [False] * 3  # what the call says goes before the decorator


def test_methods_copies_and_pickles_keep_it():
    class Model:
        @ab.batch(way="loop")
        def method(self, xs):
            return seen(xs)

    assert Model().method(ab.collate(XS)).examples() == [True] * 3
    for each in (copy.copy(in_the_loop), copy.deepcopy(in_the_loop), pickle.loads(pickle.dumps(in_the_loop))):
        assert each.way == "loop"


def test_strict_in_a_map():
    def prints(x):
        return sorted({float(x[0]): 1}, key=lambda key: ab.config.strict)

    assert ab.map(lambda x: ab.config.strict, [1.0], strict=True) == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ab.map(prints, [np.ones(1)], strict=False) == [[1.0]]


@pytest.mark.parametrize("name", ["way", "strict"])
def test_a_parameter_of_that_name_is_given_by_partial(name):
    function = {"way": lambda x, way=0: x + way, "strict": lambda x, strict=0: x + strict}[name]
    with pytest.raises(UnsupportedError, match=rf"{name}= is an option of ab.map, .*functools.partial\(f, {name}=3\)"):
        ab.map(function, [1.0, 2.0], **{name: 3})
    assert ab.map(functools.partial(function, **{name: 3}), [1.0, 2.0]) == [4.0, 5.0]
    assert ab.map(function, [1.0, 2.0]) == [1.0, 2.0]


@pytest.mark.parametrize("call", [lambda: ab.batch(way="fast"), lambda: ab.map(abs, [1], way="fast")])
def test_a_mode_that_does_not_exist(call):
    with pytest.raises(UnsupportedError, match="way='fast'; expected one of auto, loop, lockstep, fly, compiled"):
        call()
