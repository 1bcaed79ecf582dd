"""Regions: which lanes are active, and how a value made for more lanes is restricted to them.

The root region has every lane. A loop over data of different lengths sorts the lanes by length once; each step runs in
a `Prefix` of that order. Restricting a value of the enclosing region gathers it once for the whole loop; going from
one prefix to a shorter one is a view. A branch, or a loop that lanes leave one by one, runs in a `Subset`, which
gathers a value on its first read. A write in a region to a value of more lanes is merged into it (`merge_write`).

Only objects made in the same lock-step call and the same region may be mutated: other mutations are visible outside,
where the loop over examples makes them once per example and in another order.
"""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.data.concat import joined_lanes
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import broadcast, lanes_of, prefix_lanes, stack_results, take_lanes
from autobatch.core.abstract_eval import is_non_c_order
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.current_region import Example, current_region, freeze_dicts, numbers, random_key
from autobatch.core.op import is_boxed
from autobatch.core.pytree import flatten, is_node, leaves, unflatten
from autobatch.errors import COPY_FIRST, OWN_LENGTHS, RETURN_ARRAYS, NeedsLoop
from autobatch.ops.numpy.indexing import rows_between
from autobatch.ops.rules.aliasing import is_scalar, set_order, view_record, zero_d


class _Narrowing:
    """Caches values restricted to fewer lanes, or reordered, until the source batch's data is replaced."""

    __slots__ = ("_known", "_lengths")

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any, Any]] = {}
        self._lengths: dict[Any, Any] = {}

    def _cached(self, batch: Any, narrowed: Callable[[Any], Any]) -> Any:
        """`narrowed(batch)`, cached per batch and data, since a write keeps the batch but replaces its data."""
        known = self._known.get(id(batch))
        value = batch.data if isinstance(batch, Batched) else batch.values
        if known is not None and known[1] is value:
            return known[2]
        out = narrowed(batch)
        if out is not batch:  # with the batch its entry goes: what nobody else holds must not forbid writes
            self._known[id(batch)] = weakref.ref(batch, functools.partial(self._known.pop, id(batch))), value, out
        return out


class _PartialRegion(_Narrowing):
    """Base of `Prefix` and `Subset`: some of the root's lanes, in any order."""

    __slots__ = ("__weakref__", "_lanes", "count", "root", "within")

    def __init__(self, root: Any, count: int, lanes: np.ndarray | None = None) -> None:
        super().__init__()
        self.root = root
        self.count = count
        self.within: dict[int, Any] = {}
        self._lanes: Any = lanes

    def merged(self, batch: Any, new: Any) -> Any:
        return merge_write(self, batch, new)

    def take(self, batch: Any, index: np.ndarray) -> Any:
        """The batch's lanes at `index`, which are this region's lanes. Not cached: that would keep the batch alive."""
        return take_into_region(batch, index, self, self._lengths)

    def lanes(self) -> np.ndarray:
        """The root's indices of this region's lanes, (count,), in this region's order."""
        return self._lanes

    def example_of(self, lane: int) -> int:
        return int(self.lanes()[lane])


