"""Generators: a converted generator function yields for the lanes that come by its `yield`, and its loop follows them.

The generator stays one of Python's: each `yield` hands over a value together with the region it was yielded in, and the
code that reads it runs for those lanes, before the generator goes on. So what either of them does comes in the order
in which each example does it. Lanes that stop reading early (`break`) cannot be taken out of a generator that is under
way: what it does for them is not seen, so it may not change anything from there on.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.core.lanes import current_region, set_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.joins import Piece, meet, narrowed_values
from autobatch.lockstep.regions import Subset, lanes_within

__all__ = ["GeneratorLoop", "LaneGenerator", "divided"]

_AHEAD = 1000  # items that may wait while other lanes have not come to theirs: they may never come


class LaneGenerator:
    """A generator of converted code, for the lanes of the region that reads it first.

    Attributes:
        home: the region that it runs for.
        at: the region that it is in, where it yielded last.
        left: the reader of which some lanes read no further; None if there is none.
        value: what it returned, once it has.
    """

    __slots__ = ("_changes", "_journal", "_waiting", "at", "finished", "home", "left", "native", "started", "value")

    def __init__(self, native: Any) -> None:
        self.native = native
        home: Any = current_region()
        self.home = self.at = home
        self.started = self.finished = False
        self.left: Any = None
        self.value: Any = None
        self._waiting: list[tuple[Any, Any]] = []
        self._changes = 0
        self._journal = home.root.journal

    def require_here(self) -> None:
        """Raise NeedsLoop unless it can go on for all lanes of the current region, and for no others."""
        region: Any = current_region()
        if not self.started and region is not self.home:
            if lanes_within(region, self.home) is None:
                raise NeedsLoop("a generator of other examples is read")
            self.home = self.at = region
        if self.left or region.count != self.home.count or lanes_within(region, self.home) is None:
            raise NeedsLoop("a generator is read by some of its examples")
        if self.home.root.journal is not self._journal:
            self.home.root.changes += 1
        self.started = True

    def advance(self) -> tuple[Any, Any] | None:
        """The next region and the value that its lanes yield; None at the end. The current region stays."""
        if self._waiting:
            self._require_unchanged()
            return self._waiting.pop(0)
        return self._resume()

    def _resume(self) -> tuple[Any, Any] | None:
        if self.finished:
            return None
        root, outer = self.home.root, current_region()
        before = root.changes
        set_region(self.at)
        try:
            value = next(self.native)
        except StopIteration as stop:
            self.finished, self.value = True, stop.value
            return None
        finally:
            self.at = current_region()
            set_region(outer)
            if self.left and root.changes != before:
                raise NeedsLoop("a generator that some examples have left changes something")
        return self.at, value

    def send(self, *sent: Any) -> Any:
        """Not for lanes: what is sent in, or thrown, may differ by lane where the generator waits."""
        raise NeedsLoop("send(), throw() or close() of a generator")

    throw = close = send

    def leave(self, reader: Any) -> None:
        """Some lanes of this reader read no further."""
        self.require_reader(reader)
        self.left = reader

    def require_reader(self, reader: Any) -> None:
        """Raise NeedsLoop if lanes of another reader have left: what that skipped for them, this one has not seen."""
        if self.left is not None and self.left is not reader:
            raise NeedsLoop("a generator is read by some of its examples in a loop over it")

    def _require_unchanged(self) -> None:
        if self.home.root.changes != self._changes:
            raise NeedsLoop("something changes while examples are at different items of a generator")

    def next_of(self, region: Any) -> list[Piece]:
        """The next items of the lanes of a region, in pieces: fewer lanes each time, for the others read no further."""
        if not self.started:
            self.require_here()
        if region.count < self.home.count:
            self.leave(self)
        pieces, _ = self.take(region)
        return pieces

    def take(self, by: Any = None) -> tuple[list[Piece], Any]:
        """The next item of each lane, as pieces, and the lanes that have none (None: all have).

        Args:
            by: the lanes that still read.
        """
        need = reading = (by or self.home).lanes()
        pieces: list[Piece] = []
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._require_unchanged()
        before = self.home.root.changes
        while len(need):
            step = waiting.pop(0) if waiting else self._resume()
            if step is None:
                break
            where, value = step
            mine, others = divided(where, need, self.home)
            if mine is not None:
                pieces.append((mine, narrowed_values((value,), mine)))
                need = need[~np.isin(need, mine.lanes())]
            others = others and divided(others, reading, self.home)[0]
            if others is not None:
                self._waiting.append((others, narrowed_values((value,), others)[0]))
            if len(self._waiting) > _AHEAD:
                raise NeedsLoop("examples are at very different items of a generator")
        self._waiting += waiting
        if self._waiting:
            self._changes = self.home.root.changes
            if self._changes != before:
                raise NeedsLoop("something changes while examples are at different items of a generator")
        return pieces, need if len(need) else None

    def following(self, *default: Any) -> Any:
        """`next`: each lane's next item."""
        self.require_here()
        pieces, missing = self.take()
        if missing is not None:
            if not default:
                raise StopIteration
            pieces.append((Subset(self.home, missing), default))
        return meet(pieces, current_region())[1][0]

    def __iter__(self) -> Iterator[Any]:
        """The items, where all lanes yield together."""
        self.require_here()
        while (step := self.advance()) is not None:
            if step[0] is not current_region():
                raise NeedsLoop("an example yields apart from the others")
            yield step[1]


