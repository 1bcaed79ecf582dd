"""Examples that are recorded by generators, and wait together: a round is a launch, and then all of them go on.

A generator gives the number of the node whose value it needs, and is sent the value. No fiber switches, and no array of
ours is made for what is between two rounds: a node keeps its number for the whole map, wherever its value is by now.
"""

import collections
import gc
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import numpy as np

from autobatch.lazy.launching import GraphSegment, Kept
from autobatch.lazy.trace import Trace

__all__ = ["MISFIT", "WAITS", "Generating", "Rounds"]

WAITS: Any = object()
"""What says that an example waits for a value."""
MISFIT: Any = object()
"""What says that an example is not what its generator is for."""
_SKIPPED = (int, float, str, bytes, np.ndarray)
_Waiting = tuple[int, Generator[tuple[int, int], Any, Any], int, int]


class _Wait(Protocol):
    @property
    def where(self) -> tuple[str, int]: ...
    @property
    def exact(self) -> bool: ...


class Generating(Protocol):
    """A function that is written for one map, and waits for values."""

    @property
    def waits(self) -> Sequence[_Wait]:
        """The places where it does."""

    def begin(self) -> Callable[..., Any]:
        """The generator function."""

    def make_room(self) -> None:
        """Another round begins."""

    def note_seen(self) -> None:
        """Another example goes on."""

    def finished(self, result: Any) -> Any:
        """A result as Python has it."""


class _Numbered(GraphSegment):
    """A segment that is never over: nodes keep their numbers, and those that were launched have values.

    Values of one shape and dtype are rows of one array, wherever they come from: an operand is one gather. Those of
    another interpreter stay in the buffers of their launches.

    Attributes:
        buffer_of, row_of: of each node; no buffer (-1) for one that waits to be launched.
        begun: nodes from here on are new.
    """

    __slots__ = ("_pools", "_used", "begun")

    def __init__(self) -> None:
        super().__init__(done=True, buffer_of=np.full(1024, -1, np.int64), row_of=np.zeros(1024, np.int64))
        self.begun = 0
        self._pools: dict[Any, int] = {}  # the numbers of the arrays, by shape and dtype of a row
        self._used: dict[int, int] = {}  # how many rows of each

    def part(self) -> GraphSegment:
        """What was recorded since the last launch, as a segment; what is older is from outside of it."""
        refs = np.array(self.refs, np.int64)
        old = np.flatnonzero((refs >= 0) & (refs < self.begun))
        numbers = refs[old]
        refs[refs >= 0] -= self.begun
        first = len(self.rows)
        out = GraphSegment(self.sigs[self.begun :], refs, self.sources.copy(), self.rows.copy(), dict(self.large))
        if len(old):
            refs[old] = -np.arange(first + 1, first + len(old) + 1)
            out.rows += [-1] * len(old)
            out.sources += [None] * len(old)
            out.kept = Kept(self.buffers, first, self.buffer_of[numbers], self.row_of[numbers])
        return out

    def take(self, part: GraphSegment) -> None:
        """Note where the values of a launched part are."""
        count = len(self.sigs) - self.begun
        end = self.begun + count
        while end > len(self.buffer_of):
            self.buffer_of = np.concatenate([self.buffer_of, np.full_like(self.buffer_of, -1)])
            self.row_of = np.concatenate([self.row_of, np.zeros_like(self.row_of)])
        which, rows = part.buffer_of[:count], part.row_of[:count]
        for number in np.flatnonzero(np.bincount(which)).tolist():
            mine = which == number
            at, shift = self._stored(part.buffers[number])
            self.buffer_of[self.begun : end][mine] = at
            self.row_of[self.begun : end][mine] = rows[mine] + shift
        self.begun = end

    def _stored(self, buffer: Any) -> tuple[int, int]:
        """The number of the buffer where these rows are, and of the first of them in it."""
        if type(buffer) is not np.ndarray:
            self.buffers.append(buffer)
            return len(self.buffers) - 1, 0
        kind = buffer.shape[1:], buffer.dtype
        number = self._pools.get(kind)
        if number is None:
            number = self._pools[kind] = len(self.buffers)
            self.buffers.append(np.empty((4 * len(buffer), *buffer.shape[1:]), buffer.dtype))
            self._used[number] = 0
        start = self._used[number]
        self._used[number] = end = start + len(buffer)
        pool = self.buffers[number]
        if end > len(pool):
            self.buffers[number] = larger = np.empty((2 * end, *pool.shape[1:]), pool.dtype)
            larger[:start] = pool[:start]
            pool = larger
        pool[start:end] = buffer
        return number, start

    def resolve(self, handle: Any) -> None:
        """Let a handle of a launched node hold its own value."""
        super().resolve(handle)
        if type(handle.source) is np.ndarray:
            handle.source, handle.row = handle.source[handle.row : handle.row + 1].copy(), 0

    @property
    def nbytes(self) -> int:
        """What the values take."""
        rows = sum(self.buffers[number].nbytes for number in self._pools.values())
        return rows + sum(getattr(each, "nbytes", 0) for each in self.buffers if type(each) is not np.ndarray)

    def drop(self, live: set[int]) -> None:
        """Let go of all values but those of these nodes."""
        nodes = np.array(sorted(live), np.int64)
        nodes = nodes[self.buffer_of[nodes] >= 0]
        which = self.buffer_of[nodes]
        for number in range(len(self.buffers)):
            own = nodes[which == number]
            if number in self._used:
                pool = self.buffers[number]
                self.buffers[number] = pool[self.row_of[own]]
                self.row_of[own] = np.arange(len(own))
                self._used[number] = len(own)
            elif not len(own):
                self.buffers[number] = None


