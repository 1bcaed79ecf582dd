"""Regions: which lanes run, and how a value made for more lanes is restricted to them.

The root region has every lane. A loop over data of different lengths puts the lanes in order of length once; each of
its steps runs in a `Prefix` of that order. Restricting a value of the enclosing region gathers it once for the whole
loop; from one prefix to a shorter one it is a view.
"""

from typing import Any

import numpy as np

from autobatch.batches.results import prefix_lanes, take_lanes
from autobatch.core.batched import Batched
from autobatch.core.lanes import Example, current_region, random_key
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop

__all__ = ["LaneExample", "Order", "Prefix", "Root", "current_root", "lanes_within"]


class Root:
    """All lanes of one lock-step call, and what the call has made so far.

    Attributes:
        batch_size: the number of lanes.
        call: runs a call of converted code.
        convert: gives the lock-step form of a user's function, or None where it has none.
        frozen: batches that stand for a part of an array, or have a part standing for them: a write into one would not
            reach the other, so there is none.
        made: objects that this call made, by identity, each with the region that it was made in: only those may change.
        prints: what the lanes have printed; shown example by example when the call ends.
    """

    __slots__ = ("batch_size", "call", "convert", "count", "frozen", "made", "parent", "prints", "root")

    def __init__(self, batch_size: int, call: Any, convert: Any) -> None:
        self.batch_size = self.count = batch_size
        self.call = call
        self.convert = convert
        self.frozen: dict[int, Any] = {}
        self.made: dict[int, tuple[Any, Any]] = {}
        self.prints: list[tuple[Any, Any, Any]] = []
        self.root = self
        self.parent: Any = None

    def narrow(self, batch: Any) -> Any:
        if batch.region is self:
            return batch
        if batch.region is None:
            raise NeedsLoop("a batch that is no argument of the call is used inside it")
        raise NeedsLoop("a value of some examples is used for all of them")

    def lanes(self) -> np.ndarray:
        return np.arange(self.batch_size)

    def example_of(self, lane: int) -> int:
        return lane


class Order:
    """The lanes of a region in the order in which a loop runs them; `index` is None where that is their own order."""

    __slots__ = ("_known", "_lengths", "index", "inverse", "parent", "size")

    def __init__(self, parent: Any, index: np.ndarray | None, size: int) -> None:
        self.parent = parent
        self.index = index
        self.size = size
        self.inverse: np.ndarray | None = None
        if index is not None:
            self.inverse = np.empty_like(index)
            self.inverse[index] = np.arange(len(index))
        self._known: dict[int, tuple[Any, Any, Any]] = {}
        self._lengths: dict[Any, Any] = {}

    def arranged(self, batch: Any) -> Any:
        """A batch of the parent region (or one around it) in this order; gathered once while its value is the same."""
        known = self._known.get(id(batch))
        value = _value_of(batch)
        if known is not None and known[1] is value:
            return known[2]
        out = batch if batch.region is self.parent else self.parent.narrow(batch)
        if self.index is not None:
            out = take_lanes(out, self.index, self._lengths)
        self._known[id(batch)] = (batch, value, out)
        return out


class Prefix:
    """The first `count` lanes of an order: a step of a loop."""

    __slots__ = ("_known", "_lanes", "_lengths", "count", "order", "parent", "root")

    def __init__(self, order: Order, count: int) -> None:
        self.order = order
        self.count = count
        self.parent = order.parent
        self.root = order.parent.root
        self._known: dict[int, tuple[Any, Any, Any]] = {}
        self._lengths: dict[Any, Any] = {}
        self._lanes: np.ndarray | None = None

    def narrow(self, batch: Any) -> Any:
        region = batch.region
        if region is self:
            return batch
        if type(region) is Prefix and region.order is self.order:
            if region.count < self.count:
                raise NeedsLoop("a value of some examples is used for more of them")
            return self._of_prefix(batch)
        known = self._known.get(id(batch))
        value = _value_of(batch)
        if known is not None and known[1] is value:
            return known[2]
        out = self._of_prefix(self.order.arranged(batch))
        self._known[id(batch)] = (batch, value, out)
        return out

    def _of_prefix(self, batch: Any) -> Any:
        out = prefix_lanes(batch, self.count, self._lengths)
        out.region = self
        return out

    def lanes(self) -> np.ndarray:
        """The root's lanes that are in this region, in its order."""
        if self._lanes is None:
            above = self.parent.lanes()
            self._lanes = (above if self.order.index is None else above[self.order.index])[: self.count]
        return self._lanes

    def example_of(self, lane: int) -> int:
        return int(self.lanes()[lane])


def _value_of(batch: Any) -> Any:
    """What a write replaces: a batch that is written into keeps its identity, its data does not."""
    return batch.data if isinstance(batch, Batched) else batch.values


def current_root() -> Root | None:
    """The region of the whole running call; None outside lock-step."""
    region = current_region()
    return None if region is None else region.root  # type: ignore[attr-defined]


def lanes_within(region: Any, outer: Any) -> np.ndarray | None:
    """The lanes of `outer` that a region inside of it has, in its order; None if they are not nested."""
    if region is outer:
        return np.arange(outer.count)
    chain: list[Prefix] = []
    while region is not outer:
        if type(region) is not Prefix:
            return None
        chain.append(region)
        region = region.parent
    lanes = np.arange(outer.count)
    for prefix in reversed(chain):
        lanes = (lanes if prefix.order.index is None else lanes[prefix.order.index])[: prefix.count]
    return lanes


class LaneExample(Example):
    """The examples of a lock-step call: each lane counts its own random calls, wherever the others are."""

    __slots__ = ("batch_of",)

    def __init__(self, batch_size: int, batch_of: Any) -> None:
        super().__init__(np.arange(batch_size), np.zeros(batch_size, np.int64))
        self.batch_of = batch_of

    def next_key(self, seed: int) -> Any:
        region = current_region()
        assert region is not None
        if is_boxed(seed):
            raise NeedsLoop("a seed that differs by example")
        lanes = region.lanes()  # type: ignore[attr-defined]
        keys = random_key(seed, self.index[lanes], self.calls[lanes])
        self.calls[lanes] += 1
        return self.batch_of(keys)
