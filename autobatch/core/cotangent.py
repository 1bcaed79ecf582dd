"""Cotangents that are not stored densely, and how they add up.

A vjp may return an array or a `SparseCotangent`: something that knows how to add itself into a dense buffer. The tape
keeps contributions in a list and combines them once, so reading T rows of one buffer costs T rows backward, not T
buffers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Scatter", "SparseCotangent", "total"]


class SparseCotangent:
    """The cotangent of an array of which only some elements were read.

    Attributes:
        shape: the shape of the whole array.
        dtype: its dtype.
    """

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: np.dtype

    def add_to(self, dense: np.ndarray) -> None:
        """Add into a dense array of `shape`, in place."""
        raise TypeError(f"{type(self).__name__} does not say how it adds up")

    def to_dense(self) -> np.ndarray:
        out = np.zeros(self.shape, self.dtype)
        self.add_to(out)
        return out

    @staticmethod
    def combine(parts: Sequence[Any]) -> Any:
        """The sum of parts of this one class; by default dense."""
        out = parts[0].to_dense()
        for part in parts[1:]:
            part.add_to(out)
        return out


class Scatter(SparseCotangent):
    """`values` at `array[index]`, zero elsewhere; what the vjp of a read returns.

    Args:
        index: anything that indexes a NumPy array; `unique` says that no element is named twice.
        values: the cotangent of `array[index]`, plain or of an interpreter below.
    """

    __slots__ = ("index", "values", "shape", "dtype", "unique")

    def __init__(self, index: Any, values: Any, shape: tuple[int, ...], dtype: Any, *, unique: bool) -> None:
        self.index = index
        self.values = values
        self.shape = shape
        self.dtype = dtype
        self.unique = unique

    def add_to(self, dense: np.ndarray) -> None:
        if self.unique:
            dense[self.index] += self.values
        else:
            np.add.at(dense, self.index, self.values)


def total(parts: Sequence[Any]) -> Any:
    """The sum of cotangent contributions: dense if any part is dense, else as its class combines.

    >>> total([np.ones(2), Scatter(1, 5.0, (2,), np.float64, unique=True)])
    array([1., 6.])
    """
    if len(parts) == 1:
        return parts[0]
    dense = [part for part in parts if not isinstance(part, SparseCotangent)]
    sparse = [part for part in parts if isinstance(part, SparseCotangent)]
    if not dense:
        kind = type(sparse[0])
        if all(type(part) is kind for part in sparse):
            return kind.combine(sparse)
        dense = [sparse.pop(0).to_dense()]
    out = dense[0] + dense[1] if len(dense) > 1 else dense[0]
    owned = len(dense) > 1 and type(out) is np.ndarray  # a fresh array, which may be added into
    for part in dense[2:]:
        if owned:
            np.add(out, part, out=out)
        else:
            out = out + part
    if sparse:
        if not owned:
            out = np.array(out)
        for part in sparse:
            part.add_to(out)
    return out
