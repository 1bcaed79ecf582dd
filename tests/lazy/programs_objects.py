"""Small functions of a vector `x`, a matrix `w` and a vector `b`: objects, calls and indices around blocks."""

import collections
import dataclasses
import functools
import typing

import numpy as np

from tests.lazy.programs_effects import case


@case
def calls_with_stars(x, w, b):
    def g(a, *r, **k):
        return np.tanh(a @ w) * 2 + r[0] * k["z"] + 1

    t = (x, x * 2 + 1)
    return g(*t, **{"z": x}) + g(x, x, z=2.0)


@case
def a_decorated_inner_function(x, w, b):
    def twice(f):
        @functools.wraps(f)
        def inner(a):
            return f(f(a)) * 2 + 1

        return inner

    @twice
    def g(a):
        return np.tanh(a @ w) + a

    return g(x)


class Pair(typing.NamedTuple):
    h: typing.Any
    c: typing.Any


@case
def named_tuples(x, w, b):
    p = Pair(x * 2 + 1, np.tanh(x @ w) + 1)
    q = Pair(h=p.h * p.c + 1, c=p[0] - p[1] * 2)
    return q, q._replace(h=q.c * 2 + q.h)


@dataclasses.dataclass
class State:
    a: typing.Any
    n: int = 2


@case
def a_dataclass(x, w, b):
    s = State(x @ w + 1)
    s.a = np.tanh(s.a) * s.n + s.a
    s.n += 1
    return s.a * s.n + 1, dataclasses.replace(s, a=s.a * 2 + s.n)


@case
def functions_that_call_functions(x, w, b):
    return (
        functools.reduce(lambda a, b: np.tanh(a @ w) + b * 2, [x, x * 2 + 1, x]),
        [*map(lambda v: v * 2 + 1, [x, x])],  # noqa: C417  (a function that is called by another)
        sorted([x[0] * 2 + 1, x[1] * 3 - 1]),
        max([x, x * 2 + 1], key=lambda v: float((v * v).sum() + 1)),
    )


@case
def a_loop_in_a_try(x, w, b):
    try:
        for k in range(5):
            y = np.tanh(x @ w) + k
            if (y * y).sum() + k > 4:
                break
        else:
            return x * 2 + 1
        return y * 2 + x
    finally:
        x = x * 2 + 1


@case
def truth_values(x, w, b):
    return (
        (x * 2 + 1 if x.sum() > 0 else None) is None,
        (x @ w + 1).sum() > 0 and (x * 2 + 1).sum(),
        not (x * 2 + 1).any(),
    )


@case
def comparisons(x, w, b):
    return bool(0 < (x * x).sum() + 1 < 5), ((x * 2 + 1) > 0) & ((x * 3 - 1) < 2), ~((x * 2 + 1) > 0)


@case
def a_nested_function_reads(x, w, b):
    acc = []

    def add():
        acc.append(y * 2 + 1)

    y = x @ w + 1
    add()
    y = np.tanh(y) * 2
    add()
    return acc


@case
def an_attribute_is_deleted(x, w, b):
    s = State(x)
    y = np.tanh(s.a @ w) + s.a
    del s.a
    try:
        return y + s.a * 2
    except AttributeError:
        return y


@case
def values_are_taken(x, w, b):
    return (
        float((x * x).sum() + 1),
        int((x * x).sum() * 2),
        (x @ w + 1).tolist(),
        np.asarray(x * 2 + 1),
        str((x * 0 + 1).sum()),
    )


@case
def other_dicts(x, w, b):
    m = collections.defaultdict(lambda: x * 2 + 1)
    od = collections.OrderedDict(a=x)
    return m["q"] * 2 + m["r"], od["a"] * 2 + 1, len(m)


@case
def indices(x, w, b):
    i = np.array([0, 2])
    j = 1
    return (
        x[i] * 2 + 1,
        x[j] * 2 + x[j + 1],
        x[x > 0] * 2 + 1,
        w[j] * 2 + x,
        x[-1] * 3 + 1,
        x[..., None] * 2 + 1,
        x[None] @ w + 1,
    )


@case
def keyword_arguments_of_numpy(x, w, b):
    return (
        np.sum(x * 2 + 1, axis=0, keepdims=True) + np.mean(x * 2, axis=-1),
        np.concatenate([x * 2, x], axis=0) + 1,
        np.stack((x, x * 2), axis=1) @ np.ones((2, 2), "f4") + 1,
    )


@case
def out_is_given(x, w, b):
    y = x * 2 + 1
    np.add(y, x, out=y)
    z = np.multiply(y, 2, out=np.zeros(4, "f4"))
    return y, z


@case
def shapes_of_python(x, w, b):
    n = x.shape[0]
    return x.reshape(n // 2, 2) * n + 1, np.zeros(n) + x * 2, x[: n // 2] * 2 + 1, np.full((n,), x.sum() * 2 + 1)


class Layer:
    def __init__(self, w):
        self.__w = w

    def step(self, x):
        return np.tanh(x @ self.__w) + 1


class Deep(Layer):
    def __init__(self, w, b):
        super().__init__(w)
        self.__b = b
        self.calls = 0

    def step(self, x):
        return super().step(x) * 2 + self.__b

    @staticmethod
    def squash(x):
        return np.tanh(x) * 2 + 1

    @classmethod
    def widen(cls, x):
        return cls.squash(x) * 2 - 1

    def __call__(self, x, *args, **kwargs):
        self.calls += 1
        return self.step(x) + self.squash(x) * self.widen(x) * self.calls


@case
def methods(x, w, b):
    layer = Deep(w, b)
    return layer(x) + layer(x * 2 + 1), layer.calls
