"""Launching what was recorded: what goes together, in which order, under which handling of floating-point errors.

For each group of calls the operands are gathered, the op's batching rule is applied, and the rows of its result are
kept as one buffer. Where every operand and every result of a segment lies is known from its schedule, and found for all
launches at once; only whole values from outside that belong together are put into a buffer when they are first needed.
"""

import dataclasses
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.blocks.launch import launch, launch_rows
from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import Aval, Weak
from autobatch.core.batched import Batched, Packed
from autobatch.core.config import config
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.memory import library_code
from autobatch.core.op import Op
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.kernels.rows import (
    CONSECUTIVE,
    MISSING,
    ONE_BUFFER,
    SAME,
    add_picked,
    gather_buffers,
    locate,
    place_launches,
)
from autobatch.lazy.schedule import Schedule, refine, schedule
from autobatch.ops.rules.index_rule import shown
from autobatch.ops.rules.row_gather import Scatter

__all__ = [
    "BlockCall",
    "Buffers",
    "GraphSegment",
    "Launches",
    "Picked",
    "Signature",
    "Stats",
    "gather_p",
    "gather_rows",
    "launch_segment",
    "row_p",
]


_LARGE = 8192  # bytes
_NUMBERS = frozenset((int, np.int64, np.int32))
_ADDED = (np.float32, np.float64)


@dataclasses.dataclass(slots=True)
class Stats:
    """Counts of one trace.

    Attributes:
        launches: batched calls made; bound: the fewest that any schedule takes, 0 for one that was not compared.
        calls: ops recorded (one call of the plain loop each).
        rounds: times that everything recorded was launched together.
        reads: how often an example saw the value of an array, or what was computed from shared ones.
        looped: why the examples ran in a loop after all; None where they did not.
        replayed: examples whose Python did not run, since what an equal one recorded was kept; recorded: since a
            generated recorder did.
        by_signature: {(op, signature): [calls, launches, seconds]}.
        forced: {(file, line): times} a value was needed at once.
        fallbacks: {reason: times} what ran call by call, or as a loop.
        group_sizes: how many calls each launch covered, in order.
    """

    launches: int = 0
    bound: int = 0
    calls: int = 0
    rounds: int = 0
    looped: str | None = None
    reads: int = 0
    replayed: int = 0
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
        row[0] += calls
        row[1] += 1
        row[2] += seconds

    def __repr__(self) -> str:
        return f"Stats({self.calls} calls in {self.launches} launches, {self.rounds} rounds)"


class BlockCall:
    """What a signature says beside its op where it is a block's.

    Attributes:
        program: what runs; outs: the `Aval` of each output.
        shared: for each input of the program the value that all examples share; None for one of each example's own.
        own: the positions of the latter.
        tail: what a call adds to `GraphSegment.sigs`: the signature's number, and -1 for each further output.
        views: (output, output that it is a view of, how), for `array.link_views`.
    """

    __slots__ = ("outs", "own", "program", "shared", "tail", "views")

    def __init__(self, program: Program, shared: Sequence[Any], index: int) -> None:
        self.program = program
        self.outs = program.results
        self.shared = tuple(shared)
        self.own = tuple([slot for slot, value in enumerate(self.shared) if value is None])
        self.views = tuple([(at, base, (None, *how)) for at, (base, *how) in program.views.items()])
        self.tail = (index, *[-1] * (len(self.outs) - 1))


