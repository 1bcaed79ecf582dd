"""What reads its arguments gets an example's values; what only keeps or passes on takes recorded arrays."""

import collections
import copy
import functools
import itertools
import json
import operator
import pickle
import random
import struct
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning
from tests.api.opaque_callees import CALLEES, SCOPE, VALUES, compare, differences, examples, function_of, write
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, map_equals_loop

XS = [np.array([1.5, -2.0, 3.0]), np.array([0.5, 4.0, 1.0]), np.array([2.0, 2.0, 0.0])]


def check(callees, values):
    columns, shared = examples(0)
    text = write(list(itertools.product(callees, values)))
    with function_of(text, "callees", SCOPE) as f, warnings.catch_warnings(action="ignore"):
        assert differences(f, columns, shared, ["fly"]) == {}


@pytest.mark.parametrize("first", range(0, len(CALLEES), 40))
def test_the_library_of_python_sees_what_it_sees_in_the_loop(first):
    check(CALLEES[first : first + 40], ["x.mean() * 2", "x", '{"s": x[0]}'])


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
def test_each_callee_of_each_value(value):
    check(CALLEES, [value])


@pytest.mark.fuzz
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 200, 20))])
def test_random_programs_of_callees(first):
    for seed in range(first, first + 20):
        compare(seed)


class Kept:
    def __init__(self, value):
        self.kind = type(value)


def named(value, of=type):
    return of(value).__name__


def classes(x):
    m, alias = x.mean(), type
    return [
        *map(type, [x, m]), functools.partial(type, m)(), named(m), alias(x), {type(m): 1}, sorted([m], key=type),
        x.__class__, m.__class__, next(itertools.groupby([x], type))[0], Kept(m).kind, (lambda t=type: t(m))(),
        max([m], key=named), list(map(named, x * 2)), operator.attrgetter("__class__")(m),
    ]  # fmt: skip


def test_type_as_a_value_gives_the_class_of_the_loop():
    map_equals_loop(classes, XS)
    for f in (type, functools.partial(type), named):
        assert ab.map(f, XS) == loop(f, XS)


def test_arrays_in_other_than_c_order_are_recorded_by_calls_in_their_forms():
    def f(x):
        return type(x).__name__, json.dumps(x.sum()), x.T.reshape(-1)

    assert_same(ab.map(f, [np.ones((3, 2)).T, np.zeros((2, 2))]), loop(f, [np.ones((3, 2)).T, np.zeros((2, 2))]))


def stored(x, log):
    m, kept = x.mean() * 2, {}
    items = [m]
    items.append(x)
    items.extend((m, x))
    kept.setdefault("m", m)
    kept.update(x=x * 2)
    add = functools.partial(operator.add, m)
    several = dict(zip("ab", (m, x), strict=True)) | collections.OrderedDict(c=m)
    total = sum(items[:1]) + functools.reduce(operator.mul, [m, m]) + max([m], key=lambda v: 1)
    checks = isinstance(m, float), isinstance(x, collections.abc.Sized), hasattr(m, "__len__"), callable(x), type(m)
    log.append(m)
    return items, kept, add(1.0), several, total, list(enumerate(items)), copy.copy(m), checks, collections.deque([x])


def test_what_keeps_or_passes_on_its_arguments_waits_for_nothing():
    logs = [], []
    results, stats = map_with_stats(stored, XS, log=logs[0])
    assert_same(results, loop(stored, XS, log=logs[1]))
    assert_same(*logs)
    assert (stats.forced, stats.fallbacks, stats.rounds) == ({}, {}, 1)


def test_a_function_that_keeps_its_results_gets_values():
    @functools.lru_cache
    def kept(value):
        return type(value).__name__, value.hex()

    results, stats = map_with_stats(lambda x: kept(x.sum()), XS)
    assert results == [("float64", float(x.sum()).hex()) for x in XS]
    assert stats.looped is None


def test_a_reader_waits_once_for_all_that_it_gets():
    def f(x):
        return json.dumps({"a": [x.mean(), {"b": x.sum()}], "c": (x[0], x.std())})

    results, stats = map_with_stats(f, XS)
    assert results == loop(f, XS)
    assert sum(stats.forced.values()) == len(XS)


def test_containers_stay_what_they_are_and_keep_what_a_reader_changes():
    def f(x):
        items = [x * 2, x.sum(), {"m": x.mean()}]
        other = items
        copied = pickle.loads(pickle.dumps(items))
        random.Random(3).shuffle(items)
        return items, other is items, copied, [type(each).__name__ for each in items]

    found = ab.map(f, XS)
    assert_same(found, loop(f, XS))


def test_a_reader_that_writes_into_memory_writes_into_the_array():
    def f(x):
        try:
            struct.pack_into("d", x, 8, 7.0)
        except (TypeError, struct.error) as error:
            return type(error).__name__
        return x.copy()

    found, expected = copy.deepcopy(XS), copy.deepcopy(XS)
    with warnings.catch_warnings(action="ignore"):
        assert_same(ab.map(f, found), loop(f, expected))
    assert_same(found, expected)


def test_bins_that_all_examples_share_are_known():
    edges, quantiles = np.array([-3.0, 0.0, 2.0, 5.0]), np.array([0.25, 0.5])
    places, counts = np.array([0, 2]), np.array([2, 1])

    def f(x, bins, q, at, reps):
        counts = np.histogram(x, bins=bins)
        return *counts, np.quantile(x, q), np.delete(x, at), np.tile(x, reps), np.pad(x, at)

    shared = {"bins": edges, "q": quantiles, "at": places, "reps": counts}
    results, stats = map_with_stats(f, XS, **shared)
    assert_same(results, loop(f, XS, **shared))
    assert (stats.fallbacks, stats.looped) == ({}, None)


class Number:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return type(self.value + other).__name__


def test_a_method_that_python_calls_sees_classes_in_the_loop():
    def f(x):
        return Number(x.mean()) + 1

    with pytest.warns(FallbackWarning, match="asks for a class"):
        assert ab.map(f, XS) == ["float64"] * 3
