"""A segment that is never over: its nodes keep their numbers, and wait to be launched until a value needs them.

A round launches what its values need and nothing else: what comes after them goes together with what other examples
record later. Within a round calls are ordered from its end, by how many calls come after them, since most are there for
the decision that ends it.
"""

import time
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import Weak
from autobatch.core.batched import Batched
from autobatch.core.memory import library_code
from autobatch.kernels.jit import jit
from autobatch.lazy.buffers import row_p
from autobatch.lazy.launching import GraphSegment, KeptRows, Launches, Signature, Stats, packed_values, weak_numbers

_FIRST = 1024  # nodes
_IDS = frozenset((int, np.int64, np.int32))


class NumberedSegment(GraphSegment):
    """Nodes by their numbers.

    Values of one shape and dtype are rows of one array, wherever they come from: an operand is one gather. Those of
    another interpreter stay in the buffers of their launches.

    Attributes:
        buffer_of, row_of: of each node; -2 - i for the i-th of those that wait to be launched.
        begun: nodes from here on are new.
        operands: of the nodes that wait.
    """

    __slots__ = ("_numbers", "_offsets", "_pools", "_sigs", "_used", "begun", "is_plain", "operands")

    def __init__(self) -> None:
        super().__init__(done=True, buffer_of=np.full(_FIRST, -1, np.int64), row_of=np.zeros(_FIRST, np.int64))
        self.begun = 0
        self.is_plain = True
        self.operands = self._sigs = self._numbers = np.zeros(0, np.int64)
        self._offsets = np.zeros(1, np.int64)
        self._pools: dict[Any, int] = {}  # the numbers of the arrays, by shape and dtype of a row
        self._used: dict[int, int] = {}  # how many rows of each

    @property
    def pending(self) -> int:
        """How many nodes wait to be launched."""
        return len(self._numbers)

    def take_in(self, table: Sequence[Signature]) -> None:
        """Let what was recorded since the last time wait to be launched."""
        end = len(self.sigs)
        if end == self.begun:
            return
        while end > len(self.buffer_of):
            self.buffer_of = np.concatenate([self.buffer_of, np.full_like(self.buffer_of, -1)])
            self.row_of = np.concatenate([self.row_of, np.zeros_like(self.row_of)])
        sigs = np.frombuffer(array("q", self.sigs[self.begun :]), np.int64)
        refs = np.frombuffer(array("q", self.refs), np.int64)
        numbers = np.arange(self.begun, end)
        self.buffer_of[self.begun : end] = -2 - len(self._numbers) + self.begun - numbers
        if len(self._numbers):
            sigs, refs = np.concatenate([self._sigs, sigs]), np.concatenate([self.operands, refs])
            numbers = np.concatenate([self._numbers, numbers])
        arity = np.array([*[len(sig.avals) for sig in table], 0], np.int64)
        self._sigs, self.operands, self._numbers = sigs, refs, numbers
        self._offsets = np.zeros(len(sigs) + 1, np.int64)
        np.cumsum(arity[sigs], out=self._offsets[1:])
        self.refs.clear()
        self.begun = end

    def part(self) -> GraphSegment:
        """All that waits, as a segment; what is older is from outside of it."""
        refs = self.operands.copy()
        inside = refs >= 0
        places = self.buffer_of[refs[inside]]
        refs[inside] = np.where(places >= 0, -1, -2 - places)
        old = np.flatnonzero(inside)[places >= 0]
        numbers = self.operands[old]
        first = len(self.rows)
        out = GraphSegment(self._sigs, refs, self.sources.copy(), self.rows.copy(), dict(self.large))
        if len(old):
            refs[old] = -np.arange(first + 1, first + len(old) + 1)
            out.rows += [-1] * len(old)
            out.sources += [None] * len(old)
            out.kept = KeptRows(self.buffers, first, self.buffer_of[numbers], self.row_of[numbers])
        return out

    def take(self, part: GraphSegment) -> None:
        """Note where the values of all that waited are."""
        numbers = self._numbers
        which, rows = part.buffer_of[: len(numbers)], part.row_of[: len(numbers)]
        for number in np.flatnonzero(np.bincount(which)).tolist():
            mine = which == number
            at, shift = self._stored(part.buffers[number])
            self.buffer_of[numbers[mine]] = at
            self.row_of[numbers[mine]] = rows[mine] + shift
        self._numbers = numbers[:0]

    @library_code
    def launch_wanted(self, wanted: Sequence[int], table: Sequence[Signature], stats: Stats) -> None:
        """Launch what these nodes need, themselves included."""
        places = -2 - self.buffer_of[np.array(wanted, np.int64)]
        where = self._sigs, self._offsets, self.operands, self.buffer_of
        calls, starts, left = round_of(*where, places[places >= 0], len(table))
        starts = starts.tolist()
        sigs = [table[number] for number in self._sigs[calls[starts[:-1]]].tolist()]
        errors = np.geterr()
        clock = time.perf_counter
        launches = _RoundLaunches(self)
        before = clock()
        for sig, start, end in zip(sigs, starts[:-1], starts[1:], strict=True):
            group = calls[start:end]
            if sig.errors == errors:
                outs = launches.outputs(sig, group, stats)
            else:
                with np.errstate(**sig.errors):
                    outs = launches.outputs(sig, group, stats)
            numbers = self._numbers[group]
            for at, out in enumerate(outs):
                number, first = self._stored(out)
                self.buffer_of[numbers + at] = number
                self.row_of[numbers + at] = np.arange(first, first + len(group))
            now = clock()
            stats.launched(sig.op.name, sig.text, len(group), now - before)
            before = now
        stats.rounds += 1
        if not left.any():
            self._numbers = self._numbers[:0]
        else:
            held = np.repeat(left, np.diff(self._offsets))
            self._sigs, self._numbers, self.operands = self._sigs[left], self._numbers[left], self.operands[held]
            self._offsets = np.concatenate([[0], np.cumsum(np.diff(self._offsets)[left])])
            self.buffer_of[self._numbers] = -2 - np.arange(len(self._numbers))

    def carry(self, fixed: int) -> None:
        """Keep of the values from outside the first ones, and those that what waits refers to."""
        sources: list[Any] = []
        rows: list[int] = []
        if not len(self._numbers):
            self.operands = self._sigs = self._numbers
            self._offsets = np.zeros(1, np.int64)
        else:
            places = np.flatnonzero(self.operands < -fixed)
            if len(places):
                found = (~self.operands[places]).tolist()
                sources, rows = [self.sources[each] for each in found], [self.rows[each] for each in found]
                self.operands = self.operands.copy()
                self.operands[places] = -np.arange(fixed + 1, fixed + len(places) + 1)
        self.sources[fixed:], self.rows[fixed:] = sources, rows

    def _stored(self, buffer: Any) -> tuple[int, int]:
        """The number of the buffer where these rows are, and of the first of them in it."""
        if type(buffer) is not np.ndarray:
            self.is_plain = False
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

    def there(self, ref: int) -> Any:
        """The numbers of a node's value as a list, if they are there already and carry no gradient; else None."""
        number = self.buffer_of.item(ref) if ref < self.begun else -1
        buffer = self.buffers[number] if number >= 0 else None
        return buffer[self.row_of.item(ref)].tolist() if type(buffer) is np.ndarray else None

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
                self.buffers[number] = self.buffers[number][self.row_of[own]]
                self.row_of[own] = np.arange(len(own))
                self._used[number] = len(own)
            elif not len(own):
                self.buffers[number] = None


