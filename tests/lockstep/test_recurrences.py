"""Recurrences over rows run their steps as one op, and nothing shows of it: results, warnings, errors and gradients.

A mutation that must turn this file red: rows of the wrong step, in `RowSequence.packed`, `first - 1`.
"""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples, options
from tests.law import agrees, assert_same, batch_of, equals_loop, ragged

RNG = np.random.default_rng(0)
W = RNG.normal(size=(3, 4))
U = RNG.normal(size=(4, 4)) / 4
B = RNG.normal(size=4)
PARAMS = {"w": W, "u": U, "b": B}
SENTENCES = ragged(5, 0, 3, 9, 1, 9, 12, width=3)


def rnn(xs, p):
    h = np.zeros(4)
    for x in xs:
        h = np.tanh(x @ p["w"] + h @ p["u"] + p["b"])
    return h


def test_results_are_those_of_the_loop():
    agrees(rnn, SENTENCES, p=PARAMS)
    agrees(rnn, ragged(4, 4, 4, width=3), p=PARAMS)
    agrees(rnn, ragged(0, 0, width=3), p=PARAMS)
    agrees(rnn, ragged(17, width=3), p=PARAMS)
    agrees(rnn, sorted(SENTENCES, key=len, reverse=True), p=PARAMS)


def test_no_examples():
    f = batch(rnn, strict=True)
    out = [f(ab.MaskedBatch(np.zeros((0, 5, 3)), lengths=np.zeros(0, int)), PARAMS) for _ in range(3)]
    assert examples(out[-1]) == []


def test_items_of_a_zip_and_in_reverse():
    def f(xs, ys, w):
        h = np.zeros(4)
        for x, y in zip(xs, reversed(ys), strict=False):
            h = np.tanh(x @ w + h + y @ w)
        return h

    agrees(f, SENTENCES, SENTENCES[::-1], w=W)


def test_a_chain_of_assignments_and_what_only_shared_values_make():
    def f(xs, p):
        h = np.zeros(4)
        for x in xs:
            scale = np.exp(p["b"])
            gate = (x * 2) @ (p["w"] * scale)
            h = gate[:4] * 0.5 + h @ p["u"].T
        return h

    agrees(f, SENTENCES, p=PARAMS)


def test_a_block_that_carries_nothing():
    def f(xs, p):
        total = np.zeros(4)
        for x in xs:
            y = np.tanh(x @ p["w"] + p["b"])
            total += y
        return total

    agrees(f, SENTENCES, p=PARAMS)


def test_what_is_per_example_is_no_part_of_it():
    def f(xs, q, p):
        h = q
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"] + q)
        return h

    agrees(f, SENTENCES, list(RNG.normal(size=(7, 4))), p=PARAMS)


def test_in_a_helper_of_the_users():
    def cell(x, h, p):
        return np.tanh(x @ p["w"] + h @ p["u"])

    def f(xs, p):
        h = np.zeros(4)
        for x in xs:
            h = cell(x, h, p)
        return h

    agrees(f, SENTENCES, p=PARAMS)


def test_a_loop_left_early():
    def f(xs, n, w):
        h = np.zeros(4)
        for i, x in enumerate(xs):
            if i == n:
                break
            h = np.tanh(x @ w + h)
        return h

    xs, ns = ragged(*[100] * 4, width=3), [3, 2, 9, 1]
    agrees(f, xs, ns, w=W)


def test_a_product_in_an_arm_that_few_lanes_take():
    def f(xs, n, w):
        h = np.zeros(4)
        for x in xs:
            if n == 0:
                h = np.tanh(x @ w + h)
        return h

    xs, ns = ragged(*[6] * 8, width=3), [0, 0, 1, 1, 1, 1, 1, 1]
    agrees(f, xs, ns, w=W)


def test_a_product_in_an_arm_that_is_taken_now_and_then():
    def f(xs, w):
        h = np.zeros(4)
        for i, x in enumerate(xs):
            if i % 5 == 0:
                h = np.tanh(x @ w + h)
        return h

    xs = ragged(*[200] * 4, width=3)
    agrees(f, xs, w=W)


def test_a_matrix_that_changes_from_step_to_step():
    def f(xs, ws):
        h = np.zeros(4)
        for x, w in zip(xs, ws, strict=False):
            h = np.tanh(x @ w + h)
        return h

    agrees(f, ragged(6, 4, 6, width=3), ws=[W * k for k in range(8)])


def test_a_number_that_changes_from_step_to_step():
    def f(xs, w):
        h, rate = np.zeros(4), 1.0
        for x in xs:
            h = np.tanh((x * rate) @ w + h)
            rate = rate * 0.5
        return h

    agrees(f, SENTENCES, w=W)


def test_warnings_come_from_rows_that_are_reached():
    def f(xs, w):
        h = np.zeros(4)
        for x in xs:
            if x[0] > 1e30:
                break
            y = np.exp(x) @ w + h
            h = y * 1.0
        return h

    xs = [np.array([[1.0, 2, 3], [2e30, 1, 1], [1000.0, 1, 1]]), np.ones((3, 3))]  # exp(1000) is not reached
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agrees(f, xs, w=W)


