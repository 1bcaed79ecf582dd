"""A segment that is never over: its nodes keep their numbers, and wait to be launched until a value needs them.

A round launches what its values need and nothing else: what comes after them goes together with what other examples
record later. Within a round calls are ordered from its end, by how many calls come after them, since most are there for
the decision that ends it. All that follows from numbers, the order, where each operand is and where each result goes,
is found in one call of a kernel.

Under a gradient rounds compute with plain values, to decide by. When all is decided, what the results are computed from
is one segment, which is planned as others are and launched on the tape; what only decided is no part of it.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import off_tape
from autobatch.blocks.launch import Form, apart_of, launch_rows, looked_up
from autobatch.core.abstract_eval import Weak
from autobatch.core.batched import Batched
from autobatch.core.memory import library_code
from autobatch.errors import NeedsLoop
from autobatch.kernels.jit import jit
from autobatch.kernels.rows import first_bad_id
from autobatch.lazy.buffers import row_p
from autobatch.lazy.launching import GraphSegment, KeptRows, Launches, Stats, packed_values, weak_numbers
from autobatch.lazy.signatures import BlockCall, Signature
from autobatch.tables.lookup import lookup_p

_FIRST = 1024  # nodes
_IDS = frozenset((int, np.int64, np.int32))
_MOST_KEPT = 1 << 14  # values from outside, before those that nothing refers to are let go
_OUTSIDE, _SEVERAL = -1, -2  # where an operand of a launch is, if not in one pool


class OpenSegment(GraphSegment):
    """Nodes by their numbers.

    Values of one shape and dtype are rows of one array, a pool, wherever they come from: an operand is one gather.

    Attributes:
        buffer_of, row_of: of each node; -2 - i for the i-th of those that wait to be launched.
        begun: nodes from here on are new; waiting: how many wait to be launched.
        is_plain: all values are plain arrays; is_taped: what they are of may carry a gradient, which they do not.
    """

    __slots__ = (
        "_arity", "_base", "_launches", "_offsets", "_operands", "_out_pools", "_outs_at", "_places", "_pools",
        "_recorded", "_script", "_used", "_waiting", "begun", "is_plain", "is_taped", "waiting",
    )  # fmt: skip

    def __init__(self, is_taped: bool, is_plain: bool) -> None:
        super().__init__(done=True, buffer_of=np.full(_FIRST, -1, np.int64), row_of=np.zeros(_FIRST, np.int64))
        self.begun = self.waiting = 0
        self.is_plain = is_plain
        self.is_taped = is_taped
        # Of the nodes that wait: signature and number, and where their operands begin in those of all.
        self._waiting = np.zeros((2, _FIRST), np.int64)
        self._offsets = np.zeros(_FIRST + 1, np.int64)
        self._operands = np.zeros(_FIRST, np.int64)
        self._places = np.zeros(_FIRST, np.int64)
        self._script = np.zeros(4 * _FIRST, np.int64)
        self._recorded: list[tuple[np.ndarray, np.ndarray]] = []  # on a tape, signatures and operands of all nodes
        self._base = 0  # from this one on
        self._forget()

    def _forget(self) -> None:
        """Begin anew with what there is to say of signatures."""
        self._pools: dict[Any, int] = {}  # the numbers of the arrays, by shape and dtype of a row
        self._used = np.zeros(len(self.buffers), np.int64)  # how many rows of each buffer
        # Of each signature: how many operands it has, the pools of its outputs, and how it is launched.
        self._arity = np.zeros(1, np.int64)
        self._out_pools, self._outs_at = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._launches: list[_Launch] = []

    @property
    def is_pending(self) -> bool:
        """Whether there is anything left to launch."""
        return bool(self.waiting or self._recorded)

    @property
    def operands(self) -> np.ndarray:
        """Of the nodes that wait, one after the other."""
        return self._operands[: self._offsets.item(self.waiting)]

    def take_in(self, table: Sequence[Signature]) -> None:
        """Let what was recorded since the last time wait to be launched."""
        first, begun, end = self.waiting, self.begun, len(self.sigs)
        if end == begun:
            return
        sigs = np.frombuffer(array("q", self.sigs[begun:]), np.int64)
        refs = np.frombuffer(array("q", self.refs), np.int64)
        if self.is_taped:
            self._recorded.append((sigs, refs))
        if len(self._launches) < len(table):
            self._meet(table)
        self.waiting, self.begun = last, _ = first + end - begun, end
        used = self._offsets.item(first)
        self._make_room(last, used + len(refs))
        self._waiting[0, first:last] = sigs
        self._operands[used : used + len(refs)] = refs
        enter(self._waiting, self._offsets, self._arity, self.buffer_of, first, last, begun)
        self.refs.clear()

    def _make_room(self, waiting: int, operands: int) -> None:
        """Let there be room for as many nodes that wait, and operands of theirs."""
        if self.begun > len(self.buffer_of):
            more = self.begun
            self.buffer_of = np.concatenate([self.buffer_of, np.full(more, -1)])
            self.row_of = np.concatenate([self.row_of, np.zeros(more, np.int64)])
        if waiting > self._waiting.shape[1]:
            more = waiting
            self._waiting = np.concatenate([self._waiting, np.zeros((2, more), np.int64)], axis=1)
            self._offsets = np.concatenate([self._offsets, np.zeros(more, np.int64)])
        if operands > len(self._operands):
            self._operands = np.concatenate([self._operands, np.zeros(operands, np.int64)])
            self._places = np.zeros(len(self._operands), np.int64)
        if len(self._script) < 4 * waiting + operands + 3:
            self._script = np.zeros(2 * (4 * waiting + operands + 3), np.int64)

    def _meet(self, table: Sequence[Signature]) -> None:
        """Note what there is to say of signatures that are new."""
        pools: list[int] = []
        counts: list[int] = []
        for sig in table[len(self._launches) :]:
            outs = [sig.out] if sig.block is None else sig.block.outs
            pools += [self._pool_of((aval.shape, aval.dtype)) for aval in outs]
            counts.append(len(outs))
            self._launches.append(_Launch(sig))
        self._arity = np.array([*[len(sig.avals) for sig in table], 0], np.int64)
        self._out_pools = np.concatenate([self._out_pools, np.array(pools, np.int64)])
        self._outs_at = np.concatenate([self._outs_at, self._outs_at[-1] + np.cumsum(counts)])

    def part(self, results: Sequence[int]) -> tuple[GraphSegment, np.ndarray]:
        """What is left to launch, as a segment, and the numbers of its nodes; what is older is from outside of it.

        Args:
            results: nodes that examples give; on a tape what they are computed from is all that is launched.
        """
        if self.is_taped:
            return self._taped_part(results)
        sigs, numbers = self._waiting[:, : self.waiting].copy()
        refs = self.operands.copy()
        inside = refs >= 0
        places = self.buffer_of[refs[inside]]
        refs[inside] = np.where(places >= 0, -1, -2 - places)
        old = np.flatnonzero(inside)[places >= 0]
        first = len(self.sources)
        out = GraphSegment(sigs, refs, self.sources.copy(), self.rows.copy(), dict(self.large))
        if len(old):
            refs[old] = -np.arange(first + 1, first + len(old) + 1)
            out.sources += [None] * len(old)
            held = self.operands[old]
            out.kept = KeptRows(self.buffers, first, self.buffer_of[held], self.row_of[held])
        return out, numbers

    def _taped_part(self, results: Sequence[int]) -> tuple[GraphSegment, np.ndarray]:
        sigs, refs = (np.concatenate(column) for column in zip(*self._recorded, strict=True))
        arity = self._arity[sigs]
        refs = np.where(refs >= 0, refs - self._base, refs)
        offsets = np.concatenate([[0], np.cumsum(arity)])
        needed = needed_for(sigs, offsets, refs, np.array(results, np.int64) - self._base)
        number = np.cumsum(needed) - 1
        kept = refs[np.repeat(needed, arity)]
        kept = np.where(kept >= 0, number[np.maximum(kept, 0)], kept)
        out = GraphSegment(sigs[needed], kept, self.sources.copy(), self.rows.copy(), dict(self.large))
        return out, np.flatnonzero(needed) + self._base

    def take(self, part: GraphSegment, numbers: np.ndarray) -> None:
        """Note where the values of all that was left are."""
        which, rows = part.buffer_of[: len(numbers)], part.row_of[: len(numbers)]
        if self.is_taped:
            for number in self._pools.values():
                self.buffers[number] = None
            self.buffer_of[numbers], self.row_of[numbers] = which + len(self.buffers), rows
            self.buffers += part.buffers
            self._recorded, self._base = [], self.begun
            self._forget()
        else:
            for number in np.flatnonzero(np.bincount(which)).tolist():
                mine = which == number
                at, shift = self._stored(part.buffers[number])
                self.buffer_of[numbers[mine]] = at
                self.row_of[numbers[mine]] = rows[mine] + shift
        self.waiting = 0

    @library_code
    def launch_wanted(self, wanted: Sequence[int], stats: Stats) -> None:
        """Launch what these nodes need, themselves included."""
        if not all(constant.is_as_it_was() for constant in self.large.values()):
            raise NeedsLoop("an array was written to after it was used in a recorded operation")
        length, self.waiting = round_of(
            self._waiting, self._offsets, self._operands, self.waiting, self.buffer_of, self.row_of,
            np.array(wanted, np.int64), self._outs_at, self._out_pools, self._used, self._places, self._script,
        )  # fmt: skip
        script = self._script[:length].tolist()
        errors = np.geterr()
        clock = time.perf_counter
        operands = _RoundOperands(self, script)
        before = clock()
        at = 0
        while at < length:
            launch, count = self._launches[script[at]], script[at + 1]
            operands.where, operands.count = at + 2, count
            at += 2 + launch.arity
            if launch.sig.errors == errors:
                outs = launch.outputs(operands, stats)
            else:
                with np.errstate(**launch.sig.errors):
                    outs = launch.outputs(operands, stats)
            for out, aval in zip(outs, launch.outs, strict=True):
                if type(out) is not np.ndarray or out.shape[1:] != aval.shape or out.dtype != aval.dtype:
                    raise NeedsLoop("a value of another interpreter in a round")
                self._write(script[at], script[at + 1], out)
                at += 2
            operands.first += launch.arity * count
            now = clock()
            stats.launched(launch.sig.op.name, launch.sig.text, count, now - before)
            before = now
        stats.rounds += 1

    def carry(self, fixed: int) -> None:
        """Keep of the values from outside the first ones, and those that what waits refers to."""
        if len(self.sources) < fixed + _MOST_KEPT:
            return
        operands = self.operands
        places = np.flatnonzero(operands < -fixed)
        found = (~operands[places]).tolist()
        rows = {number: row for number, row in self.rows.items() if number < fixed}
        rows.update({fixed + at: self.rows[each] for at, each in enumerate(found) if each in self.rows})
        operands[places] = -np.arange(fixed + 1, fixed + len(places) + 1)
        self.sources[fixed:], self.rows = [self.sources[each] for each in found], rows

    def _pool_of(self, kind: Any) -> int:
        """The number of the pool of values of this shape and dtype."""
        number = self._pools.get(kind)
        if number is None:
            number = self._pools[kind] = self._add(np.empty((64, *kind[0]), kind[1]))
        return number

    def _add(self, buffer: Any) -> int:
        self.buffers.append(buffer)
        self._used = np.append(self._used, 0)
        return len(self.buffers) - 1

    def _write(self, number: int, start: int, rows: np.ndarray) -> None:
        """Put rows into a pool."""
        pool, end = self.buffers[number], start + len(rows)
        if end > len(pool):
            self.buffers[number] = larger = np.empty((2 * end, *pool.shape[1:]), pool.dtype)
            larger[: len(pool)] = pool
            pool = larger
        pool[start:end] = rows

    def _stored(self, buffer: Any) -> tuple[int, int]:
        """The number of the buffer where these rows are, and of the first of them in it."""
        if type(buffer) is not np.ndarray:
            self.is_plain = False
            return self._add(buffer), 0
        number = self._pool_of((buffer.shape[1:], buffer.dtype))
        start = self._used.item(number)
        self._used[number] = start + len(buffer)
        self._write(number, start, buffer)
        return number, start

    def there(self, ref: int) -> Any:
        """The numbers of a node's value as a list, if they are there already and carry no gradient; else None."""
        number = self.buffer_of.item(ref) if ref < self.begun and not self.is_taped else -1
        buffer = self.buffers[number] if number >= 0 else None
        return buffer[self.row_of.item(ref)].tolist() if type(buffer) is np.ndarray else None

    def numbers_of(self, nodes: Sequence[int], exact: Sequence[bool], none: Any) -> list[Any]:
        """The values of nodes that are there, as Python has them.

        Args:
            exact: which may not carry a gradient; none: what stands for those that do.
        """
        numbers = np.array(nodes, np.int64)
        which, rows = self.buffer_of[numbers], self.row_of[numbers]
        found: list[Any] = [none] * len(nodes)
        for number in dict.fromkeys(which.tolist()):
            buffer = self.buffers[number]
            if type(buffer) is not np.ndarray:
                continue
            is_free = not self.is_taped or buffer.dtype.kind not in "fc"
            places = np.flatnonzero(which == number)
            for place, each in zip(places.tolist(), buffer[rows[places]].tolist(), strict=True):
                if is_free or not exact[place]:
                    found[place] = each
        return found

    def resolve(self, handle: Any) -> None:
        """Let a handle of a launched node hold its own value."""
        super().resolve(handle)
        if type(handle.source) is np.ndarray:
            handle.source, handle.row = handle.source[handle.row : handle.row + 1].copy(), 0

    @property
    def nbytes(self) -> int:
        """What the values take."""
        rows = sum([self.buffers[number][: self._used[number]].nbytes for number in self._pools.values()])
        return rows + sum([getattr(each, "nbytes", 0) for each in self.buffers if type(each) is not np.ndarray])

    def drop(self, live: set[int]) -> None:
        """Let go of all values but those of these nodes."""
        nodes = np.array(sorted(live), np.int64)
        nodes = nodes[self.buffer_of[nodes] >= 0]
        which = self.buffer_of[nodes]
        pools = set(self._pools.values())
        for number in range(len(self.buffers)):
            own = nodes[which == number]
            if number in pools:
                self.buffers[number] = self.buffers[number][self.row_of[own]]
                self.row_of[own] = np.arange(len(own))
                self._used[number] = len(own)
            elif not len(own):
                self.buffers[number] = None