@dataclasses.dataclass(slots=True, eq=False)
class Signature:
    """What two calls must share to run together, and what is known of the result.

    Attributes:
        avals: for each operand its `Aval`, or `Weak` for a Python number; out: that of the result.
        index: its number in the trace.
        where: the user's line that first recorded it.
        errors: NumPy's handling of floating-point errors there (`np.errstate`), which its launches follow.
        base: the signature under the handling that is in force around the whole run; None if it is this one.
        block: what there is more to say of a block.
        shared: no operand belongs to one example, so one call serves all.
        nbytes: what a call takes of the memory budget; text: what reports show.
    """

    op: Op
    params: dict[str, Any]
    avals: Sequence[Any]
    out: Aval
    index: int
    where: tuple[str, int]
    errors: Any
    base: "Signature | None" = None
    block: BlockCall | None = None
    shared: bool = dataclasses.field(init=False)
    nbytes: int = dataclasses.field(init=False)
    text: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        avals = self.avals = tuple(self.avals)
        self.nbytes = self.out.nbytes
        self.shared = all(aval.shared for aval in avals)
        if self.op.kind == "index" and self.nbytes < _LARGE and any(type(aval) is Weak for aval in avals):
            self.shared = False  # which row is read depends on the example; a large one is rather an operand of its own
        attributes = [
            shown(value) if name == "spec" and type(value) is tuple else f"{name}={value!r}"  # an index; einsum's text
            for name, value in self.params.items()
        ]
        self.text = ", ".join([*map(repr, avals), *attributes])


class LargeConstant:
    """An operand of a segment that is too large to be known by its content.

    Attributes:
        held: the array, or the value of another interpreter as it was.
        example: the example that met it first; common: several did.
        content: a copy of an array that may be written into before the launch, else None.
    """

    __slots__ = ("aval", "common", "content", "example", "held")

    def __init__(self, held: Any, example: int, aval: Aval, content: np.ndarray | None) -> None:
        self.held = held
        self.example = example
        self.common = False
        self.aval = aval
        self.content = content

    def is_as_it_was(self) -> bool:
        if self.content is None:
            return True
        return np.array_equal(self.held, self.content, equal_nan=self.held.dtype.kind in "fc")


@dataclasses.dataclass(slots=True, eq=False)
class GraphSegment:
    """The part of a graph that is launched together.

    Attributes:
        sigs: the signature number of each node, -1 for a further output of the node before; refs: the operands of
            each node, one after the other. Lists, which are quicker to append to, or where all is known arrays.
        sources, rows: the external values; row -1 is the whole value.
        large: large constants, by their references.
        keep: objects whose id is in use; entered: handles of values from outside, which let go of the segment after it.
        done: it was launched; `buffers`, `buffer_of` and `row_of` then say where each node's value is.
    """

    sigs: Any = dataclasses.field(default_factory=list)
    refs: Any = dataclasses.field(default_factory=list)
    sources: list[Any] = dataclasses.field(default_factory=list)
    rows: list[int] = dataclasses.field(default_factory=list)
    large: dict[int, LargeConstant] = dataclasses.field(default_factory=dict)
    keep: list[Any] = dataclasses.field(default_factory=list)
    entered: list[Any] = dataclasses.field(default_factory=list)
    done: bool = False
    error: BaseException | None = None
    buffers: list[Any] = dataclasses.field(default_factory=list)
    buffer_of: Any = None
    row_of: Any = None

    def external(self, source: Any, row: int) -> int:
        """The reference of a value from outside."""
        self.sources.append(source)
        self.rows.append(row)
        return -len(self.rows)

    def resolve(self, handle: Any) -> None:
        """Let a handle of a launched node hold its own buffer, and no longer the segment."""
        if self.error is not None:
            raise self.error
        ref = handle.ref
        handle.source = self.buffers[self.buffer_of.item(ref)]
        handle.row = self.row_of.item(ref)
        handle.segment = None


def launch_segment(segment: GraphSegment, table: Sequence[Signature], stats: Stats) -> None:
    """Run everything recorded in `segment`. An error is kept: values of this segment raise it when they are needed."""
    try:
        _launch(segment, table, stats)
        segment.done = True
    except BaseException as error:
        segment.error = error
        segment.done = True
        raise
    finally:
        for handle in segment.entered:
            if handle.segment is segment and handle.source is not None:  # else it was written to, and is a node now
                handle.segment = None
        segment.entered = []
        segment.sigs, segment.refs = [], []
        segment.sources, segment.rows, segment.keep = [], [], []
        segment.large = {}
    stats.rounds += 1