class Root:
    """The region of all lanes of one lock-step call, and the call's state.

    Attributes:
        batch_size: the number of lanes.
        call: executes a call made by converted code (`calls.call_by_callee.call`).
        convert: returns the lock-step form of a user's function, or None if it has none.
        is_pure: True if a function, or source text, changes nothing but its own variables.
        made: {id: (object, region)} for each object made in this call; only these may be mutated.
        blocks: {site: in how many calls a block did not run} for the blocks of this call.
        items: {id of a batch: weak reference to the `RowSequence` whose current item it is}.
    """

    __slots__ = (
        "batch_size", "blocks", "call", "convert", "count", "is_pure", "items", "made", "parent",
        "root",
    )  # fmt: skip

    def __init__(self, batch_size: int, call: Any, convert: Any, is_pure: Any) -> None:
        self.batch_size = self.count = batch_size
        self.call = call
        self.convert = convert
        self.is_pure = is_pure
        self.made: dict[int, tuple[Any, Any]] = {}
        self.blocks: dict[Any, Any] = {}
        self.items: dict[int, Any] = {}
        self.root = self
        self.parent: Any = None

    def narrow(self, batch: Any) -> Any:
        if batch.region is self:
            return batch
        if batch.region is None:
            raise NeedsLoop("a batch that is not an argument of the call is used inside it")
        if batch.region.root is not self or batch.region.count < self.count:
            raise unbound_local_error()
        index = lanes_within(self, batch.region)  # all lanes, in the order of a loop
        assert index is not None
        out = take_into_region(batch, index, self, {})
        self.freeze(batch)
        self.freeze(out)
        return out

    def take(self, batch: Any, index: np.ndarray) -> Any:
        """The batch's lanes at `index`, which must be all lanes in the root's order."""
        return take_into_region(batch, index, self, {})

    @staticmethod
    def freeze(batch: Any) -> None:
        """Forbid in-place writes into this batch for good: another batch stands for (part of) the same array."""
        if _is_written(batch):
            batch._frozen = True

    @staticmethod
    def is_frozen(batch: Any, region: Any) -> bool:
        """True if another batch for the same array would miss a write into this one by a region's lanes."""
        known = getattr(batch, "_frozen", None) or ()
        if known is True:
            return True
        others = [other for each in known if (other := each()) is not None and other is not batch]
        return any(np.isin(region.lanes(), other.region.lanes()).any() for other in others)

    def lanes(self) -> np.ndarray:
        return np.arange(self.batch_size)

    def example_of(self, lane: int) -> int:
        return lane


class Order(_Narrowing):
    """A region's lanes, sorted for a loop: longest first.

    `index`: the permutation; None if the lanes are already sorted. `counts`: the number of lanes active in each step.
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
        """Sort lanes by (B,) int64 lengths, longest first, so that each step's active lanes are a prefix."""
        descending = bool((lengths[1:] <= lengths[:-1]).all())
        index = None if descending else np.argsort(-lengths, kind="stable")
        falling = lengths if index is None else lengths[index]
        out = cls(parent, index, len(lengths))
        out.counts = (len(lengths) - np.searchsorted(falling[::-1], np.arange(falling[0]), side="right")).tolist()
        return out

    def permuted(self, batch: Any) -> Any:
        """A batch of the parent region (or an enclosing one), with its lanes permuted into this order."""
        return self._cached(batch, self._ordered)

    def _ordered(self, batch: Any) -> Any:
        out = batch if batch.region is self.parent else self.parent.narrow(batch)
        return out if self.index is None else take_lanes(out, self.index, self._lengths)


class Prefix(_PartialRegion):
    """The first `count` lanes of an order: the lanes active in one step of a loop."""

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
        return self._cached(batch, self._gathered)

    def _gathered(self, batch: Any) -> Any:
        region = batch.region
        index = None if region is None or self._is_inside(region) else lanes_within(self, region)
        if index is not None and (type(region) is Prefix or lanes_within(self.parent, region) is None):
            out = take_into_region(batch, index, self, self._lengths)
            self.root.freeze(out)
            return out
        return self._of_prefix(self.order.permuted(batch))

    def _is_inside(self, region: Any) -> bool:
        """True if `region` is one of the regions that enclose this prefix's loop."""
        outer = self.parent
        while outer is not None and outer is not region:
            outer = getattr(outer, "parent", None)
        return outer is not None

    def _of_prefix(self, batch: Any) -> Any:
        if type(batch) is MaskedBatch and batch.sizes and Lengths not in map(type, batch.sizes):  # the usual case
            out = MaskedBatch.in_region(batch, self)
            out.data = rows_between(batch.data, 0, self.count)
            return out
        if isinstance(batch, ObjectBatch):  # the remaining lanes may agree and form an array batch
            return take_into_region(batch, np.arange(self.count), self, self._lengths)
        out = prefix_lanes(batch, self.count, self._lengths)
        out.region = self
        return out

    def lanes(self) -> np.ndarray:
        if self._lanes is None:
            above = self.parent.lanes()
            self._lanes = (above if self.order.index is None else above[self.order.index])[: self.count]
        return self._lanes


