"""One long example among many short ones: nothing large that is mostly padding is computed, the next way runs.

Memory is counted, not time: padded together, the examples below need gigabytes, and one after the other a few MiB.
"""

import tracemalloc
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning
from tests.inspect import forget_warnings
from tests.law import assert_same, batch_of, equals_loop

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 4)) / 2
TABLE = RNG.normal(size=(50, 64))
MOST = 288 << 20  # bytes; a padded array of less than 64 MiB may be made, and a few of them live at once


def rows(long, count=64):
    lengths = [5 + i % 7 for i in range(count)]
    lengths[count // 3] = long
    return [RNG.normal(size=(n, 4)) for n in lengths]


def numbers(long, count=64):
    return [x[:, 0] for x in rows(long, count)]


def ids(long, count=64):
    return [RNG.integers(0, len(TABLE), len(x)) for x in rows(long, count)]


def distances(x):
    between = x[:, None, :] - x[None, :, :]
    return np.sqrt((between * between).sum(-1) + 1e-9).mean()


def products(x):
    return np.maximum(x @ x.T, 0.0).sum(0).max()


def attention(x, w=W):
    scores = (x @ w) @ x.T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return ((weights / weights.sum(1, keepdims=True)) @ x).mean()


def order(x):
    return np.sort(np.cumsum(x))[len(x) // 2] + np.argsort(x, kind="stable")[0]


def smooth(x):
    return np.convolve(x, np.array([0.25, 0.5, 0.25]), "same").max()


def bag(x, table=TABLE):
    return np.tanh(table[x] * 2.0).max(0).sum()


def neighbours(x):
    total = np.zeros(len(x))
    for row in x[:4]:
        total = total + np.abs(x[:, None, 0] - x[None, :, 1]).min(1) * row[0]
    return total.sum()


def made(x):
    return np.ones((len(x), len(x))).sum() + len(x)


PAIRS = [
    (distances, rows(700)),
    (products, rows(1000)),
    (attention, rows(1000)),
    (order, numbers(200_000)),
    (smooth, numbers(200_000)),
    (bag, ids(60_000)),
    (neighbours, rows(1000)),
    (made, numbers(1500)),
]
programs = pytest.mark.parametrize(("f", "xs"), PAIRS, ids=[f.__name__ for f, _ in PAIRS])


def peak_of(call):
    """The result of a call, and the most bytes that it held at once."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(autouse=True, scope="module")
def _kernels_are_compiled():
    """By short examples, before memory is traced: tracing what is imported and compiled takes several times as long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for f, xs in PAIRS:
            short = [x[: 4 + i % 3] for i, x in enumerate(xs)]
            for batch in (batch_of(short), ab.PackedBatch.from_examples(short)):
                ab.batch(f)(batch)
            with ab.options(way="fly"):
                ab.map(f, short)
        for way in ("lockstep", "fly"):
            with ab.options(way=way):
                ab.grad(lambda w: ab.sum(ab.batch(attention)(batch_of(rows(6)), w)))(W)


@pytest.fixture(autouse=True)
def _fresh_warnings():
    forget_warnings()


@programs
def test_a_packed_batch(f, xs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        _, peak = peak_of(lambda: equals_loop(f, xs, packed=True, falls_back=None))
    assert peak < MOST, peak >> 20


@programs
def test_a_padded_batch(f, xs):
    batch, want = batch_of(xs), [f(x) for x in xs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        got, peak = peak_of(lambda: ab.examples(ab.batch(f)(batch)))
    assert_same(got, want)
    assert peak < MOST, peak >> 20


@pytest.mark.parametrize(
    ("f", "xs", "way"),
    [
        pytest.param(*pair, way, id=f"{way}-{pair[0].__name__}", marks=pytest.mark.slow if is_slow else ())
        for pair in PAIRS
        for way, is_slow in (("fly", False), ("auto", pair[0] not in (distances, attention, bag)))
    ],
)
def test_a_map(f, xs, way):
    want = [f(x) for x in xs]
    with ab.options(way=way), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for _ in range(3):
            got, peak = peak_of(lambda: ab.map(f, xs))
            assert_same(got, want)
            assert peak < MOST, peak >> 20


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", ["lockstep", "fly", "auto"])
def test_gradients(packed, way):
    xs = rows(1200)
    make = ab.PackedBatch.from_examples if packed else batch_of
    batch = make(xs)
    alone = ab.grad(attention, argnums=1)
    want = sum(alone(x, W) for x in xs)
    with ab.options(way=way), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        got, peak = peak_of(lambda: ab.grad(lambda w: ab.sum(ab.batch(attention)(batch, w)))(W))
    assert_same(got, want)
    assert peak < 2 * MOST, peak >> 20


def test_the_next_way_runs_and_says_why():
    with pytest.warns(FallbackWarning, match="mostly padding"):
        ab.batch(distances)(ab.PackedBatch.from_examples(rows(700)))


@pytest.mark.chosen
def test_a_choice_of_the_library_is_no_fallback():
    f, xs = ab.batch(distances), rows(700)
    want = [distances(x) for x in xs]
    for _ in range(6):
        got, peak = peak_of(lambda: ab.examples(f(ab.PackedBatch.from_examples(xs))))
        assert_same(got, want)
        assert peak < MOST, peak >> 20


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_little_or_mostly_inside_stays_in_lock_step(packed):
    equals_loop(distances, rows(60), packed=packed)
    equals_loop(distances, [RNG.normal(size=(500 + i, 4)) for i in range(9)], packed=packed)


def test_under_strict_lock_step_runs_on_padding():
    xs = numbers(20_000, count=500)
    f = ab.batch(lambda x: np.tanh(x).sum(), strict=True)
    assert_same(ab.examples(f(ab.PackedBatch.from_examples(xs))), [np.tanh(x).sum() for x in xs])
