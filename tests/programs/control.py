"""Control flow of every kind on values that differ between examples."""

import numpy as np

from tests.programs.registry import program, vectors, weights

COUNTS = [3, 0, 6, 1]
PAIRS = [[9, 4, 7, 1], [2, 8, 7, 0]]


@program(*PAIRS)
def while_larger(a, b):
    steps = 0
    while a > b:
        a = a - 1
        steps += 2 if a % 2 else 1
    return steps, a


@program(COUNTS)
def bound_in_one_arm(n):
    if n > 2:
        extra = n * 10
    n = n + 1
    if n > 3:
        return n + extra
    return n


@program(vectors(4, 2, 3, 6, seed=31), [np.float32(0.3), np.float32(-1), np.float32(0.1), np.float32(9)])
def linear_search(xs, wanted):
    place = 0
    while place < len(xs):
        if xs[place] > wanted:
            break
        place += 1
    else:
        return None
    return place, xs[place]


@program(COUNTS)
def nested_loopsnd_jumps(n):
    total = 0
    for i in range(n):
        if i == 1:
            continue
        for j in range(4):
            if j > i:
                break
            if i * j == 12:
                return "twelve", total
            total += j + 1
        else:
            total += 100
    return total


@program(vectors(4, 2, 1, 6, seed=32, width=3), grad=True, params=weights(w=(3, 3), u=(3, 3), stop=(3,)))
def recurrent_until_a_gate_closes(xs, params):
    h = np.zeros(3, np.float32)
    for x in xs:
        h = np.tanh(x @ params["w"] + h @ params["u"])
        if h @ params["stop"] > 0.1:
            break
        if h[0] < 0:
            h = h * 0.5
            continue
        h = h + 0.1
    return h


@program([np.float64(v) for v in (0.2, 3.0, -2.0, 9.0)], COUNTS, grad=True)
def doubles_a_tree_until_it_turns(x, depth):
    return turning(x, depth)


def turning(x, depth):
    if depth == 0:
        return np.tanh(x)
    left = turning(x * 0.5, depth - 1)
    if left < 0:
        return left * 2
    right = turning(x + left, depth - 1 if depth < 4 else 0)
    return left + right


@program([None, np.ones(2, np.float32), None], vectors(3, 1, 0, seed=33, width=2), grad=False)
def starts_from_nothing_or_something(start, xs):
    h = np.zeros(2, np.float32) if start is None else start
    for x in xs:
        h = np.tanh(h + x)
    return h


@program([["up", "down", "up", "left"][i] for i in range(4)], [np.float32(v) for v in (1.0, 2.0, -3.0, 4.0)])
def an_option_per_example(mode, x):
    if mode == "up":
        return x + 1
    elif mode == "down":
        return x - 1
    return {"left": -x}.get(mode)


@program(vectors(4, 2, 1, 6, seed=34))
def writes_where_it_is_positive(xs):
    out = np.zeros(6, np.float32)
    count = 0
    for i, x in enumerate(xs):
        if x > 0:
            out[i] = x
            count += 1
        elif x < -1:
            out[0] -= x
    return out, count


@program([4, 1, 0, 2])
def divides_or_not(n):
    kept = []
    while n > -2:
        try:
            share = 12 // n
        except ZeroDivisionError:
            share = None
        kept.append(share)
        n -= 1
    return kept, len(kept)


@program(COUNTS)
def closure_counts(n):
    scale = 2

    def step(k):
        return k * scale if k > scale else scale - k

    total = 0
    for i in range(n):
        total += step(i)
        scale = 3 if total > 4 else scale
    return total
