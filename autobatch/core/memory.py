"""Memory of a run: what the C library and the collector are told, and what a backward walk may keep by reference.

- Buffers of a batch come and go by the thousand: the C library keeps freed memory for the next (`keep_freed_memory`).
- Recording makes many objects and no garbage, which the cyclic collector would only walk again (`collector_paused`).
- What an op has read is kept for the backward walk: by reference inside of a launch and of a lock-step run, where all
  code is the library's and writes into nothing that it has read (`library_code`); else as a copy, since the user's next
  statement may write into it (`KeptArrays`).
- What writes into several arrays writes into all or none of them, whatever interrupt comes (`write_all`, `complete`).
"""

import collections
import contextlib
import contextvars
import copy
import ctypes
import functools
import gc
import itertools
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from autobatch.core.current_region import current_region

_KEPT = 1 << 30  # bytes: a training step of middle size frees hundreds of MiB at its end
_TRIM_THRESHOLD = -1  # its number in glibc's malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next call instead of giving it back page by page; once.

    A call holds its values and then frees them all. glibc maps every array above 128 KiB from the system and
    unmaps it when it is freed, so each call would fault all its pages in again (which can cost more than the
    arithmetic). It raises that threshold to the size of the largest block that was ever freed, up to 32 MiB, so one
    block of that size, never touched, is allocated and freed here. And it gives back what is free at the end of its
    heap once that is twice as much; 1 GiB is kept, unless the environment has glibc's own settings. Other allocators
    are not affected.
    """
    np.empty((1 << 25) - (1 << 13), np.uint8)
    if sys.platform == "linux" and not {"MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_TRIM_THRESHOLD, _KEPT)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Leave the cyclic garbage collector off for a block, if it was on."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


F = TypeVar("F", bound=Callable[..., Any])

_LARGE = 8192  # bytes; a copy of less takes no longer than to find out whether there is one
_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}

_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("autobatch_ours", default=False)


def library_code(call: F) -> F:
    """A decorator of code that writes into nothing it has read.

    A call has a context of its own, so that no interrupt leaves it said of what comes after.
    """

    def inside(*args: Any, **kwargs: Any) -> Any:
        _ours.set(True)
        return call(*args, **kwargs)

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        return contextvars.copy_context().run(inside, *args, **kwargs)

    return run  # type: ignore[return-value]


class KeptArrays:
    """Values as they were when they were given here, whatever is written into them later.

    A large array that is given again and has not changed is copied once.

    >>> buffer = np.zeros(2)
    >>> now = KeptArrays()(buffer)
    >>> buffer[:] = 1.0
    >>> now
    array([0., 0.])
    """

    __slots__ = ("large",)

    def __init__(self) -> None:
        self.large: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, value: Any) -> Any:
        """A plain array, or one of another interpreter, as it is now."""
        if _ours.get() or current_region() is not None:
            return value
        if type(value) is not np.ndarray:
            return copy.copy(value) if hasattr(value, "_ab_rebind") else value
        if value.base is None and not value.flags.writeable:
            return value
        if value.nbytes < _LARGE:
            return value.copy()
        _, known = self.large.get(id(value), (None, None))
        if known is None or not _same(value, known):
            known = value.copy("K")
            self.large[id(value)] = value, known  # the array too, which keeps its id its own
        return known


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same bits, as far as integers of their size can tell."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = _BITS.get(a.dtype.itemsize)
    return np.array_equal(a, b) if bits is None else np.array_equal(a.view(bits), b.view(bits))


def write_all(writes: Iterator[tuple[Any, Any, Any]]) -> None:
    """`array[index] = value` for each (array, index, value): in one call of C, so that no interrupt comes between.

    >>> a, b = np.zeros(2), np.zeros(3)
    >>> write_all(iter([(a, ..., 1.0), (b, 0, 2.0)]))
    >>> a, b
    (array([1., 1.]), array([2., 0., 0.]))
    """
    collections.deque(itertools.starmap(operator.setitem, writes), maxlen=0)


def complete(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of repeatable writing calls; an interrupt between them is raised after the last."""
    results: list[Any] = []
    try:
        for call in calls:
            results.append(call())
    except BaseException:
        for call in calls[len(results) :]:
            call()
        raise
    return results