@jit
def round_of(
    sigs: np.ndarray,
    offsets: np.ndarray,
    refs: np.ndarray,
    buffer_of: np.ndarray,
    wanted: np.ndarray,
    num_sigs: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is launched together so that some nodes have values: calls of one signature, as late as can be.

    Args:
        sigs: (N,), -1 for a further output of the node before; offsets, refs: their operands, by number.
        buffer_of: -2 - i for the i-th that waits; wanted: places among these.

    Returns:
        The places of calls in launch order, where each launch begins and the last one ends, and what is left (N,) bool.
    """
    n = sigs.shape[0]
    height = np.full(n, -1, np.int64)  # the length of the longest path to what is wanted
    for place in wanted:
        height[place] = 0
    highest = count = 0
    for i in range(n - 1, -1, -1):
        if height[i] < 0:
            continue
        if sigs[i] < 0:
            height[i - 1] = max(height[i - 1], height[i])
            continue
        count += 1
        highest = max(highest, height[i])
        for k in range(offsets[i], offsets[i + 1]):
            if refs[k] >= 0 and buffer_of[refs[k]] < 0:
                place = -2 - buffer_of[refs[k]]
                height[place] = max(height[place], height[i] + 1)
    calls = np.empty(count, np.int64)
    key = np.empty(count, np.int64)
    left = np.empty(n, np.bool_)
    at = 0
    for i in range(n):
        if sigs[i] < 0:
            height[i] = height[i - 1]
        elif height[i] >= 0:
            calls[at] = i
            key[at] = (highest - height[i]) * num_sigs + sigs[i]
            at += 1
        left[i] = height[i] < 0
    order = np.argsort(key, kind="mergesort")
    starts = [0]
    for i in range(1, count):
        if key[order[i]] != key[order[i - 1]]:
            starts.append(i)
    if count:
        starts.append(count)
    return calls[order], np.array(starts), left


class _RoundLaunches(Launches):
    """Launches of calls whose operands are where their numbers say."""

    __slots__ = ("_segment",)

    def __init__(self, segment: NumberedSegment) -> None:
        self._segment = segment

    def outputs(self, sig: Signature, calls: np.ndarray, stats: Stats) -> list[Any]:
        """The rows of each output of a group of calls."""
        return [self._op(sig, calls, stats)] if sig.block is None else self._block(sig.block, sig.avals, calls, stats)

    def _operand(
        self, token: Any, calls: np.ndarray, position: int, ragged: bool = False, batched: bool = False
    ) -> Any:
        segment = self._segment
        refs = segment.operands[segment._offsets[calls] + position]
        if type(token) is not Weak and token.shared:
            return segment.sources[~refs.item(0)]
        if not ragged and refs.min() >= 0:
            which = segment.buffer_of[refs]
            buffer = segment.buffers[which.item(0)]
            if type(buffer) is np.ndarray and (which == which[0]).all():
                return Batched(buffer.take(segment.row_of[refs], 0), token.shape)
        values = [self._value(ref) for ref in refs.tolist()]
        if type(token) is Weak:
            return weak_numbers(values, token.kind)
        if ragged:
            return packed_values(values)
        return Batched(
            np.array(values, token.dtype) if _IDS.issuperset(map(type, values)) else np.stack(values), token.shape
        )

    def _value(self, ref: int) -> Any:
        segment = self._segment
        if ref >= 0:
            return row_p(segment.buffers[segment.buffer_of.item(ref)], row=segment.row_of.item(ref))
        source, row = segment.sources[~ref], segment.rows[~ref]
        return source if row < 0 else row_p(source, row=row)
