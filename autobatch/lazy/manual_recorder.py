"""What `ab.lazy` gives: a recorder, to record by hand."""

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
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()

    def __call__(self, tree: Any) -> Any:
        """A nested dict, list, tuple or dataclass with its arrays as recorded arrays; an array with its own."""

        def leaf(x: Any) -> Any:
            if isinstance(x, LazyArray) and x.trace is self._trace:
                return x
            if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "biufc":
                return self._trace.known(np.array(x))  # a copy: the caller may write into `x` before the launch
            return self._trace.known(x) if is_boxed(x) and hasattr(x, "dtype") else x

        return replace_leaves(tree, leaf)

    def flush(self) -> None:
        """Launch everything recorded so far."""
        self._trace.launch()

    def results(self, tree: Any) -> Any:
        """A nested structure with plain arrays (arrays on a tape, under a gradient) in place of recorded ones."""
        return finish(self._trace, tree)

    @property
    def stats(self) -> Stats:
        """What was launched so far."""
        return self._trace.stats

    def to_networkx(self) -> Any:
        """What is recorded and not launched yet, as a `networkx.DiGraph`: to look at, not to schedule by.

        Nodes are numbers with the attributes `op`, `signature`, `shape` and `dtype`; an edge leads from an operand to
        its user.
        """
        return to_networkx(self._trace)


def to_networkx(trace: Trace) -> Any:
    """The ops recorded since the last launch: a node for each, an edge from each op to those that read its result."""
    import networkx  # noqa: PLC0415 - heavy, and only for what a person looks at

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
