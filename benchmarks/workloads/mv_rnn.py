"""A matrix-vector recursive network (Socher et al. 2012): every node has a vector and a matrix, which cross."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Case, Way, Workload
from benchmarks.trees import VOCABULARY, binary_trees

__all__ = ["MODEL", "WORKLOAD", "data", "encode", "forward", "loss"]


@ab.batch
def encode(tree: Any, p: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(vector, matrix) of a tree."""
    if isinstance(tree, int):
        x = p["vectors"][tree]
        return x, p["matrices"][tree].reshape(len(x), len(x))
    (a, left), (b, right) = encode(tree[0], p), encode(tree[1], p)
    vector = np.tanh(np.concatenate([a @ right, b @ left]) @ p["w"])
    return vector, np.concatenate([left, right], axis=1) @ p["w_matrix"]


@ab.batch
def forward(tree: Any, params: dict[str, Any]) -> np.ndarray:
    """The scores of a tree's five classes."""
    return encode(tree, params)[0] @ params["out"]


@ab.batch
def loss(tree: Any, label: int, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(tree, params), label)


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(11)
    size = case["hidden"]
    trees = binary_trees(rng, case["batch"])
    labels = [int(label) for label in rng.integers(0, 5, len(trees))]
    params = common.weights(rng, w=(2 * size, size), w_matrix=(2 * size, size), out=(size, 5))
    params["vectors"] = rng.normal(0, 1, (VOCABULARY, size)).astype(np.float32)
    noise = rng.normal(0, 0.1 * size**-0.5, (VOCABULARY, size, size))
    params["matrices"] = (np.eye(size) + noise).astype(np.float32).reshape(VOCABULARY, -1)
    return common.Data((trees, labels) if case.train else (trees,), params, tables=("vectors", "matrices"))


MODEL = common.Model(forward, loss, data)

WORKLOAD = Workload(
    "mv_rnn",
    "matrix-vector recursive network over trees of 20-40 leaves, batch 64",
    common.sizes(small=(4,), full=(16, 32)),
    ways=[
        Way(OURS, "benchmarks.workloads.mv_rnn:MODEL.on_the_fly"),
        Way(LOOP, "benchmarks.workloads.mv_rnn:MODEL.loop"),
        Way("DyNet agenda", "benchmarks.peers.trees_dynet:mv_rnn", needs="dynet", settings={"autobatch": 1}),
        Way("DyNet depth", "benchmarks.peers.trees_dynet:mv_rnn", needs="dynet", settings={"autobatch": 2}),
    ],
)
