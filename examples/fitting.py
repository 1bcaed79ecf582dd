"""What the short examples share: training by mini-batches, in lock-step where examples are arrays, else traced."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autobatch as ab


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Weights to start from: normal, divided by the square root of the first dimension."""
    return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)


def fit(
    loss: Callable[..., Any],
    data: Sequence[tuple[Any, ...]],
    params: Any,
    epochs: int,
    lr: float = 0.01,
    size: int = 32,
) -> Any:
    """Adam on the mean of `loss(*example, params=params)`; returns the parameters, which are updated in place."""
    optimizer, rng = ab.optim.Adam(lr=lr), np.random.default_rng(0)
    state = optimizer.init(params)
    in_batches = all(isinstance(part, np.ndarray | int | float) for part in data[0])
    table = ab.collate(data) if in_batches else None

    def objective(p: Any, chosen: np.ndarray) -> Any:
        if table is not None:
            return ab.mean(loss(*ab.Examples(table)[chosen].batch, params=p))
        losses = ab.map(loss, *zip(*[data[i] for i in chosen], strict=True), params=p)
        return sum(losses[1:], losses[0]) / len(losses)

    with ab.options(way="lockstep"):  # batches in lock-step, maps traced
        for _ in range(epochs):
            order = rng.permutation(len(data))
            for start in range(0, len(data), size):
                gradient = ab.grad(objective)(params, order[start : start + size])
                params, state = optimizer.update(params, gradient, state)
    return params
