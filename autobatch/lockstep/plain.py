"""What lanes hold, as plain Python objects: for code that is not converted, and for the results of a call."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from autobatch.batches.base import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.core.lanes import current_region, set_region
from autobatch.core.pytree import flatten, is_node, map_tree
from autobatch.errors import NeedsLoop
from autobatch.lockstep.ownership import is_changeable
from autobatch.lockstep.regions import Subset
from autobatch.lockstep.row import Row
from autobatch.lockstep.rows import Choice, Held, is_owned, scattered

__all__ = ["per_lane_of", "plain", "require_comparable", "separated"]


def per_lane_of(held: Held) -> ObjectBatch:
    """A plain container for each lane of the region of ours: copies."""
    here = current_region()
    containers = held.apart()
    set_region(held.region)
    try:
        return ObjectBatch([plain(each, {}, lane) for lane, each in enumerate(containers)])
    finally:
        set_region(here)


def plain(value: Any, memo: dict[int, Any] | None = None, lane: int | None = None) -> Any:
    """What a lane's container holds, as Python has it: copies of our containers, arrays for rows.

    Args:
        memo: the copies so far, so that one container stays one.
        lane: the lane's place in the current region, of which an object of the call is given its own copy.
    """
    if type(value) is Row:
        out = value.value()
        return out.copy() if type(out) is np.ndarray else out  # its own: what is stored outside stays as it is
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if is_owned(value):
        out = memo[id(value)] = value.copy()
        refill(out, lambda each: plain(each, memo, lane))
        return out
    if is_changeable(value):
        if lane is None:
            raise NeedsLoop(f"a {type(value).__name__} of the call is used by code that is not converted")
        return _own_copy(value, memo, lane)
    if isinstance(value, Batch | Held | Choice):
        if lane is None:
            raise NeedsLoop("a value of all examples in a container of one")
        region: Any = current_region()
        set_region(Subset(region, region.lanes()[lane : lane + 1]))  # of all that lanes have, what this one has
        try:
            (own,) = scattered(value)
        finally:
            set_region(region)
        return plain(own, memo, lane)
    if isinstance(value, tuple) or (is_node(value) and _has_lanes(value)):
        return map_tree(lambda each: plain(each, memo, lane), value) if flatten(value)[0] else value
    return value


def _own_copy(value: Any, memo: dict[int, Any], lane: int) -> Any:
    """An object of the call as one lane has it."""
    if not hasattr(value, "__dict__"):
        raise NeedsLoop(f"a {type(value).__name__} with __slots__ that differs by example")
    out = memo[id(value)] = object.__new__(type(value))
    for name, field in vars(value).items():
        out.__dict__[name] = plain(field, memo, lane)
    return out


def separated(value: Any) -> ObjectBatch:
    """A value of the lanes of the current region as one plain object for each."""
    return ObjectBatch([plain(each, {}, lane) for lane, each in enumerate(scattered(value))])


def _has_lanes(tree: Any) -> bool:
    """Whether a tree holds values of lanes, or objects that each lane has its own copy of."""
    return any(isinstance(leaf, Row | Batch | Held | Choice) or is_changeable(leaf) for leaf in flatten(tree)[0])


def refill(container: Any, change: Callable[[Any], Any]) -> None:
    """Change each value of a container in place."""
    if isinstance(container, dict):
        for key, value in container.items():
            container[key] = change(value)
    elif isinstance(container, set):
        pass  # it holds what is hashable, which no row is
    else:
        for i, value in enumerate(container):
            container[i] = change(value)


def _says(value: Any, name: str) -> bool:
    """Whether a value's class has its own method of this name."""
    return getattr(type(value), name) is not getattr(object, name)


def require_comparable(values: Iterable[Any]) -> None:
    """Raise NeedsLoop if Python would compare or hash these by a method of an object of this call, as it is written."""
    for value in values:
        for each in value.objects if type(value) is Choice else (value,):
            if is_changeable(each) and _says(each, "__eq__"):
                raise NeedsLoop("objects of the call are compared in a container")
        if is_changeable(value) and _says(value, "__lt__"):
            raise NeedsLoop("objects of the call are compared in a container")
        if isinstance(value, tuple | list):
            require_comparable(value)
