"""What is recorded, and launching it: what goes together, in which order, under which handling of errors."""

import time
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.blocks.program import Program
from autobatch.core.config import config
from autobatch.core.keeping import ours
from autobatch.core.op import Op
from autobatch.errors import NeedsLoop
from autobatch.lazy.aval import Aval, Weak
from autobatch.lazy.launching import Launches
from autobatch.lazy.schedule import refine, schedule
from autobatch.lazy.stats import Stats
from autobatch.ops.indexing_spec import shown

__all__ = ["BlockCall", "Signature", "Wave", "launch_wave"]

_LARGE = 8192  # bytes


class BlockCall:
    """What a signature says beside its op where it is a block's.

    Attributes:
        program: what runs; outs: the `Aval` of each output.
        shared: for each input of the program the value that all examples share; None for one of each example's own.
        own: the positions of the latter.
        tail: what a call adds to `Wave.sigs`: the signature's number, and -1 for each further output.
        views: (output, output that it is a view of, how), for `operators.link_views`.
    """

    __slots__ = ("outs", "own", "program", "shared", "tail", "views")

    def __init__(self, program: Program, shared: Sequence[Any], index: int) -> None:
        self.program = program
        self.outs = program.results
        self.shared = tuple(shared)
        self.own = tuple([slot for slot, value in enumerate(self.shared) if value is None])
        self.views = tuple([(at, base, (None, *how)) for at, (base, *how) in program.views.items()])
        self.tail = (index, *[-1] * (len(self.outs) - 1))


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
    places = np.flatnonzero(sigs >= 0)
    if len(places) < len(sigs):  # outputs beside nodes
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
    stats.bound += plan.bound
    each = [table[index] for index in sigs[plan.order[plan.starts[:-1]]].tolist()]
    launches = Launches(wave, plan, each, offsets, refs, places)
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
