"""What surrounds a recorded call beside its operands: how NumPy handles floating-point errors there, and warnings.

A launch happens later and elsewhere, so a call that was recorded inside of `np.errstate` carries its handling along.
Filters of `warnings.catch_warnings` are the whole process's: what is caught there cannot be launched elsewhere.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.errors import NeedsLoop

__all__ = ["catches_warnings", "handling"]

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


def catches_warnings(before: Any) -> NeedsLoop | None:
    """Why a call cannot be recorded here, if the filters that were in force `before` have been replaced."""
    filters = warnings.filters
    if filters is before or (filters and filters[0][0] == "ignore"):
        return None
    return NeedsLoop("an example catches warnings, which a batched call gives elsewhere")
