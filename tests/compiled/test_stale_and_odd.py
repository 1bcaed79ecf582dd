"""What compiled code took for granted when it was written is checked at each call; odd numbers are Python's."""

import collections
import dataclasses
import enum
import functools
import math
import sys
import typing

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import compiled_map
from autobatch.errors import Unsupported
from tests.compiled.interpreted import each_as_text
from tests.compiled.law import outcome, same, wait_until_compiled

NUMBERS = np.array([1.0, 2.0, 3.0])


@dataclasses.dataclass(frozen=True)
class Scaled:
    value: float
    by: int

    def product(self):
        return self.value * self.by


def by_method(v):
    total = 0.0
    for i in range(3):
        total += Scaled(v, i).product()
    return total


def scaled(v, *, by=2.0):
    return v * by


def by_default(v):
    return scaled(v) + 1.0


def by_builtin(v):
    total = 0.0
    for each in (v, -v, 2.0):
        total += abs(each)
    return total


def by_module(v):
    return math.sin(v) + np.exp(v)


def by_array(v):
    total = 0.0
    for i in range(2):
        total = total + NUMBERS[i] * v
    return total


STALE = [
    (by_method, lambda patch: patch.setattr(Scaled, "product", lambda self: self.value - self.by)),
    (by_default, lambda patch: patch.setitem(scaled.__kwdefaults__, "by", 5.0)),
    (by_builtin, lambda patch: patch.setitem(globals(), "abs", lambda v: -v)),
    (by_module, lambda patch: patch.setattr(math, "sin", lambda v: 7.0)),
    (by_module, lambda patch: patch.setattr(np, "exp", lambda v: 7.0)),
    (by_array, lambda patch: patch.setitem(globals(), "NUMBERS", np.array([3, 4]))),
    (by_array, lambda patch: patch.setitem(globals(), "NUMBERS", (2 * NUMBERS).astype(">f8"))),
]


@each_as_text(("function", "change"), STALE, compiled={"by_module-3", "by_array-5", "by_array-6"})
def test_what_changes_after_a_call_is_seen(monkeypatch, function, change, text_or_compiled):
    values = [0.5, 1.5, -2.5, 4.0]
    with ab.options(way="compiled"):
        wait_until_compiled(function, [values], {})
        before = ab.map(function, values)
        assert before == [function(v) for v in values]
        change(monkeypatch)
        expected = [function(v) for v in values]
        assert expected != before
        assert ab.map(function, values) == expected


class Kind(enum.IntEnum):
    NOUN = 1
    VERB = 2


class Odd(int):
    def __add__(self, other):
        return 42


ODD = Odd(3)
HALF = type("Half", (float,), {})(0.5)


def member_of_some(n):
    return Kind.NOUN if n == 7 else n


def own_operator_of_some(n):
    return ODD + n if n == 7 else n


def counted_members(kinds):
    nouns = 0
    for kind in kinds:
        if kind == Kind.NOUN:
            nouns += 1
        elif kind < Kind.VERB:
            nouns -= 1
    return nouns * HALF


def key_of_zero(x):
    counts = {}
    for key in (0.0, x, -x):
        counts[key] = counts.get(key, 0) + 1
    return len(counts), {0.0: 5.0}.get(-x, -1.0), (x, 1) in {(0.0, 1)}, -x in {x}


def own_key(x):
    seen = {x: 1}
    return seen.get(x, 0), x in {x}


def own_item(x):
    pair = (x, 1)
    return pair == pair, x in (x, 2.0), x in [x, 2.0], pair != (x, 2)


def memoised_zero(x):
    @functools.cache
    def doubled(v):
        return v * 2

    return doubled(x) + 0 * doubled(-x), doubled(-x)


def known_logarithm(n):
    return math.log(0.0 if n == 2 else 1.0)


def known_root(x):
    return math.sqrt(x) if x == -1.0 else x * 2


def known_power(n):
    return math.exp(n * 500.0) if n == 2 else float(n)


def known_remainder(n):
    return math.fmod(1.0, n - 2.0) if n == 2 else float(n)


def known_angle(n):
    return math.acos(n * 1.0) if n == 2 else float(n)


class Pair(typing.NamedTuple):
    left: int
    right: int


def equals_a_named_tuple(n):
    plain = (7, 1)
    return plain == Pair(n, 1)


def equals_counts(n):
    return collections.Counter([n]) == {7: 1}


def equals_a_dict_with_a_default(n):
    counts = collections.defaultdict(int)
    counts[n] += 1
    return counts == {7: 1}


def equals_with_a_number_of_its_own(n):
    return (ODD, n) == (3, 7)


