"""The rows that a worker's part of a batch looks up: `KeyColumns` predicts their keys, `PulledTable` holds the rows.

The user's function says which keys a batch will look up, or the look-ups of earlier batches showed it. A `PulledTable`
takes the place of a sharded variable in a worker's loss.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.core.pytree import flatten, paths
from autobatch.errors import OptionError, UnsupportedError
from autobatch.ray.shard import isin_keys
from autobatch.tables.keyed.keyed_table import KeyedTable
from autobatch.tables.protocol import Context
from autobatch.tables.row_access import LocatedRows
from autobatch.tables.sparse import SparseRows, first_seen


class KeyColumns:
    """Predicts the keys of batches, so that their rows are pulled before they are looked up.

    Predictions change no result: rows of other keys are pulled when they are looked up.

    Args:
        given: `keys(batch)` returns a dict of integers, arrays or batches of them, by variable name. None: once all
            integers of a column were looked up in a variable, that column is taken for the variable's keys.
    """

    __slots__ = ("_columns", "_given")

    def __init__(self, given: Callable[[Any], dict[str, Any]] | None = None) -> None:
        self._given = given
        self._columns: dict[str, dict[str, bool]] = {}

    def predicted(self, batch: object, dtypes: dict[str, np.dtype]) -> dict[str, np.ndarray]:
        """(n,) distinct predicted keys, by variable name; variables without a prediction are left out."""
        found: dict[str, list[np.ndarray]] = {name: [] for name in dtypes}
        if self._given is not None:
            for name, keys in self._given(batch).items():
                if name not in found:
                    raise OptionError(f"keys(batch) names {name!r}; the variables are {list(found)}")
                found[name] += [numbers for _, numbers in integer_leaves(keys)]
        elif self._columns:
            for path, numbers in integer_leaves(batch):
                for name, columns in self._columns.items():
                    if name in found and columns.get(path):
                        found[name].append(numbers)
        return {
            name: first_seen(np.concatenate([each.astype(dtypes[name], copy=False) for each in parts]))[0]
            for name, parts in found.items()
            if parts and sum(map(len, parts))
        }

    def learn(self, name: str, batch: object, asked: list[np.ndarray]) -> None:
        """Learn which columns hold a variable's keys, from the keys that a batch, predicted in part, looked up."""
        if self._given is not None:
            return
        columns = self._columns.setdefault(name, {})
        for path, numbers in integer_leaves(batch):
            if len(numbers) and columns.get(path, True):
                columns[path] = bool(isin_keys(numbers.astype(asked[0].dtype), asked).all())


def integer_leaves(tree: object) -> Iterator[tuple[str, np.ndarray]]:
    """(path, (n,) integers) of each array or batch of integers in a tree, or in a list of trees, joined by path."""
    found: dict[str, list[np.ndarray]] = {}
    for part in tree if isinstance(tree, list) else [tree]:
        leaves, structure = flatten(part)
        for path, leaf in zip(paths(structure), leaves, strict=True):
            numbers = _numbers(leaf)
            if numbers is not None:
                found.setdefault(path, []).append(numbers)
    for path, arrays in found.items():
        yield path, np.concatenate(arrays)


def _numbers(leaf: object) -> np.ndarray | None:
    """The integers of a leaf, flat and without padding; None if it holds anything else."""
    while isinstance(leaf, PackedBatch):
        leaf = leaf.values
    if isinstance(leaf, MaskedBatch):
        leaf = leaf.data[leaf.mask] if leaf.is_ragged else leaf.data
    if isinstance(leaf, Batch | bool):
        return None
    if isinstance(leaf, int):
        leaf = np.array(leaf) if -(2**63) <= leaf < 2**63 else None
    if not isinstance(leaf, np.ndarray | np.integer) or leaf.dtype.kind not in "iu":
        return None
    return np.asarray(leaf).reshape(-1)


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
