"""Differentiable code of numbers in loops as people write it, each with examples and what is differentiated."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[[np.random.Generator], Any], tuple[int, ...]]] = {}


def differentiated(*argnums: int, examples: Callable[[np.random.Generator], Any]) -> Callable[[Any], Any]:
    """Registers a program with what makes one example, the tuple of its arguments."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        GRADIENTS[function.__name__] = function, examples, argnums
        return function

    return register


def floats(rng, least=1, most=7):
    return rng.normal(size=rng.integers(least, most))


@differentiated(0, 1, examples=lambda rng: (floats(rng), floats(rng)))
def soft_dtw(a, b, gamma=0.5):
    n, m = len(a), len(b)
    r = np.full((n + 1, m + 1), np.inf)
    r[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            low = min(r[i - 1, j], r[i, j - 1], r[i - 1, j - 1])
            total = math.exp((low - r[i - 1, j]) / gamma) + math.exp((low - r[i, j - 1]) / gamma)
            total += math.exp((low - r[i - 1, j - 1]) / gamma)
            r[i, j] = (a[i - 1] - b[j - 1]) ** 2 + low - gamma * math.log(total)
    return r[n, m]


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(rng.integers(1, 6), 3)), rng.normal(size=(3, 3))))
def random_field(emissions, transitions):
    alpha = emissions[0]
    for t in range(1, len(emissions)):
        following = np.zeros(3)
        for j in range(3):
            scores = alpha + transitions[:, j]
            top = np.max(scores)
            following[j] = emissions[t, j] + top + np.log(np.sum(np.exp(scores - top)))
        alpha = following
    return np.logaddexp(np.logaddexp(alpha[0], alpha[1]), alpha[2])


@differentiated(0, 1, examples=lambda rng: (floats(rng), floats(rng, 1, 2)))
def sums_of_powers_of_two(a, b):
    total = b[0]
    for v in a:
        total = np.logaddexp2(total, np.clip(v, None, 0.5))
    return np.sum(np.logaddexp2(a, b)) + total


@differentiated(
    1, examples=lambda rng: (rng.integers(0, 2, rng.integers(1, 7)), {"stay": 0.7, "emit": rng.random((2, 2)) + 0.1})
)
def markov_chain(observed, p):
    forward = [0.5 * p["emit"][0, observed[0]], 0.5 * p["emit"][1, observed[0]]]
    for o in observed[1:]:
        a = (forward[0] * p["stay"] + forward[1] * (1 - p["stay"])) * p["emit"][0, o]
        b = (forward[1] * p["stay"] + forward[0] * (1 - p["stay"])) * p["emit"][1, o]
        forward = [a, b]
    return math.log(forward[0] + forward[1])


@differentiated(
    0,
    1,
    2,
    examples=lambda rng: (np.where(rng.random(n := rng.integers(1, 8)) < 0.3, np.nan, rng.normal(size=n)), 0.1, 0.5),
)
def kalman(z, q, r):
    x, p, loglik = 0.0, 1.0, 0.0
    for t in range(len(z)):
        p = p + q
        if not math.isnan(z[t]):
            s = p + r
            k = p / s
            innovation = z[t] - x
            loglik += -0.5 * (math.log(2 * math.pi * s) + innovation**2 / s)
            x = x + k * innovation
            p = (1 - k) * p
    return loglik + 0.0 * x


@differentiated(0, 1, examples=lambda rng: (floats(rng), float(rng.normal())))
def scan_with_if(x, w):
    h, up = 0.0, 0
    for v in x:
        if v > 0.0:
            h = np.tanh(h * w + v)
            up += 1
        elif v < -1.5:
            continue
        else:
            h = h * 0.5 - v * v
    return h * h + up


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(3, 2)), rng.normal(size=(3, 2))))
def leapfrog(position, velocity, steps=4, dt=0.05):
    q, v = position.copy(), velocity.copy()
    for _ in range(steps):
        force = np.zeros((3, 2))
        for i in range(3):
            for j in range(3):
                if i != j:
                    dx, dy = q[j, 0] - q[i, 0], q[j, 1] - q[i, 1]
                    d = (dx * dx + dy * dy + 0.1) ** 1.5
                    force[i, 0] += dx / d
                    force[i, 1] += dy / d
        v += dt * force
        q = q + dt * v
    return (q * q).sum() + 0.5 * np.sum(v**2)


