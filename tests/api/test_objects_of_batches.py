"""Batches in objects: a call finds them in each form that a record of arrays may have, by every way."""

import collections
import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

import autobatch as ab
from tests import law

RAGGED = [np.arange(3.0), np.arange(1.0), np.zeros(0), np.arange(5.0)]


@dataclasses.dataclass
class Pair:
    first: object
    second: object


@dataclasses.dataclass(slots=True)
class Slotted:
    first: object
    second: object


class Named(NamedTuple):
    first: object
    second: object


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["lockstep", "loop", "fly", "compiled", "auto"])
@pytest.mark.parametrize("kind", [Pair, Slotted, Named])
def test_batches_in_an_object_of_any_form(kind, way):
    def f(pair):
        return kind(pair.first * 2.0, pair.second.sum() + len(pair.first))

    batches = kind(ab.MaskedBatch.from_examples(RAGGED), ab.MaskedBatch(np.ones((len(RAGGED), 3))))
    for _ in range(3):
        with ab.options(way=way, warn=False):
            found = ab.examples(ab.batch(f)(batches))
        law.assert_same(found, [f(kind(x, np.ones(3))) for x in RAGGED])


class Ones(dict):
    def __missing__(self, key):
        return np.ones(2)


class Rows(list):
    def total(self):
        return sum(row.sum() for row in self)


DICTS = {
    "defaultdict": lambda x: collections.defaultdict(lambda: np.ones(2), a=x),
    "a dict of the user's": lambda x: Ones(a=x),
    "OrderedDict": lambda x: collections.OrderedDict(a=x, b=1.0, z=2.0),
}


@pytest.mark.parametrize("way", ["lockstep", "loop", "fly", "compiled", "auto"])
@pytest.mark.parametrize("name", DICTS)
def test_a_dict_does_as_its_class_says(name, way):
    make = DICTS[name]

    def f(d):
        d["b"] = d["b"] * 2.0 + len(d["a"])
        return d["b"], d["z"] + 1.0, sorted(d), type(d) is type(make(0))

    with ab.options(way=way, warn=False):
        found = ab.examples(ab.batch(f)(make(ab.MaskedBatch.from_examples(RAGGED))))
    law.assert_same(found, [f(make(x)) for x in RAGGED])


@pytest.mark.parametrize("way", ["lockstep", "loop", "fly", "compiled", "auto"])
def test_a_list_of_the_users_has_its_methods(way):
    def f(rows):
        rows.append(rows[0] * 2.0)
        return rows.total(), len(rows)

    with ab.options(way=way, warn=False):
        found = ab.examples(ab.batch(f)(Rows([ab.MaskedBatch.from_examples(RAGGED)])))
    law.assert_same(found, [f(Rows([x])) for x in RAGGED])
