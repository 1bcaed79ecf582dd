"""`Lazy`, the object that `ab.lazy` returns: a recorder to record calls by hand."""

from types import TracebackType
from typing import Any

import numpy as np

from autobatch.core.op import is_boxed
from autobatch.core.pytree import replace_leaves
from autobatch.lazy.array import LazyArray
from autobatch.lazy.launching import Stats
from autobatch.lazy.trace import Trace, finish


class Lazy:
    """A recorder: call it on arrays, compute with what it returns, and read the results with `np.asarray`.

    Everything recorded since the last launch is launched together when a value is first needed, at `flush()`, and when
    the `with` block ends. Values may be read after that.
    """

    __slots__ = ("_trace",)

    def __init__(self) -> None:
        self._trace = Trace()

    def __enter__(self) -> "Lazy":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()

    def __call__(self, tree: Any) -> Any:
        """Wrap an array, or all arrays in a nested dict, list, tuple or dataclass, as recorded arrays."""

        def leaf(x: Any) -> Any:
            if isinstance(x, LazyArray) and x.trace is self._trace:
                return x
            if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "biufc":
                return self._trace.computed(np.array(x))  # a copy: the caller may write into `x` before the launch
            return self._trace.computed(x) if is_boxed(x) and hasattr(x, "dtype") else x

        return replace_leaves(tree, leaf)

    def flush(self) -> None:
        """Launch everything recorded so far."""
        self._trace.launch()

    def results(self, tree: Any) -> Any:
        """Replace recorded arrays in a nested structure by plain arrays (under a gradient, by arrays on the tape)."""
        return finish(self._trace, tree)

    @property
    def stats(self) -> Stats:
        """Statistics of the launches so far."""
        return self._trace.stats

    def to_networkx(self) -> Any:
        """The calls recorded and not launched yet as a `networkx.DiGraph`, for inspection.

        Nodes are numbers with attributes `op`, `signature`, `shape`, `dtype`; edges lead from operand to user.
        """
        return to_networkx(self._trace)


def to_networkx(trace: Trace) -> Any:
    """The ops recorded since the last launch: one node each, with an edge to each op that reads its result."""
    import networkx  # noqa: PLC0415 - slow to import, and needed only for inspection

    graph = networkx.DiGraph()
    segment, at = trace.segment, 0
    for node, number in enumerate(segment.sigs):
        sig = trace.table[number]
        graph.add_node(node, op=sig.op.name, signature=sig.text, shape=sig.out.shape, dtype=str(sig.out.dtype))
        for ref in segment.refs[at : at + len(sig.avals)]:
            if ref >= 0:
                graph.add_edge(ref, node)
        at += len(sig.avals)
    return graph
