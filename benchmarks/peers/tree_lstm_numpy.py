"""The binary Tree-LSTM batched by hand in NumPy, a level at a time."""

from typing import Any

import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.peers.tree_levels import Levels
from benchmarks.workloads import tree_lstm


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5)


def states(trees: Any, p: dict[str, np.ndarray]) -> np.ndarray:
    size = p["out"].shape[0]
    plan = Levels.of(trees)
    leaves = len(plan.words)
    count = leaves + sum(len(left) for left, _ in plan.levels)
    h, c = np.empty((2, count, size), np.float32)
    z = p["emb"][plan.words] @ p["w"] + p["b_leaf"]
    gates = sigmoid(z[:, : 2 * size])
    np.multiply(gates[:, :size], np.tanh(z[:, 2 * size :]), out=c[:leaves])
    np.multiply(gates[:, size:], np.tanh(c[:leaves]), out=h[:leaves])
    done = leaves
    for left, right in plan.levels:
        end = done + len(left)
        z = np.concatenate([h[left], h[right]], axis=1) @ p["u"] + p["b"]
        gates = sigmoid(z[:, : 4 * size])
        own = c[done:end]
        np.multiply(gates[:, :size], np.tanh(z[:, 4 * size :]), out=own)
        own += gates[:, 2 * size : 3 * size] * c[left]
        own += gates[:, 3 * size :] * c[right]
        np.multiply(gates[:, size : 2 * size], np.tanh(own), out=h[done:end])
        done = end
    return h[plan.roots]


def prepare(case: Case) -> Runner:
    data = tree_lstm.data(case)
    (trees,) = data.columns
    return Runner(lambda: states(trees, data.params) @ data.params["out"], list)
