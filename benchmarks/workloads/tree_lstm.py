"""A binary Tree-LSTM (Tai et al. 2015, equations 9-14, with N = 2) by plain recursion over nested tuples."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, Bar, Case, ShareBar, Way, Workload, dynet, on_the_fly
from benchmarks.trees import VOCABULARY, binary_trees


@ab.batch
def encode(tree: Any, p: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The state (h, c) of a tree: of a word from its row of the table, of a pair from the states of its two parts."""
    size = p["out"].shape[0]
    if isinstance(tree, int):
        z = p["emb"][tree] @ p["w"] + p["b_leaf"]
        gates, update = ab.nn.sigmoid(z[: 2 * size]), np.tanh(z[2 * size :])
        c = gates[:size] * update
        return gates[size:] * np.tanh(c), c
    (h1, c1), (h2, c2) = encode(tree[0], p), encode(tree[1], p)
    z = np.concatenate([h1, h2]) @ p["u"] + p["b"]
    gates, update = ab.nn.sigmoid(z[: 4 * size]), np.tanh(z[4 * size :])
    c = gates[:size] * update + gates[2 * size : 3 * size] * c1 + gates[3 * size :] * c2
    return gates[size : 2 * size] * np.tanh(c), c


@ab.batch
def forward(tree: Any, params: dict[str, Any]) -> np.ndarray:
    """The scores of a tree's five classes."""
    return encode(tree, params)[0] @ params["out"]


@ab.batch
def loss(tree: Any, label: int, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(tree, params), label)


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(1)
    size = case["hidden"]
    trees = binary_trees(rng, case["batch"])
    labels = [int(label) for label in rng.integers(0, 5, len(trees))]
    params = common.weights(
        rng,
        emb=(VOCABULARY, size),
        w=(size, 3 * size),
        b_leaf=(3 * size,),
        u=(2 * size, 5 * size),
        b=(5 * size,),
        out=(size, 5),
    )
    return common.Data((trees, labels) if case.train else (trees,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "tree_lstm",
    "binary Tree-LSTM over trees of 20-40 leaves, batches of 64 and 16",
    common.with_batches(common.sizes(small=(8,), full=(64, 128, 256)), 16),
    ways=[
        *on_the_fly("tree_lstm"),
        Way("NumPy by level", "benchmarks.peers.tree_lstm_numpy:prepare", serves=lambda case: not case.train),
        Way("torch by level", "benchmarks.peers.tree_lstm_torch:by_level", needs="torch"),
        Way("torch loop", "benchmarks.peers.tree_lstm_torch:loop", needs="torch"),
        *dynet("tree_lstm_dynet:prepare"),
    ],
    bars=[
        Bar(("DyNet",), 2.0, holds=lambda case: case["hidden"] == 64 and case["batch"] == 64),
        Bar(("DyNet",), 1.5, holds=lambda case: case["hidden"] == 128 and case["batch"] == 64),
        Bar(("DyNet",), 1.2, holds=lambda case: case["hidden"] == 256 or case["batch"] == 16),
        Bar((LOOP,), 15, holds=lambda case: case["hidden"] == 64 and case["batch"] == 64 and not case.train),
    ],
    share_bars=[
        ShareBar(("tracing", "scheduling"), 0.35, holds=lambda case: case.name == "H=64 forward"),
    ],
)
