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
    "NeedsLoop",
    "OffsetsError",
    "OptionError",
    "OverTime",
    "OverloadedError",
    "Reason",
    "ShapeError",
    "StructureError",
    "Unreachable",
    "Unsupported",
    "UnsupportedError",
    "forget_example",
    "is_noted",
    "note_example",
    "reason_of",
    "shown_file",
]

import sys
from os.path import basename
from typing import Any

# What to write instead, where several signals say the same.
BUILD_ARRAYS = "build arrays: append to one list, and np.stack it after the loop"
CALL_AFTER = "call it once after the batched part, or write it with functions that have a rule (np.sum, np.sort …)"
COPY_FIRST = "copy it first: y = x.copy()"
DRAW_BEFORE = "draw by ab.nn.dropout(x, rate, seed=…), or draw before the call and give each example its numbers"
FROM_PLAIN_CODE = "call it from code that is not asynchronous"
KEEP_IN_A_FILE = "keep the function in a file, and import it again"
LOOK_UP = "look the value up in an array, values[key], or choose with np.where"
MAKE_A_LIST = "make a list of it, and loop over that"
OWN_LENGTHS = "compute with arrays of each example's own length; lengths, masks and np.where are arrays"
RETURN_ARRAYS = "return arrays, tuples, dicts or dataclasses of them"
RETURN_VALUES = "return the value, and put the results together after the call"
SHOW_AFTER = "return what is to be shown, and print it after the call"
TEST_BEFORE = "test for it before, as in `x if ok else 0.0` or `if key in d`"
WARNINGS_OUTSIDE = "put `with warnings.catch_warnings()` around the call"
WRITE_AXIS = "write the axis out: x[:, None], or repeat the value to its length"


def shown_file(filename: str) -> str:
    """The name of a source file for messages: a notebook's cell is `Cell In[3]`, as in IPython's tracebacks.

    >>> shown_file("model.py")
    'model.py'
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name = getattr(getattr(shell, "compile", None), "format_code_name", lambda filename: None)(filename)
    return " ".join(name) if name else filename


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


Place = tuple[str, int]  # file, line


class Reason(str):
    """Why code does not run in some mode, in words.

    Attributes:
        where: the user's (file, line), if it is known; instead: what to write instead, or "", in one sentence.

    >>> Reason("a generator", ("model.py", 3), MAKE_A_LIST).placed
    'model.py:3: a generator'
    """

    where: Place | None
    instead: str

    def __new__(cls, why: Any, where: Place | None = None, instead: str = "") -> "Reason":
        out = super().__new__(cls, why)
        out.where, out.instead = where or getattr(why, "where", None), instead or getattr(why, "instead", "")
        return out

    @property
    def placed(self) -> str:
        """The text with the user's line before it, by the file's name alone."""
        return str(self) if self.where is None else f"{basename(shown_file(self.where[0]))}:{self.where[1]}: {self}"


class Unsupported(Exception):  # noqa: N818  # a signal, not a failure
    """Signals that code, a call or a value is not supported by some mode; the caller decides what runs it instead.

    It is raised before anything outside the run was changed.

    Args:
        why: what is not supported, without a place; a `Reason` brings its place and remedy along.
        node: the syntax at fault, to which `at` adds the file; where: the file and line at fault.
        instead: what to write instead, in one sentence.
        passing: True if it holds for this run only: a kernel is still being compiled, say, or the run raised an error.

    >>> str(Unsupported("out= has no batched form", where=("model.py", 3)))
    'model.py:3: out= has no batched form'
    """

    def __init__(
        self, why: Any = "", node: Any = None, *, instead: str = "", where: Place | None = None, passing: bool = False
    ) -> None:
        super().__init__(why)
        self.reason, self.passing, self._line = Reason(why, where, instead), passing, getattr(node, "lineno", 0)

    def __str__(self) -> str:
        return self.reason.placed

    def at(self, file: str, line: int) -> "Unsupported":
        """This signal with its place, unless it has one: its node's line in `file`, else the given line."""
        self.reason.where = self.reason.where or (file, self._line or line)
        return self


class NeedsLoop(Unsupported, UnsupportedError):  # noqa: N818  # a signal, not a failure
    """Raised inside a run to give the run up: its examples run by the next mode, in the end one after the other."""


def reason_of(error: BaseException) -> Reason:
    """Why a run failed: a signal's own reason; of any other error its class and message.

    >>> reason_of(ValueError("bad")), reason_of(Unsupported("a generator"))
    ('ValueError: bad', 'a generator')
    """
    return error.reason if isinstance(error, Unsupported) else Reason(f"{type(error).__name__}: {error}")


class Unreachable(Exception):  # noqa: N818  # a signal, not a failure
    """Signals to the writer of a form that the code after this point never runs, or has not been met yet."""


class OverTime(BaseException):
    """Raised inside a run that takes longer than another mode would; nothing outside the run was changed.

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
    if notes := getattr(error, "__notes__", None):
        notes[:] = [note for note in notes if not note.startswith(_NOTE)]
        if not notes:
            del error.__notes__
