"""Joins: lanes that took different paths meet, and each variable's pieces become one value for all of them."""

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import take_lanes
from autobatch.core.current_region import freeze_dicts, set_region
from autobatch.core.pytree import flatten, is_node, leaves, map_tree, unflatten
from autobatch.errors import NeedsLoop
from autobatch.lockstep.lanes.region import UNBOUND, Subset, as_padded, freeze_copies, joined, lanes_within
from autobatch.lockstep.values.lists import LaneList
from autobatch.ops.rules.aliasing import has_views, is_scalar

Piece = tuple[Any, tuple[Any, ...]]
"""(region, values of the variables for its lanes)."""


def join_pieces(pieces: Sequence[Piece], base: Any, own: Sequence[int] = ()) -> Piece:
    """Join pieces whose regions are disjoint and inside `base`; their lanes become the current region.

    That region is `base` if all its lanes are there, the piece's own region if there is only one, else a `Subset`.

    `own`: positions of values with no other reference: writes into these stay allowed after they are copied.
    """
    if len(pieces) == 1 and (pieces[0][0] is base or pieces[0][0].count < base.count):
        set_region(pieces[0][0])
        return pieces[0]
    meeting = _Join([region for region, _ in pieces], base)
    known: dict[tuple[int, ...], Any] = {}
    out = []
    for place, column in enumerate(zip(*(values for _, values in pieces), strict=True)):
        key = tuple(map(id, column))
        if key not in known:
            known[key] = meeting.value(column, place in own)
        out.append(known[key])
    set_region(meeting.target)
    return meeting.target, tuple(out)


class _Join:
    """The lanes of several disjoint regions, joined in one region.

    Attributes:
        regions: the regions that meet; target: the region of all their lanes.
        order: permutation from the regions' concatenated lanes to the target's order; None for the identity.
        places: for each region, the positions of its lanes in the target.
    """

    __slots__ = ("_memo", "order", "places", "regions", "target")

    def __init__(self, regions: list[Any], base: Any) -> None:
        within = [lanes_within(region, base) for region in regions]
        if any(place is None for place in within):
            raise NeedsLoop("examples meet where they did not part")
        arrived: np.ndarray = np.concatenate(within)  # type: ignore[arg-type]
        count = len(arrived)
        if count > base.count:
            raise NeedsLoop("an example meets itself")
        order = np.argsort(arrived, kind="stable")
        self.regions = regions
        self.target = base if count == base.count else Subset(base, base.lanes()[arrived[order]])
        lanes = np.arange(count)
        self.order = None if (order == lanes).all() else order
        where = np.empty_like(order)
        where[order] = lanes
        ends = [0, *itertools.accumulate(region.count for region in regions)]
        self.places = [where[start:stop] for start, stop in itertools.pairwise(ends)]
        self._memo: dict[Any, Any] = {}

    def value(self, column: Sequence[Any], owned: bool) -> Any:
        """Join one value per region into one value for all lanes. `owned`: no other reference to it exists."""
        first = column[0]
        if all(value is first for value in column) and _is_valid(first, self.target):
            return first
        out = self._trees(column) if is_node(first) else self._arrays(column)
        if out is None:
            out = self._joined(column, owned)
        if not owned or any(map(is_lent, column)):
            freeze_copies(out, *column)
        return out

    def _trees(self, column: Sequence[Any]) -> Any:
        """Join containers of one structure whose leaves `_arrays` can join; None for others."""
        values, structures = zip(*map(flatten, column), strict=True)
        if any(structure != structures[0] for structure in structures):
            return None
        out = []
        for each in zip(*values, strict=True):
            out.append(self._arrays(each))
            if out[-1] is None:
                return None
        for container in column:
            freeze_dicts(container)
        return unflatten(structures[0], out)

    def _arrays(self, column: Sequence[Any]) -> MaskedBatch | None:
        """Fast path for arrays, or numbers, of the same shape and dtype in all lanes; None for others."""
        first = column[0]
        if not _is_simple(first) or first.data.shape[1:] != first.sizes:
            return None
        alike = first.sizes, first.scalar, first.data.dtype, first._zero_d
        data = np.empty((self.target.count, *first.sizes), first.data.dtype)
        for value, region, places in zip(column, self.regions, self.places, strict=True):
            if not _is_simple(value) or (value.sizes, value.scalar, value.data.dtype, value._zero_d) != alike:
                return None
            index = None if value.region is region else lanes_within(region, value.region)
            if index is None and value.region is not region:
                return None
            data[places] = value.data if index is None else value.data[index]
        out = MaskedBatch.of_data(data, first.sizes, self.target, first.scalar)
        out._zero_d = first._zero_d
        return out

    def _joined(self, column: Sequence[Any], owned: bool) -> Any:
        parts = []
        for value, region in zip(column, self.regions, strict=True):
            piece = UNBOUND if value is UNBOUND else _narrowed(value, region, owned)
            if piece is not UNBOUND:
                partly = isinstance(piece, Batch) and piece.region is not region
                parts.append((piece.region if partly else region, piece))
        if sum(region.count for region, _ in parts) < self.target.count:
            return joined_where_bound(parts, self.target)
        homes = [region for region, _ in parts]
        value = _run_in(self.target, joined, [piece for _, piece in parts], [region.count for region in homes], homes)
        return map_tree(self._reordered, value) if is_node(value) else self._reordered(value)

    def _reordered(self, leaf: Any) -> Any:
        if not isinstance(leaf, Batch):
            return leaf
        if self.order is not None:
            leaf = take_lanes(leaf, self.order, self._memo)
        leaf.region = self.target
        return leaf


