"""User-facing diagnostics: fallback warnings, remedies, tracebacks, and NumPy's error and warning state for launches.

- Falling back to a loop over the examples warns once per source line and reason, and is an error under `strict`. Code
  that replaces the warning filters and asks for "always" gets the warning again.
- A launch runs later and elsewhere than the calls it contains, so a call recorded inside `np.errstate` carries that
  state with it (`handling`). `warnings.filters` are global to the process, so calls inside `warnings.catch_warnings`
  cannot be launched elsewhere (`catches_warnings`).
- `hide_frames` removes the library's frames from the traceback of an error raised by the user's code; which example
  raised is added by `note_example` (autobatch/errors.py).
- Runs on dummy values must not warn (`silence`): one thread at a time holds that lock, also to read the user's filters.
"""

import contextlib
import contextvars
import dis
import functools
import inspect
import linecache
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any, TypeVar, cast

import numpy as np

from autobatch.core.config import config
from autobatch.core.current_region import holding
from autobatch.core.op import is_boxed
from autobatch.core.pytree import PLAIN
from autobatch.errors import (
    WARNINGS_OUTSIDE,
    FallbackWarning,
    NeedsLoop,
    OverTime,
    Reason,
    UnsupportedError,
    shown_file,
)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_warned: dict[tuple[str, int, str], Any] = {}  # (file, line, reason) -> the warning filters at the last warning
_noted: contextvars.ContextVar[list[Reason] | None] = contextvars.ContextVar("autobatch_fallbacks", default=None)


def noted_fallbacks() -> contextlib.AbstractContextManager[list[Reason]]:
    """Collect fallbacks inside this block instead of warning.

    >>> with noted_fallbacks() as found:
    ...     warn_fallback("np.median has no rule", where=("model.py", 3))
    >>> found[0].placed
    'model.py:3: np.median has no rule'
    """
    return holding(_noted, list[Reason]())


@functools.lru_cache(maxsize=4096)
def is_library_file(filename: str) -> bool:
    """True if the file belongs to this library (also code that it generates), or to NumPy."""
    return filename.startswith((_PACKAGE, "<recorder of ")) or f"{os.sep}numpy{os.sep}" in filename


_HOME = tuple({p for key in ("stdlib", "platstdlib", "purelib", "platlib") if (p := sysconfig.get_path(key))})
_AS_USERS = ("nn/", "cli/small_demo.py", "lockstep/calls/calls_on_items.py")
_MODELS = tuple(os.path.join(_PACKAGE, *each.split("/")) for each in _AS_USERS)


@functools.lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """True if a file is not the user's: the standard library, an installed package, or this one.

    The layers of `ab.nn`, the model of `autobatch demo` and builtins written as Python count as the user's own.
    """
    known = filename.startswith((_PACKAGE, *_HOME, "<frozen")) or "site-packages" in filename
    return known and not filename.startswith(_MODELS)


