"""`autobatch demo`: a small model of one sentence, proved equal to the loop, timed beside it, and trained."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch import nn, optim
from autobatch.api.batch import batch
from autobatch.api.transforms import value_and_grad
from autobatch.batches.batch_reductions import mean
from autobatch.batches.data.collate import collate
from autobatch.batches.data.minibatches import minibatches
from autobatch.batches.stacking import examples
from autobatch.cli.way_timing import least_seconds
from autobatch.core.config import options
from autobatch.tables.table import EmbeddingTable
from autobatch.testing.equivalence import assert_equivalent


def logits(words: Any, params: Any) -> Any:
    """ONE sentence: (T,) ids of words, any T -> one score for each class."""
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h @ params["out"]


@batch
def loss(words: Any, label: Any, params: Any) -> Any:
    return nn.cross_entropy(logits(words, params), label)


def run(say: Callable[[str], None], *, sentences: int = 2000, epochs: int = 4, seed: int = 0) -> bool:
    """Run the demo, reporting to `say` line by line; returns True if the model has learnt its task."""
    rng = np.random.default_rng(seed)
    data = [_sentence(rng) for _ in range(sentences)]
    train, held_out = collate(data[: -sentences // 5]), collate(data[-sentences // 5 :])
    params = _params(rng)
    say(f"{sentences} sentences of 3 to 20 words; the class is which of two words comes last\n")
    say(inspect.getsource(logits))

    few = data[:6]
    report = assert_equivalent(loss, [row["words"] for row in few], [row["label"] for row in few], params=params)
    say(f"checked on {report.examples} sentences, in {report.runs} runs: values and gradients equal the loop's")

    rows = next(iter(minibatches(train, 256)))
    columns = [rows["words"].examples(), rows["label"].examples()]
    with options(way="lockstep"):
        together = value_and_grad(lambda p: mean(loss(rows["words"], rows["label"], p)))
        batched = least_seconds(lambda: together(params))
    loop = value_and_grad(lambda p: sum(loss(words, label, p) for words, label in zip(*columns, strict=True)))
    looped = least_seconds(lambda: loop(params), 1)
    say(
        f"the gradient of 256 sentences: {batched * 1e3:.1f} ms in a batch, {looped * 1e3:.0f} ms in a loop: "
        f"{looped / batched:.0f} times as fast\n"
    )

    optimizer = optim.Adam(lr=0.01)
    state = optimizer.init(params)
    accuracy = 0.0
    for epoch in range(epochs):
        total = 0.0
        with options(way="lockstep"):
            for rows in minibatches(train, 50, shuffle=True, seed=epoch):
                step = value_and_grad(lambda p, rows=rows: mean(loss(rows["words"], rows["label"], p)))
                value, gradient = step(params)
                params, state = optimizer.update(params, gradient, state)
                total += float(value) * rows["label"].batch_size
            guesses = examples(batch(logits)(held_out["words"], params).argmax(-1))
        accuracy = float(np.mean(np.array(guesses) == np.array(held_out["label"].examples())))
        say(f"epoch {epoch + 1}: loss {total / len(data[: -sentences // 5]):.3f}, held-out accuracy {accuracy:.1%}")
    return accuracy > 0.9


def _sentence(rng: np.random.Generator) -> dict[str, Any]:
    words = rng.integers(2, 50, rng.integers(3, 21))
    places = rng.choice(len(words), 2, replace=False)
    words[places] = rng.permutation(2)
    return {"words": words, "label": int(words[places.max()])}


def _params(rng: np.random.Generator) -> dict[str, Any]:
    def weights(*shape: int) -> Any:
        return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    emb = EmbeddingTable(weights(50, 16))
    return {"emb": emb, "w": weights(16, 32), "u": weights(32, 32), "out": weights(32, 2)}
