"""Launching a wave: for each group, gather the operands, apply the op's batching rule, keep the rows."""

import time
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Packed
from autobatch.core.config import config
from autobatch.core.keeping import ours
from autobatch.core.op import Op
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.fusion.launch import launch
from autobatch.fusion.program import Program
from autobatch.kernels.buffers import CONSECUTIVE, MISSING, SAME, locate
from autobatch.lazy.aval import Aval, Weak
from autobatch.lazy.gather import Buffers, gather_rows, row_p
from autobatch.lazy.schedule import refine, schedule
from autobatch.lazy.stats import Stats
from autobatch.ops.indexing_spec import shown

__all__ = ["BlockCall", "Signature", "Wave", "launch_wave"]

_LARGE = 8192  # bytes
_NUMBERS = frozenset((int, np.int64, np.int32))


class BlockCall:
    """What a signature says beside its op where it is a block's.

    Attributes:
        program: what runs; outs: the `Aval` of each output.
        shared: for each input of the program the value that all examples share; None for one of each example's own.
        tail: what a call adds to `Wave.sigs`: the signature's number, and -1 for each further output.
        views: (output, output that it is a view of, how), for `operators.link_views`.
    """

    __slots__ = ("outs", "program", "shared", "tail", "views")

    def __init__(self, program: Program, shared: Sequence[Any], index: int) -> None:
        self.program = program
        self.outs = program.results
        self.shared = tuple(shared)
        self.views = tuple([(at, base, (None, *how)) for at, (base, *how) in program.views.items()])
        self.tail = (index, *[-1] * (len(self.outs) - 1))

    def inputs(self, own: Sequence[Any]) -> list[Any]:
        """The program's inputs, from those that are each example's own."""
        given = iter(own)
        return [next(given) if value is None else value for value in self.shared]


class Signature:
    """What two calls must share to run together, and what is known of the result.

    Attributes:
        avals: for each operand its `Aval`, or `Weak` for a Python number.
        shared: no operand belongs to one example, so one call serves all.
        where: the user's line that first recorded it.
        errors: NumPy's handling of floating-point errors there (`np.errstate`), which its launches follow.
        base: the signature under the handling that is in force around the whole run; None if it is this one.
        block: what there is more to say of a block.
    """

    __slots__ = (
        "avals",
        "base",
        "block",
        "errors",
        "index",
        "nbytes",
        "op",
        "out",
        "params",
        "shared",
        "text",
        "where",
    )

    def __init__(
        self,
        op: Op,
        params: dict[str, Any],
        avals: Sequence[Any],
        out: Aval,
        index: int,
        where: tuple[str, int],
        errors: Any,
    ) -> None:
        self.op = op
        self.params = params
        self.avals = tuple(avals)
        self.out = out
        self.index = index
        self.where = where
        self.errors = errors
        self.base: Signature | None = None
        self.block: BlockCall | None = None
        self.nbytes = out.nbytes
        self.shared = all(aval.shared for aval in avals)
        if op.kind == "index" and out.nbytes < _LARGE and any(type(aval) is Weak for aval in avals):
            self.shared = (
                False  # which row is read depends on the example; one large enough is rather an operand of its own
            )
        attributes = [
            shown(value)
            if name == "spec" and type(value) is tuple
            else f"{name}={value!r}"  # an index, or einsum's text
            for name, value in params.items()
        ]
        self.text = ", ".join([*map(repr, avals), *attributes])


class Wave:
    """What is launched together.

    Attributes:
        sigs: the signature number of each node, -1 for a further output of the node before; refs: the operands of
            each node, one after the other.
        sources, rows: the external values; row -1 is the whole value.
        large: {ref: [array, example, met in several examples, aval, copy or None]} of large constants.
        keep: objects whose id is in use; entered: handles of values from outside, which let go of the wave after it.
        done: it was launched; `buffers`, `buffer_of` and `row_of` then say where each node's value is.
    """

    __slots__ = (
        "buffer_of",
        "buffers",
        "done",
        "entered",
        "error",
        "keep",
        "large",
        "refs",
        "row_of",
        "rows",
        "sigs",
        "sources",
    )

    def __init__(self) -> None:
        self.sigs: Any = []  # a list is quicker to append to than an array; where all is known, it is one
        self.refs: Any = []
        self.sources: list[Any] = []
        self.rows: list[int] = []
        self.large: dict[int, list[Any]] = {}
        self.keep: list[Any] = []
        self.entered: list[Any] = []
        self.done = False
        self.error: BaseException | None = None
        self.buffers: list[Any] = []
        self.buffer_of: Any = None
        self.row_of: Any = None

    def external(self, source: Any, row: int) -> int:
        """The reference of a value from outside."""
        self.sources.append(source)
        self.rows.append(row)
        return -len(self.rows)

    def resolve(self, handle: Any) -> None:
        """Let a handle of a launched node hold its own buffer, and no longer the wave."""
        if self.error is not None:
            raise self.error
        ref = handle.ref
        handle.source = self.buffers[self.buffer_of.item(ref)]
        handle.row = self.row_of.item(ref)
        handle.wave = None


