"""Regions: which lanes are active, and how a value made for more lanes is restricted to them.

The root region has every lane. A loop over data of different lengths puts the lanes in order of length once; each of
its steps runs in a `Prefix` of that order. Restricting a value of the enclosing region gathers it once for the whole
loop; from one prefix to a shorter one it is a view. A branch, and a loop that lanes leave one by one, runs in a
`Subset`: a value is gathered when the region first reads it.

What a lock-step call made itself may change, and only in the region that it was made in: a change of anything else
would be seen outside, where the loop over the examples makes it once per example and in another order.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import prefix_lanes, stack_results, take_lanes
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.current_region import Example, current_region, random_key
from autobatch.core.op import is_boxed
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import NeedsLoop
from autobatch.lockstep.values.joined_lanes import concatenated, stackable
from autobatch.ops.rules.aliasing import is_scalar
from autobatch.ops.rules.row_gather import rows_between


class _Narrowing:
    """Values of more lanes, restricted to fewer or put in another order: once, as long as the value stays the same."""

    __slots__ = ("_known", "_lengths")

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any, Any]] = {}
        self._lengths: dict[Any, Any] = {}

    def _once(self, batch: Any, narrowed: Callable[[Any], Any]) -> Any:
        """`narrowed(batch)`. A write keeps the batch's identity, but replaces its value."""
        known = self._known.get(id(batch))
        value = batch.data if isinstance(batch, Batched) else batch.values
        if known is not None and known[1] is value:
            return known[2]
        out = narrowed(batch)
        self._known[id(batch)] = (batch, value, out)
        return out


class _Part(_Narrowing):
    """Some lanes of the root, in an order of their own."""

    __slots__ = ("__weakref__", "_lanes", "count", "root", "within")

    def __init__(self, root: Any, count: int, lanes: np.ndarray | None = None) -> None:
        super().__init__()
        self.root = root
        self.count = count
        self.within: dict[int, Any] = {}
        self._lanes: Any = lanes

    def merged(self, batch: Any, new: Any) -> Any:
        return written(self, batch, new)

    def take(self, batch: Any, index: np.ndarray) -> Any:
        """The lanes of a batch at `index`, which are this region's; nothing here keeps the batch alive."""
        return taken(batch, index, self, self._lengths)

    def lanes(self) -> np.ndarray:
        """The root's lanes that are in this region, in its order."""
        return self._lanes

    def example_of(self, lane: int) -> int:
        return int(self.lanes()[lane])


