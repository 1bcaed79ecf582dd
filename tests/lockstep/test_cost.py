"""What a ragged loop costs: how often lanes are gathered, how many ops run, and random numbers lane by lane."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples, options
from autobatch.lockstep.block_launch import LaneBlock
from tests import inspect
from tests.inspect import Example, current_example, example
from tests.law import assert_same, batch_of, ragged

RNG = np.random.default_rng(0)


def rnn(xs, w, u):
    h = np.zeros(3)
    for x in xs:
        h = np.tanh(x @ w + h @ u)
    return h


W, U = ragged(2, 3, width=3, seed=9)


def test_a_loop_over_a_sorted_batch_gathers_nothing(gathers):
    xs = batch_of(ragged(6, 4, 4, 2, 1, width=2))
    batch(rnn, strict=True)(xs, W, U)
    assert sum(gathers) <= 5  # each lane's state is put aside once, when it leaves


def test_a_loop_over_a_uniform_batch_takes_no_lanes_apart(gathers):
    batch(rnn, strict=True)(batch_of(ragged(4, 4, 4, width=2)), W, U)
    assert gathers == []


def test_an_unsorted_batch_is_gathered_once_and_put_back_once(gathers):
    batch(rnn, strict=True)(batch_of(ragged(2, 6, 4, 1, width=2)), W, U)
    assert [count for count in gathers if count == 4] == [4]  # h put back; the rows of all steps are taken at once


def test_an_outer_value_is_gathered_once_for_the_whole_loop(gathers):
    def f(xs):
        mean = xs.sum(0)
        h = np.zeros(2)
        for x in xs:
            h = h + (x - mean) * mean
        return h

    batch(f, strict=True)(batch_of(ragged(2, 6, 4, 1, width=2)))
    assert [count for count in gathers if count == 4] == [4, 4]  # mean, and h put back


def test_lanes_do_not_add_launches(op_calls):
    f, counts = batch(rnn, strict=True), []
    for lanes in (2, 64):
        with options(blocks=False):  # op by op, whether or not the loop's kernel is there yet
            f(batch_of(ragged(*[5] * lanes, width=2)), W, U)
        counts.append(sum(call.computes for call in op_calls))
        op_calls.clear()
    assert counts[0] == counts[1] > 0


def test_work_is_done_only_for_the_lanes_that_are_there():
    with options(blocks=False), inspect.products() as products:
        batch(rnn, strict=True)(batch_of(ragged(5, 3, 1, 0, width=2)), W, U)
    assert sum(x[0] for x, _ in products) == (5 + 3 + 1) + (
        2 + 2 + 1 + 1
    )  # x @ w; and h @ u, but in the first step, where h is shared


def classifier(words, label, params):
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"] + params["b"])
    return ab.nn.cross_entropy(h @ params["out"], label)


def python_calls_of_a_call_and_of_its_gradient(f, *lengths):
    rng = np.random.default_rng(4)
    params = {name: rng.normal(size=(8, 8)).astype(np.float32) for name in ("w", "u", "out")}
    params |= {"b": np.zeros(8, np.float32), "emb": ab.EmbeddingTable(rng.normal(size=(50, 8)).astype(np.float32))}
    batches = ab.collate([rng.integers(0, 50, n) for n in lengths]), ab.collate([1] * len(lengths))

    def call():
        return f(*batches, params)

    def gradient():
        return ab.value_and_grad(lambda p: ab.mean(f(*batches, p)))(params)

    with options(kernels=False):  # whether they are there yet shows in the counts
        for _ in range(6):
            call(), gradient()
        return min(inspect.python_calls(call) for _ in range(3)), min(inspect.python_calls(gradient) for _ in range(3))


def test_a_recurrence_and_its_gradient_take_few_python_calls():
    f = batch(classifier, strict=True)
    call, gradient = python_calls_of_a_call_and_of_its_gradient(f, 9, 4, 7, 5)
    assert call <= 830, call
    assert gradient <= 1560, gradient
    longer, its_gradient = python_calls_of_a_call_and_of_its_gradient(f, 39, 34, 37, 35)
    assert longer - call <= 3 * 30, longer  # a step's block, and which of its results the next one reads
    assert its_gradient - gradient <= 4 * 30, its_gradient


def test_items_of_a_list_are_joined_once_however_many_are_read():
    def f(xs, count):
        rows = []
        for x in xs:
            rows.append(np.tanh(x))
        total = rows[0] * 0.5
        for at in range(count):
            total = total + rows[at] * rows[-1]
        return total

    lists, f, calls = ragged(25, 14, 17, width=3), batch(f, strict=True), {}
    for count in (1, 7):
        for _ in range(4):
            f(batch_of(lists), count)
        calls[count] = min(inspect.python_calls(lambda count=count: f(batch_of(lists), count)) for _ in range(3))
    assert calls[7] - calls[1] <= 80 * 6, calls  # two items each


def test_a_block_that_never_runs_is_seldom_tried():
    def f(xs, w):
        y = np.tanh(xs @ w)
        return (y * y + 1.0).sum()

    f, packed, w = batch(f, strict=True), ab.collate(ragged(3, 5, 1, width=2)), RNG.normal(size=(2, 2))
    with inspect.watched(LaneBlock, "find", after=lambda out, *_: out is not None) as ran:
        for _ in range(80):
            f(packed, w)
    assert not any(ran)  # a block takes no packed array
    assert 0 < len(ran) <= 2 * (16 + 80 // 16)  # the whole, and a part of it
    with inspect.watched(LaneBlock, "find", after=lambda out, *_: out is not None) as ran:
        for _ in range(40):
            f(batch_of(ragged(3, 3, width=2)), w)
    assert sum(ran) >= 16  # but once it runs, it runs


def draws(xs):
    key = current_example().next_key(0)
    for _ in xs:
        key = current_example().next_key(7)
    return key, current_example().next_key(1)


def as_example(f, i, *args):
    with example(Example(i)):
        return f(*args)


@pytest.mark.parametrize("lengths", [(3, 0, 5, 3), (2, 2), (4,)])
def test_random_keys_are_those_of_the_loop(lengths):
    xs = ragged(*lengths)
    want = [as_example(draws, i, x) for i, x in enumerate(xs)]
    got = examples(batch(draws)(batch_of(xs)))
    assert [tuple(map(int, pair)) for pair in got] == [tuple(map(int, pair)) for pair in want]


@pytest.mark.parametrize("lengths", [(3, 1, 5, 3), (2, 2)])
def test_dropout_is_that_of_the_loop(lengths):
    def f(xs):
        h = np.zeros(4)
        for x in xs:
            h = ab.nn.dropout(h + x, 0.5)
        return ab.nn.dropout(h, 0.25)

    xs = ragged(*lengths, width=4)
    with options(seed=3):
        want = [as_example(f, i, x) for i, x in enumerate(xs)]
        got = examples(batch(f, strict=True)(batch_of(xs)))
    assert_same(got, want)


def test_gradients_of_a_ragged_loop():
    xs = ragged(3, 1, 0, 5, width=2)

    def loss(f, w):
        return sum((h * h).sum() for h in f(w))

    batched = ab.grad(lambda w: loss(lambda w: examples(batch(rnn, strict=True)(batch_of(xs), w["w"], w["u"])), w))
    plain = ab.grad(lambda w: loss(lambda w: [rnn(x, w["w"], w["u"]) for x in xs], w))
    got, want = batched({"w": W, "u": U}), plain({"w": W, "u": U})
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9)


def test_gradients_through_a_list_of_each_example():
    xs = ragged(3, 1, 5, width=2)

    def f(xs, w):
        outs = []
        for x in xs:
            outs.append(np.tanh(x @ w))
        return (np.stack(outs) * 2).sum() + sum(outs)[0] + outs[-1][1]

    batched = ab.grad(lambda w: sum(examples(batch(f, strict=True)(batch_of(xs), w))))
    plain = ab.grad(lambda w: sum(f(x, w) for x in xs))
    np.testing.assert_allclose(batched(W), plain(W), rtol=1e-9)
