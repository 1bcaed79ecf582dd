"""Python's larger statements: try, with, match, generators, closures that count, on values that differ."""

import numpy as np

from tests.programs.registry import program, vectors, weights

COUNTS = [3, 0, 6, 1, -2]


@program(COUNTS)
def tries_until_it_works(n):
    log = []
    for attempt in range(4):
        try:
            if attempt == n:
                return "returned", log
            share = 6 // (n - attempt - 1)
            if share < 0:
                break
        except ZeroDivisionError as error:
            log.append(str(error))
            continue
        else:
            log.append(share)
        finally:
            log.append(attempt)
    return "ended", log


class Scale:
    """Multiplies while it is entered, and forgives a KeyError."""

    def __init__(self, by):
        self.by = by

    def __enter__(self):
        self.by = self.by * 0.5
        return self

    def __exit__(self, kind, error, trace):
        return kind is KeyError

    def __call__(self, x):
        return np.tanh(x * self.by)


@program(vectors(4, 2, 0, 6, seed=51), grad=True, params=weights(s=()))
def scaled_while_entered(xs, params):
    total = np.float32(0)
    for x in xs:
        with Scale(params["s"] + 1) as scale:
            total = total + scale(x)
            if total > 1:
                return total * scale.by
            if x < -1:
                raise KeyError(x)
        total = total * scale.by
    return total


@program([("add", 1, 2), ("neg", 3), "leaf", ("add", 2, 0), ("mul", 1, 2, 3)])
def evaluates_an_expression(term):
    match term:
        case ("add", a, 0) | ("add", 0, a):
            return a
        case ("add", a, b):
            out = a + b
        case ("neg", int(a)) if a > 0:
            out = -a
        case (str(name), *rest):
            out = len(rest) * 100
            if name == "mul":
                for each in rest:
                    out = out * each
        case _:
            out = None
    return out


@program(COUNTS, vectors(3, 1, 2, 4, 2, seed=52), grad=True)
def matches_a_count_and_a_vector(n, xs):
    total = xs[0] * 0
    while n > -3:
        match n % 4, total > 0:
            case 0, _:
                total = total + xs.sum()
            case 1 | 2 as k, True:
                total = total * k
            case k, positive if k > 2:
                total = total - 1 if positive else total + 2
            case _:
                n -= 1
        n -= 1
    return total


def halves(x, floor):
    while abs(x) > floor:
        x = x * 0.5
        yield x
        if x < -0.5:
            return


def both_ways(x):
    yield from halves(x, 0.2)
    yield from halves(-x, 0.4)


@program(vectors(3, 1, 0, 5, seed=53), grad=True)
def sums_what_generators_yield(xs):
    total = np.float32(0)
    for x in xs:
        for part in both_ways(x):
            if part > 0.6:
                break
            total = total + np.tanh(part)
        else:
            total = total + 1
    return total, sum(x * x for x in xs), list(halves(total, 0.3))


@program(vectors(4, 2, 1, 6, seed=54), grad=True, params=weights(w=(3, 3)))
def a_closure_keeps_the_state(xs, params):
    h = np.zeros(3, np.float32)
    steps = 0

    def step(x):
        nonlocal h, steps
        if x > 0:
            h = np.tanh(x + h @ params["w"])
            steps += 1
        return h

    seen = [step(x).sum() for x in xs]
    return h, steps, seen


@program(COUNTS)
def searches_with_walrus(n):
    found = []
    k = 0
    while k < 12 and (rest := (k * k + n) % 7) != 5:
        if rest > 3 or (half := rest // 2) == 1:
            found.append(rest if rest > 3 else half)
        k += 1
    return found, k, rest, [y for v in found if (y := v * n) > 2]


@program(vectors(3, 1, 0, 5, seed=55))
def first_and_any(xs):
    first = next((i for i, x in enumerate(xs) if x > 0), None)
    return first, any(x > 1 for x in xs), all(x > -1 for x in xs if x < 0), any(x * y < -1 for x in xs for y in xs)
