"""Programs that call functions of NumPy and of the standard library, and a few constructs around them."""

import bisect
import dataclasses
import heapq
import itertools
import math
from collections import deque

import numpy as np

from tests.compiled.numeric_programs import PROGRAMS, floats, ints, program

_BEFORE = set(PROGRAMS)


@program(lambda rng: (ints(rng), ints(rng, 3, 9)))
def chained(a, b):
    total, seen = 0, []
    for v in itertools.chain(list(a), list(b)):
        total = 3 * total % 1009 + v
        seen.append(v)
    return total, seen


@program(lambda rng: (ints(rng, 0, 7, 1, 6),))
def list_that_grows_as_it_is_read(a):
    todo, steps = list(a), 0
    for v in todo:
        steps += 1
        if v > 2:
            todo.append(v - 2)
        if v > 4:
            todo.append(0)
    return todo, steps


@program(lambda rng: (tuple(int(v) for v in rng.integers(0, 3, 4)),))
def match_with_a_star(t):
    match t:
        case (0, *_, last):
            return last
        case (first, *_, 0):
            return 10 + first
        case (_, middle, *_):
            return 20 + middle
    return -1


@program(lambda rng: (int(rng.integers(-3, 4)), float(rng.normal())))
def tuples_of_other_types(n, x):
    pair = (n, x) if n > 0 else (x, n)
    for _ in range(n):
        pair = (pair[1], pair[0])
    return +n, +x, +(n > 0), +np.array([x, 1.0]), pair[0] + pair[1]


@program(
    lambda rng: (rng.integers(2) * rng.normal(size=(4, 4)) + 3.0 * np.eye(4)[rng.permutation(4)], floats(rng, 4, 5))
)
def rows_in_another_order(m, b):
    return np.linalg.solve(m, b), np.linalg.det(m), np.linalg.inv(m)


@program(lambda rng: (ints(rng), floats(rng), rng.normal(size=(3, 3)), int(rng.integers(0, 4))))
def arrays_in_other_orders(ids, x, m, n):
    made = np.unique(ids), np.unique(x), np.identity(n), np.diag(x), np.matmul(m, m[0])
    order = np.argsort(x), x.argsort(), np.argsort(ids, kind="stable"), np.sort(x), np.flatnonzero(ids)
    joined = np.concatenate([ids, x]), np.concatenate((x, x[:1])), np.vstack([x, 2 * x])
    return made, order, joined, np.flatnonzero(x > 0)


@program(lambda rng: (floats(rng), rng.normal(size=(3, 3))))
def arrays_read_backwards(x, m):
    return np.flip(x), np.flip(m)


@program(lambda rng: (sorted(float(v) for v in floats(rng).round(1)), int(rng.integers(-9, 10))))
def sorted_lists_and_heaps(a, n):
    places = bisect.bisect_right(a, 0.1 * n), bisect.bisect_left(a, 0.1 * n)
    bisect.insort(a, 0.1 * n)
    bisect.insort_right(a, 0.5)
    heap = [-v for v in a]
    heapq.heapify(heap)
    out = [heapq.heappushpop(heap, 0.3), heapq.heapreplace(heap, -0.2), heapq.heappop(heap)]
    return places, a, heap, out, heapq.nlargest(2, a), heapq.nsmallest(3, a), list(itertools.pairwise(a))


@program(lambda rng: (int(rng.integers(-30, 30)), float(rng.normal())))
def numbers_of_math(n, x):
    whole = math.gcd(n, 12), math.isqrt(abs(n)), math.comb(abs(n), 2), ord(chr(n + 60))
    return whole, math.degrees(x), math.radians(x), math.fmod(x, 0.3), math.copysign(n, x), math.trunc(x)


@program(lambda rng: (floats(rng, 1, 9), [1e16, 1.0, -1e16, 0.1][: int(rng.integers(1, 5))]))
def sizes_of_arrays_and_items(x, a):
    return abs(x - 1.0), abs(a[-1])


@program(lambda rng: (ints(rng, 0, 5, 1, 8), floats(rng, 8, 9), int(rng.integers(-3, 4))))
def added_at_places_and_ranges(places, values, k):
    sums, counts, grid = np.zeros(5), np.zeros(5, int), np.zeros((5, 5))
    np.add.at(sums, places, values[: len(places)])
    np.add.at(counts, places, 2)
    np.add.at(grid, (places, places[::-1].copy()), values[: len(places)])
    steps, down = range(k, 9, 2), range(9, k, -3)
    return sums, counts, grid, len(steps), list(steps), len(down), list(down), len(range(k)), sum(range(1, 9, 3))


@program(lambda rng: (floats(rng, 0, 4), floats(rng, 0, 4), float(rng.normal())))
def interpolated_or_refused(places, values, x):
    try:
        return np.interp(x, np.sort(places), values)
    except ValueError:
        return -1.0


