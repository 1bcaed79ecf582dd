"""Faults that tests plant in a call: an exception at a line that Python runs, an allocation that fails."""

import contextlib
import pathlib
import signal
import sys
from collections.abc import Callable

import numpy as np

import autobatch
from autobatch.core import diagnostics
from autobatch.core.memory import collector_paused
from autobatch.errors import UnsupportedError
from autobatch.program.source import PARSING

PACKAGE = str(pathlib.Path(autobatch.__file__).parent)
_ALLOCATORS = ("array", "ascontiguousarray", "concatenate", "empty", "empty_like", "full", "stack", "zeros")


class Left(BaseException):
    """What `left_at` raises."""


def left_at(event_number: int, call: Callable[[], object], where: str = "") -> bool:
    """Run `call` and raise at the so-manieth line that Python runs in the package; whether it came to that.

    Args:
        where: only in files whose path in the package has this in it.

    Not where locks are held: a trace, other than a signal, can leave a `with` before its lock is let go of. For two of
    the library's, which are held almost anywhere, that is made good.
    """
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or where not in file[len(PACKAGE) :]:
            return None
        if event == "line":
            count += 1
            if count == event_number:
                raise Left
        return trace

    before = sys.gettrace()
    try:
        with np.errstate(), collector_paused():  # else it may be a finaliser of another test's that is left
            sys.settrace(trace)
            try:
                call()
            finally:
                sys.settrace(before)
    except Left:
        return True
    finally:
        _free_locks()
    return False


def interrupted_at(number: int, call: Callable[[], object], event: str, files: str = PACKAGE) -> bool:
    """Run `call`, with a Ctrl-C at the so-manieth event that Python counts in these files; whether it came to that.

    Args:
        event: "line", or "call" for each call and each return, those of C's functions too.
        files: how their paths begin.
    """
    count = 0

    def at(frame, found, arg):
        nonlocal count
        if not frame.f_code.co_filename.startswith(files):
            return None
        # before a call of C a signal comes only by this trace: what a `finally` puts back would be left undone
        puts_back = found == "c_call" and arg.__name__ in ("__exit__", "set", "reset")
        if (event == "call" and not puts_back) or found == "line":
            count += 1
            if count == number:
                signal.raise_signal(signal.SIGINT)
        return at

    setter, getter = (sys.settrace, sys.gettrace) if event == "line" else (sys.setprofile, sys.getprofile)
    before, hook = getter(), sys.unraisablehook
    ignored = []
    try:
        with np.errstate(), collector_paused():
            sys.unraisablehook = ignored.append  # Python loses an interrupt in a generator that it closes
            setter(at)
            try:
                call()
            finally:
                setter(before)
    except KeyboardInterrupt:
        return True
    finally:
        sys.unraisablehook = hook
        _free_locks()
    assert count < number or ignored, "the interrupt was lost"
    return False


def _free_locks() -> None:
    """Let go of what a trace may have left before its `with` did: other threads would wait for it without end."""
    for lock in (diagnostics._silent, PARSING):
        while lock._is_owned():
            lock.release()


def without_memory_at(number: int, call: Callable[[], object]) -> bool:
    """Run `call` and let the so-manieth array that the library makes fail; whether it came to that."""
    left = number

    def failing(make, *args, **kwargs):
        nonlocal left
        if sys._getframe(2).f_code.co_filename.startswith(PACKAGE):
            left -= 1
            if left == 0:
                raise MemoryError
        return make(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name in _ALLOCATORS:
            original = getattr(np, name)
            setattr(np, name, lambda *args, original=original, **kwargs: failing(original, *args, **kwargs))
            stack.callback(setattr, np, name, original)
        with contextlib.suppress(MemoryError, UnsupportedError):  # under `strict` it is said in the latter
            call()
    return left <= 0
