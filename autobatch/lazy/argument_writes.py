"""Writes into an example's own arguments, which its caller sees afterwards as after the plain loop.

While the examples run, a write only gives the handle a new value. When all have run, the values go into the caller's
arrays; if one of these shares memory with another argument, the order of the writes counts and the loop decides.

What `np.asarray` gives out of the trace cannot be written to while there is anything left to compute from it: the
write is refused by NumPy, and the loop decides.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from autobatch.core.pytree import leaves

__all__ = ["Inputs"]

_SEVERAL = -2


class Inputs:
    """The caller's arrays and what was written to them.

    Attributes:
        in_order: whether all of them lie in C order, so that what is a view of one follows from its shape.
        written: (handle, array, example) of each argument that an example has written to.
        lent: read-only views of values, which the examples have outside of the trace.
    """

    __slots__ = ("_owners", "in_order", "lent", "written")

    def __init__(self) -> None:
        self._owners: dict[int, list[Any]] = {}
        self.in_order = True
        self.written: list[tuple[Any, Any, int]] = []
        self.lent: list[np.ndarray] = []

    def add(self, value: Any, example: int) -> None:
        """Note an argument of an example."""
        if type(value) is np.ndarray and value.ndim > 1 and not value.flags.c_contiguous:
            self.in_order = False
        owner = self._owners.setdefault(id(value), [value, example])
        if owner[1] != example:
            owner[1] = _SEVERAL

    def has(self, value: Any) -> bool:
        """Whether an array was noted as an argument."""
        owner = self._owners.get(id(value))
        return owner is not None and owner[0] is value

    def note_write(self, handle: Any) -> None:
        """A handle is about to get another value: remember it if what it holds is an argument."""
        owner = self._owners.get(id(handle.source))
        if owner is not None and owner[0] is handle.source:
            self.written.append((handle, *owner))

    def lend(self, value: np.ndarray) -> np.ndarray:
        """An array's view to give out of the trace."""
        if not value.flags.writeable:
            return value
        out = value.view()
        out.flags.writeable = False
        self.lent.append(out)
        return out

    def end_loans(self, results: Any) -> None:
        """Let what was lent be written to, and what of the results is a view of it."""
        if self.lent:
            owners = {id(x.base) for x in self.lent}
            views = [x for x in leaves(results) if type(x) is np.ndarray and id(x.base) in owners]
            for x in (*self.lent, *views):
                with contextlib.suppress(ValueError):  # of a view that was read-only before
                    x.flags.writeable = True

    def forget_writes(self) -> None:
        """Let go of the handles that were written to."""
        self.written.clear()

    def clear(self) -> None:
        self._owners.clear()
        self.written.clear()
        self.lent.clear()

    def given_back(self, shared: Iterable[Any]) -> list[tuple[Any, Any, Any]] | None:
        """(array, where, value) of the caller's arrays that were written to; None where they overlap others."""
        if not self.written:
            return []
        if any(example == _SEVERAL for _, _, example in self.written) or self._overlap(shared):
            return None
        found = []
        for handle, target, _ in self.written:
            value = handle.trace.value(handle)
            if hasattr(target, "_ab_rank") or not hasattr(value, "_ab_rank"):  # an array cannot hold a gradient
                found.append((target, ..., value))
        return found

    def _overlap(self, shared: Iterable[Any]) -> bool:
        arrays = [x for x, _ in self._owners.values() if type(x) is np.ndarray and x.size]
        arrays += [x for x in shared if type(x) is np.ndarray and x.size]
        written = {id(array) for _, array, _ in self.written}
        bounds = sorted((*np.lib.array_utils.byte_bounds(x), id(x) in written) for x in arrays)
        end, end_written = -1, -1
        for low, high, is_written in bounds:
            if low < (end if is_written else end_written):
                return True
            end = max(end, high)
            if is_written:
                end_written = max(end_written, high)
        return False
