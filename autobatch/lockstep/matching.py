"""What the tests of a `match` statement ask of a value that may differ by example."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from autobatch.batches.base import Batch, per_lane
from autobatch.batches.examples import stack_results
from autobatch.batches.objects import ObjectBatch
from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.calls import call
from autobatch.lockstep.choosing import each_object
from autobatch.lockstep.classes import getattribute
from autobatch.lockstep.functions import unwrapped
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.rows import Choice, Held
from autobatch.lockstep.sequences import LaneSequence

__all__ = ["bound", "has", "has_place", "is_instance", "is_mapping", "is_sequence", "middle", "place", "rest"]

_ITSELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
"""Classes whose one positional pattern is the value itself (PEP 634)."""


def bound(*values: Any) -> bool:
    """True: the arguments have bound names as they were evaluated."""
    return True


def is_sequence(x: Any) -> Any:
    """Whether a sequence pattern may take a value: a list, a tuple and their like, but no text."""
    if isinstance(x, Held):
        return x.kind in (list, deque)
    if isinstance(x, LaneSequence):
        raise NeedsLoop("a pattern of items per example")
    return _each(_is_sequence, x)


def _is_sequence(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str | bytes | bytearray)


def is_mapping(x: Any) -> Any:
    """Whether a mapping pattern may take a value."""
    return _each(lambda value: isinstance(value, Mapping), x)


def is_instance(x: Any, cls: Any) -> Any:
    """Whether a class pattern may take a value."""
    if not isinstance(cls, type):
        raise TypeError("called match pattern must be a class")
    return call(isinstance, x, cls)


def has(x: Any, name: str) -> Any:
    """Whether a value has an attribute."""
    return _each(lambda value: hasattr(value, name), x)


def has_place(x: Any, cls: Any, index: int) -> Any:
    """Whether a value has what the positional pattern number `index` of a class takes."""
    name = _name(cls, index)
    return True if name is None else has(x, name)


def place(x: Any, cls: Any, index: int) -> Any:
    """What the positional pattern number `index` of a class takes of a value."""
    name = _name(cls, index)
    return x if name is None else getattribute(x, name)


def _name(cls: Any, index: int) -> str | None:
    names = getattr(cls, "__match_args__", ())
    if "__match_args__" not in dir(cls) and issubclass(cls, _ITSELF) and not index:
        return None
    if index >= len(names):
        raise TypeError(f"{cls.__name__}() accepts {len(names)} positional sub-patterns ({index + 1} given)")
    return str(names[index])


def rest(x: Any, taken: tuple[Any, ...]) -> Any:
    """What `**rest` binds: the items that the other keys have not taken, in a new dict."""
    return _each(lambda value: {key: item for key, item in value.items() if key not in taken}, x)


def middle(x: Any, start: int, stop: int | None) -> Any:
    """What `*rest` binds: a new list."""
    if isinstance(x, LaneList) and not x.is_spread:
        return LaneList(x.items[start:stop])
    if isinstance(x, tuple | list) and current_region() is not None:
        return LaneList(x[start:stop])
    return _each(lambda value: list(value[start:stop]), x)


def _each(function: Any, x: Any) -> Any:
    """A question about one object, asked of each example's where they differ."""
    if type(x) is Choice:
        return each_object(x, lambda each: _each(function, each))
    if isinstance(x, Held):
        x = unwrapped(x)
    if isinstance(x, ObjectBatch):
        return stack_results(per_lane(function, (x,), {}))
    if isinstance(x, Batch):  # numbers or arrays, which are alike
        return function(x._lane(0)) if x.batch_size else False
    return function(x)