class Subset(_PartialRegion):
    """Some lanes of a region: those in one arm of a branch, or those still in a loop."""

    __slots__ = ()

    def __init__(self, outer: Any, lanes: np.ndarray) -> None:
        super().__init__(outer.root, len(lanes), lanes)

    def narrow(self, batch: Any) -> Any:
        """Restrict a value of a larger region to these lanes; cached."""
        return batch if batch.region is self else self._cached(batch, self._gathered)

    def _gathered(self, batch: Any) -> Any:
        if batch.region is None:
            raise NeedsLoop("a batch that is not an argument of the call is used inside it")
        index = lanes_within(self, batch.region)
        if index is None:
            raise unbound_local_error()
        out = take_into_region(batch, index, self, self._lengths)
        self.root.freeze(out)
        return out


Region = Root | Prefix | Subset


def subset_where(region: Any, has: np.ndarray, outer: Any) -> Subset:
    """The lanes of `region` where the bool array `has` is true, as a `Subset` of the enclosing region `outer`."""
    index = np.flatnonzero(has)
    out = Subset(outer, region.lanes()[index])
    if region is not region.root:  # in the root, lanes are their own positions
        out.within[id(region)] = weakref.ref(region), index
    return out


def unbound_local_error() -> UnboundLocalError:
    """The error for lanes that read a variable which only other lanes have bound."""
    return UnboundLocalError("a local variable of some examples is read by others")


def take_into_region(batch: Any, index: np.ndarray, region: Any, lengths: dict[Any, Any]) -> Any:
    """The lanes of a batch at `index`, as a batch of `region`.

    A view if they are at least half of the batch's lanes and come first; a view of fewer would keep too much memory
    alive. An `ObjectBatch` becomes a batch of arrays or numbers if the remaining lanes can be stacked.
    """
    if isinstance(batch, ObjectBatch):
        out = stack_results([batch.values[i] for i in index.tolist()])
        if not isinstance(out, Batched | ObjectBatch):
            out = ObjectBatch([batch.values[i] for i in index.tolist()])
    elif 2 * len(index) >= batch.batch_size and _is_arange(index):
        out = prefix_lanes(batch, len(index), lengths)
    else:
        out = take_lanes(batch, index, lengths)
    out.region = region
    return out


def merge_write(region: Any, batch: Any, new: Any) -> Any:
    """The batch with the lanes of the smaller `region` replaced by `new`; the result is in the batch's own region."""
    index = lanes_within(region, batch.region)
    if index is None or type(new) is not MaskedBatch or type(batch) is not MaskedBatch or new.batch_size != len(index):
        raise NeedsLoop("an array that examples share is written for some of them")
    if not stackable([batch, new]):
        raise NeedsLoop("a write changes the dtype or rank of an array for some examples")
    order = np.arange(batch.batch_size)
    order[index] = batch.batch_size + np.arange(len(index))
    out = take_lanes(concatenate_lanes([batch, new]), order)
    out.region = batch.region
    return out


def _is_arange(index: np.ndarray) -> bool:
    """True if the index is 0, 1, 2, …; assumes distinct indices."""
    count = len(index)
    return not count or (index[0] == 0 and index[-1] == count - 1 and bool((index == np.arange(count)).all()))


def current_root() -> Root | None:
    """The root region of the running lock-step call; None outside one."""
    region = current_region()
    return None if region is None else region.root  # type: ignore[attr-defined]


def lanes_within(region: Any, outer: Any) -> np.ndarray | None:
    """The positions of `region`'s lanes among `outer`'s, in `region`'s order; None if some are not in `outer`."""
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
    """Random-key state of a lock-step call: each lane counts its own random calls, independent of other lanes."""

    __slots__ = ("batch_of",)

    def __init__(self, batch_size: int, batch_of: Any, first: int = 0) -> None:
        super().__init__(np.arange(first, first + batch_size), np.zeros(batch_size, np.int64))
        self.batch_of = batch_of

    def next_key(self, seed: Any) -> Any:
        region = current_region()
        assert region is not None
        if is_boxed(seed):
            raise NeedsLoop("a seed that differs by example", instead=OWN_LENGTHS)
        lanes = region.lanes()  # type: ignore[attr-defined]
        keys = random_key(self.seed_of(seed), self.index[lanes] + numbers()[1], self.calls[lanes])
        self.calls[lanes] += 1
        return self.batch_of(keys)


