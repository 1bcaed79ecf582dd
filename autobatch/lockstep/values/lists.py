"""`LaneList`: a list made in converted code, whose length may differ by lane after appends by only some lanes.

Other mutations (`pop`, `insert`, or a write by some lanes at a per-lane index) do not run in lock-step.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, narrow_tree, narrowed
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import broadcast, lanes_of, weak_lanes
from autobatch.batches.unpadded import stacked_rows
from autobatch.core.abstract_eval import WEAK
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.current_region import current_region, freeze_dicts, set_region
from autobatch.core.pytree import flatten, is_node, leaves, map_tree, unflatten
from autobatch.errors import BUILD_ARRAYS, COPY_FIRST, OWN_LENGTHS, NeedsLoop
from autobatch.lockstep.lanes.region import (
    concatenate_lanes,
    freeze,
    freeze_all,
    freeze_copies,
    is_changeable,
    lanes_within,
    stackable,
)


class LaneList:
    """A list that every lane of its region has, stored in one of two forms.

    Whole: one Python list whose values belong to all lanes. Spread: lanes have appended different items, so each item
    belongs to some of the lanes.

    Attributes:
        region: the region it was made in.
        items: the values, in the order of appending.
        owners: None if whole; if spread, per item (indices in `region` of the lanes that have it, its index in each of
            those lanes' lists, the region that the item's lanes are in).
        version: a new object after each change.
    """

    __slots__ = ("__weakref__", "_counts", "_packs", "_read", "_stacked", "items", "owners", "region", "version")

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self.items = list(items)
        self.region: Any = current_region()
        self.owners: list[tuple[np.ndarray, np.ndarray, Any]] | None = None
        self._counts: Any = None
        self._stacked: Any = None
        self._read: Any = (None,)  # the version whose items are frozen, and their `_rows`
        self._packs: dict[int, tuple[Any, int]] = {}
        self.version = object()

    @property
    def is_spread(self) -> bool:
        """True if stored in the spread form, where lengths may differ by lane."""
        return self.owners is not None

    @property
    def is_whole(self) -> bool:
        """True if stored in the whole form and its region is the current one."""
        return self.owners is None and current_region() is self.region

    @property
    def counts(self) -> Any:
        """The length of each lane's list, (lanes of `region`,) ints."""
        return self._counts if self.owners is not None else np.full(self.region.count, len(self.items))

    def count_here(self) -> Any:
        """`len(list)`: an int, or a batch of one int per lane of the current region."""
        if not self.is_spread:
            return len(self.items)
        out = weak_lanes(self.counts.copy(), int)
        out.region = self.region
        return narrowed(out)

    def append(self, value: Any) -> None:
        region = current_region()
        self.version = object()
        if region is self.region and self.owners is None:
            self.items.append(value)
            return
        owners, lanes = self._of_lanes(region)
        places = self._counts[lanes]
        owners.append((lanes, places, region))
        freeze_dicts(value)
        self.items.append(map_tree(_narrowed_copy, value))
        self._counts[lanes] = places + 1
        self._stacked = None

    def append_steps(self, rows: Any, items: Sequence[Any], regions: Sequence[Any]) -> None:
        """Append the results of several steps of a loop at once; equal to one `append` per step.

        Args:
            rows: a batch of all steps' rows, one step after the other.
            items: the rows of each step as a batch.
            regions: the region of each step: the current one at first, then the last step's or a prefix of it.
        """
        self.version = object()
        if self.owners is None and regions[-1] is self.region:
            self.items += items
            return
        owners, lanes = self._of_lanes(regions[0])
        self._packs[len(self.items)] = rows, len(items)
        counts = self._counts[lanes]
        for region in regions:
            places = counts[: region.count]
            owners.append((lanes[: region.count], places.copy(), region))
            places += 1
        self.items += items
        self._counts[lanes] = counts
        self._stacked = None

    def _of_lanes(self, region: Any) -> tuple[list[Any], np.ndarray]:
        """Spread the list, to append for a region's lanes; returns `owners`, and these lanes within the list's."""
        lanes = lanes_within(region, self.region) if region is not None and self.region is not None else None
        if lanes is None:
            raise NeedsLoop("a list is appended to by examples that it does not belong to", instead=BUILD_ARRAYS)
        if self.owners is None:
            self._spread()
        assert self.owners is not None
        return self.owners, lanes

    def _spread(self) -> None:
        everyone = np.arange(self.region.count)
        self.owners = [(everyone, np.full(len(everyone), place), self.region) for place in range(len(self.items))]
        freeze_dicts(self.items)
        narrow = self.region.narrow
        self.items = [map_tree(lambda x: narrow(x) if isinstance(x, Batch) else x, item) for item in self.items]
        self._counts = np.full(len(everyone), len(self.items))

    def item(self, place: Any) -> Any:
        """`list[place]`; `place` is an int, or a batch of one int per lane of the current region."""
        if not self.is_spread and not isinstance(place, Batch):
            return self.items[place]
        source = self
        if self.owners is None:
            source = LaneList(self.items)
            source.region = self.region
            source._spread()
        return map_tree(freeze, source._item_of_rows(place))

    def part(self, index: slice) -> "LaneList":
        """`list[start:stop:step]`, a new list; of a spread list only `[::-1]`."""
        if not self.is_spread and not is_lane_dependent(index):
            return LaneList(self.items[index])
        if index == slice(None, None, -1) and self.owners is not None and self.region is current_region():
            return self.backwards()
        raise NeedsLoop("a part of a list that differs by example", instead=OWN_LENGTHS)

    def backwards(self) -> "LaneList":
        """A new list with each lane's items reversed."""
        out = LaneList(self.items if self.owners is not None else self.items[::-1])
        out.region = self.region
        if self.owners is not None:
            out._counts = self._counts.copy()
            out._packs = self._packs.copy()
            out.owners = [(lanes, self._counts[lanes] - 1 - places, at) for lanes, places, at in self.owners]
        return out

    def __getattr__(self, name: str) -> Any:
        if hasattr(list, name):
            raise NeedsLoop(f".{name}() of a list", instead=BUILD_ARRAYS)
        raise AttributeError(f"'list' object has no attribute {name!r}")

    def set(self, index: Any, value: Any) -> None:
        """`list[index] = value` for all lanes of the list at once; `index` is shared by them."""
        if not self.is_whole or is_lane_dependent(index):
            raise NeedsLoop("a list is written to by some of its examples", instead=COPY_FIRST)
        self.version = object()
        self.items[index] = value

    def _rows(self) -> tuple[list[Any], Any, np.ndarray]:
        """(leaves with one row per item of each lane, the items' tree structure, row number by [lane, place])."""
        assert self.owners is not None
        if not self.items:
            raise NeedsLoop("an empty list of each example", instead=BUILD_ARRAYS)
        sizes = [len(lanes) for lanes, _, _ in self.owners]
        items, heights = self._packed(sizes) if self._packs else (self.items, sizes)
        columns, structure = _columns(items)
        leaves = []
        for column in columns:
            batches = [_as_batch(value, size) for value, size in zip(column, heights, strict=True)]
            if not stackable(batches):
                raise NeedsLoop("a list of different ranks or dtypes", instead=BUILD_ARRAYS)
            leaves.append(concatenate_lanes(batches))
        total = sum(sizes)
        table = np.full((len(self._counts), int(self._counts.max(initial=0))), total)
        lanes, places = (np.concatenate([owner[which] for owner in self.owners]) for which in (0, 1))
        table[lanes, places] = np.arange(total)
        return leaves, structure, table

    def _packed(self, sizes: Sequence[int]) -> tuple[list[Any], list[int]]:
        """(items, with those of one `append_steps` as one batch; number of rows of each). `sizes`: rows per item."""
        items: list[Any] = []
        heights: list[int] = []
        place = 0
        while place < len(self.items):
            rows, count = self._packs.get(place, (self.items[place], 1))
            items.append(rows)
            heights.append(sum(sizes[place : place + count]))
            place += count
        return items, heights

    def stacked(self) -> Any:
        """Stack each lane's items along a new first dimension: a batch, or a tree of batches. One join and one gather.

        Raises:
            NeedsLoop: items differ in structure, rank or dtype, or are ragged.
        """
        if self._stacked is not None:
            return self._stacked
        leaves, structure, table = self._rows()
        counts = self.counts
        first = int(counts[0]) if len(counts) else 0
        length: Any = first if (counts == first).all() else Lengths(counts)
        out = []
        for leaf in leaves:
            data = stacked_rows(leaf.data, table, length) if isinstance(length, Lengths) else leaf.data[table]
            inner = []
            for size in leaf.sizes:
                if isinstance(size, Lengths):
                    raise NeedsLoop("a list of ragged items", instead=BUILD_ARRAYS)
                inner.append(size)
            out.append(MaskedBatch.in_region(Batched(data, (length, *inner), None), self.region))
        self._stacked = unflatten(structure, out)
        return self._stacked

    def scalar_kinds(self) -> frozenset[type | None]:
        """The types of Python numbers among the items, which rows of the stacked array would lose; None for arrays."""
        return frozenset([type(item) if type(item) in WEAK else getattr(item, "scalar", None) for item in self.items])

    def _item_of_rows(self, place: Any) -> Any:
        """Copies of the current lanes' items at `place` (int or per lane); freezes the items against writes."""
        region: Any = current_region()
        here = lanes_within(region, self.region)
        if here is None:
            raise NeedsLoop("a list of other examples is read", instead=BUILD_ARRAYS)
        if self._read[0] is not self.version:
            self._read = self.version, *self._rows()
            freeze_all(*self.items)
        _, leaves, structure, table = self._read
        counts = self._counts[here]
        places = np.broadcast_to(np.asarray(getattr(narrowed(place), "data", place)), counts.shape)
        places = np.where(places < 0, places + counts, places)
        if ((places < 0) | (places >= counts)).any():
            raise IndexError("list index out of range")
        rows = table[here, places]
        out = []
        for leaf in leaves:
            sizes = [Lengths(size.values[rows]) if isinstance(size, Lengths) else size for size in leaf.sizes]
            out.append(MaskedBatch.in_region(Batched(leaf.data[rows], sizes, leaf.scalar), region))
        return unflatten(structure, out)

    def __len__(self) -> int:
        if self.is_spread:
            raise NeedsLoop("a list that differs by example is used as one list", instead=OWN_LENGTHS)
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        if self.is_spread:
            raise NeedsLoop("a list that differs by example is used as one list", instead=OWN_LENGTHS)
        return self._live(self.items)

    def _live(self, items: list[Any]) -> Iterator[Any]:
        """Iterate over the items, including those appended meanwhile, as Python does."""
        for item in items:
            yield item
            if self.items is not items:
                raise NeedsLoop("a list changes for some examples while a loop runs over it", instead=BUILD_ARRAYS)

    def __getitem__(self, index: Any) -> Any:
        return self.part(index) if isinstance(index, slice) else self.item(index)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, LaneList | list):
            return NotImplemented
        if self.is_spread or (isinstance(other, LaneList) and other.is_spread):
            raise NeedsLoop("lists that differ by example are concatenated", instead=BUILD_ARRAYS)
        return LaneList([*self.items, *other])

    def __radd__(self, other: Any) -> Any:
        return LaneList(other) + self if type(other) is list else NotImplemented

    def __mul__(self, count: Any) -> Any:
        if self.is_spread or is_lane_dependent(count):
            raise NeedsLoop("a list is repeated a number of times that differs by example", instead=OWN_LENGTHS)
        return LaneList(self.items * count)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> Any:
        raise NeedsLoop("lists are compared", instead=BUILD_ARRAYS)

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise NeedsLoop("a list of the call is used as one array", instead=BUILD_ARRAYS)

    def _ab_unite(self, pieces: Sequence[Any], regions: Sequence[Any]) -> Any:
        """Lanes that hold different lists cannot be joined: mutations must reach each list by all its names."""
        raise NeedsLoop("lists that differ by example", instead=BUILD_ARRAYS)


