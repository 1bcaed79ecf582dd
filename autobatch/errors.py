"""The errors and warnings of the library, each also a builtin, so that existing `except` clauses hold.

A message says what was given, what was expected and what to write instead. Which example failed is added once, as a
note, at the boundary where the example is known (`note_example`).
"""

import operator
from typing import Any

__all__ = [
    "BadIdError",
    "CheckpointError",
    "CheckpointWarning",
    "ClosedError",
    "DTypeError",
    "FallbackWarning",
    "ForcedValueError",
    "NeedsLoop",
    "OffsetsError",
    "OptionError",
    "OverTime",
    "OverloadedError",
    "ShapeError",
    "StructureError",
    "UnsupportedError",
    "forget_example",
    "is_noted",
    "note_example",
]


class ShapeError(ValueError):
    """Shapes, ranks, lengths or batch sizes that do not fit together."""


class DTypeError(TypeError):
    """A dtype that the operation does not take."""


class StructureError(ValueError):
    """Two nested structures (dict, list, tuple, dataclass) that should be alike and are not."""


class BadIdError(IndexError):
    """An id outside its table, or a segment id outside the segments."""


class OffsetsError(BadIdError, ShapeError):
    """Offsets that do not describe bags or examples: they start elsewhere than at 0, fall, or end at a wrong number."""


class UnsupportedError(TypeError):
    """Something that cannot be batched or differentiated, where a loop over the examples is not allowed."""


class OptionError(UnsupportedError, ValueError):
    """An option with a value that is none of those it takes, or that does not go with another option."""


class ForcedValueError(TypeError):
    """A value was needed as a plain number or array where only a gradient-carrying one exists."""


class CheckpointError(OSError):
    """A checkpoint that is damaged, is not there, or whose folder another saver holds; the message names the file."""


class CheckpointWarning(UserWarning):
    """Something was restored in part, as was asked for, or a file that is no longer needed could not be removed."""


class OverloadedError(RuntimeError):
    """As many requests wait as may wait: this one was not taken, and can be made again later."""


class ClosedError(RuntimeError):
    """A request to a batcher that takes none any more, since it is being shut down."""


class NeedsLoop(UnsupportedError):  # noqa: N818  # a signal, not a failure
    """Raised inside a lock-step run to say: this cannot run for all lanes at once, run the examples on the fly.

    It is raised before anything outside the run was changed, so they start from the state that the caller left.

    Attributes:
        where: the file and line that it is about, where it is not the line that runs.
    """

    where: tuple[str, int] | None = None


class OverTime(BaseException):
    """Raised inside a run that has taken longer than another way may: nothing outside of it was changed.

    No handler of the user's or the library's is to hold it up, so it is no `Exception`.
    """


class FallbackWarning(UserWarning):
    """Something did not run for all examples at once, but example by example: right, but slower. Once a source line."""


_NOTE = "raised for example "


def whole_number(what: str, value: Any, least: int) -> int:
    """The value of this name as an integer of at least that.

    Raises:
        OptionError: it is none.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise OptionError(f"{what}={value!r}; expected a whole number, at least {least}")
    return operator.index(value)


def is_noted(error: BaseException) -> bool:
    """Whether a note names the example that failed.

    >>> is_noted(note_example(ValueError("bad"), 3)), is_noted(ValueError("bad"))
    (True, False)
    """
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))


def note_example(error: BaseException, index: int) -> BaseException:
    """Name the failing example in a note of `error`, once; inner boundaries win. Returns `error`.

    >>> note_example(ValueError("bad"), 3).__notes__
    ['raised for example 3']
    """
    if not is_noted(error):
        error.add_note(f"{_NOTE}{index}")
    return error


def forget_example(error: BaseException) -> None:
    """Take back the note that names an example, where there was but one.

    >>> error = note_example(ValueError("bad"), 0)
    >>> forget_example(error)
    >>> is_noted(error)
    False
    """
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [note for note in notes if not note.startswith(_NOTE)]
        if not notes:
            del error.__notes__
