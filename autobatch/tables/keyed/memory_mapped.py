"""A variable for look-ups only whose rows lie in memory that is given, sorted by key: a mapped file, opened at once.

There is no index to be made: keys are found by halving. Look-ups, `export` and the like are those of any variable.
"""

import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from autobatch.core.threads import run_parts, split_work
from autobatch.errors import UnsupportedError
from autobatch.kernels.hash_table import find_sorted
from autobatch.tables.keyed.partitioned import PartitionedVariable
from autobatch.tables.keyed.variable import EmbeddingVariable
from autobatch.tables.stored import StoredBlock

_KEY_BYTES = 256  # read from memory to find a key
T = TypeVar("T")


def mapped_variable(settings: dict[str, Any], block: StoredBlock, beside: dict[str, np.ndarray]) -> EmbeddingVariable:
    """A variable for look-ups only over arrays that do not change.

    Args:
        settings: of the variable that they come from.
        block: all of its keys, in the order of their bits as int64. beside: its `arrays()`.
    """
    out = EmbeddingVariable.from_settings(settings | {"trainable": False, "insert_on": "update", "slots": []})
    out.restore_blocks([], arrays=beside)
    out._store = SortedRows(block, out._store.initial)  # type: ignore[assignment]
    return out


def look_ups_only(table: Any) -> Any:
    """A copy of a variable, in memory, of which nothing can be changed; another table of keys is not to be trained."""
    if isinstance(table, PartitionedVariable):
        return PartitionedVariable([look_ups_only(part) for part in table.parts])
    if not isinstance(table, EmbeddingVariable):  # of a class of its own, which knows what it refuses
        table.trainable = False
        return table
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
        self.high = self.index_slots = len(block.keys)
        self.removals = 0
        self.nbytes = sum(array.nbytes for array in (block.keys, block.rows, block.versions, block.counts))

    def __len__(self) -> int:
        return self.high

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, int]:
        """The row of each of (n,) keys, -1 where there is none, and how many those are."""
        out = np.empty(len(keys), np.int64)
        parts = split_work(len(keys), len(keys) * _KEY_BYTES)
        run_parts(lambda part: find_sorted(keys, self.row_keys, out, *part), parts)
        return out, int((out < 0).sum())

    def steadily(self, read: Callable[[], T]) -> T:
        """`read()`: nothing changes."""
        return read()

    def alive(self) -> np.ndarray:
        """All rows."""
        return np.arange(self.high)

    def in_order(self, key_dtype: np.dtype) -> np.ndarray:
        """The rows in the order of the keys."""
        return np.argsort(self.row_keys.view(key_dtype), kind="stable")

    def block(self, which: np.ndarray, key_dtype: np.dtype) -> StoredBlock:
        """Rows with their slots, versions and counts."""
        slots = {name: x[which] for name, x in self._block.slots.items()}
        keys = self.row_keys[which].view(key_dtype)
        return StoredBlock(keys, self.rows[which], slots, self.versions[which], self.counts[which])

    def mark(self) -> int:
        """The one moment that there is."""
        return 1

    def changed_since(self, *_: Any) -> None:
        """Not noted."""
        return

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError("this EmbeddingVariable is mapped, for look-ups only; restore without mapped=True")

    stage = stage_removal = commit = begin = settle = add_slot = putting = _refused


def _read_only(array: np.ndarray) -> np.ndarray:
    out = array.view()
    out.flags.writeable = False
    return out
