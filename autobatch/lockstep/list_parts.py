"""Lists of lanes that went different ways: restricted to some lanes, and put together again."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.forms import Batch
from autobatch.core.pytree import is_node, map_tree
from autobatch.errors import NeedsLoop
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.regions import Subset, lanes_within

__all__ = ["united"]


def united(parts: Sequence[tuple[Any, LaneList]], target: Any) -> LaneList:
    """One list for the lanes of a region from the lists of its parts, each with the region whose lanes have it.

    The lists and the new one share their items under several names, so none of them may change any more.
    """
    out = LaneList()
    out.region, out.owners, out.counts = target, [], np.zeros(target.count, np.int64)
    for region, part in parts:
        lanes: Any = lanes_within(region, target)
        for owner, item in _items(region, part):
            places, at = owner
            own: Any = lanes_within(at, target)
            out.owners.append((own, places, at))
            out.items.append(_within(item, at))
        out.counts[lanes] = _counts(region, part)
        part.torn = True
    out.torn = True
    return out


def _counts(region: Any, part: LaneList) -> Any:
    if part.counts is None:
        return len(part.items)
    return part.counts[_lanes(region, part)]


def _lanes(region: Any, part: LaneList) -> np.ndarray:
    lanes = lanes_within(region, part.region)
    if lanes is None:
        raise NeedsLoop("a list of other examples is used")
    return lanes


def _items(region: Any, part: LaneList) -> Any:
    """((the places in the lists of the lanes that have the item, their region), the item) for each item."""
    if part.owners is None:
        for place, item in enumerate(part.items):
            yield (np.full(region.count, place), region), item
        return
    here = np.zeros(part.region.count, np.bool_)
    here[_lanes(region, part)] = True
    for (lanes, places, at), item in zip(part.owners, part.items, strict=True):
        kept = here[lanes]
        if kept.all():
            yield (places, at), item
        elif kept.any():
            yield (places[kept], Subset(at, at.lanes()[kept])), item


def _within(item: Any, region: Any) -> Any:
    def restricted(leaf: Any) -> Any:
        if isinstance(leaf, LaneList):
            raise NeedsLoop("a list in a list is another one for some examples")
        if not isinstance(leaf, Batch) or leaf.region is region:
            return leaf
        out = region.narrow(leaf)
        region.root.freeze(leaf)
        region.root.freeze(out)
        return out

    return map_tree(restricted, item) if is_node(item) else restricted(item)
