"""A bidirectional GRU over the tokens of one function (Cho et al. 2014), its states max-pooled, beside a bag.

Wide and deep (Cheng et al. 2016): the scores of the bag of words, and those of the states, added up.
"""

from typing import TypedDict

import numpy as np

import autobatch as ab
from examples import bag


class Direction(TypedDict):
    """The weights of the GRU that reads one way: update, reset and candidate beside each other."""

    w: np.ndarray
    u: np.ndarray
    b: np.ndarray


class Params(TypedDict):
    """The table, the GRUs, the linear layer from both states to the scores, and the bag's parameters."""

    emb: ab.EmbeddingTable
    forward: Direction
    backward: Direction
    w: np.ndarray
    bag: bag.Params


def init(rng: np.random.Generator, num_ids: int, num_labels: int, size: int = 24) -> Params:
    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    def direction() -> Direction:
        return {"w": weights(size, 3 * size), "u": weights(size, 3 * size), "b": np.zeros(3 * size, np.float32)}

    return {
        "emb": ab.EmbeddingTable(rng.normal(0, 0.1, (num_ids, size)).astype(np.float32)),
        "forward": direction(),
        "backward": direction(),
        "w": weights(2 * size, num_labels),
        "bag": bag.init(rng, num_ids, num_labels),
    }


def gru(xs: np.ndarray, p: Direction) -> np.ndarray:
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
    highest: np.ndarray = np.stack(states).max(0)
    return highest


def logits(tokens: np.ndarray, words: np.ndarray, params: Params) -> np.ndarray:
    """(t, 2) ids of one function's tokens and of their pairs, in order, and of its bag -> one score per label."""
    xs = params["emb"][tokens].sum(1)
    both = np.concatenate([gru(xs, params["forward"]), gru(xs[::-1], params["backward"])])
    scores: np.ndarray = both @ params["w"] + bag.logits(words, params["bag"])
    return scores


@ab.batch
def loss(tokens: np.ndarray, words: np.ndarray, label: int, params: Params) -> np.ndarray:
    return ab.nn.cross_entropy(logits(tokens, words, params), label)
