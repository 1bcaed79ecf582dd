"""Where lanes that took different ways meet: the pieces that arrived, and one value for all of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.stacking import take_lanes
from autobatch.core.current_region import let_go, set_region
from autobatch.core.pytree import is_node, leaves, map_tree
from autobatch.errors import NeedsLoop
from autobatch.lockstep.regions.region import Subset, freeze_all, lanes_within
from autobatch.lockstep.values.joined_lanes import UNBOUND, batch_of, joined
from autobatch.lockstep.values.lists import LaneList
from autobatch.ops.rules.aliasing import has_views

Piece = tuple[Any, tuple[Any, ...]]
"""A region, and the values that its lanes bring."""


def meet(pieces: Sequence[Piece], base: Any, own: Sequence[int] = ()) -> Piece:
    """Join pieces whose regions are disjoint and inside `base`; their lanes become the current region.

    That is `base` itself if all its lanes are there, a piece's own region if it comes alone, else a part of `base`.

    `own`: places of values that no other name knows, so that they may be written into after they were copied.
    """
    if len(pieces) == 1 and (pieces[0][0] is base or pieces[0][0].count < base.count):
        set_region(pieces[0][0])
        return pieces[0]
    places = [lanes_within(region, base) for region, _ in pieces]
    if any(place is None for place in places):
        raise NeedsLoop("examples meet where they did not part")
    arrived: np.ndarray = np.concatenate(places)  # type: ignore[arg-type]
    if len(arrived) > base.count:
        raise NeedsLoop("an example meets itself")
    order = np.argsort(arrived, kind="stable")
    target = base if len(arrived) == base.count else Subset(base, base.lanes()[arrived[order]])
    regions = [region for region, _ in pieces]
    memo: dict[Any, Any] = {}
    known: dict[tuple[int, ...], Any] = {}
    out = []
    for place, column in enumerate(zip(*(values for _, values in pieces), strict=True)):
        key = tuple(map(id, column))
        if key not in known:
            known[key] = _one(column, regions, order, target, memo, place in own)
        out.append(known[key])
    set_region(target)
    return target, tuple(out)


def _one(column: Sequence[Any], regions: Sequence[Any], order: Any, target: Any, memo: Any, owned: bool) -> Any:
    first = column[0]
    if all(value is first for value in column) and _is_known(first, target):
        return first
    parts = []
    for value, region in zip(column, regions, strict=True):
        piece = UNBOUND if value is UNBOUND else _narrowed(value, region, owned)
        if piece is not UNBOUND:
            partly = isinstance(piece, Batch) and piece.region is not region
            parts.append((piece.region if partly else region, piece))
    in_order = bool((order == np.arange(len(order))).all())

    def arranged(leaf: Any) -> Any:
        if not isinstance(leaf, Batch):
            return leaf
        if not in_order:
            leaf = take_lanes(leaf, order, memo)
        leaf.region = target
        return leaf

    if sum(region.count for region, _ in parts) < len(order):
        out = joined_where_bound(parts, target)
    else:
        homes = [region for region, _ in parts]
        value = _in(target, joined, [piece for _, piece in parts], [region.count for region in homes], homes)
        out = map_tree(arranged, value) if is_node(value) else arranged(value)
    if not owned or any(map(has_views, column)):
        freeze_all(out, *column)
    return out


def joined_where_bound(parts: Sequence[tuple[Any, Any]], base: Any) -> Any:
    """One value for the lanes of a region that have bound a name; the others cannot read it.

    Args:
        parts: regions inside of `base`, with the value that the name has there.
    """
    if not parts or any(is_node(piece) or isinstance(piece, LaneList) for _, piece in parts):
        return UNBOUND
    homes = [region for region, _ in parts]
    arrived = np.concatenate([region.lanes() for region in homes])
    order = np.argsort(arrived, kind="stable")
    target = Subset(base, arrived[order])
    batches = [_in(region, batch_of, piece, region.count) for region, piece in parts]
    out = take_lanes(_in(target, joined, batches, [region.count for region in homes], homes), order)
    out.region = target
    return out


def _is_known(value: Any, target: Any) -> bool:
    """Whether a value's batches are of this region, or of one with more lanes."""
    if not isinstance(value, Batch):
        return not is_node(value) or all(_is_known(leaf, target) for leaf in leaves(value) if isinstance(leaf, Batch))
    region = value.region
    if region is target:
        return True
    return region is not None and region.count > target.count and lanes_within(target, region) is not None


def _in(region: Any, function: Any, *args: Any) -> Any:
    set_region(region)
    return function(*args)


def narrowed_values(values: tuple[Any, ...], region: Any, own: Sequence[int] = ()) -> tuple[Any, ...]:
    """Values restricted to the lanes of a region, containers included."""
    out = []
    memo: dict[int, Any] = {}
    for place, value in enumerate(values):
        if id(value) not in memo:
            memo[id(value)] = new = _narrowed(value, region, place in own)
            if new is not value and (place not in own or has_views(value)):
                freeze_all(value, new)
        out.append(memo[id(value)])
    return tuple(out)


def _narrowed(value: Any, region: Any, owned: bool = False) -> Any:
    """A value for the lanes of a region; of a batch of only some of them, for those lanes.

    The region does not remember what it narrowed here, or each step of a loop would keep the steps before it alive.
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
        return _in(region, region.take, value, index)
    if not is_node(value) or (isinstance(value, tuple) and not value):
        return value
    if not owned and not any(isinstance(leaf, Batch) for leaf in leaves(value)):
        return value
    let_go(value)
    return map_tree(lambda leaf: _whole(leaf, region) if isinstance(leaf, Batch) else leaf, value)


def _whole(leaf: Any, region: Any) -> Any:
    out = _narrowed(leaf, region)
    return out if out is not UNBOUND and out.region is region else region.narrow(leaf)