@jit
def enter(
    waiting: np.ndarray,
    offsets: np.ndarray,
    arity: np.ndarray,
    buffer_of: np.ndarray,
    first: int,
    last: int,
    number: int,
) -> None:
    """Let nodes from this number on wait, whose signatures are there: as `round_of` has them."""
    for i in range(first, last):
        sig = waiting[0, i]
        waiting[1, i] = number + i - first
        offsets[i + 1] = offsets[i] + (arity[sig] if sig >= 0 else 0)
        buffer_of[number + i - first] = -2 - i


@jit
def round_of(
    waiting: np.ndarray,
    offsets: np.ndarray,
    refs: np.ndarray,
    n: int,
    buffer_of: np.ndarray,
    row_of: np.ndarray,
    wanted: np.ndarray,
    outs_at: np.ndarray,
    out_pools: np.ndarray,
    used: np.ndarray,
    rows: np.ndarray,
    script: np.ndarray,
) -> tuple[int, int]:
    """What is launched together so that some nodes have values: calls of one signature, as late as can be.

    It is written into `script`: for each launch its signature, the number of its calls, for each operand twice the pool
    where it is, one more if the rows follow each other, or `_OUTSIDE` or `_SEVERAL`; for each output its pool and the
    first row. `rows` is the row of each operand of each launch; its number where it is outside, or they are of several.
    Where results go is noted in `buffer_of`, `row_of` and `used`; what is left moves up.

    Args:
        waiting: (2, ...), of n nodes the signature, -1 for a further output of the node before, and the number.
        offsets, refs: their operands, by number.
        buffer_of: -2 - i for the i-th that waits; row_of: of each node its row; used: of each buffer the rows in use.
        wanted: the nodes; outs_at, out_pools: of each signature, the pools of its outputs.

    Returns:
        The length of the script, and how many nodes are left.
    """
    sigs, numbers = waiting[0], waiting[1]
    num_sigs = outs_at.shape[0] - 1
    height = np.full(n, -1, np.int64)  # the length of the longest path to what is wanted
    for node in wanted:
        if buffer_of[node] < 0:
            height[-2 - buffer_of[node]] = 0
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
    at = 0
    for i in range(n):
        if sigs[i] < 0:
            height[i] = height[i - 1]
        elif height[i] >= 0:
            calls[at] = i
            key[at] = (highest - height[i]) * num_sigs + sigs[i]
            at += 1
    order = np.argsort(key, kind="mergesort")
    at = end = length = 0
    while end < count:
        start = end
        while end < count and key[order[end]] == key[order[start]]:
            end += 1
        first = calls[order[start]]
        sig = sigs[first]
        script[length], script[length + 1] = sig, end - start
        length += 2
        for position in range(offsets[first + 1] - offsets[first]):
            pool = -1
            outside = 0
            is_one = follow = True
            for i in range(start, end):
                ref = refs[offsets[calls[order[i]]] + position]
                if ref < 0:
                    outside += 1
                    rows[at + i - start] = ref
                    continue
                row = row_of[ref]
                rows[at + i - start] = row
                if pool < 0:
                    pool = buffer_of[ref]
                else:
                    is_one = is_one and buffer_of[ref] == pool
                    follow = follow and row == rows[at + i - start - 1] + 1
            if outside == end - start:
                script[length] = _OUTSIDE
            elif outside == 0 and is_one:
                script[length] = 2 * pool + follow
            else:
                script[length] = _SEVERAL
                for i in range(start, end):
                    rows[at + i - start] = refs[offsets[calls[order[i]]] + position]
            length += 1
            at += end - start
        for out in range(outs_at[sig + 1] - outs_at[sig]):
            pool = out_pools[outs_at[sig] + out]
            script[length], script[length + 1] = pool, used[pool]
            length += 2
            for i in range(start, end):
                number = numbers[calls[order[i]]] + out
                buffer_of[number] = pool
                row_of[number] = used[pool] + i - start
            used[pool] += end - start
    left = at = 0
    for i in range(n):
        if height[i] >= 0:
            continue
        start, end = offsets[i], offsets[i + 1]
        sigs[left], numbers[left] = sigs[i], numbers[i]
        buffer_of[numbers[i]] = -2 - left
        for k in range(start, end):
            refs[at + k - start] = refs[k]
        offsets[left] = at
        at += end - start
        left += 1
    offsets[left] = at
    return length, left


