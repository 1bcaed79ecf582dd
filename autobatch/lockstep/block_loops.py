"""Loops whose body is one block: once a step has run, the remaining steps run as one op.

Rewritten code calls the loop's `LaneScan` at the end of each step. If the remaining steps repeat the last one (the
block's program is known, the loop's items are rows, other inputs are unchanged), they run as one `blocks.scan.Scan`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import weak_lanes
from autobatch.batches.unpadded import padded
from autobatch.blocks.launch import is_plain, padded_operands, without_complaints
from autobatch.blocks.program import Program
from autobatch.blocks.scan import Scan, Stepped, Test
from autobatch.core.abstract_eval import Affine, unknown_lengths
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.current_region import current_region
from autobatch.lockstep.block_launch import MOST_FAILURES, LaneBlock, LaneProgram, as_batch
from autobatch.lockstep.lanes.region import Prefix, Region, freeze
from autobatch.lockstep.regions.loops import DivergentLoop, RaggedLoop, UniformLoop
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.sequences import (
    Enumerated,
    Ranges,
    RowSequence,
    SharedSequence,
    Zipped,
    rows_of,
    steps_and_lanes,
)
from autobatch.ops.numpy.indexing import rows_between
from autobatch.ops.rules.aliasing import has_views, is_scalar, unclear_view, write
from autobatch.ops.rules.padding import to_width
from autobatch.ops.rules.row_gather import put_rows_p, rows_p
from autobatch.ops.rules.sizes import lane_lengths, reshaped
from autobatch.tables.table import EmbeddingTable

_FEWEST = 3  # minimum number of remaining steps
_MOST_TRIES = 6  # failed attempts in one loop
_MOST_ROWS = 1 << 16  # of all steps of one run, whose operands lie in memory at once


class Ahead(NamedTuple):
    """A value that is known before the step that reads it: an item of the loop, or what is read at one.

    Attributes:
        base: the index in `bases` of the item, or of the object that `keys` lead on from.
        at: for `table[at]`, what it is read at; None for an item. late: of how many steps before the item is.
        shift: the number that is added, if the value is the same integer in all examples.
    """

    base: int
    keys: tuple[tuple[str, Any], ...] = ()
    at: "Ahead | None" = None
    shift: int = 0
    late: int = 0

    def before(self) -> "Ahead":
        """The same of the step before."""
        return self._replace(late=self.late + 1) if self.at is None else self._replace(at=self.at.before())


@dataclasses.dataclass(slots=True, eq=False)
class LaneScan:
    """A loop in the user's code whose body is one block, with the lists that it appends results to.

    Attributes:
        body: the block.
        test: the block of a `while` condition; None for a `for`.
        states: for each variable that is carried or read after the loop, the index of the block's output.
        carried: for each input of the block, the index of the state it reads, or None; `tested`: same for the test.
        ahead: {index of an input: value}, for inputs that are known before their step.
        followers: variables that have such a value after each step; they come after the states.
        listed: for each list, the index of the block's output that is appended to it.
        paths: for inputs read from other objects: (True if an input of the test, index of the input, index into
            `bases`, keys); a key is `("attr", name)` or `("item", key)`.
        stores: for statements `out[item] = value` after the block: (index of the block's output, index of the array in
            `bases`, the item).
    """

    body: LaneBlock
    test: LaneBlock | None
    states: Sequence[int]
    carried: Sequence[int | None]
    tested: Sequence[int | None]
    ahead: Mapping[int, Ahead]
    followers: Sequence[Ahead]
    listed: Sequence[int]
    paths: Sequence[tuple[bool, int, int, tuple[tuple[str, Any], ...]]]
    stores: Sequence[tuple[int, int, Ahead]]

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
        if region.root.blocks.get(self.body, MOST_FAILURES) >= MOST_FAILURES or not self._stays(values, tested, bases):
            return None
        run, values = self.body.known(values, region)
        if run is None or not all(type(x) is MaskedBatch and x.region is region for x in states[: len(self.states)]):
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
        self, loop: DivergentLoop, region: Region, run: LaneProgram, states: Sequence[Any], values: Sequence[Any],
        tested: Sequence[Any],
    ) -> None:  # fmt: skip
        assert self.test is not None
        if region.root.blocks.get(self.test, MOST_FAILURES) >= MOST_FAILURES:
            return
        test, tested = self.test.known(tested, region)
        if test is None or run.program.lengths or test.program.lengths:
            return
        (result,) = test.program.results
        if len(loop.at_head) != 1 or result.dtype != np.bool_ or result.ndim:
            return
        where = [self.tested[i] if i < len(self.tested) else None for i in test.places]
        if any(type(tested[i]) is MaskedBatch and at is None for i, at in zip(test.places, where, strict=True)):
            return
        going = Test(test.program, where, test.operands(tested))
        found = self._scan(run, values, {}, states, (), going)
        if found is not None:
            loop.at_head = []
            loop.ended.append((region, tuple(self._batches(run, found[0], region, found[2]))))

    def _for(
        self, loop: object, region: Region, run: LaneProgram, states: Sequence[Any], values: Sequence[Any],
        bases: Sequence[Any], lists: Sequence[Any],
    ) -> tuple[Any, ...] | None:  # fmt: skip
        if not isinstance(loop, RaggedLoop | UniformLoop) or any(type(each) is not LaneList for each in lists):
            return None
        if len({*map(id, lists)}) < len(lists):
            return None
        first = loop.step + 1
        counts = list(loop.counts[first : first + max(_MOST_ROWS // max(region.count, 1), 1)])
        if len(counts) < _FEWEST or any(type(values[place]) is not MaskedBatch for place in self.ahead):
            return None
        reader = _ReadAhead(loop, region, bases, {id(bases[base]) for _, base, _ in self.stores})
        last = first + len(counts)
        stores: Any = [(output, base, reader.number(how, first)) for output, base, how in self.stores]
        if not all(_takes_rows(run, loop, values, bases[base], output, at) for output, base, at in stores):
            return None
        rows = {place: reader.rows(how, first, last) for place, how in self.ahead.items()}
        ends = [
            reader.after(how, x, first, last) for how, x in zip(self.followers, states[len(self.states) :], strict=True)
        ]
        if any(each is None for each in (*rows.values(), *ends)):
            return None
        steps = Stepped(counts, [0, *np.cumsum(counts).tolist()])
        listed = sorted({*self.listed, *[output for output, _, _ in self.stores]})
        found = self._scan(run, values, rows, states, listed, steps)
        if found is None:
            return None
        loop.step += len(counts)
        loop.tries = 0
        outputs = dict(zip(listed, found[1], strict=True))
        regions = _regions(loop, region, steps.counts) if lists else []
        for output, one in zip(self.listed, lists, strict=True):
            kind, made = run.outputs[output], outputs[output]
            one.append_steps(as_batch(made, kind, None), _items(kind, made, steps, regions), regions)
        for output, base, at in stores:
            _store_rows(bases[base], outputs[output], at, steps)
        out = self._batches(run, found[0], region, found[2])
        if lists:
            for each in out:
                region.root.freeze(each)
        return (*out, *ends)

    def _scan(
        self, run: LaneProgram, values: Sequence[Any], rows: Mapping[int, Any], states: Sequence[Any],
        listed: Sequence[int], steps: Stepped | Test,
    ) -> tuple[list[Any], list[Any], Mapping[str, Lengths]] | None:  # fmt: skip
        """Run the remaining steps: the last states, the rows of the listed outputs, and the lengths by name.

        None if they are not compiled yet or cannot be, or if NumPy would warn, perhaps about padding.

        Args:
            values: the block's inputs; rows: of all steps, instead of some of the inputs.
        """
        program, operands = run.program, run.operands(values)
        found = padded_operands(program, operands)
        if found is None:
            return None
        data, lengths = found
        for at, i in enumerate(run.places):
            if i in rows:
                packed = rows[i]
                for axis, size in enumerate(program.inputs[at].shape):
                    if type(size) is Affine:  # of the lane, at every step
                        packed = to_width(packed, axis + 1, data[at].shape[axis + 1])
                data[at] = packed
        fed = [None if i >= len(self.carried) else self.carried[i] for i in run.places]
        operand = {state: at for at, state in enumerate(fed) if state is not None}
        feeds = [(output, operand.get(place)) for place, output in enumerate(self.states)]
        if lengths and not _suits_lengths(program, feeds, listed):
            return None
        scan = Scan(
            program, feeds, tuple([type(x) is MaskedBatch for x in operands]),
            [at for at, i in enumerate(run.places) if i in rows], listed, steps,
            [lengths[name].values for name in program.lengths],
        )  # fmt: skip
        begin = [x.data if at is None else data[at] for x, (_, at) in zip(states, feeds, strict=False)]
        if not scan.is_ready(begin, data):
            return None
        made = without_complaints(lambda: scan(begin, data)) if lengths else scan(begin, data)
        return None if made is None else (*made, lengths)

    def _batches(
        self, run: LaneProgram, data: Sequence[Any], region: Region, lengths: Mapping[str, Lengths]
    ) -> list[Any]:
        return [
            as_batch(rows, run.outputs[output], region, lengths) for rows, output in zip(data, self.states, strict=True)
        ]


def _suits_lengths(program: Program, states: Sequence[tuple[int, int | None]], listed: Sequence[int]) -> bool:
    """True if what is kept of each step is of known sizes, and each state keeps its lengths."""
    kinds, results = program.inputs, program.results
    if any(unknown_lengths(results[output].shape) for output in listed):
        return False
    return all(
        results[output] is kinds[operand] or not unknown_lengths((results[output].shape, kinds[operand].shape))
        if operand is not None
        else not unknown_lengths(results[output].shape)
        for output, operand in states
    )


class _ReadAhead:
    """Reads ahead: the rows that the steps of a loop will read.

    Args:
        changed: the ids of the arrays that the steps write into, which are not read.
    """

    def __init__(self, loop: RaggedLoop | UniformLoop, region: Region, bases: Sequence[Any], changed: set[int]) -> None:
        self.loop = loop
        self.region = region
        self.bases = bases
        self.changed = changed
        order = getattr(loop, "order", None)
        self.index = None if order is None else order.index
        self.parent: Any = region if order is None else order.parent

    def number(self, how: Ahead, step: int) -> int | None:
        """The integer, the same in all examples, that a value is in a step; None if it is none."""
        item = self.bases[how.base]
        if how.at is not None or type(item) is not int or not _counts_up(self.loop.sequence):
            return None
        return item + how.shift - how.late + step - self.loop.step

    def rows(self, how: Ahead, first: int, last: int) -> Any:
        """The values of steps `first:last`, one step after the other, (rows, *value); None if they are not known."""
        if how.shift:
            return None
        if how.at is None:
            items = rows_of(self.bases[how.base], self.region.root)
            if items is None or items.last.region is not self.region or first < how.late:
                return None
            out = items.packed(first - how.late, last - how.late)
            starts = np.cumsum([0, *self.loop.counts[first - how.late : last - how.late]])
            steps, lanes = steps_and_lanes(self.loop.counts[first:last])
            return rows_p(out, starts[steps] + lanes, unique=True) if how.late else out
        table, start = _plain_read(self.bases[how.base], how.keys), self.number(how.at, first)
        if id(table) in self.changed:
            return None
        if start is not None:
            return self._numbered(table, start, first, last)
        ids = self.rows(how.at, first, last) if _is_table(table) else None
        return table[ids] if ids is not None and ids.ndim == 1 and ids.dtype.kind in "iu" else None

    def after(self, how: Ahead, now: Any, first: int, last: int) -> Any:
        """The value of the last step of each lane, given that of step `first - 1`; None if it is not known."""
        counts = np.array(self.loop.counts[first - 1 : last])
        lanes = np.arange(self.region.count)
        steps = np.searchsorted(-counts, -lanes) - 1  # of each lane
        start = self.number(how, first - 1)
        if start is not None and type(now) is int:
            return start + len(counts) - 1 if counts[-1] == len(lanes) else weak_lanes(start + steps, int)
        if type(now) is not MaskedBatch or now.is_ragged or now.region is not self.region:
            return None
        rows = self.rows(how, first - 1, last)
        if rows is None:
            return None
        rows = rows_p(rows, (np.cumsum(counts) - counts)[steps] + lanes, unique=True)
        out = MaskedBatch.of_data(rows, now.sizes, self.region, now.scalar)
        return out if is_scalar(now) else freeze(unclear_view(out, now))

    def _numbered(self, table: Any, start: int, first: int, last: int) -> Any:
        """Rows `start`, `start + 1`, … of an array of each lane; None where one has fewer."""
        if isinstance(table, Packed) and not isinstance(table.values, Packed):
            table = table.to_masked()  # type: ignore[attr-defined]
        if type(table) is not MaskedBatch or not table.sizes or start < 0:
            return None
        source = table if table.region is self.parent else self.parent.narrow(table)
        ends = np.asarray(self.loop.sequence.lengths())
        if np.any((ends > first) & (lane_lengths(source.sizes[0], self.parent.count) < ends - first + start)):
            return None
        steps, lanes = steps_and_lanes(self.loop.counts[first:last])
        lanes = lanes if self.index is None else self.index[lanes]
        data = padded(source.data)
        return rows_p(reshaped(data, (-1, *data.shape[2:])), lanes * data.shape[1] + start + steps, unique=True)


def _is_table(table: object) -> bool:
    return type(table._ab_value if type(table) is TapeArray else table) in (np.ndarray, EmbeddingTable)


def _takes_rows(run: LaneProgram, loop: Any, values: Sequence[Any], out: Any, output: int, first: int | None) -> bool:
    """True if the remaining steps store rows of the array's own kind at consecutive places, from `first` on.

    Nothing that the block reads may be the array, or a view of it: each step would change it.
    """
    region: Any = current_region()
    kind = run.outputs[output]
    if type(out) is not MaskedBatch or out.region is not region or out.scalar is not None:
        return False
    if has_views(out) or any(value is out for value in values):
        return False
    if first is None or first < 0 or not is_plain(out.data):
        return False
    if not out.sizes or out.sizes[1:] != kind[0] or out.data.dtype != run.program.results[output].dtype:
        return False
    steps = np.searchsorted(-np.array(loop.counts), -np.arange(region.count))  # of each lane
    return bool(np.all(lane_lengths(out.sizes[0], region.count) >= steps - loop.step - 1 + first))


def _store_rows(out: MaskedBatch, rows: Any, first: int, steps: Stepped) -> None:
    """Store the rows of all steps at consecutive places, from `first` on, in an array per lane."""
    lanes, width = out.data.shape[:2]
    places = [np.arange(count) * width + first + step for step, count in enumerate(steps.counts)]
    flat = np.reshape(out.data, (lanes * width, *out.data.shape[2:]))
    data = np.reshape(put_rows_p(flat, rows, np.concatenate(places), unique=True), out.data.shape)
    write(out, MaskedBatch.in_region(Batched(data, out.sizes), out.region))


def _counts_up(sequence: Any) -> bool:
    """True if each integer that is an item, the same for all examples, is one more in each step."""
    kind = type(sequence)
    if kind is Zipped:
        return all(map(_counts_up, sequence.parts))
    if kind is Enumerated:
        return type(sequence.start) is int and _counts_up(sequence.inner)
    if kind is SharedSequence:
        return type(sequence.values) is range and sequence.values.step == 1
    if kind is Ranges:
        return type(sequence.start) is int and type(sequence.step) is int and sequence.step == 1
    return kind is RowSequence


def _items(
    kind: tuple[Any, bool, bool], rows: np.ndarray | TapeArray, steps: Stepped, regions: Sequence[Any]
) -> list[Any]:
    """One batch per step: the values that the step appends to a list."""
    out = []
    for step, region in enumerate(regions):
        batch = as_batch(rows_between(rows, steps.offsets[step], steps.offsets[step + 1]), kind, region)
        region.root.freeze(batch)
        out.append(batch)
    return out


def _regions(loop: Any, region: Region, counts: Sequence[int]) -> list[Any]:
    """The region of each step."""
    fewer = {count: Prefix(loop.order, count) for count in dict.fromkeys(counts) if count != region.count}
    return [fewer.get(count, region) for count in counts]


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
