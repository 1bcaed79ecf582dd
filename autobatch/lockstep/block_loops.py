"""Loops whose body is one block: once a step has run, the remaining steps run as one op.

Rewritten code calls the loop's `LaneScan` at the end of each step. If the remaining steps repeat the last one (the
block's program is known, the loop's items are rows, other inputs are unchanged), they run as one `blocks.scan.Scan`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.blocks.launch import is_plain
from autobatch.blocks.program import Hoisted, Program, hoisted
from autobatch.blocks.scan import Scan, Stepped, Test
from autobatch.core.abstract_eval import Affine, unknown_lengths
from autobatch.core.batched import Batched, Lengths
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.lockstep.block_launch import BlockRun, LaneBlock, as_batch, launch_without_warnings
from autobatch.lockstep.lanes.region import Prefix
from autobatch.lockstep.regions.loops import RaggedLoop, UniformLoop
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.sequences import Enumerated, Ranges, RowSequence, SharedSequence, Zipped, rows_of
from autobatch.ops.numpy.indexing import rows_between
from autobatch.ops.rules.aliasing import has_views, write
from autobatch.ops.rules.padding import to_width
from autobatch.ops.rules.row_gather import put_rows_p
from autobatch.ops.rules.sizes import lane_lengths
from autobatch.tables.table import EmbeddingTable

_FEWEST = 3  # minimum number of remaining steps
_MOST_TRIES = 6  # failed attempts in one loop
_MOST_ROWS = 1 << 16


class Steps(NamedTuple):
    """The program that each remaining step runs, with its operands.

    Attributes:
        program: the body without hoisted parts; data: its operands; rows: per operand, True if it has a row per lane.
        places: for each operand, its index among the body's inputs; None for a hoisted result.
        stepped: indices of the operands with separate rows in each step.
        lengths: those of the lanes that the program does not know, by name.
    """

    program: Program
    data: list[Any]
    rows: tuple[bool, ...]
    places: list[int | None]
    stepped: list[int]
    lengths: Mapping[str, Lengths] = MappingProxyType({})

    def scan(self, states: Sequence[tuple[int, int | None]], listed: Sequence[int], steps: Stepped | Test) -> Scan:
        """The scan of these steps; its arguments are those of `Scan`."""
        own = [self.lengths[name].values for name in self.program.lengths]
        return Scan(self.program, states, self.rows, self.stepped, listed, steps, own)


@dataclasses.dataclass(slots=True, eq=False)
class LaneScan:
    """A loop in the user's code whose body is one block, with the lists that it appends results to.

    Attributes:
        body: the block.
        test: the block of a `while` condition; None for a `for`.
        states: for each variable that is carried or read after the loop, the index of the block's output.
        carried: for each input of the block, the index of the state it reads, or None; `tested`: same for the test.
        items: indices of the inputs that are loop items.
        listed: for each list, the index of the block's output that is appended to it.
        paths: for inputs read from other objects: (True if an input of the test, index of the input, index into
            `bases`, keys); a key is `("attr", name)` or `("item", key)`.
        reads: for inputs `table[item]`: (index of the input, index of the table in `bases`, keys, index of the item
            in `bases`).
        stores: for statements `out[item] = value` after the block: (index of the block's output, index of the array in
            `bases`, index of the item in `bases`).
    """

    body: LaneBlock
    test: LaneBlock | None
    states: Sequence[int]
    carried: Sequence[int | None]
    tested: Sequence[int | None]
    items: frozenset[int]
    listed: Sequence[int]
    paths: Sequence[tuple[bool, int, int, tuple[tuple[str, Any], ...]]]
    reads: Sequence[tuple[int, int, tuple[tuple[str, Any], ...], int]]
    stores: Sequence[tuple[int, int, int]]
    hoists: dict[Any, Hoisted | None] = dataclasses.field(default_factory=dict)

    def __call__(
        self,
        loop: Any,
        states: Sequence[Any],
        values: Sequence[Any],
        tested: Sequence[Any],
        bases: Sequence[Any],
        lists: Sequence[Any],
    ) -> tuple[Any, ...] | None:
        """Run the remaining steps, or some of them.

        Args:
            loop: the loop object, at the end of a step.
            states: the variables' values; values: the block's inputs; tested: the test's inputs.
            bases: the objects that paths start from; lists: the lists appended to.

        Returns:
            for a `for`, the variables' values after those steps; None if no step ran, and for every `while`.
        """
        region: Any = current_region()
        if region is None or getattr(loop, "tries", _MOST_TRIES) >= _MOST_TRIES:
            return None
        loop.tries += 1
        run: BlockRun | None = region.root.blocks.get(self.body)
        if run is None or run.program is None:
            return None
        if not (config.blocks and self._stays(values, tested, bases)):
            return None
        values = self.body.unpacked(values)
        tested = tested if self.test is None else self.test.unpacked(tested)
        if not run.suits(values, region):
            return None
        if not all(type(x) is MaskedBatch and x.region is region for x in states):
            return None
        if self.test is not None:
            self._while(loop, region, run, states, values, tested)
            return None
        return self._for(loop, region, run, states, values, bases, lists)

    def _stays(self, values: Sequence[Any], tested: Sequence[Any], bases: Sequence[Any]) -> bool:
        """True if each input that is read from another object still is the object read in the last step."""
        for of_test, place, base, keys in self.paths:
            found = _plain_read(bases[base], keys)
            if found is None or found is not (tested if of_test else values)[place]:
                return False
        return True

    def _while(
        self, loop: Any, region: Any, run: BlockRun, states: Sequence[Any], values: Sequence[Any], tested: Sequence[Any]
    ) -> None:
        assert self.test is not None
        test: BlockRun | None = region.root.blocks.get(self.test)
        if test is None or test.program is None or not test.suits(tested, region) or self._rows(run, values, region):
            return
        assert run.program is not None
        if run.program.lengths or test.program.lengths:
            return
        (result,) = test.program.results
        if len(loop.at_head) != 1 or result.dtype != np.bool_ or result.ndim:
            return
        each = Steps(run.program, run.data(values, region), run.rows, list(run.operands), [])
        where = [self.tested[i] if i < len(self.tested) else None for i in test.operands]
        if any(type(tested[i]) is MaskedBatch and at is None for i, at in zip(test.operands, where, strict=True)):
            return
        going = Test(test.program, where, [tested[i] for i in test.operands])
        found = _run(each.scan(self._states(each), (), going), [x.data for x in states], each.data)
        if found is None:
            return
        loop.at_head = []
        loop.ended.append((region, tuple(self._batches(run, found[0], region, {}))))

    def _for(
        self, loop: Any, region: Any, run: BlockRun, states: Sequence[Any], values: Sequence[Any],
        bases: Sequence[Any], lists: Sequence[Any],
    ) -> tuple[Any, ...] | None:  # fmt: skip
        if not isinstance(loop, RaggedLoop | UniformLoop) or not _is_of_rows(loop.sequence):
            return None
        if any(type(each) is not LaneList for each in lists):
            return None
        rows = self._rows(run, values, region)
        if len({*map(id, lists)}) < len(lists) or not all(x.last.region is region for x in rows.values()):
            return None
        rows |= {place: found for place, found in self._read(loop, region, bases) if found is not None}
        if rows.keys() != self.items or not all(_takes_rows(run, loop, values, bases, store) for store in self.stores):
            return None
        first = loop.step + 1
        counts = list(loop.counts[first : first + max(_MOST_ROWS // max(region.count, 1), 1)])
        if len(counts) < _FEWEST:
            return None
        each = self._hoisted(run, rows, values, region, first, first + len(counts))
        if each is None:
            return None
        steps = Stepped(counts, [0, *np.cumsum(counts).tolist()])
        listed_outputs = sorted({*self.listed, *[output for output, _, _ in self.stores]})
        feeds = self._states(each)
        if each.lengths and not self._suits_lengths(each, feeds, listed_outputs):
            return None
        scan = each.scan(feeds, listed_outputs, steps)
        first_states = [
            x.data if operand is None else each.data[operand] for x, (_, operand) in zip(states, feeds, strict=True)
        ]
        found = _run(scan, first_states, each.data)
        if found is None:
            return None
        last, listed = found
        loop.step += len(counts)
        loop.tries = 0
        outputs = dict(zip(scan.listed, listed, strict=True))
        regions = _regions(loop, region, steps.counts)
        for output, one in zip(self.listed, lists, strict=True):
            kind, made = run.outputs[output], outputs[output]
            one.append_steps(as_batch(made, kind, None), _items(kind, made, steps, regions), regions)
        for output, base, _ in self.stores:
            _store_rows(bases[base], outputs[output], first, steps)
        out = self._batches(run, last, region, each.lengths)
        if lists:
            for each in out:
                region.root.freeze(each)
        return tuple(out)

    def _rows(self, run: BlockRun, values: Sequence[Any], region: Any) -> dict[int, RowSequence]:
        """{index of an input: rows}, for inputs that are the current item of a loop over rows (any loop)."""
        found = [(i, rows_of(values[i], region.root)) for i, *_ in run.batches]
        return {i: rows for i, rows in found if rows is not None}

    def _read(self, loop: Any, region: Any, bases: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(index, rows in the loop's steps) of each input `table[item]`; None for rows that are not known ahead."""
        for place, base, keys, at in self.reads:
            table, item = _plain_read(bases[base], keys), bases[at]
            found: Any = None
            if type(item) is MaskedBatch:
                ids = rows_of(item, region.root)
                is_id = not item.sizes and item.data.dtype.kind in "iu"
                if ids is not None and is_id and item.region is region and _is_table(table):
                    found = LookedUpRows(table, ids)
            elif type(item) is int and type(table) is MaskedBatch and table.sizes:
                found = _rows_by_number(loop, table)
            yield place, found

    def _hoisted(
        self, run: BlockRun, rows: dict[int, Any], values: Sequence[Any], region: Any, first: int, last: int
    ) -> Steps | None:
        """Steps `first:last`; operations on items and fixed inputs alone are hoisted: computed for all steps at once.

        None if NumPy would warn in the hoisted part: only a step by step run tells whether an example gets that far.
        """
        program = run.program
        assert program is not None
        lengths: Mapping[str, Lengths] = MappingProxyType({})
        if program.lengths:
            found = run.with_lengths(values, region)
            if found is None:
                return None
            data, lengths = found
        else:
            data = run.data(values, region)
        for at, i in enumerate(run.operands):
            if i in rows:
                packed = rows[i].packed(first, last)
                for axis, size in enumerate(program.inputs[at].shape):
                    if type(size) is Affine:  # of the lane, at every step
                        packed = to_width(packed, axis + 1, data[at].shape[axis + 1])
                data[at] = packed
        items = [at for at, i in enumerate(run.operands) if i in rows]
        key = program, *items
        if key not in self.hoists:
            fixed = [at for at, own in enumerate(run.rows) if not own]
            self.hoists[key] = hoisted(program, items, fixed)
        parts = self.hoists[key]
        if parts is None or parts.early.lengths:
            return Steps(program, data, run.rows, list(run.operands), items, lengths)
        early = launch_without_warnings(
            parts.early, [data[at] for at in parts.early_inputs], [at in items for at in parts.early_inputs]
        )
        if early is None:
            return None
        kept = parts.rest_inputs
        own = (*[run.rows[at] for at in kept], *[True] * len(early))
        places = [*[run.operands[at] for at in kept], *[None] * len(early)]
        stepped = [place for place, at in enumerate(kept) if at in items]
        return Steps(
            parts.rest,
            [*[data[at] for at in kept], *early],
            own,
            places,
            [*stepped, *range(len(kept), len(own))],
            lengths,
        )

    def _states(self, steps: Steps) -> list[tuple[int, int | None]]:
        states = [None if at is None or at >= len(self.carried) else self.carried[at] for at in steps.places]
        operand = {state: i for i, state in enumerate(states) if state is not None}
        return [(output, operand.get(place)) for place, output in enumerate(self.states)]

    @staticmethod
    def _suits_lengths(steps: Steps, states: Sequence[tuple[int, int | None]], listed: Sequence[int]) -> bool:
        """True if what is kept of each step is of known sizes, and each state keeps its lengths."""
        kinds, results = steps.program.inputs, steps.program.results
        if any(unknown_lengths(results[output].shape) for output in listed):
            return False
        return all(
            results[output] is kinds[operand] or not unknown_lengths((results[output].shape, kinds[operand].shape))
            if operand is not None
            else not unknown_lengths(results[output].shape)
            for output, operand in states
        )

    def _batches(self, run: BlockRun, data: Sequence[Any], region: Any, lengths: Mapping[str, Lengths]) -> list[Any]:
        return [
            as_batch(rows, run.outputs[output], region, lengths) for rows, output in zip(data, self.states, strict=True)
        ]


