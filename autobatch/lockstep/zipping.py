"""`zip` and `enumerate` of generators: generators themselves, which draw no further than the loop over them does."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.batches.base import narrowed
from autobatch.batches.examples import weak_lanes
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.batched import Lengths
from autobatch.core.lanes import current_region, set_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.items import getitem
from autobatch.lockstep.joins import meet, narrowed_values
from autobatch.lockstep.lists import LaneList, narrowed_counts
from autobatch.lockstep.loops import listed
from autobatch.lockstep.ownership import is_made, require_own
from autobatch.lockstep.regions import Subset
from autobatch.lockstep.sequences import Ranges

__all__ = ["enumerated", "zipped"]


def zipped(parts: list[Any]) -> LaneGenerator:
    """`zip(*parts)`, of which some are generators.

    Raises:
        NeedsLoop: a part of which the items cannot be read one at a time by some of the lanes.
    """
    return LaneGenerator(_zip(list(map(_readable, parts))))


def _readable(part: Any) -> Any:
    if isinstance(part, LaneGenerator | LaneList | MaskedBatch):
        return part
    if isinstance(part, PackedBatch) and not isinstance(part.values, PackedBatch):
        return part.to_masked()
    if isinstance(part, Ranges):
        return listed(part)
    if isinstance(part, list | tuple | range | np.ndarray | str):
        return iter(part)
    if hasattr(part, "__next__") and is_made(part):
        require_own(part, "zip()")
        return part
    raise NeedsLoop(f"zip() of a generator and a {type(part).__name__}")


def _zip(parts: list[Any]) -> Iterator[tuple[Any, ...]]:
    """All lanes that are left are at the same item of each part."""
    place = 0
    while True:
        values: list[Any] = []
        for part in parts:
            found = _item(part, place)
            if found is None:
                return
            values = [*narrowed_values(tuple(values), current_region()), found[0]]
        yield tuple(values)
        place += 1


def _item(part: Any, place: int) -> tuple[Any] | None:
    """The item of each lane, which ends for the others: the current region becomes that of the lanes that have one."""
    region: Any = current_region()
    if isinstance(part, LaneGenerator):
        pieces = part.next_of(region)
        if not pieces:
            return None
        return (meet(pieces, region)[1][0],)
    if isinstance(part, LaneList | MaskedBatch):
        has = np.broadcast_to(_counts(part) > place, region.count)
        if not has.any():
            return None
        if not has.all():
            set_region(Subset(region, region.lanes()[has]))
        return (getitem(part, place),)
    try:
        return (next(part),)
    except StopIteration:
        return None


def _counts(part: Any) -> Any:
    """How many items each lane of the current region has."""
    if isinstance(part, LaneList):
        return narrowed_counts(part)
    size = narrowed(part).sizes[0]
    return size.values if isinstance(size, Lengths) else size


def enumerated(source: LaneGenerator, start: Any) -> LaneGenerator:
    """`enumerate(source, start)`."""
    return LaneGenerator(_enumerate(source, start))


def _enumerate(source: LaneGenerator, start: Any) -> Iterator[tuple[Any, Any]]:
    home: Any = current_region()
    source.require_here()
    counts = np.zeros(home.root.batch_size, np.int64)
    while (step := source.advance()) is not None:
        where, value = step
        set_region(where)
        lanes = where.lanes()
        if not len(lanes):
            raise NeedsLoop("an item of no example")
        own = counts[lanes]
        counts[lanes] += 1
        yield start + (int(own[0]) if (own == own[0]).all() else weak_lanes(own, int)), value
