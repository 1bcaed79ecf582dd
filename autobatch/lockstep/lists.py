"""`LaneList`: a list made in converted code. Lanes that append more often than others have longer lists."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, narrowed
from autobatch.batches.examples import stack_results, weak_lanes
from autobatch.core.lanes import current_region, set_region
from autobatch.core.pytree import is_node, leaves, map_tree
from autobatch.errors import NeedsLoop
from autobatch.lockstep.list_rows import ListRows
from autobatch.lockstep.ownership import freeze, is_changeable
from autobatch.lockstep.plain import plain, require_comparable
from autobatch.lockstep.regions import lanes_within
from autobatch.lockstep.rows import CONTAINERS, Choice, Held, each_lane, gathered, owned, scattered, themselves, unified

__all__ = ["LaneList", "differs"]


class LaneList(ListRows):
    """A list that every lane of its region has, in one of three forms.

    Whole: one list of values of all lanes. Spread: some lanes have appended what others have not; each item is of some
    lanes. Apart: a list for each lane, once lanes have changed theirs in other ways than by appending.

    Attributes:
        region: where it was made.
        items: the values, in the order of appending; whole or spread.
        owners: spread, for each item: the lanes of `region` that have it, in the order of the item's own lanes, its
            place in each of their lists, and the region whose lanes the item's are.
        lanes: apart, the lists themselves. A list that a lane knows by several names is one object.
    """

    __slots__ = ("__weakref__", "_counts", "_packs", "_stacked", "items", "lanes", "owners", "region", "version")

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self.items = list(items)
        self.region: Any = current_region()
        self.owners: list[tuple[np.ndarray, np.ndarray, Any]] | None = None
        self.lanes: list[list[Any]] | None = None
        self._counts: Any = None
        self._stacked: Any = None
        self._packs: dict[int, tuple[Any, int]] = {}
        self.version = 0

    @classmethod
    def of_lanes(cls, lanes: list[list[Any]]) -> "LaneList":
        """From lists that are the lanes' own, one for each lane of the current region."""
        out = cls()
        out.lanes = lanes
        return out

    @property
    def kind(self) -> type:
        return list

    @property
    def is_spread(self) -> bool:
        """Whether its lanes may have lists of different lengths."""
        return self.owners is not None or self.lanes is not None

    @property
    def counts(self) -> Any:
        """The length of each lane's list."""
        if self.lanes is not None:
            return np.array(list(map(len, self.lanes)), np.int64)
        return self._counts if self.owners is not None else np.full(self.region.count, len(self.items))

    def count_here(self) -> Any:
        """`len(list)`: an int, or one per lane of the current region."""
        if not self.is_spread:
            return len(self.items)
        out = weak_lanes(self.counts.copy(), int)
        out.region = self.region
        return narrowed(out)

    def apart(self) -> list[list[Any]]:
        if self.lanes is None:
            self._parting()
            here = current_region()
            counts = self.counts
            lanes: list[list[Any]] = [owned([None] * count) for count in counts.tolist()]
            everyone = range(len(lanes))
            try:
                for place, item in enumerate(self.items):
                    own, places, at = self.owners[place] if self.owners is not None else (everyone, None, self.region)
                    set_region(at)
                    for each, (lane, value) in enumerate(zip(own, scattered(item), strict=True)):
                        lanes[lane][place if places is None else places[each]] = value
            finally:
                set_region(here)
            self.lanes, self.items, self.owners, self._counts, self._stacked = lanes, [], None, None, None
            self._packs = {}
        return self.lanes

    def append(self, value: Any) -> None:
        region = current_region()
        if region is None or region.root.journal is not None:  # type: ignore[attr-defined]
            self.count_change()
        else:
            self.version += 1
            region.root.changes += 1  # type: ignore[attr-defined]
        if self.lanes is not None:
            for each, kept in zip(self.here(), scattered(value), strict=True):
                each.append(kept)
            return
        if region is self.region and self.owners is None:
            self.items.append(value)
            return
        lanes = lanes_within(region, self.region) if region is not None and self.region is not None else None
        if lanes is None:
            raise NeedsLoop("a list is appended to by examples that it does not belong to")
        if self.owners is None:
            self._spread()
        assert self.owners is not None
        places = self._counts[lanes]
        self.owners.append((lanes, places, region))
        self.items.append(map_tree(_narrowed_copy, value))
        self._counts[lanes] = places + 1
        self._stacked = None

    def extend(self, values: "LaneList") -> None:
        """Append the items of another list, or of this one."""
        self.count_change()
        if self._is_whole() and not values.is_spread:
            self.items += list(values.items)
        else:
            each_lane(list.extend, self.here(), [list(each) for each in values.here()])

    def count_change(self) -> None:
        """Say that the list is going to change, for the lanes of the current region."""
        self.version += 1
        self.about_to_change()

    def _spread(self) -> None:
        everyone = np.arange(self.region.count)
        self.owners = [(everyone, np.full(len(everyone), place), self.region) for place in range(len(self.items))]
        self.items = [_within(self.region, item) for item in self.items]
        self._counts = np.full(len(everyone), len(self.items))

    def item(self, place: Any) -> Any:
        """`list[place]`; `place` is one int or one per lane of the current region."""
        if not self.is_spread and not isinstance(place, Batch):
            return self.items[place]
        if self.owners is not None and self.region is current_region() and not self.has_python_scalars():
            try:
                return map_tree(freeze, self._item_of_rows(place))
            except NeedsLoop:
                pass
        return gathered(each_lane(list.__getitem__, self.here(), scattered(place)))

    def element(self, place: Any) -> Any:
        """`list[place]`, to be written into."""
        if not self.is_spread and not isinstance(place, Batch):
            return self.items[place]
        return themselves(each_lane(list.__getitem__, self.here(), scattered(place)))

    def part(self, index: Any) -> "LaneList":
        """`list[start:stop:step]`, a new list; bounds may be per lane."""
        if not self.is_spread and not differs(index):
            return self._new(self.items[index])
        if index == slice(None, None, -1) and self.owners is not None and self.region is current_region():
            return self.backwards()
        return unified(list, each_lane(lambda each, part: each[part], self.here(), scattered(index)))  # type: ignore

    def _new(self, items: list[Any]) -> "LaneList":
        """A new list of items that may be of more lanes than this list's current ones."""
        return LaneList(items)

    def backwards(self) -> "LaneList":
        """A new list with each lane's items in reverse."""
        out = LaneList(self.items if self.owners is not None else self.items[::-1])
        out.region = self.region
        if self.lanes is not None:
            out.lanes = [owned(each[::-1]) for each in self.lanes]
        if self.owners is not None:
            out._counts = self._counts.copy()
            out._packs = self._packs.copy()
            out.owners = [(lanes, self._counts[lanes] - 1 - places, at) for lanes, places, at in self.owners]
        return out

    def _is_whole(self, *args: Any) -> bool:
        """Whether one Python list stands for all lanes here, and these arguments are the same for all of them."""
        return not self.is_spread and current_region() is self.region and not any(map(differs, args))

    def _change(self, name: str, *args: Any) -> Any:
        """A method of the list that changes it: once for all lanes, or on each one's own list."""
        self.count_change()
        if self._is_whole(*args):
            return getattr(self.items, name)(*args)
        method = getattr(list, name)
        return gathered(each_lane(method, self.here(), *map(scattered, args)))

    def _read(self, name: str, *args: Any) -> Any:
        """A method that compares items, which must be those of each lane."""
        self.require_comparable(*args)
        if self._is_whole(*args) and not any(map(differs, self.items)):
            return getattr(self.items, name)(*(arg if is_changeable(arg) else plain(arg) for arg in args))
        return stack_results(each_lane(getattr(list, name), self.here(), *map(scattered, args)))

    def require_comparable(self, *others: Any) -> None:
        """Raise NeedsLoop if its items, or these, cannot be compared by Python itself."""
        require_comparable(others)
        for items in (self.items, *(self.lanes or ())):
            require_comparable(items)

    def pop(self, *place: Any) -> Any:
        return self._change("pop", *place)

    def clear(self) -> None:
        self._change("clear")

    def reverse(self) -> None:
        self._change("reverse")

    def insert(self, place: Any, value: Any) -> None:
        if self._is_whole(place):
            self.count_change()
            self.items.insert(place, value)
        else:
            self._change("insert", place, value)

    def set(self, index: Any, value: Any) -> None:
        """`list[index] = value`."""
        self.count_change()
        if self._is_whole(index) and not isinstance(index, slice):
            self.items[index] = value
        else:
            each_lane(list.__setitem__, self.here(), scattered(index), scattered(value))

    def delete(self, index: Any) -> None:
        """`del list[index]`."""
        self._change("__delitem__", index)

    def remove(self, value: Any) -> None:
        self.count_change()
        self._read("remove", value)

    def sort(self, *, reverse: Any = False) -> None:
        """Without `key`, which is the user's function: converted code sorts by it."""
        self.count_change()
        self.require_comparable()
        if self._is_whole(reverse) and not any(map(differs, self.items)):
            self.items.sort(reverse=reverse)
        else:
            each_lane(lambda each, falls: each.sort(reverse=falls), self.here(), scattered(reverse))

    def copy(self) -> "LaneList":
        return self.part(slice(None))

    def index(self, *args: Any) -> Any:
        return self._read("index", *args)

    def count(self, value: Any) -> Any:
        return self._read("count", value)

    def contains(self, value: Any) -> Any:
        """`value in list`."""
        return self._read("__contains__", value)

    def equals(self, other: Any) -> Any:
        """`list == other`."""
        self.require_comparable(other)
        return stack_results(each_lane(lambda x, y: x == y, self.here(), scattered(other)))

    def times(self, count: Any) -> "LaneList":
        """`list * count`."""
        if not self.is_spread and not differs(count):
            return self._new(self.items * count)
        return unified(list, each_lane(lambda each, n: each * n, self.here(), scattered(count)))  # type: ignore

    def repeat(self, count: Any) -> "LaneList":
        """`list *= count`, in place."""
        self.count_change()
        if self._is_whole(count):
            self.items *= count
        else:
            each_lane(list.__imul__, self.here(), scattered(count))
        return self

    def plus(self, other: Any) -> "LaneList":
        """`list + other`, a new list."""
        if isinstance(other, LaneList) and not self.is_spread and not other.is_spread:
            return self._new(self.items + other.items)
        return unified(list, each_lane(lambda x, y: x + y, self.here(), scattered(other)))  # type: ignore

    def _same_count(self) -> int:
        counts = narrowed_counts(self)
        if not len(counts) or (counts != counts[0]).any():
            raise NeedsLoop("a list whose length differs by example is used as one list")
        return int(counts[0])

    def __len__(self) -> int:
        return len(self.items) if not self.is_spread else self._same_count()

    def __iter__(self) -> Iterator[Any]:
        if not self.is_spread:
            return self._live(self.items)
        return iter([self.item(place) for place in range(self._same_count())])

    def _live(self, items: list[Any]) -> Iterator[Any]:
        """The items, those included that are appended meanwhile."""
        for item in items:
            yield item
            if self.items is not items:
                raise NeedsLoop("a list changes for some examples while a loop runs over it")

    def __contains__(self, value: Any) -> bool:
        return bool(self.contains(value))

    def __getitem__(self, index: Any) -> Any:
        return self.part(index) if isinstance(index, slice) else self.item(index)

    def __add__(self, other: Any) -> Any:
        return self.plus(other) if _is_list(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return LaneList(other).plus(self) if type(other) is list else NotImplemented

    def __mul__(self, count: Any) -> Any:
        return self.times(count)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> Any:
        return self is other or self.equals(other)

    def __ne__(self, other: object) -> Any:
        return self is not other and stack_results(each_lane(lambda x, y: x != y, self.here(), scattered(other)))

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.is_spread or any(differs(item) for item in self.items):
            raise NeedsLoop("a list of per-example values is used as one array")
        return np.asarray(self.items, dtype)

    def __repr__(self) -> str:
        if not self.is_spread and not any(map(differs, self.items)):
            return repr(self.items)
        return f"LaneList({self.items if self.lanes is None else self.lanes!r})"


def _compared(name: str) -> Callable[[LaneList, Any], Any]:
    def compare(self: LaneList, other: Any) -> Any:
        self.require_comparable(other)
        return stack_results(each_lane(getattr(list, name), self.here(), scattered(other)))

    return compare


for _name in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(LaneList, _name, _compared(_name))
CONTAINERS[list] = LaneList.of_lanes


def narrowed_counts(held: LaneList) -> np.ndarray:
    """The lengths of the lists of the lanes of the current region."""
    counts = held.counts
    lanes = lanes_within(current_region(), held.region) if held.region is not None else None
    return counts if lanes is None else counts[lanes]


def _is_list(value: Any) -> bool:
    if isinstance(value, LaneList | list):
        return True
    return isinstance(value, Batch) and hasattr(value, "values") and all(type(each) is list for each in value.values)


def differs(value: Any) -> bool:
    """Whether a value, at any depth, is not one and the same for all lanes."""
    if isinstance(value, Batch):
        return True
    if isinstance(value, LaneList):
        return value.is_spread or any(map(differs, value.items))
    if isinstance(value, Held | Choice):
        return True
    if isinstance(value, slice):
        return differs(value.start) or differs(value.stop) or differs(value.step)
    return is_node(value) and any(differs(leaf) for leaf in leaves(value))


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
