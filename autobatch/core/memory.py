"""Memory management of a run: allocator and collector settings, operands kept for backward, interrupt-safe writes.

- A run allocates and frees thousands of buffers; the C library keeps freed memory for reuse (`keep_freed_memory`).
- Recording makes many objects and no garbage, which the cyclic collector would scan in vain (`collector_paused`).
- Operands of ops are kept for the backward pass: by reference inside a launch or a lock-step run, where all code is the
  library's and never writes into what it has read (`library_code`); else as a copy, since the user's next statement may
  write into them (`SavedArrays`).
- Numba is imported whole, even if an interrupt comes (`import_whole`).
- A write into several arrays happens in all or none of them, even if an interrupt comes (`write_all`, `run_all`).
"""

import collections
import contextvars
import copy
import ctypes
import functools
import gc
import importlib
import itertools
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from autobatch.core.current_region import current_region


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next call instead of returning it to the system; runs once.

    A call allocates many values and then frees them all. glibc maps each array above 128 KiB separately and unmaps it
    when it is freed, so each call would fault all pages in again (which can cost more than the arithmetic). glibc
    raises that threshold to the size of the largest mapped block freed so far, up to 32 MiB, so one block of that size
    is allocated and freed here, untouched. glibc also returns free memory at the top of the heap once it exceeds twice
    that threshold; here 1 GiB is kept, unless the environment sets glibc's options. Other allocators are not affected.
    """
    np.empty((1 << 25) - (1 << 13), np.uint8)
    if sys.platform == "linux" and not {"MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            # A medium-sized training step frees hundreds of MiB at its end.
            library.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD in glibc's malloc.h


class collector_paused:  # noqa: N801 - a context manager without the cost of a generator
    """Disable the cyclic garbage collector for a block; re-enable it only if it was on."""

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._was_on:
            gc.enable()


F = TypeVar("F", bound=Callable[..., Any])

_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}

_in_library: contextvars.ContextVar[bool] = contextvars.ContextVar("autobatch_ours", default=False)


def library_code(call: F, is_library: bool = True) -> F:
    """Decorator for code that never writes into arrays it has read, so that `SavedArrays` need not copy.

    Each call runs in its own context: no interrupt leaks the mark. `is_library=False` unmarks the user's code within.
    """

    def inside(*args: Any, **kwargs: Any) -> Any:
        _in_library.set(is_library)
        return call(*args, **kwargs)

    @functools.wraps(call)
    def run(*args: object, **kwargs: object) -> Any:
        return contextvars.copy_context().run(inside, *args, **kwargs)

    return run  # type: ignore[return-value]


class SavedArrays(dict[int, tuple[np.ndarray, np.ndarray]]):
    """Returns values that later writes into the arrays do not affect: copies, if a write is possible.

    A large array that is given again unchanged is copied only once: {its id: (the array, its copy)}.

    >>> buffer = np.zeros(2)
    >>> now = SavedArrays()(buffer)
    >>> buffer[:] = 1.0
    >>> now
    array([0., 0.])
    """

    __slots__ = ()

    def __call__(self, value: Any) -> Any:
        """The current value of a plain array, or of a handle of another interpreter."""
        if _in_library.get() or current_region() is not None:
            return value
        if type(value) is not np.ndarray:
            return copy.copy(value) if hasattr(value, "_ab_rebind") else value
        if value.base is None and not value.flags.writeable:
            return value
        if value.nbytes < 8192:  # bytes; copying a smaller array is as fast as looking for an existing copy
            return value.copy()
        _, known = self.get(id(value), (None, None))
        if known is None or not _same(value, known):
            known = value.copy("K")
            self[id(value)] = value, known  # holds the array too, so that its id is not reused
        return known


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """True if two arrays hold the same bits; compared by `==` for item sizes without an integer type."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = _BITS.get(a.dtype.itemsize)
    return np.array_equal(a, b) if bits is None else np.array_equal(a.view(bits), b.view(bits))


def write_all(writes: Iterator[tuple[Any, Any, Any]]) -> None:
    """`array[index] = value` for each (array, index, value), in one C call, so that no interrupt comes in between.

    >>> a, b = np.zeros(2), np.zeros(3)
    >>> write_all(iter([(a, ..., 1.0), (b, 0, 2.0)]))
    >>> a, b
    (array([1., 1.]), array([2., 0., 0.]))
    """
    collections.deque(itertools.starmap(operator.setitem, writes), maxlen=0)


def call_all(calls: Iterable[tuple[Any, ...]]) -> None:
    """`function(*arguments)` for each (function, *arguments); of functions of C's, no interrupt comes in between.

    >>> numbers = []
    >>> call_all([(numbers.append, 1), (numbers.extend, [2, 3])])
    >>> numbers
    [1, 2, 3]
    """
    collections.deque(itertools.starmap(operator.call, calls), maxlen=0)


def run_all(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run repeatable calls that write, and return their results; an interrupt is raised only after the last one."""
    results: list[Any] = []
    try:
        for call in calls:
            results.append(call())
    except BaseException:
        for call in calls[len(results) :]:
            call()
        raise
    return results


def import_whole(name: str) -> Any:
    """Import a module that imports Numba, whole or not at all: Numba cannot be imported from where it was left.

    A Ctrl-C takes effect at the end. Anything else that is raised removes the modules that are new, so that the next
    import begins again. The collector is off: collections over the modules' objects took a third of the time.
    """
    known = set(sys.modules)
    handler: Any = signal.getsignal(signal.SIGINT)
    interrupts: list[Any] = []
    defers = callable(handler) and threading.current_thread() is threading.main_thread()
    if defers:
        signal.signal(signal.SIGINT, lambda *given: interrupts.append(given))
    try:
        with collector_paused():
            return importlib.import_module(name)
    except BaseException:
        for each in sys.modules.keys() - known:
            package = each.partition(".")[0]
            if package not in sys.stdlib_module_names and package != "numpy":  # which loads once in a process
                del sys.modules[each]
        raise
    finally:
        if defers:
            signal.signal(signal.SIGINT, handler)
            if interrupts:
                handler(*interrupts[0])


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """True if the arrays have elements in common, or if that is too hard to decide.

    >>> x = np.zeros((3, 4))
    >>> overlap(x[:, :2], x[:, 1:]), overlap(x[:, :2], x[:, 2:])
    (True, False)
    """
    try:
        # NumPy tries so many candidates for an element that both have.
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