class Root:
    """All lanes of one lock-step call, and what the call has made so far.

    Attributes:
        batch_size: the number of lanes.
        call: runs a call of converted code.
        convert: gives the lock-step form of a user's function, or None where it has none.
        is_local: whether a function, or source text, changes nothing but its own variables.
        made: objects that this call made, by identity, each with the region that it was made in: only those may change.
        blocks: {site: its run}, for the blocks of straight-line code that run now.
        effects: what is printed and changed outside of the call when it ends.
        items: {id of a batch: a weak reference to the rows whose current item it is}.
    """

    __slots__ = (
        "batch_size", "blocks", "call", "convert", "count", "effects", "is_local", "items", "made", "parent",
        "root",
    )  # fmt: skip

    def __init__(self, batch_size: int, call: Any, convert: Any, is_local: Any) -> None:
        self.batch_size = self.count = batch_size
        self.call = call
        self.convert = convert
        self.is_local = is_local
        self.made: dict[int, tuple[Any, Any]] = {}
        self.blocks: dict[Any, Any] = {}
        self.items: dict[int, Any] = {}
        self.effects: Any = None
        self.root = self
        self.parent: Any = None

    def narrow(self, batch: Any) -> Any:
        if batch.region is self:
            return batch
        if batch.region is None:
            raise NeedsLoop("a batch that is no argument of the call is used inside it")
        if batch.region.root is not self or batch.region.count < self.count:
            raise unbound()
        index = lanes_within(self, batch.region)  # all lanes, in the order of a loop
        assert index is not None
        out = taken(batch, index, self, {})
        self.freeze(batch)
        self.freeze(out)
        return out

    def take(self, batch: Any, index: np.ndarray) -> Any:
        """The lanes of a batch at `index`, which are all lanes, in their own order."""
        return taken(batch, index, self, {})

    def freeze(self, batch: Any, part: Any = None) -> None:
        """Let no write go into this batch, which stands for a part of an array, or has a part standing for it.

        Args:
            part: what stands for a part of it; once nobody has that any more, it may be written into again.
        """
        is_array = type(batch) is MaskedBatch and bool(batch.sizes)
        if not (is_array or (isinstance(batch, Batched | Packed) and not is_scalar(batch))):
            return
        if part is None:
            batch._frozen = True
            return
        known = getattr(batch, "_frozen", None) or []
        if known is not True:
            batch._frozen = [*(each for each in known if each() is not None), weakref.ref(part)]

    @staticmethod
    def is_frozen(batch: Any, region: Any) -> bool:
        """Whether a write into this batch by the lanes of a region would not be seen under all its names."""
        known = getattr(batch, "_frozen", None) or []
        if known is True:
            return True
        parts = [part for each in known if (part := each()) is not None]
        return any(np.isin(region.lanes(), part.region.lanes()).any() for part in parts)

    def lanes(self) -> np.ndarray:
        return np.arange(self.batch_size)

    def example_of(self, lane: int) -> int:
        return lane


class Order(_Narrowing):
    """A region's lanes in the order in which a loop runs them; `index` is None for their own order.

    `counts`: how many of them run each step of the loop.
    """

    __slots__ = ("counts", "index", "inverse", "parent", "size")

    def __init__(self, parent: Any, index: np.ndarray | None, size: int) -> None:
        super().__init__()
        self.parent = parent
        self.index = index
        self.size = size
        self.counts: list[int] = []
        self.inverse: np.ndarray | None = None
        if index is not None:
            self.inverse = np.empty_like(index)
            self.inverse[index] = np.arange(len(index))

    @classmethod
    def by_length(cls, parent: Any, lengths: np.ndarray) -> "Order":
        """The lanes sorted by (B,) int64 lengths, longest first: the lanes of each step are a prefix."""
        descending = bool((lengths[1:] <= lengths[:-1]).all())
        index = None if descending else np.argsort(-lengths, kind="stable")
        falling = lengths if index is None else lengths[index]
        out = cls(parent, index, len(lengths))
        out.counts = (len(lengths) - np.searchsorted(falling[::-1], np.arange(falling[0]), side="right")).tolist()
        return out

    def arranged(self, batch: Any) -> Any:
        """A batch of the parent region (or one around it) in this order."""
        return self._once(batch, self._ordered)

    def _ordered(self, batch: Any) -> Any:
        out = batch if batch.region is self.parent else self.parent.narrow(batch)
        return out if self.index is None else take_lanes(out, self.index, self._lengths)