class LookedUpRows:
    """The rows of a table that the items of a loop number, like a `RowSequence`."""

    __slots__ = ("ids", "table")

    def __init__(self, table: Any, ids: RowSequence) -> None:
        self.table = table
        self.ids = ids

    def packed(self, first: int, last: int) -> Any:
        """The rows of steps `first:last`, one step after the other, (rows, *row)."""
        return self.table[self.ids.packed(first, last)]


def _is_table(table: Any) -> bool:
    return type(table) in (np.ndarray, EmbeddingTable) or (
        type(table) is TapeArray and type(table._ab_value) in (np.ndarray, EmbeddingTable)
    )


def _takes_rows(
    run: BlockRun, loop: Any, values: Sequence[Any], bases: Sequence[Any], store: tuple[int, int, int]
) -> bool:
    """True if the remaining steps store rows of the array's own kind, each under the number of its step.

    Nothing that the block reads may be the array, or a view of it: each step would change it.
    """
    output, base, at = store
    region: Any = current_region()
    out, item, kind = bases[base], bases[at], run.outputs[output]
    assert run.program is not None
    if type(out) is not MaskedBatch or out.region is not region or out.scalar is not None:
        return False
    if has_views(out) or any(value is out for value in values):
        return False
    if type(item) is not int or not _counts_steps(loop.sequence) or not is_plain(out.data):
        return False
    if not out.sizes or out.sizes[1:] != kind[0] or out.data.dtype != run.program.results[output].dtype:
        return False
    steps = np.searchsorted(-np.array(loop.counts), -np.arange(region.count))  # of each lane
    return bool(np.all(lane_lengths(out.sizes[0], region.count) >= steps))


