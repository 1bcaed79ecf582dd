"""Examples that are recorded by generators, and wait together: a round is a launch, and then all of them go on.

A generator gives the number of the node whose value it needs, and is sent the value. No fiber switches, and no array of
ours is made for what is between two rounds: a node keeps its number for the whole map, wherever its value is by now.
"""

import bisect
import collections
import contextlib
import gc
import operator
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
_AT_ONCE = 64  # examples, between looks at the memory budget
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

    def make_room(self) -> int:
        """Another round begins: how many nodes may be recorded in it."""

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
            self._half = form.make_room() // 2
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
        ended, misfits = self._go_on([(index, self._function(*given), 0, 0)], [None])
        return MISFIT if misfits else ended[0][1] if ended else WAITS

    @property
    def is_full(self) -> bool:
        """Whether what was recorded since the last launch takes half of the memory budget."""
        return len(self._segment.sigs) > self._half

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
        if waiting[-1][0] >= limit:
            for _, generator, _, _ in waiting[bisect.bisect_left(waiting, limit, key=operator.itemgetter(0)) :]:
                generator.close()
            waiting = [each for each in waiting if each[0] < limit]
        stats = self._trace.stats
        stats.reads += len(waiting)
        for number, times in collections.Counter([each[3] for each in waiting]).items():
            stats.forced[self._form.waits[number].where] += times
        values = self._values(waiting)
        ended, misfits = [], []
        for start in range(0, len(waiting), _AT_ONCE):
            if self.is_full:
                launch()
            some = slice(start, start + _AT_ONCE)
            more, unfit = self._go_on(waiting[some], values[some])
            ended += more
            misfits += unfit
        return ended, misfits

    def _go_on(self, waiting: Sequence[_Waiting], values: Sequence[Any]) -> tuple[list[tuple[int, Any]], list[int]]:
        """Let these examples go on, each until it waits again."""
        trace, form, still = self._trace, self._form, self.waiting
        ended, misfits = [], []
        self._exchange()
        segment = trace.segment
        sigs, refs = segment.sigs, segment.refs
        try:
            for (index, generator, _, _), value in zip(waiting, values, strict=True):
                trace.example = index
                nodes, operands = len(sigs), len(refs)
                try:
                    if value is MISFIT:
                        raise RuntimeError
                    node, number = generator.send(value)
                    form.note_seen()
                    if node < 0:
                        raise RuntimeError
                    still.append((index, generator, node, number))
                    continue
                except StopIteration as stop:
                    with contextlib.suppress(Exception):
                        ended.append((index, form.finished(stop.value)))
                        continue
                except Exception:  # whatever it is, it is raised again where the example runs
                    generator.close()
                misfits.append(index)
                del sigs[nodes:]
                del refs[operands:]
                trace.failed = None
        finally:
            trace.example = -1
            self._exchange()
        return ended, misfits

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
            self._half = len(segment.sigs) + self._form.make_room() // 2
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
