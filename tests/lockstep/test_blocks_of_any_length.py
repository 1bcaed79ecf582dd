"""Blocks over arrays whose lengths differ by example: they run as one launch, and the steps of a loop as one scan.

Mutations that must turn this file red; each was made by hand and seen red:
    - lengths of lanes that have left: in `Scan.run`, none are narrowed;
    - padding that counts: in `Lengths.mask`, an unknown length that is one longer;
    - a length of 1 that is taken for 2: in `flatten`, 0 for `SHORTEST`.
"""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch
from autobatch.lockstep import block_launch
from tests import inspect
from tests.law import agrees, batch_of, ragged

RNG = np.random.default_rng(5)
W, U = RNG.normal(size=(4, 4)) / 2, RNG.normal(size=(4, 4)) / 2
KEYS = ragged(5, 2, 4, 9, 3, 9, 4, width=4)  # as many lanes as some lengths, and as columns
STEPS = [RNG.normal(size=(n, 4)) for n in (3, 7, 0, 2, 6, 1, 4)]
SHORT = [*KEYS[:4], KEYS[4][:1], KEYS[5], KEYS[6][:1]]


def attends(keys, xs, w, u):
    h = np.zeros(4)
    for x in xs:
        weights = ab.nn.softmax(keys @ np.tanh(h @ w))
        h = np.tanh(x @ u + weights @ keys)
    return h


def aligns(keys, xs, w, u):  # a state of each example's own length, as in CTC
    alpha = np.concatenate([np.zeros(2), (keys @ w)[:, 0]])
    nothing = np.full(2, -9.0)
    for x in xs:
        before = np.concatenate([nothing, alpha])
        alpha = np.logaddexp(alpha, before[1:-1]) + np.where(before[:-2] > -9.0, x.sum() * before[:-2], x.max())
    return alpha


def mixes(keys, w, u):
    scores = (keys @ w) @ keys.T / 2.0
    mixed = ab.nn.layer_norm(keys + ab.nn.softmax(scores) @ keys)
    return np.maximum(mixed @ u, 0).mean(axis=0) + mixed.max(axis=0)


def sums_logs(keys, w, u):
    z = keys @ w
    return ab.nn.logsumexp(z, axis=0) - z.sum(axis=0) / z[0] ** 2


@pytest.fixture
def launched():
    """For each launch of a block of unknown lengths, whether its compiled form ran."""
    with inspect.watched(block_launch, "launch_ragged", after=lambda out, *_: out is not None) as seen:
        yield seen


@pytest.mark.parametrize("f", [attends, aligns])
def test_a_loop_is_one_scan(f, scans, launched):
    for _ in range(3):
        agrees(f, KEYS, STEPS, w=W, u=U)
    assert any(launched)
    assert max(scans) > 1


@pytest.mark.parametrize("f", [mixes, sums_logs])
def test_a_block_is_one_launch(f, launched):
    for _ in range(3):
        agrees(f, KEYS, w=W, u=U)
    assert launched[-1]


@pytest.mark.parametrize("keys", [KEYS, SHORT], ids=["long", "short"])
@pytest.mark.parametrize("f", [attends, aligns, mixes, sums_logs])
def test_the_law(f, keys):
    columns = (keys, STEPS) if f in (attends, aligns) else (keys,)
    for _ in range(3):
        batch(f)(*map(batch_of, columns), W, U)  # whatever is compiled now is what is proved
    ab.testing.assert_equivalent(f, *columns, w=W, u=U)


def test_examples_that_are_too_short_run_op_by_op(launched):
    for _ in range(3):
        agrees(mixes, SHORT, w=W, u=U)
    assert launched
    assert not any(launched)


def test_a_warning_is_that_of_the_examples(launched):
    def divides(keys, w, u):
        return (1.0 / (keys @ w)).sum(axis=0) + np.log(np.abs(keys)).max(axis=0)

    f = batch(divides, strict=True)
    for _ in range(4):
        agrees(divides, KEYS, w=W, u=U)
    assert launched[-1]
    zero = [x.copy() for x in KEYS]
    zero[2][1] = 0.0
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        f(batch_of(zero), W, U)


def test_two_lengths_that_are_equal_by_chance_are_two():
    def f(keys, xs, w, u):
        return (ab.nn.softmax(keys @ w) @ u).sum() + (ab.nn.softmax(xs @ u) * 2.0).sum()

    same = [x + 1.0 for x in KEYS]
    other = ragged(2, 2, 5, 3, 8, 4, 6, width=4)
    for xs in (same, same, same, other, same, other):
        agrees(f, KEYS, xs, w=W, u=U)


def test_padding_of_several_widths(launched):
    def f(keys, xs, w, u):
        return ab.nn.softmax((keys + xs) @ w).sum(axis=0) + (xs * keys).max(axis=0) @ u

    columns = KEYS, [x + 1.0 for x in KEYS]
    lengths = [len(x) for x in KEYS]
    wide = np.full((len(KEYS), 14, 4), np.nan)
    for row, x in zip(wide, columns[1], strict=True):
        row[: len(x)] = x
    g = batch(f, strict=True)
    for _ in range(4):
        found = g(batch_of(KEYS), ab.MaskedBatch(wide, lengths), W, U)
    assert launched[-1]
    for one, *example in zip(ab.examples(found), *columns, strict=True):
        np.testing.assert_allclose(one, f(*example, W, U), rtol=1e-12)