def plain_lists(held: LaneList) -> ObjectBatch:
    """Convert a `LaneList` to one Python list per lane of its region; arrays are copied."""
    here = current_region()
    lists: list[list[Any]] = [[None] * count for count in held.counts.tolist()]
    try:
        for place, item in enumerate(held.items):
            everyone = range(len(lists)), [place] * len(lists), held.region
            lanes, places, at = everyone if held.owners is None else held.owners[place]
            set_region(at)
            for lane, own, value in zip(lanes, places, lanes_of(narrow_tree(to_lists(item)), at.count), strict=True):
                lists[lane][own] = value.copy() if type(value) is np.ndarray else value
        set_region(held.region)
        return ObjectBatch(lists)
    finally:
        set_region(here)


def to_lists(value: Any) -> Any:
    """Replace each `LaneList` in a value by a Python list, or by one list per lane if it is spread."""
    if type(value) is LaneList:
        return plain_lists(value) if value.is_spread else [to_lists(item) for item in value.items]
    if type(value) is tuple or type(value) is list:
        return type(value)(to_lists(item) for item in value)
    if type(value) is dict:
        return {key: to_lists(item) for key, item in value.items()}
    if is_node(value) and any(isinstance(leaf, LaneList) for leaf in leaves(value)):
        raise NeedsLoop(
            f"a {type(value).__name__} that holds lists is given to code that cannot run batched", instead=BUILD_ARRAYS
        )
    return value