def _rates(a, b, k):
    return k * a - a * b, a * b - b


@differentiated(0, 1, examples=lambda rng: ((float(rng.uniform(0.5, 2)), 1.0), 1.2))
def runge_kutta(start, k):
    a, b = start
    h = 0.1
    path = [a]
    for _ in range(5):
        a1, b1 = _rates(a, b, k)
        a2, b2 = _rates(a + h / 2 * a1, b + h / 2 * b1, k)
        a, b = a + h * a2, b + h * b2
        path.append(a)
    return sum(path) + max(path) - min(a, b)


@dataclasses.dataclass
class Trade:
    strike: float
    days: int
    prices: np.ndarray


@differentiated(
    1, 2, examples=lambda rng: (Trade(1.0, int(rng.integers(1, 4)), rng.uniform(0.8, 1.3, 3)), 0.03, np.float32(0.2))
)
def option(trade, rate, sigma):
    total = 0.0
    for s in trade.prices:
        root = sigma * math.sqrt(trade.days)
        d = (math.log(s / trade.strike) + (rate + 0.5 * sigma * sigma) * trade.days) / root
        total += s * 0.5 * (1.0 + math.erf(d / math.sqrt(2.0))) - trade.strike * math.exp(-rate * trade.days)
    return total / len(trade.prices)


def _tree(x, depth):
    if depth == 0 or x < 0.1:
        return x * x
    return _tree(x * 0.5, depth - 1) + math.sin(x) * _tree(x - 0.3, depth - 1)


@differentiated(0, examples=lambda rng: (float(rng.uniform(0.5, 2)), int(rng.integers(0, 4))))
def recursion(x, depth):
    return _tree(x, depth)


@differentiated(0, examples=lambda rng: (floats(rng), int(rng.integers(0, 3))))
def number_of_several_types(x, n):
    a, b = 0, 1.0
    try:
        for _ in x:
            a = math.sin(x[0])
        b, a = a, n
    except IndexError:
        a = np.maximum(n, -2)
    return b * x[0]


def _halved(x, depth):
    return x * x if depth == 0 else _shifted(x * 0.5, depth - 1) + x


def _shifted(x, depth):
    return math.sin(x) if depth == 0 else _halved(x - 0.3, depth - 1) * x


@differentiated(0, examples=lambda rng: (float(rng.uniform(0.5, 2)), int(rng.integers(0, 6))))
def calls_in_a_circle(x, depth):
    return _halved(x, depth)


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(2, 2)), rng.normal(size=2)))
def small_matrices(f, x):
    p = np.eye(2)
    for _ in range(3):
        x = f @ x
        p = f @ p @ f.T + 0.1 * np.eye(2)
        gain = p[:, 0] / (p[0, 0] + 1.0)
        x = x + gain * (1.0 - x[0])
        p = p - np.outer(gain, p[0])
    return x.mean() + p.sum() * np.prod(x) + np.dot(x, x)


@differentiated(0, examples=lambda rng: ([floats(rng, 1, 4), floats(rng, 1, 4)],))
def list_of_arrays(parts):
    total = 0.0
    for part in parts:
        for v in part:
            total = total * 0.5 + abs(v) + np.maximum(v, 0.1) * np.sqrt(v * v + 1.0)
    return total


@differentiated(0, examples=lambda rng: (rng.normal(size=rng.integers(2, 6)).astype(np.float32),))
def single_precision(x):
    y = np.cumsum(np.exp(-x)) * np.where(x > 0, x, x * np.float32(0.1))
    best = x[0]
    for v in y:
        best = max(best, v * 2)
    return best + y[-1] / (1 + x.sum() ** 2)


