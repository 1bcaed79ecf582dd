"""Our containers as Python's, and whether a value differs between lanes."""

from types import FunctionType
from typing import Any

from autobatch.batches.base import Batch
from autobatch.core.lanes import current_region
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import NeedsLoop
from autobatch.lockstep.boxes import LaneBox
from autobatch.lockstep.cells import Cell
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import each
from autobatch.lockstep.ownership import is_changeable, is_made
from autobatch.lockstep.plain import per_lane_of
from autobatch.lockstep.rows import Choice, Held
from autobatch.lockstep.sequences import LaneSequence, lane_sequence

__all__ = ["as_list", "captures_lanes", "is_batched_tree", "is_readable", "is_spread", "read", "shared", "unwrapped"]


def unwrapped(value: Any) -> Any:
    """An argument for code that is not converted: our lists as plain lists, or as one list per lane."""
    if type(value) is LaneList:
        return per_lane_of(value) if value.is_spread else [unwrapped(item) for item in value.items]
    if type(value) is Choice:
        raise NeedsLoop("objects that differ by example are given to code that is not converted")
    if type(value) is LaneBox:
        if value.whole is None:
            return per_lane_of(value)
        return {key: unwrapped(each) for key, each in value.whole.items()}
    if isinstance(value, LaneSequence | LaneGenerator):
        return unwrapped(as_list(value))
    if type(value) is tuple or type(value) is list:
        return type(value)(unwrapped(item) for item in value)
    return value


def is_batched_tree(value: Any) -> bool:
    """Whether a value, at any depth, differs between lanes."""
    if isinstance(value, LaneList):
        return value.is_spread or any(map(is_batched_tree, value.items))
    if type(value) is Choice:
        return True
    if isinstance(value, LaneBox):
        return value.whole is None or any(map(is_batched_tree, value.whole.values()))
    if isinstance(value, Batch | LaneSequence):
        return True
    if not is_node(value):
        return False
    return any(
        is_batched_tree(leaf) for leaf in leaves(value) if isinstance(leaf, Batch | LaneSequence | Held | Choice)
    )


def is_spread(value: Any) -> bool:
    """Whether a value is a container of ours that cannot be read as one of Python's."""
    return isinstance(value, Held) and (value.is_spread or type(value) is LaneBox)


def shared(value: Any) -> Any:
    """A value that must be one and the same for all lanes."""
    if is_batched_tree(value):
        raise NeedsLoop("a value that differs by example is used where Python needs one object")
    return unwrapped(value)


def as_list(iterable: Any = ()) -> Any:
    """`list(iterable)`: a new list of ours where lanes may differ, or where converted code may change it."""
    sequence = None if isinstance(iterable, LaneGenerator) else lane_sequence(iterable)
    if sequence is None and (current_region() is None or not is_readable(iterable)):
        return list(iterable)
    out = LaneList()
    each(sequence if sequence is not None else iterable, out.append)
    return out


def read(value: Any) -> Any:
    """A generator as the list of its items."""
    return as_list(value) if isinstance(value, LaneGenerator) else value


def captures_lanes(f: Any) -> bool:
    """Whether a function, or one that it wraps, has a per-lane value in its closure."""
    while f is not None:
        for cell in getattr(f, "__closure__", None) or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            if isinstance(held, Cell | LaneGenerator) or is_changeable(held) or is_batched_tree(held):
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
