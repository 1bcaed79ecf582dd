"""Programs of what Python has beside arithmetic: functions within functions, memos, handlers, patterns, writes."""

import bisect
import dataclasses
import heapq
import itertools
import math
from collections import Counter, defaultdict, deque
from functools import lru_cache

import numpy as np

from tests.compiled.numeric_programs import PROGRAMS, floats, ints, program

_BEFORE = set(PROGRAMS)


@program(lambda rng: (ints(rng, 0, 4), ints(rng, 0, 4)))
def lcs_memo(a, b):
    @lru_cache(None)
    def go(i, j):
        if i == len(a) or j == len(b):
            return 0
        if a[i] == b[j]:
            return 1 + go(i + 1, j + 1)
        return max(go(i + 1, j), go(i, j + 1))

    return go(0, 0)


@program(lambda rng: (int(rng.integers(0, 15)),))
def memo_that_counts_its_calls(n):
    calls = [0]

    @lru_cache(maxsize=None)  # noqa: UP033
    def go(i):
        calls[0] += 1
        return i if i < 2 else go(i - 1) + go(i - 2)

    return go(n), calls[0]


@program(lambda rng: (ints(rng, 1, 10, 0, 8), int(rng.integers(0, 20))))
def knapsack_dict_memo(w, cap):
    memo = {}

    def best(i, c):
        if i == len(w):
            return 0
        if (i, c) in memo:
            return memo[i, c]
        out = best(i + 1, c)
        if w[i] <= c:
            out = max(out, w[i] + best(i + 1, c - w[i]))
        memo[i, c] = out
        return out

    return best(0, cap)


@program(lambda rng: (floats(rng, 1, 8),))
def closure_helper(x):
    m = x.mean()

    def dev(v):
        return (v - m) ** 2

    total = 0.0
    for v in x:
        total += dev(v)
    return total / len(x)


@program(lambda rng: (floats(rng, 1, 8), 0.5))
def lambda_local(x, a):
    f = lambda v: a * v + 1.0
    return sum(f(v) for v in x)


@program(lambda rng: (int(rng.integers(0, 6)),))
def nested_nonlocal(n):
    count = 0

    def visit(k):
        nonlocal count
        count += 1
        for j in range(k):
            visit(j)

    visit(n)
    return count


@program(lambda rng: (floats(rng, 0, 5), int(rng.integers(-3, 7))))
def try_index(x, i):
    try:
        return x[i]
    except IndexError:
        return -1.0


@program(lambda rng: (rng.integers(0, 3, 5).tolist(), rng.integers(0, 3, 5).tolist()))
def safe_divide(a, b):
    out = 0.0
    for p, q in zip(a, b, strict=False):
        try:
            out += p / q
        except ZeroDivisionError:
            out += 100.0
    return out


@program(lambda rng: ({int(k): float(k) for k in ints(rng)}, int(rng.integers(0, 5))))
def try_key(d, k):
    try:
        v = d[k]
    except KeyError:
        v = -1.0
    else:
        v = v * 2
    finally:
        z = 1
    return v + z


def parse(v):
    if v < 0:
        raise ValueError("negative")
    return math.sqrt(v)


@program(lambda rng: (floats(rng, 0, 6),))
def try_own_raise(x):
    bad = 0
    total = 0.0
    for v in x:
        try:
            total += parse(v)
        except ValueError:
            bad += 1
    return total, bad


@program(lambda rng: (ints(rng, 0, 4).tolist(),))
def match_ops(ops):
    a = 0
    for op in ops:
        match op:
            case 0:
                a += 1
            case 1 | 2:
                a *= 2
            case _:
                a -= 3
    return a


@program(lambda rng: ([(int(k), float(v)) for k, v in zip(rng.integers(0, 3, 5), rng.normal(size=5), strict=True)],))
def match_tuples(moves):
    x = y = 0.0
    for m in moves:
        match m:
            case (0, d):
                x += d
            case (1, d) if d > 0:
                y += d
            case (k, d):
                y -= d * k
    return x, y


@program(lambda rng: ("".join(rng.choice(list("+-x"), 6)),))
def match_text(s):
    n = 0
    for c in s:
        match c:
            case "+":
                n += 1
            case "-":
                n -= 1
            case _:
                n *= 2
    return n


