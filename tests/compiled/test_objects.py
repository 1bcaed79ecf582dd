"""Objects of the user's classes in compiled code: the results are those of the loop, and what it has no form of."""

from typing import NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled import compiled_map
from tests.compiled.interpreted import each_as_text
from tests.compiled.law import outcome, same, wait_until_compiled
from tests.compiled.object_programs import EXAMPLES, OBJECTS, REFUSED


@each_as_text(("f",), [(each,) for each in OBJECTS], {"an_object_of_many_kinds"})
def test_equals_the_loop(f, text_or_compiled):
    column = [np.array(x) for x in EXAMPLES]
    wait_until_compiled(f, [column], {})
    want = [outcome(lambda x=x: f(x.copy())) for x in column]
    error = next((each for each in want if isinstance(each, Exception)), None)
    got = outcome(lambda: compiled_map.compiled_map(f, [[x.copy() for x in column]], {}))
    assert same(got, want if error is None else error), (got, want)


@pytest.mark.parametrize("f", REFUSED)
def test_has_no_form(f):
    assert ab.testing.forms(f, [np.array(x) for x in EXAMPLES])["compiled"]


class Pair(NamedTuple):
    a: float
    b: float


class Vector(NamedTuple):
    a: float
    b: float

    def __add__(self, other):
        return Vector(self.a + other.a, self.b + other.b)


def unpacks(p):
    a, b = p
    first, *rest = p
    return a - b, first, rest, len(p)


def loops(p):
    total = 0.0
    for place, v in enumerate(p):
        total = total * 2 + v * place
    for v in p:
        total = total - v
    return total, [v * 2 for v in p if v > 0], sum(p), max(p), list(p), all(v > 0 for v in p)


def takes_parts(p):
    return p[::-1], p[-1], p + p[:1], (0.5, *p), np.hypot(*p), [u * v for u, v in zip(p, (3.0, 4.0), strict=True)]


def compares(p):
    return p == (1.0, 2.0), p < (1.0, 5.0), p == Pair(p.a, p.b), 2.0 in p, bool(p), sorted(p)


def makes_another(p):
    q = Pair(p.b, p.a)
    a, b = q
    return q, a - b


def adds_as_its_class_says(p):
    return (Vector(p.a, p.b) + Vector(1.0, 2.0)).b


class Behind(NamedTuple):
    a: float
    b: float

    def __radd__(self, other):
        return len(other)


def adds_what_stands_behind(p):
    return (1.0, 2.0) + Behind(p.a, p.b)  # noqa: RUF005


def unpacks_factors(p):
    sign, size = np.linalg.slogdet(np.array([[p.a, 1.0], [p.b, 3.0]]))
    return sign * size


NAMED = [unpacks, loops, takes_parts, compares, makes_another, unpacks_factors]


@each_as_text(("f",), [(each,) for each in NAMED], {"takes_parts"})
def test_named_tuples_are_tuples(f, text_or_compiled):
    column = [Pair(1.0, 2.0), Pair(-1.0, 0.5), Pair(2.0, 2.0)]
    wait_until_compiled(f, [column], {})
    assert same(compiled_map.compiled_map(f, [column], {}), [f(p) for p in column])


def test_operators_of_its_own_make_a_named_tuple_another_thing():
    column = [Pair(1.0, 2.0), Pair(-1.0, 0.5)]
    assert ab.testing.forms(adds_what_stands_behind, column)["compiled"]
    assert ab.map(adds_what_stands_behind, column) == [2, 2]
    assert ab.testing.forms(adds_as_its_class_says, column)["compiled"]
    assert ab.map(adds_as_its_class_says, column) == [4.0, 2.5]


def test_gradients_through_the_items_of_named_tuples():
    examples = [Pair(np.array([1.0, 2.0]), 0.5), Pair(np.array([-1.0]), 2.0)]

    def loss(p, w):
        x, scale = p
        return (x * w).sum() * scale + sum([v * w for v in p[1:]])

    def total(w):
        return sum(ab.map(loss, examples, w=w))

    with ab.options(way="loop"):
        expected = ab.value_and_grad(total)(1.5)
    with ab.options(way="compiled", warn=False):
        assert ab.value_and_grad(total)(1.5) == pytest.approx(expected)
    assert ab.testing.forms(loss, examples, w=1.5)["compiled"] == ""
