"""The table of Python's methods and types against Python: what changes its object, and what cannot be changed."""

import collections
import itertools
import math
import operator
import types

import numpy as np
import pytest

from autobatch.facts import python_functions
from autobatch.facts.call_effects import _METHODS, _effect, effect_of, method_effect
from autobatch.facts.operators import ARITHMETIC, BINARY, COMPARISONS, UNARY
from autobatch.facts.types import CONTAINERS, IMMUTABLE

EXAMPLES = {
    list: lambda: [3, 1, 2],
    dict: lambda: {1: 3, 3: 1},
    set: lambda: {1, 2, 3},
    frozenset: lambda: frozenset({1, 2, 3}),
    tuple: lambda: (3, 1, 2),
    str: lambda: "b a",
    bytes: lambda: b"b a",
    bytearray: lambda: bytearray(b"b a"),
    int: lambda: 3,
    float: lambda: 0.5,
    complex: lambda: 1 + 2j,
    range: lambda: range(3),
    slice: lambda: slice(1, 3),
    collections.deque: lambda: collections.deque([3, 1, 2]),
    collections.OrderedDict: lambda: collections.OrderedDict({1: 3, 3: 1}),
    collections.defaultdict: lambda: collections.defaultdict(list, {1: 3, 3: 1}),
    collections.Counter: lambda: collections.Counter({1: 3, 3: 1}),
}
ARGUMENTS = [
    (), (1,), (3,), (9,), ([1, 9],), ({1, 9},), ({1: 9},), (0, 9), (1, 9), ("b",), (b"b",), ("b", "c"), (98,), (" ", 3),
]  # fmt: skip


def state(value):
    return repr(value)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_each_method_has_a_verdict(kind):
    names = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
    assert not [name for name in names if method_effect(kind, name) is None]


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_what_changes_its_object(kind):
    changing, seen = set(), set()
    for name in dir(kind):
        effect = method_effect(kind, name)
        if effect is None:
            continue
        if "self" in effect.writes:
            changing.add(name)
        for arguments in ARGUMENTS:
            value = EXAMPLES[kind]()
            before = state(value)
            try:
                getattr(value, name)(*arguments)
            except Exception:  # these arguments do not suit
                continue
            if state(value) != before:
                seen.add(name)
                assert name in changing, f"{name} changes a {kind.__name__}"
    assert changing == seen


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_what_is_immutable(kind):
    changes = any(
        "self" in effect.writes for each in kind.__mro__ for effect in map(_effect, _METHODS.get(each, {}).values())
    )
    assert (issubclass(kind, IMMUTABLE) or kind is tuple) != changes
    assert issubclass(kind, CONTAINERS) == changes


def test_what_functions_of_python_write():
    seen, stores = set(), [operator.setitem, operator.delitem, operator.iconcat]

    def check(function, *make):
        effect = effect_of(function)
        args = [each() for each in make]
        before = [state(arg) for arg in args]
        function(*args)
        changed = [place for place, (arg, was) in enumerate(zip(args, before, strict=True)) if state(arg) != was]
        written = [place for place, arg in enumerate(args) if any(arg is each for each in effect.written(args, {}))]
        assert set(changed) <= set(written), function
        seen.update([function] * bool(changed))

    def items():
        return [5, 3, 1]

    def values(each):
        return lambda: each

    for module in (python_functions.heapq, python_functions.bisect):
        for name in module.__all__ if hasattr(module, "__all__") else dir(module):
            effect = effect_of(getattr(module, name))
            if effect is None or name.startswith("_"):
                continue
            stores += [getattr(module, name)] * effect.always_writes
            for arguments in ((items,), (items, values(9)), (values(2), items)):
                try:
                    check(getattr(module, name), *arguments)
                except (TypeError, AttributeError):
                    continue
    check(operator.setitem, items, values(0), values(9))
    check(operator.delitem, items, values(0))
    check(operator.iconcat, items, items)
    check(setattr, types.SimpleNamespace, values("a"), values(1))
    check(sorted, items)
    check(list, items)
    assert seen == {*stores, setattr}


def test_each_public_function_of_the_tables_modules_has_a_verdict():
    for module in (operator, math, itertools, python_functions.heapq, python_functions.bisect, python_functions.cmath):
        names = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
        assert not [name for name in names if effect_of(getattr(module, name)) is None], module


def test_operators_are_what_python_does():
    for each in BINARY:
        if each.symbol != "@":
            a, b = np.array([7, 8]), np.array([2, 9])
            expected = eval(f"a {each.symbol} b", {"a": a, "b": b})
            assert np.array_equal(each.function(a, b), expected)
            assert np.array_equal(each.ufunc(a, b), expected)
            assert np.array_equal(getattr(a, each.method)(b), expected)
            assert np.array_equal(getattr(b, each.reflected)(a), expected)
    for each in ARITHMETIC:
        assert each.inplace.__name__.strip("_") == f"i{each.name}"
        assert hasattr(np.ndarray, each.inplace_method)
    assert {each.mirrored for each in COMPARISONS} == {each.name for each in COMPARISONS}
    for each in UNARY:
        assert each.ufunc(5) == each.function(5) == eval(f"{each.symbol}5")