@program(lambda rng: (floats(rng, 1, 8),))
def write_arg(x):
    for i in range(1, len(x)):
        x[i] += x[i - 1]
    return x[-1]


@program(lambda rng: (floats(rng, 1, 8),))
def insertion_sort(x):
    for i in range(1, len(x)):
        v = x[i]
        j = i - 1
        while j >= 0 and x[j] > v:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = v
    return x


@program(lambda rng: (rng.normal(size=(3, 4)),))
def write_view(m):
    row = m[1]
    row[0] = 9.0
    row *= 2
    m[:, 1] = 0.0
    return m.sum()


@program(lambda rng: (ints(rng).tolist(),))
def write_list_arg(items):
    items.append(7)
    total = 0
    while items:
        total += items.pop()
    return total


@program(lambda rng: (rng.normal(size=5), np.zeros(5)))
def write_second(x, out):
    for i in range(5):
        out[i] = x[i] * 2
    return None


@program(lambda rng: (rng.normal(size=(4, 5)), rng.integers(0, 4, 3), rng.integers(0, 5, 3)))
def fancy_two(m, i, j):
    return m[i, j].sum()


@program(lambda rng: (rng.normal(size=(4, 5)), rng.integers(0, 4, 3)))
def fancy_row_col(m, i):
    return m[i, 0] + m[np.arange(3), i]


@program(lambda rng: (rng.normal(size=(4, 5)),))
def mask_matrix(m):
    return m[m > 0].sum()


@program(lambda rng: (rng.normal(size=(4, 5)), np.array([0, 2])))
def fancy_assign(m, i):
    z = np.zeros((4, 5))
    z[i] = m[i]
    z[i, i] = 7.0
    z[:, 3] = 1.0
    z[z > 5] = -1.0
    return z


@program(lambda rng: (rng.normal(size=(4, 5)), np.array([0, 2])))
def fancy_cols(m, i):
    return m[:, i].sum(axis=0)


@program(lambda rng: (rng.normal(size=5),))
def newaxis(x):
    d = x[:, None] - x[None, :]
    return (d * d).sum()


@program(lambda rng: (int(rng.integers(0, 6)),))
def pascal(n):
    rows = []
    for i in range(n):
        row = [1] * (i + 1)
        for j in range(1, i):
            row[j] = rows[i - 1][j - 1] + rows[i - 1][j]
        rows.append(row)
    return rows


@program(lambda rng: (rng.integers(0, 6, (8, 2)).tolist(),))
def adjacency(edges):
    adj = [[] for _ in range(6)]
    for a, b in edges:
        adj[a].append(b)
        adj[b].append(a)
    seen = [False] * 6
    comps = []
    for s in range(6):
        if not seen[s]:
            stack = [s]
            seen[s] = True
            comp = []
            while stack:
                v = stack.pop()
                comp.append(v)
                for w in adj[v]:
                    if not seen[w]:
                        seen[w] = True
                        stack.append(w)
            comps.append(sorted(comp))
    return comps


