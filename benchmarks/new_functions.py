"""Functions of one example, as researchers write them, that no cache has seen: `benchmarks.first_calls` imports this
file under a new name each time. `FUNCTIONS` says what their examples are made from.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

WIDTH = 16


# Sequences, number by number.


def edit_distance(a, b):
    previous = list(range(len(b) + 1))
    for i in range(len(a)):
        current = [i + 1]
        for j in range(len(b)):
            cost = 0 if a[i] == b[j] else 1
            current.append(min(previous[j + 1] + 1, current[j] + 1, previous[j] + cost))
        previous = current
    return previous[-1]


def time_warp(a, b):
    d = np.full((len(a) + 1, len(b) + 1), np.inf)
    d[0, 0] = 0.0
    for i in range(len(a)):
        for j in range(len(b)):
            d[i + 1, j + 1] = abs(a[i] - b[j]) + min(d[i, j + 1], d[i + 1, j], d[i, j])
    return d[-1, -1]


def longest_increasing(x):
    best = [1] * len(x)
    for i in range(len(x)):
        for j in range(i):
            if x[j] < x[i]:
                best[i] = max(best[i], best[j] + 1)
    return max(best)


def drawdown(x):
    peak, worst = -math.inf, 0.0
    for v in x:
        peak = max(peak, v)
        worst = max(worst, peak - v)
    return worst


def smoothed(x):
    out = np.empty(len(x))
    level = x[0]
    for i, v in enumerate(x):
        level = 0.9 * level + 0.1 * v
        out[i] = level
    return out


def soft_threshold(x):
    out = x.copy()
    for i in range(len(x)):
        if x[i] > 0.5:
            out[i] = x[i] - 0.5
        elif x[i] < -0.5:
            out[i] = x[i] + 0.5
        else:
            out[i] = 0.0
    return out


def inversions(x):
    count = 0
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            count += x[i] > x[j]
    return count


def insertion_sorted(x):
    out = x.copy()
    for i in range(1, len(out)):
        v, j = out[i], i - 1
        while j >= 0 and out[j] > v:
            out[j + 1] = out[j]
            j -= 1
        out[j + 1] = v
    return out


def crossings(x):
    count = 0
    for i in range(1, len(x)):
        if (x[i] >= 0) != (x[i - 1] >= 0):
            count += 1
    return count


def welford(x):
    mean = squares = 0.0
    for n, v in enumerate(x, 1):
        step = v - mean
        mean += step / n
        squares += step * (v - mean)
    return mean, squares / len(x)


def kahan(x):
    total = rest = 0.0
    for v in x:
        y = v - rest
        t = total + y
        rest = (t - total) - y
        total = t
    return total


def peaks(x):
    count = 0
    for i in range(1, len(x) - 1):
        if x[i - 1] < x[i] > x[i + 1]:
            count += 1
    return count


def histogram(x):
    counts = np.zeros(8, int)
    for v in x:
        counts[min(7, max(0, int((v + 3.0) / 0.75)))] += 1
    return counts


def kalman(x):
    mean, variance = 0.0, 1.0
    for v in x:
        variance += 0.01
        gain = variance / (variance + 0.5)
        mean += gain * (v - mean)
        variance *= 1.0 - gain
    return mean


def relative_strength(x):
    up = down = 1e-9
    for i in range(1, len(x)):
        change = x[i] - x[i - 1]
        if change > 0:
            up += change
        else:
            down -= change
    return 100.0 - 100.0 / (1.0 + up / down)


def knapsack(weights):
    best = [0] * 31
    for w in weights:
        for room in range(30, w - 1, -1):
            best[room] = max(best[room], best[room - w] + w * w)
    return best[30]


def luhn(digits):
    total = 0
    for place, d in enumerate(digits):
        d = d * 2 if place % 2 else d
        total += d - 9 if d > 9 else d
    return total % 10 == 0


def run_lengths(x):
    out, run = [], 0
    for v in x:
        if v > 0:
            run += 1
        elif run:
            out.append(run)
            run = 0
    return out


def simpson(x):
    total = x[0] + x[-1]
    for i in range(1, len(x) - 1):
        total += (4.0 if i % 2 else 2.0) * x[i]
    return total / 3.0


def moving_median(x):
    return np.array([np.median(x[max(0, i - 2) : i + 3]) for i in range(len(x))])


def clipped_rewards(x):
    total, scale = 0.0, 1.0
    for v in x:
        total += scale * max(-1.0, min(1.0, v))
        scale *= 0.95
    return total


# Points, matrices, single numbers and text.


def polygon_area(points):
    area = 0.0
    for i in range(len(points)):
        x0, y0 = points[i - 1]
        x1, y1 = points[i]
        area += x0 * y1 - x1 * y0
    return abs(area) / 2.0


def inside(points):
    found = False
    j = len(points) - 1
    for i in range(len(points)):
        if (points[i, 1] > 0.1) != (points[j, 1] > 0.1):
            at = (points[j, 0] - points[i, 0]) * (0.1 - points[i, 1]) / (points[j, 1] - points[i, 1]) + points[i, 0]
            if at > 0.1:
                found = not found
        j = i
    return found


def path_length(points):
    total = 0.0
    for a, b in itertools.pairwise(points):
        total += math.hypot(a[0] - b[0], a[1] - b[1])
    return total


def eliminate(m):
    a, n = m.copy(), len(m)
    for i in range(n):
        for j in range(i + 1, n):
            factor = a[j, i] / a[i, i]
            for k in range(i, n):
                a[j, k] -= factor * a[i, k]
    out = 1.0
    for i in range(n):
        out *= a[i, i]
    return out


def power_iteration(m):
    v = np.ones(len(m))
    for _ in range(6):
        v = m @ v
        v = v / np.sqrt((v * v).sum())
    return v @ m @ v


def newton_root(v):
    x = v if v > 1.0 else 1.0
    for _ in range(20):
        step = 0.5 * (x - v / x)
        x -= step
        if abs(step) < 1e-12:
            break
    return x


def bisected(v):
    low, high = 0.0, 10.0
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        if middle * math.exp(middle) < v:
            low = middle
        else:
            high = middle
    return low


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def greatest_divisor(a, b):
    while b:
        a, b = b, a % b
    return a


def logistic_orbit(v):
    x = 0.3
    for _ in range(25):
        x = (2.5 + 0.5 * math.tanh(v)) * x * (1.0 - x)
    return x


def black_scholes(spot, strike):
    d1 = (math.log(spot / strike) + 0.045) / 0.3
    d2 = d1 - 0.3
    cdf = [0.5 * (1.0 + math.erf(d / math.sqrt(2.0))) for d in (d1, d2)]
    return spot * cdf[0] - strike * math.exp(-0.02) * cdf[1]


def escape_time(v):
    c = complex(-0.7 + 0.2 * v, 0.25)
    z = 0j
    for i in range(40):
        if abs(z) > 2.0:
            return i
        z = z * z + c
    return 40


def parse_int(text):
    sign, out = 1, 0
    for place, character in enumerate(text):
        if place == 0 and character == "-":
            sign = -1
        else:
            out = 10 * out + ord(character) - ord("0")
    return sign * out


def hashed(text):
    h = 5381
    for character in text:
        h = (h * 33 + ord(character)) & 0xFFFFFFFF
    return h


# Whole arrays.


def _softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax(x):
    return _softmax(x)


def entropy(x):
    p = _softmax(x)
    return -(p * np.log(p)).sum()


def standardised(x):
    return (x - x.mean()) / (x.std() + 1e-6)


def shrunk(x):
    return np.sign(x) * np.maximum(np.abs(x) - 0.5, 0.0)


def cosine(a, b):
    return (a @ b) / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-9)


def autocorrelation(x):
    c = x - x.mean()
    return np.array([(c[: len(c) - k] * c[k:]).sum() for k in range(4)]) / (c * c).sum()


def spectrum(x):
    return np.abs(np.fft.rfft(x)) ** 2


def quartile_range(x):
    low, high = np.quantile(x, [0.25, 0.75])
    return high - low


def nearest(points):
    d = ((points[:, None] - points[None]) ** 2).sum(-1)
    return np.sqrt(d + 1e9 * np.eye(len(points))).min(1).mean()


def regression(points):
    x = np.stack([np.ones(len(points)), points[:, 0]], axis=1)
    return np.linalg.solve(x.T @ x + 0.1 * np.eye(2), x.T @ points[:, 1])


def returns_sharpe(x):
    r = np.diff(x)
    return r.mean() / (r.std() + 1e-9)


# Small models.


def rnn(x, params):
    h = np.zeros(WIDTH)
    for v in x:
        h = np.tanh(v * params["w"] + h @ params["u"])
    return h


def gru(x, params):
    h = np.zeros(WIDTH)
    for v in x:
        z = 1.0 / (1.0 + np.exp(-(v * params["w"] + h @ params["u"])))
        h = z * h + (1.0 - z) * np.tanh(v * params["w"] - h @ params["u"])
    return (h * params["w"]).sum()


def attention(x, params):
    rows = x[:, None] * params["w"]
    return (_softmax(rows @ params["u"] @ rows.T) @ rows).sum(0)


def bag(ids, params):
    return np.tanh(params["table"][ids].mean(0) @ params["u"]) @ params["w"]


def pooled(points, params):
    h = np.maximum(points @ params["w"].reshape(2, -1), 0.0)
    return h.max(0) + h.mean(0)


def perceptron(m, params):
    h = m.reshape(-1)
    for _ in range(3):
        h = np.maximum(h @ params["u"], 0.0) + h
    return _softmax(h)


def gated(x, params):
    score = 0.0
    for v in x:
        gate = 1.0 / (1.0 + math.exp(-v))
        score = score * (1.0 - gate) + gate * params["w"][0]
    return score


def viterbi(x, params):
    u = params["u"]
    best = x[0] * params["w"]
    for v in x[1:]:
        best = (best[:, None] + u).max(0) + v * params["w"]
    return best.max()


def _params(rng):
    u = rng.normal(size=(WIDTH, WIDTH)) / WIDTH
    return {"w": rng.normal(size=WIDTH), "u": u, "table": rng.normal(size=(50, WIDTH))}


SCALE = 1  # examples are this many times as long; of functions that take a step for each pair, the square root


def _sequence(rng):
    return rng.normal(size=SCALE * rng.integers(15, 31))


def _short(rng):
    return rng.normal(size=int(SCALE**0.5 * rng.integers(15, 31)))


def _even(rng):
    return rng.normal(size=24 * SCALE)


def _letters(rng):
    return rng.integers(0, 9, size=SCALE * rng.integers(6, 16))


def _word(rng):
    return rng.integers(0, 9, size=int(SCALE**0.5 * rng.integers(6, 16)))


def _points(rng):
    return rng.normal(size=(SCALE * rng.integers(8, 17), 2))


def _matrix(rng):
    return rng.normal(size=(4, 4)) + 4.0 * np.eye(4)


def _float(rng):
    return float(rng.uniform(1.0, 20.0))


def _int(rng):
    return int(rng.integers(1, 500 * SCALE))


def _text(rng):
    return str(int(rng.integers(-(10**6), 10**6)))


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of the table.

    Attributes:
        run: it; columns: what makes one example of each of its arguments, None for `params`.
        batched: whether batches hold them.
    """

    run: Callable[..., Any]
    columns: Sequence[Callable[[np.random.Generator], Any] | None]
    batched: bool = True