@program(lambda rng: ("".join(rng.choice(list("ab"), rng.integers(0, 6))), int(rng.integers(-4, 7))))
def texts_within_texts(s, k):
    return "ab" in s, s in "abba", "" in s, "c" not in s, s.find("", k), s.find("b", k), s.find(s), s.find("aba" + s)


@program(lambda rng: (floats(rng, 0, 4),))
def loops_left_by_what_is_raised(x):
    total = 0.0
    try:
        for v in x:
            for w in x:
                if v + w > 1.0:
                    raise ValueError
                total += v * w
            total += 10.0
        total += 100.0
    except ValueError:
        total = -total
    return total


@program(lambda rng: (floats(rng, 0, 3), int(rng.integers(-1, 3)), int(rng.integers(0, 2))))
def classes_in_a_tuple(x, i, n):
    found, kinds = (IndexError, ZeroDivisionError), (int, bool)
    try:
        total = x[i] + 1 // n
    except found:
        total = x.sum() if isinstance(n, kinds) else 2.0
    try:
        total += x[n]
    except (KeyError, IndexError):
        total += i if isinstance(total, (int, str)) else 5
    return total


@program(lambda rng: (floats(rng),))
def ignored_flags_and_named_dtypes(x):
    with np.errstate(divide="ignore", invalid="ignore"), np.errstate(all="ignore"):
        y = np.log(1.0 + x * x)
    return y, x.dtype == "float64", x.dtype != "int64"


@program(lambda rng: (ints(rng, 0, 9, 1, 7).tolist(), floats(rng, 1, 5).tolist()))
def slices_that_take_other_numbers(a, x):
    part, back, rest = a[1:], x[::-1], a[:2]
    part.append(0.5)
    back += [len(a), True]
    rest.append(7)
    return part, back, rest, a[:2], [v + 1 for v in part], back[-2] * 2


@program(lambda rng: (ints(rng, 0, 5).tolist(), "".join(rng.choice(list("ab,"), rng.integers(0, 5)))))
def found_and_joined(items, s):
    at = items.index(2) if 2 in items else -1
    if 3 in items:
        items.remove(3)
    words = [str(item) for item in items]
    return at, items, ", ".join(words), "".join(words), s.join(words)


@program(lambda rng: (ints(rng, 0, 5).tolist(), int(rng.integers(-7, 8))))
def turned(items, by):
    waiting = deque(items)
    waiting.reverse()
    return list(waiting), pow(by, 2), pow(2.0, by)


@program(lambda rng: (floats(rng, 0, 4), floats(rng, 0, 4), floats(rng, 1, 3)))
def laid_out(x, y, at):
    both = np.stack([at, at + 1.0])
    return np.repeat(x, 3), both, np.array_equal(x, y), np.array_equal(x, x.copy()), np.array_equal(x, x[:0])


@program(lambda rng: (float(rng.normal()),))
def of_nothing(x):
    kept = [] if x > -9.0 else [x]
    return np.sum([]), np.sort([]), np.cumsum([]) + x, kept


@program(lambda rng: (ints(rng, 0, 5).tolist(), int(rng.integers(0, 6)), "".join(rng.choice(list("ab"), 2))))
def ranges_and_sets(items, n, word):
    numbers = range(n) if n % 2 else range(9, n, -2)
    first, *_ = numbers.start, numbers.step
    one, other = word
    x, y = np.arange(2.0) + n
    kept = sorted(set(items)), sorted({n, 3}, reverse=True), [k * first for k in numbers], len(numbers)
    lists, pair = [[n], [2]], (n, 1.5)
    lists[0] += items
    lists[1][0] += n
    return kept, one + "." + other, x - y, sorted(numbers), lists, tuple(pair), round(n / 3, 2), math.log(n + 1, 2)


@dataclasses.dataclass
class Span:
    stop: int = dataclasses.field(kw_only=True)
    start: int = 1


@program(lambda rng: (int(rng.integers(0, 6)), Span(stop=int(rng.integers(9)))))
def fields_by_keyword(n, given):
    span = Span(n, stop=n + 1) if n > 2 else given
    try:
        missing = Span(n).start
    except TypeError:
        missing = -1
    return span.start, span.stop, missing


@program(lambda rng: (floats(rng, 1, 6), bool(rng.integers(2))))
def times_one_number_or_another(x, either):
    w = 2.0 if either else x[0]
    y = x * w
    y += w
    return y, np.maximum(x, w), w > x, x * (2 if either else 0.5)


@program(
    lambda rng: (rng.choice([0.0, -0.0, 1.5, -2.25]), np.float32(rng.normal()), rng.integers(-3, 4), rng.random() < 0.5)
)
def methods_of_numbers(x, y, n, flag):
    each = [x.sum(), x.mean(), x.prod(), x.max(), x.any(), x.astype(np.float32), x.copy(), x.squeeze(), x.item()]
    single = y.sum(), y.mean(), y.min(), y.astype("float64"), y.astype(np.int64), y.item(), y.argmin()
    whole = n.sum(), n.mean(), n.astype(np.int8).sum(), n.astype(np.int8).prod(), n.tolist(), n.all(), n.argmax()
    mixed = (x if n > 0 else y).mean(), (n if flag else x).sum(), np.sum(float(x)), np.max(int(n)), np.mean(flag)
    try:
        float(x).mean()
    except AttributeError:
        return each[:4], each[4:], single, whole, mixed, (x > 0).any(), (x > 0).mean()