def _is_simple(value: Any) -> bool:
    """True for a padded batch of a region whose data is one NumPy array, with no view or order information."""
    is_padded = type(value) is MaskedBatch and type(value.data) is np.ndarray
    return is_padded and value.region is not None and value._view is None


def joined_where_bound(parts: Sequence[tuple[Any, Any]], base: Any) -> Any:
    """One value for the lanes that have bound a variable; the other lanes of `base` cannot read it.

    Args:
        parts: (region inside `base`, the variable's value there).
    """
    if not parts or any(is_node(piece) or isinstance(piece, LaneList) for _, piece in parts):
        return UNBOUND
    homes = [region for region, _ in parts]
    arrived = np.concatenate([region.lanes() for region in homes])
    order = np.argsort(arrived, kind="stable")
    target = Subset(base, arrived[order])
    batches = [_run_in(region, as_padded, piece, region.count) for region, piece in parts]
    out = take_lanes(_run_in(target, joined, batches, [region.count for region in homes], homes), order)
    out.region = target
    return out


def _is_valid(value: Any, target: Any) -> bool:
    """True if all batches in a value belong to this region, or to one with more lanes that contains it."""
    if not isinstance(value, Batch):
        return not is_node(value) or all(_is_valid(leaf, target) for leaf in leaves(value) if isinstance(leaf, Batch))
    region = value.region
    if region is target:
        return True
    return region is not None and region.count > target.count and lanes_within(target, region) is not None


def _run_in(region: Any, function: Any, *args: Any) -> Any:
    set_region(region)
    return function(*args)


def narrowed_values(values: tuple[Any, ...], region: Any, own: Sequence[int] = ()) -> tuple[Any, ...]:
    """Values restricted to the lanes of a region, containers included."""
    out = []
    memo: dict[int, Any] = {}
    for place, value in enumerate(values):
        if id(value) not in memo:
            memo[id(value)] = new = _narrowed(value, region, place in own)
            if new is not value and (place not in own or is_lent(value)):
                freeze_copies(new, value)
        out.append(memo[id(value)])
    return tuple(out)


def _narrowed(value: Any, region: Any, owned: bool = False) -> Any:
    """A value restricted to a region's lanes; if its batch has only some of them, restricted to those.

    Not cached in the region, since each step of a loop would then keep the earlier steps alive.
    """
    if isinstance(value, Batch):
        if value.region is region:
            return value
        if value.region is None:
            return region.narrow(value)
        index = lanes_within(region, value.region)
        if index is None:
            has = np.isin(region.lanes(), value.region.lanes())
            return Subset(region, region.lanes()[has]).narrow(value) if has.any() else UNBOUND
        return _run_in(region, region.take, value, index)
    if not is_node(value) or (isinstance(value, tuple) and not value):
        return value
    values, structure = flatten(value)
    if not owned and not any(isinstance(leaf, Batch) for leaf in values):
        return value
    freeze_dicts(value)
    return unflatten(structure, [_narrow_fully(leaf, region) if isinstance(leaf, Batch) else leaf for leaf in values])


def _counted(held: Iterable[Any]) -> list[tuple[Any, int]]:
    return [(each, sys.getrefcount(each)) for each in held]


_LEAST = _counted({"": object()}.values())[0][1]  # of what nothing but a container refers to


def _is_known(batch: Any) -> bool:
    return bool(getattr(batch, "_frozen", None))


def is_lent(value: Any) -> bool:
    """True if an array has views, or if one in a container may have views or other names than the container's."""
    if not is_node(value):
        return has_views(value)
    return not isinstance(value, dict | list | tuple) or any(
        is_node(x) or has_views(x) or (isinstance(x, Batch) and not is_scalar(x) and (count > _LEAST or _is_known(x)))
        for x, count in _counted(value.values() if isinstance(value, dict) else value)
    )


def _narrow_fully(leaf: Any, region: Any) -> Any:
    out = _narrowed(leaf, region)
    return out if out is not UNBOUND and out.region is region else region.narrow(leaf)
