"""Builtins, itertools, functools, operator and strings on what differs between examples."""

# ruff: noqa: C416, C417, B905, PLC3002, RUF005, C419, FURB118, RUF100 (the programs are what people write)

import functools
import itertools
import math
import operator

import numpy as np

from tests.programs.registry import program, vectors

IDS = [np.array(x, np.int64) for x in ([1, 2, 3], [4], [], [1, 2, 2, 5])]
FLOATS = [np.array(x) for x in ([1.0, -2.0, 3.0], [4.0], [], [-1.0, 2.0, 2.0, 5.0])]
COUNTS = [3, 0, 2, 5]
TEXTS = ["a bc d", "xy", "", "q q q"]


@program(IDS)
def functional_style(xs):
    s = [int(x) for x in xs]
    kept = list(filter(lambda v: v > 1, s))
    total = functools.reduce(lambda a, b: a * 2 + b, s, 0)
    doubled = list(map(lambda v: v * 2, s))
    least = min(s, key=lambda v: -v, default=None)
    return kept, total, doubled, any(v > 4 for v in s), all(v > 0 for v in s), max(s, default=-1), least, sum(s, 10)


@program(IDS)
def iterators_of_itertools(xs):
    s = [int(x) for x in xs]
    groups = [(key, list(group)) for key, group in itertools.groupby(s)]
    pairs = list(itertools.pairwise(s)), list(itertools.product(s, [0, 1])), list(itertools.zip_longest(s, [1, 2]))
    taken = list(itertools.takewhile(lambda v: v < 3, s)), list(itertools.dropwhile(lambda v: v < 3, s))
    moved = list(itertools.chain(s, [1])), list(itertools.islice(s, 2)), list(itertools.chain.from_iterable([s, s]))
    sums = list(itertools.accumulate(s)), list(itertools.accumulate(s, max, initial=2))
    return groups, pairs, taken, moved, sums, list(itertools.combinations(s, 2)), list(itertools.starmap(pow, pairs[1]))


@program(IDS)
def draws_from_an_iterator(xs):
    items = iter([int(x) for x in xs])
    first, second = next(items, None), next(items, -1)
    found = None
    for item in items:
        if item == 2:
            found = item
            break
    return first, second, found, list(items)


@program(FLOATS)
def any_stops_where_it_knows(xs):
    seen = []

    def is_negative(v):
        seen.append(v)
        return v < 0

    found = any(is_negative(x) for x in xs if x != 1)
    return found, seen, all(x > y for x in xs for y in (0.0, -3.0))


@program(FLOATS)
def sorts(xs):
    pairs = [(float(x), i) for i, x in enumerate(xs)]
    pairs.sort(key=lambda pair: (-pair[0], pair[1]))
    return (
        pairs,
        sorted(pairs, reverse=True),
        sorted(xs),
        sorted(xs, key=abs),
        max(pairs, key=operator.itemgetter(1), default=0),
    )


@program(FLOATS)
def partial_functions(xs):
    double = functools.partial(operator.mul, 2)
    shifted = functools.partial(lambda a, b, c=1: a + b * c, 1, c=3)
    return [double(x) for x in xs], shifted(xs.sum()), operator.add(xs, 1), operator.neg(xs.sum())


@program(COUNTS)
def numbers_of_python(n):
    whole = round(n / 3, 1), divmod(n, 2), pow(n, 2, 7), n.bit_length(), abs(-n)
    cast = int(str(n)), float(n), bool(n), complex(n), isinstance(n, int), type(n) is int, hex(n)
    return whole, cast, math.sqrt(n), math.floor(n / 2), math.gcd(n, 6), math.isclose(n, 3), math.hypot(n, 1.0)


@program(TEXTS)
def strings_of_each_example(s):
    words = s.split()
    counts = {}
    for letter in s:
        counts[letter] = counts.get(letter, 0) + 1
    shown = f"<{s:>4}|{len(words)}>", "%s!" % s, "{} of {}".format(len(s), words), str(words), repr(counts)  # noqa: UP031, UP032
    return s.upper(), "-".join(words), s[:1], s[::-1], [w.title() for w in words], "q" in s, s + "!", counts, shown


@program(vectors(4, 2, 1, 6, seed=70), grad=True)
def reductions_by_hand(xs):
    total = functools.reduce(operator.add, [x * x for x in xs])
    largest = max([x for x in xs], key=lambda x: x * x)
    running = list(itertools.accumulate([x for x in xs], lambda a, b: a * 0.5 + b))
    return total, largest, running[-1], sum(map(operator.mul, xs, xs), np.float32(0))
