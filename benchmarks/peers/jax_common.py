"""What the JAX peers share: padding, and a compiled function whose compilation the first run shows."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import Data
from benchmarks.declare import Runner


def padded(examples: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Examples side by side, and their lengths."""
    lengths = np.array([len(x) for x in examples])
    first = np.asarray(examples[0])
    out = np.zeros((len(examples), lengths.max(), *first.shape[1:]), first.dtype)
    for row, x in zip(out, examples, strict=True):
        row[: len(x)] = x
    return out, lengths


def masked(run: Any, new: Any, old: Any) -> Any:
    """A state that a step changes only where the sentence has not ended."""
    return jax.tree.map(lambda a, b: jnp.where(run, a, b), new, old)


def runner(data: Data, scores: Callable[..., Any], batch: Callable[[], tuple[Any, ...]], train: bool) -> Runner:
    """`scores(params, *one)` of one padded example, mapped over what `batch()` makes of the examples each time."""
    many = jax.vmap(scores, in_axes=(None, *[0] * len(batch())))
    if not train:
        forward = jax.jit(many)
        return Runner(lambda: jax.block_until_ready(forward(data.params, *batch())), lambda out: list(np.asarray(out)))
    labels = np.array(data.columns[-1])

    def loss(params: Any, labels: Any, *batch: Any) -> Any:
        log_p = jax.nn.log_softmax(many(params, *batch))
        return -jnp.take_along_axis(log_p, labels[:, None], 1).mean()

    step = jax.jit(jax.value_and_grad(loss))
    return Runner(lambda: jax.block_until_ready(step(data.params, labels, *batch())), gradients)


def gradients(out: Any) -> dict[str, Any]:
    value, found = out
    return {"loss": np.asarray(value), "gradients": {name: np.asarray(g) for name, g in found.items()}}
