"""Loops: what rewritten `for` statements and comprehensions run over, and how their variables follow the lanes."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.batches.base import Batch
from autobatch.batches.examples import take_lanes
from autobatch.batches.masked import MaskedBatch
from autobatch.core.batched import Batched
from autobatch.core.current import current_region, let_go, set_region
from autobatch.core.pytree import is_node, leaves, map_tree
from autobatch.errors import NeedsLoop
from autobatch.lockstep.regions.region import Order, Prefix, Subset, check_time
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.merging import UNBOUND, batch_of, joined
from autobatch.lockstep.values.operators import refuse_hooks
from autobatch.lockstep.values.own_objects import freeze, is_made, require_own
from autobatch.lockstep.values.sequences import LaneSequence, lane_sequence
from autobatch.ops.rules.aliasing import has_views, is_scalar, zero_d
from autobatch.ops.rules.rows import rows_between

__all__ = ["Loop", "SharedLoop", "UniformLoop", "each", "items_of", "loop", "loop_over"]


class SharedLoop:
    """A loop that all lanes run alike over one iterable."""

    __slots__ = ("iterable",)
    fewer = False

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        region: Any = current_region()
        if region is None or region.root.deadline is None:
            yield from self.iterable
            return
        for item in self.iterable:
            check_time(region)
            yield item

    def narrow(self, kept: tuple[Any, ...], carried: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        return kept + carried

    def merge(self, kept: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        return kept


class UniformLoop(SharedLoop):
    """A loop over per-lane items of which every lane has as many: it stays in its region.

    `step`, `counts`, `tries`: as those of a `Loop`.
    """

    __slots__ = ("counts", "step", "tries")

    def __iter__(self) -> Iterator[Any]:
        sequence: LaneSequence = self.sequence
        sequence.open(None)
        region: Any = current_region()
        self.counts = [region.count] * sequence.shortest()
        self.step = self.tries = 0
        while self.step < len(self.counts):
            check_time(region)
            item = sequence.at(self.step, region)
            sequence.advance(region)
            yield item
            self.step += 1
        sequence.done(region)

    @property
    def sequence(self) -> Any:
        return self.iterable


class Loop:
    """A loop over per-lane items of different number: the lanes in order of length, each step in a prefix of them.

    Attributes:
        fewer: lanes have left since the step before, so what the loop carries must be narrowed.
        step: the number of the step that runs; what runs several steps at once says here which was the last of them.
        counts: how many lanes each step has.
        tries: how often that was tried (`lockstep.scans`).
    """

    __slots__ = (
        "counts", "current", "fewer", "lengths", "order", "parent", "pieces", "previous", "sequence", "step", "tries",
    )  # fmt: skip

    def __init__(self, sequence: LaneSequence, lengths: np.ndarray) -> None:
        self.parent: Any = current_region()
        self.sequence = sequence
        descending = bool((lengths[1:] <= lengths[:-1]).all())
        index = None if descending else np.argsort(-lengths, kind="stable")
        self.lengths = lengths if index is None else lengths[index]
        self.order = Order(self.parent, index, len(lengths))
        self.fewer = False
        self.pieces: list[tuple[tuple[Any, ...], int]] = []
        whole = Prefix(self.order, len(lengths))
        self.previous: Any = whole
        self.current: Any = whole

    def __iter__(self) -> Iterator[Any]:
        lengths, sequence = self.lengths, self.sequence
        total = len(lengths)
        counts = (total - np.searchsorted(lengths[::-1], np.arange(lengths[0]), side="right")).tolist()
        self.order.counts = self.counts = counts
        self.step = self.tries = 0
        sequence.open(self.order)
        region = self.current
        if counts and counts[0] == total:
            set_region(region)
            self.fewer = True
        while self.step < len(counts):
            count = counts[self.step]
            if count != region.count:
                self.previous = region
                self.current = region = Prefix(self.order, count)
                set_region(region)
                self.fewer = True
            check_time(region)
            item = sequence.at(self.step, region)
            sequence.advance(region)
            yield item
            self.fewer = False
            self.step += 1
        sequence.done(self.parent)

    def narrow(self, kept: tuple[Any, ...], carried: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        """Values of the lanes that go on; of `kept`, what the others leave behind is put aside.

        `own`: places of values that no other name knows, so that they may be written into as they are narrowed.
        """
        self.fewer = False
        current, previous = self.current, self.previous
        if current is not previous and _are_simple((*kept, *carried), previous):  # the case of nearly every step
            count = current.count
            if kept:
                stop = previous.count
                self.pieces.append((tuple([value._between(count, stop) for value in kept]), stop - count))
            out = tuple(
                [MaskedBatch.of_data(rows_between(x.data, 0, count), x.sizes, current) for x in (*kept, *carried)]
            )
        else:
            out = self._narrowed(kept, carried)
        for place, (new, old) in enumerate(zip(out, (*kept, *carried), strict=True)):
            if new is not old and (place not in own or has_views(old)):
                _freeze_both(new, old)
        return out

    def _narrowed(self, kept: tuple[Any, ...], carried: tuple[Any, ...]) -> tuple[Any, ...]:
        current, previous = self.current, self.previous
        memo: dict[int, Any] = {}
        before = [self._within(value, previous, memo) for value in kept]
        if current is previous:
            return (*before, *[self._within(value, current, memo) for value in carried])
        if kept:
            self.pieces.append((tuple([self._leaving(value) for value in before]), previous.count - current.count))
        memo = {}
        return tuple([self._within(value, current, memo) for value in (*before, *carried)])

    def _leaving(self, value: Any) -> Any:
        start, stop = self.current.count, self.previous.count
        if isinstance(value, Batch):
            return value._between(start, stop)
        if is_node(value):
            return map_tree(lambda leaf: leaf._between(start, stop) if isinstance(leaf, Batch) else leaf, value)
        return value

    def _within(self, value: Any, region: Prefix, memo: dict[int, Any]) -> Any:
        """A value, containers included, restricted to a region; containers that are one object stay one."""
        if isinstance(value, Batch):
            return value if value.region is region else region.narrow(value)
        if not is_node(value) or (isinstance(value, tuple) and not value):
            return value
        known = memo.get(id(value))
        if known is None:
            let_go(value)
            known = map_tree(lambda leaf: region.narrow(leaf) if isinstance(leaf, Batch) else leaf, value)
            memo[id(value)] = known
        return known

    def merge(self, kept: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        """Values for all lanes again, in their own order; the loop's region ends. `own` as in `narrow`."""
        current, parent = self.current, self.parent
        set_region(parent)
        if not kept:
            return kept
        memo: dict[int, Any] = {}
        values = [self._within(value, current, memo) for value in kept]
        counts = [current.count]
        columns = [[value] for value in values]
        for piece, count in reversed(self.pieces):
            counts.append(count)
            for column, value in zip(columns, piece, strict=True):
                column.append(value)
        missing = self.order.size - sum(counts)
        if missing:
            raise NeedsLoop("lanes left a loop before its variables were known")
        homes = self._homes(counts)
        out = tuple(self._merged(column, counts, homes) for column in columns)
        for place, (new, old) in enumerate(zip(out, kept, strict=True)):
            if new is not old:
                if isinstance(old, Batched) and not is_scalar(old):
                    zero_d(new)
                if place not in own or has_views(old):
                    _freeze_both(new, old)
        return out

    def _merged(self, column: list[Any], counts: list[int], homes: list[Any]) -> Any:
        """One value for all lanes; for those that have bound the name, where others have not and cannot read it."""
        if all(value is not UNBOUND for value in column):
            return self._unsorted(joined(column, counts, homes))
        bound = [i for i, value in enumerate(column) if value is not UNBOUND]
        if not bound or any(is_node(column[i]) or isinstance(column[i], LaneList) for i in bound):
            return UNBOUND
        lanes = np.concatenate([homes[i].lanes() for i in bound])
        order = np.argsort(lanes, kind="stable")
        target = Subset(self.parent, lanes[order])
        set_region(target)
        value = joined(
            [batch_of(column[i], counts[i]) for i in bound], [counts[i] for i in bound], [homes[i] for i in bound]
        )
        set_region(self.parent)
        out = take_lanes(value, order)
        out.region = target
        return out

    def _homes(self, counts: list[int]) -> list[Any]:
        """The lanes of each piece, of which the lanes of the loop's order belong to the first, the second, ..."""
        lanes = Prefix(self.order, self.order.size).lanes()
        starts = np.cumsum([0, *counts])
        return [Subset(self.parent, lanes[a:b]) for a, b in itertools.pairwise(starts)]

    def _unsorted(self, value: Any) -> Any:
        """A value of all lanes, from the loop's order to the parent's."""

        def put_back(leaf: Any) -> Any:
            if not isinstance(leaf, Batch):
                return leaf
            if inverse is not None:
                return take_lanes(leaf, inverse, memo)
            leaf = leaf if leaf.region is not self.current else leaf._prefix(self.order.size, memo)
            leaf.region = self.parent
            return leaf

        inverse = self.order.inverse
        memo: dict[Any, Any] = {}
        out = map_tree(put_back, value) if is_node(value) else put_back(value)
        return out


