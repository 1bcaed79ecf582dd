"""The cost of a node as a graph grows: the binary Tree-LSTM over forests of a thousand to ten million nodes.

The time of a run over the number of nodes should not change, and the peak memory grow no faster than the forest.
"""

from benchmarks.declare import LOOP, OURS, Case, Way, Workload

_NODES_OF_A_TREE = 59  # of 20 to 40 leaves, on average
_LOOPED = 10**5  # nodes; the loop over more takes minutes


def cases(size: str) -> list[Case]:
    """Forests of about ten to the power of these nodes."""
    return [
        Case(f"10^{power} nodes", {"hidden": 16, "batch": round(10**power / _NODES_OF_A_TREE), "nodes": 10**power})
        for power in ((3, 4, 5, 6, 7) if size == "full" else (2,))
    ]


WORKLOAD = Workload(
    "growth",
    "binary Tree-LSTM, H=16, forests of a thousand to ten million nodes, the largest of 169,492 examples",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.tree_lstm:MODEL.on_the_fly"),
        Way("NumPy by level", "benchmarks.peers.tree_lstm_numpy:prepare"),
        Way(LOOP, "benchmarks.workloads.tree_lstm:MODEL.loop", serves=lambda case: case["nodes"] <= _LOOPED),
    ],
)
