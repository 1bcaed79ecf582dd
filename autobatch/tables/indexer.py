"""`Indexer`: which positions of a list of ids name which row, in memory that is kept from one step to the next."""

from typing import Any, NamedTuple

import numpy as np

from autobatch.kernels import coalescing, rows

__all__ = ["Index", "Indexer"]


class Index(NamedTuple):
    """Ids taken apart; the arrays are the indexer's, valid until its next use.

    Attributes:
        unique: (u,) the distinct ids, in the order of first occurrence.
        inverse: (n,) for each position the number of its id among them.
        starts: (u + 1,) and positions: (n,): id k stands at positions[starts[k]:starts[k + 1]], in their order.
    """

    unique: np.ndarray
    inverse: np.ndarray
    starts: np.ndarray
    positions: np.ndarray


class Indexer:
    """Sorts the positions of a gradient by the row they name: a hash, a histogram, its prefix sum.

    It may be made once for each table and passed to every step, which then allocates nothing for it unless a step has
    more ids than any before. It is not for two threads at once.

    Args:
        capacity: how many ids to make room for at once.

    >>> index = Indexer()(np.array([7, 2, 7]))
    >>> index.unique, index.starts, index.positions
    (array([7, 2]), array([0, 2, 3]), array([0, 2, 1]))
    """

    __slots__ = ("_arrays", "_slots")

    def __init__(self, capacity: int = 0) -> None:
        self._arrays = np.empty((4, 0), np.int64)
        self._slots = np.empty(0, np.int64)
        self._reserve(capacity)

    @property
    def capacity(self) -> int:
        """For how many ids there is room."""
        return max(self._arrays.shape[1] - 1, 0)

    def _reserve(self, count: int) -> None:
        if count > self.capacity or not self._arrays.size:
            self._arrays = np.empty((4, count + 1), np.int64)
            self._slots = np.empty(_slots_for(count), np.int64)

    def __call__(self, ids: Any) -> Index:
        """Take (n,) int64 ids apart."""
        n = ids.shape[0]
        self._reserve(n)
        unique, inverse, starts, positions = self._arrays
        slots = self._slots[: _slots_for(n)]
        slots.fill(-1)
        count = rows.unique_first_seen(np.ascontiguousarray(ids), slots, inverse[:n], unique[:n])
        starts = starts[: count + 1]
        starts.fill(0)
        coalescing.group_positions(inverse[:n], starts, positions[:n])
        return Index(unique[:count], inverse[:n], starts, positions[:n])

    def __repr__(self) -> str:
        return f"Indexer(capacity={self.capacity})"


def _slots_for(count: int) -> int:
    return 1 << max(3, (2 * count).bit_length())
