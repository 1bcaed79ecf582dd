"""Builtins that call a function on items, or stop where they know the result: each example does what it does alone."""

import functools
import itertools
import operator
import re

import numpy as np
import pytest

import autobatch as ab
from tests.law import batch_of, equals_loop, every_way_equals_loop, ragged

XS = ragged(3, 1, 0, 4, 2)
SOME = ragged(3, 1, 2, 5)


def stops_early(x):
    seen = []

    def is_large(v):
        seen.append(v)
        return v > 0.5

    return any(is_large(v) for v in x), all(v < 1 for v in x if v != 0), seen


def of_pairs(x):
    return any(v + w < -1 for v in x for w in x if w < v), all(v * w < 2 for i, v in enumerate(x) for w in x[:i])


def inside_a_comprehension(x):
    return [any(w > v for w in x) for v in x]


def first_found(x):
    return next((i for i, v in enumerate(x) if v > 0), -1), next((v * 2 for v in x if v > 0.3), 0.5)


def in_one_arm(x):
    return 1.0 if len(x) > 2 and any(v > 0 for v in x) else 0.0


def mapped(x):
    pairs = list(map(lambda v, w: v * w, x, x[::-1]))
    return sum(map(np.tanh, x)), pairs, [v * 2 for v in list(filter(lambda v: v > 0, x))]


def reduced(x):
    return functools.reduce(lambda a, b: a * 0.5 + b, x, 1.0), functools.reduce(operator.add, [v * v for v in x], 0.0)


def accumulated(x):
    return list(itertools.accumulate(x)), list(itertools.accumulate([v * 2 for v in x], lambda a, b: a * 0.5 + b))


def of_perhaps_none(x):
    return max(x, key=lambda v: -v, default=7.0), min(range(len(x)), key=lambda i: x[i] ** 2, default=-1)


def counted(x):
    return sum(1 for v in x if v > 0), sum(v for v in [i for i, v in enumerate(x) if v > 0])


@pytest.mark.parametrize(
    "f",
    [
        stops_early, of_pairs, inside_a_comprehension, first_found, in_one_arm, mapped, reduced, accumulated,
        of_perhaps_none, counted,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_runs_in_lock_step(f):
    equals_loop(f, XS)


def test_gradients():
    def f(x):
        largest = max(x, key=lambda v: v * v)
        return largest + sum(map(np.tanh, x)) + functools.reduce(lambda a, b: a * b + 1, x) + next(v for v in x)

    every_way_equals_loop(f, SOME)


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_of_some_empty_items():
    """What raises for an example alone raises in the batch."""
    for f in (lambda x: functools.reduce(operator.add, x), lambda x: max(x, key=abs), lambda x: next(v for v in x)):
        with pytest.raises((TypeError, ValueError, StopIteration)) as alone:
            f(XS[2])
        for xs in (XS, [XS[2], XS[2]]):
            with pytest.raises(type(alone.value), match=re.escape(str(alone.value)) or None):
                ab.batch(f)(batch_of(xs))


@pytest.mark.parametrize(
    "reads",
    [
        lambda note, x: any(map(note, x)),
        lambda note, x: sum((note(v) for v in x), note(0.5)),
        lambda note, x: max((note(v) for v in x), key=lambda v: note(-v), default=0.0),
        lambda note, x: [note(v) > 0 and w for v, w in zip(x, (note(v * 2) for v in x), strict=True)],
    ],
)
def test_the_order_of_effects(reads):
    """What an iterator does item by item is not done ahead."""

    def f(x):
        seen = []

        def note(v):
            seen.append(v)
            return v

        return reads(note, x), seen

    equals_loop(f, XS, falls_back=None)


def test_names_of_the_users():
    def f(x):
        def own(items, *rest):
            return [*items, *rest]

        any = next = map = own
        return any(v > 0 for v in x), next((v for v in x), 2), list(map([1], x))

    equals_loop(f, XS, falls_back=None)
