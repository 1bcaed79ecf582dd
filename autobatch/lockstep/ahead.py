"""Items of steps that are still to come: what a loop does not carry is computed for many steps at once.

The rows of a chunk of steps stand one step after the other, the lanes of a step in the loop's order, without padding;
so what is computed from them is read by each step as consecutive rows. Chunks grow: a loop that is left early has
computed at most about as much ahead as it has used.
"""

from typing import Any

import numpy as np

from autobatch.core.op import is_boxed
from autobatch.lockstep.sequences import Rows
from autobatch.ops.indexing_rows import rows_p
from autobatch.ops.spans import rows_between

__all__ = ["Chunk", "rows_of"]

_FIRST_STEPS = 8
_MOST_ROWS = 4096


class Chunk:
    """The steps from `first` up to `last` of a loop over rows.

    Attributes:
        offsets: where the rows of each step start; one more at the end.
    """

    __slots__ = ("counts", "first", "last", "offsets", "source")

    def __init__(self, first: int, last: int, counts: np.ndarray, source: Any) -> None:
        self.first = first
        self.last = last
        self.counts = counts
        self.offsets = [0, *np.cumsum(counts).tolist()]
        self.source = source  # the loop's order, or its region: rows of one source are of one loop

    @classmethod
    def at(cls, rows: Rows, earlier: "Chunk | None") -> "Chunk | None":
        """The chunk that starts at the current step; None where steps are too tall or too few to gain by it."""
        first, order = rows.step, rows.order
        if order is not None:
            counts = np.array(order.counts[first:], np.int64)
        else:
            counts = np.full(max(rows.shortest() - first, 0), rows.data.shape[0], np.int64)
        steps = _FIRST_STEPS if earlier is None else 2 * (earlier.last - earlier.first)
        steps = min(steps, int(np.searchsorted(np.cumsum(counts), _MOST_ROWS, side="right")), len(counts))
        if steps < 2:
            return None
        return cls(first, first + steps, counts[:steps], order if order is not None else rows.last.region)

    def packed(self, rows: Rows) -> Any:
        """The items of all steps of the chunk: (total rows, *item)."""
        data, first, counts = rows.data, self.first, self.counts
        if len(counts) and counts[0] == counts[-1]:
            part = data[: counts[0], first : self.last]
            return np.reshape(np.swapaxes(part, 0, 1), (self.offsets[-1], *data.shape[2:]))
        steps = np.repeat(np.arange(first, self.last), counts)
        lanes = np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], counts)
        if not is_boxed(data):
            return data[lanes, steps]
        flat = np.reshape(data, (-1, *data.shape[2:]))
        return rows_p(flat, lanes * data.shape[1] + steps, unique=True)

    def step(self, buffer: Any, step: int) -> Any:
        """The rows of one step."""
        place = step - self.first
        return rows_between(buffer, self.offsets[place], self.offsets[place + 1])


def rows_of(batch: Any, root: Any) -> Rows | None:
    """The rows that a batch is the current item of, if it is one."""
    found = root.items.get(id(batch))
    if found is None:
        return None
    rows = found()
    return rows if rows is not None and rows.last is batch else None
