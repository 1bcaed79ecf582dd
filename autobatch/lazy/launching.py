"""Runs the launches of a recorded segment in the order of its schedule, under the error state of the recorded calls.

For each group of calls, operands are gathered, the op's batching rule is applied, and the rows of its result are kept
as one buffer. The schedule fixes the (buffer, row) of every operand and result, so these are computed for all launches
at once; only external values that are no rows yet are collected into a buffer when a launch first needs them.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import off_tape
from autobatch.blocks.batched_program import run_op
from autobatch.blocks.launch import launch
from autobatch.core.abstract_eval import WEAK, Aval, Weak, unknown_lengths
from autobatch.core.batched import Batched, Lengths, Packed, Size, limited_padding
from autobatch.core.current_region import check_time
from autobatch.core.diagnostics import at_users_line, user_errors
from autobatch.core.memory import library_code
from autobatch.errors import COPY_FIRST, NeedsLoop, Unsupported
from autobatch.kernels.rows import (
    CONSECUTIVE,
    MISSING,
    SAME,
    locate,
    locate_operands,
    place_results,
)
from autobatch.lazy.grouping.addition_chains import Forest, Graph, forest_p
from autobatch.lazy.grouping.any_length import SizesByLength
from autobatch.lazy.grouping.buffers import (
    Buffers,
    RaggedRows,
    classify_rows,
    gather_rows,
    ragged_rows,
    row_p,
    shaped,
    sized_rows,
)
from autobatch.lazy.grouping.launch_order import Schedule
from autobatch.lazy.grouping.plans import Plans
from autobatch.lazy.grouping.ragged import Group, Sizes, refuse, run_ragged, run_steps
from autobatch.lazy.grouping.signatures import BlockCall, Signature
from autobatch.ops.numpy.joining import stack_p

_NUMBERS = frozenset((int, np.int64, np.int32))
_NONE = np.zeros(0, np.int64)


@dataclasses.dataclass(slots=True)
class Stats:
    """Counts of one trace.

    Attributes:
        launches: batched calls made; bound: lower bound on launches of any schedule, 0 where not computed.
        calls: ops recorded; each is one call of the plain loop.
        rounds: how often a whole segment (or, on demand, a part of it) was launched.
        reads: how often an example read an array's value, or a result of shared operands only.
        looped: why the examples ran as a loop in the end; None if they did not.
        recorded: examples recorded by a generated recorder instead of running their Python.
        by_signature: {(op, signature): [calls, launches, seconds]}.
        forced: {(file, line): times}: lines that needed a value at once.
        fallbacks: {reason: times}: calls that ran one by one, or as a loop.
        group_sizes: number of calls in each launch, in order.
    """

    launches: int = 0
    bound: int = 0
    calls: int = 0
    rounds: int = 0
    looped: str | None = None
    reads: int = 0
    recorded: int = 0
    by_signature: dict[tuple[str, str], list[Any]] = dataclasses.field(default_factory=dict)
    forced: Counter[tuple[str, int]] = dataclasses.field(default_factory=Counter)
    fallbacks: Counter[str] = dataclasses.field(default_factory=Counter)
    group_sizes: list[int] = dataclasses.field(default_factory=list)

    def launched(self, name: str, signature: str, calls: int, seconds: float) -> None:
        self.launches += 1
        self.calls += calls
        self.group_sizes.append(calls)
        row = self.by_signature.setdefault((name, signature), [0, 0, 0.0])
        row[:] = row[0] + calls, row[1] + 1, row[2] + seconds

    def __repr__(self) -> str:
        return f"Stats({self.calls} calls in {self.launches} launches, {self.rounds} rounds)"


@dataclasses.dataclass(slots=True, eq=False)
class LargeConstant:
    """A constant operand of a segment that is known by identity, since it is too large to compare by content.

    Attributes:
        held: the array, or a handle of another interpreter's value at the time of the call.
        example: the first example that used it; common: True if several did.
        content: a copy of `held` if the user may write into it before the launch, else None.
    """

    held: Any
    example: int
    aval: Aval
    content: np.ndarray | None
    common: bool = False

    def is_unchanged(self) -> bool:
        if self.content is None:
            return True
        return np.array_equal(self.held, self.content, equal_nan=self.held.dtype.kind in "fc")


@dataclasses.dataclass(slots=True, eq=False)
class GraphSegment:
    """Recorded calls that are launched together; or in rounds, each of which launches what is needed by then.

    Nodes keep their numbers through all rounds. A node that waits joins calls that other examples record later.

    Attributes:
        sigs: signature number of each node, -1 for a further output of the node before.
        refs: operand references of the nodes recorded since the last launch, concatenated.
        sources: external values; rows: {index in sources: row}, for values that are one row of their source.
        large: {reference: large constant}.
        keep: objects kept alive because their id is in use; entered: handles of externals, detached after the launch.
        waiting: signatures, numbers and operand references of the nodes that launches so far have left.
        buffers: the values; buffer_of, row_of: where that of each node is that a launch has met; -1: it waits.
        error: what a launch raised.
    """

    sigs: list[int] = dataclasses.field(default_factory=list)
    refs: list[int] = dataclasses.field(default_factory=list)
    sources: list[Any] = dataclasses.field(default_factory=list)
    rows: dict[int, int] = dataclasses.field(default_factory=dict)
    large: dict[int, LargeConstant] = dataclasses.field(default_factory=dict)
    keep: list[Any] = dataclasses.field(default_factory=list)
    entered: list[Any] = dataclasses.field(default_factory=list)
    waiting: Sequence[np.ndarray] = (_NONE, _NONE, _NONE)
    buffers: Buffers = dataclasses.field(default_factory=Buffers)
    buffer_of: np.ndarray = dataclasses.field(default_factory=lambda: _NONE)
    row_of: np.ndarray = dataclasses.field(default_factory=lambda: _NONE)
    error: BaseException | None = None

    @property
    def is_pending(self) -> bool:
        """True if any node is not launched."""
        return len(self.sigs) > len(self.buffer_of) or len(self.waiting[0]) > 0

    def external(self, source: Any) -> int:
        """Add an external value; returns its reference (~i for `sources[i]`)."""
        self.sources.append(source)
        return -len(self.sources)

    def is_there(self, ref: int) -> bool:
        """True if a node has been launched."""
        return self.error is not None or (ref < len(self.buffer_of) and self.buffer_of.item(ref) >= 0)

    def there(self, ref: int) -> Any:
        """A node's value as Python numbers (`tolist`), if it is computed and carries no gradient; else None."""
        if not self.is_there(ref):
            return None
        buffer = self.buffers.arrays[self.buffer_of.item(ref)]
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
            buffer = self.buffers.arrays[number]
            plain = off_tape(buffer)
            if type(plain) is not np.ndarray:
                continue
            is_free = plain is buffer or plain.dtype.kind not in "fc"
            places = np.flatnonzero(which == number)
            for place, each in zip(places.tolist(), plain[rows[places]].tolist(), strict=True):
                if is_free or not exact[place]:
                    found[place] = each
        return found

    def drop(self, live: set[int]) -> None:
        """Free all values except those of these nodes."""
        nodes = np.array(sorted(live), np.int64)
        nodes = nodes[self.buffer_of[nodes] >= 0]
        which = self.buffer_of[nodes]
        for number, buffer in enumerate(self.buffers.arrays):
            own = nodes[which == number]
            if not len(own):
                self.buffers.arrays[number] = None
            elif type(buffer) is np.ndarray:
                self.buffers.put(number, buffer[self.row_of[own]])
                self.row_of[own] = np.arange(len(own))
        self.buffers.nbytes = sum([getattr(each, "nbytes", 0) for each in self.buffers.arrays])

    def leave(self) -> None:
        """Detach the handles of external values, so that a later segment can enter them."""
        for handle in self.entered:
            if handle.segment is self and handle.source is not None:  # else it was written to, and is a node now
                handle.segment = None
        self.entered = []

    def resolve(self, handle: Any) -> None:
        """Bind a handle of a launched node to its buffer and row."""
        if self.error is not None:
            raise self.error
        ref = handle.ref
        handle.source = self.buffers.arrays[self.buffer_of.item(ref)]
        handle.row = self.row_of.item(ref)

    def close(self) -> None:
        """Drop what was recorded, after the last launch; values stay."""
        self.leave()
        self.sigs, self.refs = [], []
        self.sources, self.rows, self.keep = [], {}, []
        self.large = {}


