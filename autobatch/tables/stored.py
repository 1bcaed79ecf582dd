"""`Stored`: what a table of keys says so that it can be saved, whole or as what changed since a mark, and restored.

A saver needs nothing else of `EmbeddingVariable`: settings and small arrays are written as they are, rows as blocks.

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
    """Some keys with all that belongs to them; the arrays are copies, of at most as many rows as were asked for.

    Attributes:
        keys: (n,) distinct keys of the variable's key dtype.
        rows: (n, dim).
        slots: for each of the optimiser's slots its part of them, (n, dim), or (n, 1) of a slot by row.
        versions: (n,) int64, the step in which each row was last updated.
        counts: (n,) int64, how many updates it has had.
    """

    keys: np.ndarray
    rows: np.ndarray
    slots: dict[str, np.ndarray]
    versions: np.ndarray
    counts: np.ndarray


class Changes(NamedTuple):
    """The difference to an earlier moment: first `removed` are taken out, then the blocks are put in.

    Attributes:
        removed: (m,) keys that were removed since, and are not there now.
        blocks: of the keys that were made or changed since; `total` keys.
    """

    removed: np.ndarray
    total: int
    blocks: Iterator[StoredBlock]


@runtime_checkable
class StoredTable(Protocol):
    """A table of keys that can be saved in pieces.

    Attributes:
        settings: a dict that `json.dumps` takes: how it was made, its step, its slots. Rows are not in it.
    """

    @property
    def settings(self) -> dict[str, Any]: ...

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Any:
        """An empty table of these settings, at their step."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Small arrays beside the rows, saved whole each time."""

    def blocks(self, rows: int = 1 << 16) -> Iterator[StoredBlock]:
        """All keys, in blocks of at most so many. Nothing may be changed between the first and the last."""

    def mark(self) -> int:
        """A name for this moment, to be given to `changed_since` later. From the first one on, changes are noted."""

    def changed_since(self, mark: int, rows: int = 1 << 16) -> Changes | None:
        """The changes since a mark, from the notes and not the table; None where the notes do not reach back so far.

        They are given up when they have grown as long as the table, and what was noted before `mark` is dropped.
        """

    def restore_blocks(
        self,
        blocks: Iterable[StoredBlock],
        *,
        removed: Any = (),
        arrays: dict[str, np.ndarray] | None = None,
        step: int | None = None,
    ) -> None:
        """Remove keys, then write blocks, over rows that are there; slots that a block does not have start anew.

        All of one call is seen, or none of it, also where it is left early.

        Args:
            step: the step of the saved table; None: it stays.
        """
