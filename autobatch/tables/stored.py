"""`StoredTable`: the interface by which a table of keys is saved, in full or as increments, and restored.

A saver uses nothing else of `EmbeddingVariable`: settings and small arrays are written as they are, rows as blocks.

    settings = variable.settings                            # goes into a JSON document
    arrays = variable.arrays()                              # a few arrays, those of the admission rule
    mark = variable.mark()                                  # what changes from here on is in the next increment
    for block in variable.blocks(): ...                     # everything; or
    changes = variable.changed_since(mark)                  # None: it goes back too far; save everything
    for block in changes.blocks: ...

    restored = EmbeddingVariable.from_settings(settings)    # no rows yet; its slots are there, filled as at `init`
    restored.restore_blocks(blocks, removed=(), arrays=arrays)      # once for the full save, then for each increment
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np


class StoredBlock(NamedTuple):
    """Some keys with their rows, slots, versions and counts; the arrays are copies.

    Attributes:
        keys: (n,) distinct keys of the variable's key dtype.
        rows: (n, dim).
        slots: by name, the optimiser's state of these rows, (n, dim), or (n, 1) for one number each.
        versions: (n,) int64, the step of each row's last update.
        counts: (n,) int64, the number of its updates.
    """

    keys: np.ndarray
    rows: np.ndarray
    slots: dict[str, np.ndarray]
    versions: np.ndarray
    counts: np.ndarray

    def take(self, at: np.ndarray) -> "StoredBlock":
        """The keys at these positions, with all that belongs to them."""
        slots = {name: rows[at] for name, rows in self.slots.items()}
        return StoredBlock(self.keys[at], self.rows[at], slots, self.versions[at], self.counts[at])


class Changes(NamedTuple):
    """The difference to an earlier moment; to apply it, remove `removed`, then write the blocks.

    Attributes:
        removed: (m,) keys that were removed since then, and are not in the table now.
        blocks: the keys that were inserted or changed since then, `total` keys.
    """

    removed: np.ndarray
    total: int
    blocks: Iterator[StoredBlock]


@runtime_checkable
class StoredTable(Protocol):
    """A table of keys that can be saved in pieces.

    Attributes:
        settings: a dict for `json.dumps`: constructor arguments, step and slots, without rows.
    """

    @property
    def settings(self) -> dict[str, Any]: ...

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Any:
        """Make an empty table with these settings, including the step."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Small arrays besides the rows, which every save contains in full."""

    def blocks(self, rows: int = 1 << 16) -> Iterator[StoredBlock]:
        """All contents in blocks of at most `rows` keys; the table must not change while they are read."""

    def mark(self) -> int:
        """Mark this moment; returns a number for `changed_since`. From the first mark on, changes are logged."""

    def changed_since(self, mark: int, rows: int = 1 << 16) -> Changes | None:
        """The changes since a mark, found from the log; None if the log does not go back so far.

        The log is discarded when it becomes as long as the table, and when a slot is replaced; entries before `mark`
        are dropped by this call.
        """

    def restore_blocks(
        self,
        blocks: Iterable[StoredBlock],
        *,
        removed: object = (),
        arrays: dict[str, np.ndarray] | None = None,
        step: int | None = None,
    ) -> None:
        """Remove keys, then insert or replace the keys of blocks; slots that a block lacks are reset.

        The call is atomic, also if it is interrupted.

        Args:
            step: the step of the saved table; None: keep the current step.
        """
