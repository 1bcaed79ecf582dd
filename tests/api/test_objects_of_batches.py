"""Batches in objects: a call finds them in each form that a record of arrays may have, by every way."""

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