@differentiated(1, examples=lambda rng: (floats(rng, 2), float(rng.normal())))
def of_the_second_only(x, w):
    a = x if w > 0 else x * w
    b = [x[0], w]
    b.append(x[1])
    for v in x * w + a:
        b[1] = b[1] * 0.5 + v
    return sum(b) + (a * w).mean()


@differentiated(0, 1, examples=lambda rng: (floats(rng), float(rng.normal())))
def of_nested_functions(x, w):
    total = 0.0

    def add(v):
        nonlocal total
        total += np.tanh(v * w)

    for v in x:
        try:
            add(v)
        except ValueError:
            total = 0.0
    scale = lambda v: v * w
    return scale(total)


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(4, 3)), rng.normal(size=3)))
def attention(keys, query):
    scores = keys @ query
    shifted = np.exp(scores - scores.max())
    weights = shifted / shifted.sum()
    mixed = (weights[:, None] * keys).sum(axis=0)
    centred = keys - keys.mean(axis=0, keepdims=True)
    return mixed @ mixed + centred[np.array([0, 2]), np.array([1, 1])].sum() + keys[keys > 0].sum()


@differentiated(
    0, 1, examples=lambda rng: (rng.normal(size=(rng.integers(1, 5), rng.integers(1, 4))), rng.normal(size=1))
)
def spread(x, scale):
    """Operands of which an element serves a row, a column or all: with places in a row, listed, alone."""
    peaks = x.max(axis=1, keepdims=True)
    shares = np.exp(x - peaks)
    shares = shares / shares.sum(axis=1, keepdims=True)
    first = x[:1] * scale
    turned = np.sqrt(shares * x[0][::-1] ** 2 + 1.0)
    return (turned * first - x.min(axis=0) * peaks).sum() + (x * scale[:, None] + x[:, :1] * x[0]).sum()


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(3, 3)), rng.normal(size=3)))
def gaussian(factor, x):
    cov = factor @ factor.T + np.eye(3)
    return -0.5 * (x @ np.linalg.solve(cov, x)) - 0.5 * np.log(np.linalg.det(cov))


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=5), rng.normal(size=5)))
def extremes(x, w):
    y = x * w
    spread = np.max(y) - 2.0 * np.min(y)
    return spread * w[np.argmax(x)] + y.max() * y.min()


class Layer:
    def __init__(self, w):
        self.w, self.calls, self.last = w, 0, None

    def __call__(self, x):
        self.calls += 1
        self.last = np.tanh(x @ self.w)
        return self.last


@differentiated(0, 1, examples=lambda rng: (floats(rng), rng.normal(size=(2, 2))))
def layers_that_keep_what_they_gave(xs, w):
    first, second = Layer(w), Layer(w * 2)
    h = np.zeros(2)
    for x in xs:
        h = second(first(h + x))
        if second.last[0] > first.last[1]:
            first.w = first.w * 0.5
    return (h + first.last).sum() * second.calls


