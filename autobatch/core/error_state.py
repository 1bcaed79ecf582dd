"""Runs that must not warn, since their values are nobody's; and the filters of warnings outside of them.

`warnings.filters` belong to the whole process. So threads are silent one at a time, and a thread that asks whether its
user has replaced the filters waits until no other one is.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.errors import NeedsLoop

__all__ = ["catches_warnings", "handling", "silence", "underflow_is_ignored", "users_filters"]

_silent = threading.RLock()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """No warning is given in here, of floating-point errors or any other.

    >>> with silence():
    ...     np.mean([])
    np.float64(nan)
    """
    with _silent, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def users_filters() -> Any:
    """`warnings.filters` as the user's code has them."""
    with _silent:
        return warnings.filters


_interned: dict[Any, Any] = {}


def _interned_errors() -> Any:
    state = tuple(np.geterr().values())
    return _interned.setdefault(state, state)


try:
    from numpy._core._ufunc_config import _extobj_contextvar  # type: ignore[attr-defined]
except ImportError:  # a NumPy that keeps it elsewhere: forty times slower
    handling: Callable[[], Any] = _interned_errors
else:
    handling = _extobj_contextvar.get  # an object that is the same as long as no errstate is entered or left

_last: tuple[Any, bool] = (None, False)


def underflow_is_ignored() -> bool:
    """Whether NumPy says nothing of a result too small for its dtype, as it does by default."""
    global _last
    state = handling()
    known, ignored = _last
    if known is not state:
        ignored = np.geterr()["under"] == "ignore"
        _last = state, ignored
    return ignored


def catches_warnings(before: Any) -> NeedsLoop | None:
    """Why a call cannot be recorded here, if the filters that were in force `before` have been replaced."""
    filters = users_filters()
    if filters is before or (filters and filters[0][0] == "ignore"):
        return None
    return NeedsLoop("an example catches warnings, which a batched call gives elsewhere")
