"""Loops whose trip counts differ between examples."""

import numpy as np

from tests.programs.registry import program, vectors

COUNTS = [3, 0, 5, 1]


@program(COUNTS)
def countdown(n):
    steps = 0
    while n > 0:
        n -= 1
        steps += 1
    return steps, n


@program(COUNTS, [np.float32(v) for v in (1.0, 2.0, 0.5, -1.0)], grad=True)
def power_by_range(n, x):
    out = np.float32(1.0)
    for _ in range(n):
        out = out * x
    return out


@program(vectors(4, 2, 0, 6, seed=20), grad=True)
def running_total(xs):
    total = 0
    for x in xs:
        total = total + x
    return total


@program(vectors(4, 2, 3, 6, seed=21))
def first_positive(xs):
    for i, x in enumerate(xs):
        if x > 0:
            return i
    return -1


@program(vectors(4, 2, 3, 6, seed=22))
def breaks_with_an_else(xs):
    found = None
    for x in xs:
        if x > 1:
            found = float(x)
            break
    else:
        found = -1.0
    return found


@program(vectors(4, 2, 0, 6, seed=23), grad=True)
def skips_negatives(xs):
    total = np.float32(0)
    for x in xs:
        if x < 0:
            continue
        total += x
    return total


@program([np.float64(v) for v in (2.0, 9.0, 0.25)], grad=True)
def newton(a):
    x = a
    for _ in range(30):
        step = (x * x - a) / (2 * x)
        x = x - step
        if abs(step) < 1e-6:
            break
    return x


@program([2, 4, 1], vectors(3, 5, 2, seed=24))
def nested_ranges(n, xs):
    total = np.zeros(2)
    for i in range(n):
        for j in range(i):
            total[j % 2] += xs[i % 2] + j
    return total


@program(vectors(4, 2, 0, 6, seed=25), grad=True)
def comprehension(xs):
    return sum([x * x for x in xs], start=np.float32(0.0))


@program(vectors(4, 2, 1, 6, seed=26, width=3), grad=True)
def counts_backwards(xs):
    out = np.zeros(3, np.float32)
    for t in range(len(xs) - 1, -1, -1):
        out = np.tanh(xs[t] + out)
    return out, len(xs)
