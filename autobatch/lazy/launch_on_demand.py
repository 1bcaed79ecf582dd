"""An open-ended graph segment for generator-recorded examples: each round launches only the nodes that are needed now.

Used only by `example_recorder`; in every other example a `float(x)` goes to `trace.Trace.value`. Nodes keep their
numbers for the whole map. Nodes not needed in a round wait, and join calls that other examples record later. A round
schedules each call as late as possible (by longest path to a wanted node), since most calls feed the decision that ends
the round. One kernel call (`schedule_round`) finds the launch order, the place of each operand and of each result.

Under a gradient, rounds compute plain values, used only to decide branches. At the end the nodes that the results
depend on form one ordinary segment, which is planned and launched on the tape; nodes used only for decisions are not.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import off_tape
from autobatch.blocks.launch import LaunchCode, inputs_of_rest, launch_rows, split_for
from autobatch.core.abstract_eval import Weak
from autobatch.core.batched import Batched
from autobatch.core.memory import library_code
from autobatch.errors import COPY_FIRST, NeedsLoop
from autobatch.kernels.jit import jit
from autobatch.kernels.rows import first_bad_id
from autobatch.lazy.grouping.buffers import row_p
from autobatch.lazy.grouping.ragged import family_of
from autobatch.lazy.grouping.signatures import BlockCall, Signature
from autobatch.lazy.launching import BorrowedRows, GraphSegment, Launches, Stats, packed_values, weak_numbers
from autobatch.tables.lookup import lookup_p

_FIRST = 1024  # nodes
_IDS = frozenset((int, np.int64, np.int32))
_MOST_KEPT = 1 << 14  # external values held before `keep_externals` drops those that no waiting node refers to
_OUTSIDE, _SEVERAL = -1, -2  # operand location codes: all values external; values in several buffers


class OpenSegment(GraphSegment):
    """A growing graph segment whose nodes keep their numbers across rounds.

    All values of one shape and dtype are rows of one array (a pool), whatever op made them: an operand is one gather.

    Attributes:
        buffer_of, row_of: buffer and row of each node; buffer_of is -2 - i for the i-th waiting node.
        begun: number of nodes taken in so far; waiting: number of nodes not launched yet.
        is_plain: all values are plain arrays; is_taped: a gradient is being recorded, though round values carry none.
    """

    __slots__ = (
        "_arity", "_base", "_launches", "_offsets", "_operands", "_out_pools", "_outs_at", "_places", "_pools",
        "_script", "_taken", "_used", "_waiting", "begun", "is_plain", "is_taped", "waiting",
    )  # fmt: skip

    def __init__(self, is_taped: bool, is_plain: bool, of: GraphSegment | None = None) -> None:
        super().__init__(done=True, buffer_of=np.full(_FIRST, -1, np.int64), row_of=np.zeros(_FIRST, np.int64))
        if of is not None:
            self.sigs, self.refs, self.sources, self.rows, self.large = of.sigs, of.refs, of.sources, of.rows, of.large
        self.begun = self.waiting = 0
        self.is_plain = is_plain
        self.is_taped = is_taped
        # For each waiting node: row 0 its signature, row 1 its number; `_offsets`: where its operands begin.
        self._waiting = np.zeros((2, _FIRST), np.int64)
        self._offsets = np.zeros(_FIRST + 1, np.int64)
        self._operands = np.zeros(_FIRST, np.int64)
        self._places = np.zeros(_FIRST, np.int64)
        self._script = np.zeros(4 * _FIRST, np.int64)
        self._taken = 0  # operands that are among those of the waiting nodes; on a tape they stay in `refs`, too
        self._base = 0  # on a tape: number of the first node that is not launched on it
        self._forget()

    def _forget(self) -> None:
        """Reset the pools and the per-signature tables."""
        self._pools: dict[Any, int] = {}  # (row shape, dtype) -> buffer number
        self._used = np.zeros(len(self.buffers), np.int64)  # rows in use in each buffer
        # For each signature: number of operands, pools of its outputs, and its launcher.
        self._arity = np.zeros(1, np.int64)
        self._out_pools, self._outs_at = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._launches: list[_Launch] = []

    @property
    def is_pending(self) -> bool:
        """True if any node is not launched yet, or, on a tape, still has to be launched on it."""
        return bool(self.waiting or (self.is_taped and self.begun > self._base))

    @property
    def operands(self) -> np.ndarray:
        """The operand references of all waiting nodes, concatenated."""
        return self._operands[: self._offsets.item(self.waiting)]

    def add_recorded(self, table: Sequence[Signature]) -> None:
        """Move the nodes recorded since the last call to the waiting nodes."""
        first, begun, end = self.waiting, self.begun, len(self.sigs)
        if end == begun:
            return
        sigs = np.frombuffer(array("q", self.sigs[begun:]), np.int64)
        refs = np.frombuffer(array("q", self.refs[self._taken :]), np.int64)
        if len(self._launches) < len(table):
            self._add_signatures(table)
        self.waiting, self.begun = last, _ = first + end - begun, end
        used = self._offsets.item(first)
        self._make_room(last, used + len(refs))
        self._waiting[0, first:last] = sigs
        self._operands[used : used + len(refs)] = refs
        enter(self._waiting, self._offsets, self._arity, self.buffer_of, first, last, begun)
        if self.is_taped:
            self._taken = len(self.refs)
        else:
            self.refs.clear()

    def _make_room(self, waiting: int, operands: int) -> None:
        """Grow the arrays to hold this many waiting nodes and operands."""
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

    def _add_signatures(self, table: Sequence[Signature]) -> None:
        """Add new signatures to the per-signature tables."""
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
        """All unlaunched nodes as an ordinary segment, and their numbers; launched nodes are its external values.

        Args:
            results: nodes that examples return; on a tape, only these and the nodes they depend on are included.
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
            out.kept = BorrowedRows(self.buffers, first, self.buffer_of[held], self.row_of[held])
        return out, numbers

    def _taped_part(self, results: Sequence[int]) -> tuple[GraphSegment, np.ndarray]:
        sigs, refs = np.array(self.sigs[self._base :], np.int64), np.array(self.refs, np.int64)
        arity = self._arity[sigs]
        refs = np.where(refs >= 0, refs - self._base, refs)
        offsets = np.concatenate([[0], np.cumsum(arity)])
        needed = dependency_mask(sigs, offsets, refs, np.array(results, np.int64) - self._base)
        number = np.cumsum(needed) - 1
        kept = refs[np.repeat(needed, arity)]
        kept = np.where(kept >= 0, number[np.maximum(kept, 0)], kept)
        out = GraphSegment(sigs[needed], kept, self.sources.copy(), self.rows.copy(), dict(self.large))
        return out, np.flatnonzero(needed) + self._base

    def take(self, part: GraphSegment, numbers: np.ndarray) -> None:
        """Record where the values of `part` are after its launch; `numbers` are its node numbers."""
        which, rows = part.buffer_of[: len(numbers)], part.row_of[: len(numbers)]
        if self.is_taped:
            for number in self._pools.values():
                self.buffers[number] = None
            self.buffer_of[numbers], self.row_of[numbers] = which + len(self.buffers), rows
            self.buffers += part.buffers
            self.refs.clear()
            self._taken, self._base = 0, self.begun
            self._forget()
        else:
            for number in np.flatnonzero(np.bincount(which)).tolist():
                mine = which == number
                at, shift = self._stored(part.buffers[number])
                self.buffer_of[numbers[mine]] = at
                self.row_of[numbers[mine]] = rows[mine] + shift
        self.waiting = 0

    def _heights(self, wanted: Sequence[int]) -> np.ndarray:
        return heights_of(
            self._waiting, self._offsets, self._operands, self.waiting, self.buffer_of, np.array(wanted, np.int64)
        )

    def suits(self, wanted: Sequence[int]) -> bool:
        """True if no two signatures of the calls that these nodes need differ in their sizes only."""
        needed = self._waiting[0, : self.waiting][self._heights(wanted) >= 0]
        families = [family_of(self._launches[number].sig) for number in np.unique(needed[needed >= 0]).tolist()]
        known = [each for each in families if each is not None]
        return len(set(known)) == len(known)

    @library_code
    def launch_wanted(self, wanted: Sequence[int], stats: Stats) -> None:
        """Launch these nodes and every waiting node that they depend on."""
        if not all(constant.is_unchanged() for constant in self.large.values()):
            raise NeedsLoop("an array was written to after it was used in a recorded operation", instead=COPY_FIRST)
        errors = np.geterr()
        length, self.waiting = schedule_round(
            self._waiting, self._offsets, self._operands, self.waiting, self.buffer_of, self.row_of,
            self._heights(wanted), self._outs_at, self._out_pools, self._used, self._places, self._script,
        )  # fmt: skip
        script = self._script[:length].tolist()
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

    def keep_externals(self, fixed: int) -> None:
        """Drop external values, except the first `fixed` and those that waiting nodes refer to."""
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
        """Buffer number of the pool for this (row shape, dtype), made if needed."""
        number = self._pools.get(kind)
        if number is None:
            number = self._pools[kind] = self._add(np.empty((0, *kind[0]), kind[1]))
        return number

    def _add(self, buffer: Any) -> int:
        self.buffers.append(buffer)
        self._used = np.append(self._used, 0)
        return len(self.buffers) - 1

    def _write(self, number: int, start: int, rows: np.ndarray) -> None:
        """Write rows into a pool from row `start` on, growing it if needed."""
        pool, end = self.buffers[number], start + len(rows)
        if end > len(pool):
            self.buffers[number] = larger = np.empty((2 * end, *pool.shape[1:]), pool.dtype)
            larger[: len(pool)] = pool
            pool = larger
        pool[start:end] = rows

    def _stored(self, buffer: Any) -> tuple[int, int]:
        """Store rows; returns (buffer number, first row). Plain arrays go into a pool, others become a buffer."""
        if type(buffer) is not np.ndarray:
            self.is_plain = False
            return self._add(buffer), 0
        number = self._pool_of((buffer.shape[1:], buffer.dtype))
        start = self._used.item(number)
        self._used[number] = start + len(buffer)
        self._write(number, start, buffer)
        return number, start

    def value_of(self, ref: int) -> Any:
        """A node's value without its gradient; None if it is not computed."""
        number = self.buffer_of.item(ref) if ref < self.begun else -1
        return self.buffers[number][self.row_of.item(ref)] if number >= 0 else None

    def there(self, ref: int) -> Any:
        """A node's value as Python numbers (`tolist`), if it is computed and carries no gradient; else None."""
        number = self.buffer_of.item(ref) if ref < self.begun and not self.is_taped else -1
        buffer = self.buffers[number] if number >= 0 else None
        return buffer[self.row_of.item(ref)].tolist() if type(buffer) is np.ndarray else None

    def numbers_of(self, nodes: Sequence[int], exact: Sequence[bool], none: Any) -> list[Any]:
        """The values of launched nodes as Python numbers or lists.

        Args:
            exact: True per node if its value must carry no gradient; none: given instead of a value that might.
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
        """Bind a handle of a launched node to a copy of its value, since `drop` may move pool rows."""
        super().resolve(handle)
        if type(handle.source) is np.ndarray:
            handle.source, handle.row = handle.source[handle.row : handle.row + 1].copy(), 0

    @property
    def nbytes(self) -> int:
        """Memory used by the values."""
        rows = sum([self.buffers[number][: self._used[number]].nbytes for number in self._pools.values()])
        return rows + sum([getattr(each, "nbytes", 0) for each in self.buffers if type(each) is not np.ndarray])

    def drop(self, live: set[int]) -> None:
        """Free all values except those of these nodes."""
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
    """Set number and offsets of nodes [first, last), numbered from `number` on; arrays as in `schedule_round`."""
    for i in range(first, last):
        sig = waiting[0, i]
        waiting[1, i] = number + i - first
        offsets[i + 1] = offsets[i] + (arity[sig] if sig >= 0 else 0)
        buffer_of[number + i - first] = -2 - i


@jit
def heights_of(
    waiting: np.ndarray, offsets: np.ndarray, refs: np.ndarray, n: int, buffer_of: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """The length of the longest path from each waiting node to a wanted one; -1: not needed. As in `schedule_round`."""
    sigs = waiting[0]
    height = np.full(n, -1, np.int64)
    for node in wanted:
        if buffer_of[node] < 0:
            height[-2 - buffer_of[node]] = 0
    for i in range(n - 1, -1, -1):
        if height[i] < 0:
            continue
        if sigs[i] < 0:
            height[i - 1] = max(height[i - 1], height[i])
            continue
        for k in range(offsets[i], offsets[i + 1]):
            if refs[k] >= 0 and buffer_of[refs[k]] < 0:
                place = -2 - buffer_of[refs[k]]
                height[place] = max(height[place], height[i] + 1)
    for i in range(n):
        if sigs[i] < 0:
            height[i] = height[i - 1]
    return height


@jit
def schedule_round(
    waiting: np.ndarray,
    offsets: np.ndarray,
    refs: np.ndarray,
    n: int,
    buffer_of: np.ndarray,
    row_of: np.ndarray,
    height: np.ndarray,
    outs_at: np.ndarray,
    out_pools: np.ndarray,
    used: np.ndarray,
    rows: np.ndarray,
    script: np.ndarray,
) -> tuple[int, int]:
    """Schedule one round: group the calls that the wanted nodes need by signature, each as late as possible.

    Written to `script`, for each launch: signature, number of calls; per operand `2 * pool + consecutive`, or
    `_OUTSIDE`, or `_SEVERAL`; per output its pool and first row. Written to `rows`, for each launch and operand: its
    row in the pool for each call, or its reference where the operand is `_OUTSIDE` or `_SEVERAL`. Updates `buffer_of`,
    `row_of` and `used` with the places of the results, and compacts the nodes that stay waiting.

    Args:
        waiting: (2, >= n): signature (-1 for a further output of the node before) and number of each waiting node.
        offsets, refs: operand references of the waiting nodes, in CSR layout.
        buffer_of: per node, -2 - i for the i-th waiting one; row_of: per node; used: rows in use, per buffer.
        height: as `heights_of` gives it; outs_at, out_pools: the pools of each signature's outputs, in CSR layout.

    Returns:
        The length of the script, and the number of nodes still waiting.
    """
    sigs, numbers = waiting[0], waiting[1]
    num_sigs = outs_at.shape[0] - 1
    calls = np.flatnonzero((height >= 0) & (sigs[:n] >= 0))
    count = calls.shape[0]
    key = sigs[calls] - height[calls] * num_sigs
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
def dependency_mask(sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Mask of the nodes that `results` depend on, including themselves and all outputs of the same calls.

    Args:
        sigs: (N,), -1 for a further output of the node before; offsets, refs: operands in CSR layout.
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
    """Operand access for the current launch of a round, as scheduled by `schedule_round`; moved from launch to launch.

    Attributes:
        count: calls in this launch; first, where: index of its first operand in `_places` and in the script.
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
        """One operand that differs by call, as an array with a row for each call."""
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
        """An operand that is the same object for all calls."""
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
        """Values by reference: external, or of nodes in several buffers."""
        return [self._value(ref) for ref in refs.tolist()]

    def _value(self, ref: int) -> Any:
        segment = self._segment
        if ref >= 0:
            return row_p(segment.buffers[segment.buffer_of.item(ref)], row=segment.row_of.item(ref))
        source = off_tape(segment.sources[~ref])
        return row_p(source, row=segment.rows[~ref]) if ~ref in segment.rows else source


