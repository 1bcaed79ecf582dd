"""A Tree-LSTM with a loss at every node, added to a total that is handed from node to node."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import Bar, Case, Workload, dynet, on_the_fly
from benchmarks.workloads import tree_lstm

CLASSES = 5


@ab.batch
def encode(tree: Any, total: Any, p: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, int, Any]:
    """The state (h, c) of a tree, its label, and the total with the losses of all of its nodes."""
    size = p["out"].shape[0]
    if isinstance(tree, int):
        label = tree % CLASSES
        z = p["emb"][tree] @ p["w"] + p["b_leaf"]
        gates, update = ab.nn.sigmoid(z[: 2 * size]), np.tanh(z[2 * size :])
        c = gates[:size] * update
        h = gates[size:] * np.tanh(c)
    else:
        h1, c1, label1, total = encode(tree[0], total, p)
        h2, c2, label2, total = encode(tree[1], total, p)
        label = (label1 + label2) % CLASSES
        z = np.concatenate([h1, h2]) @ p["u"] + p["b"]
        gates, update = ab.nn.sigmoid(z[: 4 * size]), np.tanh(z[4 * size :])
        c = gates[:size] * update + gates[2 * size : 3 * size] * c1 + gates[3 * size :] * c2
        h = gates[size : 2 * size] * np.tanh(c)
    total = total + ab.nn.cross_entropy(h @ p["out"], label)
    return h, c, label, total


@ab.batch
def forward(tree: Any, params: dict[str, Any]) -> np.ndarray:
    """The losses of all nodes of a tree, added up."""
    return encode(tree, np.float32(0.0), params)[3]


def data(case: Case) -> common.Data:
    found = tree_lstm.data(case)
    return common.Data(found.columns[:1], found.params, tables=("emb",))


MODEL = common.Model(forward, forward, data)
WORKLOAD = Workload(
    "node_losses",
    "binary Tree-LSTM over trees of 20-40 leaves with a loss at every node, batches of 64, 16 and 256",
    common.with_batches(common.sizes(small=(8,), full=(64, 128)), 16, 256),
    ways=[
        *on_the_fly("node_losses"),
        *dynet("tree_lstm_dynet:node_losses", serves=lambda case: case.train),
    ],
    bars=[Bar(("DyNet",), 1.5, holds=lambda case: case["hidden"] >= 64 and case.train)],
)
