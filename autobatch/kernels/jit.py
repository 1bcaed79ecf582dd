"""The one way a kernel is compiled.

A kernel is compiled for a set of argument types when it is first called with them, never at import, and kept in the
disk cache beside its module. It runs without the GIL. `NUMBA_DISABLE_JIT=1` leaves it the plain Python function, so
coverage and the debugger reach inside.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

F = TypeVar("F", bound=Callable[..., Any])


class Kernel:
    """A function that is given to Numba when it is first called, or met in another kernel: not at import, which that
    would make a fifth slower."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        functools.update_wrapper(self, function)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """What Numba makes of it; a package and a user cache that are both read-only leave it uncached on disk."""
        try:
            return numba.njit(cache=True, **OPTIONS)(self.py_func)
        except RuntimeError:  # Numba found no directory that it may write its cache to
            return numba.njit(**OPTIONS)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return numba.typeof(self.dispatcher)

    @property
    def signatures(self) -> list[Any]:
        """The argument types that are compiled by now."""
        return self.dispatcher.signatures if "dispatcher" in vars(self) else []

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)


def jit(function: F) -> F:
    """Compile a kernel on first use: strict IEEE arithmetic, NumPy's division, no GIL, cached on disk."""
    if numba.config.DISABLE_JIT:  # integers wrap and floats overflow without a word, as in compiled code
        return np.errstate(all="ignore")(function)
    kernel: Any = Kernel(function)
    return kernel