@library_code
def _launch(segment: GraphSegment, table: Sequence[Signature], stats: Stats) -> None:
    if not all(constant.is_as_it_was() for constant in segment.large.values()):
        raise NeedsLoop("an array was written to after it was used in a recorded operation")
    sigs = _integers(segment.sigs)
    refs = operands = _integers(segment.refs)
    places = np.flatnonzero(sigs >= 0)
    if len(places) < len(sigs):  # outputs beside nodes
        node = np.cumsum(sigs >= 0) - 1
        sigs = sigs[places]
        operands = np.where(refs >= 0, node[np.maximum(refs, 0)], refs)
    arity = np.array([len(sig.avals) for sig in table], np.int64)
    offsets = np.zeros(len(sigs) + 1, np.int64)
    np.cumsum(arity[sigs], out=offsets[1:])
    kinds, kind_of = sigs, None
    shared = [ref for ref, constant in segment.large.items() if constant.common]
    if shared:
        marks = np.zeros(len(segment.rows), np.int64)
        marks[np.array(shared) * -1 - 1] = np.arange(1, len(shared) + 1)
        kinds, kind_of = refine(sigs, offsets, operands, marks)
    plan = schedule(kinds, offsets, operands, len(table) if kind_of is None else len(kind_of), config.scheduler)
    stats.bound += plan.bound
    each = [table[index] for index in sigs[plan.order[plan.starts[:-1]]].tolist()]
    launches = Launches(segment, plan, each, offsets, refs, places)
    errors = np.geterr()
    clock = time.perf_counter
    before = clock()
    for k, sig in enumerate(each):
        if sig.errors == errors:
            count = launches.run(k, sig, stats)
        else:
            with np.errstate(**sig.errors):
                count = launches.run(k, sig, stats)
        now = clock()
        stats.launched(sig.op.name, sig.text, count, now - before)
        before = now


def _integers(values: Any) -> np.ndarray:
    """A list as an array: by way of `array`, which is three times as fast as NumPy."""
    if type(values) is np.ndarray:
        return values
    return np.frombuffer(array("q", values), np.int64) if values else np.zeros(0, np.int64)


