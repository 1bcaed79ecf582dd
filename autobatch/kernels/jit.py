"""The one way a kernel is compiled.

A kernel is compiled for a set of argument types when it is first called with them, never at import, and kept in the
disk cache beside its module. It runs without the GIL. `NUMBA_DISABLE_JIT=1` leaves it the plain Python function, so
coverage and the debugger reach inside.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["jit"]

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel on first use: strict IEEE arithmetic, NumPy's division, no GIL, cached on disk.

    A package directory and a user cache directory that are both read-only leave the kernel uncached.
    """
    compiled: Any
    try:
        compiled = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # Numba found no directory that it may write its cache to
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