@program(lambda rng: (int(rng.integers(1, 5)),))
def matrix_list(n):
    grid = [[0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            grid[i][j] = i * j
            grid[i][j] += 1
    return grid


@program(lambda rng: (ints(rng, 0, 5, 1, 6),))
def subsets(x):
    out = [[]]
    for v in x[:4]:
        out += [[*s, int(v)] for s in out]
    return out


@program(lambda rng: (floats(rng, 2, 8),))
def list_of_arrays(x):
    parts = []
    for i in range(len(x)):
        parts.append(x[:i] * 2)
    return parts


@program(lambda rng: (int(rng.integers(1, 5)),))
def permutations(n):
    out = []

    def go(cur, left):
        if not left:
            out.append(cur)
            return
        for i in range(len(left)):
            go([*cur, left[i]], left[:i] + left[i + 1 :])

    go([], list(range(n)))
    return out


@program(lambda rng: (ints(rng),))
def dict_comp(x):
    d = {int(v): i for i, v in enumerate(x)}
    return sum(d.values()), len(d), d


@program(lambda rng: (ints(rng).tolist(),))
def bisect_lis(x):
    tails = []
    for v in x:
        i = bisect.bisect_left(tails, v)
        if i == len(tails):
            tails.append(v)
        else:
            tails[i] = v
    return len(tails), tails


@program(lambda rng: ("".join(rng.choice(list("ab c,1"), 12)),))
def string_methods(s):
    return s.find("b"), s[0].isdigit(), s[1:3].isalpha(), s.join([s, s])


@program(lambda rng: (floats(rng, 3, 9),))
def default_args(x):
    def smooth(v, alpha=0.5, *, k=2):
        s = v[0]
        for _ in range(k):
            for w in v:
                s = alpha * w + (1 - alpha) * s
        return s

    return smooth(x), smooth(x, 0.1), smooth(x, k=1)


@program(lambda rng: (int(rng.integers(1, 9)), int(rng.integers(1, 9))))
def hanoi(n, k):
    def go(n, a, b, c):
        if n == 0:
            return 0
        return go(n - 1, a, c, b) + 1 + go(n - 1, c, b, a)

    return go(n, 0, 1, 2) ^ k


@program(lambda rng: (ints(rng), ints(rng)))
def set_ops(a, b):
    s, t = set(a.tolist()), set(b.tolist())
    return len(s & t), len(s | t), len(s - t), len(s ^ t), s <= t


@program(lambda rng: (ints(rng, 0, 9, 1, 9).tolist(),))
def list_slice_assign(x):
    y = list(x)
    y[0:2] = [7, 8, 9]
    del y[-1]
    a, *rest = y
    return y, a, rest


@program(lambda rng: (ints(rng, 0, 9, 1, 9).tolist(),))
def min_key(x):
    return min(x, key=lambda v: (v - 4) ** 2), max(range(len(x)), key=lambda i: x[i])


@program(lambda rng: (ints(rng, 0, 9, 1, 9).tolist(), ints(rng, 0, 9, 1, 9).tolist()))
def sorted_pairs(x, y):
    pairs = sorted(zip(x, y, strict=False), key=lambda p: (p[1], -p[0]))
    return pairs, [a for a, _ in pairs]


@program(lambda rng: (floats(rng, 3, 9),))
def math_many(x):
    s = 0.0
    for v in x:
        s += math.exp(-v * v) + math.atan2(v, 1) + math.hypot(v, 1.0) + math.floor(v)
    s += math.prod([1, 2, 3])
    return s + math.pi + math.factorial(5) + math.comb(5, 2) + math.isqrt(17)


@program(lambda rng: (floats(rng, 1, 8), int(rng.integers(-9, 10)), int(rng.integers(1, 5))))
def quotients_and_medians(x, n, k):
    return divmod(n, k), divmod(n, -k), divmod(float(n), k + 0.5), np.median(x), np.median(x[:1])


@program(lambda rng: (int(rng.integers(0, 20)), int(rng.integers(0, 6))))
def math_of_counts(n, k):
    return math.isqrt(n), math.comb(n, k), math.factorial(n), math.isqrt(n * n)


@program(lambda rng: (int(rng.integers(-2, 3)), int(rng.integers(-1, 3))))
def places_of_negatives(n, k):
    out = []
    for which in range(2):
        try:
            out.append([1, 2].index(n) if which == 0 else bisect.bisect([0, 1, 2], n, k))
        except ValueError:
            out.append(-1)
    return out


@program(lambda rng: (float(rng.choice([-0.0, 0.0, -1.5, math.nan, -math.inf])),))
def abs_of_zeros(x):
    return abs(x), math.copysign(1.0, abs(x))


@program(lambda rng: ("".join(rng.choice(list("abc"), 12)),))
def run_length(s):
    out = ""
    i = 0
    while i < len(s):
        j = i
        while j < len(s) and s[j] == s[i]:
            j += 1
        out += s[i] + str(j - i)
        i = j
    return out


@dataclasses.dataclass
class Point:
    x: float
    y: float

    def norm(self):
        return math.hypot(self.x, self.y)


@program(lambda rng: (Point(float(rng.normal()), 2.0),))
def dc_method(p):
    return p.norm() * 2


@program(lambda rng: (Point(float(rng.normal()), 2.0),))
def dc_new(p):
    q = Point(p.x + 1, p.y)
    return q


@program(lambda rng: ({"x": floats(rng), "k": 3, "name": "ab"},))
def dict_example(e):
    out = {"mean": e["x"].sum(), "k": e["k"] + 1}
    return out


@program(lambda rng: (rng.normal(size=(3, 4)),))
def np_reduce(m):
    return (
        m.sum(axis=0),
        m.max(axis=1, keepdims=True),
        m.mean(axis=1),
        np.std(m, axis=0),
        np.argmax(m, axis=1),
        m.min(),
    )


@program(lambda rng: (rng.normal(size=(3, 3)), rng.normal(size=3)))
def np_linalg(a, b):
    m = a @ a.T + np.eye(3)
    return (
        np.linalg.solve(m, b),
        np.linalg.inv(m),
        np.linalg.det(m),
        np.linalg.norm(b),
        np.dot(b, b),
        np.linalg.cholesky(m),
    )


@program(lambda rng: (rng.normal(size=(4, 4)),))
def np_tri(m):
    i, j = np.triu_indices(4, 1)
    return m[i, j].sum(), np.tril(m), np.outer(m[0], m[1]), np.triu(m, 1)


@program(lambda rng: (rng.normal(size=6),))
def np_signal(x):
    return (
        np.interp(0.5, np.arange(6.0), x),
        np.roll(x, 1),
        np.allclose(x, x),
        np.count_nonzero(x > 0),
        np.isclose(x[0], 1),
    )


@program(lambda rng: (rng.normal(size=(6, 2)),))
def itertools_pairs(pts):
    best = math.inf
    for a, b in itertools.combinations(range(len(pts)), 2):
        d = math.hypot(pts[a][0] - pts[b][0], pts[a][1] - pts[b][1])
        if d < best:
            best = d
    tot = 0
    for i, j in itertools.product(range(3), range(2)):
        tot += i * j
    return best, tot, list(itertools.accumulate([1, 2, 3]))


@program(lambda rng: (rng.normal(size=(3, 4)), floats(rng, 1, 5)))
def views(m, x):
    m[0, 0] = 1.0
    return m[1, ::2], x, m.T, x[::-1], m[:, 1] * 2


@program(lambda rng: (ints(rng).tolist(),))
def sort_given(items):
    items.sort()
    return items


@program(lambda rng: (floats(rng, 0, 4), int(rng.integers(-1, 3))))
def handler_of_another_type(x, i):
    best = x.sum()
    try:
        best = x[i]
        if best > 0.5:
            raise ValueError
    except IndexError:
        best = -1
    except ValueError:
        best = len(x)
    return best


@program(lambda rng: (int(rng.integers(0, 3)), float(rng.normal())))
def captures_of_what_fails(n, x):
    c = d = -1.0
    match (x, n):
        case (c, 1):
            d = c + 1
        case (d, (0 | 5)) if d > 0:
            c = d
        case _:
            pass
    match [x, 2.0 * n]:
        case [x, 0.0] | [2.0, x]:
            n += 10
    return c, d, x, n


@program(lambda rng: (int(rng.integers(0, 3)), [0.5]))
def captures_of_what_may_be_none(n, x):
    match (x if n else None, n):
        case (found, 0 | 1):
            return found is None, round(n), round(True)
        case (found, _) if found is not None:
            return found is None, round(-n), round(False)
    return True, n, n


@program(lambda rng: (int(rng.integers(0, 9)), floats(rng, 2, 4)))
def operands_that_a_call_binds_again(n, x):
    total, i = 1, 0

    def add(k):
        nonlocal total, i
        total += k
        i = 1
        return total

    total *= add(n)
    pair = total, add(1), total
    least = min(total, add(-3), total)
    part = x[i : add(1)]
    return total < add(1), total + add(2), pair, least, part, (x[i], add(2), x[i]), [n, (n := n + 1), n], n + (n := 3)


@program(lambda rng: (ints(rng, 0, 3),))
def collections_of_repeats(x):
    again = list(x.tolist())
    kinds = set(again)
    again.append(len(kinds))
    return again, len(list(x)), sorted(kinds)


@program(lambda rng: (ints(rng, 0, 6), {0: [1, 2], 1: [2], 2: []}))
def dicts_of_lists(x, graph):
    places = defaultdict(list)
    for i, v in enumerate(x):
        places[v].append(i)
    parity = {}
    for v in x.tolist():
        parity.setdefault(v % 2, []).append(v)
    queue, seen = deque([0]), {0}
    while queue:
        for u in graph[queue.popleft()]:
            if u not in seen:
                seen.add(u)
                queue.append(u)
    most = 0
    for k in places:
        most = max(most, len(places[k]), places[k][-1])
    return most, parity, len(seen), sum(sum(each) for each in parity.values()), graph.get(1, []) == [2]


@program(lambda rng: (ints(rng, 0, 4).tolist(), "abba"))
def counted(items, text):
    counts = Counter(items)
    counts[7] += 2
    total = defaultdict(float)
    for v in items:
        total[v] += 0.5
    worth = {"a": 1, "b": 5}
    return (
        counts.most_common(2), counts[9], len(counts), max(counts.values()), total[1], len(total),
        sum([worth[c] for c in text]), list(filter(lambda v: v > 1, items)), sorted(filter(None, items)),
    )  # fmt: skip


@program(lambda rng: (float(rng.normal() * 10.0 ** rng.integers(-3, 9)), int(rng.integers(0, 6))))
def rounded_to_digits(x, n):
    return round(x, n), round(x, 2), round(-x, 3), "ab" * n, heapq.nsmallest(2, [n, 3, 1])


@program(lambda rng: (int(rng.integers(1, 6)),))
def queens_by_sets(n):
    def place(row, columns, rising, falling):
        if row == n:
            return 1
        total = 0
        for c in range(n):
            if c not in columns and row + c not in rising and row - c not in falling:
                total += place(row + 1, columns | {c}, rising | {row + c}, falling | {row - c})
        return total

    return place(0, set(), set(), set())


@program(lambda rng: ("".join(rng.choice(list("aZ9 x"), rng.integers(0, 5))),))
def kinds_of_characters(s):
    return s.isdigit(), s.isalpha(), s.find("9")


@program(lambda rng: (rng.normal(size=(3, 4)), ints(rng, 0, 9, 1)))
def accumulated_arrays(m, x):
    return np.triu(m, 1), np.tril(m), np.cumprod(x)


@program(lambda rng: ((a := rng.normal(size=(rng.integers(0, 4), 3))), a * 2, floats(rng, 0, 2)))
def whole_arrays(a, b, x):
    y = a[:, 0] * b[:, 1] - 2.0 * x if len(x) == len(a) or len(x) == 1 else x / 2.0
    return a + b[:1], a.T + b.T, -a, np.sqrt(a * a), np.square(y), 1.0 / (b + 99.0), a.astype(np.float32) * b


@program(lambda rng: (rng.integers(0, 2, (4, 4)), (int(rng.integers(0, 4)), 3)))
def shortest_way(grid, goal):
    heap, best = [(0, 0, (0, 0))], {(0, 0): 0}
    while heap:
        _, done, at = heapq.heappop(heap)
        if at == goal:
            return done
        for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1)):
            x, y = at[0] + dx, at[1] + dy
            if 0 <= x < 4 and 0 <= y < 4 and not grid[x, y] and done + 1 < best.get((x, y), 99):
                best[x, y] = done + 1
                heapq.heappush(heap, (done + 1 + abs(goal[0] - x) + abs(goal[1] - y), done + 1, (x, y)))
    return -1


@program(lambda rng: (floats(rng, 1, 6), int(rng.integers(-2, 4))))
def functions_beside_each_other(x, n):
    count, low = 0, 0.5

    def is_low(v, limit="none"):
        nonlocal count
        count += 1
        return v < low * n if limit == "none" else v < 0

    def shifted(v):
        return v + count if is_low(v) and is_low(v, "zero") else v - low

    def total(values):
        out = 0.0
        for v in values:
            out += shifted(v)
        return out + (is_low(out) and count)

    first = total(x)
    low = 2.0
    return first, count, total(x[::2]), count


LANGUAGE = sorted(set(PROGRAMS) - _BEFORE)
"""Their names."""
