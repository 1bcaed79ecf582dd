"""A recorded graph as a networkx graph: for a person to look at, never for running."""

from typing import Any

from autobatch.lazy.trace import Trace

__all__ = ["to_networkx"]


def to_networkx(trace: Trace) -> Any:
    """The ops recorded since the last launch: a node for each, an edge from each op to those that read its result."""
    import networkx  # noqa: PLC0415 - heavy, and only for what a person looks at

    graph = networkx.DiGraph()
    wave, at = trace.wave, 0
    for node, number in enumerate(wave.sigs):
        sig = trace.table[number]
        graph.add_node(node, op=sig.op.name, signature=sig.text, shape=sig.out.shape, dtype=str(sig.out.dtype))
        for ref in wave.refs[at : at + len(sig.avals)]:
            if ref >= 0:
                graph.add_edge(ref, node)
        at += len(sig.avals)
    return graph
