"""What may be kept by reference until the backward walk: values that no code of the user's can write into meanwhile.

Inside of a launch and of a lock-step run all code is ours, and writes into nothing that it has read. Everywhere else
the next statement may write into an array that an op has just read.
"""

import contextlib
import contextvars
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.core.lanes import current_region

__all__ = ["Kept", "ours"]

_LARGE = 8192  # bytes; a copy of less takes no longer than to find out whether there is one
_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}

_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("autobatch_ours", default=False)


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """A run of code that writes into nothing it has read."""
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


class Kept:
    """Values as they were when they were given here, whatever is written into them later.

    A large array that is given again and has not changed is copied once.

    >>> buffer = np.zeros(2)
    >>> now = Kept()(buffer)
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
