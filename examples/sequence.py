"""A bidirectional GRU over the tokens of one function (Cho et al. 2014), the states of all tokens max-pooled."""

from typing import Any

import numpy as np

import autobatch as ab

__all__ = ["init", "logits", "loss"]


def init(rng: np.random.Generator, num_ids: int, num_labels: int, size: int = 48) -> dict[str, Any]:
    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    def direction() -> dict[str, np.ndarray]:
        return {"w": weights(size, 3 * size), "u": weights(size, 3 * size), "b": np.zeros(3 * size, np.float32)}

    return {
        "emb": ab.EmbeddingTable(rng.normal(0, 0.1, (num_ids, size)).astype(np.float32)),
        "forward": direction(),
        "backward": direction(),
        "w": weights(2 * size, num_labels),
        "b": np.zeros(num_labels, np.float32),
    }


def gru(xs: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    """(t, size) inputs -> the maximum over time of the states."""
    size = p["u"].shape[0]
    h = np.zeros(size, np.float32)
    states = []
    for x in xs @ p["w"] + p["b"]:
        u = h @ p["u"]
        gates = ab.nn.sigmoid(x[: 2 * size] + u[: 2 * size])
        update, reset = gates[:size], gates[size:]
        h = h + update * (np.tanh(x[2 * size :] + reset * u[2 * size :]) - h)
        states.append(h)
    return np.stack(states).max(0)


def logits(tokens: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """(t,) ids of one function's tokens, in order -> one score per label."""
    xs = params["emb"][tokens]
    both = np.concatenate([gru(xs, params["forward"]), gru(xs[::-1], params["backward"])])
    return both @ params["w"] + params["b"]


@ab.batch
def loss(tokens: np.ndarray, label: int, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(logits(tokens, params), label)