def _store_rows(out: MaskedBatch, rows: Any, first: int, steps: Stepped) -> None:
    """Store the rows of all steps, from step `first` on, in an array per lane."""
    lanes, width = out.data.shape[:2]
    places = [np.arange(count) * width + first + step for step, count in enumerate(steps.counts)]
    flat = np.reshape(out.data, (lanes * width, *out.data.shape[2:]))
    data = np.reshape(put_rows_p(flat, rows, np.concatenate(places), unique=True), out.data.shape)
    write(out, MaskedBatch.in_region(Batched(data, out.sizes), out.region))


def _rows_by_number(loop: Any, source: MaskedBatch) -> RowSequence | None:
    """The rows of a batch, for a loop that numbers them; None if it does not, or goes on behind the last."""
    if not _counts_steps(loop.sequence):
        return None
    order = getattr(loop, "order", None)
    parent: Any = current_region() if order is None else order.parent
    rows = RowSequence(source if source.region is parent else parent.narrow(source))
    if np.any(np.asarray(rows.lengths()) < loop.sequence.lengths()):
        return None
    rows.open(order)
    return rows


def _counts_steps(sequence: Any) -> bool:
    """True if each integer that is an item, the same for all examples, is the number of the step."""
    kind = type(sequence)
    if kind is Zipped:
        return all(map(_counts_steps, sequence.parts))
    if kind is Enumerated:
        return type(sequence.start) is int and sequence.start == 0 and _counts_steps(sequence.inner)
    if kind is SharedSequence:
        return bool(sequence.values[:2] == range(2)[: len(sequence.values)])
    if kind is Ranges:
        own = sequence.start, sequence.step
        return all(type(each) is int for each in own) and own == (0, 1)
    return kind is RowSequence


