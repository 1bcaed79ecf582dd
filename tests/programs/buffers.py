"""Arrays that are written in place where examples are apart: in lists, dicts and objects, exchanged, reversed."""

import numpy as np

from tests.programs.registry import program

FLOATS = [np.array(x) for x in ([3.0, 1.0, -2.0], [2.0, 5.0], [], [4.0, -3.0, 2.0, 1.0], [1.0])]
IDS = [np.array(x, np.int64) for x in ([1, 3, 2], [2, 5], [], [4, 3, 2, 1], [1])]
COUNTS = [3, 0, 2, 5, 1]


@program(FLOATS, COUNTS)
def rows_of_a_list(xs, n):
    rows = [np.zeros(6) for _ in range(6)]
    for i in range(n):
        rows[i][n] = 2.0
        if i % 2:
            rows[n][i] += 1
    first = rows[0]
    first[1] = 5
    for i, x in enumerate(xs):
        rows[i % 3][i] = x
    return rows, rows[n], sum(rows)


@program(COUNTS)
def as_many_rows_as_wanted(n):
    rows = [np.zeros(3) for _ in range(n)]
    table = {i: np.zeros(2) for i in range(3)}
    for i in range(n):
        for j in range(3):
            rows[i][j] += i - j
            table[j][i % 2] = i + 0.5
    return rows, table


class Ring:
    def __init__(self, size):
        self.values = np.zeros(size)
        self.count = 0

    def push(self, value):
        self.values[self.count % len(self.values)] = value
        self.count += 1


@program(FLOATS)
def a_ring_buffer(xs):
    ring = Ring(3)
    for x in xs:
        ring.push(x)
        if x < 0:
            ring.values[:] = 0
    return ring.values, ring.count


@program(COUNTS, FLOATS)
def two_buffers_in_turn(n, xs):
    now, later = np.zeros(5), np.zeros(5)
    now[2] = 1
    for _ in range(n):
        for j in range(1, 4):
            later[j] = 0.5 * now[j - 1] + 0.5 * now[j + 1]
        now, later = later, now
    a, b = np.zeros(3), np.ones(3)
    for i, x in enumerate(xs):
        if x > 0:
            a, b = b, a
        a[i % 3] += x
        if i == n:
            break
    return now, a, b


@program(IDS)
def the_next_permutation(ids):
    a = ids.copy()
    i = len(a) - 2
    while i >= 0 and a[i] >= a[i + 1]:
        i -= 1
    if i < 0:
        return a[::-1]
    j = len(a) - 1
    while a[j] <= a[i]:
        j -= 1
    a[i], a[j] = a[j], a[i]
    a[i + 1 :] = a[i + 1 :][::-1]
    return a


@program(FLOATS, grad=True)
def starts_again_from_none(xs):
    h = None
    for x in xs:
        h = x * np.ones(2) if h is None else h + x
        if x < 0:
            h = None
    return h


@program(COUNTS, FLOATS)
def the_smallest_of_one(n, xs):
    best = {-1: 0.0}
    for i in range(len(xs)):
        before = [best[k] for k in (i - 1, i - 2) if k in best]
        best[i] = xs[i] + min(before)
    rows = [xs[:n]]
    return best, min(rows), max([n]), min([xs.sum()])


@program(COUNTS)
def numpy_of_a_list_or_a_dict(n):
    found = None
    if n > 2:
        found = [1.0, n]
    elif n > 1:
        found = {"a": 2.0}
    if found is None:
        return 0
    if isinstance(found, dict):
        found = list(found.values())
    return np.sum(found), np.maximum(found, 1.5)


@program(COUNTS, FLOATS)
def lists_around_others(n, xs):
    kept = []
    for x in xs:
        if x > 0:
            kept = [x, *kept, n]
    return [0.0, *kept, *range(n)], (n, *kept[:1]), [*xs, *{"a": 1}]
