"""Records examples by a generated function where there is one that fits; all other examples run as Python.

A generated function records nodes and has no other visible effect, so if an example does not fit, its nodes are
removed and the example runs as Python. It appends nodes by number, and makes a `LazyArray` only for results.

A generated generator function records an example in rounds: launch what the examples wait for, then resume them all.
A generator yields the number of the node whose value it needs, and is sent the value. This needs no fiber switch and
no `LazyArray` for intermediate results: a node keeps its number for the whole map, wherever its value is stored.
"""

import collections
import contextlib
import functools
import gc
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import numpy as np

from autobatch.core.diagnostics import at_users_line, came_from_outside, handling
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop
from autobatch.lazy.array import LazyArray
from autobatch.lazy.launching import GraphSegment
from autobatch.lazy.trace import Trace

WAITS: Any = object()
"""Result of an example that waits for a value."""
MISFIT: Any = object()
"""Result of an example that the generated function cannot record."""
NO_ROOM: Any = object()
"""Result: launch first, then record the example again."""
NOT_RECORDED: Any = object()
"""Result: the example has to run as Python."""
_AT_ONCE = 64  # examples resumed between checks of the memory budget
_SKIPPED = (int, float, str, bytes, np.ndarray)
_Waiting = tuple[int, Generator[tuple[int, int], Any, Any], int, int]


class _Wait(Protocol):
    @property
    def where(self) -> tuple[str, int]: ...
    @property
    def exact(self) -> bool: ...


class Bound(Protocol):
    """A generated function, bound to one map; a generator function if it waits for values."""

    @property
    def waits(self) -> Sequence[_Wait]:
        """The source places where it waits for a value."""

    def begin(self) -> Callable[..., Any]:
        """The generator function."""

    @property
    def seen(self) -> list[np.ndarray]:
        """Arrays of the running example that its Python has read since the last `note_seen`."""

    def make_room(self) -> int:
        """Begin another round; returns how many nodes may be recorded in it."""

    def note_seen(self) -> None:
        """Register the arrays in `seen` as inputs of the running example, and clear `seen`."""

    def finished(self, result: Any) -> Any:
        """Convert a generator's result to the value that the user's function would return."""

    def is_unchanged(self) -> bool:
        """True if everything it relies on (globals, attributes) is still the same object."""

    def end(self) -> None:
        """Release the function."""

    @property
    def largest(self) -> int:
        """Upper bound in bytes on what one node takes of the memory budget."""


