"""`PulledTable`: takes the place of a sharded variable in a worker's loss, with the rows of its part of a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.errors import UnsupportedError
from autobatch.tables.keyed.keyed_table import KeyedTable
from autobatch.tables.protocol import Context
from autobatch.tables.row_access import LocatedRows
from autobatch.tables.sparse import SparseRows, first_seen


class PulledTable(KeyedTable):
    """A table of the rows that were pulled for a step; a missing key is pulled when it is looked up.

    Args:
        like: a variable of the same dim, dtype and key dtype. pull: `pull(keys)` returns the rows of distinct keys.

    Attributes:
        asked: the keys of each look-up since `fill`.
    """

    __slots__ = ("_keys", "_pull", "_rows", "asked", "pulled_late")

    def __init__(self, like: Any, pull: Callable[[np.ndarray], np.ndarray]) -> None:
        self._take_settings(like)
        self._pull = pull
        self.pulled_late = 0
        self.fill(np.empty(0, self.key_dtype), np.empty((0, self.dim), self.dtype))

    def fill(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Replace all rows by these.

        Args:
            keys: (n,) distinct. rows: (n, dim).
        """
        self._keys, self._rows = np.ascontiguousarray(keys).view(np.int64), rows
        self.asked: list[np.ndarray] = []

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(rows that were pulled, dim)."""
        return len(self._keys), self.dim

    def _ab_locate(self, ids: np.ndarray, context: Context | None) -> LocatedRows:
        keys = np.ascontiguousarray(ids).view(np.int64)
        self.asked.append(keys.view(self.key_dtype))
        places = self._places(keys)
        missing = places >= len(self._keys)
        if missing.any():
            late = first_seen(keys[missing])[0]
            rows = self._pull(late.view(self.key_dtype))
            self.pulled_late += len(late)
            self._keys, self._rows = np.concatenate([self._keys, late]), np.concatenate([self._rows, rows])
            places = self._places(keys)
        base, size = self._rows.__array_interface__["data"][0], self.dim * self.dtype.itemsize
        return LocatedRows(
            (base, size), places, self.dtype.str[1:], self.dim, False, size, self._rows.nbytes, self._rows
        )

    def _places(self, keys: np.ndarray) -> np.ndarray:
        """The row index of each key; for a missing key, an index past the last row."""
        return first_seen(np.concatenate([self._keys, keys]))[1][len(self._keys) :]

    def _ab_gradient(self, ct: Any, taken: set[int]) -> SparseRows:
        if not self.trainable:
            raise AttributeError("a table for look-ups only has no gradient")
        if ct is None:
            return SparseRows.trusted(np.empty(0, self.key_dtype), np.empty((0, self.dim), self.dtype), None)
        if not isinstance(ct, SparseRows):
            self._unsupported()
        found = ct.coalesce()
        return SparseRows.trusted(found.ids.astype(self.key_dtype, copy=False), found.rows, None)

    def _unsupported(self, *_: object, **__: object) -> Any:
        raise UnsupportedError(
            "in ab.ray.train a worker has the rows of its examples' keys only: look keys up; the whole variable, its "
            "length and writes into it are for outside of the loss"
        )

    row_addresses = keys = contains = assign = write = __array__ = __len__ = _unsupported
    _inserting = _assigning = _removing = _shrinking = _restoring = insert = remove = shrink = _unsupported
    locks = property(_unsupported)

    def __repr__(self) -> str:
        return f"PulledTable({self.shape[0]} rows, dim={self.dim}, dtype={self.dtype})"