def _items(kind: tuple[Any, bool, bool], rows: Any, steps: Stepped, regions: Sequence[Any]) -> list[Any]:
    """One batch per step: the values that the step appends to a list."""
    out = []
    for step, region in enumerate(regions):
        batch = as_batch(rows_between(rows, steps.offsets[step], steps.offsets[step + 1]), kind, region)
        region.root.freeze(batch)
        out.append(batch)
    return out


def _regions(loop: Any, region: Any, counts: Sequence[int]) -> list[Any]:
    """The region of each step."""
    out = []
    for count in counts:
        if count != region.count:
            region = Prefix(loop.order, count)
        out.append(region)
    return out


def _is_of_rows(sequence: Any) -> bool:
    if type(sequence) is Zipped:
        return all(map(_is_of_rows, sequence.parts))
    if type(sequence) is Enumerated:
        return _is_of_rows(sequence.inner)
    if type(sequence) is SharedSequence:
        return type(sequence.values) is range
    return type(sequence) in (RowSequence, Ranges)


def _run(scan: Scan, states: Sequence[Any], operands: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """The results of a scan; None if it is not compiled yet, or NumPy would warn, perhaps about padding."""
    if not scan.is_ready(states, operands):
        return None
    if not scan.lengths:
        return scan(states, operands)
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            return scan(states, operands)
    except FloatingPointError:
        return None


def _plain_read(base: Any, keys: Sequence[tuple[str, Any]]) -> Any:
    """Follow `keys` from an object without running code of its class; None if that is impossible."""
    for how, key in keys:
        kind = type(base)
        if how == "item":
            if kind is LaneList:  # made in this call; nothing else changes it meanwhile
                base, kind = base.items, list
            if kind not in (dict, list, tuple):
                return None
            try:
                base = base[key]
            except (LookupError, TypeError):
                return None
            continue
        if kind.__getattribute__ is not object.__getattribute__ or isinstance(base, MaskedBatch | TapeArray):
            return None
        if hasattr(kind, key) or key not in getattr(base, "__dict__", {}):
            return None
        base = base.__dict__[key]
    return base
