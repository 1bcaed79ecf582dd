"""Falling back to a slower way of running: one warning per source line, an error where `strict` forbids it."""

import contextlib
import contextvars
import functools
import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType

from autobatch.core.config import config
from autobatch.errors import FallbackWarning, UnsupportedError

__all__ = ["fell_back", "forget_warnings", "noted_fallbacks", "user_line"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_warned: set[tuple[str, int, str]] = set()
_noted: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("autobatch_fallbacks", default=None)


@contextlib.contextmanager
def noted_fallbacks() -> Iterator[list[str]]:
    """Collect what falls back in this block, as "file:line: reason", instead of warning.

    >>> with noted_fallbacks() as found:
    ...     fell_back("np.median has no rule", where=("model.py", 3))
    >>> found
    ['model.py:3: np.median has no rule']
    """
    found: list[str] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


@functools.lru_cache(maxsize=4096)
def _is_library(filename: str) -> bool:
    return filename.startswith(_PACKAGE) or f"{os.sep}numpy{os.sep}" in filename


def user_line() -> tuple[str, int]:
    """(file, line) of the innermost running code that is neither this library nor NumPy."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not _is_library(filename):
            return filename, frame.f_lineno
        frame = frame.f_back
    return "<unknown>", 0


def fell_back(reason: str, where: tuple[str, int] | None = None, way: str = "as a loop over the examples") -> None:
    """Say that something does not run for all examples at once, and why.

    Args:
        reason: what cannot be done together.
        where: the file and line of the user's that it concerns; by default the line that runs.
        way: how it runs instead.

    Raises:
        UnsupportedError: under `strict`.
    """
    filename, line = where or user_line()
    if config.strict:
        other = "no loop over the examples" if way.startswith("as a loop") else "lock-step only"
        raise UnsupportedError(f"{filename}:{line}: {reason}; strict=True allows {other}")
    noted = _noted.get()
    if noted is not None:
        noted.append(f"{filename}:{line}: {reason}")
        return
    if not config.warn or (filename, line, reason) in _warned:
        return
    _warned.add((filename, line, reason))
    warnings.warn_explicit(f"{reason}; it runs {way}", FallbackWarning, filename, line)


def forget_warnings() -> None:
    """Let every source line warn again."""
    _warned.clear()
