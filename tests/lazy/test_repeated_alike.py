"""Repeated maps of examples that differ in little: the results of the loop each time."""

import copy
import copyreg
import dataclasses
import functools
import warnings

import numpy as np
import pytest

import autobatch as ab
from tests.lazy.repeated import again, check, params

made = []


class One:
    number = 1


class Three:
    number = 3


class Derived(One):
    table = np.arange(3)


def of_number(word, params):
    return params["emb"][word.number] * 2, word.number


def shows_number(word, params):
    return params["emb"][1] * 2, word.number


def test_the_bases_of_a_class_may_change():
    try:
        again(of_number, [Derived()], params=params())
        Derived.__bases__ = (Three,)
        check(of_number, [Derived()], params=params())
    finally:
        Derived.__bases__ = (One,)


@pytest.mark.parametrize("other", [True, 1.0])
def test_what_a_class_holds_may_be_replaced_by_what_is_equal(monkeypatch, other):
    again(shows_number, [Derived()], params=params())
    monkeypatch.setattr(One, "number", other)
    monkeypatch.setattr(Derived, "table", np.arange(3))
    check(shows_number, [Derived()], params=params())


def test_two_classes_of_one_name(monkeypatch):
    def new(value):
        class Word:
            number = value

        Word.__qualname__ = "Word"
        monkeypatch.setitem(globals(), "Word", Word)
        return Word()

    again(of_number, [new(1)], params=params())
    check(of_number, [new(3)], params=params())


@dataclasses.dataclass(eq=False)
class Settings:
    size: int = 2


def test_objects_that_equal_only_themselves():
    def f(word, params, first, second):
        return params["emb"][1] * (2 if word == first else 3 if first == second else 4)

    one, other = Settings(), Settings()
    for word, first, second in [*[(one, one, one)] * 3, (other, one, one), (other, one, other)]:
        check(f, [word], params=params(), first=first, second=second)


def test_nan_equals_only_itself():
    def f(numbers, params, shared):
        return params["emb"][1] * (2 if numbers[0] in numbers[1:] else 3) * (2 if shared[0] in shared[1:] else 3)

    one = float("nan")
    for numbers in [*[[one, one]] * 3, [one, float("nan")]]:
        check(f, [numbers], params=params(), shared=[1, 1])
        check(f, [[1, 1]], params=params(), shared=numbers)


def test_arrays_behind_a_plain_example():
    def f(given, params):
        return params["emb"][1] * (len(given[1]) if len(given) > 1 else 1)

    for _ in range(3):
        check(f, [(1,), (2, np.array([1], np.int64))], params=params())
    check(f, [(1,), (2, np.array([1, 0], np.int32))], params=params())

    def scaled(number, params):
        return params["emb"][1] * number

    for _ in range(3):
        check(scaled, [1, np.float32(2)], params=params())
    check(scaled, [1, np.float32(2).view(np.int32)], params=params())


class WithCallable:
    index = functools.partial(lambda made, word: made.append(word) or 1, made)


def calls_an_attribute(word, params):
    return params["emb"][word.index(2)] * 2


class Written:
    pass


exec(
    compile("def __eq__(self, other):\n    made.append(other)\n    return False", "<string>", "exec"),
    globals(),
    eq_of_written := {},
)
Written.__eq__ = eq_of_written["__eq__"]


def compares(word, params):
    return params["emb"][1] * (2 if word == 3 else 4)


class Matched:
    __match_args__ = ("number",)

    @property
    def number(self):
        made.append(1)
        return 1


class MatchedByNothing(Matched):
    __match_args__ = ()


def matches(word, params):
    match word:
        case Matched(number):
            return params["emb"][number] * 2


@pytest.mark.parametrize(
    ("f", "word"),
    [(calls_an_attribute, WithCallable()), (compares, Written()), (matches, MatchedByNothing())],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_code_of_a_class_runs_each_time(f, word):
    made.clear()
    for _ in range(4):
        ab.map(f, [word], params=params())
    assert len(made) == 4


class Registered:
    def __init__(self, number=1):
        self.number = number


def test_another_way_to_pickle_a_class(monkeypatch):
    monkeypatch.setitem(copyreg.dispatch_table, Registered, lambda word: (Registered, ()))
    again(of_number, [Registered(1)], params=params())
    check(of_number, [Registered(2)], params=params())


def test_arrays_that_lay_over_each_other():
    def f(x, y, params):
        return x @ params["w"] + y @ params["u"], y[1:] @ params["w"][1:]

    base, rng = np.arange(9.0), np.random.default_rng(0)
    for _ in range(3):
        check(f, [base[:4]], [base[2:6]], params=params())
    for _ in range(3):
        check(f, [rng.normal(size=4)], [rng.normal(size=4)], params=params())

    def asks(ids, params):
        return params["emb"][1] * (2 if np.shares_memory(ids[0], ids[1]) else 3)

    ids = np.arange(4)
    for _ in range(3):
        check(asks, [[ids[:3], ids[1:]]], params=params())
    check(asks, [copy.deepcopy([ids[:3], ids[1:]])], params=params())


def test_the_kind_of_an_array_of_integers():
    def f(ids, params):
        return params["emb"][1] * len(ids.dtype.metadata or ()), ids.dtype.char

    again(f, [np.array([1], "l")], params=params())
    check(f, [np.array([1], "q")], params=params())
    check(f, [np.array([1], np.dtype("l", metadata={"a": 1}))], params=params())


PAIR = (1, 2)


def test_a_tuple_of_constants_is_that_tuple():
    def f(word, params):
        return params["emb"][word] * 2, PAIR

    again(f, [1, 2], params=params())
    assert all(pair is PAIR for _, pair in ab.map(f, [1, 2], params=params()))


def test_warnings_of_what_is_computed_while_recording():
    def f(ids, params):
        return params["emb"][1] * int((ids / (ids - ids))[0] > 0)

    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            ab.map(f, [np.array([1, 2])], params=params())
        assert [each.category for each in caught] == [RuntimeWarning]


def of_word(word, params):
    return params["emb"][word] * 2