class Prefix(_Part):
    """The first `count` lanes of an order: a step of a loop."""

    __slots__ = ("order", "parent")

    def __init__(self, order: Order, count: int) -> None:
        super().__init__(order.parent.root, count)
        self.order = order
        self.parent = order.parent

    def narrow(self, batch: Any) -> Any:
        region = batch.region
        if region is self:
            return batch
        if type(region) is Prefix and region.order is self.order:
            if region.count < self.count:
                raise NeedsLoop("a value of some examples is used for more of them")
            return self._of_prefix(batch)
        return self._once(batch, self._gathered)

    def _gathered(self, batch: Any) -> Any:
        region = batch.region
        index = None if region is None or self._is_inside(region) else lanes_within(self, region)
        if index is not None and (type(region) is Prefix or lanes_within(self.parent, region) is None):
            out = taken(batch, index, self, self._lengths)
            self.root.freeze(out)
            return out
        return self._of_prefix(self.order.arranged(batch))

    def _is_inside(self, region: Any) -> bool:
        """Whether it is a step of a loop that runs in that region, or in one inside of it."""
        outer = self.parent
        while outer is not None and outer is not region:
            outer = getattr(outer, "parent", None)
        return outer is not None

    def _of_prefix(self, batch: Any) -> Any:
        if type(batch) is MaskedBatch and batch.sizes and Lengths not in map(type, batch.sizes):  # the case of a step
            out = MaskedBatch.in_region(batch, self)
            out.data = rows_between(batch.data, 0, self.count)
            return out
        if isinstance(batch, ObjectBatch):  # which may agree, now that others are not there
            return taken(batch, np.arange(self.count), self, self._lengths)
        out = prefix_lanes(batch, self.count, self._lengths)
        out.region = self
        return out

    def lanes(self) -> np.ndarray:
        if self._lanes is None:
            above = self.parent.lanes()
            self._lanes = (above if self.order.index is None else above[self.order.index])[: self.count]
        return self._lanes


class Subset(_Part):
    """Some lanes of a region: an arm of a branch, or what is left of a loop."""

    __slots__ = ()

    def __init__(self, outer: Any, lanes: np.ndarray) -> None:
        super().__init__(outer.root, len(lanes), lanes)

    def narrow(self, batch: Any) -> Any:
        """A value of a larger region, restricted to these lanes."""
        return batch if batch.region is self else self._once(batch, self._gathered)

    def _gathered(self, batch: Any) -> Any:
        if batch.region is None:
            raise NeedsLoop("a batch that is no argument of the call is used inside it")
        index = lanes_within(self, batch.region)
        if index is None:
            raise unbound()
        out = taken(batch, index, self, self._lengths)
        self.root.freeze(out)
        return out


def part_of(region: Any, has: np.ndarray, outer: Any) -> Subset:
    """The lanes of a region of which a condition is true, as a part of `outer`, which the region is in."""
    index = np.flatnonzero(has)
    out = Subset(outer, region.lanes()[index])
    if region is not region.root:  # else its lanes are their own places
        out.within[id(region)] = weakref.ref(region), index
    return out


def unbound() -> UnboundLocalError:
    """The error where lanes read a value that others have: their name is not bound."""
    return UnboundLocalError("a local variable of some examples is read by others")


def taken(batch: Any, index: np.ndarray, region: Any, lengths: dict[Any, Any]) -> Any:
    """The lanes of a batch at `index`, as a batch of `region`.

    Where they are its first ones it is a view, unless that would keep much more alive than it shows. Objects that
    agree, now that the others are not there, are one batch of arrays or numbers.
    """
    if isinstance(batch, ObjectBatch):
        out = stack_results([batch.values[i] for i in index.tolist()])
        if not isinstance(out, Batched | ObjectBatch):
            out = ObjectBatch([batch.values[i] for i in index.tolist()])
    elif 2 * len(index) >= batch.batch_size and _counts_up(index):
        out = prefix_lanes(batch, len(index), lengths)
    else:
        out = take_lanes(batch, index, lengths)
    out.region = region
    return out


def written(region: Any, batch: Any, new: Any) -> Any:
    """The value of a batch after a write of `new` to the lanes of a smaller region: still of the batch's own region."""
    index = lanes_within(region, batch.region)
    if index is None or type(new) is not MaskedBatch or type(batch) is not MaskedBatch or new.batch_size != len(index):
        raise NeedsLoop("an array that other examples have is written for some of them")
    if not stackable([batch, new]):
        raise NeedsLoop("a write changes the dtype or rank of an array for some examples")
    order = np.arange(batch.batch_size)
    order[index] = batch.batch_size + np.arange(len(index))
    out = take_lanes(concatenated([batch, new]), order)
    out.region = batch.region
    return out


def _counts_up(index: np.ndarray) -> bool:
    """Whether the index is 0, 1, 2 …; indices are distinct."""
    count = len(index)
    return not count or (index[0] == 0 and index[-1] == count - 1 and bool((index == np.arange(count)).all()))


