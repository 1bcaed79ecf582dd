"""A network over directed acyclic graphs: a node's state comes from those of its parents, by weights of its kind."""

import dataclasses
from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Case, Way, Workload
from benchmarks.trees import VOCABULARY

__all__ = ["KINDS", "MODEL", "WORKLOAD", "Vertex", "data", "forward", "loss"]

KINDS = 3


@dataclasses.dataclass(frozen=True)
class Vertex:
    """A node: its word, its kind, and the places of its parents, all of which come before it."""

    word: int
    kind: int
    parents: tuple[int, ...]


@ab.batch
def forward(graph: list[Vertex], params: dict[str, Any]) -> np.ndarray:
    """The scores of a graph's five classes, from its last node."""
    states: list[np.ndarray] = []
    for vertex in graph:
        z = params["emb"][vertex.word] @ params["w"]
        if vertex.parents:
            found = [states[parent] for parent in vertex.parents]
            gate = ab.nn.sigmoid(z + found[0] @ params["u_gate"])
            z = z + gate * (sum(found[1:], found[0]) @ params[f"u_{vertex.kind}"])
        states.append(np.tanh(z))
    return states[-1] @ params["out"]


@ab.batch
def loss(graph: list[Vertex], label: int, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(graph, params), label)


def random_graph(rng: np.random.Generator, size: int) -> list[Vertex]:
    """The last node is reached from all; others have up to three parents, mostly near ones."""
    graph = []
    for place in range(size):
        count = min(place, int(rng.integers(1, 4)))
        near = sorted({int(max(0, place - 1 - rng.geometric(0.3) + 1)) for _ in range(count)})
        graph.append(Vertex(int(rng.integers(VOCABULARY)), int(rng.integers(KINDS)), tuple(near)))
    return graph


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(15)
    size = case["hidden"]
    graphs = [random_graph(rng, int(n)) for n in rng.integers(10, 51 if case["batch"] > 8 else 13, case["batch"])]
    labels = [int(label) for label in rng.integers(0, 5, len(graphs))]
    kinds = {f"u_{kind}": (size, size) for kind in range(KINDS)}
    params = common.weights(rng, emb=(VOCABULARY, size), w=(size, size), u_gate=(size, size), out=(size, 5), **kinds)
    params["emb"] *= np.float32(VOCABULARY**0.5)
    return common.Data((graphs, labels) if case.train else (graphs,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)

WORKLOAD = Workload(
    "dag",
    "network over acyclic graphs of 10-50 nodes of three kinds, batch 64",
    common.sizes(small=(8,), full=(64, 256)),
    ways=[
        Way(OURS, "benchmarks.workloads.dag:MODEL.on_the_fly"),
        Way(LOOP, "benchmarks.workloads.dag:MODEL.loop"),
        Way("DyNet agenda", "benchmarks.peers.graphs_dynet:dag", needs="dynet", settings={"autobatch": 1}),
        Way("DyNet depth", "benchmarks.peers.graphs_dynet:dag", needs="dynet", settings={"autobatch": 2}),
    ],
)
