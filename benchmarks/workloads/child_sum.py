"""A child-sum Tree-LSTM (Tai et al. 2015, equations 2-8) over trees of words with any number of children."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Case, Way, Workload
from benchmarks.trees import VOCABULARY, Node, trees_of_words

__all__ = ["MODEL", "WORKLOAD", "data", "encode", "forward", "loss"]


@ab.batch
def encode(node: Node, p: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The state (h, c) of a node, from its own word and the states of its children."""
    size = p["out"].shape[0]
    x = p["emb"][node.word] @ p["w"] + p["b"]
    gates = x[: 3 * size]
    kept = []
    if node.children:
        states = [encode(child, p) for child in node.children]
        gates = gates + total([h for h, _ in states]) @ p["u"]
        kept = [ab.nn.sigmoid(x[3 * size :] + h @ p["u_forget"]) * c for h, c in states]
    in_out = ab.nn.sigmoid(gates[: 2 * size])
    c = total([in_out[:size] * np.tanh(gates[2 * size :]), *kept])
    return in_out[size:] * np.tanh(c), c


def total(parts: list[np.ndarray]) -> np.ndarray:
    return sum(parts[1:], parts[0])


@ab.batch
def forward(tree: Node, params: dict[str, Any]) -> np.ndarray:
    """The scores of a tree's five classes."""
    return encode(tree, params)[0] @ params["out"]


@ab.batch
def loss(tree: Node, label: int, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(tree, params), label)


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(9)
    size = case["hidden"]
    trees = trees_of_words(rng, case["batch"])
    labels = [int(label) for label in rng.integers(0, 5, len(trees))]
    params = common.weights(
        rng,
        emb=(VOCABULARY, size),
        w=(size, 4 * size),
        b=(4 * size,),
        u=(size, 3 * size),
        u_forget=(size, size),
        out=(size, 5),
    )
    return common.Data((trees, labels) if case.train else (trees,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)

WORKLOAD = Workload(
    "child_sum",
    "child-sum Tree-LSTM over trees of 20-60 words, batch 64",
    common.sizes(small=(8,), full=(64, 256)),
    ways=[
        Way(OURS, "benchmarks.workloads.child_sum:MODEL.on_the_fly"),
        Way(LOOP, "benchmarks.workloads.child_sum:MODEL.loop"),
        Way("DyNet agenda", "benchmarks.peers.trees_dynet:child_sum", needs="dynet", settings={"autobatch": 1}),
        Way("DyNet depth", "benchmarks.peers.trees_dynet:child_sum", needs="dynet", settings={"autobatch": 2}),
    ],
)
