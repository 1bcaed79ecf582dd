"""The errors and warnings of the library; each derives from a builtin, so existing `except` clauses catch them.

A message says what was given, what was expected and what to write instead. A note names the example that failed; it is
added once, by the code that knows the example's index (`note_example`).
"""

__all__ = [
    "BadIdError",
    "CheckpointError",
    "CheckpointWarning",
    "ClosedError",
    "DTypeError",
    "FallbackWarning",
    "ForcedValueError",
    "MostlyPadding",
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
    """Offsets that do not describe bags or examples: they do not start at 0, decrease, or end at a wrong number."""


class UnsupportedError(TypeError):
    """Something that cannot be batched or differentiated, and a loop over the examples is not possible or allowed."""


class OptionError(UnsupportedError, ValueError):
    """An option with a value that it does not take, or that does not go with another option."""


class ForcedValueError(TypeError):
    """A plain number or array was needed, but the value carries a gradient, which would be lost.

    A handler in the differentiated function does not end it: it is raised again when the function returns. Take such a
    number of `ab.stop_gradient(x)`.
    """


class CheckpointError(OSError):
    """A checkpoint is damaged or missing, or another saver holds its folder; the message names the file."""


class CheckpointWarning(UserWarning):
    """A checkpoint was restored in part, as requested, or a file that is no longer needed could not be removed."""


class OverloadedError(RuntimeError):
    """The queue of requests is full: this request was not taken, and can be made again later."""


class ClosedError(RuntimeError):
    """A request to a batcher that is closed, or a server that shuts down."""


class NeedsLoop(UnsupportedError):  # noqa: N818  # a signal, not a failure
    """Raised inside a lock-step run to say: this cannot run for all lanes at once, run the examples on the fly.

    It is raised before anything outside the run was changed, so the examples start from the state that the caller left.

    Attributes:
        where: the file and line at fault, if that is not the line that runs.
    """

    where: tuple[str, int] | None = None


class MostlyPadding(NeedsLoop):
    """Raised inside a run, before it makes a large array that would be mostly padding."""


class OverTime(BaseException):
    """Raised inside a run that takes longer than another way would; nothing outside the run was changed.

    It is not an `Exception`, so that no `except Exception`, of the user or the library, stops it.
    """


class FallbackWarning(UserWarning):
    """Something ran example by example instead of for all at once: correct, but slower. Given once per source line."""


_NOTE = "raised for example "


def is_noted(error: BaseException) -> bool:
    """True if a note of the error names the example that failed.

    >>> is_noted(note_example(ValueError("bad"), 3)), is_noted(ValueError("bad"))
    (True, False)
    """
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))


def note_example(error: BaseException, index: int) -> BaseException:
    """Name the failing example in a note of `error`, unless one names an example already. Returns `error`.

    >>> note_example(ValueError("bad"), 3).__notes__
    ['raised for example 3']
    """
    if not is_noted(error):
        error.add_note(f"{_NOTE}{index}")
    return error


def forget_example(error: BaseException) -> None:
    """Remove the note that names an example, for a call that has just one example.

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
