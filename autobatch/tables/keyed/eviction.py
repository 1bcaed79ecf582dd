"""Which keys make room for others: those of the oldest update, of the fewest updates or of the smallest row."""

from typing import Any

import numpy as np

from autobatch.errors import OptionError
from autobatch.kernels.keys import DEAD
from autobatch.tables.keyed.row_store import RowStore

EVICTIONS = ("lru", "lfu", "norm")
_LARGE = 1 << 16  # rows from which more than asked for are taken out, so that not every step looks at all of them
_SHARE = 8  # then a 256th of the table


def check_eviction(eviction: Any) -> str | None:
    """Refuse what is no way to choose.

    Raises:
        OptionError: says which there are.
    """
    if eviction is not None and eviction not in EVICTIONS:
        raise OptionError(f"eviction={eviction!r}; expected one of {', '.join(EVICTIONS)}, or None to refuse new keys")
    return eviction


def victims(store: RowStore, eviction: str, wanted: int, kept: np.ndarray) -> np.ndarray:
    """The rows to take out, at least as many as wanted; of equal ones those of the least keys.

    Args:
        kept: rows that stay.

    Raises:
        MemoryError: that leaves too few.
    """
    excluded = np.zeros(store.high, np.bool_)
    excluded[kept] = True
    available = len(store) - len(kept)
    if wanted > available:
        raise MemoryError(
            f"one step names {wanted - available} keys more than the table's capacity; give it a larger capacity, or "
            "take smaller batches"
        )
    if len(store) > _LARGE:
        wanted = min(max(wanted, len(store) >> _SHARE), available)
    scores = _scores(store, eviction)
    rows = np.flatnonzero((store.versions != DEAD) & ~excluded)
    found = scores[rows]
    limit = np.partition(found, wanted - 1)[wanted - 1]
    out, ties = rows[found < limit], rows[found == limit]
    if wanted - len(out) < len(ties):
        ties = ties[np.argsort(store.row_keys[ties], kind="stable")[: wanted - len(out)]]
    return np.concatenate([out, ties])


def _scores(store: RowStore, eviction: str) -> np.ndarray:
    """(rows,) uint32 in the order in which rows go."""
    if eviction == "lru":
        return store.versions
    if eviction == "lfu":
        return store.counts
    rows = store.rows[: store.high]
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float32)
    return np.ascontiguousarray(squares).view(np.uint32)  # of floats that are not negative, the order of their bits
