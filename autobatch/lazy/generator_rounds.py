"""Runs examples recorded by generated generator functions in rounds: launch what they wait for, then resume them all.

A generator yields the number of the node whose value it needs, and is sent the value. This needs no fiber switch and
no `LazyArray` for intermediate results: a node keeps its number for the whole map, wherever its value is stored.
"""

import bisect
import collections
import contextlib
import functools
import gc
import operator
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import numpy as np

from autobatch.autodiff.tape import active_tape, off_tape
from autobatch.core.diagnostics import came_from_outside
from autobatch.core.op import is_boxed
from autobatch.core.pytree import leaves
from autobatch.lazy.array import LazyArray
from autobatch.lazy.launch_on_demand import OpenSegment
from autobatch.lazy.trace import Trace

WAITS: Any = object()
"""Result of an example that waits for a value."""
MISFIT: Any = object()
"""Result of an example that the generated function cannot record."""
_AT_ONCE = 64  # examples resumed between checks of the memory budget
_SKIPPED = (int, float, str, bytes, np.ndarray)
_Waiting = tuple[int, Generator[tuple[int, int], Any, Any], int, int]


class _Wait(Protocol):
    @property
    def where(self) -> tuple[str, int]: ...
    @property
    def exact(self) -> bool: ...


class Generating(Protocol):
    """A generated recorder, bound to one map, that waits for values."""

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


class Rounds:
    """The suspended generators of one map's examples, and their common segment.

    Attributes:
        waiting: (example, generator, node it waits for, index into `waits`), in the order of the examples.
    """

    def __init__(self, trace: Trace, form: Generating) -> None:
        self.waiting: list[_Waiting] = []
        self._trace = trace
        self._form = form
        self._ended: list[tuple[int, Any]] = []
        values = [off_tape(handle.source) for handle in trace._shared.values()]
        is_plain = not any(is_boxed(each) for each in values)
        self._segment = OpenSegment(active_tape() is not None, is_plain)
        self._consts: dict[Any, int] = {}
        self._room = self._most = trace._budget
        self._swap_segment()
        try:
            self._function = form.begin()
            self._half = form.make_room() // 2
        finally:
            self._swap_segment()
        segment = self._segment
        self._fixed = len(segment.sources), len(segment.keep), dict(segment.large), dict(self._consts)

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

    def resume(self, limit: int, launch: Callable[[], None]) -> tuple[list[tuple[int, Any]], list[int]]:
        """Resume all examples with the values that they wait for.

        Args:
            limit: close examples with this index or a higher one; launch: called when the segment is full.

        Returns:
            (example, result) of examples that ended, and the indices of examples that have to run as Python.
        """
        if self._segment.nbytes > self._most:
            self._segment.drop(self._live())
            self._most = max(self._most, 2 * self._segment.nbytes)
        waiting, self.waiting = self.waiting, []
        before = self._take_results()
        if waiting and waiting[-1][0] >= limit:
            for _, generator, _, _ in waiting[bisect.bisect_left(waiting, limit, key=operator.itemgetter(0)) :]:
                generator.close()
            waiting = [each for each in waiting if each[0] < limit]
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

    def launch(self) -> None:
        """Launch the nodes that examples wait for and their inputs; everything if none waits, or memory is short."""
        trace, segment = self._trace, self._segment
        segment.add_recorded(trace.table)
        wanted = [] if self.is_full and not segment.is_taped else [node for _, _, node, _ in self.waiting]
        if segment.is_pending:
            if wanted and (segment.is_taped or (segment.is_plain and not segment.large)):
                trace.run(functools.partial(segment.launch_wanted, wanted, trace.stats))
            else:
                part, numbers = segment.part(self._results())
                trace.run_segment(part)
                segment.take(part, numbers)
        segment.leave()
        if not segment.is_taped:  # else all are needed again for the launch on the tape
            sources, kept, large, consts = self._fixed
            segment.keep_externals(sources)
            segment.large = dict(large)
            self._consts = dict(consts)
            del segment.keep[kept:]
        self._room = trace._budget
        self._swap_segment()
        try:
            self._half = len(segment.sigs) + self._form.make_room() // 2
        finally:
            self._swap_segment()

    def _results(self) -> list[int]:
        """The nodes in the results of ended examples."""
        handles = [each for each in leaves([result for _, result in self._ended]) if type(each) is LazyArray]
        return [each.ref for each in handles if each.segment is self._segment and each.ref >= 0]

    def _live(self) -> set[int]:
        """Node numbers that generators may still use: every int reachable from their locals that may be one."""
        stack: list[Any] = self._segment.operands.tolist()
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
                if 0 <= value < self._segment.begun:
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
