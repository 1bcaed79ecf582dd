"""`LaneList`: a list made in converted code. Lanes that append more often than others have longer lists."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from autobatch.batches.forms import Batch, narrowed
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.results import broadcast
from autobatch.batches.unpadded import gathered
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.lanes import current_region
from autobatch.core.pytree import flatten, is_node, leaves, map_tree, unflatten
from autobatch.errors import NeedsLoop
from autobatch.lockstep.merging import concatenated, stackable
from autobatch.lockstep.ownership import changing, freeze
from autobatch.lockstep.regions import lanes_within

__all__ = ["LaneList"]


class LaneList:
    """A list that every lane of its region has; a plain list inside until its lanes' lists differ.

    Attributes:
        region: where it was made.
        items: the values, in the order of appending.
        owners: for each item the lanes of `region` that have it, in the order of the item's own lanes, its place in
            each of their lists, and the region whose lanes the item's are; None while all lanes have all items.
        counts: the length of each lane's list.
        torn: it has another name that a change would not reach, so it must not change.
    """

    __slots__ = ("__weakref__", "_stacked", "counts", "items", "owners", "region", "torn")

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self.items = list(items)
        self.region: Any = current_region()
        self.owners: list[tuple[np.ndarray, np.ndarray, Any]] | None = None
        self.counts: Any = None
        self._stacked: Any = None
        self.torn = False

    @property
    def is_spread(self) -> bool:
        return self.owners is not None

    def append(self, value: Any) -> None:
        self._require_one()
        region = current_region()
        if region is self.region and self.owners is None:
            self.items.append(value)
            return
        lanes = lanes_within(region, self.region) if region is not None and self.region is not None else None
        if lanes is None:
            raise NeedsLoop("a list is appended to by examples that it does not belong to")
        if self.owners is None:
            self._spread()
        assert self.owners is not None
        self.owners.append((lanes, self.counts[lanes], region))
        value = _narrowed_copy(value) if isinstance(value, Batch) else map_tree(_narrowed_copy, value)
        self.items.append(value)
        self.counts[lanes] += 1
        self._stacked = None

    def _require_one(self) -> None:
        if self.torn:
            raise NeedsLoop("a list that has become another one for some examples is changed")
        changing(self)

    def _spread(self) -> None:
        everyone = np.arange(self.region.count)
        self.owners = [(everyone, np.full(len(everyone), place), self.region) for place in range(len(self.items))]
        self.items = [_within(self.region, item) for item in self.items]
        self.counts = np.full(len(everyone), len(self.items))

    def _rows(self) -> tuple[list[Any], Any, np.ndarray]:
        """Leaves with one row for each item of each lane, their structure, and the row number of (lane, place)."""
        assert self.owners is not None
        if not self.items:
            raise NeedsLoop("an empty list of each example")
        values, structures = zip(*map(flatten, self.items), strict=True)
        if any(structure != structures[0] for structure in structures):
            raise NeedsLoop("a list of different structures")
        sizes = [len(lanes) for lanes, _, _ in self.owners]
        leaves = []
        for column in zip(*values, strict=True):
            batches = [self._as_batch(value, size) for value, size in zip(column, sizes, strict=True)]
            if not stackable(batches):
                raise NeedsLoop("a list of different ranks or dtypes")
            leaves.append(concatenated(batches))
        table = np.full((len(self.counts), int(self.counts.max(initial=0))), sum(sizes))
        start = 0
        for (lanes, places, _), size in zip(self.owners, sizes, strict=True):
            table[lanes, places] = np.arange(start, start + size)
            start += size
        return leaves, structures[0], table

    def _as_batch(self, value: Any, size: int) -> Any:
        if isinstance(value, Packed) and isinstance(value, Batch):
            value = value.to_masked()  # type: ignore[attr-defined]
        out = value if isinstance(value, Batch) else broadcast(value, size)
        if out.batch_size != size:
            raise NeedsLoop("a list whose items belong to other examples")
        return out

    def stacked(self) -> Any:
        """The items of each lane along a new first dimension: a batch, or a tree of them. One join and one gather."""
        if self._stacked is None:
            leaves, structure, table = self._rows()
            first = int(self.counts[0]) if len(self.counts) else 0
            length: Any = first if (self.counts == first).all() else Lengths(self.counts)
            out = []
            for leaf in leaves:
                data = gathered(leaf.data, table, length) if isinstance(length, Lengths) else leaf.data[table]
                inner = []
                for size in leaf.sizes:
                    if isinstance(size, Lengths):
                        raise NeedsLoop("a list of ragged items")
                    inner.append(size)
                out.append(MaskedBatch.in_region(Batched(data, (length, *inner), None), self.region))
            self._stacked = unflatten(structure, out)
        return self._stacked

    def has_python_scalars(self) -> bool:
        """Whether an item is a Python number in some lane, which a row of an array would not be."""
        found = (leaf for item in self.items for leaf in (leaves(item) if is_node(item) else (item,)))
        return any(isinstance(leaf, bool | int | float | complex) or getattr(leaf, "scalar", None) for leaf in found)

    def joined(self) -> MaskedBatch:
        """The items of each lane end to end along their first dimension.

        Raises:
            NeedsLoop: items of other than one array with static other dimensions.
        """
        leaves, structure, table = self._rows()
        (leaf,) = leaves if structure.kind is None else (None,)
        if leaf is None or not leaf.sizes or any(isinstance(size, Lengths) for size in leaf.sizes[1:]):
            raise NeedsLoop("a concatenation along a list of structured or ragged items")
        data, size = leaf.data, leaf.sizes[0]
        total, width = data.shape[:2]
        lengths = size.values if isinstance(size, Lengths) else np.full(total, size)
        flat = data.reshape(total * width, *data.shape[2:])
        flat = np.concatenate([flat, np.zeros((1, *data.shape[2:]), data.dtype)])
        rows: list[np.ndarray] = []
        for lane_rows, count in zip(table, self.counts, strict=True):
            parts = [np.arange(row * width, row * width + lengths[row]) for row in lane_rows[:count]]
            rows.append(np.concatenate(parts) if parts else np.zeros(0, np.int64))
        out = Lengths([len(part) for part in rows])
        index = np.full((len(rows), out.max()), total * width)
        for i, part in enumerate(rows):
            index[i, : len(part)] = part
        return MaskedBatch.in_region(Batched(flat[index], (out, *leaf.sizes[1:])), self.region)

    def item(self, place: Any) -> Any:
        """`list[place]` where lanes have different lists; `place` is one int or one per lane."""
        leaves, structure, table = self._rows()
        places = np.broadcast_to(np.asarray(getattr(place, "data", place)), self.counts.shape)
        places = np.where(places < 0, places + self.counts, places)
        if ((places < 0) | (places >= self.counts)).any():
            raise IndexError("list index out of range")
        rows = table[np.arange(len(places)), places]
        out = []
        for leaf in leaves:
            sizes = [Lengths(size.values[rows]) if isinstance(size, Lengths) else size for size in leaf.sizes]
            out.append(MaskedBatch.in_region(Batched(leaf.data[rows], sizes, leaf.scalar), self.region))
        return unflatten(structure, out)

    def backwards(self) -> "LaneList":
        """A new list with each lane's items in reverse."""
        out = LaneList(self.items if self.owners is not None else self.items[::-1])
        out.region = self.region
        if self.owners is not None:
            out.counts = self.counts.copy()
            out.owners = [(lanes, self.counts[lanes] - 1 - places, at) for lanes, places, at in self.owners]
        return out

    def per_lane(self) -> ObjectBatch:
        """A plain list for each lane of the region."""
        if self.owners is None:
            out = [[_lane_of(item, i, self.region) for item in self.items] for i in range(self.region.count)]
        else:
            out = [[None] * count for count in self.counts.tolist()]
            for item, (lanes, places, region) in zip(self.items, self.owners, strict=True):
                for i, (owner, place) in enumerate(zip(lanes.tolist(), places.tolist(), strict=True)):
                    out[owner][place] = _lane_of(item, i, region)
        batch = ObjectBatch(out)
        batch.region = self.region
        return batch

    def _plain(self) -> list[Any]:
        if self.owners is not None:
            raise NeedsLoop("a list whose length differs by example is used as one list")
        return self.items

    def own(self) -> list[Any]:
        """The plain list inside, to be changed for all lanes at once."""
        self._require_one()
        if self.owners is not None or current_region() is not self.region:
            raise NeedsLoop("a list is changed by some of its examples")
        return self.items

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            self.append(value)

    def insert(self, place: Any, value: Any) -> None:
        self.own().insert(place, value)

    def pop(self, *place: Any) -> Any:
        return self.own().pop(*place)

    def remove(self, value: Any) -> None:
        self.own().remove(value)

    def clear(self) -> None:
        self.own().clear()

    def sort(self, **kwargs: Any) -> None:
        self.own().sort(**kwargs)

    def reverse(self) -> None:
        self.own().reverse()

    def copy(self) -> "LaneList":
        return LaneList(self._plain())

    def index(self, *args: Any) -> int:
        return self._plain().index(*args)

    def count(self, value: Any) -> int:
        return self._plain().count(value)

    def __len__(self) -> int:
        return len(self._plain())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._plain())

    def __contains__(self, value: Any) -> bool:
        return value in self._plain()

    def __add__(self, other: Any) -> "LaneList":
        return LaneList(self._plain() + _plain_list(other))

    def __radd__(self, other: Any) -> "LaneList":
        return LaneList(_plain_list(other) + self._plain())

    def __mul__(self, count: Any) -> "LaneList":
        return LaneList(self._plain() * count)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return bool(self._plain() == (other._plain() if isinstance(other, LaneList) else other))

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        plain = self._plain()
        if any(isinstance(item, Batch) for item in plain):
            raise NeedsLoop("a list of per-example values is used as one array")
        return np.asarray(plain, dtype)

    def __repr__(self) -> str:
        return f"LaneList({self.items!r}{'' if self.owners is None else f', lengths={self.counts.tolist()}'})"


def _plain_list(value: Any) -> list[Any]:
    if isinstance(value, LaneList):
        return value._plain()
    if not isinstance(value, list):
        raise TypeError(f'can only concatenate list (not "{type(value).__name__}") to list')
    return value


def _within(region: Any, value: Any) -> Any:
    """A value with its batches restricted to the lanes of a region."""
    return map_tree(lambda leaf: region.narrow(leaf) if isinstance(leaf, Batch) else leaf, value)


def _narrowed_copy(leaf: Any) -> Any:
    """A leaf for a list of the current region; where that is a copy, neither may be written into."""
    out = narrowed(leaf)
    if out is not leaf:
        freeze(leaf)
        freeze(out)
    return out


def _lane_of(value: Any, index: int, region: Any) -> Any:
    """The value of one lane of a region; lists of ours as plain ones, at any depth."""
    if isinstance(value, LaneList):
        if not value.is_spread:
            return [_lane_of(item, index, region) for item in value.items]
        value = value.per_lane()
    if isinstance(value, Batch):
        return region.narrow(value)._lane(index)
    return map_tree(lambda leaf: _lane_of(leaf, index, region), value) if is_node(value) else value
