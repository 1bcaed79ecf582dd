"""What blocks read and what they end with: computed ids, tests, tables; and batches given to decorated calls."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.lazy.grouping.buffers import Picked
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, normal

SIZE = 4
PARAMS = {
    "emb": normal(9, SIZE, seed=0),
    "w": normal(2 * SIZE, SIZE, seed=1),
    "move": normal(SIZE, seed=2),
    "u": normal(SIZE, seed=3),
}


def reduced(words, p, log=None):
    left, stack = 0, []
    while left < len(words) or len(stack) > 1:
        shift = len(stack) < 2
        if not shift and left < len(words):
            seen = np.concatenate([stack[-1], p["emb"][words[left]]])
            shift = bool(np.tanh(seen @ p["w"]) @ p["move"] > 0)
        if shift:
            stack.append(p["emb"][words[left]])
            left += 1
        else:
            right = stack.pop()
            stack.append(np.tanh(np.concatenate([stack.pop(), right]) @ p["w"]))
    return stack[0]


def sentences(count=12):
    rng = np.random.default_rng(4)
    return [rng.integers(0, 9, n).tolist() for n in rng.integers(1, 8, count)]


@pytest.mark.parametrize("kind", [list, np.array])
@pytest.mark.parametrize("table", [np.asarray, ab.EmbeddingTable])
def test_a_look_up_by_a_computed_id_and_a_test_are_one_block(kind, table):
    words = [kind(each) for each in sentences()]
    found, stats = map_with_stats(reduced, words, p={**PARAMS, "emb": table(PARAMS["emb"])})
    assert_same(found, loop(reduced, words, p=PARAMS))
    assert len(stats.by_signature) == 3  # the word that is shifted, the test, two parts that become one
    assert any("lookup, concatenate, matmul, tanh, matmul, greater" in text for _, text in stats.by_signature)


@pytest.mark.parametrize("table", [np.array, ab.EmbeddingTable])
def test_the_gradient_of_a_block_with_look_ups(table):
    words = [each for each in sentences() if len(each) > 1]

    def state(word, before, p):
        i = len(word) - 1
        return np.tanh(np.concatenate([p["emb"][word[i]], before]) @ p["w"]) * p["emb"][word[0]]

    def loss(p, run):
        return np.mean(np.stack([np.sum(x) for x in run(state, words, [PARAMS["u"]] * len(words), p=p)]))

    params = {**PARAMS, "emb": table(PARAMS["emb"])}
    for _ in range(5):  # the first runs go step by step
        value, grads = ab.value_and_grad(lambda p: loss(p, ab.map))(params)
        expected, by_loop = ab.value_and_grad(lambda p: loss(p, loop))(dict(PARAMS))  # `u` is meant as a constant
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        for name, grad in grads.items():
            dense = grad.to_dense() if hasattr(grad, "to_dense") else grad
            np.testing.assert_allclose(dense, by_loop[name], rtol=1e-4, atol=1e-6)


class Noted(list):
    """A list that says what was read of it."""

    def __init__(self, items, log):
        super().__init__(items)
        self.log = log

    def __getitem__(self, index):
        self.log.append(index)
        return super().__getitem__(index)


def rows(ids, others, p):
    i = len(ids) - 1
    seen = np.concatenate([p["emb"][ids[i]], p["emb"][others[0]], p["emb"][ids[0]]]) * 2
    return seen + 1


def test_what_is_read_is_read_once_and_in_order():
    for run in (loop, ab.map):
        log = []
        found = run(rows, [Noted([1, 2], log), Noted([3], log)], [Noted([4], log), Noted([5], log)], p=PARAMS)
        assert log == [1, 0, 0, 0, 0, 0]
        assert_same(found, loop(rows, [[1, 2], [3]], [[4], [5]], p=PARAMS))


@pytest.mark.parametrize("ids", [[-1], [9], [True], [slice(0, 2)], ["a"]])
def test_ids_that_are_no_row_do_what_they_do(ids):
    def run(way):
        try:
            return way(rows, [ids], [[0]], p=PARAMS)
        except Exception as error:
            return type(error), str(error)

    assert_same(run(ab.map), run(loop))


def test_arrays_of_an_example_s_own_are_read_by_computed_ids():
    def own(x, order, p):
        table = np.stack([x, x * 2])
        held = [x + 1, x * 3]
        return np.tanh(table[order[0]] * p["u"]) + 1, np.tanh(held[order[1]] * p["u"]) + 1, PARAMS["emb"][order[0]] * x

    xs = [normal(SIZE, seed=k) for k in range(5)]
    assert_same(ab.map(own, xs, [[0, 1]] * 5, p=PARAMS), loop(own, xs, [[0, 1]] * 5, p=PARAMS))


def decided(x, p):
    y = np.tanh(x * p["u"]) * 2
    if y @ p["move"] > 0:
        z = y + 1
        return z * 2, float(z @ p["move"])
    elif np.abs(y).max() > 0.1:
        return y, int(np.sum(y * 3))
    kept = bool((y * 2).sum() > 0)
    return y * 3, kept


def own_bool(x, p, bool=lambda value: [value]):
    y = np.tanh(x * p["u"])
    found = bool(y @ p["move"] > 0)
    return found[0]


@pytest.mark.parametrize("f", [decided, own_bool])
def test_tests_end_blocks(f):
    xs = [normal(SIZE, seed=k) * (0.01 if k % 3 == 0 else 1) for k in range(16)]
    assert_same(ab.map(f, xs, p=PARAMS), loop(f, xs, p=PARAMS), precision=4)


@ab.batch
def scaled(x, /, id, *rest, type=1.0, **more):
    """Names that hide what the check of arguments uses."""
    y = np.tanh(x * id) * type
    for each in rest:
        y = y + each * 2
    return y + more.get("b", 0.0) * 3


CALLS = [
    lambda x, y: scaled(x, y),
    lambda x, y: scaled(x, 2.0, y),
    lambda x, y: scaled(x, 2.0, type=y),
    lambda x, y: scaled(x, 2.0, b=y),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_batch_among_the_arguments_of_a_decorated_call_in_an_example(call):
    values = [normal(SIZE, seed=0), normal(SIZE, seed=1)]
    batch = ab.MaskedBatch.from_examples(values)
    x = normal(SIZE, seed=2)

    def example(k):
        return scaled(x * k, 2.0), call(x * 2, batch).examples()

    assert_same(ab.map(example, [1.0, 2.0]), loop(example, [1.0, 2.0]))


@ab.batch
def turned(x, more=()):
    for each in more:
        x = np.tanh(x + each) * 2
    if x.sum() > 0:
        x = np.tanh(x) * 2 + 1
    return x


def test_a_batch_that_decides_runs_in_lock_step():
    batch = ab.MaskedBatch.from_examples([normal(SIZE, seed=k) for k in range(3)])

    def example(k):
        whole, part = turned(batch), turned(np.ones(SIZE), [batch])
        return [x * k for x in whole.examples()], [x * k for x in part.examples()]

    found, stats = map_with_stats(example, [1.0, 2.0])
    assert_same(found, loop(example, [1.0, 2.0]))
    assert not stats.fallbacks


@pytest.mark.parametrize("call", CALLS)
def test_arguments_without_batches_reach_a_decorated_function_as_they_are(call):
    xs = [normal(SIZE, seed=k) for k in range(4)]
    assert_same(ab.map(lambda x: call(x, x + 1), xs), [call(x, x + 1) for x in xs])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3), (0, 3)])
def test_picked_rows_add_up(dtype, shape):
    rng = np.random.default_rng(5)
    count = 6 if shape[0] else 0
    picked, places = rng.integers(0, max(shape[0], 1), count), rng.permutation(8)[:count]
    values = rng.normal(size=(8, *shape[1:])).astype(dtype)
    expected = np.ones(shape, dtype)
    for row, place in zip(picked, places, strict=True):
        expected[row] += values[place]
    for given in (values, np.asfortranarray(values)):
        dense = np.ones(shape, dtype)
        Picked(picked, given, places, shape).add_to(dense)
        np.testing.assert_allclose(dense, expected, rtol=1e-6)
        turned = np.asfortranarray(np.ones(shape, dtype))
        Picked(picked, given, places, shape).add_to(turned)
        np.testing.assert_allclose(turned, expected, rtol=1e-6)
