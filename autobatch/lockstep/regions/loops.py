"""Loops: the objects that rewritten `for`, `while` and comprehensions iterate over, and how variables follow lanes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import take_lanes
from autobatch.core.batched import Batched
from autobatch.core.current_region import check_time, current_region, freeze_dicts, has_deadline, set_region
from autobatch.core.pytree import is_node, map_tree
from autobatch.errors import MAKE_A_LIST, NeedsLoop
from autobatch.lockstep.lanes.region import (
    UNBOUND,
    Order,
    Prefix,
    Subset,
    freeze_copies,
    is_made,
    joined,
    lanes_within,
    require_made_here,
    subset_where,
)
from autobatch.lockstep.regions.branches import truth
from autobatch.lockstep.regions.joins import Piece, is_lent, join_pieces, joined_where_bound, narrowed_values
from autobatch.lockstep.values.lane_operators import refuse_hooks
from autobatch.lockstep.values.sequences import LaneSequence, SharedSequence, lane_sequence
from autobatch.ops.numpy.indexing import rows_between
from autobatch.ops.rules.aliasing import is_scalar, zero_d


class SharedLoop:
    """A loop over one iterable that all lanes share."""

    __slots__ = ("iterable",)
    has_shrunk = False

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        if not has_deadline():
            yield from self.iterable
            return
        for item in self.iterable:
            check_time()
            yield item

    def merge(self, kept: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        return kept


class UniformLoop(SharedLoop):
    """A loop over per-lane items where every lane has the same number of items, so the region stays the same.

    `step`, `counts`, `tries`: as in `RaggedLoop`.
    """

    __slots__ = ("counts", "step", "tries")

    def __iter__(self) -> Iterator[Any]:
        sequence: LaneSequence = self.sequence
        sequence.open(None)
        region: Any = current_region()
        self.counts = [region.count] * sequence.shortest()
        self.step = self.tries = 0
        while self.step < len(self.counts):
            check_time()
            item = sequence.at(self.step, region)
            yield item
            self.step += 1
        sequence.done(region)

    @property
    def sequence(self) -> Any:
        return self.iterable


class RaggedLoop:
    """A loop where the number of items differs by lane: lanes are sorted by length, and each step runs in a prefix.

    Attributes:
        has_shrunk: True if lanes have left since the last step, so that carried values must be narrowed.
        step: index of the current step; code that runs several steps at once sets it to the last of them.
        counts: number of lanes in each step.
        tries: number of attempts to run several steps at once (`lockstep.block_loops`).
    """

    __slots__ = (
        "counts", "current", "has_shrunk", "order", "parent", "pieces", "previous", "sequence", "step", "tries",
    )  # fmt: skip

    def __init__(self, sequence: LaneSequence, lengths: np.ndarray) -> None:
        self.parent: Any = current_region()
        self.sequence = sequence
        self.order = Order.by_length(self.parent, lengths)
        self.has_shrunk = False
        self.pieces: list[tuple[Subset, list[Any]]] = []
        whole = Prefix(self.order, len(lengths))
        self.previous: Any = whole
        self.current: Any = whole

    def __iter__(self) -> Iterator[Any]:
        sequence, total = self.sequence, self.order.size
        self.counts = counts = self.order.counts
        self.step = self.tries = 0
        sequence.open(self.order)
        region = self.current
        if counts and counts[0] == total:
            set_region(region)
            self.has_shrunk = True
        while self.step < len(counts):
            count = counts[self.step]
            if count != region.count:
                self.previous = region
                self.current = region = Prefix(self.order, count)
                set_region(region)
                self.has_shrunk = True
            check_time()
            item = sequence.at(self.step, region)
            yield item
            self.has_shrunk = False
            self.step += 1
        sequence.done(self.parent)

    def narrow(self, kept: tuple[Any, ...], carried: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        """The values for the lanes that go on; for `kept`, the leaving lanes' values are saved for `merge`.

        `own`: positions of values with no other reference: writes into these stay allowed after narrowing.
        """
        self.has_shrunk = False
        current, previous = self.current, self.previous
        saved = len(self.pieces)
        if current is not previous and _are_simple((*kept, *carried), previous):  # nearly every step
            count = current.count
            if kept:
                self._set_aside(kept)
            out = tuple(
                [MaskedBatch.of_data(rows_between(x.data, 0, count), x.sizes, current) for x in (*kept, *carried)]
            )
        else:
            out = self._narrowed(kept, carried)
        left = self.pieces[saved][1] if len(self.pieces) > saved else ()
        for place, (new, old) in enumerate(zip(out, (*kept, *carried), strict=True)):
            if new is not old and (place not in own or is_lent(old)):
                freeze_copies(new, old, *left[place : place + 1])
        return out

    def _narrowed(self, kept: tuple[Any, ...], carried: tuple[Any, ...]) -> tuple[Any, ...]:
        current, previous = self.current, self.previous
        memo: dict[int, Any] = {}
        before = [self._within(value, previous, memo) for value in kept]
        if current is previous:
            return (*before, *[self._within(value, current, memo) for value in carried])
        if kept:
            self._set_aside(before)
        memo = {}
        return tuple([self._within(value, current, memo) for value in (*before, *carried)])

    def _set_aside(self, values: Sequence[Any]) -> None:
        """Keep what the leaving lanes have, for `merge`."""
        start, stop = self.current.count, self.previous.count
        home = self._home(start, stop)

        def leaving(leaf: Any) -> Any:
            if not isinstance(leaf, Batch):
                return leaf
            out = leaf._between(start, stop)
            out.region = home
            return out

        self.pieces.append((home, [map_tree(leaving, each) if is_node(each) else leaving(each) for each in values]))

    def _home(self, start: int, stop: int) -> Subset:
        """The region of consecutive lanes in the loop's order."""
        return Subset(self.parent, Prefix(self.order, self.order.size).lanes()[start:stop])

    def _within(self, value: Any, region: Prefix, memo: dict[int, Any]) -> Any:
        """A value restricted to a region, containers included. `memo` keeps one container object one object."""
        if isinstance(value, Batch):
            return value if value.region is region else region.narrow(value)
        if not is_node(value) or (isinstance(value, tuple) and not value):
            return value
        known = memo.get(id(value))
        if known is None:
            freeze_dicts(value)
            known = map_tree(lambda leaf: region.narrow(leaf) if isinstance(leaf, Batch) else leaf, value)
            memo[id(value)] = known
        return known

    def merge(self, kept: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        """End the loop: the values for all lanes of the parent region, in its order. `own`: as in `narrow`."""
        current, parent = self.current, self.parent
        set_region(parent)
        if not kept:
            return kept
        memo: dict[int, Any] = {}
        values = [self._within(value, current, memo) for value in kept]
        homes = [self._home(0, current.count), *(home for home, _ in reversed(self.pieces))]
        columns = list(map(list, zip(values, *(piece for _, piece in reversed(self.pieces)), strict=True)))
        counts = [home.count for home in homes]
        if sum(counts) != self.order.size:
            raise NeedsLoop("examples left a loop before its variables were known")
        self.pieces.clear()  # what nobody else holds must not forbid writes
        out = tuple(self._merged(column, counts, homes) for column in columns)
        for place, (new, old, column) in enumerate(zip(out, kept, columns, strict=True)):
            if new is not old:
                if isinstance(old, Batched) and not is_scalar(old):
                    zero_d(new)
                if place not in own or is_lent(old):
                    freeze_copies(new, old, *column)
        return out

    def _merged(self, column: list[Any], counts: list[int], homes: list[Any]) -> Any:
        """Join a variable's pieces into one value; lanes that have not bound the variable cannot read it."""
        if all(value is not UNBOUND for value in column):
            return self._unsorted(joined(column, counts, homes))
        bound = [(home, value) for home, value in zip(homes, column, strict=True) if value is not UNBOUND]
        out = joined_where_bound(bound, self.parent)
        set_region(self.parent)
        return out

    def _unsorted(self, value: Any) -> Any:
        """Permute a value of all lanes from the loop's order back to the parent's."""

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
    """True if all values are padded batches of exactly this region, with one array shape in all lanes."""
    for value in values:
        if type(value) is not MaskedBatch or value.region is not region or not value.sizes or value.is_ragged:
            return False
    return True


def loop(iterable: Any) -> Any:
    """The object that a rewritten `for` iterates over."""
    cls = type(iterable)
    # So many steps of a shared `range` may run as one op.
    if cls is range and 0 < len(iterable) <= 1 << 12 and current_region() is not None:
        return UniformLoop(SharedSequence(iterable))
    if cls is range or cls is list or cls is tuple:
        return SharedLoop(iterable)
    sequence = lane_items(iterable)
    return SharedLoop(iterable) if sequence is None else loop_over(sequence)


def check_iterable(iterable: Any) -> bool:
    """Always True; raises NeedsLoop for an iterator that was made outside the call."""
    if hasattr(iterable, "__next__") and not is_made(iterable):
        raise NeedsLoop("an iterator made outside the call is used up by the first example", instead=MAKE_A_LIST)
    return True


def lane_items(iterable: Any) -> LaneSequence | None:
    """The per-lane items of an iterable; None if all lanes of the region share the items.

    Raises:
        NeedsLoop: an iterator from outside, which the first example would exhaust, or a user class with `__iter__`.
    """
    sequence = lane_sequence(iterable)
    if sequence is None and current_region() is not None:
        if check_iterable(iterable) and hasattr(iterable, "__next__"):
            require_made_here(iterable, "a loop over an iterator")
        refuse_hooks(iterable, "__iter__", "__getitem__", "__next__")
    return sequence


def loop_over(sequence: LaneSequence) -> Any:
    """The loop over per-lane items: a `UniformLoop` if all lanes have equally many, else a `RaggedLoop`."""
    lengths = sequence.lengths()
    if isinstance(lengths, int) or not len(lengths) or (lengths == lengths[0]).all():
        return UniformLoop(sequence)
    return RaggedLoop(sequence, lengths)


def for_each(iterable: Any, step: Any) -> None:
    """Call `step` with each item."""
    running = loop(iterable)
    for item in running:
        step(item)
    running.merge(())


# Loops that lanes leave one by one: `while`, and `for` with break, continue or return. All lanes in the loop are at the
# same step. Lanes that reached the end of the body meet those that took `continue` at the loop's head. A leaving lane's
# values are set aside once, so the work stays linear in the total number of steps of all lanes.


class DivergentLoop:
    """A loop that lanes leave one by one: a `while`, which calls `stops` at the head of each step; base of `for` loops.

    Attributes:
        changed: True if the code must reload the loop's variables from `values`, which gives them away.
        is_empty: True if no lane is in the loop any more; after the loop: if no lane came out of it.
        tries: number of attempts to run several steps at once (`lockstep.block_loops`).
    """

    __slots__ = ("_values", "at_head", "base", "broken", "changed", "ended", "is_empty", "own", "region", "tries")

    def __init__(self, values: tuple[Any, ...], own: tuple[int, ...] = ()) -> None:
        self.tries = 0
        self.base: Any = current_region()
        self.region: Any = self.base
        self._values = values
        self.own = own
        self.changed = self.is_empty = False
        self.at_head: list[Piece] = [(self.base, values)]
        self.ended: list[Piece] = []
        self.broken: list[Piece] = []

    @property
    def values(self) -> tuple[Any, ...]:
        """The loop's variables; what nobody else holds must not forbid writes, so the loop lets go of them."""
        out, self._values = self._values, ()
        return out

    def __iter__(self) -> Iterator[Any]:
        while self._next_step():
            yield self._given(None)

    def _given(self, item: Any) -> Any:
        if not self.changed:  # the code has the values
            self._values = ()
        return item

    def _next_step(self) -> bool:
        """Start the next step with the lanes at the head; False if there are none."""
        pieces, self.at_head = self.at_head, []
        if not pieces:
            return False
        if self.base is not None:
            check_time()
        self.changed = len(pieces) > 1 or pieces[0][0] is not self.region
        self.region, self._values = join_pieces(pieces, self.region, self.own) if self.changed else pieces[0]
        set_region(self.region)
        return True

    def _split(self, stay: Any, go: Any) -> None:
        self.ended.append((go, narrowed_values(self._values, go, self.own)))
        self._move(stay)

    def _move(self, region: Any) -> None:
        self._values = narrowed_values(self._values, region, self.own)
        self.region = region
        self.changed = True
        set_region(region)

    def stops(self, test: Any, values: tuple[Any, ...]) -> bool:
        """Test the `while` condition. True if any lane ends: `self._values` then has the values of those that go on."""
        decided = truth(test)
        if decided is True:
            return False
        self._values = values
        if decided is False:
            self.ended.append((self.region, values))
            self.is_empty = True
            return True
        here = current_region()
        self._split(subset_where(here, decided, self.base), subset_where(here, ~decided, self.base))
        return True

    def next(self, values: tuple[Any, ...]) -> None:
        """Send the current region's lanes to the loop's head, at the end of the body or a `continue`."""
        self.at_head.append((current_region(), values))

    def leave(self, values: tuple[Any, ...]) -> None:
        """Take the current region's lanes out of the loop, at a `break`."""
        self.broken.append((current_region(), values))

    def otherwise(self) -> Iterator[tuple[Any, ...]]:
        """Iterated by the loop's `else`: yields the values once if some lanes ended without `break`."""
        pieces, self.ended = self.ended, []
        if pieces:
            _, values = join_pieces(pieces, self.base, self.own)
            yield values

    def after(self) -> tuple[Any, ...]:
        """The values after the loop; the lanes that came out of it become the current region."""
        pieces = [*self.ended, *self.broken]
        self.ended, self.broken = [], []
        self.is_empty = not pieces
        if not pieces:
            set_region(self.base)
            return self._values
        return join_pieces(pieces, self.base, self.own)[1]


class _SharedItemsLoop(DivergentLoop):
    """A `for` with exits, over items that all lanes share."""

    __slots__ = ("iterable", "temporary")

    def __init__(self, iterable: Any, temporary: bool, values: tuple[Any, ...], own: tuple[int, ...]) -> None:
        super().__init__(values, own)
        self.iterable = iterable
        self.temporary = temporary or not hasattr(iterable, "__next__")

    def __iter__(self) -> Iterator[Any]:
        set_region(self.base)
        running = iter(self.iterable)
        while self._next_step():
            if self.region is not self.base and not self.temporary:
                raise NeedsLoop("an iterator is used up by some of its examples", instead=MAKE_A_LIST)
            try:
                item = next(running)
            except StopIteration:
                self.ended.append((self.region, self._values))
                return
            yield self._given(item)


class _LaneItemsLoop(DivergentLoop):
    """A `for` with exits, over per-lane items whose number may differ by lane."""

    __slots__ = ("counts", "order", "ranks", "sequence")

    def __init__(self, sequence: Any, values: tuple[Any, ...], own: tuple[int, ...]) -> None:
        super().__init__(values, own)
        self.sequence = sequence
        lengths = sequence.lengths()
        total = self.base.count
        if isinstance(lengths, int) or not total or (lengths == lengths[0]).all():
            self.order: Any = None
            self.counts = [total] * sequence.shortest()
            return
        self.order = Order.by_length(self.base, lengths)
        self.ranks = np.arange(total) if self.order.index is None else self.order.inverse
        self.counts = self.order.counts

    def __iter__(self) -> Iterator[Any]:
        self.sequence.open(self.order)
        items = self.base if self.order is None else Prefix(self.order, self.base.count)
        step = 0
        while self._next_step():
            if step == len(self.counts):
                self.ended.append((self.region, self._values))
                self.sequence.done(self.region)
                return
            count = self.counts[step]
            if self.order is not None:
                if items.count != count:
                    items = Prefix(self.order, count)
                if not self._narrow_to_items(items):
                    return
            set_region(items)
            item = self.sequence.at(step, items)
            set_region(self.region)
            yield self._given(item)
            step += 1

    def _narrow_to_items(self, items: Prefix) -> bool:
        """Narrow to the lanes that have an item in this step; False if none has."""
        if self.region is items:
            return True
        place: Any = lanes_within(self.region, self.base)
        ranks = self.ranks[place]
        has = ranks < items.count
        if not has.any():
            self.sequence.done(self.region)
            self.ended.append((self.region, self._values))
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
            self._split(stay, ended)
        return True


def breakable_for(iterable: Any, temporary: bool, values: tuple[Any, ...], own: tuple[int, ...] = ()) -> DivergentLoop:
    """The object that a `for` with exits iterates over. `temporary`: no other reference to its iterable exists."""
    sequence = lane_items(iterable)
    if sequence is None:
        return _SharedItemsLoop(iterable, temporary, values, own)
    return _LaneItemsLoop(sequence, values, own)
