"""Numeric programs, compiled, give what the loop gives: values, types, bits, exceptions."""

import numpy as np
import pytest

from autobatch.compiled.compiled_map import compiled_map, wait_until_compiled
from tests.compiled.law import outcome, same
from tests.compiled.numeric_programs import PROGRAMS

_AT_ONCE = ("levenshtein", "best_pair", "longest_increasing", "kalman", "dijkstra", "energy", "scatter", "newton")


@pytest.mark.parametrize(
    "name", [name if name in _AT_ONCE else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_program(name):
    function, example, shared = PROGRAMS[name]
    rng = np.random.default_rng(7)
    columns = [list(column) for column in zip(*(example(rng) for _ in range(40)), strict=True)]
    wait_until_compiled(function, columns, shared)
    for count in (40, 1, 0):
        some = [column[:count] for column in columns]
        expected = outcome(lambda some=some: [function(*values, **shared) for values in zip(*some, strict=True)])
        got = outcome(lambda some=some: compiled_map(function, some, shared))
        assert same(got, expected), f"{got}\nexpected {expected}"