def test_a_warning_that_the_loop_gives_is_given():
    def f(xs, w):
        h = np.zeros(4)
        for x in xs:
            h = np.minimum(np.exp(x), 5.0) @ w + h
        return h

    xs = [np.array([[1.0, 2, 3], [1000.0, 1, 1]]), np.ones((3, 3))]
    g = batch(f, strict=True)
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="overflow"):
            out = examples(g(batch_of(xs), w=abs(W)))
        with pytest.warns(RuntimeWarning, match="overflow"):
            want = f(xs[0], abs(W))
        assert_same(out[0], want)


def test_an_error_is_the_loops():
    def f(xs, w):
        h = np.zeros(4)
        for x in xs:
            h = np.log(x) @ w + h
        return h

    xs = [np.ones((4, 3)), np.array([[1.0, 1, 1], [1, 0, 1]])]
    g = batch(f)
    for _ in range(3):
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide") as caught:
            g(batch_of(xs), w=W)
        assert "example 1" in caught.value.__notes__[0]


def test_padding_is_never_read():
    batch_ = batch_of(SENTENCES)
    assert np.isnan(batch_.data).any()
    g = batch(rnn, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            out = examples(g(batch_, PARAMS))
    assert all(np.isfinite(h).all() for h in out)


@pytest.mark.parametrize("lengths", [(5, 0, 3, 12, 1), (12, 7, 7, 2), (4, 4), (0, 0), (30,)])
def test_gradients_are_those_of_the_loop(lengths):
    xs = ragged(*lengths, width=3)
    f = batch(rnn, strict=True)

    def loss(p, x):
        return (f(x, p).data ** 2).sum()

    want = [ab.grad(lambda p, x=x: (rnn(x, p) ** 2).sum())(PARAMS) for x in xs]
    for _ in range(3):
        got = ab.grad(loss)(PARAMS, batch_of(xs))
    for name in PARAMS:
        np.testing.assert_allclose(got[name], sum(each[name] for each in want), rtol=1e-7, atol=1e-12)


def test_gradients_of_the_items():
    f = batch(rnn, strict=True)
    xs = ragged(5, 2, 12, width=3)
    batched = ab.MaskedBatch.from_examples(xs)
    for _ in range(3):
        got = ab.grad(lambda x: (f(x, PARAMS).data ** 2).sum())(batched)
    want = [ab.grad(lambda x: (rnn(x, PARAMS) ** 2).sum())(x) for x in xs]
    for a, b in zip(got.examples(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-12)


def test_second_derivatives():
    f = batch(rnn, strict=True)
    xs = ragged(3, 9, width=3)

    def penalty(w, loss):
        return (ab.grad(lambda w: loss({**PARAMS, "w": w}))(w) ** 2).sum()

    for _ in range(3):
        got = ab.grad(lambda w: penalty(w, lambda p: ab.sum(f(batch_of(xs), p))))(W)
    want = ab.grad(lambda w: penalty(w, lambda p: sum(rnn(x, p).sum() for x in xs)))(W)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-10)


def test_off():
    with options(blocks=False):
        agrees(rnn, SENTENCES, p=PARAMS)
    equals_loop(rnn, SENTENCES, p=PARAMS)


def test_a_state_that_starts_as_a_parameter():
    def f(xs, p):
        h = p["b"]
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
        return h

    agrees(f, SENTENCES, p=PARAMS)
    g = batch(f, strict=True)
    for _ in range(3):
        got = ab.grad(lambda p: (g(batch_of(SENTENCES), p).data ** 2).sum())(PARAMS)
    want = [ab.grad(lambda p, x=x: (f(x, p) ** 2).sum())(PARAMS) for x in SENTENCES]
    for name in PARAMS:
        np.testing.assert_allclose(got[name], sum(each[name] for each in want), rtol=1e-7, atol=1e-12)


def gates(xs, p):
    h = c = np.zeros(2)
    for x in xs:
        forget, new = np.split(x @ p["w"] + h @ p["u"][:2], 2)
        c = ab.nn.sigmoid(forget) * c + np.tanh(new)
        h = np.tanh(c)
    return h


def test_what_is_split_is_part_of_a_block(products):
    f = batch(gates, strict=True)
    for _ in range(2):
        f(batch_of(SENTENCES), p=PARAMS)
    products.clear()
    f(batch_of(SENTENCES), p=PARAMS)
    assert [n for width, n in products if width == 3] == [6]  # the other steps are one op
    agrees(gates, SENTENCES, p=PARAMS)
    got = ab.grad(lambda p: ab.sum(f(batch_of(SENTENCES), p=p)))(PARAMS)
    for name in ("w", "u"):
        want = sum(ab.grad(lambda p, x=x: gates(x, p).sum())(PARAMS)[name] for x in SENTENCES)
        np.testing.assert_allclose(got[name], want, rtol=1e-9, atol=1e-12)


def test_a_split_into_other_than_its_names_raises_as_it_does():
    def f(x, w):
        a, b = np.split(np.tanh(x @ w) + 1.0, 4)
        return a + b

    with pytest.raises(ValueError, match="too many values"):
        batch(f, strict=True)(batch_of([np.ones(3), np.ones(3)]), w=W)
