"""An open-ended graph segment for generator-recorded examples: each round launches only the nodes that are needed now.

Used only by `example_recorder`; in every other example a `float(x)` goes to `trace.Trace.value`. Nodes keep their
numbers for the whole map. Nodes not needed in a round wait, and join calls that other examples record later. A round
schedules each call as late as possible (by longest path to a wanted node), since most calls feed the decision that ends
the round. One kernel call (`schedule_round`) finds the launch order, the place of each operand and of each result.

Under a gradient, rounds compute plain values, used only to decide branches. At the end the nodes that the results
depend on form one ordinary segment, which is planned and launched on the tape; nodes used only for decisions are not.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import off_tape
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop
from autobatch.kernels.jit import jit
from autobatch.lazy.grouping.launch_order import Schedule
from autobatch.lazy.grouping.plans import Plan, Plans, graph_of
from autobatch.lazy.grouping.ragged import family_of
from autobatch.lazy.grouping.signatures import BlockCall, Signature
from autobatch.lazy.launching import BorrowedRows, GraphSegment, Stats, launch_segment

_FIRST = 1024  # nodes
_BARE = frozenset((int, np.int64, np.int32, np.ndarray))
_MOST_KEPT = 1 << 14  # external values held before `keep_externals` drops those that no waiting node refers to


class OpenSegment(GraphSegment):
    """A growing graph segment whose nodes keep their numbers across rounds.

    Attributes:
        buffer_of, row_of: buffer and row of each node; buffer_of is -2 - i for the i-th waiting node.
        begun: number of nodes taken in so far; waiting: number of nodes not launched yet.
        is_plain: all values are plain arrays; is_taped: a gradient is being recorded, though round values carry none.
    """

    __slots__ = (
        "_arity", "_bare", "_base", "_numbers", "_offsets", "_operands", "_sigs", "_table", "_taken", "begun",
        "is_plain", "is_taped",
    )  # fmt: skip

    def __init__(self, is_taped: bool, is_plain: bool, of: GraphSegment | None = None) -> None:
        super().__init__(done=True, buffer_of=np.full(_FIRST, -1, np.int64), row_of=np.zeros(_FIRST, np.int64))
        if of is not None:
            self.sigs, self.refs, self.sources, self.rows, self.large = of.sigs, of.refs, of.sources, of.rows, of.large
        self.begun = 0
        self.is_plain = is_plain
        self.is_taped = is_taped
        # For each waiting node its signature and its number; `_offsets`: where its operands begin.
        self._sigs = self._numbers = self._operands = np.zeros(0, np.int64)
        self._offsets = np.zeros(1, np.int64)
        self._taken = 0  # operands that are among those of the waiting nodes; on a tape they stay in `refs`, too
        self._base = 0  # on a tape: number of the first node that is not launched on it
        self._bare: list[Any] = []  # on a tape: the external values without it
        self._table: list[Signature] = []  # the signatures, likewise
        self._arity = np.zeros(1, np.int64)  # of each signature, and 0

    @property
    def waiting(self) -> int:
        return len(self._sigs)

    @property
    def is_pending(self) -> bool:
        """True if any node is not launched yet, or, on a tape, still has to be launched on it."""
        return bool(self.waiting or (self.is_taped and self.begun > self._base))

    @property
    def operands(self) -> np.ndarray:
        """The operand references of all waiting nodes, concatenated."""
        return self._operands

    def add_recorded(self, table: Sequence[Signature]) -> None:
        """Move the nodes recorded since the last call to the waiting nodes."""
        first, begun, end = self.waiting, self.begun, len(self.sigs)
        if end == begun:
            return
        sigs = np.frombuffer(array("q", self.sigs[begun:]), np.int64)
        refs = np.frombuffer(array("q", self.refs[self._taken :]), np.int64)
        if len(self._table) < len(table):
            self._table += map(_without_tape, table[len(self._table) :])
            self._arity = np.array([*[len(sig.avals) for sig in table], 0], np.int64)
        self.begun = end
        if end > len(self.buffer_of):
            self.buffer_of = np.concatenate([self.buffer_of, np.full(end, -1)])
            self.row_of = np.concatenate([self.row_of, np.zeros(end, np.int64)])
        self.buffer_of[begun:end] = -2 - np.arange(first, first + len(sigs))
        self._offsets = np.concatenate([self._offsets, self._offsets[-1] + np.cumsum(self._arity[sigs])])
        self._sigs, self._operands = np.concatenate([self._sigs, sigs]), np.concatenate([self._operands, refs])
        self._numbers = np.concatenate([self._numbers, np.arange(begun, end)])
        if self.is_taped:
            self._taken = len(self.refs)
        else:
            self.refs.clear()

    def part(self, results: Sequence[int]) -> tuple[GraphSegment, np.ndarray]:
        """All unlaunched nodes as an ordinary segment, and their numbers; launched nodes are its external values.

        Args:
            results: nodes that examples return; on a tape, only these and the nodes they depend on are included.
        """
        if self.is_taped:
            return self._taped_part(results)
        return self._part_of(np.ones(self.waiting, np.bool_)), self._numbers

    def _part_of(self, needed: np.ndarray) -> GraphSegment:
        """Some of the waiting nodes, and all waiting ones that they depend on, as an ordinary segment."""
        refs = self._operands[np.repeat(needed, np.diff(self._offsets))]
        held = refs[refs >= 0]
        places = self.buffer_of[held]
        at = np.where(places >= 0, -1, (np.cumsum(needed) - 1)[np.where(places >= 0, 0, -2 - places)])
        old, held = np.flatnonzero(refs >= 0)[places >= 0], held[places >= 0]
        refs[refs >= 0] = at
        sources, first = self._bare if self.is_taped else self.sources, len(self.sources)
        refs[old] = -np.arange(first + 1, first + len(old) + 1)
        out = GraphSegment(self._sigs[needed], refs, sources + [None] * len(old), self.rows.copy(), dict(self.large))
        if len(old):
            out.kept = BorrowedRows(self.buffers, first, self.buffer_of[held], self.row_of[held])
        return out

    def _taped_part(self, results: Sequence[int]) -> tuple[GraphSegment, np.ndarray]:
        sigs, refs = np.array(self.sigs[self._base :], np.int64), np.array(self.refs, np.int64)
        arity = self._arity[sigs]
        refs = np.where(refs >= 0, refs - self._base, refs)
        offsets = np.concatenate([[0], np.cumsum(arity)])
        needed = heights_of(sigs, offsets, refs, np.array(results, np.int64) - self._base) >= 0
        number = np.cumsum(needed) - 1
        kept = refs[np.repeat(needed, arity)]
        kept = np.where(kept >= 0, number[np.maximum(kept, 0)], kept)
        out = GraphSegment(sigs[needed], kept, self.sources.copy(), self.rows.copy(), dict(self.large))
        return out, np.flatnonzero(needed) + self._base

    def take(self, part: GraphSegment, numbers: np.ndarray, needed: Any = True) -> None:
        """Record where the values of `part` are after its launch.

        Args:
            numbers: the numbers of its nodes; needed: which of the waiting nodes do not wait any more.
        """
        which, rows = part.buffer_of[: len(numbers)], part.row_of[: len(numbers)]
        self.buffer_of[numbers], self.row_of[numbers] = which + len(self.buffers), rows
        used = np.bincount(which, minlength=len(part.buffers)).tolist()
        for buffer, count in zip(part.buffers, used, strict=True):
            is_view = count and type(buffer) is np.ndarray and buffer.base is not None
            self.buffers.append((buffer.copy() if is_view else buffer) if count else None)
            self.is_plain = self.is_plain and (not count or type(buffer) is np.ndarray)
        left = np.logical_not(np.broadcast_to(needed, self.waiting))
        arity = np.diff(self._offsets)
        self._operands = self._operands[np.repeat(left, arity)]
        self._sigs, self._numbers = self._sigs[left], self._numbers[left]
        self._offsets = np.concatenate([[0], np.cumsum(arity[left])])
        self.buffer_of[self._numbers] = -2 - np.arange(len(self._numbers))

    def take_taped(self, part: GraphSegment, numbers: np.ndarray) -> None:
        """The same after the launch on the tape."""
        self.buffers[:] = [None] * len(self.buffers)
        self.take(part, numbers)
        self.refs.clear()
        self._taken, self._base = 0, self.begun

    def _heights(self, wanted: Sequence[int]) -> np.ndarray:
        places = -2 - self.buffer_of[self._operands]
        refs = np.where((self._operands >= 0) & (places >= 0), places, -1)
        nodes = -2 - self.buffer_of[np.array(wanted, np.int64)]
        return heights_of(self._sigs, self._offsets, refs, nodes[nodes >= 0])

    def suits(self, wanted: Sequence[int]) -> bool:
        """True if no two signatures of the calls that these nodes need differ in their sizes only."""
        needed = self._sigs[self._heights(wanted) >= 0]
        sigs = [self._table[number] for number in np.unique(needed[needed >= 0]).tolist()]
        known = [each for each in map(family_of, sigs) if each is not None]
        return len(set(known)) == len(known) and not any(sig.any_length for sig in sigs)

    def launch_wanted(self, wanted: Sequence[int], stats: Stats) -> None:
        """Launch these nodes and every waiting node that they depend on, without a gradient."""
        if self.is_taped:
            new = self.sources[len(self._bare) :]
            self._bare += [each if type(each) in _BARE else off_tape(each) for each in new]
        height = self._heights(wanted)
        needed = height >= 0
        part = self._part_of(needed)
        launch_segment(part, self._table, stats, _Late(height[needed]))
        if self.is_taped and not all(type(each) is np.ndarray for each in part.buffers if each is not None):
            raise NeedsLoop("a value of another interpreter in a round")
        self.take(part, self._numbers[needed], needed)

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

    def value_of(self, ref: int) -> Any:
        """A node's value without its gradient; None if it is not computed."""
        number = self.buffer_of.item(ref) if ref < self.begun else -1
        return self.buffers[number][self.row_of.item(ref)] if number >= 0 else None

    def there(self, ref: int) -> Any:
        """A node's value as Python numbers (`tolist`), if it is computed and carries no gradient; else None."""
        value = None if self.is_taped else self.value_of(ref)
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else None

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
        return sum([getattr(each, "nbytes", 0) for each in self.buffers])

    def drop(self, live: set[int]) -> None:
        """Free all values except those of these nodes."""
        nodes = np.array(sorted(live), np.int64)
        nodes = nodes[self.buffer_of[nodes] >= 0]
        which = self.buffer_of[nodes]
        for number, buffer in enumerate(self.buffers):
            own = nodes[which == number]
            if not len(own):
                self.buffers[number] = None
            elif type(buffer) is np.ndarray:
                self.buffers[number] = buffer[self.row_of[own]]
                self.row_of[own] = np.arange(len(own))


