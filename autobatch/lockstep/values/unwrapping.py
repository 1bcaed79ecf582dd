"""Our containers as Python's, and whether a value differs between lanes."""

import contextlib
import functools
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from autobatch.batches.any_batch import Batch
from autobatch.core.current import current_region
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import NeedsLoop
from autobatch.facts.types import IMMUTABLE
from autobatch.lockstep.regions.loops import each
from autobatch.lockstep.values.lane_operators import refuse_items
from autobatch.lockstep.values.lists import LaneList, plain
from autobatch.lockstep.values.own_objects import is_changeable, is_made
from autobatch.lockstep.values.sequences import LaneSequence, lane_sequence

__all__ = ["as_list", "captures_lanes", "is_batched_tree", "is_readable", "listed", "shared", "unwrapped"]


def unwrapped(value: Any) -> Any:
    """An argument for code that is not converted: our lists as plain lists, or as one list per lane."""
    refuse_items(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(unwrapped(item) for item in value)
    return plain(value)


def listed(value: Any) -> Any:
    """An argument of which only the items are read: a range, zip or enumerate of each lane as the list of them."""
    return as_list(value) if isinstance(value, LaneSequence) else value


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
    """Whether something that is called holds a per-lane value, or what the call made: itself, or in what it calls."""
    seen: dict[int, Any] = {}
    waiting = _held(f)
    while waiting:
        value = waiting.pop()
        if type(value) in IMMUTABLE or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Batch | LaneSequence | LaneList) or is_changeable(value):
            return True
        if isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif is_node(value):
            waiting += leaves(value)
        elif callable(value) and not isinstance(value, type):
            waiting += _held(value)
    return False


def _held(f: Any) -> list[Any]:
    """What something that is called keeps."""
    if isinstance(f, BuiltinFunctionType):
        return [] if isinstance(f.__self__, ModuleType) else [f.__self__]
    if isinstance(f, MethodType):
        return [f.__func__, f.__self__]
    if isinstance(f, functools.partial):
        return [f.func, f.args, f.keywords]
    out = [*(getattr(f, "__dict__", None) or {}).values()]
    if isinstance(f, FunctionType):
        out += [f.__defaults__, f.__kwdefaults__]
        for cell in f.__closure__ or ():
            with contextlib.suppress(ValueError):  # not bound yet
                out.append(cell.cell_contents)
    return out


def is_readable(iterable: Any) -> bool:
    """True; raises NeedsLoop for an iterator that was made outside the call."""
    if hasattr(iterable, "__next__") and not is_made(iterable):
        raise NeedsLoop("an iterator made outside the call is used up by the first example")
    return True
