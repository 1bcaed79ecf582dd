"""Items of steps that are still to come: what a loop does not carry is computed for many steps at once.

The rows of a chunk of steps stand one step after the other, the lanes of a step in the loop's order, without padding;
so what is computed from them is read by each step as consecutive rows. Chunks grow: a loop that is left early has
computed at most about as much ahead as it has used.
"""

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.masked import MaskedBatch
from autobatch.core.batched import Batched
from autobatch.core.current_region import current_region
from autobatch.lockstep.values.sequences import RowSequence
from autobatch.ops.rules.row_gather import rows_between
from autobatch.tables.table import EmbeddingTable

_FIRST_STEPS = 8
_MOST_ROWS = 4096
_NARROW = 512  # bytes of a row
_MOST_WASTED = 2  # chunks of which less than half was used; then nothing is computed ahead any more


class Chunk:
    """The steps from `first` up to `last` of a loop over rows.

    Attributes:
        counts: how many lanes each step has; their rows start at `offsets`, which has one more at the end.
    """

    __slots__ = ("counts", "first", "last", "offsets")

    def __init__(self, first: int, last: int, counts: np.ndarray) -> None:
        self.first = first
        self.last = last
        self.counts = counts
        self.offsets = [0, *np.cumsum(counts).tolist()]

    @classmethod
    def at(cls, rows: Any, earlier: "Chunk | None", whole: bool = False) -> "Chunk | None":
        """The chunk that starts at the current step; None where steps are too tall or too few to gain.

        Args:
            whole: no step is left out, so that the chunk may be as long as it can; of wide rows what is computed from
                so many would not stay in the cache until it is read.
        """
        first, order = rows.step, rows.order
        if order is not None:
            counts = np.array(order.counts[first:], np.int64)
        else:
            counts = np.full(max(rows.shortest() - first, 0), rows.data.shape[0], np.int64)
        steps = _FIRST_STEPS if earlier is None else 2 * (earlier.last - earlier.first)
        if whole and rows.last.data.dtype.itemsize * math.prod(rows.last.data.shape[1:]) <= _NARROW:
            steps = len(counts)
        steps = min(steps, int(np.searchsorted(np.cumsum(counts), _MOST_ROWS, side="right")), len(counts))
        if steps < 2:
            return None
        return cls(first, first + steps, counts[:steps])

    def step(self, buffer: Any, step: int) -> Any:
        """The rows of one step."""
        place = step - self.first
        return rows_between(buffer, self.offsets[place], self.offsets[place + 1])


class Ahead:
    """Results computed ahead for one reader of a loop's items: the current chunk, and whether it pays.

    Attributes:
        rows: the items; None where nothing is computed ahead.
        chunk: the steps that are computed, of which `used` have been read.
        whole: every step is going to be read.
    """

    __slots__ = ("chunk", "rows", "used", "wasted", "whole")

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole
        self.rows: Any = None
        self.chunk: Chunk | None = None
        self.used = self.wasted = 0

    def reach(self, region: Any, fill: Callable[[Chunk], bool]) -> Chunk | None:
        """The chunk that holds the current step, filled; None where it is not worth it, or could not be filled."""
        rows, chunk = self.rows, self.chunk
        if chunk is None or not chunk.first <= rows.step < chunk.last:
            self.drop()
            wanted = self.wasted < _MOST_WASTED and 2 * region.count >= rows.last.region.count
            chunk = Chunk.at(rows, chunk, self.whole) if wanted else None
            if chunk is None or not in_silence(functools.partial(fill, chunk)):
                self.rows = None
                return None
            self.chunk, self.used = chunk, 0
        self.used += 1
        return chunk

    def drop(self) -> None:
        """Let go of the chunk."""
        chunk = self.chunk
        if chunk is not None:
            few = 2 * self.used < chunk.last - chunk.first
            self.wasted = self.wasted + 1 if few else 0
        self.chunk = None


def in_silence(fill: Callable[[], Any]) -> bool:
    """Compute something ahead; False if an example has something to complain of.

    Which example it is, and whether it comes that far, only its own step can say.
    """
    complaints: list[str] = []
    state: Any = {kind: "ignore" if how == "ignore" else "call" for kind, how in np.geterr().items()}
    try:
        with np.errstate(**state, call=lambda kind, _: complaints.append(kind)):
            done = fill() is not False
    except Exception:  # whatever it is, the step that it belongs to raises it
        return False
    return done and not complaints


class Looked:
    """Rows of a table that were looked up by a loop's items, themselves items for what is computed from them.

    Attributes:
        last: the rows of the current step.
        is_view: a row is a part of the table, which a write into it would reach.
    """

    __slots__ = ("__weakref__", "_self", "ahead", "buffer", "ids", "index", "is_view", "last", "table")

    def __init__(self, table: Any, ids: RowSequence, is_view: bool) -> None:
        self.table = table
        self.is_view = is_view
        self.index = getattr(table, "index", None)
        self.ids = ids
        self.ahead = Ahead()
        self.ahead.rows = ids
        self.last: Any = None
        self._self = weakref.ref(self)

    @property
    def step(self) -> int:
        return self.ids.step

    @property
    def order(self) -> Any:
        return self.ids.order

    @property
    def data(self) -> Any:
        return self.ids.data

    def shortest(self) -> int:
        return self.ids.shortest()

    def read(self, region: Any) -> Any:
        """The rows of the current step; None if they have to be looked up by themselves."""
        if self.ahead.rows is None or region is not self.ids.last.region:
            return None
        chunk = self.ahead.reach(region, self._fill)
        if chunk is None:
            return None
        rows = chunk.step(self.buffer, self.ids.step)
        out = MaskedBatch.in_region(Batched(rows, rows.shape[1:]), region)
        items = region.root.items
        items.pop(id(self.last), None)
        self.last = out
        items[id(out)] = self._self
        if self.is_view:
            region.root.freeze(out)
        return out

    def packed(self, chunk: Chunk) -> Any:
        """The rows of all steps of a chunk."""
        return self.buffer if self.ahead.chunk is chunk else self.table[self.ids.packed(chunk)]

    def _fill(self, chunk: Chunk) -> bool:
        self.buffer = self.table[self.ids.packed(chunk)]
        return type(self.buffer) in (np.ndarray, TapeArray)


def looked_up(table: Any, index: Any) -> Any:
    """`table[index]`, read from what was looked up ahead if the index is an integer item of a loop; else None."""
    region: Any = current_region()
    if index.sizes or index.scalar is not None or index.data.dtype.kind not in "iu" or region is None:
        return None
    rows = rows_of(index, region.root)
    if type(rows) is not RowSequence or index.region is not region:
        return None
    value = table.value if type(table) is TapeArray else table
    if type(value) not in (np.ndarray, EmbeddingTable) or value.ndim != 2:
        return None
    looked = rows.looked.get(id(table))
    if looked is None or looked.table is not table or looked.index != getattr(table, "index", None):
        looked = rows.looked[id(table)] = Looked(table, rows, type(value) is np.ndarray)
    return looked.read(region)


def rows_of(batch: Any, root: Any) -> Any:
    """The `RowSequence` or `Looked` of which a batch is the current item; None for any other batch."""
    found = root.items.get(id(batch))
    if found is None:
        return None
    rows = found()
    return rows if rows is not None and rows.last is batch else None
