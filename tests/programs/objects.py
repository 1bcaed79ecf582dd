"""Objects of users' own classes: made for each example, changed under conditions, known by several names."""

import copy
import dataclasses
from typing import NamedTuple

import numpy as np

from tests.programs.registry import program, vectors, weights

FLOATS = [np.array(x) for x in ([1.0, -2.0, 3.0], [4.0], [], [-1.0, 2.0, 2.0, 5.0])]
SCALARS = [np.float64(v) for v in (1.0, -2.0, 3.0, -0.5)]


class Total:
    """What people write who come from other languages."""

    limit = 2

    def __init__(self):
        self.total = 0.0
        self.count = 0
        self.kept = []

    def add(self, x):
        self.total = self.total + x
        self.count += 1
        if x > 0:
            self.kept.append(x)
        return self

    @property
    def mean(self):
        return self.total / self.count if self.count else 0.0

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(self.kept)

    def __contains__(self, x):
        return x in self.kept

    def __bool__(self):
        return self.count > 1

    def __call__(self, factor):
        return self.total * factor

    def __getitem__(self, i):
        return self.kept[i]


@program(FLOATS)
def an_accumulator(xs):
    total = same = Total()
    for x in xs:
        total.add(x)
    doubled = [v * 2 for v in total]
    flag = "many" if total else "few"
    return total.total, total.mean, len(total), doubled, same.count, total(3), 2.0 in total, flag, total.kept[:1]


@program(SCALARS)
def objects_changed_in_branches(x):
    a, b = Total(), Total()
    if x > 0:
        a.add(x)
        a.flag = "big"
        a, b = b, a
    else:
        a.flag = "small"
    a.count = 5
    chosen = a if x > 1 else b
    chosen.add(1.0).add(x)
    chosen.limit = x
    return a.count, b.count, chosen.total, a.limit, b.limit, Total.limit, chosen is a, hasattr(a, "kept")


@program(FLOATS)
def objects_in_lists(xs):
    total = Total()
    made = [total]
    for x in xs:
        made[-1].count += 1
        if x > 0:
            total = Total()
            made.append(total)
        total.total = x
    return total.count, [each.count for each in made], [each.total for each in made], made[-1] is total


class Vector:
    """A class with operators, which asks what it holds."""

    def __init__(self, values):
        self.values = values

    def __add__(self, other):
        if isinstance(self.values, np.ndarray):
            return Vector(self.values + (other.values if isinstance(other, Vector) else other))
        raise TypeError("not an array")

    __radd__ = __add__

    def __mul__(self, factor):
        return Vector(self.values * factor) if isinstance(factor, np.floating) else NotImplemented

    def __rmul__(self, factor):
        return self * factor if isinstance(factor, np.floating) else Vector(self.values * float(factor))

    def __neg__(self):
        return Vector(-self.values)

    def __abs__(self):
        return np.sqrt((self.values**2).sum())

    def __lt__(self, other):
        return abs(self) < abs(other)

    def __eq__(self, other):
        return isinstance(other, Vector) and bool((self.values == other.values).all())

    __hash__ = None

    def __matmul__(self, other):
        return self.values @ other.values

    def __iadd__(self, other):
        self.values = self.values + other
        return self

    @property
    def kind(self):
        return "array" if isinstance(self.values, np.ndarray) else "other"


@program(vectors(4, 2, 1, 6, seed=60, dtype=np.float64), SCALARS, grad=True)
def operators_of_the_users(xs, x):
    v = Vector(xs)
    w = -(1.0 + v * x) + v
    u = w
    u += 1.0
    shorter = w if w < v else 2 * v
    return abs(w), v @ w, w.kind, v == u, u is w, shorter.values, sum([v, w], 0.0).values


class Shape:
    def __init__(self, size):
        self.size = size

    def area(self):
        return self.size * 0

    @property
    def twice(self):
        return self.area() * 2

    @classmethod
    def of(cls, size):
        return cls(size + 1)


class Square(Shape):
    def area(self):
        return super().area() + self.size**2

    @property
    def twice(self):
        return super().twice + 1 if isinstance(self.size, np.float64) else None


class Circle(Shape):
    def area(self):
        return self.size * 3 if self.size > 0 else self.size


@program(SCALARS)
def classes_that_inherit(x):
    square = Square.of(x)
    shape = Square(x) if x > 0 else Circle(x)
    return square.area(), square.twice, shape.area(), shape.twice, isinstance(shape, Circle), type(square) is Square


class Move(NamedTuple):
    total: object
    count: int


@dataclasses.dataclass
class State:
    h: object
    count: int = 0
    log: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.start = self.h


@program(vectors(4, 2, 0, 6, seed=61), grad=True)
def states_of_dataclasses(xs):
    state, pair = State(np.zeros(2, np.float32)), Move(np.float32(0), 0)
    for x in xs:
        state.h = np.tanh(state.h + x)
        state.count += 1
        if x > 0:
            state.log.append(x)
            pair = pair._replace(total=pair.total + x)
        pair = pair._replace(count=pair.count + 1)
    later = dataclasses.replace(state, count=state.count + 1)
    return state.h, state.count, state.log, later.count, later.start, pair, state.start


@program(FLOATS)
def copies(xs):
    total = Total().add(1.0)
    other = copy.copy(total)
    if len(xs) > 1:
        other.total = xs.sum()
    kept = [1.0]
    more = copy.copy(kept)
    more.append(xs.sum())
    other.kept.append(2.0)
    return total.total, other.total, kept, more, total.kept, other.kept is total.kept


class Cell:
    """A recurrent layer that holds its state."""

    def __init__(self, params):
        self.params = params
        self.h = np.zeros(3, np.float32)
        self.steps = 0

    def __call__(self, x):
        self.h = np.tanh(x @ self.params["w"] + self.h @ self.params["u"])
        self.steps += 1
        return self.h


@program(vectors(4, 2, 0, 6, seed=62, width=2), grad=True, params=weights(w=(2, 3), u=(3, 3), gate=(3,)))
def cells_with_state(xs, params):
    word, phrase = Cell(params), Cell(params)
    for x in xs:
        h = word(x)
        if h @ params["gate"] > 0:
            phrase(x)
            word.h = word.h * 0.5
    return word.h + phrase.h, word.steps, phrase.steps
