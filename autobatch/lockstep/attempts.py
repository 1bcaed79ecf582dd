"""`try`: the body runs for all lanes; if anything is raised, the statement runs again, one lane after the other.

What the first attempt did must not be seen, so it may have bound names only: a list that it appended to, an array that
it wrote into, a random number that it drew sends the whole call to the loop over the examples.
"""

import sys
from collections.abc import Iterator
from typing import Any

from autobatch.core.lanes import current_region, set_region
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.lockstep.branches import RaisedError
from autobatch.lockstep.joins import Piece, meet
from autobatch.lockstep.regions import Subset, current_root

__all__ = ["Aside", "Attempts"]

_TRUSTED = (ArithmeticError, LookupError, ValueError, AssertionError)
"""What an example raises where its lane does. Another exception may be of ours: then the loop knows."""


class _ApartError(Exception):
    """The statement runs again, one lane after the other."""


Aside = (_ApartError, NeedsLoop)


class Attempts:
    """The runs of a `try` statement.

    Attributes:
        again: the statement runs once more, lane by lane.
        changed: the values of the names are not those before the statement: read `values`.
        split: lanes ran one by one; the values after the statement are those of `join`.
    """

    __slots__ = ("again", "alone", "base", "changed", "changes", "pieces", "region", "split", "values")

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.base: Any = current_region()
        self.region: Any = self.base
        self.values = values
        lanes = getattr(self.base, "count", 1)
        self.alone: bool = lanes < 2
        self.again = self.changed = self.split = False
        self.changes = _changes()
        self.pieces: list[Piece] = []

    def __iter__(self) -> Iterator[None]:
        yield None
        if not self.again:
            return
        self.again, self.alone, self.split, self.changed = False, True, True, True
        lanes = self.base.lanes()
        for lane in range(len(lanes)):
            self.region = Subset(self.base, lanes[lane : lane + 1])
            set_region(self.region)
            yield None

    def caught(self) -> None:
        """An exception in the body. Returns if it is the one lane's own, which its handlers then see."""
        error = sys.exc_info()[1]
        if self.base is None:
            return
        if isinstance(error, UnsupportedError):
            raise NeedsLoop(str(error)) from error
        if not self.alone:
            if _changes() != self.changes:
                raise NeedsLoop("an exception is caught after the body of the try changed something")
            self.again = True
            raise _ApartError
        if not (hasattr(error, "_ab_raised") or isinstance(error, _TRUSTED)) or isinstance(error, RaisedError):
            raise NeedsLoop(f"an exception is caught ({type(error).__name__})")
        set_region(self.region)

    def end(self, values: tuple[Any, ...]) -> None:
        """The statement came to its end with these values."""
        self.pieces.append((current_region(), values))

    @property
    def nobody(self) -> bool:
        return not self.pieces

    def join(self) -> tuple[Any, ...]:
        """The values after the statement, for the lanes that came to its end: those are the region now."""
        if not self.pieces:
            set_region(self.base)
            return self.values
        return meet(self.pieces, self.base)[1]


def _changes() -> int:
    root = current_root()
    return 0 if root is None else root.changes