def register_made(value: Any) -> Any:
    """Record that a container or iterator was made in this call and region (`Root.made`). Returns it."""
    root = current_root()
    if root is not None:
        root.made[id(value)] = (value, current_region())
    return value


def is_made(value: Any) -> bool:
    """True if this lock-step call made the object; always True outside lock-step."""
    root = current_root()
    return root is None or id(value) in root.made


def is_changeable(value: Any) -> bool:
    """True for a container that the lock-step call made and may mutate: every reference to it must see the change."""
    return current_region() is not None and is_made(value)


def require_made_here(value: Any, what: str) -> None:
    """Raise NeedsLoop unless this call made the object in the current region; `what` names the operation."""
    root = current_root()
    if root is None:
        return
    entry = root.made.get(id(value))
    if entry is None:
        raise NeedsLoop(f"{what} of a {type(value).__name__} that the call did not make")
    if entry[1] is not current_region():
        raise NeedsLoop(f"{what} of a {type(value).__name__} by some of its examples")


def _is_written(batch: Any) -> bool:
    """True for a batch of arrays, which are written in place."""
    if type(batch) is MaskedBatch and bool(batch.sizes):  # the usual case
        return True
    return isinstance(batch, Batched | Packed) and not is_scalar(batch)


def freeze(batch: Any) -> Any:
    """Forbid writes into a batch that shares its array with other batches (`Root.freeze`). Returns it."""
    if current_region() is not None:
        Root.freeze(batch)
    return batch


def freeze_all(*values: Any) -> None:
    """`freeze` each batch in the values, containers included."""
    for leaf in _batches_in(values):
        freeze(leaf)


def freeze_copies(made: Any, *pieces: Any) -> None:
    """Forbid writes into a copy and into what it was copied from, containers included, while both are alive."""
    if current_region() is not None:
        _link([top for leaf in _batches_in((made, *pieces)) for top in _tops(leaf)])


def freeze_part(part: Any, batch: Any) -> None:
    """As `freeze_copies`, of a copied part; not what it views, a copy of the whole that only the region keeps."""
    if current_region() is not None:
        _link([part, *_tops(batch)])


def _link(batches: list[Any]) -> None:
    """Let batches that stand for (parts of) one array know each other, and all that any of them knows, weakly."""
    batches = [batch for batch in batches if isinstance(batch, Batch)]  # a view's base may be an array of all lanes
    known = {id(batch): batch for batch in batches}
    found = [getattr(batch, "_frozen", None) or () for batch in batches]
    for each in found:
        if each is not True:
            known.update((id(batch), batch) for ref in each if (batch := ref()) is not None)
    frozen = any(each is True for each in found) or [weakref.ref(batch) for batch in known.values()]
    for batch in known.values():
        batch._frozen = frozen


def _batches_in(values: tuple[Any, ...]) -> list[Any]:
    return [
        leaf for value in values for leaf in (leaves(value) if is_node(value) else (value,)) if isinstance(leaf, Batch)
    ]


def _tops(batch: Any) -> Iterator[Any]:
    """The batches that hold the memory of a batch, and all that may view it: what it surely views, or it itself."""
    if not (_is_written(batch) or isinstance(batch, ObjectBatch)):
        return
    while (record := view_record(batch)) is not None and not record.is_unclear:
        if type(getattr(batch, "_frozen", None)) is list:  # a copied part (`freeze_part`)
            break
        batch = record.base
    yield batch
    if record is not None and record.is_unclear:
        yield from _tops(record.base)
    views = [view for ref in getattr(batch, "_views", None) or () if (view := ref()) is not None]
    yield from (view for view in views if (record := view_record(view)) is not None and record.is_unclear)


def require_unaliased(batch: Any) -> None:
    """Raise NeedsLoop if other batches or lanes would miss a write into this batch, or a base that it views."""
    root, region = current_root(), current_region()
    if root is None:
        return
    if batch.region is not region and (batch.region is None or lanes_within(region, batch.region) is None):
        raise NeedsLoop("a write into an array of other examples", instead=COPY_FIRST)
    while batch is not None:
        if root.is_frozen(batch, region):
            raise NeedsLoop(
                "a write into an array that is known by another name, or in a list, to other examples as well",
                instead=COPY_FIRST,
            )
        batch = getattr(getattr(batch, "_view", None), "base", None)


