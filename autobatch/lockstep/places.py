"""What a call may change outside of itself: attributes and items, and the objects that have them, with who did what."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.lanes import current_region, set_region
from autobatch.lockstep.regions import lanes_within
from autobatch.lockstep.rows import scattered

__all__ = ["MISSING", "NOBODY", "Effect", "Place", "Several", "Whole"]

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()
"""What an attribute or an item is that is not there."""

NOBODY = -1
"""The last lane that has read what nobody has read."""


class Place:
    """One attribute or item of an outside object.

    Attributes:
        pieces: regions whose lanes have set it, each with the value; the later ones hold. They go before `lanes`.
        lanes: what other lanes have set it to, as a container of one lane keeps it.
        updated: lanes that have changed it by what it will be when it is their turn (`n += 1`).
        reader: the last lane that has read what it was before the call.
        writer: the first lane that has changed it.
    """

    __slots__ = ("key", "lanes", "pieces", "reader", "target", "updated", "version", "writer")

    def __init__(self, target: Any, key: Any, lanes: int) -> None:
        self.target = target
        self.key = key
        self.pieces: list[tuple[Any, Any]] = []
        self.lanes: dict[int, Any] = {}
        self.updated: set[int] = set()
        self.reader = NOBODY
        self.writer = lanes
        self.version = 0

    def set(self, region: Any, value: Any) -> None:
        """The lanes of a region have set it."""
        while self.pieces and lanes_within(self.pieces[-1][0], region) is not None:
            self.pieces.pop()
        self.pieces.append((region, value))

    def spill(self) -> None:
        """Part the values of regions among their lanes."""
        if not self.pieces:
            return
        pieces, self.pieces = self.pieces, []
        here = current_region()
        for region, value in pieces:
            set_region(region)
            self.lanes.update(zip(region.lanes().tolist(), scattered(value), strict=True))
        set_region(here)


class Whole:
    """Who has read and changed an object.

    Attributes:
        reader: the last lane that has read it as a whole; `deep`: with the objects in it; `looked_up`: at a place.
        writer: the first lane that has changed something in it; `shifted`: in another way than at a place.
    """

    __slots__ = ("deep", "held", "looked_up", "reader", "shifted", "writer")

    def __init__(self, held: Any, lanes: int) -> None:
        self.held = weakref.ref(held) if type(held) is np.ndarray else lambda: held
        self.reader = self.deep = self.looked_up = NOBODY
        self.writer = self.shifted = lanes


class Several(list[Any]):
    """The values of the lanes of a region, each as a container of that lane keeps it."""


class Effect(NamedTuple):
    """What lanes do to the outside when it is their turn.

    Attributes:
        region: whose lanes.
        act: does it, and returns what takes it back.
        values: its arguments, a value per lane each.
        sets: the place that it sets, whatever that was before.
        updates: places of which it needs what they were before.
    """

    region: Any
    act: Callable[..., Any]
    values: tuple[Any, ...]
    sets: Place | None
    updates: Sequence[Place]
