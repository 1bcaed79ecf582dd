"""Functions and classes that a function defines or uses: defaults, decorators, recursion, methods and properties."""

import functools

import numpy as np
import pytest

from tests.law import equals_loop as stays_in_lock_step
from tests.law import equals_loop_either_way as equals_loop
from tests.law import ragged

NUMBERS = [3, -1, 2, 0, -4]
CHOSEN = [slice(None), slice(None, None, -1), slice(1, 2), slice(0, 3, 2)]


def arguments_of_every_kind(n):
    def f(k, m=n, *rest, s=2, **named):
        return k * m + s + len(rest) + named.get("z", 0) if k > 0 else m

    def g(*args, **named):
        return f(*args, **named)

    return f(1), f(n, 2, 3, s=n, z=4), g(*[n, 1], **{"s": 3}), (lambda a, b=n: a if a > b else b)(1)


def decorated(n):
    def adds(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) + n

        return wrapper

    @adds
    @adds
    def turned(k):
        return k * 2 if k > 0 else -k

    return turned(n), turned.__name__


def mutually_recursive(n):
    calls = 0

    def even(k):
        nonlocal calls
        calls += 1
        return True if k <= 0 else odd(k - 1)

    def odd(k):
        return False if k <= 0 else even(k - 1)

    return even(n + 4), calls


def targets(n):
    a = b = [n, n + 1, n + 2]
    x, *y, z = a[0], n, 2, 3
    t = n * 2
    if n % 2:
        del t
        t = 1
    b[0] += 7
    (p, q), r = (n, n + 1), n - 1
    assert p > -9, f"too small: {n}"
    return a, b, x, y, z, t, p, q, r, 1 if n > 2 else 2 if n > 1 else 3 if n > 0 else (4 if n < -1 else 5)


class Base:
    scale = 3

    def __init__(self, n):
        self.n = n

    def value(self, k):
        return self.n * k if k > 0 else -k

    @property
    def doubled(self):
        return self.n * 2 if self.n > 0 else self.n + 5

    @functools.cached_property
    def shifted(self):
        return self.n + 1 if self.n < 0 else 7

    @classmethod
    def made(cls, n):
        return cls(n + 1)

    @staticmethod
    def turned(k):
        return k + 1 if k > 0 else k - 1


class Derived(Base):
    def value(self, k):
        if k > 1:
            return super().value(k) + self.scale
        return super().value(k - 1)


def methods(n):
    s, b = Derived(n), Base.made(n)
    return s.shifted, s.value(n), b.value(2), s.doubled, s.shifted, Derived.made(n).n, s.turned(n), Base.turned(3)


def a_class_inside(n):
    class Local(Base):
        def __init__(self, v):
            super().__init__(v)
            self.__hidden = v

        @property
        def size(self):
            if self.__hidden > 0:
                return self.__hidden
            return -self.n

    return Local(n).size, Local(n - 1).doubled, Local(2).shifted


@pytest.mark.parametrize(
    "f", [arguments_of_every_kind, decorated, mutually_recursive, targets, methods, a_class_inside]
)
@pytest.mark.parametrize("chosen", CHOSEN)
def test_functions_and_classes(f, chosen):
    equals_loop(f, NUMBERS[chosen])


class Halved:
    def __call__(self, x):
        return x * 0.5 if x.sum() > 0 else x


def or_else(y, x):
    return x if x.sum() > 0 else y


@pytest.mark.parametrize("f", [Halved(), functools.partial(or_else, np.zeros(2))], ids=["an object", "a partial"])
def test_what_is_no_function_is_called_in_lock_step(f):
    stays_in_lock_step(lambda x: f(x) + 1, [np.ones(2), -np.ones(2), np.zeros(2)])


def test_methods_on_arrays():
    class Cell:
        def __init__(self, w):
            self.w = w

        def step(self, h, x):
            if x > 0:
                return np.tanh(h * self.w + x)
            return h * self.decay

        @property
        def decay(self):
            return self.w * 0.5

    def f(xs, w):
        cell, h = Cell(w), 0.0
        for x in xs:
            h = cell.step(h, x)
        return h

    equals_loop(f, ragged(3, 1, 0, 4), w=0.7)
