"""Loops that lanes leave one by one: `while`, and `for` with break, continue or return in it.

All lanes that are in the loop are at the same step. At its head those meet that came to the end of the body or went on
by `continue`; what a lane leaves behind when it goes is put aside, so the work stays linear in the steps of the lanes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.core.current import current_region, set_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.regions.branches import parted, truth
from autobatch.lockstep.regions.joins import Piece, meet, narrowed_values
from autobatch.lockstep.regions.loops import items_of
from autobatch.lockstep.regions.region import Order, Prefix, Subset, check_time, lanes_within, part_of

__all__ = ["Walk", "for_walk", "until", "while_walk"]


class Walk:
    """What a `while` and a `for` have in common. A `while` asks `stops` at the head of each step.

    Attributes:
        changed: the values of the names are not those of the statement that ran before: read `values`.
        nobody: no lane is in the loop any more; behind the loop: none came out of it.
        tries: how often it was tried to run several steps at once (`lockstep.scans`).
    """

    __slots__ = ("at_head", "base", "broken", "changed", "ended", "nobody", "own", "region", "tries", "values")

    def __init__(self, values: tuple[Any, ...], own: tuple[int, ...]) -> None:
        self.tries = 0
        self.base: Any = current_region()
        self.region: Any = self.base
        self.values = values
        self.own = own
        self.changed = self.nobody = False
        self.at_head: list[Piece] = [(self.base, values)]
        self.ended: list[Piece] = []
        self.broken: list[Piece] = []

    def __iter__(self) -> Iterator[Any]:
        while self._gather():
            yield None

    def _gather(self) -> bool:
        """Go on with the lanes that are at the head; False if there are none."""
        pieces, self.at_head = self.at_head, []
        if not pieces:
            return False
        if self.base is not None:
            check_time(self.base)
        self.changed = len(pieces) > 1 or pieces[0][0] is not self.region
        self.region, self.values = meet(pieces, self.region, self.own) if self.changed else pieces[0]
        set_region(self.region)
        return True

    def _part(self, stay: Any, go: Any) -> None:
        self.ended.append((go, narrowed_values(self.values, go, self.own)))
        self._move(stay)

    def _move(self, region: Any) -> None:
        self.values = narrowed_values(self.values, region, self.own)
        self.region = region
        self.changed = True
        set_region(region)

    def stops(self, test: Any, values: tuple[Any, ...]) -> bool:
        """The condition of a `while`. True if a lane ends here: then `values` are those of the lanes that go on."""
        decided = truth(test)
        if decided is True:
            return False
        self.values = values
        if decided is False:
            self.ended.append((self.region, values))
            self.nobody = True
            return True
        here = current_region()
        self._part(part_of(here, decided, self.base), part_of(here, ~decided, self.base))
        return True

    def next(self, values: tuple[Any, ...]) -> None:
        """The lanes of the current region go to the head: the end of the body, or `continue`."""
        self.at_head.append((current_region(), values))

    def leave(self, values: tuple[Any, ...]) -> None:
        """The lanes of the current region leave by `break`."""
        self.broken.append((current_region(), values))

    def otherwise(self) -> Iterator[tuple[Any, ...]]:
        """The `else` of the loop, for the lanes that came to its end, with their values."""
        pieces, self.ended = self.ended, []
        if pieces:
            _, values = meet(pieces, self.base, self.own)
            yield values

    def after(self) -> tuple[Any, ...]:
        """The values behind the loop, for the lanes that came out of it: those are the region now."""
        pieces = [*self.ended, *self.broken]
        self.nobody = not pieces
        if not pieces:
            set_region(self.base)
            return self.values
        return meet(pieces, self.base, self.own)[1]


class _Items(Walk):
    """A `for` over items that are the same for all lanes."""

    __slots__ = ("iterable", "temporary")

    def __init__(self, iterable: Any, temporary: bool, values: tuple[Any, ...], own: tuple[int, ...]) -> None:
        super().__init__(values, own)
        self.iterable = iterable
        self.temporary = temporary or not hasattr(iterable, "__next__")

    def __iter__(self) -> Iterator[Any]:
        set_region(self.base)
        running = iter(self.iterable)
        while self._gather():
            if self.region is not self.base and not self.temporary:
                raise NeedsLoop("an iterator is used up by some of its examples")
            try:
                item = next(running)
            except StopIteration:
                self.ended.append((self.region, self.values))
                return
            yield item


class _LaneItems(Walk):
    """A `for` over items per lane, of any number."""

    __slots__ = ("counts", "order", "ranks", "sequence")

    def __init__(self, sequence: Any, values: tuple[Any, ...], own: tuple[int, ...]) -> None:
        super().__init__(values, own)
        self.sequence = sequence
        lengths = sequence.lengths()
        total = self.base.count
        if isinstance(lengths, int) or not total or (lengths == lengths[0]).all():
            steps = lengths if isinstance(lengths, int) else int(lengths[0]) if total else 0
            self.order: Any = None
            self.counts = [total] * steps
            return
        descending = bool((lengths[1:] <= lengths[:-1]).all())
        index = None if descending else np.argsort(-lengths, kind="stable")
        falling = lengths if index is None else lengths[index]
        self.order = Order(self.base, index, total)
        self.ranks = np.arange(total) if index is None else self.order.inverse
        self.counts = (total - np.searchsorted(falling[::-1], np.arange(falling[0]), side="right")).tolist()
        self.order.counts = self.counts

    def __iter__(self) -> Iterator[Any]:
        self.sequence.open(self.order)
        items = self.base if self.order is None else Prefix(self.order, self.base.count)
        step = 0
        while self._gather():
            if step == len(self.counts):
                self.ended.append((self.region, self.values))
                self.sequence.done(self.region)
                return
            count = self.counts[step]
            if self.order is not None:
                if items.count != count:
                    items = Prefix(self.order, count)
                if not self._keep(items):
                    return
            set_region(items)
            item = self.sequence.at(step, items)
            set_region(self.region)
            self.sequence.advance(self.region)
            yield item
            step += 1

    def _keep(self, items: Prefix) -> bool:
        """Go on with the lanes that have an item; False if none has."""
        if self.region is items:
            return True
        place: Any = lanes_within(self.region, self.base)
        ranks = self.ranks[place]
        has = ranks < items.count
        if not has.any():
            self.sequence.done(self.region)
            self.ended.append((self.region, self.values))
            return False
        lanes = self.region.lanes()
        if has.all() and len(ranks) < items.count:
            return True
        staying = lanes[has][np.argsort(ranks[has], kind="stable")]
        stay = items if len(staying) == items.count else Subset(self.base, staying)
        if has.all():
            self._move(stay)
        else:
            ended = Subset(self.base, lanes[~has])
            self.sequence.done(ended)
            self._part(stay, ended)
        return True


def until(iterable: Any, step: Any, stop: bool) -> Any:
    """Whether `step` is as true as `stop` for an item; each lane looks no further than the first one."""
    walk = for_walk(iterable, True, ())
    for item in walk:
        region = current_region()
        decided = truth(step(item))
        set_region(region)
        if isinstance(decided, bool):
            (walk.leave if decided is stop else walk.next)(())
            continue
        found, others = parted(decided if stop else ~decided)
        set_region(found)
        walk.leave(())
        set_region(others)
        walk.next(())
    pieces = [(at, (stop,)) for at, _ in walk.broken] + [(at, (not stop,)) for at, _ in walk.ended]
    return meet(pieces, walk.base)[1][0]


def while_walk(values: tuple[Any, ...], own: tuple[int, ...] = ()) -> Walk:
    """What a `while` runs over."""
    return Walk(values, own)


def for_walk(iterable: Any, temporary: bool, values: tuple[Any, ...], own: tuple[int, ...] = ()) -> Walk:
    """What a `for` with exits runs over. `temporary`: the iterable has no other name."""
    sequence = items_of(iterable)
    if sequence is None:
        return _Items(iterable, temporary, values, own)
    return _LaneItems(sequence, values, own)
