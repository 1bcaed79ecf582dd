"""A binary Tree-GRU by plain recursion over nested tuples: gates for each part, and a new state."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Case, Way, Workload
from benchmarks.trees import VOCABULARY, binary_trees

__all__ = ["MODEL", "WORKLOAD", "data", "encode", "forward", "loss"]


@ab.batch
def encode(tree: Any, p: dict[str, Any]) -> np.ndarray:
    """The state of a tree."""
    if isinstance(tree, int):
        return np.tanh(p["emb"][tree] @ p["w"])
    size = p["out"].shape[0]
    parts = np.concatenate([encode(tree[0], p), encode(tree[1], p)])
    gates = ab.nn.sigmoid(parts @ p["u"] + p["b"])
    update, reset = gates[: 2 * size], gates[2 * size :]
    new = np.tanh((reset * parts) @ p["v"])
    kept = update * parts
    return kept[:size] + kept[size:] + (1 - update[:size]) * (1 - update[size:]) * new


@ab.batch
def forward(tree: Any, params: dict[str, Any]) -> np.ndarray:
    """The scores of a tree's five classes."""
    return encode(tree, params) @ params["out"]


@ab.batch
def loss(tree: Any, label: int, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(tree, params), label)


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(10)
    size = case["hidden"]
    trees = binary_trees(rng, case["batch"])
    labels = [int(label) for label in rng.integers(0, 5, len(trees))]
    params = common.weights(
        rng,
        emb=(VOCABULARY, size),
        w=(size, size),
        u=(2 * size, 4 * size),
        b=(4 * size,),
        v=(2 * size, size),
        out=(size, 5),
    )
    return common.Data((trees, labels) if case.train else (trees,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)

WORKLOAD = Workload(
    "tree_gru",
    "binary Tree-GRU over trees of 20-40 leaves, batch 64",
    common.sizes(small=(8,), full=(64, 256)),
    ways=[
        Way(OURS, "benchmarks.workloads.tree_gru:MODEL.on_the_fly"),
        Way(LOOP, "benchmarks.workloads.tree_gru:MODEL.loop"),
        Way("DyNet agenda", "benchmarks.peers.trees_dynet:tree_gru", needs="dynet", settings={"autobatch": 1}),
        Way("DyNet depth", "benchmarks.peers.trees_dynet:tree_gru", needs="dynet", settings={"autobatch": 2}),
    ],
)