class Rounds:
    """The examples of one map whose generators wait.

    Attributes:
        waiting: (example, generator, the node that it waits for, which of the places), in the order of the examples.
    """

    def __init__(self, trace: Trace, form: Generating) -> None:
        self.waiting: list[_Waiting] = []
        self._trace = trace
        self._form = form
        self._segment = _Numbered()
        self._consts: dict[Any, int] = {}
        self._room = self._most = trace._budget
        self._exchange()
        try:
            self._function = form.begin()
        finally:
            self._exchange()
        segment = self._segment
        self._fixed = len(segment.rows), len(segment.keep), dict(segment.large), dict(self._consts)

    def _exchange(self) -> None:
        """Let the trace record into our segment; called again: into its own."""
        trace = self._trace
        trace.segment, self._segment = self._segment, trace.segment
        trace.consts, self._consts = self._consts, trace.consts
        trace._room, self._room = self._room, trace._room

    def start(self, index: int, given: Sequence[Any]) -> Any:
        """The result of an example that needs no value, `WAITS` or `MISFIT`."""
        self._exchange()
        try:
            return self._step(index, self._function(*given), None)
        finally:
            self._exchange()

    @property
    def is_full(self) -> bool:
        """Whether what was recorded since the last launch takes half of the memory budget."""
        return self._room < self._trace._budget // 2

    def resume(self, limit: int, launch: Callable[[], None]) -> tuple[list[tuple[int, Any]], list[int]]:
        """Let all examples go on, with the values that they wait for.

        Args:
            limit: examples from here on are not needed any more; launch: makes room where that is needed.

        Returns:
            (example, result) of those that came to their end, and the examples that have to run.
        """
        if self._segment.nbytes > self._most:
            self._segment.drop(self._live())
            self._most = max(self._most, 2 * self._segment.nbytes)
        waiting, self.waiting = self.waiting, []
        stats = self._trace.stats
        stats.reads += len(waiting)
        for number, times in collections.Counter([each[3] for each in waiting]).items():
            stats.forced[self._form.waits[number].where] += times
        ended, misfits = [], []
        for (index, generator, _, _), value in zip(waiting, self._values(waiting), strict=True):
            if index >= limit:
                generator.close()
                continue
            if self.is_full:
                launch()
            self._exchange()
            try:
                result = MISFIT if value is MISFIT else self._step(index, generator, value)
            finally:
                self._exchange()
            if result is MISFIT:
                misfits.append(index)
            elif result is not WAITS:
                ended.append((index, result))
        return ended, misfits

    def _step(self, index: int, generator: Any, value: Any) -> Any:
        """Let one example go on; the trace records into our segment."""
        trace = self._trace
        segment = trace.segment
        sigs, refs = segment.sigs, segment.refs
        nodes, operands = len(sigs), len(refs)
        trace.example = index
        try:
            node, number = generator.send(value)
        except StopIteration as stop:
            try:
                result = self._form.finished(stop.value)
            except Exception:
                result = MISFIT
        except Exception:  # whatever it is, it is raised again where the example runs
            result = MISFIT
        else:
            self._form.note_seen()
            result = WAITS
            if node < 0:
                generator.close()
                result = MISFIT
            else:
                self.waiting.append((index, generator, node, number))
        trace.example = -1
        if result is MISFIT:
            del sigs[nodes:]
            del refs[operands:]
            trace.failed = None
        else:
            table = trace.table
            trace._room -= sum([table[sig].nbytes for sig in sigs[nodes:] if sig >= 0])
        return result

    def _values(self, waiting: Sequence[_Waiting]) -> list[Any]:
        """What each of them waits for; `MISFIT` for what only Python can give."""
        segment, waits = self._segment, self._form.waits
        numbers = np.array([node for _, _, node, _ in waiting], np.int64)
        which, rows = segment.buffer_of[numbers], segment.row_of[numbers]
        found: list[Any] = [MISFIT] * len(waiting)
        for number in dict.fromkeys(which.tolist()):
            buffer = segment.buffers[number]
            value = buffer if type(buffer) is np.ndarray else getattr(buffer, "value", None)
            if type(value) is not np.ndarray:
                continue
            places = np.flatnonzero(which == number)
            for place, each in zip(places.tolist(), value[rows[places]].tolist(), strict=True):
                if value is buffer or not waits[waiting[place][3]].exact:  # else it carries a gradient
                    found[place] = each
        return found

    def launch(self) -> None:
        """Launch what was recorded."""
        segment = self._segment
        if len(segment.sigs) > segment.begun:
            part = segment.part()
            self._trace.run_segment(part)
            segment.take(part)
        rows, kept, large, consts = self._fixed
        segment.refs.clear()
        segment.leave()
        segment.large = dict(large)
        self._consts = dict(consts)
        del segment.sources[rows:], segment.rows[rows:], segment.keep[kept:]
        self._room = self._trace._budget
        self._exchange()
        try:
            self._form.make_room()
        finally:
            self._exchange()

    def _live(self) -> set[int]:
        """The numbers of the nodes that the generators may still name, and of others that look like one."""
        stack: list[Any] = []
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
        """Let go of the examples; their numbers."""
        waiting, self.waiting = self.waiting, []
        for _, generator, _, _ in waiting:
            generator.close()
        return [index for index, *_ in waiting]
