"""Eviction: which keys leave a full table: those with the oldest update, the fewest updates or the smallest row."""

from typing import Any

import numpy as np

from autobatch.errors import OptionError
from autobatch.kernels.hash_table import DEAD
from autobatch.tables.keyed.row_store import RowStore

EVICTIONS = ("lru", "lfu", "norm")
_LARGE = 1 << 16  # tables with more rows evict more than needed, so that not every step has to scan all rows:
_SHARE = 8  # at least 1 / 2**8 of the table


def check_eviction(eviction: Any) -> str | None:
    """Return `eviction` if it is valid.

    Raises:
        OptionError: it is not; the message lists the valid ones.
    """
    if eviction is not None and eviction not in EVICTIONS:
        raise OptionError(f"eviction={eviction!r}; expected one of {', '.join(EVICTIONS)}, or None to refuse new keys")
    return eviction


def victims(store: RowStore, eviction: str, wanted: int, kept: np.ndarray, key_dtype: np.dtype) -> np.ndarray:
    """Choose at least `wanted` rows to evict; ties are broken by the least key.

    Args:
        kept: rows that must stay.

    Raises:
        MemoryError: there are not so many other rows.
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
        ties = ties[np.argsort(store.row_keys[ties].view(key_dtype), kind="stable")[: wanted - len(out)]]
    return np.concatenate([out, ties])


def _scores(store: RowStore, eviction: str) -> np.ndarray:
    """An unsigned score for each row; rows with the lowest scores are evicted first."""
    if eviction == "lru":
        return store.versions
    if eviction == "lfu":
        return store.counts
    rows = store.rows[: store.high]
    wide = np.result_type(rows.dtype, np.float32)
    squares = np.einsum("ij,ij->i", rows, rows, dtype=wide)
    return np.ascontiguousarray(squares).view(f"u{wide.itemsize}")  # nonnegative floats are ordered like their bits
