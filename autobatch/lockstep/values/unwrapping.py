"""Our containers as Python's, and whether a value differs between lanes."""

from types import FunctionType
from typing import Any

from autobatch.batches.base import Batch
from autobatch.core.current import current_region
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import NeedsLoop
from autobatch.lockstep.regions.loops import each
from autobatch.lockstep.values.lists import LaneList, plain
from autobatch.lockstep.values.own_objects import is_changeable, is_made
from autobatch.lockstep.values.sequences import LaneSequence, lane_sequence

__all__ = ["as_list", "captures_lanes", "is_batched_tree", "is_readable", "shared", "unwrapped"]


def unwrapped(value: Any) -> Any:
    """An argument for code that is not converted: our lists as plain lists, or as one list per lane."""
    if isinstance(value, LaneSequence):
        return unwrapped(as_list(value))
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(unwrapped(item) for item in value)
    return plain(value)


def is_batched_tree(value: Any) -> bool:
    """Whether a value, at any depth, differs between lanes."""
    if isinstance(value, LaneList):
        return value.is_spread or any(map(is_batched_tree, value.items))
    if isinstance(value, Batch | LaneSequence):
        return True
    if not is_node(value):
        return False
    return any(is_batched_tree(leaf) for leaf in leaves(value) if isinstance(leaf, Batch | LaneSequence | LaneList))


def shared(value: Any) -> Any:
    """A value that must be one and the same for all lanes."""
    if is_batched_tree(value):
        raise NeedsLoop("a value that differs by example is used where Python needs one object")
    return unwrapped(value)


def as_list(iterable: Any = ()) -> Any:
    """`list(iterable)`: a new list of ours where lanes may differ, or where converted code may change it."""
    sequence = lane_sequence(iterable)
    if sequence is None and (current_region() is None or not is_readable(iterable)):
        return list(iterable)
    out = LaneList()
    each(sequence if sequence is not None else iterable, out.append)
    return out


def captures_lanes(f: Any) -> bool:
    """Whether a function, or one that it wraps, has a per-lane value in its closure."""
    while f is not None:
        for cell in getattr(f, "__closure__", None) or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            if is_changeable(held) or is_batched_tree(held):
                return True
            if isinstance(held, FunctionType) and held is not f and captures_lanes(held):
                return True
        f = getattr(f, "__wrapped__", None)
    return False


def is_readable(iterable: Any) -> bool:
    """True; raises NeedsLoop for an iterator that was made outside the call."""
    if hasattr(iterable, "__next__") and not is_made(iterable):
        raise NeedsLoop("an iterator made outside the call is used up by the first example")
    return True