def _are_simple(values: tuple[Any, ...], region: Prefix) -> bool:
    """Whether values are arrays of one shape in each lane of this very region."""
    for value in values:
        if type(value) is not MaskedBatch or value.region is not region or not value.sizes or value.is_ragged:
            return False
    return True


def _freeze_both(new: Any, old: Any) -> None:
    if type(new) is type(old) is MaskedBatch and old.sizes:
        new._frozen = old._frozen = True
        return
    for value in (new, old):
        if isinstance(value, Batch):
            freeze(value)
        elif is_node(value):
            for leaf in leaves(value):
                if isinstance(leaf, Batch):
                    freeze(leaf)


def loop(iterable: Any) -> Any:
    """What a `for` statement runs over."""
    kind = type(iterable)
    if kind is range or kind is list or kind is tuple:
        return SharedLoop(iterable)
    sequence = items_of(iterable)
    return SharedLoop(iterable) if sequence is None else loop_over(sequence)


def items_of(iterable: Any) -> LaneSequence | None:
    """The per-lane items that a loop runs over; None if they are the same for all lanes of the region.

    Raises:
        NeedsLoop: an iterator, which the first example would use up, or an object that says its items itself.
    """
    sequence = lane_sequence(iterable)
    if sequence is not None:
        sequence.require_here()
    elif current_region() is not None:
        if hasattr(iterable, "__next__"):
            if not is_made(iterable):
                raise NeedsLoop("an iterator made outside the call is used up by the first example")
            require_own(iterable, "a loop over an iterator")
        refuse_hooks(iterable, "__iter__", "__getitem__", "__next__")
    return sequence


def loop_over(sequence: LaneSequence) -> Any:
    """The loop over per-lane items: in its region where all lanes have as many, else in prefixes of it."""
    lengths = sequence.lengths()
    if isinstance(lengths, int) or not len(lengths) or (lengths == lengths[0]).all():
        return UniformLoop(sequence)
    return Loop(sequence, lengths)


def each(iterable: Any, step: Any) -> None:
    """Call `step` with each item."""
    running = loop(iterable)
    for item in running:
        step(item)
    running.merge(())
