"""Iterators: an item is made when a lane reads it, by no lane that reads no further, and each lane is at its own."""

# ruff: noqa: B905, C416, C417, RUF058 (the programs are what people write)

import itertools
import operator

import numpy as np
import pytest

from autobatch import batch, examples
from tests.law import assert_same, batch_of, ragged
from tests.law import equals_loop_either_way as equals_loop

XS = ragged(3, 1, 0, 4, 2)
NUMBERS = [3, 1, 0, 4, 2]


def endless(x):
    while True:
        yield x
        x = x + 0.5


def a_mapped_function_sees_what_the_loop_changes(xs, n):
    a, out = 1.0, []
    for w in map(lambda w: w * a, xs):
        a = a * 0.5 + w
        out.append(w)
    return a, out


def maps_several(xs, n):
    return list(map(lambda x, k: x * k, xs, range(n))), sum(map(abs, xs)), dict(zip(range(n), map(str, range(n))))


def takes_of_what_never_ends(xs, n):
    few = list(itertools.islice(endless(n), 3)), list(itertools.islice(endless(n), 1, n, 2))
    return few, list(itertools.takewhile(lambda w: w < n + 2, endless(n)))


def leaves_a_chain_that_never_ends(xs, n):
    out = []
    for w in itertools.chain([n], xs, endless(n)):
        if w > n + 2:
            break
        out.append(w)
    return out


def any_of_what_never_ends(xs, n):
    return any(map(lambda w: w > n + 1, endless(n))), all(w < 3 for w in endless(n)), n + 1.5 in endless(n)


def counts_and_cycles(xs, n):
    pairs = [(a, x) for a, x in zip(itertools.count(n), xs)]
    return pairs, [a * x for a, x in zip(itertools.cycle([1, n]), xs)], list(itertools.repeat(n, n))


def reads_on_after_a_slice(xs, n):
    items, numbers = iter(xs), iter(range(n))
    return (
        list(itertools.islice(items, 2)),
        list(items),
        list(itertools.takewhile(lambda k: k < 1, numbers)),
        [*numbers],
    )


def draws_in_its_own_loop(xs, n):
    items, out = iter(range(n)), []
    for k in items:
        out.append((k, next(items, -1)))
    return out


def draws_in_a_loop_that_it_leaves(xs, n):
    items, out = iter(xs), []
    for x in items:
        if x < 0:
            break
        if x > 1:
            out.append(next(items, None))
    return out, list(items)


def pairs_of_one_iterator(xs, n):
    items, same = iter(xs), iter([x for x in xs])
    return list(zip(items, items)), list(items), list(zip(same, same))


def dropsnd_accumulates(xs, n):
    running = list(itertools.accumulate(xs)), list(itertools.accumulate(range(n), lambda a, b: a * 2 + b, initial=n))
    dropped = list(itertools.dropwhile(lambda x: x > 0, xs)), list(itertools.filterfalse(lambda k: k % 2, range(n)))
    return running, dropped, list(itertools.pairwise(xs)), list(itertools.starmap(max, zip(xs, range(n))))


def looks_for_an_item(xs, n):
    items = iter(range(n))
    return 1 in items, list(items), any(x > 0 for x in iter(xs))


PROGRAMS = [
    a_mapped_function_sees_what_the_loop_changes, maps_several, takes_of_what_never_ends, any_of_what_never_ends,
    leaves_a_chain_that_never_ends, counts_and_cycles, reads_on_after_a_slice, draws_in_its_own_loop,
    draws_in_a_loop_that_it_leaves, pairs_of_one_iterator, dropsnd_accumulates, looks_for_an_item,
]  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS)
def test_iterators_in_lock_step(f):
    equals_loop(f, XS, NUMBERS)


def test_who_leaves_the_loop_calls_the_function_no_more():
    def f(xs):
        seen = []

        def noting(x):
            seen.append(x)
            return x

        for x in map(noting, xs):
            if x > 0:
                break
        return seen

    equals_loop(f, XS, falls_back=True)


def test_a_range_made_before_lanes_parted():
    def f(n):
        numbers = range(n)
        if n > 1:
            return len(numbers), list(numbers), list(reversed(numbers)), sum(k for k in numbers)
        return 0, list(zip(numbers, [1.5])), [], 0

    equals_loop(f, NUMBERS)


@pytest.mark.parametrize("column", [[2, 5, 1], [3, 0, 2, 5, 1]])
def test_a_generator_that_is_read_in_a_loop_over_it(column):
    def f(n):
        numbers, out = (k for k in range(n)), []
        for k in numbers:
            out.append(k)
            for later in numbers:
                out.append((k, later))
                break
        return out

    equals_loop(f, column, falls_back=True)


OF_LANES = {
    "range": lambda x, k: range(k),
    "range from": lambda x, k: range(1, k, 2),
    "reversed": lambda x, k: reversed(range(k)),
    "zip": lambda x, k: zip(x, range(k), strict=False),
    "enumerate": lambda x, k: enumerate(range(k)),
}
AS_OBJECTS = [
    lambda r: str(r)[:6],
    lambda r: repr(r)[:6],
    lambda r: f"{r}"[:6],
    lambda r: f"{r!s:.5}",
    lambda r: "{:.0}".format(str(r)),  # noqa: UP032
    lambda r: ("%s" % (r,))[:6],  # noqa: UP031
    lambda r: r == range(2),
    lambda r: r != range(2),
    lambda r: r == r,
    lambda r: isinstance(r, range | zip | enumerate),
    lambda r: type(r).__name__,
    lambda r: type(r) is range,
    lambda r: r.__class__.__name__,
    lambda r: hasattr(r, "start"),
    lambda r: getattr(r, "stop", 5),
    lambda r: hasattr(r, "__next__"),
    lambda r: callable(r),
    lambda r: len(r) if hasattr(r, "__len__") else -1,
    lambda r: np.asarray(r).dtype.kind,
    lambda r: list(r) == [0, 1],
    lambda r: len(tuple(r)),
    lambda r: 1 if r else 0,
]


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("make", OF_LANES)
def test_a_range_or_zip_of_each_lane_is_pythons_own_wherever_it_shows(make):
    xs, ks = [np.arange(3.0), np.arange(3.0) + 1, np.arange(3.0) + 2], [2, 3, 1]
    for use in AS_OBJECTS:

        def f(x, k, use=use):
            return use(OF_LANES[make](x, k))

        assert_same(examples(batch(f)(batch_of(xs), batch_of(ks))), [f(x, k) for x, k in zip(xs, ks, strict=True)])


FLAT = {
    "at a place": lambda x, k: x.flat[k],
    "from a place on": lambda x, k: x.flat[k:],
    "at places": lambda x, k: x.flat[[k, 0]],
    "by a function": lambda x, k: operator.getitem(x.flat, k),
    "and its length": lambda x, k: (len(x.flat), sum(x.flat), x.flat[k] * 2),
    "by a method": lambda x, k: x.flat.__getitem__(k),
}


@pytest.mark.parametrize("read", FLAT)
def test_elements_in_order_at_a_place_of_each_example(read):
    """`x.flat` is an object of all examples, so a place that differs by example is no key into it for each."""
    xs = [np.arange(3.0 * n).reshape(n, 3) + n for n in (2, 1, 4, 3)]
    equals_loop(FLAT[read], xs, [0, 2, 1, 2], falls_back=None)
