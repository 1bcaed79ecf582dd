"""What a loop can run over when its lanes have items of their own: rows, ranges, and zip, enumerate and reversed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, narrowed, per_lane
from autobatch.batches.examples import weak_lanes
from autobatch.batches.objects import ObjectBatch
from autobatch.core.batched import Packed
from autobatch.core.lanes import current_region, set_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.joins import Piece
from autobatch.lockstep.lane_items import Items, Kept, LaneSequence, Nested, Rows, Shared, Trees, Watched, nested_item
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.ownership import changing
from autobatch.lockstep.regions import Subset, lanes_within
from autobatch.lockstep.rows import Held, gathered, scattered

__all__ = [
    "Drawn",
    "Enumerated",
    "LaneSequence",
    "Ranges",
    "Zipped",
    "in_reverse",
    "lane_sequence",
    "must_be_shared",
    "nested_item",
]


class Drawn(LaneGenerator):
    """An iterator over the items of a list of ours: each lane's own place in its own list.

    Any lanes that have it may draw from it, in a loop over it too, whose body draws as well or which some lanes leave.
    """

    __slots__ = ("held", "places")

    def __init__(self, held: LaneList) -> None:
        super().__init__(None)
        self.held = held
        self.places = np.zeros(self.home.count, np.int64)

    def require_here(self) -> None:
        """Any lanes that have it may draw from it."""

    def leave(self, reader: Any) -> None:
        """Who has left draws nothing."""

    def _here(self, region: Any) -> np.ndarray:
        lanes = lanes_within(region, self.home)
        if lanes is None:
            raise NeedsLoop("an iterator of other examples is drawn from")
        return lanes

    def having(self, region: Any) -> Any:
        """The region of those lanes of a region that have an item left; None if none has."""
        places = self.places[self._here(region)]
        has = np.array([len(own) for own in self.held.here()], np.int64) > places
        return region if has.all() and len(has) else Subset(region, region.lanes()[has]) if has.any() else None

    def advance(self) -> tuple[Any, Any] | None:
        """For the lanes of the current region that have an item left: their region, and the items."""
        outer: Any = current_region()
        where = self.having(outer)
        if where is None:
            return None
        set_region(where)
        value = self.following()
        set_region(outer)
        return where, value

    def next_of(self, region: Any) -> list[Piece]:
        """As `advance`, for the current region, as pieces."""
        step = self.advance()
        return [] if step is None else [(step[0], (step[1],))]

    def following(self, *default: Any) -> Any:
        """`next(iterator)`, for the lanes of the current region.

        Raises:
            StopIteration: there is no default, and some lane has no items left.
        """
        region: Any = current_region()
        here = self._here(region)
        otherwise = scattered(default[0]) if default else [None] * region.count
        out = []
        for own, place, value in zip(self.held.here(), self.places[here].tolist(), otherwise, strict=True):
            if place >= len(own) and not default:
                raise StopIteration
            out.append(own[place] if place < len(own) else value)
        changing(self)
        self.places[here] += 1
        return gathered(out)


class Ranges(LaneSequence):
    """`range` of per-lane bounds."""

    __slots__ = ("counts", "start", "step")

    def __init__(self, *bounds: Any) -> None:
        super().__init__()
        ranges = per_lane(range, bounds, {})
        self.counts = np.array([len(each) for each in ranges], np.int64)
        self.start = _shared_or_lanes([each.start for each in ranges])
        self.step = _shared_or_lanes([each.step for each in ranges])

    def lengths(self) -> Any:
        return self.counts

    def at(self, step: int, region: Any) -> Any:
        return self.start + self.step * step

    def backwards(self) -> "Ranges":
        return self._with(self.start + self.step * (weak_lanes(self.counts, int) - 1), -self.step, self.counts)

    def here(self) -> "Ranges":
        region: Any = current_region()
        if self.home is region:
            return self
        lanes = lanes_within(region, self.home)
        if lanes is None:
            raise NeedsLoop("a range of other examples is used")
        return self._with(narrowed(self.start), narrowed(self.step), self.counts[lanes])

    def _with(self, start: Any, step: Any, counts: np.ndarray) -> "Ranges":
        out = object.__new__(Ranges)
        LaneSequence.__init__(out)
        out.start, out.step, out.counts = start, step, counts
        return out


def _shared_or_lanes(values: list[int]) -> Any:
    return (
        values[0]
        if values and all(value == values[0] for value in values)
        else weak_lanes(np.array(values, np.int64), int)
    )


class Zipped(LaneSequence):
    """`zip`: as many items as the shortest of the lane has."""

    __slots__ = ("parts", "strict")
    once = True

    def __init__(self, *iterables: Any, strict: bool = False) -> None:
        super().__init__()
        self.parts = [_sequence_or_shared(each) for each in iterables]
        if strict:
            lengths = [np.asarray(part.lengths()) for part in self.parts]
            if any((length != lengths[0]).any() for length in lengths):
                raise ValueError("zip() arguments differ in length")

    def lengths(self) -> Any:
        lengths = [part.lengths() for part in self.parts]
        if all(isinstance(length, int) for length in lengths):
            return min(lengths)
        out = lengths[0]
        for length in lengths[1:]:
            out = np.minimum(out, length)
        return out

    def open(self, order: Any) -> None:
        super().open(order)
        for part in self.parts:
            part.open(order)

    def at(self, step: int, region: Any) -> Any:
        return tuple([part.at(step, region) for part in self.parts])


class Enumerated(LaneSequence):
    """`enumerate`: the counter is one int, since all lanes that are there have come as far."""

    __slots__ = ("inner", "start")
    once = True

    def __init__(self, iterable: Any, start: Any = 0) -> None:
        super().__init__()
        self.inner = _sequence_or_shared(iterable)
        self.start = start

    def lengths(self) -> Any:
        return self.inner.lengths()

    def open(self, order: Any) -> None:
        super().open(order)
        self.inner.open(order)

    def at(self, step: int, region: Any) -> Any:
        return self.start + step, self.inner.at(step, region)


def _sequence_or_shared(iterable: Any) -> LaneSequence:
    sequence = lane_sequence(iterable)
    if sequence is not None:
        return sequence
    if isinstance(iterable, list | tuple | range | np.ndarray | str):
        return Shared(iterable)
    if isinstance(iterable, LaneList):
        return Shared(iterable.items)
    if hasattr(iterable, "__next__"):
        raise NeedsLoop("an iterator beside data of different lengths")
    return Shared(list(iterable))


def lane_sequence(iterable: Any) -> LaneSequence | None:
    """The per-lane items of an iterable; None if it is one iterable for all lanes."""
    if isinstance(iterable, LaneSequence):
        return iterable.here()
    return _of(iterable, False)


def _of(iterable: Any, backwards: bool) -> LaneSequence | None:
    if isinstance(iterable, Batch):
        source = narrowed(iterable)
        if isinstance(source, Packed) and isinstance(source.values, Packed):
            return Nested(source, backwards)
        if isinstance(source, Packed):
            source = source.to_masked()  # type: ignore[attr-defined]
        return Items(source, backwards) if isinstance(source, ObjectBatch) else Rows(source, backwards)
    if isinstance(iterable, LaneList) and iterable.is_spread:
        return Watched(iterable, _of_list(iterable, backwards))
    held = getattr(iterable, "sequence", None)
    return held(backwards) if held is not None and isinstance(iterable, Held) else None


def _of_list(source: LaneList, backwards: bool) -> LaneSequence:
    if source.lanes is None and not source.has_python_scalars():
        try:
            stacked = source.stacked()
        except NeedsLoop:  # items that no one array holds
            return Kept(source, backwards)
        if not isinstance(stacked, Batch):
            return Trees(stacked, backwards)
        return Rows(narrowed(stacked), backwards)
    return Kept(source, backwards)


def in_reverse(iterable: Any) -> Any:
    """`reversed`."""
    if isinstance(iterable, Ranges):
        return iterable.here().backwards()
    if isinstance(iterable, LaneSequence):
        raise TypeError(f"{type(iterable).__name__!r} object is not reversible")
    return _of(iterable, True)


def must_be_shared(make: Callable[..., Any]) -> Callable[..., Any]:
    """A builtin that cannot run over per-lane items."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, Batch | LaneSequence) or (isinstance(arg, LaneList) and arg.is_spread) for arg in args):
            raise NeedsLoop(f"{make.__name__}() over items per example")
        return make(*args, **kwargs)

    return call