@jit
def needed_for(sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Which nodes some are computed from, themselves and further outputs included.

    Args:
        sigs: (N,), -1 for a further output of the node before; offsets, refs: their operands; results: those nodes.
    """
    n = sigs.shape[0]
    needed = np.zeros(n, np.bool_)
    for node in results:
        needed[node] = True
    for i in range(n - 1, -1, -1):
        if needed[i] and sigs[i] < 0:
            needed[i - 1] = True
        elif needed[i]:
            for k in range(offsets[i], offsets[i + 1]):
                if refs[k] >= 0:
                    needed[refs[k]] = True
    for i in range(1, n):
        if sigs[i] < 0:
            needed[i] = needed[i - 1]
    return needed


class _RoundOperands(Launches):
    """The operands of one launch of a round after the other, as `round_of` gives them.

    Attributes:
        count: of its calls; first: where the rows of its operands begin; where: of what the script says of them.
    """

    __slots__ = ("_script", "_segment", "count", "first", "where")

    def __init__(self, segment: OpenSegment, script: list[int]) -> None:
        self._segment = segment
        self._script = script
        self.count = self.first = self.where = 0

    def __len__(self) -> int:
        return self.count

    def _rows_of(self, position: int) -> np.ndarray:
        first = self.first + position * self.count
        return self._segment._places[first : first + self.count]

    def data(self, position: int, token: Any) -> np.ndarray:
        """The rows of one operand that each call has its own of."""
        where, rows = self._script[self.where + position], self._rows_of(position)
        if where >= 0:
            pool: np.ndarray = self._segment.buffers[where >> 1]
            if where & 1:
                first = rows.item(0)
                return pool[first : first + self.count]
            return pool.take(rows, 0)
        values = self._values(rows)
        return np.array(values, token.dtype) if _IDS.issuperset(map(type, values)) else np.stack(values)

    def shared(self, position: int) -> Any:
        """An operand that is one for all calls."""
        return off_tape(self._segment.sources[~self._segment._places.item(self.first + position * self.count)])

    def _operand(
        self, token: Any, calls: np.ndarray, position: int, ragged: bool = False, batched: bool = False
    ) -> Any:
        if type(token) is not Weak and token.shared:
            return self.shared(position)
        if type(token) is not Weak and not ragged:
            return Batched(self.data(position, token), token.shape)
        where, rows = self._script[self.where + position], self._rows_of(position)
        if where >= 0:
            pool = self._segment.buffers[where >> 1]
            return packed_values([pool[row] for row in rows.tolist()])
        values = self._values(rows)
        return weak_numbers(values, token.kind) if type(token) is Weak else packed_values(values)

    def _values(self, refs: np.ndarray) -> list[Any]:
        """Values from outside, or of nodes in several buffers."""
        return [self._value(ref) for ref in refs.tolist()]

    def _value(self, ref: int) -> Any:
        segment = self._segment
        if ref >= 0:
            return row_p(segment.buffers[segment.buffer_of.item(ref)], row=segment.row_of.item(ref))
        source = off_tape(segment.sources[~ref])
        return row_p(source, row=segment.rows[~ref]) if ~ref in segment.rows else source


def _looked_up(table: Any, ids: np.ndarray) -> np.ndarray:
    """`lookup_p`, without what it looks at beside the ids where a table is an array."""
    whole: Any = table if type(table) is np.ndarray else getattr(table, "_ab_whole", None)
    is_array = type(whole) is np.ndarray and whole.flags.c_contiguous and getattr(table, "_ab_ids", None) is None
    if is_array and ids.dtype == np.int64 and ids.ndim == 1 and first_bad_id(ids, len(whole)) < 0:
        return whole.take(ids, 0)
    return lookup_p(table, ids)


class _Launch:
    """How calls of one signature are launched in a round: what is the same each time is found once.

    Attributes:
        sig: it; arity: how many operands; outs: the `Aval` of each output.
        outputs: the rows of each output, given the operands and the statistics.
    """

    __slots__ = ("_apart", "_call", "_data", "_is_weak", "_key", "_rows", "arity", "outputs", "outs", "sig")

    def __init__(self, sig: Signature) -> None:
        self.sig = sig
        self.arity = len(sig.avals)
        self.outputs: Callable[[_RoundOperands, Stats], Sequence[Any]]
        if sig.block is None:
            self.outs: Sequence[Any] = [sig.out]
            is_row = sig.op is lookup_p and sig.avals[0].shared and not (sig.avals[1].shared or sig.avals[1].ndim)
            self.outputs = self._row if is_row else self._op
            return
        self.outs = sig.block.outs
        self._data = [off_tape(each) for each in sig.block.shared]
        self._call = BlockCall(sig.block.program, self._data, sig.index)
        self._is_weak = Weak in map(type, sig.avals)
        self.outputs = self._block
        self._rows = tuple([each is None for each in self._data])
        self._apart = apart_of(self._call.program, self._rows)
        if self._apart is not None:
            self._key = (*[self._rows[slot] for slot in self._apart.kept], *[True] * len(self._apart.lookups)), ()
        else:
            self._key = self._rows, ()

    def _row(self, operands: _RoundOperands, stats: Stats) -> Sequence[Any]:
        return [_looked_up(operands.shared(0), operands.data(1, self.sig.avals[1]))]

    def _op(self, operands: _RoundOperands, stats: Stats) -> Sequence[Any]:
        return [operands._op(self.sig, operands, stats)]

    def _block(self, operands: _RoundOperands, stats: Stats) -> Sequence[Any]:
        if self._is_weak:
            return operands._block(self._call, self.sig.avals, operands, stats)
        data, program, rows = self._data.copy(), self._call.program, self._rows
        for position, slot in enumerate(self._call.own):
            data[slot] = operands.data(position, self.sig.avals[position])
        if self._apart is not None:
            data, program, rows = looked_up(self._apart, data, _looked_up), self._apart.rest, self._key[0]
        form = program.forms.get(self._key)
        if type(form) is Form and False not in form.batched:
            return form.forward(data)
        return launch_rows(program, data, rows, stats.fallbacks)
