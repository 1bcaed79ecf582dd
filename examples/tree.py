"""A child-sum Tree-LSTM over the syntax tree of one function, by plain recursion, beside a bag.

The states are those of Tai et al. 2015, equations 2-8. Wide and deep (Cheng et al. 2016): the scores of the bag of
words, and those of the root's state, added up.
"""

from typing import TypedDict

import numpy as np

import autobatch as ab
from examples import bag
from examples.task import Node


class Params(TypedDict):
    """The table, the weights of the cell, the linear layer from the root's state to the scores, those of the bag."""

    emb: ab.EmbeddingTable
    w: np.ndarray
    u: np.ndarray
    u_forget: np.ndarray
    b: np.ndarray
    w_out: np.ndarray
    bag: bag.Params


def init(rng: np.random.Generator, num_ids: int, num_labels: int, size: int = 64) -> Params:
    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    return {
        "emb": ab.EmbeddingTable(rng.normal(0, 0.1, (num_ids, size)).astype(np.float32)),
        "w": weights(size, 4 * size),
        "u": weights(size, 3 * size),
        "u_forget": weights(size, size),
        "b": np.zeros(4 * size, np.float32),
        "w_out": weights(size, num_labels),
        "bag": bag.init(rng, num_ids, num_labels),
    }


def tree_lstm(node: Node, p: Params) -> tuple[np.ndarray, np.ndarray]:
    """The state (h, c) of a node, from its own words and the states of its children."""
    size = p["u"].shape[0]
    x = p["emb"][node.ids].sum(0) @ p["w"] + p["b"]
    gates, x_forget = x[: 3 * size], x[3 * size :]
    kept = []
    if node.children:
        states = [tree_lstm(child, p) for child in node.children]
        gates = gates + total([h for h, _ in states]) @ p["u"]
        kept = [ab.nn.sigmoid(x_forget + h @ p["u_forget"]) * c for h, c in states]
    in_out = ab.nn.sigmoid(gates[: 2 * size])
    c = total([in_out[:size] * np.tanh(gates[2 * size :]), *kept])
    return in_out[size:] * np.tanh(c), c


def total(parts: list[np.ndarray]) -> np.ndarray:
    return sum(parts[1:], parts[0])


def logits(tree: Node, words: np.ndarray, params: Params) -> np.ndarray:
    """One function's syntax tree, and the ids of its bag -> one score per label."""
    h, _ = tree_lstm(tree, params)
    scores: np.ndarray = h @ params["w_out"] + bag.logits(words, params["bag"])
    return scores


def loss(tree: Node, words: np.ndarray, label: int, params: Params) -> np.ndarray:
    return ab.nn.cross_entropy(logits(tree, words, params), label)