def launch_segment(
    segment: GraphSegment, table: list[Signature], stats: Stats, plans: Plans, wanted: Sequence[int] = ()
) -> None:
    """Run what is recorded in `segment`. An error is also kept, and raised again when a value of it is needed.

    Args:
        table: the trace's signatures; stats: updated; plans: the plans of the same trace.
        wanted: nodes; if there are any, only these and what they depend on run now.
    """
    try:
        _launch(segment, table, stats, plans, wanted)
    except BaseException as error:
        segment.error = error
        raise
    stats.rounds += 1


@library_code
def _launch(segment: GraphSegment, table: list[Signature], stats: Stats, plans: Plans, wanted: Sequence[int]) -> None:
    if not all(constant.is_unchanged() for constant in segment.large.values()):
        raise NeedsLoop("an array was written to after it was used in a recorded operation", instead=COPY_FIRST)
    graph, plan, groups = plans.of(segment, table, wanted)
    stats.bound += plan.bound
    numbers = graph.sigs[plan.order[plan.starts[:-1]]].tolist()
    each = [table[index] if index < graph.signatures else graph.forests[index - graph.signatures] for index in numbers]
    launches = Launches(segment, graph, plan, each, groups)
    errors = user_errors()
    clock = time.perf_counter
    before = clock()
    with limited_padding():
        for k, sig in enumerate(each):
            check_time()
            if sig.errors == errors:
                count = at_users_line(launches.run, k, sig, stats)
            else:
                with np.errstate(**sig.errors):
                    count = at_users_line(launches.run, k, sig, stats)
            now = clock()
            group = groups[k] if groups else None
            stats.launched(sig.op.name, sig.text if group is None else group.text, count, now - before)
            before = now