class Launches:
    """The state of the launches of a segment, which are made in order.

    A place is where a value of the segment is noted: the nodes, then the values from outside in reverse, so that a
    reference is the index of its place.

    Args:
        segment: what was recorded; plan: its schedule.
        sigs: for each launch its signature.
        offsets: (N + 1,) int64, where the references of each call begin in `refs`, (R,) int64.
        places: (N,) int64, the node that is the first output of each call.
    """

    __slots__ = (
        "_at", "_buffer_of", "_first", "_heads", "_how", "_number", "_offsets", "_order", "_refs",
        "_row_of", "_rows", "_starts", "_which", "buffers", "sources",
    )  # fmt: skip

    def __init__(
        self,
        segment: Any,
        plan: Schedule,
        sigs: Sequence[Any],
        offsets: np.ndarray,
        refs: np.ndarray,
        places: np.ndarray,
    ) -> None:
        self.sources = segment.sources
        self._refs = refs
        self._offsets = offsets
        self._order = plan.order
        self._starts = plan.starts.tolist()
        self._buffer_of = np.full(len(segment.sigs) + len(segment.rows), -1, np.int64)
        self._row_of = np.zeros(len(self._buffer_of), np.int64)
        held = self._hold(segment.rows)
        outputs = np.array([1 if sig.block is None else len(sig.block.outs) for sig in sigs], np.int64)
        self._number = len(held)  # of the next buffer
        self.buffers = Buffers(segment.buffers, len(held) + int(outputs.sum()))
        for number, source in enumerate(held):
            self.buffers.put(number, source)
        self._which, self._rows = np.empty(len(refs), np.int64), np.empty(len(refs), np.int64)
        how, heads = np.empty((2, sum([len(sig.avals) for sig in sigs])), np.int64)
        where = self._buffer_of, self._row_of, self._which, self._rows
        place_launches(plan.order, plan.starts, offsets, refs, places, outputs, self._number, *where, how, heads)
        self._how, self._heads = how.tolist(), heads.tolist()
        self._first = self._at = 0  # of the next launch, in `_how` and in `_which`
        segment.buffer_of, segment.row_of = self._buffer_of, self._row_of

    def _hold(self, rows: list[int]) -> list[Any]:
        """Note the places of rows of buffers of earlier segments; these buffers."""
        numbers: dict[int, int] = {}
        held: list[Any] = []
        for i, row in enumerate(rows):
            if row >= 0:
                source = self.sources[i]
                number = numbers.setdefault(id(source), len(held))
                if number == len(held):
                    held.append(source)
                self._buffer_of[~i] = number
                self._row_of[~i] = row
        return held

    def run(self, k: int, sig: Any, stats: Stats) -> int:
        """Make launch number k, of calls of this signature; how many they are."""
        calls = self._order[self._starts[k] : self._starts[k + 1]]
        if sig.block is not None:
            outs = self._block(sig.block, sig.avals, calls, stats)
        else:
            outs = [self._op(sig, calls, stats)]
        for out in outs:
            self.buffers.put(self._number, out)
            self._number += 1
        self._first += len(sig.avals)
        self._at += len(sig.avals) * len(calls)
        return len(calls)

    def _op(self, sig: Any, calls: np.ndarray, stats: Stats) -> Any:
        op, n = sig.op, len(calls)
        operands = [
            self._operand(token, calls, position, position in op.ragged) for position, token in enumerate(sig.avals)
        ]
        if not any(isinstance(x, Batched | Packed) for x in operands):
            return _repeated(op(*operands, **sig.params), n, sig.out)
        if op.rule is None:
            stats.fallbacks[f"{op.name}: no batching rule"] += 1
        else:
            try:
                out = op.rule(op, operands, sig.params).data
            except UnsupportedError as error:
                stats.fallbacks[f"{op.name}: {error}"] += 1
            else:
                if tuple(out.shape) == (n, *sig.out.shape) and out.dtype == sig.out.dtype:
                    return out
                stats.fallbacks[f"{op.name}: {out.shape} {out.dtype}, expected {sig.out}"] += 1
        return np.stack([op(*[_example(x, i) for x in operands], **sig.params) for i in range(n)])

    def _block(self, call: Any, avals: Sequence[Any], calls: np.ndarray, stats: Stats) -> list[Any]:
        """Launch a group of calls of one block."""
        data = list(call.shared)
        rows = [False] * len(data)
        weak = False
        for position, (slot, token) in enumerate(zip(call.own, avals, strict=True)):
            operand = self._operand(token, calls, position, batched=True)
            if type(operand) is Batched:
                rows[slot] = True
                weak = weak or operand.scalar is not None
                operand = operand if weak else operand.data
            data[slot] = operand
        if weak:
            operands = [
                Batched(x, x.shape[1:]) if own and type(x) is not Batched else x
                for x, own in zip(data, rows, strict=True)
            ]
            return launch(call.program, operands, stats.fallbacks)
        outs = launch_rows(call.program, data, tuple(rows), stats.fallbacks)
        if True in rows:
            return outs
        return [_repeated(out, len(calls), aval) for out, aval in zip(outs, call.outs, strict=True)]

    def _operand(
        self, token: Any, calls: np.ndarray, position: int, ragged: bool = False, batched: bool = False
    ) -> Any:
        """One operand of a group: a shared value, or `Batched` rows, or `Packed` values of any length.

        Args:
            batched: rows also where there is one call only, so that it runs as a group of any size does.
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
                return _weak([sources[~ref] for ref in refs], token.kind)
            if ragged:
                values = [self._value(ref) for ref in refs]
                return Packed(np.concatenate(values), np.cumsum([0, *(len(value) for value in values)]))
            if max(refs) < 0:
                values = [sources[~ref] for ref in refs]
                if _NUMBERS.issuperset(map(type, values)):  # ids, say: not worth a pool
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
        return Batched(gather_rows(self.buffers, which, rows, how), token.shape)

    def _value(self, ref: int) -> Any:
        """The value at one place, of the kind that the op's own implementation takes."""
        number = self._buffer_of.item(ref)
        if number < 0:
            return self.sources[~ref]
        return row_p(self.buffers.arrays[number], row=self._row_of.item(ref))

    def _pool(self, places: np.ndarray, aval: Aval) -> None:
        """Put whole external values of one kind into one buffer."""
        values = [self.sources[~place] for place in places.tolist()]
        if set(map(type, values)) != {np.ndarray} and any(hasattr(value, "_ab_rank") for value in values):
            pool = np.stack(values)
        elif aval.ndim:
            pool = np.concatenate(values).reshape((len(values), *aval.shape))
        else:
            pool = np.array(values, aval.dtype)
        self._buffer_of[places] = self.buffers.append(pool)
        self._row_of[places] = np.arange(len(values))