@program(lambda rng: (rng.integers(0, 9, (int(rng.integers(1, 4)), 2)), int(rng.integers(1, 4))))
def joined_matrices(x, n):
    beside, above = np.concatenate([x + k for k in range(n)], axis=1), np.concatenate([x * k for k in range(n)])
    one = np.hstack([x for _ in range(n)])
    one[0, 0] = -1
    return beside, above, one, np.hstack([x, x[:, :1]]), np.hstack((x[0], x[-1])), np.hstack(list(x)), x


@program(
    lambda rng: (
        rng.normal(size=(n := int(rng.integers(1, 4)))).astype(np.float32),
        np.array(rng.normal(), np.float32),
        np.array(n),
    )
)
def arrays_without_dimensions(x, p, n):
    y, row = np.full(3, p), np.zeros(3)
    row[0], row[1:], y[1] = p, n, p
    y *= p
    made = p * 2, 2.0 - p, -p, p * p, p**2, p / 3, x * p, n // 2, n * n, -n, np.exp(p), np.maximum(x, p), p * n, n - x
    kinds = p > 0, n == 2, p >= 0.5, x < p, 1 if p else 2, np.where(x > p, x, p), np.array([p, n, 1.5]), abs(p)
    return made, kinds, y, row, x[:n], [k * p for k in range(n)], float(p), int(n)


@program(lambda rng: (rng.normal(size=(int(rng.integers(0, 3)), 4)).astype(np.float32), rng.integers(0, 9, 4)))
def choices_that_are_broadcast(m, v):
    flags, several = [bool(k > 3) for k in v], m.shape[0] > 1
    both = np.where(v > 3, m, v), np.where(m > 0, 1, v), np.where(m[:, :1] > 0, m, 0.5), np.where(several, v, 1)
    lists = np.where(flags, m[:, None], v), np.where(v > 3, v, [1, 2, 3, 4]), np.where(flags, 0, v[:1])
    return both, lists, np.where(several, m, v[:, None, None])


@program(
    lambda rng: (np.float32(rng.normal(size=(int(rng.integers(1, 4)), 3)) * rng.integers(0, 2)), rng.integers(1, 9, 4))
)
def powers_of_arrays(m, n):
    roots = np.abs(m) ** 0.5, (-np.zeros(2)) ** 0.5, m**3, m**0, m**1, m**2.0, n**2, n**3, n**0.5, n**-1.0
    return roots, np.abs(m) ** 1.5, (np.abs(m) + 1) ** -1, 2**n, m**True


@program(lambda rng: (rng.normal(size=(int(rng.integers(1, 4)), 3)), rng.normal(size=3).astype(np.float32)))
def views_with_another_rank(m, v):
    m, v = m.copy(), v.copy()
    column = np.expand_dims(v, -1)
    column[0] = 7.0
    rows, flat = np.expand_dims(m, axis=1), np.ravel(m)
    rows[0, 0, 1], flat[2] = 8.0, 9.0
    whole, one = np.squeeze(rows, axis=1), np.squeeze(m[:, 1:2], axis=1)
    whole[0, 0] = one[-1] = 5.0
    means = m.mean(1, keepdims=True).squeeze(1)
    return m, v, column * 2, rows.squeeze(-2) + m, np.squeeze(m[:1], 0) + 1, np.atleast_2d(v) * np.atleast_2d(m), means


@program(
    lambda rng: ([rng.normal(size=(2, 3)) for _ in range(rng.integers(1, 4))], rng.normal(size=3).astype(np.float32))
)
def stacks_of_matrices(ms, v):
    whole, beside = np.stack(ms), np.stack([v, v * 2], axis=1)
    whole[0, 0, 0] = beside[0, 0] = 4.0
    norms = np.linalg.norm(ms[0], axis=1), np.linalg.norm(ms[0], axis=0, keepdims=True), np.linalg.norm(ms[0])
    return (
        whole,
        beside,
        np.array([ms[0] * k for k in range(3)]),
        ms,
        np.stack([v, v], -1),
        np.column_stack([v, v]),
        norms,
    )


@program(lambda rng: ([rng.normal(size=(int(rng.integers(1, 3)), 3)) for _ in range(2)],))
def stacks_that_may_not_fit(ms):
    return np.stack([ms[0][0], ms[1][0]], axis=1), np.stack(ms), np.squeeze(ms[0], 0)


FUNCTIONS = sorted(set(PROGRAMS) - _BEFORE - {"stacks_that_may_not_fit"})
"""Their names."""
