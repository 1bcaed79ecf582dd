"""Examples that are recorded by a generated function, where there is one and it fits; any other runs as Python.

A generated function records nodes and does nothing else that could be seen: where an example is not what it is for, its
nodes are taken back and the example runs as any other. The nodes are appended to the segment by number, no array of
ours is made for any but the results.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from autobatch.core.diagnostics import handling
from autobatch.lazy.trace import Trace

__all__ = ["NOT_RECORDED", "Bound", "ExampleRecorder", "Recorders"]

NOT_RECORDED: Any = object()
"""What says that an example has to run."""
_PATIENCE = 3  # examples in one map that no function fits


class Bound(Protocol):
    """A generated function for one map."""

    def holds(self) -> bool:
        """Whether what it relies on is as it was, now that other Python may have run."""

    def begin(self) -> Callable[..., Any]:
        """The function for the segment that is being recorded: of an example's arguments, its result."""

    def end(self) -> None:
        """Let go of the function."""


class Recorders(Protocol):
    """The generated functions of one function."""

    def bound(self, trace: Trace, columns: Sequence[Sequence[Any]], index: int) -> Bound | None:
        """The one that fits this map; None if there is none, as far as is known before example `index`."""

    def missed(self) -> None:
        """An example did not fit."""


class ExampleRecorder:
    """Records the examples of one map.

    Args:
        columns: the arguments of the examples.

    Attributes:
        count: how many examples were recorded.
    """

    __slots__ = (
        "_bound",
        "_columns",
        "_doubt",
        "_patience",
        "_recorders",
        "_run",
        "_segment",
        "_trace",
        "count",
    )

    def __init__(self, trace: Trace, recorders: Recorders, columns: Sequence[Sequence[Any]]) -> None:
        self.count = 0
        self._trace = trace
        self._recorders = recorders
        self._columns = columns
        self._patience = _PATIENCE
        self._bound: Bound | None = None
        self._run: Callable[..., Any] | None = None
        self._segment: Any = None
        self._doubt = False

    def record(self, index: int) -> Any:
        """The result of an example, of recorded arrays; `NOT_RECORDED` if it has to run."""
        trace = self._trace
        run = self._ready(index) if self._doubt or self._segment is not trace.segment else self._run
        if run is None or handling() is not trace._handling:
            self._doubt = True  # whatever runs now may change what the function relies on
            return NOT_RECORDED
        segment = trace.segment
        sigs, refs = segment.sigs, segment.refs
        nodes, operands = len(sigs), len(refs)
        park, trace.park = trace.park, _never
        trace.example = index
        try:
            result = run(*[column[index] for column in self._columns])
        except Exception:  # whatever it is, it is raised again where the example runs
            del sigs[nodes:]
            del refs[operands:]
            trace.failed = None
            patience = self._patience - 1
            self._recorders.missed()
            self.close()
            self._patience, self._doubt = patience, True
            return NOT_RECORDED
        finally:
            trace.park = park
            trace.example = -1
        table = trace.table
        trace._room -= sum([table[sig].nbytes for sig in sigs[nodes:] if sig >= 0])
        self.count += 1
        return result

    def close(self) -> None:
        """Let go of everything."""
        if self._bound is not None:
            self._bound.end()
        self._bound = self._run = self._segment = None
        self._patience = 0

    def _ready(self, index: int) -> Callable[..., Any] | None:
        """The function for the current segment."""
        if not self._patience:
            return None
        trace = self._trace
        if self._bound is None or (self._doubt and not self._bound.holds()):
            self._bound = self._recorders.bound(trace, self._columns, index)
        self._doubt = False
        self._segment = trace.segment
        if self._bound is None:
            self._run = None
            self._doubt = True
            self._patience -= index > 0
            return None
        self._run = self._bound.begin()
        return self._run


def _never(urgent: bool) -> None:
    raise RuntimeError("a recorder waits for no value")