def launch_wave(wave: Wave, table: Sequence[Signature], stats: Stats) -> None:
    """Run everything recorded in `wave`. An error is kept: values of this wave raise it when they are needed."""
    try:
        with ours():
            _launch(wave, table, stats)
        wave.done = True
    except BaseException as error:
        wave.error = error
        wave.done = True
        raise
    finally:
        for handle in wave.entered:
            if handle.wave is wave and handle.source is not None:  # else it was written to, and is a node now
                handle.wave = None
        wave.entered = []
        wave.sigs, wave.refs = [], []
        wave.sources, wave.rows, wave.keep = [], [], []
        wave.large = {}
    stats.rounds += 1


def _launch(wave: Wave, table: Sequence[Signature], stats: Stats) -> None:
    for kept in wave.large.values():
        if kept[4] is not None and not np.array_equal(kept[0], kept[4], equal_nan=kept[0].dtype.kind in "fc"):
            raise NeedsLoop("an array was written to after it was used in a recorded operation")
    sigs = _integers(wave.sigs)
    refs = operands = _integers(wave.refs)
    places = None
    if any(sig.block is not None and len(sig.block.outs) > 1 for sig in table):  # outputs beside nodes
        places = np.flatnonzero(sigs >= 0)
        node = np.cumsum(sigs >= 0) - 1
        sigs = sigs[places]
        operands = np.where(refs >= 0, node[np.maximum(refs, 0)], refs)
    arity = np.array([len(sig.avals) for sig in table], np.int64)
    offsets = np.zeros(len(sigs) + 1, np.int64)
    np.cumsum(arity[sigs], out=offsets[1:])
    kinds, kind_of = sigs, None
    shared = [ref for ref, kept in wave.large.items() if kept[2]]
    if shared:
        marks = np.zeros(len(wave.rows), np.int64)
        marks[np.array(shared) * -1 - 1] = np.arange(1, len(shared) + 1)
        kinds, kind_of = refine(sigs, offsets, operands, marks)
    plan = schedule(kinds, offsets, operands, len(table) if kind_of is None else len(kind_of), config.scheduler)
    run = _Run(wave, refs, offsets, places)
    order, bounds = plan.order, plan.starts.tolist()
    stats.bound += plan.bound
    errors = np.geterr()
    clock = time.perf_counter
    before = clock()
    for k in range(len(bounds) - 1):
        nodes = order[bounds[k] : bounds[k + 1]]
        sig = table[sigs[nodes[0]]]
        if sig.errors == errors:
            run.group(sig, nodes, stats)
        else:
            with np.errstate(**sig.errors):
                run.group(sig, nodes, stats)
        now = clock()
        stats.launched(sig.op.name, sig.text, len(nodes), now - before)
        before = now


def _integers(values: Any) -> np.ndarray:
    """A list as an array: by way of `array`, which is three times as fast as NumPy."""
    if type(values) is np.ndarray:
        return values
    return np.frombuffer(array("q", values), np.int64) if values else np.zeros(0, np.int64)


