"""Programs with objects of the user's classes, for the tests of the compiled way."""

import dataclasses
import functools
import operator

import numpy as np


class Best:
    """Attributes of object and class, properties, operators, methods of the class."""

    step = 2.0

    def __init__(self, start=None):
        self.best = start
        self.seen = 0

    def take(self, x):
        self.seen += 1
        if self.best is None or x.sum() > self.best.sum():
            self.best = x
        return self

    @property
    def total(self):
        return self.best.sum() * self.step

    @total.setter
    def total(self, value):
        self.step = value

    def __iadd__(self, k):
        self.seen += k
        return self

    def __neg__(self):
        return Best(-self.best)

    def __abs__(self):
        return abs(self.best.sum())

    def __len__(self):
        return self.seen

    def __getitem__(self, k):
        return self.best[k]

    @classmethod
    def two(cls, x):
        return cls(x).take(x + 1)

    @staticmethod
    def plus(k):
        return k + 1


def an_object_of_many_kinds(xs):
    best = same = Best()
    for x in xs:
        best.take(np.array([x, x]))
    best += 3
    best.total = 5.0
    many = len(same), best.total, best is same, best[0], best.two(xs).total, Best.plus(len(best))
    return *many, bool(best), abs(-best), Best.step, [r is None for r in [None, xs]]


class Late:
    def fill(self, x):
        self.x = x


def an_attribute_that_may_be_missing(xs):
    late = Late()
    if len(xs) > 1:
        late.fill(xs.sum())
    try:
        return late.x
    except AttributeError:
        return -1.0


def an_attribute_that_is_missing(xs):
    late = Late()
    if len(xs) > 1:
        late.fill(xs.sum())
    return late.x


def names_of_one_object(xs):
    made = [Best(xs) for _ in range(3)]
    made[1].take(xs + 1)
    made.append(made[1])
    made[3].seen = 9
    other = made[0] if xs.sum() > 3 else Best(xs)
    other.seen += 1

    def ten_more(best):
        best.seen += 10
        return best

    again = ten_more(made[0])
    return [each.seen for each in made], [each.total for each in made], other is made[0], again is made[0]


class Growing:
    def __init__(self):
        self.items = []
        self.n = 0

    def push(self, x):
        if x > 2:
            raise ValueError("big")
        self.items.append(x)
        self.n += 1


def an_object_after_an_error(xs):
    growing = Growing()
    try:
        for x in xs:
            growing.push(x)
    except ValueError:
        growing.n = -growing.n
    return growing.items, growing.n


def an_object_that_is_matched(xs):
    best = Best(xs)
    match best:
        case Late():
            k = 1
        case Best():
            k = 2
    return k, isinstance(best, Best), isinstance(best, Late)


@dataclasses.dataclass(frozen=True)
class Move:
    at: float
    log: list = dataclasses.field(default_factory=list)
    count: int = 0


def fields_that_are_replaced(xs):
    move = Move(0.0)
    for x in xs:
        move = dataclasses.replace(move, at=move.at + x, log=[*move.log, x])
    return move.at, move.log, move.count


def sums_of_arrays(xs):
    parts = [np.array([x, 1.0]) for x in xs]
    return sum(parts), functools.reduce(operator.add, parts), functools.reduce(lambda a, b: a - b, xs, 3)


def arrays_that_are_joined(xs):
    rows = [xs[:k] for k in range(3)]
    table = np.concatenate((np.array([[1.0], [2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])), axis=1)
    low, high = np.split(np.arange(4.0), 2)
    a, b = (xs * k for k in (2.0, 3.0))
    return np.concatenate(rows), table, low, high, np.roll(table, 1, 1), np.convolve(xs, low), a + b


OBJECTS = [each for each in list(globals().values()) if getattr(each, "__module__", "") == __name__ and callable(each)]
OBJECTS = [each for each in OBJECTS if not isinstance(each, type)]
EXAMPLES = [[1.0, -2.0, 3.0], [4.0], [-1.0, 2.0, 2.0, 5.0], [0.5]]


class Node:
    def __init__(self, value, rest):
        self.value, self.rest = value, rest


def holds_another(xs):
    chain = None
    for x in xs:
        chain = Node(x, chain)
    return 0 if chain is None else chain.value


def compares_by_default(xs):
    return Best(xs) == Best(xs)


def asks_for_its_class(xs):
    return Best(xs).__class__ is Best


def returns_an_object(xs):
    return Best(xs)


class Hooked:
    def __getattr__(self, name):
        return len(name)


def has_hooks(xs):
    return Hooked().five


class Number:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Number(self.v + other.v)

    def __len__(self):
        return np.int64(3)

    def __eq__(self, other):
        return self.v == other.v


class First(Number):
    def __radd__(self, other):
        return Number(100.0)


def adds_what_goes_first(xs):
    return (Number(xs[0]) + First(xs[0])).v


def adds_to_a_number_of_numpys(xs):
    return (np.float64(2.0) + First(xs[0])).v


def has_a_length_of_numpys(xs):
    return len(Number(xs))


def searches_for_an_object(xs):
    return Number(xs[0]) in [Number(xs[0])]


def is_less_by_nothing(xs):
    return xs[0] < Number(xs[0])


REFUSED = [
    holds_another, compares_by_default, asks_for_its_class, returns_an_object, has_hooks, adds_what_goes_first,
    adds_to_a_number_of_numpys, has_a_length_of_numpys, searches_for_an_object, is_less_by_nothing,
]  # fmt: skip
