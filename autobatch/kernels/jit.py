"""`jit`: the decorator by which every kernel is compiled, on its first call, and cached on disk.

A kernel is compiled for a set of argument types when it is first called with them, never at import, and cached in a
file beside its module (`disk_cache.py`). It runs without the GIL. With `NUMBA_DISABLE_JIT=1` it stays a plain Python
function, for coverage and debuggers.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numba.core.types import unliteral  # type: ignore[attr-defined]

from autobatch.kernels.disk_cache import MachineCodeCache

# No kernel is handed to C, or to another as a value.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

F = TypeVar("F", bound=Callable[..., Any])


def uninterrupted(call: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Run `call(*args)` to its end even if an interrupt ends the wait for its result.

    A Ctrl-C during compilation would leave Numba's state unusable. Interrupts go to the main thread, so another thread
    makes the call. Its time is then not counted by this thread's clock (`core.current_region.clock`) either, which
    compares ways to run a function: compilation happens only once.
    """
    if global_compiler_lock.is_locked():
        return call(*args, **kwargs)
    done: Future[Any] = Future()
    helper = threading.Thread(target=_finish, args=(done, call, args, kwargs), name="autobatch compiles", daemon=True)
    try:
        helper.start()
    except RuntimeError:  # no thread is allowed, or there is no memory for one
        return call(*args, **kwargs)
    try:
        return done.result()
    finally:
        del done  # whose exception holds this frame


def _finish(done: "Future[Any]", call: Callable[..., Any], args: Any, kwargs: Any) -> None:
    try:
        done.set_result(call(*args, **kwargs))
    except BaseException as error:
        done.set_exception(error)


class Kernel:
    """A function that is passed to Numba only when it is first called, or used in another kernel; doing so at import
    would make the import a fifth slower."""

    def __init__(self, function: Callable[..., Any], **options: object) -> None:
        self.py_func = function
        self.options = OPTIONS | options
        functools.update_wrapper(self, function)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The Numba dispatcher for calls from Python."""
        made = self._dispatcher(**self.options)
        made._compile_for_args = functools.partial(uninterrupted, made._compile_for_args)
        return made

    @functools.cached_property
    def nested(self) -> Any:
        """The Numba dispatcher for calls from other kernels, without the Python wrapper, a third of compile time.

        A constant among the arguments is taken as any number: Numba would compile the kernel for each constant.
        """
        made = self._dispatcher(**self.options, no_cpython_wrapper=True)
        standard = made.get_call_template
        made.get_call_template = lambda args, named: standard(tuple(map(unliteral, args)), named)
        return made

    def _dispatcher(self, **options: object) -> Any:
        """Make a dispatcher; it is not cached on disk if both the package and the user cache are read-only."""
        made: Any = numba.njit(**options)(self.py_func)
        with contextlib.suppress(RuntimeError, OSError):  # Numba found no directory that it may write its cache to
            made._cache = MachineCodeCache(self.py_func, repr(options))
            made._compilation_chain_init_hook = lambda: None  # it would read in what compiles; compiling does so itself
        return made

    @property
    def _numba_type_(self) -> Any:
        return numba.typeof(self.nested)

    @property
    def signatures(self) -> list[Any]:
        """The argument types for which the kernel has been compiled for calls from Python."""
        return self.dispatcher.signatures if "dispatcher" in vars(self) else []

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)


def jit(function: F | None = None, *, reorders: bool = False) -> Any:
    """Compile a kernel on first use: strict IEEE arithmetic, NumPy's division, no GIL, cached on disk.

    Args:
        function: the kernel.
        reorders: terms of sums may be added in another order, so that several are added at once.
    """
    if function is None:
        return functools.partial(jit, reorders=reorders)
    if numba.config.DISABLE_JIT:  # integers wrap and floats overflow without a word, as in compiled code
        return np.errstate(all="ignore")(function)
    return Kernel(function, **({"fastmath": {"reassoc"}} if reorders else {}))
