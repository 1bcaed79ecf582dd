"""Gradients through maps within maps of which some examples hold NaN or infinities that the result does not read.

    python -m tests.autodiff.unread_examples --seed 5000 --count 100

Each seed makes a tree of maps and batched calls of one of several functions. The loop's gradient is that of all modes.
"""

import contextlib
import random
import sys

import numpy as np

import autobatch as ab
from tests.fuzz import by_seed, main

_SIZE = 3
_NUMBERS = (0.5, -1.0, 1.5, 0.0, -0.3, np.nan, np.inf, 1e200)


def _hidden(x, w):
    h = np.tanh(w @ x)
    return h.sum() if np.isfinite(x).all() else 0.0


def _late(x, w):
    h = np.sqrt(x * w[0])
    g = np.exp(w @ x)
    if np.isfinite(h).all() and np.isfinite(g).all():
        return (h * g).sum()
    return np.sum(w[1]) * 0.5


def _steps(x, w):
    h = np.zeros(_SIZE)
    for value in x:
        h = np.tanh(w @ h + value * w[0])
    with np.errstate(all="ignore"):
        return h[0] if np.isfinite(h[0]) else w[0, 0]


def _written(x, w):
    rows = np.zeros((2, _SIZE))
    rows[0] = w @ x
    rows[1] = np.log(np.abs(x)) * w[2]
    return rows[0].sum() if np.isfinite(rows[0]).all() else w[1].sum()


def _dropping(x, w):
    h = ab.nn.dropout(w @ x, 0.3)
    return h.max() if x[0] > 0 and np.isfinite(h).all() else 0.0


_LEAVES = (_hidden, _late, _steps, _written, _dropping)
_BATCHES = (ab.MaskedBatch.from_examples, ab.PackedBatch.from_examples)


def _of_many(rng, inner):
    """A function of a list of examples for `inner`."""
    kind, scale = rng.randrange(4), rng.choice((1.0, 2.0))
    if kind == 0:
        return lambda xs, w: sum(ab.map(inner, xs, w=w * scale))
    if kind == 1:
        return lambda xs, w: sum(ab.map(inner, xs, [np.tanh(w)] * len(xs)))
    if kind == 2:
        return lambda xs, w: ab.map(inner, xs, w=w)[0] * scale
    return lambda xs, w: np.tanh(max(ab.map(lambda x, w: inner(x, w) * scale, xs, w=w)))


def _of_a_batch(rng, inner):
    make, batched = rng.choice(_BATCHES), ab.batch(inner)
    return lambda xs, w: ab.sum(batched(make(xs), w))


def _program(rng):
    """A loss of the weights: maps, of maps, of examples."""
    function, depth = rng.choice(_LEAVES), rng.randint(1, 3)
    examples = [np.array([rng.choice(_NUMBERS) for _ in range(_SIZE)]) for _ in range(6)]
    function = _of_a_batch(rng, function) if rng.random() < 0.3 else _of_many(rng, function)
    for _ in range(depth - 1):
        function = _of_many(rng, function)
        examples = [rng.sample(examples, 2) for _ in range(3)]
    seen = rng.random() < 0.3
    return lambda w: function(examples, w) ** 2 if seen else function(examples, w)


def _compare(seed):
    rng = random.Random(seed)
    loss = _program(rng)
    w = np.array([rng.uniform(-0.5, 0.5) for _ in range(_SIZE * _SIZE)]).reshape(_SIZE, _SIZE)
    found = {}
    for way in ("loop", "lockstep", "fly", "auto"):
        with ab.options(way=way, warn=False, seed=seed), np.errstate(all="ignore"), contextlib.suppress(ValueError):
            found[way] = ab.grad(loss)(w)
    for way, gradient in found.items():
        np.testing.assert_allclose(gradient, found["loop"], rtol=1e-6, atol=1e-9, err_msg=way)
    return bool(np.isfinite(found["loop"]).all())


FUZZERS = {"unread examples": by_seed(_compare, lambda seen: f"{sum(seen)} have a finite gradient")}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
