"""`try`: the body runs for all lanes; if anything is raised in it, it runs again for fewer of them, down to one.

What the failed attempt did must not be seen, so a journal takes it back. An exception that is raised where only some
lanes are parts those from the others; one of all lanes parts them in halves. The exception that one lane alone raises
is its own, and its handlers see it.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.core.lanes import current_region, set_region
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.facts.source import is_library
from autobatch.lockstep.branches import RaisedError
from autobatch.lockstep.joins import Piece, meet
from autobatch.lockstep.journal import Journal
from autobatch.lockstep.regions import Subset, lanes_within
from autobatch.lockstep.rows import Held
from autobatch.lockstep.unwrapping import is_batched_tree

__all__ = ["Aside", "Attempts", "Errors"]

_TRUSTED = (ArithmeticError, LookupError, ValueError, AssertionError)
"""What an example raises where its lane does. Another exception may be of ours: then the loop knows."""
_EXACT = (
    "lockstep/calls.py", "lockstep/items.py", "lockstep/functions.py", "lockstep/lists.py", "lockstep/boxes.py",
    "lockstep/rows.py", "lockstep/foreign.py", "lockstep/iterating.py",
    "batches/base.py", "batches/examples.py", "batches/scalars.py",
)  # fmt: skip
"""Where plain functions are called with plain values: what they raise is what they raise for the example alone."""


class _ApartError(Exception):
    """The statement runs again, for fewer lanes at a time."""


Aside = (_ApartError, NeedsLoop)


class Attempts:
    """The runs of a `try` statement, each for some of the lanes.

    Attributes:
        again: the run that was under way is taken back; its lanes run again.
        changed: the values of the names are not those before the statement: read `values`.
        split: the lanes did not run all together; the values after the statement are those of `join`.
    """

    __slots__ = ("again", "base", "changed", "journal", "pieces", "region", "split", "todo", "values")

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.base: Any = current_region()
        self.region: Any = self.base
        self.values = values
        self.again = self.changed = self.split = False
        self.todo: list[Any] = [self.base]
        self.pieces: list[Piece] = []
        self.journal: Journal | None = None

    def __iter__(self) -> Iterator[None]:
        if self.base is None:
            yield None
            return
        while self.todo:
            self.again, self.region = False, self.todo.pop()
            set_region(self.region)
            self.journal = Journal(self.base.root)
            yield None
            self.changed = self.split = True

    def ran(self) -> None:
        """The body came to its end."""
        if self.journal is not None:
            self.journal.close()

    def caught(self) -> None:
        """An exception in the body. Returns if it is the one lane's own, which its handlers then see."""
        error = sys.exc_info()[1]
        journal = self.journal
        if journal is None:
            return
        if isinstance(error, UnsupportedError):
            raise error if isinstance(error, NeedsLoop) else NeedsLoop(str(error)) from error
        if self.region.count != 1:
            if not self.region.count:
                raise NeedsLoop("an exception of no example")
            here: Any = current_region()
            if not journal.undo():
                raise NeedsLoop("an exception is caught after the body of the try changed something")
            self._part(here, error)
            self.again = True
            raise _ApartError
        trusted = hasattr(error, "_ab_raised") or isinstance(error, _TRUSTED) or _is_pythons(error)
        if not trusted or isinstance(error, RaisedError):
            raise NeedsLoop(f"an exception is caught ({type(error).__name__})")
        while journal.root.journal is not journal.outer:
            journal.root.journal.close()
        set_region(self.region)

    def _part(self, here: Any, error: Any) -> None:
        """Fewer lanes at a time, in their order: those that raised apart from the others, or halves."""
        lanes = self.region.lanes()
        raising = lanes_within(here, self.region)
        if raising is None or len(raising) == len(lanes):
            raising = np.arange(len(lanes) // 2)
        inside = np.zeros(len(lanes), bool)
        inside[raising] = True
        parts = [lanes[inside], lanes[~inside]]
        if isinstance(error, RaisedError):  # each of them raises
            raised = parts[0] if here.count < len(lanes) else lanes
            parts = [*([parts[1]] if here.count < len(lanes) else []), *np.split(raised, len(raised))]
        self.todo += [Subset(self.base, part) for part in reversed(parts)]

    def readable(self, error: BaseException) -> BaseException:
        """The exception, for a handler that reads it: one that says exactly what the example's own would.

        Raises:
            NeedsLoop: it was raised by an operation on batches, and may say it in other words.
        """
        if self.base is None or hasattr(error, "_ab_raised") or _is_pythons(error):
            return error
        module = _module_of(_innermost(error))
        if module is not None and module not in _EXACT:
            raise NeedsLoop("a handler reads an exception that an operation on arrays raised")
        return error

    def end(self, values: tuple[Any, ...]) -> None:
        """The statement came to its end with these values."""
        self.pieces.append((current_region(), values))

    def join(self) -> tuple[Any, ...]:
        """The values after the statement, for the lanes that came to its end: those are the region now."""
        return meet(self.pieces, self.base)[1]


def _innermost(error: BaseException | None) -> Any:
    """The frame that raised an exception; None if it has no traceback."""
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame


def _module_of(frame: Any) -> str | None:
    """The file of a frame inside of this package; None for another one's."""
    filename = "" if frame is None else frame.f_code.co_filename.replace("\\", "/")
    package = __file__.replace("\\", "/")[: -len("lockstep/attempts.py")]
    return filename[len(package) :] if filename.startswith(package) else None


def _is_pythons(error: BaseException | None) -> bool:
    """Whether Python raises the very same for the example alone: of a name that is not bound, or of plain values."""
    frame = _innermost(error)
    module = _module_of(frame)
    if type(error) is NameError:
        return module is None and frame is not None and not is_library(frame.f_code.co_filename)
    if type(error) not in (AttributeError, TypeError) or module not in (*_EXACT, "lockstep/classes.py"):
        return False
    return not any(is_batched_tree(value) or isinstance(value, Held) for value in frame.f_locals.values())


class Errors:
    """Exceptions that wait until a `finally` has run, by statement and lane."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, int], BaseException] = {}

    def keep(self, statement: int) -> None:
        """Keep the exception that is being handled, of the one lane that is here."""
        error = sys.exc_info()[1]
        assert error is not None
        self.waiting[statement, _lane()] = error

    def throw(self, statement: int) -> None:
        """Raise what the lanes that are here have kept."""
        region: Any = current_region()
        if region is not None and region.count > 1:
            raise RaisedError("an exception is raised")
        raise self.waiting.pop((statement, _lane()))


def _lane() -> int:
    region: Any = current_region()
    return 0 if region is None else int(region.lanes()[0])