@differentiated(0, examples=lambda rng: (floats(rng, 2),))
def rows_that_are_joined(xs):
    rows = [xs[:k] * k for k in range(3)]
    whole = np.concatenate(rows)
    low, high = np.split(np.concatenate([whole, xs[:1]]), 2)
    a, b = (xs * k for k in (2.0, 3.0))
    kept = sorted(xs, key=lambda x: -x)
    return (low * high).sum() + sum([a, b, xs]).sum() + kept[0] * kept[1] + np.array(kept)[-1]


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(rng.integers(2, 5), 4)), rng.normal(size=(4, 4))))
def products_with_arguments(x, w):
    total = np.sum(np.tanh(x @ w.T)) + np.sum(np.tanh(x.T @ w[: len(x)])) + np.sum(x[:, :0] @ w[:0])
    total += np.sum(x[:, 1:3] @ w[1:3, ::-1]) * np.sum(np.tanh(x[:, ::2] @ w[:2, 1:]))
    return total + np.sum(x[:, :1] @ w[:1]) * np.sum(x[:1] @ x[:1].T) + w[1] @ x[1]


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(rng.integers(2, 5), 4)), rng.normal(size=(4, 4)) * 0.5))
def products_with_results(x, w):
    states = []
    h = x[0]
    for row in x:
        h = np.tanh(row @ w + h @ w)
        states.append(h)
    keys = np.stack(states)
    read = np.tanh(keys @ h) @ keys * 0.1
    both = np.concatenate([w, keys * 0.5])
    own = np.tanh(x @ w)
    total = np.sum(np.tanh(read @ keys.T)) + np.sum(np.tanh(both.T @ (both @ x[0] * 0.1))) + np.sum(own @ own.T)
    return total + np.sum((own.T @ x) @ own.T) + h @ h


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(3, 4)), rng.normal(size=(4, 4))))
def products_with_what_is_overwritten(x, w):
    a = np.zeros(w.shape)
    a[0] = x[0]
    before = a @ w
    a[0] = x[1] * w[0]
    a[1, 1] = w[2, 1]
    a += w
    return np.sum(before * before) + np.sum(np.tanh(w @ a)) + np.sum(a @ x[0])


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=3), rng.normal(size=4)))
def numbers_that_are_appended(x, w):
    return np.append(x, w[0] * 2.0) @ w + np.append(x, 1.5) @ w + np.append(x[:2], [x[2], w[1]]) @ w


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(4, 3)), rng.normal(size=3)))
def numbers_that_are_stacked(x, w):
    scores = np.stack([row @ w for row in x])
    return np.log(np.sum(np.exp(scores))) - scores[0] + np.sum(np.vstack([w, x[0]]) * 2.0)


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=4), {"a": np.array(0.5), "b": np.array(rng.normal())}))
def arrays_without_dimensions(x, p):
    steps, state = [p["a"] * x[0], p["b"] - 1.0], p["b"] * x
    for v in x:
        state = np.tanh(p["a"] * state + p["b"])
        steps.append(np.exp(-p["b"]) * v / (p["a"] + 2))
    return np.sum(state) + sum(steps) + p["b"] ** 2 * np.maximum(p["a"], x[1])


@differentiated(0, 1, 2, examples=lambda rng: (rng.normal(size=(3, 4)), rng.normal(size=4), np.array(rng.normal())))
def choices_that_are_broadcast(m, v, p):
    rows, columns = m.sum(axis=1, keepdims=True) > 0, v > 0
    both = np.where(rows, m, v) + np.where(columns, v[:3, None], p) + np.where(m > v, m * p, 0.5)
    return np.sum(both) + np.sum(np.where(columns, v[0], v)) + np.sum(np.where(v[1] > 0, v, p * 2)) + np.sum(m * rows)


@differentiated(0, 1, examples=lambda rng: ([rng.random((2, 3)) for _ in range(rng.integers(1, 4))], rng.random(3)))
def stacks_views_and_powers(ms, v):
    whole, beside = np.stack(ms), np.stack([v, v * 2.0], axis=1)
    norms = np.linalg.norm(whole[0], axis=1) @ v[:2] + np.linalg.norm(ms[-1] - v, axis=0, keepdims=True)[0, 1]
    total = (
        np.sum((whole + 1.0) ** 3) + np.sum(v**0.5 / (v + 1.0) ** -1) + np.sum(np.column_stack([v, v * 3.0]) * beside)
    )
    views = np.expand_dims(v, 0) * np.squeeze(ms[0][:1], axis=0) + np.ravel(np.atleast_2d(v))
    return total + norms + np.sum(views**1.5 + v**2) + np.sum(np.expand_dims(v, 1) * beside)