def _user_frame() -> FrameType:
    frame = sys._getframe(1)
    while is_library_file(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def user_line() -> tuple[str, int]:
    """(file, line) of the innermost stack frame that is in neither this library nor NumPy."""
    return (frame := _user_frame()).f_code.co_filename, frame.f_lineno


def warn_as_numpy(message: str) -> None:
    """Give a `RuntimeWarning` for the user's innermost line, as NumPy called there would."""
    seen = _user_frame().f_globals
    _show(message, RuntimeWarning, *user_line(), seen.get("__name__"), seen.setdefault("__warningregistry__", {}))


def warn_user(message: str, reason: str = "") -> None:
    """Issue a `UserWarning` for the user's innermost line (see `user_line`), once per line and `reason`."""
    _warn_once(message, UserWarning, *user_line(), reason or message)


def raised_at(error: BaseException) -> tuple[str, int] | None:
    """(file, line) of the innermost user frame in an error's traceback; None if it has none."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((each for each in reversed(lines) if not is_library_file(each[0])), None)


_CALLING = (
    "BEFORE_WITH", "BINARY", "COMPARE", "CONTAINS", "DELETE", "FORMAT", "FOR_ITER", "GET_ITER", "LOAD_ATTR",
    "LOAD_METHOD", "LOAD_SPECIAL", "POP_JUMP", "SEND", "STORE_ATTR", "STORE_SUBSCR", "TO_BOOL", "UNARY", "UNPACK",
    "WITH_EXCEPT",
)  # fmt: skip


def came_from_outside(error: BaseException) -> bool:
    """True if a run was interrupted: what was raised is not what the user's code, run again, would raise.

    An `Exception` counts as the code's own. So does another one, such as `SystemExit`, unless a signal's handler raised
    it, or a function that no instruction called (a trace). A `KeyboardInterrupt` is the code's own only if a `raise`
    statement of the user's raised it, not Ctrl-C.

    >>> came_from_outside(OverTime()), came_from_outside(ValueError())
    (True, False)
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, OverTime) or error.__traceback__ is None:
        return True
    handlers = [signal.getsignal(each) for each in signal.valid_signals()]
    codes = {getattr(getattr(each, "func", each), "__code__", None) for each in handlers}
    trace: TracebackType | None = error.__traceback__
    called, is_ours = "CALL", False
    while trace is not None:
        code = trace.tb_frame.f_code
        if code in codes or not (called.startswith("CALL") or (called.startswith(_CALLING) and not is_ours)):
            return True
        instructions = code.co_code[trace.tb_lasti :: -2]  # an instruction is followed by its caches
        called = next(dis.opname[each] for each in instructions if each != dis.opmap["CACHE"])
        is_ours = is_library_file(code.co_filename)
        trace = trace.tb_next
    return is_ours or (isinstance(error, KeyboardInterrupt) and called not in ("RAISE_VARARGS", "RERAISE"))


def warn_fallback(reason: str, where: tuple[str, int] | None = None, way: str = "as a loop over the examples") -> None:
    """Report that some code cannot run batched, with a `FallbackWarning` (or in `noted_fallbacks`, if active).

    Args:
        reason: what cannot be batched; a `Reason` has its own place, and says what to write instead.
        where: the user's (file, line); by default the line that runs now.
        way: how the code runs instead.

    Raises:
        UnsupportedError: under `strict`.

    Warns once per line and reason; again if the filters were replaced by ones that say "always".
    """
    reason = Reason(reason, where or getattr(reason, "where", None) or user_line())
    filename, line = reason.where or ("", 0)
    better = f". Instead: {reason.instead}" if reason.instead else ""
    if config.strict:
        other = "no loop over the examples" if way.startswith("as a loop") else "lock-step only"
        raise UnsupportedError(f"{reason.placed}; strict=True allows {other}{better}")
    if (noted := _noted.get()) is not None:
        noted.append(reason)
        return
    if not config.warn:
        return
    _warn_once(f"{reason}; it runs {way}{better}", FallbackWarning, filename, line, reason)


def _warn_once(message: str, warning: type[Warning], filename: str, line: int, reason: str) -> None:
    filters, said = user_filters(), (filename, line, reason)
    if said in _warned and (_warned[said] is filters or not _always(filters, message, warning, filename, line)):
        return
    _warned[said] = filters
    _show(message, warning, filename, line, filename.removesuffix(".py"))


def _show(message: str, warning: type[Warning], filename: str, line: int, *registry: Any) -> None:
    if (shown := shown_file(filename)) != filename:  # so that the warning shows its line
        lines = linecache.getlines(filename)
        linecache.cache[shown] = (sum(map(len, lines)), None, lines, shown)
    warnings.warn_explicit(message, warning, shown, line, *registry)


def _always(filters: Any, message: str, warning: type[Warning], filename: str, line: int) -> bool:
    """True if the first filter that matches this warning says "always"."""
    module = filename.removesuffix(".py")  # as `warn_explicit` derives it
    for action, text, category, where, at in filters:
        fits = (text is None or text.match(message)) and (where is None or where.match(module))
        if fits and issubclass(warning, category) and at in (0, line):
            return action in ("always", "all")
    return False