def current_root() -> Root | None:
    """The region of the whole running call; None outside lock-step."""
    region = current_region()
    return None if region is None else region.root  # type: ignore[attr-defined]


def lanes_within(region: Any, outer: Any) -> np.ndarray | None:
    """The positions among `outer`'s lanes of an inner region's lanes, in its order; None if it has others."""
    if region is outer:
        return np.arange(outer.count)
    if region.root is not outer.root:
        return None
    if outer is outer.root:
        return region.lanes()
    known = region.within.get(id(outer)) if region is not region.root else None
    if known is None or known[0]() is not outer:
        place = np.full(outer.root.count, -1)
        place[outer.lanes()] = np.arange(outer.count)
        lanes = place[region.lanes()]
        known = (weakref.ref(outer), None if (lanes < 0).any() else lanes)
        if region is not region.root:
            region.within[id(outer)] = known
    return known[1]


class LaneExample(Example):
    """The examples of a lock-step call: each lane counts its own random calls, wherever the others are."""

    __slots__ = ("batch_of",)

    def __init__(self, batch_size: int, batch_of: Any, first: int = 0) -> None:
        super().__init__(np.arange(first, first + batch_size), np.zeros(batch_size, np.int64))
        self.batch_of = batch_of

    def next_key(self, seed: int | None) -> Any:
        region = current_region()
        assert region is not None
        if is_boxed(seed):
            raise NeedsLoop("a seed that differs by example")
        lanes = region.lanes()  # type: ignore[attr-defined]
        keys = random_key(self.seed_of(seed), self.index[lanes], self.calls[lanes])
        self.calls[lanes] += 1
        return self.batch_of(keys)


def remember(value: Any) -> Any:
    """Note a container or an iterator as made in this call, in this region. Returns it."""
    root = current_root()
    if root is not None:
        root.made[id(value)] = (value, current_region())
    return value


def is_made(value: Any) -> bool:
    """Whether this call made the object; outside of a call everything counts as its own."""
    root = current_root()
    return root is None or id(value) in root.made


def is_changeable(value: Any) -> bool:
    """Whether a container is one that this call made and may change: each of its names must see the change."""
    return current_region() is not None and is_made(value)


def require_own(value: Any, what: str) -> None:
    """Raise NeedsLoop unless this call made the object, in the region that is current."""
    root = current_root()
    if root is None:
        return
    entry = root.made.get(id(value))
    if entry is None:
        raise NeedsLoop(f"{what} of a {type(value).__name__} that the call did not make")
    if entry[1] is not current_region():
        raise NeedsLoop(f"{what} of a {type(value).__name__} by some of its examples")


def freeze(batch: Any, part: Any = None) -> Any:
    """Mark a batch as one of several for the same array, so that none of them may be written into. Returns it.

    Args:
        part: the other one, where it is the only one: without it, the batch is the only one again.
    """
    region: Any = current_region()
    if region is not None:
        region.root.freeze(batch, part)
    return batch


def freeze_all(*values: Any) -> None:
    """Mark the batches in values, which stand for parts of each other, as `freeze` does."""
    for value in values:
        for leaf in leaves(value) if is_node(value) else (value,):
            if isinstance(leaf, Batch):
                freeze(leaf)


def require_whole(batch: Any) -> None:
    """Raise NeedsLoop if a write into this batch, or into what it is a view of, would not be seen by all its names."""
    root, region = current_root(), current_region()
    if root is None:
        return
    if batch.region is not region and (batch.region is None or lanes_within(region, batch.region) is None):
        raise NeedsLoop("a write into an array of other examples")
    while batch is not None:
        if root.is_frozen(batch, region):
            raise NeedsLoop(
                "a write into an array that is known by another name, or in a list, to other examples as well"
            )
        batch = getattr(getattr(batch, "_view", None), "base", None)