def is_among_what_may_be_none(n):
    return (7, 1) in [None, (n, 1)]


def range_as_a_sequence(n):
    match range(n):
        case (0, 1, 2, 3, 4, 5, _):
            return True
    return False


def class_and_number(n):
    match (int, n):
        case (_, 7):
            return True
    return False


def at_least_zero(x):  # for which LLVM has an instruction, that may give the other zero
    y = float(x)
    if x < 0:
        y = 0.0
    return y


FLOATS = [1.0, 2.0, 0.0, -0.0, math.nan, 3.0]
RARE = [
    (at_least_zero, list(map(np.float32, FLOATS)), True),
    (member_of_some, [1, 2, 7, 3], False),
    (own_operator_of_some, [1, 2, 7, 3], False),
    *(
        (function, [1, 2, 7, 3], False)
        for function in (
            equals_counts,
            equals_a_dict_with_a_default,
            equals_with_a_number_of_its_own,
            is_among_what_may_be_none,
            range_as_a_sequence,
        )
    ),
    (equals_a_named_tuple, [1, 2, 7, 3], True),
    (class_and_number, [1, 2, 7, 3], True),
    (counted_members, [[1, 2], [], [0, 1, 1], [2]], True),
    (key_of_zero, FLOATS, True),
    (own_key, FLOATS, True),
    (own_item, FLOATS, True),
    (memoised_zero, FLOATS, True),
    (known_logarithm, [1, 2, 3], True),
    (known_root, [1.0, -1.0, 4.0], True),
    (known_power, [1, 2, 3], True),
    (known_remainder, [1, 2, 3], True),
    (known_angle, [1, 2, 3], True),
]


@each_as_text(
    ("function", "values", "compiles"),
    RARE,
    compiled={"own_item", "memoised_zero", "known_logarithm", "known_root", "at_least_zero"},
)
def test_what_only_an_example_in_the_middle_meets(function, values, compiles, text_or_compiled):
    """The first results and the last are compared with Python's: what differs is among the others."""
    expected = outcome(lambda: [function(v) for v in values])
    if compiles:
        wait_until_compiled(function, [values], {})
        assert same(outcome(lambda: compiled_map(function, [values], {})), expected)
    else:
        with pytest.raises(Unsupported, match=r"^test_stale_and_odd.py:\d+: "):
            wait_until_compiled(function, [values], {})
    with ab.options(way="compiled"):
        assert same(outcome(lambda: ab.map(function, values)), expected)


def test_the_zero_that_a_memo_knows_is_the_one_that_came_first():
    negated = functools.cache(lambda v: -v)

    def through_it(v):
        return negated(v)

    with ab.options(way="compiled"):
        found = ab.map(through_it, [1.0, 0.0, -0.0, 2.0])
    negated.cache_clear()
    assert list(map(repr, found)) == [repr(negated(v)) for v in [1.0, 0.0, -0.0, 2.0]]


def test_calls_nest_as_deep_as_the_limit_says_on_whatever_stack():
    def deep(n, a, b):
        return a + b if n == 0 else deep(n - 1, b, a) + 1.0

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300_000)
    try:
        with ab.options(way="compiled"):
            wait_until_compiled(deep, [[1, 2], [0.5, 1.0], [0.0, 2.0]], {})
            assert ab.map(deep, [1, 200_000, 3], [0.5] * 3, [0.0] * 3) == [1.5, 200_000.5, 3.5]
    finally:
        sys.setrecursionlimit(limit)


@ab.batch
def doubled(v):
    return np.tanh(v).sum() * 2.0


def tripled(v):
    return v.sum() * 3.0


@ab.batch
def by_decorated(v, w):
    return doubled(v * w) + 1.0


def test_a_decorated_helper_is_compiled(monkeypatch):
    """Within an example no argument is a batch, so it is the function that it decorates; which one is checked."""
    xs = [NUMBERS, NUMBERS[:1]]
    slope = ab.value_and_grad(lambda w: ab.sum(by_decorated(ab.collate(xs), w)))
    assert ab.testing.forms(by_decorated, xs, w=2.0)["compiled"] == ""
    for function in (doubled.__wrapped__, tripled):
        monkeypatch.setattr(doubled, "__wrapped__", function)
        with ab.options(way="loop"):
            expected = ab.map(by_decorated, xs, w=2.0), slope(2.0)
        with ab.options(way="compiled"):
            np.testing.assert_allclose(ab.map(by_decorated, xs, w=2.0), expected[0])
            np.testing.assert_allclose(slope(2.0), expected[1])
