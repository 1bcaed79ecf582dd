"""What the data decides costs rounds of launches, not examples: as many as the example that takes longest."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import map_equals_loop

RNG = np.random.default_rng(0)
WIDTH = 8
PARAMS = {
    name: (0.4 * RNG.normal(size=shape)).astype(np.float32)
    for name, shape in {"w": (WIDTH, 4 * WIDTH), "u": (WIDTH, 4 * WIDTH)}.items()
}


def lstm_until_a_test(x, limit, params):
    """An LSTM cell until a scalar of its state passes a test, which each example does at a step of its own."""
    h = c = np.zeros(WIDTH, np.float32)
    energy, steps = np.float32(0), 0
    while energy < limit:
        i, f, o, g = np.split(x @ params["w"] + h @ params["u"], 4)
        c = ab.nn.sigmoid(f) * c + ab.nn.sigmoid(i) * np.tanh(g)
        h = ab.nn.sigmoid(o) * np.tanh(c)
        energy = energy + 1 + 1e-3 * (h * h).sum()
        steps += 1
    return h, steps


def fibonacci(x):
    return x if x[0] < 2 else fibonacci(x - 1) + fibonacci(x - 2)


def collatz(x):
    steps = np.int64(0)
    while x[0] > 1:
        x = x // 2 if x[0] % 2 == 0 else 3 * x + 1
        steps = steps + 1
    return steps


def test_a_cell_until_a_test_takes_as_many_rounds_as_the_longest_example():
    limits = [np.float32(4.5 + i % 36) for i in range(256)]
    xs = [RNG.normal(size=WIDTH).astype(np.float32) for _ in limits]
    steps = [lstm_until_a_test(x, limit, PARAMS)[1] for x, limit in zip(xs, limits, strict=True)]
    assert (min(steps), max(steps)) == (5, 40)
    stats = map_equals_loop(lstm_until_a_test, xs, limits, params=PARAMS)
    longest = int(np.argmax(steps))
    alone = map_equals_loop(lstm_until_a_test, [xs[longest]], [limits[longest]], params=PARAMS)
    assert stats.rounds == alone.rounds
    assert stats.launches == alone.launches
    assert alone.rounds >= 40


@pytest.mark.parametrize(("f", "values"), [(fibonacci, [3, 7, 4, 5, 1, 0]), (collatz, [6, 27, 1, 7, 12])])
def test_recursion_and_branches_take_as_many_rounds_as_the_longest_example(f, values):
    xs = [np.array([v, 0.5]) for v in values]
    stats = map_equals_loop(f, xs * 8)
    longest = max((map_equals_loop(f, [x]) for x in xs), key=lambda each: each.rounds)
    assert stats.rounds <= longest.rounds + 1
    assert stats.launches <= 2 * longest.launches  # both ways of a branch, each once a round
    assert stats.calls > 4 * stats.launches
