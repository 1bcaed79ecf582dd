"""What is outside a call, what may be put there, and updates that wait for the example's turn."""

import functools
from collections.abc import Callable, Sequence
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np

from autobatch.batches.base import Batch
from autobatch.core.lanes import current_region
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop
from autobatch.lockstep.cells import Cell
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.outside import Outside, memory_of
from autobatch.lockstep.ownership import is_changeable, is_made
from autobatch.lockstep.places import Place
from autobatch.lockstep.plain import separated
from autobatch.lockstep.regions import current_root
from autobatch.lockstep.rows import Choice, Held
from autobatch.lockstep.sequences import LaneSequence

__all__ = ["Old", "Updated", "is_outside", "known_with", "old_at", "outside_of_call", "require_storable"]

UPDATED = (int, float, complex, bool, str, bytes, tuple, np.generic, np.ndarray, list)
"""What an update may find; `x += v` runs no code of the user's then."""


def outside_of_call() -> Outside:
    """What the running call reads and changes outside of itself."""
    root: Any = current_root()
    return root.outside


def is_outside(x: Any) -> bool:
    """Whether an object was there before the call, and is no batch, nor a value that a tape holds."""
    return (
        outside_of_call().is_known(x)
        and not isinstance(x, Batch | Held | Choice)
        and not is_boxed(x)
        and not is_made(x)
    )


def known_with(value: Any, holder: Any) -> Any:
    """Note what an object from outside gave as from outside too; an array only if it is a view. Returns it."""
    outside = outside_of_call()
    if isinstance(value, Batch | Held | Choice) or is_changeable(value) or not outside.is_known(holder):
        return value
    if type(holder) is list and type(value) is list and not any(value is each for each in holder):
        outside.given[id(value)] = value  # a part of it is a copy
        return value
    if isinstance(holder, np.ndarray) and memory_of(value) is not memory_of(holder):
        return value
    return outside.know(value)


def require_storable(value: Any) -> None:
    """Raise NeedsLoop for a value that cannot be given to each example as its own, plain."""
    outside = outside_of_call()
    if outside.is_known(value):
        return
    if isinstance(value, LaneSequence | LaneGenerator | GeneratorType | Cell | MethodType) or hasattr(
        value, "__next__"
    ):
        raise NeedsLoop(f"a {type(value).__name__} is kept outside the call")
    if isinstance(value, FunctionType) and current_root().convert(value) is value:  # type: ignore[union-attr]
        raise NeedsLoop("a function made in the call is kept outside of it")
    if isinstance(value, tuple | list):
        parts: Any = value
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, LaneList):
        parts = [each for items in (value.items, *(value.lanes or ())) for each in items]
    elif isinstance(value, Choice):
        parts = value.objects
    elif is_changeable(value):
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    elif id(value) in outside.given and not isinstance(value, np.ndarray):
        raise NeedsLoop(f"a {type(value).__name__} that other code has made is kept outside the call")
    else:
        return
    for each in parts:
        require_storable(each)


class Old:
    """What `x.a += v` and `x[k] += v` read, where nobody need know it before it is the example's turn.

    Attributes:
        places: one for all lanes, or one for each; none of an array, whose items are no places.
        objects: what is there and is changed in place: one for all lanes, or one for each; None where there is nothing
            of that kind.
        act: does the update: of the operator, the lane's `keys`, and the value.
    """

    __slots__ = ("act", "keys", "objects", "places", "versions")

    def __init__(
        self, places: Sequence[Place], objects: Sequence[Any], act: Callable[..., Any], keys: Any = ()
    ) -> None:
        self.places = places
        self.objects = objects
        self.act = act
        self.keys = keys
        self.versions = [place.version for place in places]


def old_at(places: Sequence[Place], before: Sequence[Any], act: Callable[..., Any], *keys: Any) -> Old | None:
    """What an update of places reads; None where a lane has set its own, or one must know what is there.

    Args:
        before: what was there before the call.
    """
    outside, region = outside_of_call(), current_region()
    if not all(isinstance(value, UPDATED) and not is_boxed(value) for value in before):
        return None
    lanes: list[int] = region.lanes().tolist()  # type: ignore[union-attr]
    own = [lanes] if len(places) == 1 else [[lane] for lane in lanes]
    if any(outside.has_own(place, each) for place, each in zip(places, own, strict=True)):
        return None
    return Old(places, [value if isinstance(value, np.ndarray | list) else None for value in before], act, keys)


class Updated:
    """The new value of an `Old`."""

    __slots__ = ("old", "symbol", "value")

    def __init__(self, old: Old, symbol: str, value: Any) -> None:
        self.old = old
        self.symbol = symbol
        outside_of_call().note(value)
        require_storable(value)
        self.value = separated(value)
        self.value.region = current_region()

    def put(self) -> None:
        """Let it be done when it is the lanes' turn."""
        outside, old = outside_of_call(), self.old
        region: Any = current_region()
        if old.versions != [place.version for place in old.places]:
            raise NeedsLoop("what is updated changes while its new value is computed")
        for each in old.objects:
            if each is not None:
                outside.change_whole(each)
        lanes = region.lanes()
        of_each = [lanes] if len(old.places) == 1 else lanes[:, None]
        for place, each, own in zip(old.places, old.objects, of_each, strict=False):
            if each is None:
                outside.update(place, own)
        outside.will(functools.partial(old.act, self.symbol), (*old.keys, self.value), updates=old.places)
