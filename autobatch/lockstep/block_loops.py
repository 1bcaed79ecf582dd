"""Loops whose body is one block: once a step has run, the steps that are left run as one op.

The rewritten code asks a loop's `ScanSite` at the end of each step. Where the next steps are as the one before (the
block's program is known, the loop's items are rows, what else it reads stays) they run as one `blocks.scan.Scan`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.blocks.program import Hoisted, Program, hoisted
from autobatch.blocks.scan import Scan, Stepped, Test
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.lockstep.block_launch import BlockRun, Site, batch_of, launch_in_silence
from autobatch.lockstep.regions.loops import Loop, UniformLoop
from autobatch.lockstep.regions.region import Prefix
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.sequences import RowSequence, Zipped, rows_of
from autobatch.ops.rules.row_gather import rows_between

_FEWEST = 3  # steps that are worth it
_MOST_TRIES = 6  # in one loop
_MOST_ROWS = 1 << 16


class Steps(NamedTuple):
    """What runs in each of the steps to come.

    Attributes:
        program: the body, or what is left of it; data: its operands; rows: which have a row for each lane.
        places: for each operand the input of the body that it is, or None for what was computed before.
        stepped: the operands that have rows of their own in each step.
    """

    program: Program
    data: list[Any]
    rows: tuple[bool, ...]
    places: list[int | None]
    stepped: list[int]


class ScanSite:
    """One loop whose body is one block, and the lists that its results are appended to.

    Args:
        body: the block.
        test: that of the condition, of a `while`.
        states: for each variable that the loop carries or that is read behind it, the output of the block.
        carried: for each input of the block the state that it is, or None; `tested`: the same of the test's inputs.
        items: the inputs that are the loop's items.
        listed: for each list, the output of the block that is appended to it.
        paths: for inputs of the block that are read from something else: (input, number of what it is read from, keys),
            a key `("attr", name)` or `("item", key)`.
    """

    __slots__ = ("body", "carried", "hoists", "items", "listed", "paths", "states", "test", "tested")

    def __init__(
        self,
        body: Site,
        test: Site | None,
        states: Sequence[int],
        carried: Sequence[int | None],
        tested: Sequence[int | None],
        items: Sequence[int],
        listed: Sequence[int],
        paths: Sequence[tuple[bool, int, int, tuple[tuple[str, Any], ...]]],
    ) -> None:
        self.body = body
        self.hoists: dict[Any, Hoisted | None] = {}
        self.test = test
        self.states = tuple(states)
        self.carried = tuple(carried)
        self.tested = tuple(tested)
        self.items = frozenset(items)
        self.listed = tuple(listed)
        self.paths = tuple(paths)

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
            loop: the loop object, of which a step has just ended.
            states: the variables' values; values: the block's inputs; tested: the test's inputs.
            bases: what paths start from; lists: what is appended to.

        Returns:
            the variables' values after those steps, of a `for`; None if there were none, and of a `while`.
        """
        region: Any = current_region()
        if region is None or getattr(loop, "tries", _MOST_TRIES) >= _MOST_TRIES:
            return None
        loop.tries += 1
        run: BlockRun | None = region.root.blocks.get(self.body)
        if run is None or run.program is None:
            return None
        if not (config.blocks and run.suits(values) and self._stays(values, tested, bases)):
            return None
        if not all(type(x) is MaskedBatch and x.region is region for x in states):
            return None
        if self.test is not None:
            self._while(loop, region, run, states, values, tested)
            return None
        return self._for(loop, region, run, states, values, lists)

    def _stays(self, values: Sequence[Any], tested: Sequence[Any], bases: Sequence[Any]) -> bool:
        """Whether what is read from something else, by plain reads, is what was read in the last step."""
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
        if test is None or test.program is None or not test.suits(tested) or self._rows(run, values, region):
            return
        (result,) = test.program.results
        if len(loop.at_head) != 1 or result.dtype != np.bool_ or result.ndim:
            return
        assert run.program is not None
        each = Steps(run.program, run.data(values, region), run.rows, list(run.operands), [])
        where = [self.tested[i] for i in test.operands]
        if any(type(tested[i]) is MaskedBatch and at is None for i, at in zip(test.operands, where, strict=True)):
            return
        going = Test(test.program, where, [tested[i] for i in test.operands])
        found = _run(Scan(each.program, self._states(each), each.rows, (), (), going), states, each.data)
        if found is None:
            return
        loop.at_head = []
        loop.ended.append((region, tuple(self._batches(run, found[0], region))))

    def _for(
        self, loop: Any, region: Any, run: BlockRun, states: Sequence[Any], values: Sequence[Any], lists: Sequence[Any]
    ) -> tuple[Any, ...] | None:
        if not isinstance(loop, Loop | UniformLoop) or not _is_of_rows(loop.sequence):
            return None
        if any(type(each) is not LaneList for each in lists):
            return None
        rows = self._rows(run, values, region)
        if len({*map(id, lists)}) < len(lists) or not all(x.last.region is region for x in rows.values()):
            return None
        if rows.keys() != self.items.intersection(run.operands):
            return None
        first = loop.step + 1
        counts = list(loop.counts[first : first + max(_MOST_ROWS // max(region.count, 1), 1)])
        if len(counts) < _FEWEST:
            return None
        each = self._hoisted(run, rows, values, region, first, first + len(counts))
        if each is None:
            return None
        steps = Stepped(counts, [0, *np.cumsum(counts).tolist()])
        scan = Scan(each.program, self._states(each), each.rows, each.stepped, sorted({*self.listed}), steps)
        found = _run(scan, states, each.data)
        if found is None:
            return None
        last, listed = found
        loop.step += len(counts)
        loop.tries = 0
        outputs = dict(zip(scan.listed, listed, strict=True))
        regions = _regions(loop, region, steps.counts)
        for output, one in zip(self.listed, lists, strict=True):
            kind, made = run.outputs[output], outputs[output]
            one.append_steps(batch_of(made, kind, None), _items(kind, made, steps, regions), regions)
        out = self._batches(run, last, region)
        if lists:
            for each in out:
                region.root.freeze(each)
        return tuple(out)

    def _rows(self, run: BlockRun, values: Sequence[Any], region: Any) -> dict[int, RowSequence]:
        """The inputs that are the items of a loop over rows, this one or another, and the rows."""
        found = [(i, rows_of(values[i], region.root)) for i, *_ in run.batches]
        return {i: rows for i, rows in found if rows is not None}

    def _hoisted(
        self, run: BlockRun, rows: dict[int, RowSequence], values: Sequence[Any], region: Any, first: int, last: int
    ) -> Steps | None:
        """The steps from one up to another, the products of their items computed at once.

        None where NumPy would warn of those: which example it is, and whether it comes that far, only its own step can
        say.
        """
        program = run.program
        assert program is not None
        data = run.data(values, region)
        for at, i in enumerate(run.operands):
            if i in rows:
                data[at] = rows[i].packed(first, last)
        items = [at for at, i in enumerate(run.operands) if i in rows]
        key = program, *items
        if key not in self.hoists:
            fixed = [at for at, own in enumerate(run.rows) if not own]
            self.hoists[key] = hoisted(program, items, fixed)
        parts = self.hoists[key]
        if parts is None:
            return Steps(program, data, run.rows, list(run.operands), items)
        early = launch_in_silence(
            parts.early, [data[at] for at in parts.early_inputs], [at in items for at in parts.early_inputs]
        )
        if early is None:
            return None
        kept = parts.rest_inputs
        own = (*[run.rows[at] for at in kept], *[True] * len(early))
        places = [*[run.operands[at] for at in kept], *[None] * len(early)]
        stepped = [place for place, at in enumerate(kept) if at in items]
        return Steps(
            parts.rest, [*[data[at] for at in kept], *early], own, places, [*stepped, *range(len(kept), len(own))]
        )

    def _states(self, steps: Steps) -> list[tuple[int, int | None]]:
        states = [None if at is None else self.carried[at] for at in steps.places]
        operand = {state: i for i, state in enumerate(states) if state is not None}
        return [(output, operand.get(place)) for place, output in enumerate(self.states)]

    def _batches(self, run: BlockRun, data: Sequence[Any], region: Any) -> list[Any]:
        return [batch_of(rows, run.outputs[output], region) for rows, output in zip(data, self.states, strict=True)]


def _items(kind: tuple[Any, bool, bool], rows: Any, steps: Stepped, regions: Sequence[Any]) -> list[Any]:
    """The values that each step appends to a list."""
    out = []
    for step, region in enumerate(regions):
        batch = batch_of(rows_between(rows, steps.offsets[step], steps.offsets[step + 1]), kind, region)
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
    return type(sequence) is RowSequence


def _run(scan: Scan, states: Sequence[Any], operands: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """The results of a scan; None as long as it is not compiled."""
    data = [x.data for x in states]
    return scan(data, operands) if scan.is_ready(data, operands) else None


def _plain_read(base: Any, keys: Sequence[tuple[str, Any]]) -> Any:
    """What is read from an object without any code of its class; None where that is not so."""
    for how, key in keys:
        kind = type(base)
        if how == "item":
            if kind is LaneList:  # made in the call, whose own code cannot change it meanwhile
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
