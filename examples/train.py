"""Training a model of one function, in batches and, to compare, as a plain loop over the functions.

The two do the same: the gradient of the mean loss of a batch, then one optimiser step. Batched, the gradient is taken
of one call for the whole batch; plain, of the same function on one example at a time, and added up.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

import autobatch as ab
from examples import bag, sequence, tree
from examples.task import Example, Node, Task

Step = Callable[["Model", Sequence[Example], Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Model:
    """What training needs to know of a model.

    Attributes:
        name: what people call it; `way`: how its examples are batched.
        init: `init(rng, num_ids, num_labels) -> params`.
        logits, loss: the user's functions of one example, `logits(*inputs, params)` and `loss(*inputs, label, params)`.
        inputs: the model's view of an example.
        batch_size, epochs, lr: of training; chosen, as `dropout` was, on validation files (`load(validation=...)`).
        target: how many times faster than the loop batched training should be.
        dropout: the share of words that are left out of an input, drawn again in each epoch.
    """

    name: str
    way: str
    init: Callable[..., Any]
    logits: Callable[..., Any]
    loss: Callable[..., Any]
    inputs: Callable[[Example], tuple[Any, ...]]
    batch_size: int
    epochs: int
    lr: float
    target: float
    dropout: float


BAG = Model(
    "bag of words",
    "lock-step",
    bag.init,
    bag.logits,
    bag.loss,
    inputs=lambda example: (example.words,),
    batch_size=512,
    epochs=12,
    lr=2e-2,
    target=20,
    dropout=0.4,
)
SEQUENCE = Model(
    "bidirectional GRU",
    "lock-step",
    sequence.init,
    sequence.logits,
    sequence.loss,
    inputs=lambda example: (example.tokens, example.words),
    batch_size=128,
    epochs=4,
    lr=2e-2,
    target=20,
    dropout=0.5,
)
TREE = Model(
    "Tree-LSTM",
    "tracing",
    tree.init,
    tree.logits,
    tree.loss,
    inputs=lambda example: (example.tree, example.words),
    batch_size=128,
    epochs=3,
    lr=2e-2,
    target=5,
    dropout=0.5,
)
MODELS: tuple[Model, ...] = (BAG, SEQUENCE, TREE)


def batched_step(model: Model, xs: Sequence[Any], labels: np.ndarray, params: Any) -> tuple[Any, Any]:
    """(mean loss, its gradient), all examples at once."""
    if model.way == "tracing":
        columns = list(zip(*xs, strict=True))
        return ab.value_and_grad(lambda p: np.mean(np.stack(ab.map(model.loss, *columns, list(labels), params=p))))(
            params
        )
    batches = [*columns_of(xs), ab.MaskedBatch(labels)]
    return ab.value_and_grad(lambda p: ab.mean(model.loss(*batches, p)))(params)


def columns_of(xs: Sequence[tuple[np.ndarray, ...]]) -> list[ab.PackedBatch]:
    """One batch for each input of a model, without padding."""
    return [ab.PackedBatch.from_examples(column) for column in zip(*xs, strict=True)]


def loop_step(model: Model, xs: Sequence[Any], labels: np.ndarray, params: Any) -> tuple[Any, Any]:
    """(mean loss, its gradient), one example at a time."""
    gradient = ab.value_and_grad(lambda p, x, label: model.loss(*x, label, p))
    total, grads = gradient(params, xs[0], labels[0])
    for x, label in zip(xs[1:], labels[1:], strict=True):
        value, more = gradient(params, x, label)
        total += value
        grads = added(grads, more)
    return total / len(xs), scaled(grads, 1 / len(xs))


def added(a: Any, b: Any) -> Any:
    """The sum of two gradients; arrays of the first are added into."""
    if isinstance(a, dict):
        return {key: added(a[key], b[key]) for key in a}
    if isinstance(a, list):
        return [*a, b]
    if isinstance(a, ab.SparseRows):
        return [a, b]  # joined once, by `scaled`
    return np.add(a, b, out=a)


def scaled(grads: Any, factor: float) -> Any:
    if isinstance(grads, dict):
        return {key: scaled(value, factor) for key, value in grads.items()}
    if isinstance(grads, list):
        ids = np.concatenate([part.ids for part in grads])
        rows = np.concatenate([part.rows for part in grads])
        return ab.SparseRows(ids, rows * np.float32(factor), grads[0].num_rows)
    return grads * np.float32(factor) if isinstance(grads, np.ndarray) else grads * factor


def fit(model: Model, task: Task, *, seed: int = 0, epochs: int | None = None, quiet: bool = False) -> Any:
    """Parameters trained on the training files, with a progress bar."""
    rng = np.random.default_rng(seed)
    params = model.init(rng, len(task.symbols), len(task.labels))
    epochs = model.epochs if epochs is None else epochs
    optimizer = ab.optim.Adam(lr=model.lr)
    state = optimizer.init(params)
    steps = epochs * -(-len(task.train) // model.batch_size)
    hidden = quiet or None  # None: unless it is shown in a terminal
    with tqdm(
        total=epochs * len(task.train), desc="  training ", unit="", leave=False, ncols=79, disable=hidden
    ) as bar:
        for _ in range(epochs):
            for batch in batches(task.train, model, rng):
                xs = [tuple(thinned(x, model.dropout, rng) for x in model.inputs(example)) for example in batch]
                loss, grads = batched_step(model, xs, labels_of(batch), params)
                optimizer = ab.optim.Adam(lr=model.lr * (1 - state["step"] / steps))
                params, state = optimizer.update(params, grads, state)
                bar.update(len(batch))
                bar.set_postfix(loss=f"{float(loss):.2f}", refresh=False)
    return params


def batches(examples: Sequence[Example], model: Model, rng: np.random.Generator) -> list[list[Example]]:
    """A shuffled epoch of batches of functions of similar size, so that little of a batch is padding."""
    order = rng.permutation(len(examples))
    chunk = 8 * model.batch_size
    out = []
    for start in range(0, len(order), chunk):
        by_size = sorted((examples[i] for i in order[start : start + chunk]), key=lambda example: len(example.tokens))
        out += [by_size[i : i + model.batch_size] for i in range(0, len(by_size), model.batch_size)]
    return [out[i] for i in rng.permutation(len(out))]


def thinned(x: Any, share: float, rng: np.random.Generator) -> Any:
    """A bag or sequence without a random share of its rows, a tree without that of each node's; at least one stays."""
    if isinstance(x, Node):
        return Node(thinned(x.ids, share, rng), [thinned(child, share, rng) for child in x.children])
    kept = x[rng.random(len(x)) >= share]
    return kept if len(kept) else x[:1]


