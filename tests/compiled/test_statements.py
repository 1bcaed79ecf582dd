"""Statements that leave a block early, and variables whose type depends on the path: as the loop, and mostly compiled.

Broken once by hand: `finally` that is left out at a `break`, or run twice; arms that are read with the other's types; a
new object without its `__post_init__`; an array of one element that is taken for true.
"""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled import compiled_map
from tests.compiled.interpreted import each_as_text, interpreted
from tests.compiled.law import outcome, same, wait_until_compiled
from tests.law import map_equals_loop


def leaves_by_every_way(n, x):
    log = []
    for k in range(4):
        try:
            try:
                if k == n:
                    return log, x
                if k + n == 5:
                    break
                if k % 2:
                    continue
                x = x * 2
            finally:
                log.append(k)
                x += 1
        finally:
            log.append(-k)
    else:
        log.append(100)
    return log, x


def loops_in_what_is_finished(n, x):
    log = []
    for k in range(3):
        try:
            for v in x:
                if v > k:
                    break
                if v < 0:
                    continue
                if n == 4:
                    return log, k
            for v in x:
                if v == n:
                    break
            else:
                log.append(-1)
        finally:
            log.append(k)
    return log, 9


def gives_what_finally_gives(n, x):
    last = x[0]
    try:
        try:
            return last
        finally:
            last = x[1]
            if n == 1:
                return last * 2  # noqa: B012 - `finally` decides
            last = x[n]
    finally:
        n = 7


def finally_after_what_raises(n, x):
    total = 0.0
    for i in (0, n):
        try:
            if i > 2:
                raise ValueError("large")
            total += x[i]
        except ValueError:
            total -= 1
            continue
        finally:
            total *= 2
    return total


class Doubled:
    def __init__(self, by, log):
        self.by, self.log = by * 2, log

    def __enter__(self):
        self.log.append(1)
        return self

    def __exit__(self, kind, error, trace):
        self.by = 0
        self.log.append(2)
        return kind is KeyError


def enters_what_the_user_made(n, x):
    log = []
    for k in range(3):
        with Doubled(x[k], log) as doubled, Doubled(x[0], log):
            if k == n:
                return log, x[0] + doubled.by
            if n > 3:
                raise KeyError(n)
            x = x + doubled.by
    return log, x[0]


@dataclasses.dataclass
class State:
    h: object
    count: int = 0
    log: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.start = self.h
        self.count += 1


class Plain:
    count = 3


def states_that_change(n, x):
    state, more = State(x, log=[n]), State(h=n)
    for k in range(n):
        state.h = state.h + more.count
        state.count += k
    later = dataclasses.replace(state, count=9)
    later.log.append(5)
    has = (
        hasattr(state, "start"),
        hasattr(state, "other"),
        hasattr(Plain(), "count"),
        hasattr(x, "shape"),
        hasattr(n, "h"),
    )
    return state.h * 1, state.count, state.start * 1, later.count, later.h * 1, state.log, more.log, has


def one_of_several_types(n, x):
    found = x if n > 1 else (n, 2.0) if n else "none"
    if isinstance(found, tuple):
        found = found[1] + n
    elif isinstance(found, str):
        return -1.0
    for k in range(2):
        got = [k] if n % 2 else k
        if isinstance(got, list):
            got = got[0] + 1
        found = found + got
    return found.sum() if isinstance(found, np.ndarray) else found


class Vector:
    def __init__(self, values):
        self.values = values

    def __add__(self, other):
        return Vector(self.values + (other.values if isinstance(other, Vector) else other))

    __radd__ = __add__


def sums_of_objects(n, x):
    parts = [Vector(x), Vector(x * n)]
    return sum(parts, 0.5).values, sum(parts).values


def truth_of_arrays(n, x):
    rows = [x[:n]]
    if x[n - 1 : n] > 0:
        n = -n
    return n, min(rows), bool(x[:1] * 0), not x[:1]


def singletons(n, x):
    flag = n > 1
    match flag, x[0] > 0, n:
        case True, True, _:
            return 1
        case True, _, k if k > 2:
            return k
        case (False, _, None) | (_, False, _):
            return 3
    return (flag is True) + 10 * (n is True) + 100 * (x[0] is None)


def parts_of_what_is_made(n, x):
    state = State(x)
    state.count += n // 3
    match state, n:
        case [State(h=h, count=1), (1 | 2) as k]:
            return h.sum() * k, k
        case (State(start=h), int(k)) if k:
            return h[0], k
        case _, *rest:
            return x[0], len(rest)


def items_of_a_list(n, x):
    match [k * 2 for k in range(n)]:
        case [] | [0 | 1]:
            return 1, 0
        case [first, 2]:
            return first, 3
        case [a, b, c] if a < c:
            return b, c
        case [_, _, _, last]:
            return last, 5
    return 7, 7


PROGRAMS = {  # and how many of five examples are left to Python
    leaves_by_every_way: 0, loops_in_what_is_finished: 0,
    gives_what_finally_gives: 2, finally_after_what_raises: 2, enters_what_the_user_made: 1,
    states_that_change: 0, one_of_several_types: 0, sums_of_objects: 0, truth_of_arrays: 2, singletons: 0,
    items_of_a_list: 0, parts_of_what_is_made: 0,
}  # fmt: skip
COLUMNS = [
    [0, 1, 2, 3, 4],
    [np.array(x) for x in ([1.0, -2.0, 0.5], [0.0, 1.0, 3.0], [2.0] * 3, [-1.0, 1, 2], [3.0] * 3)],
]


@each_as_text(("f",), [(each,) for each in PROGRAMS], set())
def test_equals_the_loop(f, text_or_compiled):
    wait_until_compiled(f, COLUMNS, {})
    want = [outcome(lambda row=row: f(row[0], row[1].copy())) for row in zip(*COLUMNS, strict=True)]
    given = [COLUMNS[0], [x.copy() for x in COLUMNS[1]]]
    error = next((each for each in want if isinstance(each, Exception)), None)
    got = outcome(lambda: compiled_map.compiled_map(f, given, {}))
    assert same(got, want if error is None else error), (got, want)
    assert compiled_map.prepared(f, COLUMNS, {}, None)[1].failures <= PROGRAMS[f]


def finally_that_jumps(n, x):
    for k in range(2):
        try:
            for v in x:
                if v > n:
                    return k
        finally:
            if n < 2:
                continue  # noqa: B012 - of the outer loop, wherever the block is left
    return -1


def test_a_jump_out_of_finally_has_no_form():
    assert "jumps" in ab.testing.forms(finally_that_jumps, *COLUMNS)["compiled"]
    map_equals_loop(finally_that_jumps, *COLUMNS)


@pytest.mark.parametrize("f", PROGRAMS)
def test_traced_and_in_lock_step_they_are_the_loop(f):
    columns = [[0, 2, 1, 2], COLUMNS[1][:4]] if f is not truth_of_arrays else [[1, 1, 1, 1], COLUMNS[1][:4]]
    map_equals_loop(f, *columns)


def grows_under_finally(x):
    total = x[0] * 0
    for v in x:
        try:
            if v < 0:
                continue
            total = total + v * v
        finally:
            total = total * 0.5 + v
    with Doubled(total, []) as doubled:
        return doubled.by * total


def test_the_gradient_is_that_of_the_loop():
    column = [[np.array(x) for x in ([1.0, -2.0, 0.5], [3.0], [0.25, 2.0])]]
    found = []
    for way in ("loop", "compiled"):
        with interpreted(), ab.options(way=way, warn=False):
            found.append(ab.map(ab.grad(grows_under_finally), *column))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
