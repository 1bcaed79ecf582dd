"""Generators in lock-step: a `yield` is for the lanes that come by, in the order in which each example does things."""

import contextlib

import numpy as np
import pytest

from autobatch import batch, examples
from autobatch.errors import FallbackWarning
from tests.inspect import noted_fallbacks
from tests.law import assert_same, batch_of, every_way_equals_loop, ragged
from tests.law import equals_loop_either_way as equals_loop

NUMBERS = [3, -1, 2, 0, -4]
XS = ragged(3, 1, 0, 4, 2)
CHOSEN = [slice(None), slice(3, 4)]


def count(n):
    while True:
        yield n
        n += 1


def evens(n):
    for i in range(n + 4):
        if i % 2 == 0:
            yield i
        elif n > 2 and i == 3:
            return "cut"
    yield -1
    return "end"


def from_others(n):
    result = yield from evens(n)
    yield result
    yield from range(n)
    yield from count(n) if n > 100 else [1, 2]


def loops(n):
    out, total = [], 0
    for v in evens(n):
        out.append(v)
    for k in count(n):
        if k > 4:
            break
        if k % 2:
            continue
        total += k
    else:
        total = -1
    return out, total, k


def consumed(n):
    return sum(evens(n)), list(evens(n)), max(evens(n)), sorted(-v for v in evens(n)), tuple(i for i in range(2))


def any_and_all(n):
    seen = []

    def noted(v):
        seen.append(v)
        return v > 2

    return any(noted(v) for v in evens(n)), all(v < 4 for v in count(n)), seen


def delegated(n):
    return [str(v) for v in from_others(n)]


def one_by_one(n):
    g = evens(n)
    a, b, c, d = next(g), next(g, None), next(g, None), next(g, "none")
    e = next(v for v in count(n) if v % 3 == 0)
    return a, b, c, d, e, next((v for v in evens(n) if v > 3), None)


def recursive(n):
    log = []

    def walk(depth):
        log.append(depth)
        if depth > 0:
            yield depth
            yield from walk(depth - 1)
            if depth % 2:
                yield from walk(depth - 2)

    for v in walk(n):
        log.append(v * 10)
    return log


def returns_from_the_loop(n):
    def pairs():
        for i in range(3):
            for j in range(n):
                yield i, j

    total = 0
    for i, j in pairs():
        if i * j == 2:
            return "two", total
        total += i + j
    a, b = (k * n for k in (1, 2))
    return "end", total + a + b


def in_turns(n):
    a = 1
    out = []
    for v in (k + a for k in range(n + 5) if k % 2 or n > 0):
        out.append(v)
        if v > 2:
            a = 10
        a = a + 1
    return out, a


def reads_what_its_loop_binds(n):
    a = v = 0

    def rest():
        k = 0
        while k + a < 6:
            yield k + a
            k += 1

    for v in rest():
        if v == 3 and n > 1:
            break
        a += 1 if n > 0 else 0
    return a, v


def through_a_loop_of_lanes(n):
    out = []
    for i in range(n):
        for v in evens(i):
            if v == i:
                break
            out.append(v)
        else:
            out.append(-5)
    return out


class Tree:
    def __init__(self, depth):
        self.depth = depth

    def leaves(self):
        if self.depth > 2:
            yield self.depth
            return
        yield from range(self.depth)


def of_a_method(n):
    return sum(Tree(n).leaves()), ",".join(str(v) for v in Tree(n).leaves())


@pytest.mark.parametrize(
    "f",
    [
        loops, consumed, any_and_all, delegated, one_by_one, recursive, returns_from_the_loop, in_turns,
        reads_what_its_loop_binds, through_a_loop_of_lanes, of_a_method,
    ],
)  # fmt: skip
@pytest.mark.parametrize("chosen", CHOSEN)
def test_generators_equal_the_loop(f, chosen):
    equals_loop(f, NUMBERS[chosen])


def test_over_rows_with_gradients():
    def decaying(xs, w):
        h = 0.0
        for x in xs:
            h = np.tanh(h * w + x)
            if h < -0.5:
                continue
            yield h

    def f(xs, w):
        total = xs.sum() * 0
        for h in decaying(xs, w):
            total = total * 0.5 + h
        return total + sum(x * w for x in xs if x > 0)

    equals_loop(f, XS, w=0.7)
    every_way_equals_loop(f, [x for x in XS if len(x)], w=0.7)


def test_no_examples_and_no_items():
    equals_loop(consumed, [0])
    assert examples(batch(loops)(batch_of([]))) == []


def test_a_generator_that_changes_something_after_lanes_have_left_it():
    def f(n):
        log = []

        def noted():
            for i in range(4):
                log.append(i)
                yield i

        for v in noted():
            if v == n:
                break
        return log

    equals_loop(f, NUMBERS, falls_back=True)


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_what_generators_cannot_do_together():
    def guarded(n):
        try:
            yield n
        finally:
            n += 1
        yield n

    def sends(n):
        def echo():
            got = yield n
            yield got

        g = echo()
        return next(g), g.send(n + 1)

    for f in (lambda n: list(guarded(n)), sends, lambda n: [a * b for a, b in zip(count(n), range(3), strict=False)]):
        want = [f(n) for n in NUMBERS]
        assert_same(examples(batch(f)(batch_of(NUMBERS))), want)


@pytest.mark.parametrize("method", [lambda g: g.send(1), lambda g: g.throw(KeyError("thrown")), lambda g: g.close()])
def test_what_goes_into_a_generator_is_named_in_the_warning(method):
    def f(n):
        g = count(n)
        first = next(g)
        used(g)
        return first

    def used(g):
        with contextlib.suppress(StopIteration, KeyError):
            method(g)

    with noted_fallbacks() as fallbacks:
        got = examples(batch(f)(batch_of(NUMBERS)))
    assert ["a generator in count" in reason for reason in fallbacks] == [True]
    assert_same(got, [f(n) for n in NUMBERS])


def test_a_generator_is_no_result():
    with pytest.warns(FallbackWarning, match="a generator in count"):
        got = examples(batch(lambda x: count(x))(batch_of(NUMBERS)))
    assert [next(each) for each in got] == NUMBERS