def functions() -> dict[str, Function]:
    """Every function, by its name."""
    by_columns: list[tuple[Any, Sequence[Any]]] = [
        ((_short,), (longest_increasing, inversions, insertion_sorted, moving_median)),
        ((_sequence,), (drawdown, smoothed, soft_threshold)),
        ((_sequence,), (welford, kahan, peaks, histogram, kalman, relative_strength, run_lengths, simpson)),
        ((_sequence,), (clipped_rewards, softmax, entropy, standardised, shrunk, autocorrelation)),
        ((_sequence,), (spectrum, quartile_range, returns_sharpe, crossings)),
        ((_short, None), (rnn, gru, attention, viterbi)),
        ((_sequence, None), (gated,)),
        ((_word, _word), (edit_distance,)),
        ((_short, _short), (time_warp,)),
        ((_letters,), (knapsack, luhn)),
        ((_letters, None), (bag,)),
        ((_points,), (polygon_area, inside, path_length, nearest, regression)),
        ((_points, None), (pooled,)),
        ((_matrix,), (eliminate, power_iteration)),
        ((_matrix, None), (perceptron,)),
        ((_float,), (newton_root, bisected, logistic_orbit, escape_time)),
        ((_float, _float), (black_scholes,)),
        ((_int,), (collatz,)),
        ((_int, _int), (greatest_divisor,)),
        ((_even, _even), (cosine,)),
        ((_text,), (parse_int, hashed)),
    ]
    return {
        run.__name__: Function(run, columns, batched=columns != (_text,))
        for columns, runs in by_columns
        for run in runs
    }