class _Late(Plans):
    """Plans a round: the calls of one signature that are as far from a wanted node are one launch, as late as possible.

    Args:
        height: for each node the length of the longest path to a wanted one.
    """

    __slots__ = ("_height",)

    def __init__(self, height: np.ndarray) -> None:
        super().__init__()
        self._height = height

    def of(self, segment: GraphSegment, table: list[Signature]) -> Plan:
        """As `plans.Plans.of`."""
        graph = graph_of(segment.sigs, segment.refs, table, len(segment.sources))
        key = graph.sigs - self._height[graph.places] * len(table)
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=key.min() - 1))
        return graph, Schedule(order, np.append(starts, len(order))), ()


def _without_tape(sig: Signature) -> Signature:
    """The signature; for a block whose shared values are on a tape, with the values themselves."""
    if sig.block is None or not any(map(is_boxed, sig.block.shared)):
        return sig
    out = sig.copied()
    out.block = BlockCall(sig.block.program, [off_tape(each) for each in sig.block.shared], sig.index)
    return out


@jit
def heights_of(sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The length of the longest path from each node to a wanted one; -1: not needed. A call's outputs have one.

    Args:
        sigs: (N,), -1 for a further output of the node before; offsets, refs: operands in CSR layout.
    """
    n = sigs.shape[0]
    height = np.full(n, -1, np.int64)
    for node in wanted:
        height[node] = 0
    for i in range(n - 1, -1, -1):
        if height[i] >= 0 and sigs[i] < 0:
            height[i - 1] = max(height[i - 1], height[i])
        elif height[i] >= 0:
            for k in range(offsets[i], offsets[i + 1]):
                if refs[k] >= 0:
                    height[refs[k]] = max(height[refs[k]], height[i] + 1)
    for i in range(1, n):
        if sigs[i] < 0:
            height[i] = height[i - 1]
    return height