# Values of different groups of lanes are joined into one value for all of them.


class _Unbound:
    """Type of `UNBOUND`, the value of a variable that is not bound."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unbound>"


UNBOUND = _Unbound()
_PLAIN = (str, bytes, type(None), type, np.dtype, type(Ellipsis), slice, frozenset, range)


def joined(pieces: Sequence[Any], counts: Sequence[int], regions: Sequence[Any]) -> Any:
    """Join one value per group into one value for sum(counts) lanes; each is batched, or shared by its group's lanes.

    Args:
        regions: the region of each group; all are parts of the current region.

    Raises:
        UnboundLocalError: the variable is unbound in some groups.
        NeedsLoop: the values are different objects whose identity matters, or containers of different types.
    """
    first = pieces[0]
    if not is_boxed(first) and all(piece is first for piece in pieces):
        return first
    if any(piece is UNBOUND for piece in pieces):
        raise UnboundLocalError("a local variable is not bound in some examples")
    held = next((piece for piece in pieces if hasattr(type(piece), "_ab_unite")), None)
    if held is not None:
        return held._ab_unite(pieces, regions)
    if any(is_node(piece) and not isinstance(piece, tuple) for piece in pieces) and len(set(map(type, pieces))) > 1:
        raise NeedsLoop("containers of different types for different examples")
    if is_node(first):
        for piece in pieces:
            freeze_dicts(piece)
        values, structures = zip(*map(flatten, pieces), strict=True)
        if all(structure == structures[0] for structure in structures):
            return unflatten(structures[0], [joined(column, counts, regions) for column in zip(*values, strict=True)])
        return _join_objects(pieces, counts)
    if type(first) in (str, bytes) and all(type(piece) is type(first) and piece == first for piece in pieces):
        return first
    batches = [
        as_padded(piece, count) if _is_array_like(piece) else None for piece, count in zip(pieces, counts, strict=True)
    ]
    if stackable(batches):
        return concatenate_lanes(batches)  # type: ignore[arg-type]
    if any(_is_object(piece) for piece in pieces):
        raise NeedsLoop("objects that differ by example", instead=RETURN_ARRAYS)
    return _join_objects(pieces, counts)


def _is_object(value: Any) -> bool:
    """True for an opaque object: no array, number, immutable constant, container or batch."""
    return not (_is_array_like(value) or isinstance(value, _PLAIN) or is_node(value))


def _is_array_like(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | np.ndarray | np.generic) or is_boxed(value)


def as_padded(value: Any, count: int) -> Any:
    """A value of `count` lanes as a padded batch; a shared value is broadcast."""
    if isinstance(value, PackedBatch):
        return value.to_masked()
    out = broadcast(value, count)
    return zero_d(out) if type(value) is np.ndarray else out


def stackable(batches: Sequence[Any]) -> bool:
    """True if all are padded batches of the same rank, dtype and scalar type."""
    first = batches[0]
    if type(first) is not MaskedBatch:
        return False
    dtype, rank, scalar = first.data.dtype, len(first.sizes), first.scalar
    return all(
        type(batch) is MaskedBatch
        and batch.data.dtype == dtype
        and len(batch.sizes) == rank
        and batch.scalar is scalar
        and (rank > 0 or is_scalar(batch) == is_scalar(first))
        for batch in batches
    )


def _join_objects(pieces: Sequence[Any], counts: Sequence[int]) -> Any:
    values: list[Any] = []
    for piece, count in zip(pieces, counts, strict=True):
        for leaf in leaves(piece):
            if not (_is_array_like(leaf) or isinstance(leaf, _PLAIN)):
                raise NeedsLoop("objects that differ by example", instead=RETURN_ARRAYS)
        values += lanes_of(piece, count)
    return ObjectBatch(values)


def concatenate_lanes(batches: Sequence[MaskedBatch]) -> MaskedBatch:
    """Concatenate `stackable` batches along the lanes."""
    return set_order(joined_lanes(batches), any(map(is_non_c_order, batches)))
