"""The items of lists that differ by example as rows of arrays: stacked, joined, and picked by place."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, narrowed
from autobatch.batches.examples import broadcast
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.unpadded import stacked_rows
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.pytree import flatten, is_node, leaves, unflatten
from autobatch.errors import NeedsLoop
from autobatch.lockstep.merging import concatenated, stackable
from autobatch.lockstep.ownership import is_changeable
from autobatch.lockstep.regions import lanes_within
from autobatch.lockstep.rows import Choice, Held, gathered

__all__ = ["ListRows"]


class ListRows(Held):
    """What a list of ours knows of its items as arrays. Abstract: `LaneList` says what it holds, and how."""

    __slots__ = ()

    items: list[Any]
    owners: list[tuple[np.ndarray, np.ndarray, Any]] | None
    lanes: list[list[Any]] | None
    counts: Any
    _counts: Any
    _packs: dict[int, tuple[Any, int]]
    _stacked: Any
    region: Any

    def count_change(self) -> None:
        """Say that the list is going to change, for the lanes of the current region."""
        raise TypeError(f"{type(self).__name__} does not say how it changes")

    def _spread(self) -> None:
        raise TypeError(f"{type(self).__name__} does not say how lanes come to differ")

    def _rows(self) -> tuple[list[Any], Any, np.ndarray]:
        """Leaves with one row for each item of each lane, their structure, and the row number of (lane, place)."""
        if self.lanes is not None:
            return self._rows_apart(self.lanes)
        assert self.owners is not None
        if not self.items:
            raise NeedsLoop("an empty list of each example")
        sizes = [len(lanes) for lanes, _, _ in self.owners]
        items, heights = self._packed(sizes) if self._packs else (self.items, sizes)
        columns, structure = _columns(items)
        leaves = []
        for column in columns:
            batches = [_as_batch(value, size) for value, size in zip(column, heights, strict=True)]
            if not stackable(batches):
                raise NeedsLoop("a list of different ranks or dtypes")
            leaves.append(concatenated(batches))
        total = sum(sizes)
        table = np.full((len(self._counts), int(self._counts.max(initial=0))), total)
        lanes, places = (np.concatenate([owner[which] for owner in self.owners]) for which in (0, 1))
        table[lanes, places] = np.arange(total)
        return leaves, structure, table

    def _packed(self, sizes: Sequence[int]) -> tuple[list[Any], list[int]]:
        """The items, those that lie one after the other as one; and how many rows each has."""
        items: list[Any] = []
        heights: list[int] = []
        place = 0
        while place < len(self.items):
            rows, count = self._packs.get(place, (self.items[place], 1))
            items.append(rows)
            heights.append(sum(sizes[place : place + count]))
            place += count
        return items, heights

    def _rows_apart(self, lanes: list[list[Any]]) -> tuple[list[Any], Any, np.ndarray]:
        kept = [value for lane in lanes for value in lane]
        if not kept:
            raise NeedsLoop("an empty list of each example")
        found, structure = flatten(gathered(kept))
        leaves = [_as_batch(leaf, len(kept)) for leaf in found]
        if not all(type(leaf) is MaskedBatch for leaf in leaves):
            raise NeedsLoop("a list of different structures, ranks or dtypes")
        counts = self.counts
        table = np.full((len(counts), int(counts.max(initial=0))), len(kept))
        table[np.arange(table.shape[1]) < counts[:, None]] = np.arange(len(kept))
        return leaves, structure, table

    def append_steps(self, rows: Any, items: Sequence[Any], regions: Sequence[Any]) -> None:
        """Append what each step of a loop made, as `append` in each of its steps does.

        Args:
            rows: a batch of all steps' rows, one step after the other.
            items: those of each step.
            regions: the region of each step: the current one, or a prefix of the one of the step before.
        """
        self.count_change()
        if self.owners is None and regions[-1] is self.region:
            self.items += items
            return
        lanes = None if self.region is None else lanes_within(regions[0], self.region)
        if lanes is None or self.lanes is not None:
            raise NeedsLoop("a list is appended to by examples that it does not belong to")
        if self.owners is None:
            self._spread()
        assert self.owners is not None
        self._packs[len(self.items)] = rows, len(items)
        counts = self._counts[lanes]
        for region in regions:
            places = counts[: region.count]
            self.owners.append((lanes[: region.count], places.copy(), region))
            places += 1
        self.items += items
        self._counts[lanes] = counts
        self._stacked = None

    def stacked(self) -> Any:
        """The items of each lane along a new first dimension: a batch, or a tree of them. One join and one gather.

        Raises:
            NeedsLoop: items of different structure, rank or dtype, or of different shapes in one lane.
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
                    raise NeedsLoop("a list of ragged items")
                inner.append(size)
            out.append(MaskedBatch.in_region(Batched(data, (length, *inner), None), self.region))
        stacked = unflatten(structure, out)
        if self.lanes is None:
            self._stacked = stacked
        return stacked

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

    def _item_of_rows(self, place: Any) -> Any:
        leaves, structure, table = self._rows()
        places = np.broadcast_to(np.asarray(getattr(narrowed(place), "data", place)), self._counts.shape)
        places = np.where(places < 0, places + self._counts, places)
        if ((places < 0) | (places >= self._counts)).any():
            raise IndexError("list index out of range")
        rows = table[np.arange(len(places)), places]
        out = []
        for leaf in leaves:
            sizes = [Lengths(size.values[rows]) if isinstance(size, Lengths) else size for size in leaf.sizes]
            out.append(MaskedBatch.in_region(Batched(leaf.data[rows], sizes, leaf.scalar), self.region))
        return unflatten(structure, out)


def _columns(items: Sequence[Any]) -> tuple[Sequence[Sequence[Any]], Any]:
    """The leaves of items of one structure, by their place in it, and the structure."""
    if all(type(item) is MaskedBatch for item in items):
        return [items], flatten(items[0])[1]
    values, structures = zip(*map(flatten, items), strict=True)
    if any(structure != structures[0] for structure in structures):
        raise NeedsLoop("a list of different structures")
    return list(zip(*values, strict=True)), structures[0]


def _as_batch(value: Any, size: int) -> Any:
    if type(value) is MaskedBatch and value.data.shape[0] == size:
        return value
    if isinstance(value, Packed) and isinstance(value, Batch):
        value = value.to_masked()  # type: ignore[attr-defined]
    if is_changeable(value) or isinstance(value, Held | Choice):
        raise NeedsLoop("a list of objects")
    out = value if isinstance(value, Batch) else broadcast(value, size)
    if getattr(out, "batch_size", size) != size:
        raise NeedsLoop("a list whose items belong to other examples")
    return out
