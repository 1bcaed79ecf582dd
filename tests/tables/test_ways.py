"""Tables and gradients under every way of running an example: on the fly, lock-step and nested."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError
from tests import inspect, naive

RANDOM = np.random.default_rng(6)
SENTENCES = [np.array(x, np.int64) for x in ([1, 4, 1], [], [0], [5, 5, 2, 3])]


def parameters():
    random = np.random.default_rng(7)
    return {"emb": ab.EmbeddingTable(0.3 * random.standard_normal((6, 3))), "w": random.standard_normal(3)}


def score(words, params):
    return np.tanh(params["emb"][words].sum(axis=0) @ params["w"])


def loop(params):
    return sum(score(words, params) for words in SENTENCES)


def expected():
    params = parameters()
    table = naive.numeric_gradient(lambda t: loop({"emb": t, "w": params["w"]}), params["emb"].weights)
    return table, naive.numeric_gradient(lambda w: loop({"emb": params["emb"], "w": w}), params["w"])


@pytest.mark.parametrize(
    "batched",
    [
        lambda params: sum(ab.map(score, SENTENCES, params=params)),
        lambda params: ab.sum(ab.batch(score)(ab.MaskedBatch.from_examples(SENTENCES), params)),
        lambda params: ab.sum(ab.batch(score)(ab.PackedBatch.from_examples(SENTENCES), params)),
        lambda params: np.tanh(
            ab.embedding_bag(ab.PackedBatch.from_examples(SENTENCES), params["emb"], mode="sum") @ params["w"]
        ).sum(),
    ],
    ids=["map", "masked", "packed", "embedding_bag"],
)
def test_a_loss_over_a_batch_has_the_gradient_of_the_loop(batched):
    value, grads = ab.value_and_grad(batched)(parameters())
    np.testing.assert_allclose(value, loop(parameters()))
    table, w = expected()
    assert isinstance(grads["emb"], ab.SparseRows)
    assert len(grads["emb"].ids) == sum(map(len, SENTENCES))
    np.testing.assert_allclose(grads["emb"].to_dense(), table, atol=1e-8)
    np.testing.assert_allclose(grads["w"], w, atol=1e-8)


def test_gradients_of_each_example_on_the_fly():
    def one(words, params):
        return ab.grad(lambda params: score(words, params))(params)

    params = parameters()
    for found, words in zip(ab.map(one, SENTENCES, params=params), SENTENCES, strict=True):
        plain = one(words, params)
        assert isinstance(found["emb"], ab.SparseRows)
        assert type(found["emb"].rows) is np.ndarray
        assert found["emb"].ids.tolist() == words.tolist()
        np.testing.assert_allclose(found["emb"].to_dense(), plain["emb"].to_dense(), atol=1e-12)
        np.testing.assert_allclose(found["w"], plain["w"], atol=1e-12)


def test_gradients_of_each_example_in_lock_step_run_the_loop():
    @ab.batch
    def slope(x, w):
        return ab.grad(lambda x: np.tanh(x @ w))(x)

    examples, w = [RANDOM.standard_normal(3) for _ in range(4)], RANDOM.standard_normal(3)
    with ab.options(warn=False):
        out = slope(ab.MaskedBatch.from_examples(examples), w)
    for found, x in zip(ab.examples(out), examples, strict=True):
        np.testing.assert_allclose(found, ab.grad(lambda x: np.tanh(x @ w))(x))


def test_an_update_moves_what_the_next_batch_reads():
    params, opt = parameters(), ab.optim.Adagrad(0.5)
    state, losses = opt.init(params), []

    def loss(params):
        return sum((y - 1) ** 2 for y in ab.map(score, SENTENCES[:1], params=params))

    for _ in range(20):
        value, grads = ab.value_and_grad(loss)(params)
        params, state = opt.update(params, grads, state)
        losses.append(float(value))
    assert losses[-1] < 0.1 * losses[0]


def test_a_bad_id_in_a_batch_is_the_error_of_the_example():
    for run in (
        lambda words: ab.map(score, words, params=parameters()),
        lambda words: ab.batch(score)(ab.MaskedBatch.from_examples(words), parameters()),
    ):
        with pytest.raises(BadIdError, match=r"id 6 .* is outside a table of 6 rows") as caught:
            run([*SENTENCES, np.array([0, 6])])
        assert any("example 4" in note for note in caught.value.__notes__)


def rows_and_more(words, params):
    rows = params["emb"][words]
    return rows, rows.sum(axis=0), rows * 2.0, rows.sum(axis=-1), rows.T @ rows, rows.max(initial=0.0)


@pytest.mark.parametrize("build", [ab.MaskedBatch.from_examples, ab.PackedBatch.from_examples])
def test_a_look_up_that_is_put_off_is_like_one_that_is_not(build):
    params, sentences = parameters(), [words for words in SENTENCES if len(words)]
    out = ab.batch(rows_and_more)(build(sentences), params)
    if isinstance(out[0], ab.MaskedBatch):
        assert isinstance(out[0].data, np.ndarray)
    for found, words in zip(ab.examples(out), sentences, strict=True):
        for left, right in zip(found, rows_and_more(words, params), strict=True):
            np.testing.assert_allclose(left, right, atol=1e-12)


def test_a_sum_over_looked_up_rows_is_one_bag():
    with inspect.op_calls() as calls:
        ab.batch(score)(ab.PackedBatch.from_examples(SENTENCES), parameters())
    names = [call.op for call in calls]
    assert names.count("segment") == 1
    assert "lookup" not in names


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_packed_ids_in_lock_step_are_one_examples_ids():
    """Outside of it, a `PackedBatch` of ids is one bag per example."""
    ids = [np.array([0, 2]), np.array([1])]
    packed, weight = ab.PackedBatch.from_examples(ids), np.arange(6.0).reshape(3, 2)
    assert ab.embedding_bag(packed, weight, mode="sum").shape == (2, 2)
    out = ab.batch(lambda x: ab.embedding_bag(x, weight, [0], mode="sum"))(packed)
    for got, each in zip(ab.examples(out), ids, strict=True):
        np.testing.assert_array_equal(got, ab.embedding_bag(each, weight, [0], mode="sum"))
    with pytest.raises(ab.errors.ShapeError, match="offsets are needed") as caught:
        ab.batch(lambda x: ab.embedding_bag(x, weight))(packed)
    assert "raised for example 0" in caught.value.__notes__
