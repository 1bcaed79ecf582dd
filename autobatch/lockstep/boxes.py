"""`LaneBox`: a dict, set, deque or the like that was made in converted code."""

import collections
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.batches.examples import stack_results, weak_lanes
from autobatch.core.lanes import current_region, set_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.lists import differs
from autobatch.lockstep.ownership import is_changeable
from autobatch.lockstep.regions import Subset, lanes_within
from autobatch.lockstep.row import Row
from autobatch.lockstep.rows import CONTAINERS, Held, each_lane, gathered, owned, scattered, themselves, unified
from autobatch.lockstep.sequences import LaneSequence

__all__ = ["BOXED", "BoxMethod", "LaneBox", "boxed"]

BOXED = (dict, set, collections.deque, collections.Counter, collections.defaultdict, collections.OrderedDict)
_KEEPS = {"append", "appendleft", "insert", "setdefault", "get", "pop", "__setitem__"}
"""Methods whose arguments are kept or given back, not looked into."""
_FRESH = {
    "copy", "union", "intersection", "difference", "symmetric_difference", "most_common", "__or__", "__and__",
    "__sub__", "__xor__", "__add__", "__ror__", "__rand__", "__rsub__", "__rxor__", "__radd__",
}  # fmt: skip
_UPDATES = {"+": "__iadd__", "|": "__ior__", "&": "__iand__", "-": "__isub__", "^": "__ixor__", "*": "__imul__"}