def is_lane_dependent(value: Any) -> bool:
    """True if a value differs by lane at any depth, or is a mutable object that the call made."""
    if isinstance(value, Batch):
        return True
    if isinstance(value, LaneList):
        return value.is_spread or any(map(is_lane_dependent, value.items))
    if isinstance(value, slice):
        return is_lane_dependent(value.start) or is_lane_dependent(value.stop) or is_lane_dependent(value.step)
    return any(map(is_lane_dependent, leaves(value))) if is_node(value) else is_changeable(value)


def _narrowed_copy(leaf: Any) -> Any:
    """A leaf narrowed to the current region; if that makes a copy, both are frozen against writes."""
    out = narrowed(leaf)
    if out is not leaf:
        freeze_copies(out, leaf)
    return out


def _columns(items: Sequence[Any]) -> tuple[Sequence[Sequence[Any]], Any]:
    """(one column of leaves per leaf position, tree structure) of items; NeedsLoop if structures differ."""
    if all(type(item) is MaskedBatch for item in items):
        return [items], flatten(items[0])[1]
    values, structures = zip(*map(flatten, items), strict=True)
    if any(structure != structures[0] for structure in structures):
        raise NeedsLoop("a list of different structures", instead=BUILD_ARRAYS)
    return list(zip(*values, strict=True)), structures[0]


def _as_batch(value: Any, size: int) -> Any:
    if type(value) is MaskedBatch and value.data.shape[0] == size:
        return value
    if isinstance(value, Packed) and isinstance(value, Batch):
        value = value.to_masked()  # type: ignore[attr-defined]
    if is_changeable(value) or isinstance(value, LaneList):
        raise NeedsLoop("a list of objects", instead=BUILD_ARRAYS)
    out = value if isinstance(value, Batch) else broadcast(value, size)
    if getattr(out, "batch_size", size) != size:
        raise NeedsLoop("a list whose items belong to other examples", instead=BUILD_ARRAYS)
    return out
