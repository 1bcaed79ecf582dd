"""How NumPy handles floating-point errors here, known at the cost of looking at one object."""

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["handling", "underflow_is_ignored"]

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