def divided(region: Any, lanes: np.ndarray, outer: Any) -> tuple[Any, Any]:
    """A region's lanes that are among `lanes`, and its others: each a region or None."""
    inside = np.isin(region.lanes(), lanes)
    if inside.all():
        return region, None
    if not inside.any():
        return None, region
    own = region.lanes()
    return Subset(outer, own[inside]), Subset(outer, own[~inside])


class GeneratorLoop:
    """A `for` without exits over a generator: a step for each `yield`, for the lanes that yield.

    Attributes:
        fewer: other lanes are here than before, so what the loop carries must follow.
    """

    __slots__ = ("base", "fewer", "pieces", "previous", "region", "source")

    def __init__(self, source: LaneGenerator) -> None:
        source.require_here()
        self.source = source
        self.base: Any = current_region()
        self.region: Any = self.base
        self.previous: Any = self.base
        self.fewer = False
        self.pieces: list[Piece] = []

    def __iter__(self) -> Iterator[Any]:
        while (step := self.source.advance()) is not None:
            self.source.require_reader(self)
            where, value = step
            self.previous, self.region = self.region, where
            self.fewer = where is not self.previous
            set_region(where)
            yield value
            self.fewer = False
        self.source.require_reader(self)
        self.previous = self.region

    def narrow(self, kept: tuple[Any, ...], carried: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        """Values of the lanes that were here before, put aside; those of the lanes that are here now."""
        self.fewer = False
        self._put(self.previous, (*kept, *carried))
        parts: list[Piece] = []
        for at, values in self.pieces:
            mine, _ = divided(at, self.region.lanes(), self.base)
            if mine is not None:
                parts.append((mine, values if mine is at else narrowed_values(values, mine)))
        return meet(parts, self.region)[1]

    def _put(self, region: Any, values: tuple[Any, ...]) -> None:
        new: list[Piece] = [(region, values)]
        for at, old in self.pieces:
            _, others = divided(at, region.lanes(), self.base)
            if others is not None:
                new.append((others, old if others is at else narrowed_values(old, others)))
        self.pieces = new

    def merge(self, kept: tuple[Any, ...], own: Any = ()) -> tuple[Any, ...]:
        """Values for all lanes again."""
        if not kept or not self.pieces:
            set_region(self.base)
            return kept
        self.pieces = [(at, values[: len(kept)]) for at, values in self.pieces]
        self._put(self.region, kept)
        return meet(self.pieces, self.base)[1]