_silent = threading.RLock()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress all warnings and floating-point errors inside this block.

    >>> with silence():
    ...     np.mean([])
    np.float64(nan)
    """
    with _silent, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def user_filters() -> Any:
    """`warnings.filters` as set by the user; waits while another thread is inside `silence`."""
    with _silent:
        return warnings.filters


try:
    from numpy._core._ufunc_config import _extobj_contextvar  # type: ignore[attr-defined]
except ImportError:  # a NumPy version that moved this private variable: the fallback is forty times slower
    handling: Callable[[], Any] = lambda: sys.intern(str(np.geterr()))
    _extobj_contextvar = None
else:
    handling = _extobj_contextvar.get  # returns the same object as long as no errstate is entered or left


def _write(prefix: str, text: str) -> None:
    warn_as_numpy(re.sub(_OPERATORS, prefix, text.removeprefix("Warning: ").rstrip()))


_OPERATORS = r"(?<=encountered in )(?=(add|subtract|multiply|divide|floor_divide|remainder|power|divmod)$)"
# What NumPy writes its messages to, where it is told to "log" in place of "warn": of arrays, and of scalars.
_logs = [SimpleNamespace(write=functools.partial(_write, prefix)) for prefix in ("", "scalar ")]
_known: tuple[Any, ...] = (None, None, None, False)  # the last result of `_error_state`


def _error_state() -> tuple[Any, ...]:
    """NumPy's error state in the user's code, those in which `_logs` give its warnings, and if underflow is ignored."""
    global _known
    state, known = handling(), _known
    if state in known[:3]:
        return known
    own = np.geterr()
    logged: Any = {name: "log" for name, how in own.items() if how == "warn"}
    states = [state]
    for log in _logs:
        with np.errstate(call=log, **logged):  # "log" and "call" write to the user's object, or call it
            states.append(handling() if logged and {"log", "call"}.isdisjoint(own.values()) else state)
    _known = known = (*states, own["under"] == "ignore")
    return known


def underflow_is_ignored() -> bool:
    """True if NumPy ignores floating-point underflow here, which is its default."""
    return _error_state()[3]


def user_errors() -> Any:
    """`np.geterr()` of the user's code, also inside `at_users_line`."""
    own = np.geterr()
    return own if np.geterrcall() not in _logs else {k: "warn" if how == "log" else how for k, how in own.items()}


