"""The one way a kernel is compiled.

A kernel is compiled for a set of argument types when it is first called with them, never at import, and kept in the
disk cache beside its module. It runs without the GIL. `NUMBA_DISABLE_JIT=1` leaves it the plain Python function, so
coverage and the debugger reach inside.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

__all__ = ["OPTIONS", "jit", "ready_to_load"]

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

F = TypeVar("F", bound=Callable[..., Any])


def ready_to_load(context: Any) -> None:
    """Name to LLVM what code that is compiled may call: Numba's memory, and the secrets of its hashes.

    Numba itself calls `context.refresh()`, which reads in all that could be compiled, SciPy and extensions of other
    libraries among it: half a second of a process that only loads what is there. Compiling calls it still.
    """
    rtsys.initialize(context)
    importlib.import_module("numba.cpython.hashing")


class _Cache(FunctionCache):
    """Numba's cache on disk, from which a kernel is loaded without reading in what compiles others."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        ready_to_load(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class Kernel:
    """A function that is given to Numba when it is first called, or met in another kernel: not at import, which that
    would make a fifth slower."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        functools.update_wrapper(self, function)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """What Numba makes of it; a package and a user cache that are both read-only leave it uncached on disk."""
        dispatcher = numba.njit(**OPTIONS)(self.py_func)
        with contextlib.suppress(RuntimeError):  # Numba found no directory that it may write its cache to
            dispatcher._cache = _Cache(self.py_func)
            dispatcher._compilation_chain_init_hook = lambda: None  # what compiles does it itself
        return dispatcher

    @property
    def _numba_type_(self) -> Any:
        return numba.typeof(self.dispatcher)

    @property
    def signatures(self) -> list[Any]:
        """The argument types that it is compiled for by now."""
        return self.dispatcher.signatures if "dispatcher" in vars(self) else []

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)


def jit(function: F) -> F:
    """Compile a kernel on first use: strict IEEE arithmetic, NumPy's division, no GIL, cached on disk."""
    if numba.config.DISABLE_JIT:  # integers wrap and floats overflow without a word, as in compiled code
        return np.errstate(all="ignore")(function)
    kernel: Any = Kernel(function)
    return kernel