class Launches:
    """Executes the launches of one segment in order.

    The arrays `_buffer_of` and `_row_of` are indexed by reference ("place"): the nodes first, then the external values
    in reverse, so that the negative reference ~i indexes from the end.

    Args:
        segment: the recorded segment; graph: its calls; plan: their schedule.
        sigs: the signature of each launch.
        groups: for each launch a `Group` if it mixes several signatures, else None; empty if no launch does.
    """

    __slots__ = (
        "_at", "_buffer_of", "_first", "_groups", "_heads", "_how", "_known", "_number", "_offsets", "_order", "_refs",
        "_row_of", "_rows", "_starts", "_which", "buffers", "sources",
    )  # fmt: skip

    def __init__(
        self,
        segment: GraphSegment,
        graph: Graph,
        plan: Schedule,
        sigs: Sequence[Any],
        groups: "Sequence[Group | None]" = (),
    ) -> None:
        self._groups = groups
        self._known: dict[bytes, Lengths] = {}
        self.sources = [*segment.sources, *graph.extras] if graph.extras else segment.sources
        self._refs = refs = graph.refs
        self._offsets = graph.offsets
        self._order = plan.order
        self._starts = plan.starts.tolist()
        nodes = len(segment.buffer_of)
        self._buffer_of = np.full(graph.count + len(self.sources), -1, np.int64)
        self._row_of = np.zeros(len(self._buffer_of), np.int64)
        self._buffer_of[:nodes], self._row_of[:nodes] = segment.buffer_of, segment.row_of
        self.buffers = segment.buffers
        self._hold(segment.rows)
        outputs = np.array([1 if sig.block is None else len(sig.block.outs) for sig in sigs], np.int64)
        self._number = self.buffers.reserve(int(outputs.sum()))  # number of the next buffer
        self._which, self._rows = np.empty(len(refs), np.int64), np.empty(len(refs), np.int64)
        how, heads = np.empty((2, sum([len(sig.avals) for sig in sigs])), np.int64)
        where = self._buffer_of, self._row_of
        place_results(plan.order, plan.starts, graph.places, outputs, self._number, *where)
        for number, sig in zip(self._number + np.cumsum(outputs) - outputs, sigs, strict=True):
            if type(sig) is Forest:
                self._buffer_of[sig.places] = number
                self._row_of[sig.places] = np.arange(len(sig.places))
        for each in where:
            each[graph.same[0]] = each[graph.same[1]]
        locate_operands(plan.order, plan.starts, graph.offsets, refs, *where, self._which, self._rows, how, heads)
        self._how, self._heads = how.tolist(), heads.tolist()
        self._first = self._at = 0  # where the next launch begins, in `_how` and in `_which`
        segment.buffer_of, segment.row_of = self._buffer_of[:nodes], self._row_of[:nodes]

    def _hold(self, rows: dict[int, int]) -> None:
        """Set the places of externals that are rows of earlier segments' buffers."""
        numbers: dict[int, int] = {}
        for i, row in rows.items():
            source = self.sources[i]
            number = numbers.get(id(source))
            if number is None:
                number = numbers[id(source)] = self.buffers.append(source)
            self._buffer_of[~i] = number
            self._row_of[~i] = row

    def run(self, k: int, sig: Any, stats: Stats) -> int:
        """Execute launch number k, of calls of this signature; returns the number of calls."""
        calls = self._order[self._starts[k] : self._starts[k + 1]]
        group = self._groups[k] if self._groups else None
        if type(sig) is Forest:
            outs = [self._forest(sig)]
        elif group is not None:
            outs = [self._join(group, calls)] if group.is_join else self._ragged(group, calls, stats)
        elif sig.any_length is not None:
            outs = self._any_length(sig, calls, stats)
        elif sig.block is not None:
            outs = self._block(sig.block, sig.avals, calls, stats)
        else:
            outs = [self._op(sig, calls, stats)]
        for out in outs:
            self.buffers.put(self._number, out)
            self._number += 1
        self._first += len(sig.avals)
        if group is not None and group.is_join:
            self._at += int(np.diff(self._offsets)[calls].sum())
        else:
            self._at += len(sig.avals) * len(calls)
        return len(calls) if type(sig) is not Forest else len(sig.places)

    def _op(self, sig: Signature, calls: np.ndarray, stats: Stats) -> Any:
        op = sig.op
        operands = [
            self._operand(token, calls, position, position in op.ragged) for position, token in enumerate(sig.avals)
        ]
        if not any(isinstance(x, Batched | Packed) for x in operands):
            return _repeated(op(*operands, **sig.params), len(calls), sig.out)
        return run_op(op, operands, sig.params, sig.out, stats.fallbacks).data

    def _block(self, call: BlockCall, avals: Sequence[Any], calls: np.ndarray, stats: Stats) -> list[Any]:
        """Launch a group of calls of one block."""
        operands = list(call.shared)
        for position, (slot, token) in enumerate(zip(call.own, avals, strict=True)):
            operands[slot] = self._operand(token, calls, position, batched=True)
        outs = launch(call.program, operands, stats.fallbacks)
        if Batched in map(type, operands):
            return outs
        return [_repeated(out, len(calls), aval) for out, aval in zip(outs, call.outs, strict=True)]

    def _forest(self, forest: Forest) -> Any:
        """Launch chains of additions."""
        span = slice(self._at, self._at + forest.terms)
        which, rows = self._which[span], self._rows[span]
        if (which < 0).any():
            which, rows = self._locate(np.array(self._heads[self._first : self._first + forest.terms]), forest.aval)
        terms = gather_rows(self.buffers, which, rows, classify_rows(which, rows), forest.aval.shape)
        return forest_p(terms, op=forest.op, left=forest.left, right=forest.right, minus=forest.minus)

    def _locate(self, refs: np.ndarray, aval: Aval | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(buffer, row) arrays for these references; external values in no buffer are first collected into one.

        Args:
            aval: the kind of array that Python numbers among them become.
        """
        outside = np.unique(refs[self._buffer_of[refs] < 0])[::-1]
        if len(outside):
            self._pool_sized(outside, aval)
        return self._buffer_of[refs], self._row_of[refs]

    def _join(self, group: Group, calls: np.ndarray) -> Any:
        """Launch a group of stack or concatenate calls (`group.is_join`): one gather of all their rows."""
        sigs, numbers = group.sigs, group.inverse.tolist()
        counts = np.diff(self._offsets)[calls]
        first = self._offsets[calls]
        refs = self._refs[np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())]
        which, rows = self._locate(refs)
        how = classify_rows(which, rows)
        sizes = Sizes(group.inverse, self._known)([sig.out for sig in sigs])
        if sigs[0].op is stack_p:
            flat = gather_rows(self.buffers, which, rows, how, sigs[0].avals[0].shape)
        else:
            lengths = np.array([aval.shape[0] for number in numbers for aval in sigs[number].avals], np.int64)
            piece: Size = int(lengths[0]) if (lengths == lengths[0]).all() else Lengths(lengths)
            found = sized_rows(self.buffers, which, rows, how, (piece, *sizes[1:]))
            flat = found.values if isinstance(piece, Lengths) else found.reshape((-1, *found.shape[2:]))
        data = shaped(flat, sizes, len(calls))
        return RaggedRows(data, sizes) if isinstance(sizes[0], Lengths) else data

    def _ragged(self, group: Group, calls: np.ndarray, stats: Stats) -> list[Any]:
        """Launch calls that differ in sizes; call by call if some op has no rule for that."""
        sizes_of = Sizes(group.inverse, self._known)
        operands = [
            self._sized(tokens, calls, position, sizes_of)
            for position, tokens in enumerate(zip(*[sig.avals for sig in group.sigs], strict=True))
        ]
        first = group.sigs[0]
        try:
            if first.block is None:
                params, avals = [sig.params for sig in group.sigs], [sig.out for sig in group.sigs]
                outs = [run_ragged(first.op, operands, params, avals, sizes_of)]
            else:
                given = iter(operands)
                inputs = [next(given) if value is None else value for value in first.block.shared]
                programs = [sig.block.program for sig in group.sigs]
                outs = run_steps(programs, inputs, sizes_of, stats.fallbacks)
        except Unsupported:
            refuse(first.family)
            return self._one_by_one(group, calls, sizes_of)
        kinds = [first.out] if first.block is None else first.block.outs
        return _as_buffers(outs, len(calls), kinds)

    def _any_length(self, sig: Any, calls: np.ndarray, stats: Stats) -> list[Any]:
        """Launch calls of an any-length signature; their lengths are read from their operands."""
        sizes_of = SizesByLength(self._known)
        operands: list[Any] = []
        for position, aval in enumerate(sig.avals):
            if not unknown_lengths(aval.shape):
                operands.append(self._operand(aval, calls, position))
                continue
            which, rows, how = self._places(calls, position)
            sizes_of.add_operand(aval, self._sizes_of(which, rows), len(calls))
            sizes = sizes_of([aval])
            operands.append(Batched(sized_rows(self.buffers, which, rows, how, sizes), sizes))
        shared = () if sig.block is None else sig.block.shared
        try:
            outs = sig.any_length.run(operands, sizes_of, shared, stats.fallbacks)
        except Unsupported:
            refuse(sig.family)
            raise NeedsLoop("calls of different lengths that cannot run as one") from None
        return _as_buffers(outs, len(calls), [sig.out] if sig.block is None else sig.block.outs)

    def _sizes_of(self, which: np.ndarray, rows: np.ndarray) -> list[Size]:
        """The sizes of these rows of buffers, one `Lengths` for each dimension."""
        found: list[np.ndarray] = []
        for number in np.flatnonzero(np.bincount(which)).tolist():
            buffer = self.buffers.arrays[number]
            sizes = buffer.sizes if type(buffer) is RaggedRows else buffer.shape[1:]
            found = found or [np.empty(len(rows), np.int64) for _ in sizes]
            mine = which == number
            for values, size in zip(found, sizes, strict=True):
                values[mine] = size.values[rows[mine]] if isinstance(size, Lengths) else size
        return [self._known.setdefault(values.tobytes(), Lengths(values)) for values in found]

    def _one_by_one(self, group: Group, calls: np.ndarray, sizes_of: Sizes) -> list[Any]:
        """Run calls that differ in sizes without a rule for it one by one; returns their results as buffers."""
        found = []
        for call, number in zip(calls.tolist(), group.inverse.tolist(), strict=True):
            sig = group.sigs[number]
            first = self._offsets.item(call)
            values = [self._value(ref) for ref in self._refs[first : first + len(sig.avals)].tolist()]
            if sig.block is None:
                found.append([sig.op(*values, **sig.params)])
            else:
                given = iter(values)
                found.append(launch(sig.block.program, [next(given) if x is None else x for x in sig.block.shared]))
        outs = []
        for at, column in enumerate(zip(*found, strict=True)):
            sizes = sizes_of([sig.out if sig.block is None else sig.block.outs[at] for sig in group.sigs])
            outs.append(ragged_rows(column, sizes) if Lengths in map(type, sizes) else np.stack(column))
        return outs

    def _sized(self, tokens: Sequence[Any], calls: np.ndarray, position: int, sizes_of: Sizes) -> Any:
        """One operand of a group; its sizes may differ by call."""
        if all(token is tokens[0] for token in tokens):
            return self._operand(tokens[0], calls, position)
        which, rows, how = self._places(calls, position)
        sizes = sizes_of(tokens)
        return Batched(sized_rows(self.buffers, which, rows, how, sizes), sizes)

    def _places(self, calls: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Locate one operand of each call, of any sizes: (buffers, rows, how); `how` as in `kernels.rows.locate`."""
        n = len(calls)
        begin = self._at + position * n
        which, rows = self._which[begin : begin + n], self._rows[begin : begin + n]
        how = self._how[self._first + position]
        found = self._refs, self._offsets, calls, position, self._buffer_of, self._row_of, which, rows
        if how == MISSING:  # an earlier launch may have put them into a buffer by now
            how = locate(*found)
        if (which < 0).any():
            refs = self._refs[self._offsets[calls] + position]
            self._pool_sized(np.unique(refs[self._buffer_of[refs] < 0])[::-1])
            how = locate(*found)
        return which, rows, how

    def _pool_sized(self, places: np.ndarray, aval: Aval | None = None) -> None:
        """Collect external values that differ in sizes into one buffer; Python numbers become arrays of kind `aval`."""
        values = [self.sources[~place] for place in places.tolist()]
        if aval is not None:
            values = [np.full(aval.shape, x, aval.dtype) if type(x) in WEAK else x for x in values]
        kinds = {value.shape: number for number, value in enumerate(values)}
        number = {shape: at for at, shape in enumerate(kinds)}
        inverse = np.array([number[value.shape] for value in values])
        sizes = Sizes(inverse, self._known)([values[at] for at in kinds.values()])
        pool = ragged_rows(values, sizes) if Lengths in map(type, sizes) else np.stack(values)
        self._buffer_of[places] = self.buffers.append(pool)
        self._row_of[places] = np.arange(len(values))

    def _operand(
        self, token: Any, calls: np.ndarray, position: int, ragged: bool = False, batched: bool = False
    ) -> Any:
        """One operand of a group: a shared value, `Batched` rows, or `Packed` values of any length.

        Args:
            batched: give rows even for a single call, so that it runs like a group of any size.
        """
        head = self._heads[self._first + position]
        sources = self.sources
        is_weak = type(token) is Weak
        if not is_weak and token.shared:
            return sources[~head]
        n = len(calls)
        how = self._how[self._first + position]
        if is_weak or ragged or (how <= SAME and head < 0 and not token.ndim):
            refs = self._refs[self._offsets[calls] + position].tolist()
            if is_weak:
                return weak_numbers([sources[~ref] for ref in refs], token.kind)
            if ragged:
                return packed_values([self._value(ref) for ref in refs])
            if max(refs) < 0:
                values = [sources[~ref] for ref in refs]
                if _NUMBERS.issuperset(map(type, values)):  # such as ids: not worth a buffer
                    return Batched(np.array(values, token.dtype), ())
        begin = self._at + position * n
        which, rows = self._which[begin : begin + n], self._rows[begin : begin + n]
        if how == SAME:
            number = which.item(0)
            if n > 1 or not batched:
                if n > 1 or head < 0 or not hasattr(self.buffers.arrays[number], "_ab_rank"):
                    return self._value(head)
            elif number < 0:
                value = sources[~head]
                return Batched(value[None], token.shape) if type(value) is np.ndarray else value
            how = CONSECUTIVE
        if how == MISSING:
            found = self._refs, self._offsets, calls, position, self._buffer_of, self._row_of, which, rows
            how = locate(*found)
            if how == MISSING:
                refs = self._refs[self._offsets[calls] + position]
                self._pool(np.unique(refs[self._buffer_of[refs] < 0]), token)
                how = locate(*found)
        return Batched(gather_rows(self.buffers, which, rows, how, token.shape), token.shape)

    def _value(self, ref: int) -> Any:
        """The value of one reference, as the op's own implementation takes it."""
        number = self._buffer_of.item(ref)
        return self.sources[~ref] if number < 0 else row_p(self.buffers.arrays[number], row=self._row_of.item(ref))

    def _pool(self, places: np.ndarray, aval: Aval) -> None:
        """Collect external values of one shape and dtype into one buffer."""
        values = [self.sources[~place] for place in places.tolist()]
        if set(map(type, values)) != {np.ndarray} and any(hasattr(value, "_ab_rank") for value in values):
            pool = np.stack(values)
        elif aval.ndim:
            pool = np.concatenate(values).reshape((len(values), *aval.shape))
        else:
            pool = np.array(values, aval.dtype)
        self._buffer_of[places] = self.buffers.append(pool)
        self._row_of[places] = np.arange(len(values))


def _as_buffers(outs: Sequence[Any], n: int, avals: Sequence[Aval]) -> list[Any]:
    """The results of n calls as buffers; `RaggedRows` where their sizes differ."""
    return [
        (RaggedRows(out.data, out.sizes) if out.is_ragged else out.data)
        if type(out) is Batched
        else _repeated(out, n, aval)
        for out, aval in zip(outs, avals, strict=True)
    ]


def _repeated(out: Any, n: int, aval: Aval) -> Any:
    """One value as the rows of n calls that all give it."""
    rows = out.reshape((1, *aval.shape)) if hasattr(out, "_ab_rank") else np.asarray(out)[None]
    return rows if n == 1 else np.broadcast_to(rows, (n, *aval.shape))


def packed_values(values: Sequence[Any]) -> Packed:
    """Concatenate values of any lengths."""
    return Packed(np.concatenate(values), np.cumsum([0, *(len(value) for value in values)]))


def weak_numbers(values: Sequence[Any], cls: type) -> Any:
    """Python numbers as an operand: the number itself if all are equal (including the sign of zero), else `Batched`."""
    first = values[0]
    if values.count(first) == len(values) and (first != 0 or cls in (int, bool) or len(set(map(str, values))) == 1):
        return first
    return Batched(np.array(values), (), cls)
