"""Loops whose body is one block: once a step has run, the steps that are left run as one op.

The rewritten code asks a loop's `ScanSite` at the end of each step. Where the next steps are as the one before (the
block's program is known, the loop's items are rows, what else it reads stays) they run as one `blocks.scan.Scan`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.masked import MaskedBatch
from autobatch.blocks.scan import Scan, Stepped, Test
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.lockstep.block_launch import BlockRun, NextSteps, Site, batch_of
from autobatch.lockstep.lookahead import Chunk
from autobatch.lockstep.regions.loops import Loop, UniformLoop
from autobatch.lockstep.regions.region import Prefix
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.sequences import RowSequence, Trees
from autobatch.ops.rules.row_gather import rows_between

_FEWEST = 3  # steps that are worth it
_MOST_TRIES = 6  # in one loop
_MOST_ROWS = 1 << 16


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

    __slots__ = ("body", "carried", "items", "listed", "paths", "states", "test", "tested")

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
        body.whole = test is None
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
        if test is None or test.program is None or not test.suits(tested) or run.items or run.ahead.rows is not None:
            return
        (result,) = test.program.results
        if len(loop.at_head) != 1 or result.dtype != np.bool_ or result.ndim:
            return
        ahead = run.next_steps(values, region, None)
        if ahead is None or ahead.stepped:
            return
        where = [self.tested[i] for i in test.operands]
        if any(type(tested[i]) is MaskedBatch and at is None for i, at in zip(test.operands, where, strict=True)):
            return
        steps = Test(test.program, where, [tested[i] for i in test.operands])
        scan = Scan(ahead.program, self._states(ahead), ahead.rows, (), (), steps)
        found = _run(scan, states, ahead)
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
        if len({*map(id, lists)}) < len(lists) or not {i for i, _ in run.items}.issubset(self.items):
            return None
        counts = loop.counts
        first = loop.step + 1
        chunk = run.ahead.chunk if run.ahead.rows is not None else None
        if chunk is None:
            few = max(_MOST_ROWS // max(region.count, 1), 1)
            chunk = Chunk(first, min(len(counts), first + few), np.array(counts[first : first + few], np.int64))
        if chunk.last - first < _FEWEST or not chunk.first <= first:
            return None
        chunk = Chunk(first, chunk.last, chunk.counts[first - chunk.first :])
        ahead = run.next_steps(values, region, chunk)
        if ahead is None:
            return None
        if any(at in self.items and i not in ahead.stepped for i, at in enumerate(ahead.places)):
            return None
        steps = Stepped(chunk.counts.tolist(), chunk.offsets)
        scan = Scan(ahead.program, self._states(ahead), ahead.rows, ahead.stepped, sorted({*self.listed}), steps)
        found = _run(scan, states, ahead)
        if found is None:
            return None
        last, listed = found
        loop.step = chunk.last - 1
        loop.tries = 0
        run.ahead.used += chunk.last - first
        outputs = dict(zip(scan.listed, listed, strict=True))
        regions = _regions(loop, region, steps.counts)
        for output, each in zip(self.listed, lists, strict=True):
            kind, rows = run.outputs[output], outputs[output]
            each.append_steps(batch_of(rows, kind, None), _items(kind, rows, steps, regions), regions)
        out = self._batches(run, last, region)
        if lists:
            for each in out:
                region.root.freeze(each)
        return tuple(out)

    def _states(self, ahead: NextSteps) -> list[tuple[int, int | None]]:
        states = [None if at is None else self.carried[at] for at in ahead.places]
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
    return type(sequence) in (RowSequence, Trees)


def _run(scan: Scan, states: Sequence[Any], ahead: NextSteps) -> tuple[list[Any], list[Any]] | None:
    """The results of a scan; None as long as it is not compiled."""
    data = [x.data for x in states]
    return scan(data, ahead.data) if scan.is_ready(data, ahead.data) else None


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