def labels_of(examples: Sequence[Example]) -> np.ndarray:
    return np.array([example.label for example in examples], np.int64)


def predict(model: Model, examples: Sequence[Example], params: Any) -> np.ndarray:
    """The label with the highest score, for each example."""
    by_size = sorted(range(len(examples)), key=lambda i: len(examples[i].tokens))
    labels = np.zeros(len(examples), np.int64)
    for start in range(0, len(by_size), model.batch_size):
        chosen = by_size[start : start + model.batch_size]
        xs = [model.inputs(examples[i]) for i in chosen]
        if model.way == "tracing":
            scores = np.stack(ab.map(model.logits, *zip(*xs, strict=True), params=params))
        else:
            scores = ab.batch(model.logits)(*columns_of(xs), params).data
        labels[chosen] = scores.argmax(1)
    return labels


def accuracy(model: Model, examples: Sequence[Example], params: Any) -> float:
    return float((predict(model, examples, params) == labels_of(examples)).mean())


@dataclass(frozen=True, slots=True)
class Speed:
    """Training speed in examples per second: medians."""

    batched: float
    loop: float

    @property
    def ratio(self) -> float:
        return self.batched / self.loop


def measure_speed(model: Model, task: Task, *, seconds: float = 4.0, seed: int = 0) -> Speed:
    """Time a batch of training both ways in turn, optimiser step included: at least three times, and for `seconds`.

    The batch is the middle one of the training functions in order of size; the loop takes every sixteenth of them,
    which are like the rest. Before the clock starts both ways run on these, and losses and gradients are compared.

    Raises:
        AssertionError: they differ.
    """
    rng = np.random.default_rng(seed)
    params = model.init(rng, len(task.symbols), len(task.labels))
    by_size = sorted(task.train, key=lambda example: len(example.tokens))
    middle = max(0, len(by_size) - model.batch_size) // 2
    chosen = by_size[middle : middle + model.batch_size]
    xs, labels = [model.inputs(example) for example in chosen], labels_of(chosen)
    given = {batched_step: (xs, labels), loop_step: (xs[::16], labels[::16])}
    check_equal(*(step(model, *given[loop_step], params) for step in given))
    optimizer = ab.optim.Adam(lr=model.lr)
    state = optimizer.init(params)
    taken: dict[Any, list[float]] = {batched_step: [], loop_step: []}
    end = time.perf_counter() + seconds
    while len(taken[loop_step]) < 3 or time.perf_counter() < end:
        for step, times in taken.items():
            start = time.perf_counter()
            _, grads = step(model, *given[step], params)
            params, state = optimizer.update(params, grads, state)
            times.append(time.perf_counter() - start)
    return Speed(*(len(given[step][0]) / statistics.median(times) for step, times in taken.items()))


def check_equal(batched: tuple[Any, Any], loop: tuple[Any, Any]) -> None:
    """Compare (loss, gradient) pairs, up to the order of float32 sums."""
    np.testing.assert_allclose(batched[0], loop[0], rtol=1e-4)
    for (name, a), (_, b) in zip(arrays(batched[1]), arrays(loop[1]), strict=True):
        scale = max(float(np.abs(b).max(initial=0)), 1e-6)
        np.testing.assert_allclose(a / scale, b / scale, atol=1e-3, err_msg=f"gradient of {name}")


def arrays(grads: Any, name: str = "params") -> list[tuple[str, np.ndarray]]:
    if isinstance(grads, dict):
        return [leaf for key, value in grads.items() for leaf in arrays(value, f"{name}[{key!r}]")]
    return [(name, grads.to_dense() if isinstance(grads, ab.SparseRows) else grads)]