class _Run:
    """The state of one launch: which row of which buffer each reference is."""

    __slots__ = ("buffer_of", "buffers", "count", "offsets", "places", "refs", "row_of", "rows", "wave")

    def __init__(self, wave: Wave, refs: np.ndarray, offsets: np.ndarray, places: np.ndarray | None) -> None:
        self.wave = wave
        self.refs = refs
        self.offsets = offsets
        self.places = places
        self.count = count = len(wave.sigs)
        self.buffers = wave.buffers
        self.rows = Buffers(wave.buffers)
        self.buffer_of = np.full(count + len(wave.rows), -1, np.int64)
        self.row_of = np.zeros(count + len(wave.rows), np.int64)
        rows = _integers(wave.rows)
        held = np.flatnonzero(rows >= 0)  # rows of what an earlier wave made
        if len(held):
            sources = [wave.sources[i] for i in held.tolist()]
            numbers = {id(source): source for source in sources}
            first = len(self.buffers)
            self.buffers += numbers.values()
            number_of = dict(zip(numbers, range(first, len(self.buffers)), strict=True))
            self.buffer_of[count + held] = [number_of[id(source)] for source in sources]
            self.row_of[count + held] = rows[held]
        wave.buffer_of, wave.row_of = self.buffer_of, self.row_of

    def group(self, sig: Signature, nodes: np.ndarray, stats: Stats) -> None:
        """Launch one group and note where its rows are."""
        op, n = sig.op, len(nodes)
        first = self.offsets[nodes]
        if self.places is not None:
            nodes = self.places[nodes]
        if sig.block is not None:
            self._block(sig.block, sig.avals, first, nodes, stats)
            return
        operands = [
            self._operand(token, first, position, position in op.ragged) for position, token in enumerate(sig.avals)
        ]
        out = None
        if not any(isinstance(x, Batched | Packed) for x in operands):
            out = op(*operands, **sig.params)
            out = out.reshape((1, *sig.out.shape)) if hasattr(out, "_ab_rank") else np.asarray(out)[None]
            self.row_of[nodes] = 0
        else:
            self.row_of[nodes] = np.arange(n)
            if op.rule is not None:
                try:
                    out = op.rule(op, operands, sig.params).data
                except UnsupportedError as error:
                    stats.fallbacks[f"{op.name}: {error}"] += 1
                else:
                    if tuple(out.shape) != (n, *sig.out.shape) or out.dtype != sig.out.dtype:
                        stats.fallbacks[f"{op.name}: {out.shape} {out.dtype}, expected {sig.out}"] += 1
                        out = None
            else:
                stats.fallbacks[f"{op.name}: no batching rule"] += 1
            if out is None:
                calls = [op(*[_example(x, i) for x in operands], **sig.params) for i in range(n)]
                out = np.stack(calls)
        self.buffer_of[nodes] = len(self.buffers)
        self.buffers.append(out)

    def _block(self, call: BlockCall, avals: Sequence[Any], first: np.ndarray, nodes: np.ndarray, stats: Stats) -> None:
        """Launch a group of calls of one block."""
        own = [self._operand(token, first, position, batched=True) for position, token in enumerate(avals)]
        outs = launch(call.program, call.inputs(own), stats.fallbacks)
        alike = not any(isinstance(x, Batched) for x in own)
        for position, out in enumerate(outs):
            if alike:  # the same for all examples: no batch axis
                out = (
                    out.reshape((1, *call.outs[position].shape)) if hasattr(out, "_ab_rank") else np.asarray(out)[None]
                )
            self.row_of[nodes + position] = 0 if alike else np.arange(len(nodes))
            self.buffer_of[nodes + position] = len(self.buffers)
            self.buffers.append(out)

    def _operand(
        self, token: Any, first: np.ndarray, position: int, ragged: bool = False, batched: bool = False
    ) -> Any:
        """One operand of a group: a shared value, or `Batched` rows, or `Packed` values of any length.

        Args:
            batched: rows also where there is one call only, so that it runs as a group of any size does.
        """
        sources = self.wave.sources
        if type(token) is not Weak and token.shared:
            return sources[-self.refs[first[0] + position] - 1]
        refs = self.refs[first + position]
        if type(token) is Weak:
            return _weak([sources[-ref - 1] for ref in refs.tolist()], token.kind)
        if not token.ndim and (refs < 0).all():
            values = [sources[-ref - 1] for ref in refs.tolist()]
            if _NUMBERS.issuperset(map(type, values)):  # ids, say: not worth a pool
                return Batched(np.array(values, token.dtype), ())
        if ragged:
            values = [self._value(self._place(ref)) for ref in refs.tolist()]
            return Packed(_concatenate(values), np.cumsum([0, *(len(value) for value in values)]))
        n = len(first)
        which, rows = np.empty(n, np.int64), np.empty(n, np.int64)
        found = self.refs, first, position, self.count, self.buffer_of, self.row_of, which, rows
        how = locate(*found)
        if how == SAME:
            at = self._place(int(self.refs[first[0] + position]))
            if batched and n == 1 and self.buffer_of[at] < 0 and type(alone := sources[at - self.count]) is np.ndarray:
                return Batched(alone[None], token.shape)
            if at >= self.count or n > 1 or not (batched or hasattr(self.buffers[self.buffer_of[at]], "_ab_rank")):
                return self._value(at)
            how = CONSECUTIVE
        if how == MISSING:
            at = np.where(refs >= 0, refs, self.count - 1 - refs)
            self._pool(np.unique(at[self.buffer_of[at] < 0]), token)
            how = locate(*found)
        return Batched(gather_rows(self.rows, which, rows, how), token.shape)

    def _place(self, ref: int) -> int:
        return ref if ref >= 0 else self.count - 1 - ref

    def _value(self, at: int) -> Any:
        """The value at one place, of the kind that the op's own implementation takes."""
        number = self.buffer_of[at]
        if number < 0:
            return self.wave.sources[at - self.count]
        return row_p(self.buffers[number], row=int(self.row_of[at]))

    def _pool(self, places: np.ndarray, aval: Aval) -> None:
        """Put whole external values of one kind into one buffer."""
        values = [self.wave.sources[place - self.count] for place in places.tolist()]
        if set(map(type, values)) != {np.ndarray} and any(hasattr(value, "_ab_rank") for value in values):
            pool = np.stack(values)
        elif aval.ndim:
            pool = np.concatenate(values).reshape((len(values), *aval.shape))
        else:
            pool = np.array(values, aval.dtype)
        self.buffer_of[places] = len(self.buffers)
        self.row_of[places] = np.arange(len(values))
        self.buffers.append(pool)


def _concatenate(values: Sequence[Any]) -> Any:
    return np.concatenate(values)


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