class LaneBox(Held):
    """A container that every lane of its region has: one dict of values of all lanes, or a container for each lane.

    Attributes:
        region: where it was made.
        whole: the dict, while all lanes have the same keys; else None.
        lanes: the containers of the lanes, once those may differ.
    """

    __slots__ = ("__weakref__", "_kind", "lanes", "region", "whole")

    def __init__(self, whole: dict[Any, Any]) -> None:
        self.region: Any = current_region()
        self.whole: dict[Any, Any] | None = whole
        self.lanes: list[Any] | None = None
        self._kind: type = dict

    @classmethod
    def of_lanes(cls, lanes: list[Any]) -> "LaneBox":
        """From containers that are the lanes' own, one for each lane of the current region."""
        out = cls({})
        out.whole, out.lanes, out._kind = None, lanes, type(lanes[0]) if lanes else dict
        return out

    @classmethod
    def made(cls, kind: type, *args: Any, **named: Any) -> "LaneBox":
        """`kind(*args, **named)`, called for each lane."""
        region: Any = current_region()
        columns = [map(_opened, scattered(arg)) for arg in args]
        keys, values = list(named), [scattered(value) for value in named.values()]
        rows = zip(*values, strict=True) if values else [()] * region.count
        rest = [dict(zip(keys, row, strict=True)) for row in rows]
        return unified(kind, each_lane(lambda extra, *row: kind(*row, **extra), rest, *columns))  # type: ignore

    @property
    def kind(self) -> type:
        return self._kind

    @property
    def is_spread(self) -> bool:
        return self.lanes is not None

    def apart(self) -> list[Any]:
        if self.lanes is None:
            self._parting()
            assert self.whole is not None
            here = current_region()
            lanes: list[Any] = [owned({}) for _ in range(self.region.count)]
            set_region(self.region)
            try:
                for key, value in self.whole.items():
                    for each, kept in zip(lanes, scattered(value), strict=True):
                        each[key] = kept
            finally:
                set_region(here)
            self.lanes, self.whole = lanes, None
        return self.lanes

    def item(self, key: Any) -> Any:
        """`box[key]`."""
        if self.whole is not None and not differs(key):
            _require_key(key)
            return self.whole[key]
        return gathered(self._kept(key))

    def element(self, key: Any) -> Any:
        """`box[key]`, to be written into."""
        if self.whole is not None and not differs(key):
            return self.item(key)
        return themselves(self._kept(key))

    def _kept(self, key: Any) -> list[Any]:
        """What the container of each lane has at a key."""
        _require_key(key)
        keys = scattered(key)
        here = self.here()
        if issubclass(self._kind, collections.defaultdict):
            self._fill(here, keys)
        return each_lane(lambda each, own: each[own], here, map(_opened, keys))

    def _fill(self, here: list[Any], keys: list[Any]) -> None:
        """What a defaultdict's factory makes, for the lanes that miss the key."""
        region: Any = current_region()
        missing = [i for i, (each, key) in enumerate(zip(here, keys, strict=True)) if key not in each]
        factory = here[missing[0]].default_factory if missing else None
        if factory is None:
            return
        self.about_to_change()
        set_region(Subset(region, region.lanes()[missing]))
        try:
            values = scattered(region.root.call(factory))
        finally:
            set_region(region)
        for i, value in zip(missing, values, strict=True):
            here[i][keys[i]] = value

    def set(self, key: Any, value: Any) -> None:
        """`box[key] = value`."""
        _require_key(key)
        self.about_to_change()
        if self.whole is not None and current_region() is self.region and not differs(key):
            self.whole[key] = value
            return
        each_lane(self._kind.__setitem__, self.here(), map(_opened, scattered(key)), scattered(value))  # type: ignore

    def delete(self, key: Any) -> None:
        """`del box[key]`."""
        self.method("__delitem__", key)

    def method(self, name: str, *args: Any, **named: Any) -> Any:
        """`box.name(*args)`."""
        if name in ("keys", "values", "items"):
            return BoxView(self, name)
        for arg in args[:1]:
            _require_key(arg)
        if self.whole is not None and not any(map(differs, args[:1])):
            if name == "get":
                return self.whole.get(*args)
            if name == "__contains__":
                return args[0] in self.whole
            if name == "copy":
                return LaneBox(dict(self.whole))
            if current_region() is self.region and name in ("setdefault", "pop", "clear", "popitem"):
                self.about_to_change()
                return getattr(self.whole, name)(*args)
        self.about_to_change()
        function = getattr(self._kind, name)
        columns = [scattered(arg) for arg in args]
        if name not in _KEEPS:
            columns = [list(map(_opened, column)) for column in columns]
        keys, values = list(named), [scattered(value) for value in named.values()]
        here = self.here()
        rows = zip(*values, strict=True) if values else [()] * len(here)
        rest = [dict(zip(keys, row, strict=True)) for row in rows]
        out = each_lane(lambda each, extra, *row: function(each, *row, **extra), here, rest, *columns)
        if name in _FRESH:
            for each in out:
                owned(each)
        return gathered(out)

    def update_in_place(self, symbol: str, value: Any) -> "LaneBox":
        """`box += value` and its like."""
        self.method(_UPDATES[symbol], value)
        return self

    def contains(self, key: Any) -> Any:
        """`key in box`."""
        return self.method("__contains__", key)

    def equals(self, other: Any) -> Any:
        """`box == other`."""
        return stack_results(each_lane(lambda x, y: x == y, self.here(), scattered(other)))

    def count_here(self) -> Any:
        """`len(box)`: an int, or one per lane of the current region."""
        if self.whole is not None:
            return len(self.whole)
        return weak_lanes(np.array(list(map(len, self.here())), np.int64), int)

    def sequence(self, backwards: bool = False) -> LaneSequence:
        """What a loop over it runs over."""
        return BoxView(self, "keys" if issubclass(self._kind, dict) else "iter", backwards)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_ab_", "__")) or name in LaneBox.__slots__ or not hasattr(self._kind, name):
            raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}")
        if not callable(getattr(self._kind, name)):
            return gathered([getattr(each, name) for each in self.here()])
        return BoxMethod(self, name)

    def __getitem__(self, key: Any) -> Any:
        return self.item(key)

    def __len__(self) -> int:
        count = self.count_here()
        return count if isinstance(count, int) else count.__index__()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sequence())

    def __contains__(self, key: Any) -> bool:
        return bool(self.contains(key))

    def __eq__(self, other: object) -> Any:
        return self is other or self.equals(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self.whole is not None and not any(map(differs, self.whole.values())):
            return repr(self.whole)
        return f"LaneBox({self.whole if self.lanes is None else self.lanes!r})"


def _operator(name: str) -> Callable[[LaneBox, Any], Any]:
    def call(self: LaneBox, other: Any) -> Any:
        return self.method(name, other) if hasattr(self._kind, name) else NotImplemented

    return call


for _name in ("or", "and", "sub", "xor", "add", "mul"):
    setattr(LaneBox, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(LaneBox, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "ne"):
    setattr(LaneBox, f"__{_name}__", _operator(f"__{_name}__"))
for _kind in BOXED:
    CONTAINERS[_kind] = LaneBox.of_lanes


class BoxMethod:
    """A method of a box, bound to it."""

    __slots__ = ("__name__", "__self__")

    def __init__(self, box: LaneBox, name: str) -> None:
        self.__self__ = box
        self.__name__ = name

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.__self__.method(self.__name__, *args, **named)


class BoxView(LaneSequence):
    """The keys, values or items of a box as a loop meets them: each is read when the loop comes to it."""

    __slots__ = ("backwards", "box", "counts", "keys", "lanes", "opened", "what")

    def __init__(self, box: LaneBox, what: str, backwards: bool = False) -> None:
        super().__init__()
        self.box = box
        self.what = what
        self.backwards = backwards

    def require_here(self) -> None:
        """It can be read by any lanes that have the box."""

    def lengths(self) -> Any:
        count = self.box.count_here()
        return count if isinstance(count, int) else count.data

    def open(self, order: Any) -> None:
        super().open(order)
        self.opened = current_region()
        box = self.box
        step = -1 if self.backwards else 1
        self.counts = box.count_here() if box.whole is not None else [len(each) for each in box.here()]
        if box.whole is not None:
            self.keys: Any = list(box.whole)[::step]
            self.lanes: Any = None
            return
        self.keys = [list(each)[::step] for each in box.here()]
        count = len(self.keys)
        self.lanes = list(range(count)) if order is None or order.index is None else order.index.tolist()

    def at(self, step: int, region: Any) -> Any:
        self._require_same(region)
        if self.lanes is None:
            key = self.keys[step]
        else:
            key = gathered([self.keys[lane][step] for lane in self.lanes[: region.count]])
        if self.what in ("keys", "iter"):
            return key
        value = self.box.item(key)
        return value if self.what == "values" else (key, value)

    def _require_same(self, region: Any) -> None:
        box = self.box
        if self.lanes is None:
            same = (
                (len(box.whole) == self.counts)
                if box.whole is not None
                else all(len(each) == self.counts for each in box.apart())
            )
        else:
            same = all(
                len(each) == self.counts[lane]
                for each, lane in zip(box.here(), self.lanes[: region.count], strict=True)
            )
        if not same:
            self._refuse()

    def _refuse(self) -> None:
        raise NeedsLoop(f"a {self.box.kind.__name__} changes its size while a loop runs over it")

    def done(self, region: Any) -> None:
        box, counts = self.box, self.counts
        if box.whole is not None:
            same = len(box.whole) == counts
        else:
            places: Any = lanes_within(region, self.opened)
            outer = current_region()
            set_region(region)
            sizes = [len(each) for each in box.here()]
            set_region(outer)
            same = all(
                size == (counts if isinstance(counts, int) else counts[place])
                for size, place in zip(sizes, places.tolist(), strict=True)
            )
        if not same:
            self._refuse()

    def __iter__(self) -> Iterator[Any]:
        if self.box.whole is None and len({tuple(each) for each in self.box.here()}) > 1:
            raise NeedsLoop(f"a {self.box.kind.__name__} that differs by example is iterated outside converted code")
        self.open(None)
        region = current_region()
        keys = self.keys if self.lanes is None else self.keys[0] if self.keys else []
        return iter([self.at(step, region) for step in range(len(keys))])


def _require_key(key: Any) -> None:
    """Raise NeedsLoop for a key that Python would hash and compare by methods of the user's, as they are written."""
    if is_changeable(key) and type(key).__eq__ is not object.__eq__:
        raise NeedsLoop(f"a {type(key).__name__} is a key, whose class says what is equal")


def _opened(value: Any) -> Any:
    """A kept value for a method that looks into it."""
    return value.value() if type(value) is Row else value


def boxed(value: Any) -> Any:
    """A container that a builtin or a display of converted code has made, for all lanes."""
    if type(value) is dict:
        return LaneBox(value)
    region: Any = current_region()
    return unified(type(value), [value.copy() for _ in range(region.count)])
