"""Per-lane iterables for loops: rows of arrays, ranges and lists that differ by lane, and zip, enumerate, reversed."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, narrowed, per_lane
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import weak_lanes
from autobatch.batches.unpadded import padded
from autobatch.core.batched import Lengths, Packed
from autobatch.core.current_region import current_region
from autobatch.core.op import is_boxed
from autobatch.errors import BUILD_ARRAYS, COPY_FIRST, MAKE_A_LIST, OWN_LENGTHS, RETURN_ARRAYS, NeedsLoop
from autobatch.lockstep.lanes.region import freeze
from autobatch.lockstep.values.lists import LaneList
from autobatch.ops.numpy import indexing
from autobatch.ops.numpy.indexing import rows_between
from autobatch.ops.rules.aliasing import unclear_view, view
from autobatch.ops.rules.row_gather import rows_p
from autobatch.ops.rules.sizes import reshaped


class LaneSequence:
    """Base of iterables with per-lane items. A loop calls `open` in the region it starts in, then `at` once per step.

    `once`: True if the iterable is an iterator in Python, which one loop exhausts. Any use other than iteration (as a
    `range`, `zip` or `enumerate` object) raises NeedsLoop in converted code.
    """

    __slots__ = ("home", "used")
    _ab_items = True
    once = False

    def __init__(self) -> None:
        self.used = False
        self.home = current_region()

    def require_here(self) -> None:
        """Raise NeedsLoop unless it was made in the current region."""
        if self.home is not current_region():
            raise NeedsLoop("items of other examples are used")

    def lengths(self) -> Any:
        """The number of items: an int, or an int64 array with one per lane of the current region."""

    def shortest(self) -> int:
        lengths = self.lengths()
        return lengths if isinstance(lengths, int) else int(lengths.min()) if len(lengths) else 0

    def open(self, order: Any) -> None:
        """Prepare for a loop that runs the lanes in `order` (an `Order`; None: the region's own order)."""
        if self.once and self.used:
            raise NeedsLoop("an iterator of items that differ by example is read twice", instead=MAKE_A_LIST)
        self.used = True

    def at(self, step: int, region: Any) -> Any:
        """The item of one step, for the lanes of a region."""

    def done(self, region: Any) -> None:
        """Called when the lanes of a region have run out of items."""

    def __iter__(self) -> Any:
        raise NeedsLoop("items that differ by example are iterated outside of decorated code")


class RowSequence(LaneSequence):
    """The rows of a padded batch along the example's first dimension.

    Attributes:
        data: without an order (lanes, steps, *item); with one (rows, *item), the rows of step `s` from `offsets[s]` on,
            lanes in the loop's order.
        order: the loop's `Order`; None if lanes stay in the region's order.
        last: the item of the current step; step: the number of that step.
        named: the user's batch that the loop iterates over, or the list whose items are the rows;
            held: the batch's data, or the list's version, when the loop began.
        scalar: the type of the items, if they are Python numbers.
    """

    __slots__ = (
        "__weakref__", "_self", "backwards", "data", "held", "last", "named", "offsets", "order", "region", "rest",
        "scalar", "sizes", "source", "step",
    )  # fmt: skip

    def __init__(
        self, source: MaskedBatch, backwards: bool = False, named: Any = None, scalar: type | None = None
    ) -> None:
        super().__init__()
        self.scalar = scalar
        self.named = source if named is None else named
        if not source.sizes:
            what = "0-d array" if source.scalar is None else f"{source.scalar.__name__!r} object"
            raise TypeError(f"iteration over a {what}")
        self.source = source
        self.backwards = backwards

    @property
    def once(self) -> bool:  # type: ignore[override]
        return self.backwards

    def lengths(self) -> Any:
        size = self.source.sizes[0]
        return size.values if isinstance(size, Lengths) else size

    def open(self, order: Any) -> None:
        super().open(order)
        source, lengths = self.source, self.lengths()
        source.data = padded(source.data)
        self.held = _data_of(self.named)
        self.order = order
        self.last: Any = None
        self._self = weakref.ref(self)
        self.rest: tuple[Any, ...] = source.sizes[1:]
        self.region: Any = None
        self.sizes: tuple[Any, ...] = ()
        self.offsets: list[int] = []
        if order is not None:
            self._pack(order, lengths)
        elif not self.backwards:
            self.data = source.data
        elif isinstance(lengths, int):
            self.data = source.data[:, :lengths][:, ::-1]
        else:
            places = np.maximum(lengths[:, None] - 1 - np.arange(source.data.shape[1]), 0)
            self.data = source.data[np.arange(len(lengths))[:, None], places]

    def _pack(self, order: Any, lengths: Any) -> None:
        """Gather the rows in the order in which the loop reads them, without padding."""
        source = self.source if self.source.region is order.parent else order.parent.narrow(self.source)
        self.offsets = [0, *np.cumsum(np.array(order.counts, np.int64)).tolist()]
        places, lanes = steps_and_lanes(order.counts)
        if order.index is not None:
            lanes = order.index[lanes]
        if self.backwards:
            places = np.broadcast_to(np.asarray(lengths) - 1, source.data.shape[:1])[lanes] - places
        data = padded(source.data)
        flat = reshaped(data, (-1, *data.shape[2:]))
        rows = lanes * data.shape[1] + places
        self.data = rows_p(flat, rows, unique=True) if is_boxed(flat) else flat.take(rows, axis=0)

    def at(self, step: int, region: Any) -> Any:
        of_views = self.order is None and self.source is self.named and not self.backwards
        is_written = _data_of(self.named) is not self.held
        if is_written and not of_views:
            raise NeedsLoop("an array or a list is written to while a loop runs over it", instead=COPY_FIRST)
        if is_written:
            self.data = padded(self.source.data)
        if region is not self.region:
            self.region = region
            self.sizes = tuple(self._of_region(size, region.count) for size in self.rest)
        rows = self.data[:, step] if self.order is None else self._between(step, step + 1)
        out = MaskedBatch.of_data(rows, self.sizes, region, self.scalar)
        items = region.root.items
        items.pop(id(self.last), None)
        self.last, self.step = out, step
        if not is_written:  # else later steps may write what is read ahead
            items[id(out)] = self._self
        if of_views and self.sizes:
            spec, operands = indexing.parse(self.source, step)
            return view(out, self.source, indexing.view_of, indexing.write_view, (spec, tuple(operands)), True)
        base = self.source if type(self.named) is LaneList else self.named
        return freeze(unclear_view(out, base)) if self.sizes else out

    def done(self, region: Any) -> None:
        if type(self.named) is LaneList and self.named.version is not self.held:
            raise NeedsLoop("a list changes while a loop runs over it", instead=BUILD_ARRAYS)

    def packed(self, first: int, last: int) -> Any:
        """The items of steps `first:last`, one step after the other, (rows, *item)."""
        if self.order is not None:
            return self._between(first, last)
        part = np.swapaxes(self.data[:, first:last], 0, 1)
        return np.reshape(part, (part.shape[0] * part.shape[1], *part.shape[2:]))

    def _between(self, first: int, last: int) -> Any:
        return rows_between(self.data, self.offsets[first], self.offsets[last])

    def _of_region(self, size: Any, count: int) -> Any:
        if isinstance(size, int):
            return size
        values = size.values if self.order is None or self.order.index is None else size.values[self.order.index]
        return Lengths(values[:count])


def steps_and_lanes(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The step and the lane of each row, given how many lanes each step has."""
    sizes = np.array(counts, np.int64)
    steps = np.repeat(np.arange(len(sizes)), sizes)
    return steps, np.arange(len(steps)) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def rows_of(batch: Any, root: Any) -> RowSequence | None:
    """The `RowSequence` whose current item is this batch; None if it is no current item."""
    found = root.items.get(id(batch))
    rows: RowSequence | None = None if found is None else found()
    return rows if rows is not None and rows.last is batch else None


def _data_of(batch: Any) -> Any:
    return batch.version if type(batch) is LaneList else batch.values if isinstance(batch, Packed) else batch.data


class Nested(LaneSequence):
    """Items of examples that are lists of arrays whose lengths differ."""

    __slots__ = ("lanes", "source")

    def __init__(self, source: Any, backwards: bool = False) -> None:
        super().__init__()
        if backwards:
            raise NeedsLoop("reversed() of a list of arrays of different lengths", instead=BUILD_ARRAYS)
        self.source = source

    def lengths(self) -> Any:
        return self.source.lengths

    def open(self, order: Any) -> None:
        super().open(order)
        count = self.source.batch_size
        self.lanes = np.arange(count) if order is None or order.index is None else order.index

    def at(self, step: int, region: Any) -> Any:
        out = self.source.values._take(self.source.offsets[self.lanes[: region.count]] + step, {})
        out.region = region
        return freeze(out)


class SharedSequence(LaneSequence):
    """A Python sequence that all lanes share, zipped with per-lane iterables."""

    __slots__ = ("values",)

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = values

    def lengths(self) -> Any:
        return len(self.values)

    def at(self, step: int, region: Any) -> Any:
        return self.values[step]


class Ranges(LaneSequence):
    """`range` with per-lane bounds, or `reversed` of such a range."""

    __slots__ = ("counts", "once", "start", "step")

    def __init__(self, *bounds: Any) -> None:
        super().__init__()
        self.once = False
        whole = [narrowed(each) for each in bounds]
        if all(type(each) is int or getattr(each, "scalar", None) is int for each in whole):
            start, stop, step = (0, *whole, 1) if len(whole) == 1 else (*whole, 1)[:3]
            a, b, by = (getattr(each, "data", each) for each in (start, stop, step))
            if np.all(by != 0) and all(np.all(np.abs(each) < 1 << 61) for each in (a, b, by)):
                self.start, self.step = (_shared_or_lanes(np.ravel(each).tolist()) for each in (a, by))
                self.counts = np.maximum(0, -((a - b) // by))
                return
        ranges = per_lane(range, bounds, {})
        self.counts = np.array([len(each) for each in ranges], np.int64)
        self.start = _shared_or_lanes([each.start for each in ranges])
        self.step = _shared_or_lanes([each.step for each in ranges])

    def lengths(self) -> Any:
        return self.counts

    def at(self, step: int, region: Any) -> Any:
        return self.start + self.step * step

    def backwards(self) -> "Ranges":
        out = object.__new__(Ranges)
        LaneSequence.__init__(out)
        out.start, out.step = self.start + self.step * (weak_lanes(self.counts, int) - 1), -self.step
        out.counts, out.once = self.counts, True
        return out


def _shared_or_lanes(values: list[int]) -> Any:
    is_shared = values and all(value == values[0] for value in values)
    return values[0] if is_shared else weak_lanes(np.array(values, np.int64), int)


class Zipped(LaneSequence):
    """`zip`: in each lane as many items as its shortest part."""

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
    """`enumerate`: the counter is one int, since all lanes still in the loop are at the same step."""

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
        return SharedSequence(iterable)
    if isinstance(iterable, LaneList):
        return SharedSequence(iterable.items)
    if hasattr(iterable, "__next__"):
        raise NeedsLoop("an iterator together with data of different lengths", instead=MAKE_A_LIST)
    return SharedSequence(list(iterable))


def lane_sequence(iterable: Any) -> LaneSequence | None:
    """The per-lane items of an iterable; None if all lanes share the items."""
    if isinstance(iterable, LaneSequence):
        iterable.require_here()
        return iterable
    return _of(iterable, False)


def _of(iterable: Any, backwards: bool) -> LaneSequence | None:
    if isinstance(iterable, Batch):
        source = narrowed(iterable)
        if isinstance(source, Packed) and isinstance(source.values, Packed):
            return Nested(source, backwards)
        if isinstance(source, Packed):
            source = source.to_masked()  # type: ignore[attr-defined]
        if isinstance(source, ObjectBatch):
            raise NeedsLoop("a loop over objects that differ by example", instead=RETURN_ARRAYS)
        return RowSequence(source, backwards, iterable)
    if isinstance(iterable, LaneList) and iterable.is_spread:
        kinds = iterable.scalar_kinds()
        if len(kinds) > 1 or not isinstance(iterable.stacked(), Batch):
            raise NeedsLoop(
                "a loop over a list of tuples, or of several types, that differs by example", instead=OWN_LENGTHS
            )
        return RowSequence(narrowed(iterable.stacked()), backwards, iterable, *kinds)
    return None


def in_reverse(iterable: Any) -> Any:
    """`reversed` of a per-lane iterable."""
    if isinstance(iterable, Ranges) and not iterable.once:
        iterable.require_here()
        return iterable.backwards()
    if isinstance(iterable, LaneSequence):
        raise TypeError(f"{type(iterable).__name__!r} object is not reversible")
    return _of(iterable, True)