def _repeated(out: Any, n: int, aval: Aval) -> Any:
    """One value as the row of n calls, which all have it."""
    rows = out.reshape((1, *aval.shape)) if hasattr(out, "_ab_rank") else np.asarray(out)[None]
    return rows if n == 1 else np.broadcast_to(rows, (n, *aval.shape))


def _weak(values: Sequence[Any], kind: type) -> Any:
    """Python numbers: the number itself where all agree (to the sign of zero), else one for each example."""
    first = values[0]
    if values.count(first) == len(values) and (first != 0 or kind in (int, bool) or len(set(map(str, values))) == 1):
        return first
    return Batched(np.array(values), (), kind)


def _example(operand: Any, index: int) -> Any:
    if isinstance(operand, Packed):
        return operand.values[operand.offsets[index] : operand.offsets[index + 1]]
    if isinstance(operand, Batched):
        value = operand.data[index]
        return value.item() if operand.scalar is not None and hasattr(value, "item") else value
    return operand


class Buffers:
    """The buffers of one segment: arrays of rows, plain or of an interpreter below.

    Attributes:
        arrays: them, by their number; None for one that is still to come.
        plain: whether all that are there are plain arrays.
    """

    __slots__ = ("_addresses", "_strided", "_strides", "arrays", "plain")

    def __init__(self, arrays: list[Any], count: int) -> None:
        self.arrays = arrays
        self.plain = True
        self._strided: set[int] = set()  # numbers of plain arrays whose rows do not lie in one piece
        arrays += [None] * count
        self._addresses = np.zeros(len(arrays), np.int64)
        self._strides = np.zeros(len(arrays), np.int64)

    def put(self, number: int, array: Any) -> None:
        """Let a buffer be this array."""
        if type(array) is not np.ndarray:
            self.plain = False
        elif array.flags.c_contiguous or array[:1].flags.c_contiguous:
            self._addresses[number] = array.__array_interface__["data"][0]
            self._strides[number] = array.strides[0]
        else:
            self._strided.add(number)
        self.arrays[number] = array

    def append(self, array: Any) -> int:
        """Add a buffer; its number."""
        number = len(self.arrays)
        self.arrays.append(None)
        if number >= len(self._addresses):
            self._addresses = np.concatenate([self._addresses, np.zeros(number + 1, np.int64)])
            self._strides = np.concatenate([self._strides, np.zeros(number + 1, np.int64)])
        self.put(number, array)
        return number

    def copied(self, like: int, which: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Row `rows[i]` of buffer `which[i]`, for each i, of plain buffers that are all like number `like`."""
        for number in self._strided.intersection(which.tolist()) if self._strided else ():
            self._strided.discard(number)
            self.put(number, np.ascontiguousarray(self.arrays[number]))
        array = self.arrays[like]
        out = np.empty((rows.shape[0], *array.shape[1:]), array.dtype)
        if out.size:
            start = out.__array_interface__["data"][0]
            gather_buffers(self._addresses, self._strides, which, rows, out.strides[0], start)
        return out


def gather_rows(buffers: Buffers, which: np.ndarray, rows: np.ndarray, how: int) -> Any:
    """Row `rows[i]` of buffer `which[i]`, for each i, as one array.

    Args:
        buffers: arrays (n_k, *shape), those that are named of one shape and dtype.
        which: (n,) int64; rows: (n,) int64; how: what `kernels.rows.locate` found, CONSECUTIVE or later.
    """
    first = which.item(0)
    buffer = buffers.arrays[first]
    if how == CONSECUTIVE:
        n = rows.shape[0]
        if n == buffer.shape[0]:
            return buffer
        start = rows.item(0)
        if type(buffer) is np.ndarray:
            return buffer[start : start + n]
        return gather_p(buffer, which=None, rows=slice(start, start + n))
    if buffers.plain or (how == ONE_BUFFER and type(buffer) is np.ndarray):
        return buffers.copied(first, which, rows)
    if how == ONE_BUFFER:
        return gather_p(buffer, which=None, rows=rows)
    used = np.flatnonzero(np.bincount(which)).tolist()
    several = [buffers.arrays[k] for k in used]
    if all(type(each) is np.ndarray for each in several):
        return buffers.copied(first, which, rows)
    number = np.zeros(used[-1] + 1, np.int64)
    number[used] = np.arange(len(used))
    return gather_p(*several, which=_Which(number[which]), rows=rows)


class _Which:
    """Which buffer each row comes from; the rows of one buffer are found once for all buffers, when first asked for."""

    __slots__ = ("_bounds", "_order", "numbers")

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers
        self._order: np.ndarray | None = None
        self._bounds: list[int] = []

    def places(self, buffer: int) -> np.ndarray:
        """The places whose row is in this buffer, in order."""
        if self._order is None:
            self._order = np.argsort(self.numbers, kind="stable")
            self._bounds = np.searchsorted(self.numbers[self._order], np.arange(int(self.numbers.max()) + 2)).tolist()
        return self._order[self._bounds[buffer] : self._bounds[buffer + 1]]


class Picked(SparseCotangent):
    """`values[places]` at `rows` of an array, zero elsewhere: what one of several buffers that a gather read gets.

    >>> Picked(np.array([1, 1]), np.array([[1.0], [2.0], [3.0]]), np.array([0, 2]), (2, 1)).to_dense()
    array([[0.],
           [4.]])
    """

    __slots__ = ("dtype", "places", "rows", "shape", "values")

    def __init__(self, rows: np.ndarray, values: np.ndarray, places: np.ndarray, shape: tuple[int, ...]) -> None:
        self.rows = rows
        self.values = values
        self.places = places
        self.shape = shape
        self.dtype = values.dtype

    def add_to(self, dense: np.ndarray) -> None:
        if dense.flags.c_contiguous and dense.dtype == self.dtype and dense.size:
            values = np.ascontiguousarray(self.values)
            flat = dense.reshape(len(dense), -1)
            add_picked(values.reshape(len(values), flat.shape[1]), self.places, self.rows, flat)
        else:
            np.add.at(dense, self.rows, self.values[self.places])


def _gather(*buffers: Any, which: _Which | None, rows: Any) -> np.ndarray:
    if which is None:
        buffer = buffers[0]  # take() copies all of a strided array first
        return buffer.take(rows, axis=0) if buffer.flags.c_contiguous and type(rows) is np.ndarray else buffer[rows]
    own = Buffers([], len(buffers))
    for number, buffer in enumerate(buffers):
        own.put(number, buffer)
    return own.copied(0, which.numbers, rows)


def _gather_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    which, rows, buffer = params["which"], params["rows"], args[position]
    if which is not None:
        mine = which.places(position)
        rows = rows[mine]
        if type(ct) is np.ndarray and ct.dtype == buffer.dtype and ct.dtype in _ADDED:
            return Picked(rows, ct, mine, tuple(buffer.shape))
        ct = ct[mine]
    return Scatter(rows, ct, tuple(buffer.shape), buffer.dtype, unique=isinstance(rows, slice) or _distinct(rows))


def _distinct(rows: np.ndarray) -> bool:
    return bool((np.bincount(rows) <= 1).all())


gather_p = Op("gather", _gather, vjp=_gather_vjp, kind="gather")


def _row_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return Scatter(params["row"], ct, tuple(args[0].shape), args[0].dtype, unique=True)


row_p = Op("row", lambda buffer, *, row: buffer[row], vjp=_row_vjp, kind="gather")