def _fast_lookup(table: Any, ids: np.ndarray) -> np.ndarray:
    """Like `lookup_p`, with a fast path for valid int64 ids into a plain C-contiguous table."""
    whole: Any = table if type(table) is np.ndarray else getattr(table, "_ab_whole", None)
    is_array = type(whole) is np.ndarray and whole.flags.c_contiguous and getattr(table, "_ab_ids", None) is None
    if is_array and ids.dtype == np.int64 and ids.ndim == 1 and first_bad_id(ids, len(whole)) < 0:
        return whole.take(ids, 0)
    return lookup_p(table, ids)


class _Launch:
    """Launcher for the calls of one signature in a round; everything that does not change is computed once, here.

    Attributes:
        sig: the signature; arity: number of operands; outs: the `Aval` of each output.
        outputs: function of (operands, stats) that returns the rows of each output.
    """

    __slots__ = ("_call", "_data", "_is_weak", "_key", "_rows", "_split", "arity", "outputs", "outs", "sig")

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
        self._split = split_for(self._call.program, self._rows)
        if self._split is not None:
            self._key = (*[self._rows[slot] for slot in self._split.inputs], *[True] * len(self._split.lookups)), ()
        else:
            self._key = self._rows, ()

    def _row(self, operands: _RoundOperands, stats: Stats) -> Sequence[Any]:
        return [_fast_lookup(operands.shared(0), operands.data(1, self.sig.avals[1]))]

    def _op(self, operands: _RoundOperands, stats: Stats) -> Sequence[Any]:
        return [operands._op(self.sig, operands, stats)]

    def _block(self, operands: _RoundOperands, stats: Stats) -> Sequence[Any]:
        if self._is_weak:
            return operands._block(self._call, self.sig.avals, operands, stats)
        data, program, rows = self._data.copy(), self._call.program, self._rows
        for position, slot in enumerate(self._call.own):
            data[slot] = operands.data(position, self.sig.avals[position])
        if self._split is not None:
            data, program, rows = inputs_of_rest(self._split, data, _fast_lookup), self._split.rest, self._key[0]
        form = program.forms.get(self._key)
        if type(form) is LaunchCode and False not in form.batched:
            return form.forward(data)
        return launch_rows(program, data, rows, stats.fallbacks)
