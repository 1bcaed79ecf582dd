"""Transposed copies of the matrices that one backward walk multiplies by again and again.

BLAS reorders a transposed operand on every call, which for a product of few rows takes longer than the product. Within
a walk no matrix changes, so the second product by one makes a copy, and the others use it.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import numpy as np

__all__ = ["transposed", "walking"]

_walk: contextvars.ContextVar[dict[int, list[np.ndarray]] | None] = contextvars.ContextVar(
    "autobatch_walk", default=None
)


@contextlib.contextmanager
def walking() -> Iterator[None]:
    """A backward walk: copies live as long as it does."""
    token = _walk.set({})
    try:
        yield
    finally:
        _walk.reset(token)


def transposed(matrix: np.ndarray) -> np.ndarray:
    """`matrix.T`: a view of a plain matrix at first, a copy once a walk comes back to it."""
    known = _walk.get()
    if known is None:
        return matrix.T
    entry = known.get(id(matrix))
    if entry is None:
        known[id(matrix)] = [matrix]  # which keeps its id its own
        return matrix.T
    if len(entry) == 1:
        entry.append(np.ascontiguousarray(matrix.T))
    return entry[1]
