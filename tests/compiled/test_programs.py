"""Programs, compiled, give what the loop gives: values, types, bits, exceptions, and what they change.

All of them run as the text that is compiled, which Python runs (`interpreted`); a few are compiled, all under `slow`.
"""

import copy

import numpy as np
import pytest

from autobatch.compiled.compiled_map import compiled_map, prepared
from tests.compiled.function_programs import FUNCTIONS
from tests.compiled.interpreted import interpreted
from tests.compiled.language_programs import LANGUAGE
from tests.compiled.law import outcome, same, wait_until_compiled
from tests.compiled.numeric_programs import PROGRAMS

_AT_ONCE = (
    "levenshtein", "longest_increasing", "kalman", "dijkstra", "energy", "newton", "nested_nonlocal",
    "handler_of_another_type", "match_tuples", "write_list_arg",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in _AT_ONCE else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_program(name):
    runs_as_the_loop(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_of_a_program(name):
    with interpreted():
        runs_as_the_loop(name)


def runs_as_the_loop(name):
    """A program gives what the loop gives, of 40 examples, one and none; some without Python's help."""
    function, example, shared = PROGRAMS[name]
    rng = np.random.default_rng(7)
    columns = [list(column) for column in zip(*(example(rng) for _ in range(40)), strict=True)]
    wait_until_compiled(function, columns, shared)
    for count in (40, 1, 0):
        ours, theirs = (copy.deepcopy([column[:count] for column in columns]) for _ in range(2))
        expected = outcome(lambda theirs=theirs: [function(*row, **shared) for row in zip(*theirs, strict=True)])
        got = outcome(lambda ours=ours: compiled_map(function, ours, shared))
        assert same(got, expected), f"{got}\nexpected {expected}"
        assert same(ours, theirs)
    if name in (*LANGUAGE, *FUNCTIONS):
        _, form = prepared(function, columns, shared, None)
        assert form.failures == 0