class Rounds:
    """The suspended generators of one map's examples, and their common segment.

    Attributes:
        waiting: (example, generator, node it waits for, index into `waits`), in the order of the examples.
    """

    def __init__(self, trace: Trace, form: Bound) -> None:
        self.waiting: list[_Waiting] = []
        self._trace = trace
        self._form = form
        self._ended: list[tuple[int, Any]] = []
        self._segment = GraphSegment()
        self._consts: dict[Any, int] = {}
        self._room = self._most = trace._budget
        self._swap_segment()
        try:
            self._function = form.begin()
            self._half = form.make_room() // 2
        finally:
            self._swap_segment()
        self._fixed = len(self._segment.sources)

    def _swap_segment(self) -> None:
        """Swap the trace's segment, constants and budget with those of the rounds; a second call swaps back."""
        trace = self._trace
        trace.segment, self._segment = self._segment, trace.segment
        trace.consts, self._consts = self._consts, trace.consts
        trace._room, self._room = self._room, trace._room

    def start(self, index: int, given: Sequence[Any]) -> Any:
        """Start an example: `WAITS` (even if it ended without needing a value), or `MISFIT`."""
        ended, misfits = self._advance([(index, self._function(*given), 0, 0)], [None])
        self._ended += ended
        return MISFIT if misfits else WAITS

    @property
    def is_waiting(self) -> bool:
        """True if any example waits, or has ended without its result being handed out."""
        return bool(self.waiting or self._ended)

    @property
    def is_full(self) -> bool:
        """True if the nodes recorded since the last launch take half of the memory budget."""
        return len(self._segment.sigs) > self._half

    def resume(
        self, goes_on: Callable[[int], bool], launch: Callable[[], None]
    ) -> tuple[list[tuple[int, Any]], list[int]]:
        """Resume all examples with the values that they wait for.

        Args:
            goes_on: False for the index of an example to close; launch: called when the segment is full.

        Returns:
            (example, result) of examples that ended, and the indices of examples that have to run as Python.
        """
        buffers = self._segment.buffers
        if buffers.nbytes > self._most:
            self._segment.drop(self._live())
            self._most = max(self._most, 2 * buffers.nbytes)
        waiting, self.waiting = self.waiting, []
        before = self._take_results()
        left = {each[0] for each in waiting if not goes_on(each[0])}
        for index, generator, _, _ in waiting if left else ():
            if index in left:
                generator.close()
        waiting = [each for each in waiting if each[0] not in left]
        stats = self._trace.stats
        stats.reads += len(waiting)
        exact = [each.exact for each in self._form.waits]
        nodes, places = [each[2] for each in waiting], [each[3] for each in waiting]
        values = self._segment.numbers_of(nodes, [exact[each] for each in places], MISFIT)
        for number, times in collections.Counter(places).items():
            stats.forced[self._form.waits[number].where] += times
        misfits: list[int] = []
        for start in range(0, len(waiting), _AT_ONCE):
            if self.is_full:
                launch()
            some = slice(start, start + _AT_ONCE)
            more, unfit = self._advance(waiting[some], values[some])
            self._ended += more
            misfits += unfit
        return before, misfits

    def _take_results(self) -> list[tuple[int, Any]]:
        """Hand out the results of ended examples, once no node waits to be launched."""
        if self._segment.is_pending:
            return []
        ended, self._ended = self._ended, []
        return ended

    def _advance(self, waiting: Sequence[_Waiting], values: Sequence[Any]) -> tuple[list[tuple[int, Any]], list[int]]:
        """Resume these examples, each until it waits again; returns (ended results, misfits)."""
        trace, form, still = self._trace, self._form, self.waiting
        ended, misfits = [], []
        self._swap_segment()
        segment = trace.segment
        sigs, refs, seen = segment.sigs, segment.refs, form.seen
        try:
            for (index, generator, _, _), value in zip(waiting, values, strict=True):
                trace.example = index
                nodes, operands = len(sigs), len(refs)
                try:
                    if value is MISFIT:
                        raise RuntimeError
                    node, number = generator.send(value)
                    if seen:
                        form.note_seen()
                    if node < 0:
                        raise RuntimeError
                    still.append((index, generator, node, number))
                    continue
                except StopIteration as stop:
                    with contextlib.suppress(Exception):
                        ended.append((index, form.finished(stop.value)))
                        continue
                except BaseException as error:  # any error: the example runs again as Python, and raises it there
                    if came_from_outside(error):
                        raise
                    generator.close()
                misfits.append(index)
                del sigs[nodes:]
                del refs[operands:]
                trace.failed = None
        finally:
            trace.example = -1
            self._swap_segment()
        return ended, misfits

    def launch(self, everything: bool) -> None:
        """Launch the nodes that examples wait for and their inputs; everything if none waits, or memory is short."""
        trace, segment = self._trace, self._segment
        wanted = [] if everything or self.is_full else [node for _, _, node, _ in self.waiting]
        if segment.is_pending:
            trace.run_segment(segment, wanted)
        segment.leave()
        self._room = trace._budget
        self._swap_segment()
        try:
            trace.keep_constants(self._fixed)
            self._half = len(segment.sigs) + self._form.make_room() // 2
        finally:
            self._swap_segment()

    def _results(self) -> list[int]:
        """The nodes in the results of ended examples."""
        handles = [each for each in leaves([result for _, result in self._ended]) if type(each) is LazyArray]
        return [each.ref for each in handles if each.segment is self._segment and each.ref >= 0]

    def _live(self) -> set[int]:
        """Node numbers that generators may still use: every int reachable from their locals that may be one."""
        stack: list[Any] = self._segment.waiting[2].tolist()
        stack += self._results()
        for _, generator, node, _ in self.waiting:
            stack.append(node)
            each: Any = generator
            while each is not None:
                frame = each.gi_frame
                own = frame.f_locals
                stack += [own[name] for name in frame.f_code.co_varnames if name in own]
                each = each.gi_yieldfrom
        live: set[int] = set()
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if type(value) is int:
                if 0 <= value < len(self._segment.buffer_of):
                    live.add(value)
            elif isinstance(value, _SKIPPED) or id(value) in seen:
                continue
            elif isinstance(value, list | tuple | dict | set | collections.deque) or hasattr(value, "__next__"):
                seen.add(id(value))
                stack += gc.get_referents(value)
        return live

    def close(self) -> list[int]:
        """Close all waiting generators; returns the indices of their examples."""
        waiting, self.waiting = self.waiting, []
        for _, generator, _, _ in waiting:
            generator.close()
        return [index for index, *_ in waiting]


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
        self._patience = 3  # examples of one map that may not fit before the recorder gives up
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
            result = at_users_line(run, index, [column[index] for column in self._columns])
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

    def launch(self, everything: bool) -> None:
        """Launch the nodes of waiting examples, or everything."""
        for _, rounds in self._rounds:
            rounds.launch(everything)

    @property
    def is_full(self) -> bool:
        """True if the recorded nodes take so much memory that they should be launched."""
        return bool(self._rounds) and self._rounds[-1][1].is_full

    @property
    def is_waiting(self) -> bool:
        """True if any example waits."""
        return any(rounds.is_waiting for _, rounds in self._rounds)

    def resume(
        self, goes_on: Callable[[int], bool], launch: Callable[[], None]
    ) -> tuple[list[tuple[int, Any]], list[int]]:
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
                found, unfit = rounds.resume(goes_on, launch)
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
        if bound is None or (self._doubt and not bound.is_unchanged()):
            bound = self._bound = self._recorders.bound(trace, self._columns, index)
        elif bound.waits:
            self._doubt, self._segment = False, trace.segment
            return self._run
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
        why = error.args[0] if type(error) is NeedsLoop else MISFIT
        return why if why is NOT_RECORDED or (why is NO_ROOM and nodes) else MISFIT
    trace._room -= largest * (len(sigs) - nodes)
    return result


def _refuse_pause(urgent: bool) -> None:
    raise RuntimeError("a recorder waits for no value")
