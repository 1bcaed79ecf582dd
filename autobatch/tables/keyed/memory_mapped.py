"""A read-only variable over given arrays sorted by key, such as memory-mapped files, which opens without reading them.

It has no index: keys are found by binary search. Look-ups, `export` and so on are those of `EmbeddingVariable`.
"""

import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from autobatch.core.threads import run_parts, split_work
from autobatch.errors import UnsupportedError
from autobatch.kernels.hash_table import find_sorted
from autobatch.tables.keyed.row_store import StoredBlock
from autobatch.tables.keyed.variable import EmbeddingVariable

T = TypeVar("T")


def mapped_variable(settings: dict[str, Any], block: StoredBlock, beside: dict[str, np.ndarray]) -> EmbeddingVariable:
    """Make a read-only variable over arrays that do not change.

    Args:
        settings: the settings of the saved variable.
        block: all of its keys, ascending when viewed as int64. beside: its `arrays()`.
    """
    out = EmbeddingVariable.from_settings(settings | {"trainable": False, "insert_on": "update", "slots": []})
    out.restore_block(arrays=beside)
    out._store = SortedRows(block, out._store.initial)  # type: ignore[assignment]
    return out


def look_ups_only(table: EmbeddingVariable) -> EmbeddingVariable:
    """A read-only copy, in memory, of a variable."""
    store = table._store
    block = store.block(store.in_order(np.dtype(np.int64)), table.key_dtype)
    return mapped_variable(table._arguments(), block, table.arrays())


class SortedRows:
    """A read-only stand-in for a `RowStore`: look-ups work, changes are refused."""

    def __init__(self, block: StoredBlock, initial: Callable[[np.ndarray], np.ndarray]) -> None:
        self._block = block
        self.initial = initial
        self.lock = threading.RLock()
        self.row_keys = block.keys.view(np.int64)
        self.rows, self.versions, self.counts = (_read_only(x) for x in (block.rows, block.versions, block.counts))
        self.slots: dict[str, Any] = {}
        self.high = len(block.keys)
        self.nbytes = sum(array.nbytes for array in (block.keys, block.rows, block.versions, block.counts))

    def __len__(self) -> int:
        return self.high

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, int]:
        """(row of each key, or -1 if it is missing, (n,); number of missing keys)."""
        out = np.empty(len(keys), np.int64)
        parts = split_work(len(keys), len(keys) * 256)  # bytes read from memory to find a key, roughly
        run_parts(lambda part: find_sorted(keys, self.row_keys, out, *part), parts)
        return out, int((out < 0).sum())

    def read_consistently(self, read: Callable[[], T]) -> T:
        """Return `read()`; nothing ever changes."""
        return read()

    def alive(self) -> np.ndarray:
        """All row numbers."""
        return np.arange(self.high)

    def in_order(self, key_dtype: np.dtype) -> np.ndarray:
        """All row numbers, in ascending order of their keys."""
        return np.argsort(self.row_keys.view(key_dtype), kind="stable")

    def block(self, which: np.ndarray, key_dtype: np.dtype) -> StoredBlock:
        """These rows with their keys, slots, versions and counts."""
        found = self._block.take(which)
        return found._replace(keys=found.keys.view(key_dtype))

    def mark(self) -> int:
        """Always 1, since nothing changes."""
        return 1

    def changed_since(self, *_: object) -> None:
        """None: changes are not logged."""
        return

    def _refused(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError("this EmbeddingVariable is mapped, for look-ups only; restore without mapped=True")

    stage = stage_removal = commit = begin = settle = add_slot = putting = _refused


def _read_only(array: np.ndarray) -> np.ndarray:
    out = array.view()
    out.flags.writeable = False
    return out
