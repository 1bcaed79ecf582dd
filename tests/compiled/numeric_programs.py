"""Numeric programs as people write them, each with examples: what the compiled way has to run like the loop."""

import dataclasses
import heapq
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[np.random.Generator], Any], dict[str, Any]]] = {}


def program(examples: Callable[[np.random.Generator], Any], **shared: Any) -> Callable[[Any], Any]:
    """Registers a program with what makes one example: the tuple of its arguments."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, examples, shared
        return function

    return register


def ints(rng, low=0, high=5, least=0, most=12):
    return rng.integers(low, high, rng.integers(least, most))


def floats(rng, least=0, most=12):
    return rng.normal(size=rng.integers(least, most))


@program(lambda rng: (ints(rng), ints(rng)))
def levenshtein(a, b):
    prev = list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        cur = [i]
        for j in range(1, len(b) + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            cur.append(min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + cost))
        prev = cur
    return prev[-1]


@program(lambda rng: (ints(rng), ints(rng)))
def levenshtein_table(a, b):
    d = np.zeros((len(a) + 1, len(b) + 1), np.int64)
    for i in range(len(a) + 1):
        d[i, 0] = i
    for j in range(len(b) + 1):
        d[0, j] = j
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + cost)
    return d[len(a), len(b)]


@program(lambda rng: ("".join(rng.choice(list("abcé"), rng.integers(0, 9))), "".join(rng.choice(list("abcé"), 5))))
def levenshtein_of_strings(s, t):
    d = np.zeros((len(s) + 1, len(t) + 1), dtype=np.int64)
    d[:, 0] = np.arange(len(s) + 1)
    d[0, :] = np.arange(len(t) + 1)
    for i, a in enumerate(s, 1):
        for j, b in enumerate(t, 1):
            d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + (a != b))
    return int(d[-1, -1])


@program(lambda rng: (floats(rng), floats(rng)))
def dtw(x, y):
    n, m = len(x), len(y)
    d = np.full((n + 1, m + 1), np.inf)
    d[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            d[i, j] = abs(x[i - 1] - y[j - 1]) + min(d[i - 1, j], d[i, j - 1], d[i - 1, j - 1])
    return d[n, m]


@program(lambda rng: (ints(rng, 0, 4), ints(rng, 0, 4)), gap=-2.0)
def smith_waterman(a, b, gap):
    n, m = len(a), len(b)
    h = np.zeros((n + 1, m + 1))
    best, where = 0.0, (0, 0)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            match = 3.0 if a[i - 1] == b[j - 1] else -3.0
            h[i, j] = max(0.0, h[i - 1, j - 1] + match, h[i - 1, j] + gap, h[i, j - 1] + gap)
            if h[i, j] > best:
                best, where = h[i, j], (i, j)
    i, j = where
    path = []
    while i > 0 and j > 0 and h[i, j] > 0:
        path.append((i - 1, j - 1))
        match = 3.0 if a[i - 1] == b[j - 1] else -3.0
        if h[i, j] == h[i - 1, j - 1] + match:
            i, j = i - 1, j - 1
        elif h[i, j] == h[i - 1, j] + gap:
            i -= 1
        else:
            j -= 1
    return best, path[::-1]


@program(lambda rng: (ints(rng, 0, 2),))
def longest_run(x):
    best = run = 0
    for i in range(len(x)):
        if i > 0 and x[i] == x[i - 1]:
            run += 1
        else:
            run = 1
        best = max(best, run)
    return best


@program(lambda rng: (rng.normal(size=(rng.integers(0, 7), 4)),))
def best_pair(p):
    best = None
    best_mass = 1e9
    for i in range(len(p)):
        for j in range(i + 1, len(p)):
            e = p[i, 0] + p[j, 0]
            px, py = p[i, 1] + p[j, 1], p[i, 2] + p[j, 2]
            m2 = e * e - px**2 - py**2
            mass = math.sqrt(m2) if m2 > 0 else 0.0
            if abs(mass - 1.5) < best_mass:
                best_mass = abs(mass - 1.5)
                best = (i, j)
    return (-1, -1, best_mass) if best is None else (best[0], best[1], best_mass)


@program(
    lambda rng: (rng.normal(size=(n := rng.integers(0, 8))), rng.uniform(-3, 3, n), rng.exponential(size=n)), cone=0.8
)
def isolation(eta, phi, pt, cone):
    out = np.zeros(len(pt))
    for i in range(len(pt)):
        total = 0.0
        for j in range(len(pt)):
            if i == j:
                continue
            dphi = abs(phi[i] - phi[j])
            if dphi > math.pi:
                dphi = 2 * math.pi - dphi
            deta = eta[i] - eta[j]
            if math.hypot(deta, dphi) < cone:
                total += pt[j]
        out[i] = total / pt[i]
    return out


@program(
    lambda rng: (rng.exponential(size=(n := rng.integers(0, 8))), rng.normal(size=n), rng.uniform(-3, 3, n)), radius=0.6
)
def anti_kt(pt, y, phi, radius):
    jets = []
    live = [(pt[i], y[i], phi[i]) for i in range(len(pt))]
    while live:
        best, bi, bj = math.inf, -1, -1
        for i in range(len(live)):
            di = 1.0 / live[i][0] ** 2
            if di < best:
                best, bi, bj = di, i, -1
            for j in range(i):
                dphi = abs(live[i][2] - live[j][2])
                if dphi > math.pi:
                    dphi = 2 * math.pi - dphi
                d2 = (live[i][1] - live[j][1]) ** 2 + dphi * dphi
                d = min(di, 1.0 / live[j][0] ** 2) * d2 / radius**2
                if d < best:
                    best, bi, bj = d, i, j
        if bj < 0:
            jets.append(live.pop(bi)[0])
        else:
            a, b = live[bi], live[bj]
            live.pop(bi)
            live.pop(bj)
            p = a[0] + b[0]
            live.append((p, (a[0] * a[1] + b[0] * b[1]) / p, (a[0] * a[2] + b[0] * b[2]) / p))
    return sorted(jets, reverse=True)


@program(lambda rng: (ints(rng, 0, 50),))
def longest_increasing(x):
    tails = []
    for v in x:
        lo, hi = 0, len(tails)
        while lo < hi:
            mid = (lo + hi) // 2
            if tails[mid] < v:
                lo = mid + 1
            else:
                hi = mid
        if lo == len(tails):
            tails.append(v)
        else:
            tails[lo] = v
    return len(tails)


TREE = (
    np.array([0, 1, -1, -1, 2, -1, -1]),
    np.array([0.1, -0.3, 0, 0, 0.5, 0, 0]),
    np.array([1, 2, -1, -1, 5, -1, -1]),
    np.array([4, 3, -1, -1, 6, -1, -1]),
    np.array([0, 0, 1.0, 2.0, 0, 3.0, 4.0]),
)


@program(lambda rng: (rng.normal(size=3),), tree=TREE)
def decision_tree(x, tree):
    feature, threshold, left, right, value = tree
    node = 0
    while feature[node] >= 0:
        node = left[node] if x[feature[node]] <= threshold[node] else right[node]
    return value[node]


@program(lambda rng: (ints(rng, 0, 3, 1),), start=np.log([0.6, 0.4]), move=np.log([[0.7, 0.3], [0.4, 0.6]]),
         emit=np.log([[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]]))  # fmt: skip
def viterbi(obs, start, move, emit):
    n, k = len(obs), len(start)
    score = np.zeros((n, k))
    back = np.zeros((n, k), dtype=int)
    score[0] = start + emit[:, obs[0]]
    for t in range(1, n):
        for s in range(k):
            options = score[t - 1] + move[:, s]
            back[t, s] = np.argmax(options)
            score[t, s] = options[back[t, s]] + emit[s, obs[t]]
    path = [int(np.argmax(score[-1]))]
    for t in range(n - 1, 0, -1):
        path.append(int(back[t, path[-1]]))
    return path[::-1], score[-1].max()


@program(lambda rng: (np.where(rng.random(n := rng.integers(0, 12)) < 0.3, np.nan, rng.normal(size=n)),), q=0.1, r=0.5)
def kalman(z, q, r):
    x, p, loglik = 0.0, 1.0, 0.0
    means = np.empty(len(z))
    for t in range(len(z)):
        p = p + q
        if not np.isnan(z[t]):
            s = p + r
            k = p / s
            innovation = z[t] - x
            loglik += -0.5 * (math.log(2 * math.pi * s) + innovation**2 / s)
            x = x + k * innovation
            p = (1 - k) * p
        means[t] = x
    return means, loglik


@program(lambda rng: (rng.normal(size=2), rng.uniform(0.5, 2)))
def adaptive_runge_kutta(y0, end):
    t, h = 0.0, 0.1
    a, b = y0[0], y0[1]
    steps = 0
    while t < end:
        if t + h > end:
            h = end - t
        k1a, k1b = b, -a
        k2a, k2b = b + h * k1b, -(a + h * k1a)
        error = max(abs(h * (k2a - k1a) / 2), abs(h * (k2b - k1b) / 2))
        if error < 1e-3 or h < 1e-6:
            t += h
            a, b = a + h * (k1a + k2a) / 2, b + h * (k1b + k2b) / 2
            steps += 1
        h *= min(2.0, max(0.3, 0.9 * math.sqrt(1e-3 / (error + 1e-12))))
    return a, b, steps


@program(lambda rng: (np.where(rng.random((n := rng.integers(0, 6), n)) < 0.5, np.inf, rng.random((n, n))),))
def floyd(w):
    d = w.copy()
    n = d.shape[0]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                if d[i, k] + d[k, j] < d[i, j]:
                    d[i, j] = d[i, k] + d[k, j]
    return d


@program(lambda rng: ([[(int(rng.integers(0, 5)), float(rng.random())) for _ in range(2)] for _ in range(5)],))
def dijkstra(graph):
    dist = [math.inf] * len(graph)
    dist[0] = 0.0
    heap = [(0.0, 0)]
    while heap:
        d, u = heapq.heappop(heap)
        if d > dist[u]:
            continue
        for v, w in graph[u]:
            if d + w < dist[v]:
                dist[v] = d + w
                heapq.heappush(heap, (d + w, v))
    return dist


@program(lambda rng: (ints(rng, 0, 6),))
def counts_by_key(x):
    seen = {}
    for v in x:
        key = int(v)
        seen[key] = seen.get(key, 0) + 1
    best = -1
    for key, count in seen.items():
        if best < 0 or count > seen[best]:
            best = key
    return best, len(seen)


@program(lambda rng: (int(rng.integers(0, 7)), int(rng.integers(0, 7))))
def grid_paths(i, j):
    if i == 0 or j == 0:
        return 1
    return grid_paths(i - 1, j) + grid_paths(i, j - 1)


@numba.njit
def clipped(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x


@numba.njit
def whole_or_half(x):
    if x > 0.0:
        return 1
    return 0.5


@program(lambda rng: (floats(rng),))
def uses_a_jitted_helper(x):
    total = 0.0
    for v in x:
        total += clipped(v, -0.5, 0.5)
    return total, [whole_or_half(v) for v in x]


@dataclasses.dataclass
class Particle:
    mass: float
    position: np.ndarray


@program(lambda rng: (Particle(float(rng.random()), rng.normal(size=3)), {"g": float(rng.random()), "k": [1, 2]}))
def energy(p, field):
    return p.mass * field["g"] * p.position[2] + sum(field["k"])


@program(lambda rng: (ints(rng, -3, 3),))
def sum_of_ints(x):
    s = 0
    for v in x:
        s += v
    return s


@program(lambda rng: (floats(rng),))
def sum_that_begins_as_an_int(x):
    s = 0
    for v in x:
        if v > 0:
            s += v
    return s


@program(lambda rng: (floats(rng, 2),))
def elementwise(x):
    y = np.exp(-x * 0.5) + np.tanh(x) / 2
    z = np.maximum(y, 0.3) - y.mean()
    return z, z.sum(), np.argmax(z), np.sqrt(np.abs(z))


@program(lambda rng: (floats(rng, 1).astype(np.float32),))
def single_precision(x):
    m = x[0]
    for v in x:
        m = max(m, v * 2)
    return m, m + 1, m * 1.5, x * 2.0, x.sum()


@program(lambda rng: (ints(rng, 0, 7, 1), ints(rng, 0, 7, 7, 8)))
def scatter(idx, values):
    out = np.zeros(7)
    np.add.at(out, idx, 1.5)
    counts = np.bincount(idx, minlength=7)
    rows, cols = np.triu_indices(4, 1)
    return out, counts, rows + cols, np.searchsorted(np.sort(values), 3), np.where(values > 3, values, 0)


@program(lambda rng: (ints(rng),))
def comprehension(x):
    squares = [int(v) ** 2 for v in x if v % 2 == 1]
    return (
        squares,
        sum(squares),
        max(squares, default=-1),
        any(v > 10 for v in squares),
        sorted(squares, key=lambda s: -s),
    )


@program(lambda rng: ("".join(rng.choice(list("()[]x"), rng.integers(0, 9))),))
def balanced(text):
    stack = []
    for c in text:
        if c in "([":
            stack.append(c)
        elif c == ")" or c == "]":
            if not stack:
                return False
            top = stack.pop()
            if (top == "(") != (c == ")"):
                return False
    return not stack


@program(lambda rng: (int(rng.integers(1, 200)),))
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@program(lambda rng: (floats(rng, 3, 9), 3))
def moving_average(x, width):
    out = []
    for i in range(len(x) - width + 1):
        out.append(float(np.mean(x[i : i + width])))
    return out


@program(lambda rng: ("".join(rng.choice(list("abc"), 6)), "".join(rng.choice(list("abc"), rng.integers(0, 7)))))
def common_subsequence(a, b):
    dp = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a)):
        for j in range(len(b)):
            if a[i] == b[j]:
                dp[i + 1][j + 1] = dp[i][j] + 1
            else:
                dp[i + 1][j + 1] = max(dp[i][j + 1], dp[i + 1][j])
    return dp[-1][-1]


def fibonacci(n, memo):
    if n in memo:
        return memo[n]
    if n < 2:
        return n
    memo[n] = fibonacci(n - 1, memo) + fibonacci(n - 2, memo)
    return memo[n]


@program(lambda rng: (int(rng.integers(0, 96)),))
def memoised_recursion(n):
    memo = {}
    return fibonacci(n, memo), len(memo)


@program(lambda rng: (rng.normal(size=(2, 2)), rng.normal(size=2)))
def kalman_of_matrices(f, x):
    p = np.eye(2)
    for _ in range(3):
        x = f @ x
        p = f @ p @ f.T + 0.1 * np.eye(2)
        gain = p[:, 0] / (p[0, 0] + 1.0)
        x = x + gain * (1.0 - x[0])
        p = p - np.outer(gain, p[0])
    return x, p


@program(lambda rng: (float(rng.normal() * 3),))
def newton(x):
    for step in range(8):
        value, slope = x**3 - 2 * x - 5, 3 * x**2 - 2
        if slope == 0:
            return None
        following = x - value / slope
        if abs(following - x) < 1e-9:
            return following, step
        x = following
    return None


@program(lambda rng: ([[int(v) for v in ints(rng, 0, 5, 0, 3)] for _ in range(5)], 0))
def breadth_first(neighbours, start):
    seen, queue, k = {start}, [start], 0
    while k < len(queue):
        for v in neighbours[queue[k]]:
            if v not in seen:
                seen.add(v)
                queue.append(v)
        k += 1
    return queue


@program(lambda rng: (floats(rng, 0, 5) * 10.0 ** rng.integers(-170, 170), 10.0 ** rng.integers(-20, 20)))
def squares(x, h):
    total = 0.0
    for v in x:
        total += v**2 / h**2
    for h in x:
        total += h**2
    return total, h**2


@program(lambda rng: (floats(rng), int(rng.integers(0, 99)), int(2**63 - 1 - rng.integers(0, 99))))
def counters(x, n, much):
    i, j, count = 0, len(x) - 1, 0
    while i <= j:
        if x[i] > x[j]:
            i += 1
        else:
            j -= 2
        count += 3
        much += 1
    doubled = 1
    for _ in range(n):
        doubled += doubled
    return i, j, count * count, much, doubled


@program(lambda rng: (ints(rng), ints(rng, 0, 5).astype(np.int32), floats(rng), int(rng.integers(-1, 5))))
def counts_and_shapes(ids, small, weights, n):
    both = np.bincount(ids[: len(weights)], weights[: len(ids)], n + 1), np.bincount(small, minlength=2)
    made = np.eye(abs(n)), np.eye(3, dtype=np.int64), np.outer(ids, weights), np.cumsum(small), np.diff(weights)
    return both, made, np.triu_indices(n), np.tril_indices(n, -1), np.full_like(small, 7), np.add.accumulate(ids)


@program(lambda rng: (rng.normal(size=(int(rng.integers(1, 4)), 3)), floats(rng)))
def options_that_are_known(m, x):
    spread = np.var(m, ddof=1), m.std(axis=0), np.std(m, 1, keepdims=True), np.mean(m, axis=-1), m.var()
    made = np.tri(len(m)), np.diag(x, -1), np.flipud(m), np.flip(m), np.nonzero(m > 0), np.full_like(m, 2)
    return spread, made, np.maximum.accumulate(x), np.logaddexp.accumulate(x), np.shape(m), np.size(x)


def _expression(tokens, at):
    value, at = _term(tokens, at)
    while at < len(tokens) and tokens[at] < 2:
        right, next_at = _term(tokens, at + 1)
        value, at = (value + right if tokens[at] == 0 else value - right), next_at
    return value, at


def _term(tokens, at):
    value, at = _factor(tokens, at)
    while at < len(tokens) and tokens[at] == 2:
        right, at = _factor(tokens, at + 1)
        value *= right
    return value, at


def _factor(tokens, at):
    if tokens[at] == 3:
        value, at = _expression(tokens, at + 1)
        return -value, at + 1
    return float(tokens[at]), at + 1


def _tokens(rng, depth=3):
    """A sum of products: 0 adds, 1 subtracts, 2 multiplies, 3 and 4 are brackets that negate, others are numbers."""
    out = []
    for _ in range(int(rng.integers(1, 4))):
        inner = [3, *_tokens(rng, depth - 1), 4] if depth and rng.random() < 0.5 else [int(rng.integers(5, 9))]
        out += [*inner, int(rng.integers(0, 3))]
    return out[:-1]


@program(lambda rng: (np.array(_tokens(rng)),))
def recursive_descent(tokens):
    return _expression(tokens, 0)


def _is_even(n):
    return True if n == 0 else _is_odd(n - 1)


def _is_odd(n):
    return False if n == 0 else _is_even(n - 1)


@program(lambda rng: (int(rng.integers(-30, 30)),))
def calls_in_a_circle(n):
    return _is_even(abs(n)), _is_odd(abs(n))


def _first(x, n):
    return x if n <= 0 else _second(x * 0.5, n - 1) + 1


def _second(x, n):
    return 2 * x if n <= 0 else _third(x * 0.9, n - 1)


def _third(x, n):
    return 3 * x if n <= 0 else _first(x + 1, n - 1)


@program(lambda rng: (float(rng.normal()),))
def calls_in_a_circle_of_three(x):
    return _first(x, 7)


@program(lambda rng: (rng.normal(size=(rng.integers(0, 5), 6)),))
def axes_in_other_orders(x):
    y = x.reshape(len(x), 2, 3)
    named = np.transpose(y, axes=(-1, 0, 1)), np.moveaxis(y, source=0, destination=-1), np.expand_dims(y, axis=(0, -1))
    return y.transpose(), y.transpose(2, 0, 1), y.transpose((1, 0, 2)), y.swapaxes(0, -1), np.rollaxis(y, 2), *named


@program(lambda rng: (rng.normal(size=(rng.integers(0, 5), 6)),))
def reshaped_to_a_view_or_a_copy(x):
    """What is written into the one shows in the other, or not, as in NumPy."""
    out = []
    for y in (x + 0.0, (x + 0.0).T, (x + 0.0)[:, :4], (x + 0.0)[:, 1:2], (x + 0.0)[::2]):
        z = y.reshape(-1)
        z[:1] = 7.0
        out.append((y.sum(), z))
    y = (x + 0.0).reshape(len(x), 2, 3)
    z = y.transpose(1, 0, 2).reshape(2, -1)
    z[:, :1] = 8.0
    u = y[:, :, :1].reshape(2, -1)
    u[:, :1] = 9.0
    return out, y, z, u


@program(lambda rng: (rng.normal(size=(rng.integers(0, 4), 2, 3)), rng.normal(size=(3, 2))))
def products_of_stacks_of_matrices(x, w):
    several = [x @ w, w @ x, np.matmul(w, x)]
    try:
        several.append(x @ np.stack([w, w]))
    except ValueError:
        several.append(x)
    return (
        several,
        x @ w[:, 0],
        w[0] @ x,
        x @ np.expand_dims(w, 0),
        np.stack([x, x]) @ w,
        np.stack([x, x]) @ x.swapaxes(1, 2),
    )


@program(lambda rng: ([rng.normal(size=(2, rng.integers(1, 3))) for _ in range(rng.integers(0, 4))],))
def stacks_of_matrices(parts):
    try:
        return np.stack(parts), np.stack(parts, axis=1), np.stack(parts, axis=-1), np.array(parts)
    except ValueError:
        return None
