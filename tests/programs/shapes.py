"""Shapes that depend on the data, state and errors."""

import dataclasses

import numpy as np

from tests.programs.registry import program, vectors


@program(vectors(4, 2, 5, seed=30), [2, 1, 5], grad=True)
def a_prefix(x, n):
    return x[:n] * 2, x[n:]


@program([3, 0, 2])
def sized_by_a_value(n):
    return np.zeros(n), np.arange(n), np.ones((n, 2), np.float32)


@program(vectors(4, 2, 5, seed=31), grad=True)
def boolean_index(x):
    return x[x > 0]


@program([np.array([3, 1, 3]), np.array([2]), np.array([5, 5, 4, 5])])
def distinct(x):
    return np.unique(x), np.nonzero(x > 2)[0]


@program(vectors(6, 4, 5, seed=32, width=2), vectors(6, 4, 5, seed=33))
def least_squares(x, y):
    return np.linalg.lstsq(x, y, rcond=None)[0].round(4)


@program([0, 2, 1], names=["zero", "one", "two"], sizes={0: 1.5, 1: 2.5, 2: 3.5})
def looked_up(i, names, sizes):
    return names[i], sizes[i]


@program(vectors(4, 2, 0, 6, seed=34))
def conditional_append(xs):
    kept = []
    for x in xs:
        if x > 0:
            kept.append(x * 2)
    return kept


@program(vectors(4, 2, 6, seed=35), [1, 0, 5])
def writes_at_a_position(x, i):
    y = x.copy()
    y[i] = 7
    y[0] += 1
    return y


@program(vectors(3, 3, 3, seed=36))
def writes_through_a_view(x):
    y = x.copy()
    head = y[:2]
    head[0] = 5
    y *= 2
    return y, head


@dataclasses.dataclass
class Pair:
    left: np.ndarray
    right: np.ndarray


@program(vectors(3, 1, 2, seed=37), grad=True)
def dataclass_out(x):
    return Pair(x + 1, x.sum())


@program(vectors(3, 1, 2, seed=38))
def several_kinds_of_results(x):
    return len(x), x.shape, x.dtype == np.float32, "text", None, x.sum() / len(x), {"mean": x.mean()}


@program(vectors(3, 0, 2, seed=39))
def maximum_of_perhaps_nothing(x):
    return x.max()


@program(vectors(3, 4, 2, seed=40, width=3), vectors(3, 3, 2, seed=41, width=3))
def lengths_that_disagree(x, y):
    return x + y