def _saying(words: int) -> Callable[..., Any]:
    def logged(run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        state, known = handling(), _known
        if state is not known[0] and state is not known[1]:
            known = _error_state()
        logs = known[words]
        if logs is state or state is known[2] or _extobj_contextvar is None:  # within such a call, or not to be logged
            return run(*args, **kwargs)
        token = _extobj_contextvar.set(logs)
        try:
            return run(*args, **kwargs)
        finally:
            _extobj_contextvar.reset(token)

    return logged


# `at_users_line(run, *args, **kwargs)` runs code of the library whose floating-point warnings are to name the user's
# line; `of_scalars` also an operator between scalars, of which they say "scalar divide" for the ufunc's "divide".
at_users_line, of_scalars = _saying(1), _saying(2)


def catches_warnings(before: object) -> NeedsLoop | None:
    """An error for calls made after the user replaced the filters `before` (other than by "ignore"); else None."""
    filters = user_filters()
    if filters is before or (filters and filters[0][0] == "ignore"):
        return None
    return NeedsLoop("an example catches warnings, which a batched call gives elsewhere", instead=WARNINGS_OUTSIDE)


def hide_frames(error: BaseException) -> None:
    """Remove the library's frames from the traceback of an error and of its causes and contexts, in place.

    Public functions that run the user's code call this in `except`, then use a bare `raise`, which keeps the new
    traceback and adds no entry for its own frame. What remains is the user's call and the frames of the user's function
    that led to the error, including NumPy's. The error, its notes and its causes are not changed.
    `ab.options(traceback="full")` keeps all frames.

    Source: JAX's traceback filtering (jax._src.traceback_util), which removes frames in the same way.

    >>> def fails():
    ...     raise ValueError("bad")
    >>> try:
    ...     fails()
    ... except ValueError as error:
    ...     hide_frames(error)
    ...     print(error.__traceback__.tb_next.tb_frame.f_code.co_name)
    fails
    """
    _note_what_is_taken(error)
    if config.traceback == "full":
        return
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _user_frames(each.__traceback__)
            found += [each.__cause__, each.__context__]


def _note_what_is_taken(error: BaseException) -> None:
    """Say what the layer takes in whose call an error was raised, or the public function whose call does not fit."""
    note, call = "", None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code, names = frame.f_code, frame.f_locals
        layer: Any = names.get("self")
        if code.co_name == "__call__" and hasattr(type(layer), "_ab_takes"):
            note = f"{layer!r} takes {layer._ab_takes.format(*layer._made_from())}"
            taken = {"xs", "x", "ids", "context"}.intersection(code.co_varnames[: code.co_argcount])
            given = [names[name] for name in sorted(taken, reverse=True) if names[name] is not None]
            with contextlib.suppress(ValueError):  # a list of arrays that differ in shape
                arrays = [np.asarray(each) for each in given if not is_boxed(each)]
                got = [_OF_WORDS if x.dtype.kind in "USO" else f"{x.dtype} of shape {x.shape}" for x in arrays]
                note += f"; got {' and '.join(got)}" if got else ""
        if type(error) in (IndexError, np.exceptions.AxisError) and code.co_filename.startswith(f"{_PACKAGE}ops"):
            given = [layer, names.get("x"), *names.get("args", ())]
            if any(getattr(each, "region", each) is None for each in given if each is not None):
                note = "indices and axes of a batch are each example's: axis=-1 is its last, x.example(i) is one"
        if code.co_name == "call" and code.co_filename == __file__:  # in `hiding_frames`
            call = [names[name] for name in ("function", "args", "kwargs")]
            note = (_what_would_fit(*call) if type(error) is TypeError else "") or note
        elif not is_library(code.co_filename):
            call = None
    is_bare = type(error).__module__ in ("builtins", "numpy._core._exceptions") and not note
    if call and is_bare and code.co_filename != __file__ and code.co_code[frame.f_lasti] != dis.opmap["RAISE_VARARGS"]:
        note = _what_was_given(*call)
    if note and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _what_would_fit(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What a function or class takes, and what to write for other libraries' names, if a call does not fit; else ""."""
    if function.__name__ == "__call__" and isinstance(args[0], type):
        function, args = args[0], args[1:]
    names = inspect.signature(function).parameters
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        says = [f"{function.__name__} takes {', '.join(name for name in names if name not in ('self', 'cls'))}"]
        says += [f"all in one: {function.__name__}([...])"] if len(names) == 1 < len(args) else []
        for name, hint in [(each, KEYWORDS[each]) for each in kwargs if each not in names and each in KEYWORDS]:
            hint = f"write {hint}" if hint in names else KEYWORDS.get(hint, hint)
            says += [f"for {name}: {hint}"] if " " in hint else []
        return "; ".join([*says, *getattr(function, "_ab_advice", ())])
    return ""


def _what_was_given(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call; "" if a function is among them, which may be what fails."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    shown = [
        f"{k}={x!r:.60}" if type(x) in PLAIN else f"{k} of {type(x).__name__}" for k, x in given.items() if k != "self"
    ]
    said = f"{function.__qualname__.removesuffix('.__init__')} got {', '.join(shown)}"
    return "" if any(map(callable, given.values())) else said


KEYWORDS: dict[str, str] = {}  # filled by `facts.other_libraries`
_OF_WORDS = "words; ab.Vocabulary or ab.hash_keys turns them into numbers"


def hiding_frames(function: F) -> F:
    """Decorator for public functions: apply `hide_frames` to any exception that the function raises.

    >>> hiding_frames(np.sum)([1, 2])
    np.int64(3)
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    return cast(F, call)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        file, module = trace.tb_frame.f_code.co_filename, trace.tb_frame.f_globals.get("__name__") or ""
        is_generated = file == "<string>" and module.startswith("autobatch.")  # a dataclass's methods
        if not (file.startswith(_PACKAGE) or is_generated or file == contextlib.__file__):  # the last: our decorators
            kept.append(trace)
        trace = trace.tb_next
    rebuilt: Any = lambda rest, each: TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return functools.reduce(rebuilt, reversed(kept), None)


type(config).__setattr__ = hiding_frames(type(config).__setattr__)  # type: ignore[method-assign]
