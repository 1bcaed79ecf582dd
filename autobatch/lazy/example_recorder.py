"""Records examples by a generated function where there is one that fits; all other examples run as Python.

A generated function records nodes and has no other visible effect, so if an example does not fit, its nodes are
removed and the example runs as Python. It appends nodes by number, and makes a `LazyArray` only for results.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from autobatch.core.diagnostics import came_from_outside, handling
from autobatch.lazy.generator_rounds import MISFIT, WAITS, Generating, Rounds
from autobatch.lazy.trace import Trace

NO_ROOM: Any = object()
"""Result: launch first, then record the example again."""
NOT_RECORDED: Any = object()
"""Result: the example has to run as Python."""
_PATIENCE = 3  # examples of one map that may not fit before the recorder gives up


class NoRoom(Exception):  # noqa: N818  (a signal)
    """The nodes of an example do not fit into the rest of the memory budget."""


class UnusualLength(Exception):  # noqa: N818  (a signal)
    """An array of the example is too short or too long for the generated function, so the example has to run."""


class Bound(Generating, Protocol):
    """A generated function, bound to one map; a generator function if it waits for values."""

    def is_unchanged(self) -> bool:
        """True if everything it relies on (globals, attributes) is still the same object."""

    def holds(self) -> bool:
        """True if it can still be used after other Python may have run; reads changed values again."""

    def end(self) -> None:
        """Release the function."""

    @property
    def largest(self) -> int:
        """Upper bound in bytes on what one node takes of the memory budget."""


class Recorders(Protocol):
    """The generated recorders of one user function."""

    def bound(self, trace: Trace, columns: Sequence[Sequence[Any]], index: int) -> Bound | None:
        """The recorder that fits this map, bound to it; None if none is known before example `index`."""

    def count_misfit(self) -> None:
        """Count an example that did not fit."""


class ExampleRecorder:
    """Records the examples of one map.

    Args:
        columns: the arguments of the examples.

    Attributes:
        count: how many examples were recorded.
    """

    __slots__ = (
        "_bound", "_columns", "_doubt", "_patience", "_recorders", "_rounds", "_run", "_segment", "_trace", "count",
    )  # fmt: skip

    def __init__(self, trace: Trace, recorders: Recorders, columns: Sequence[Sequence[Any]]) -> None:
        self.count = 0
        self._trace = trace
        self._recorders = recorders
        self._columns = columns
        self._patience = _PATIENCE
        self._bound: Bound | None = None
        self._run: Callable[..., Any] | None = None
        self._rounds: list[tuple[Bound, Rounds]] = []  # the last one belongs to `_bound`, if that waits
        self._segment: Any = None
        self._doubt = False

    def record(self, index: int) -> Any:
        """Record an example; returns its result, or `WAITS` if it continues later, `NOT_RECORDED` if it has to run.

        Returns `NO_ROOM` if it must be recorded again after a launch.
        """
        trace = self._trace
        run = self._ready(index) if self._doubt or self._segment is not trace.segment else self._run
        if run is None or handling() is not trace._handling:
            self._doubt = True  # the Python that runs now may change what the generated function relies on
            return NOT_RECORDED
        park, trace.park = trace.park, _refuse_pause
        try:
            result = run(index, [column[index] for column in self._columns])
        finally:
            trace.park = park
            trace.example = -1
        if result is MISFIT:
            self._missed()
            return NOT_RECORDED
        if result is NOT_RECORDED:
            self._doubt = True
        elif result is not WAITS and result is not NO_ROOM:
            self.count += 1
        return result

    def launch(self) -> None:
        """Launch the nodes of waiting examples."""
        for _, rounds in self._rounds:
            rounds.launch()

    @property
    def is_full(self) -> bool:
        """True if the recorded nodes take so much memory that they should be launched."""
        return bool(self._rounds) and self._rounds[-1][1].is_full

    @property
    def is_waiting(self) -> bool:
        """True if any example waits."""
        return any(rounds.is_waiting for _, rounds in self._rounds)

    def resume(self, limit: int, launch: Callable[[], None]) -> tuple[list[tuple[int, Any]], list[int]]:
        """Resume the waiting examples; arguments and result as in `Rounds.resume`."""
        trace = self._trace
        ended: list[tuple[int, Any]] = []
        misfits: list[int] = []
        doubt = self._doubt or handling() is not trace._handling
        for bound, rounds in self._rounds:
            if doubt and not bound.is_unchanged():
                misfits += rounds.close()
            park, trace.park = trace.park, _refuse_pause
            try:
                found, unfit = rounds.resume(limit, launch)
            finally:
                trace.park = park
            ended += found
            misfits += unfit
        for _ in misfits:
            self._missed()
        self.count += len(ended)
        return ended, sorted(misfits)

    def close(self) -> None:
        """Release all functions and generators."""
        for bound, rounds in self._rounds:
            rounds.close()
            bound.end()
        self._rounds = []
        if self._bound is not None:
            self._bound.end()
        self._bound = self._run = self._segment = None
        self._patience = 0

    def _missed(self) -> None:
        """Count an example that does not fit; drop the function unless it is a generator."""
        self._recorders.count_misfit()
        self._patience -= 1
        self._doubt = True
        if self._bound is not None and not self._bound.waits:
            self._bound.end()
            self._bound = self._run = None

    def _ready(self, index: int) -> Callable[[int, Sequence[Any]], Any] | None:
        """The callable that records example `index` now, after checking assumptions; None if there is none."""
        if not self._patience > 0:
            return None
        trace, bound = self._trace, self._bound
        if bound is not None and bound.waits and (not self._doubt or bound.is_unchanged()):
            self._doubt, self._segment = False, trace.segment
            return self._run
        if bound is None or bound.waits or (self._doubt and not bound.holds()):
            bound = self._bound = self._recorders.bound(trace, self._columns, index)
        self._doubt = False
        self._segment = trace.segment
        if bound is None:
            self._run = None
            self._doubt = True
            self._patience -= index > 0
            return None
        if bound.waits:
            rounds = Rounds(trace, bound)
            self._rounds.append((bound, rounds))
            self._run = rounds.start
        else:
            self._run = functools.partial(_recorded, trace, bound.begin(), bound.largest)
        return self._run


def _recorded(trace: Trace, function: Callable[..., Any], largest: int, index: int, given: Sequence[Any]) -> Any:
    """Run a non-waiting generated function: its result, or `MISFIT`, `NOT_RECORDED` or `NO_ROOM` with nodes undone."""
    segment = trace.segment
    sigs, refs = segment.sigs, segment.refs
    nodes, operands = len(sigs), len(refs)
    trace.example = index
    try:
        result = function(*given)
    except BaseException as error:  # any error: the example runs again as Python, and raises it there
        if came_from_outside(error):
            raise
        del sigs[nodes:]
        del refs[operands:]
        trace.failed = None
        if type(error) is UnusualLength:
            return NOT_RECORDED
        return NO_ROOM if nodes and type(error) is NoRoom else MISFIT
    trace._room -= largest * (len(sigs) - nodes)
    return result


def _refuse_pause(urgent: bool) -> None:
    raise RuntimeError("a recorder waits for no value")
