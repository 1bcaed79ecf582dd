"""`Cell`: a variable that several scopes bind, each for the lanes that are there when it does."""

from typing import Any

import numpy as np

from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.joins import Piece, meet
from autobatch.lockstep.ownership import changing
from autobatch.lockstep.regions import Subset, lanes_within

__all__ = ["Cell"]


class Cell:
    """A variable of a function's call, for the lanes that the call runs for.

    Values that lanes bound apart from each other are kept apart until lanes of several of them read the variable.

    Attributes:
        home: the region that the call runs in.
        pieces: disjoint regions inside of it, each with the value that its lanes have bound.
    """

    __slots__ = ("home", "pieces")

    def __init__(self, *value: Any) -> None:
        self.home: Any = current_region()
        self.pieces: list[Piece] = [(self.home, value)] if value else []

    def get(self) -> Any:
        """The value for the lanes of the current region.

        Raises:
            UnboundLocalError: a lane has none.
        """
        region: Any = current_region()
        parts: list[Piece] = []
        for at, value in self.pieces:
            if at is region or region is None or lanes_within(region, at) is not None:
                return value[0]
            inside = np.isin(at.lanes(), region.lanes())
            if inside.any():
                parts.append((at if inside.all() else Subset(self.home, at.lanes()[inside]), value))
        if not parts or sum(at.count for at, _ in parts) < region.count:
            raise UnboundLocalError("a variable is read before it is bound")
        together = meet(parts, region)[1]
        self._put(region, [(region, together)])
        return together[0]

    def set(self, value: Any) -> Any:
        """Bind it for the lanes of the current region. Returns the value."""
        region: Any = current_region()
        changing(self)
        if region is self.home:
            self.pieces = [(region, (value,))]
        else:
            self._put(region, [(region, (value,))])
        return value

    def delete(self) -> None:
        """`del`: the lanes of the current region have no value any more."""
        self.get()
        changing(self)
        self._put(current_region(), [])

    def _put(self, region: Any, new: list[Piece]) -> None:
        """Let the lanes of a region have these pieces instead of what they had."""
        if region is self.home:
            self.pieces = new
            return
        if region is None or self.home is None or lanes_within(region, self.home) is None:
            raise NeedsLoop("a variable of other examples is bound")
        kept: list[Piece] = []
        for at, value in self.pieces:
            inside = np.isin(at.lanes(), region.lanes())
            if not inside.any():
                kept.append((at, value))
            elif not inside.all():
                kept.append((Subset(self.home, at.lanes()[~inside]), value))
        self.pieces = [*kept, *new]
