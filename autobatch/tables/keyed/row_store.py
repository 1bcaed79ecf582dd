"""`RowStore`: keys, their rows, what optimisers keep beside them; how all of it changes, and which rows are evicted.

Every change is staged first: rows for new keys are written where nobody looks yet, memory is taken, and nothing that
can be seen is different. Then one kernel call makes it (`commit_rows`), once, however often it is asked. So what is
left early, by an interrupt or for want of memory, leaves everything as before or as after. Whoever changes holds the
lock.
"""

import dataclasses
import functools
import itertools
import operator
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from autobatch.core.growing_arrays import Reserved, memory_of_machine
from autobatch.errors import OptionError
from autobatch.kernels import hash_table as kernels
from autobatch.kernels.hash_table import DEAD, FREE, HIGH, LIVE, LOGGED, NOTES, REMOVED, SPECIAL, VERSION
from autobatch.tables.keyed.key_index import KeyIndex
from autobatch.tables.row_access import FEW, locate_array, write_rows
from autobatch.tables.stored import Changes, StoredBlock

_MOST_ROWS = (1 << 32) - 2
_FORGOTTEN = 1 << 16  # changes that are noted whatever the size of the table
EVICTIONS = ("lru", "lfu", "norm")
_LARGE = 1 << 16  # rows from which more than asked for are taken out, so that not every step looks at all of them
_SHARE = 8  # then a 256th of the table

_tickets = itertools.count(1)
_no_rows = np.empty(0, np.int64)
T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class RowSlot:
    """What an optimiser keeps beside the rows, under one name: (rows, width), `fill` for a new key.

    Attributes:
        token: the number of the `init` that made it.
    """

    name: str
    fill: float
    token: int
    memory: Reserved

    @property
    def settings(self) -> dict[str, Any]:
        """It as JSON takes it."""
        array = self.memory.array
        return {
            "name": self.name, "fill": self.fill, "token": self.token, "dtype": array.dtype.name,
            "width": array.shape[1],
        }  # fmt: skip


@dataclasses.dataclass(slots=True)
class Change:
    """A change that is ready to be made.

    Attributes:
        rows: the row of each key that was named, also of those that come to life.
        born: (keys, rows) of these; the first `from_free` take free rows.
        gone: the rows whose keys are taken out, and those keys.
    """

    ticket: int
    rows: np.ndarray
    born: tuple[np.ndarray, np.ndarray] = (_no_rows, _no_rows)
    from_free: int = 0
    gone: tuple[np.ndarray, np.ndarray] = (_no_rows, _no_rows)


class RowStore:
    """Keys and rows, in any order.

    Args:
        initial: `initial(keys)` gives the rows of new keys, (n, dim).
        most: how many keys there may be; None: as many as there is memory for.
        folder: where rows and slots lie in files; None: in memory.
    """

    def __init__(
        self,
        dim: int,
        dtype: np.dtype,
        initial: Callable[[np.ndarray], np.ndarray],
        most: int | None = None,
        folder: pathlib.Path | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.initial = initial
        self.folder = folder
        self.slots: dict[str, RowSlot] = {}
        self.notes = np.zeros(NOTES, np.int64)
        self.notes[SPECIAL] = -1
        self._mark = 0
        self._closed: list[tuple[int, np.ndarray]] = []
        self._removed: list[tuple[int, np.ndarray]] = []
        row_bytes = dim * dtype.itemsize
        room = min(_MOST_ROWS, max(2 * memory_of_machine() // row_bytes, 1 << 20))
        wanted = room if most is None else min(room, 2 * most + (1 << 16))
        self._rows = self._reserve("rows", wanted, dim, dtype)
        wanted = len(self._rows.array)
        self._index = KeyIndex(wanted)
        self._keys = self._reserve("keys", wanted, 1, np.int64)
        self._facts = Reserved(wanted, 3, np.uint32)  # beside each other, so that a change misses the cache once
        self._free = Reserved(wanted, 1, np.uint32)
        self._log = Reserved(wanted, 1, np.uint32)

    def _reserve(self, name: str, rows: int, width: int, dtype: Any) -> Reserved:
        return Reserved(rows, width, dtype, None if self.folder is None else self.folder / f"{name}.bin")

    # What there is.

    def __len__(self) -> int:
        return int(self.notes[LIVE])

    @property
    def rows(self) -> np.ndarray:
        """(all that could be, dim): the rows, at addresses that stay."""
        return self._rows.array

    @property
    def high(self) -> int:
        """How many rows were ever used."""
        return int(self.notes[HIGH])

    @property
    def row_keys(self) -> np.ndarray:
        """The key of each row that was ever used."""
        return self._keys.array[: self.high, 0]

    @property
    def versions(self) -> np.ndarray:
        """The step of each row's last update; `DEAD` for one that is free."""
        return self._facts.array[: self.high, 0]

    @property
    def counts(self) -> np.ndarray:
        """How many updates each row has had."""
        return self._facts.array[: self.high, 1]

    @property
    def index_slots(self) -> int:
        """How many slots the index has."""
        return self._index.slots

    @property
    def removals(self) -> int:
        """How many keys were ever taken out."""
        return int(self.notes[REMOVED])

    @property
    def nbytes(self) -> int:
        """The bytes that are used: rows, slots, keys, the index and what is noted."""
        return sum(part.row_bytes for part in self._by_row()) * self.high + self._index.nbytes

    def _by_row(self) -> list[Reserved]:
        return [self._rows, self._keys, self._facts, *(slot.memory for slot in self.slots.values())]

    def alive(self) -> np.ndarray:
        """The rows that keys have."""
        return np.flatnonzero(self.versions != DEAD)

    def in_order(self, key_dtype: np.dtype) -> np.ndarray:
        """The same in the order of the keys, whenever they came."""
        rows = self.alive()
        return rows[np.argsort(self.row_keys[rows].view(key_dtype), kind="stable")]

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, int]:
        """The row of each of (n,) keys, -1 where there is none, and how many those are."""
        return self._index.find(keys, self.notes[SPECIAL])

    def steadily(self, read: Callable[[], T]) -> T:
        """`read()`, which sees each row before or after a change of another thread, never between."""
        before = self.notes[VERSION]
        if not before & 1:
            found = read()
            if self.notes[VERSION] == before:
                return found
        with self.lock:
            return read()

    # Changes.

    def stage(
        self,
        keys: np.ndarray,
        wanted: np.ndarray | None = None,
        evict: Callable[[int, np.ndarray], np.ndarray] | None = None,
        most: int | None = None,
        slots: Mapping[str, np.ndarray] | None = None,
    ) -> Change:
        """A change in which distinct keys come to life that are not there yet.

        Args:
            wanted: the rows that new ones start as, (n, dim), of all keys; None: what `initial` gives.
            slots: what their slots start as, likewise, by name; others start as their `fill`.
            evict: `evict(n, kept)` names n rows or more to take out, none of those kept, if there may be only `most`.
        """
        found, missing = self.find(keys)
        change = Change(next(_tickets), found)
        if missing:
            places = np.flatnonzero(found < 0)
            new = keys[places]
            from_free = min(missing, int(self.notes[FREE]))
            rows = np.empty(missing, np.int64)
            rows[:from_free] = self._free.array[self.notes[FREE] - from_free : self.notes[FREE], 0]
            rows[from_free:] = np.arange(self.high, self.high + missing - from_free)
            self._make_room(missing, self.high + missing - from_free)
            if most is not None and evict is not None and len(self) + missing > most:
                gone = evict(len(self) + missing - most, found[found >= 0])
                change.gone = gone, self.row_keys[gone]
            where = _run_of(rows)
            which = slice(None) if missing == len(keys) else places
            self.rows[where] = self.initial(new) if wanted is None else wanted[which]
            for name, slot in self.slots.items():
                slot.memory.array[where] = slots[name][which] if slots and name in slots else slot.fill
            found[places] = rows
            change.born, change.from_free = (new, rows), from_free
        self._note_less(len(keys))
        return change

    def name(self, keys: np.ndarray) -> Change | None:
        """A change of rows that are there, in the order of (n,) keys, which may repeat; None where one is not there."""
        rows, missing = self.find(keys)
        self._note_less(len(keys))
        return None if missing else Change(next(_tickets), rows)

    def stage_removal(self, rows: np.ndarray) -> Change:
        """A change in which these rows' keys are taken out."""
        return Change(next(_tickets), _no_rows, gone=(rows, self.row_keys[rows]))

    def put(self, where: np.ndarray, rows: np.ndarray) -> None:
        """Write rows where these rows are."""
        if rows.nbytes <= FEW:
            self.rows[where] = rows
        else:
            write_rows(locate_array(self.rows, where, False), np.ascontiguousarray(rows))

    def begin(self) -> None:
        """Say that rows are about to be different, until `commit` or `settle`."""
        self.notes[VERSION] |= 1

    def settle(self) -> None:
        """Say that no change is on its way."""
        if self.notes[VERSION] & 1:
            self.notes[VERSION] += 1

    def commit(self, change: Change, step: int = -1, counted: bool = False) -> int:
        """Make a change, once; the rows that it names get the version `step`, if that is not -1.

        Returns:
            How many keys it takes out that were named.
        """
        gone, keys = change.gone
        if len(gone) and self._mark:
            self._removed.append((self._mark, keys))
        self.begin()
        facts = tuple(self._facts.array[:, k] for k in range(3))
        kernels.commit_rows(
            change.ticket, self._index.array, self._index.form, self.notes, gone, change.born, change.from_free,
            change.rows, step, counted, self._mark, self._keys.array[:, 0], facts, self._free.array[:, 0],
            self._log.array[:, 0],
        )  # fmt: skip
        self.settle()
        return len(gone)

    def _make_room(self, more: int, high: int) -> None:
        """Memory for so many keys more, and for rows up to `high`; the index grows a part at a time."""
        for part in self._by_row():
            part.ensure(high)
        if not self._index.is_enough(len(self) + more):
            self.begin()
            self._index.make_room(more, len(self) + more)
            self.settle()

    # Slots of optimisers.

    def add_slot(self, name: str, fill: float, dtype: Any, width: int, token: int) -> None:
        """Make a slot, or make it anew."""
        memory = self._reserve(f"slot-{name}", len(self.rows), width, dtype)
        memory.ensure(max(self.high, 1))
        memory.array[: self.high] = fill
        self.slots[name] = RowSlot(name, fill, token, memory)

    # What changed.

    def mark(self) -> int:
        """A name for this moment."""
        with self.lock:
            self._close()
            return self._mark

    def _close(self) -> None:
        self._closed.append((self._mark, self._log.array[: self.notes[LOGGED], 0].copy()))
        self._mark += 1
        self.notes[LOGGED] = 0

    def _note_less(self, more: int) -> None:
        """Give up what is noted, where it gets longer than the table."""
        if not self._mark:
            return
        noted = sum(len(rows) for _, rows in self._closed) + int(self.notes[LOGGED])
        if noted + more > max(_FORGOTTEN, self.high):
            self._close()
            self._closed, self._removed = [], []

    def changed_since(self, mark: int, rows: int, key_dtype: np.dtype) -> Changes | None:
        """What changed since a mark; None where that is not known."""
        with self.lock:
            kept = [part for part in self._closed if part[0] >= mark]
            known = [number for number, _ in kept]
            if mark > self._mark or mark < 1 or known != list(range(mark, self._mark)):
                return None
            self._closed, self._removed = kept, [part for part in self._removed if part[0] >= mark]
            changed = np.unique(np.concatenate([*(part for _, part in kept), self._log.array[: self.notes[LOGGED], 0]]))
            changed = changed[self.versions[changed] != DEAD].astype(np.int64)
            removed = np.unique(np.concatenate([_no_rows, *(keys for _, keys in self._removed)]))
            removed = removed[self.find(removed)[0] < 0]
        return Changes(removed.view(key_dtype), len(changed), blocks_of(self, changed, rows, key_dtype))

    def block(self, which: np.ndarray, key_dtype: np.dtype) -> StoredBlock:
        """Copies of these rows with all that belongs to them."""
        where = _run_of(which)

        def of(array: np.ndarray) -> np.ndarray:
            return array[where].copy() if isinstance(where, slice) else array.take(where, axis=0)

        slots = {name: of(slot.memory.array) for name, slot in self.slots.items()}
        versions, counts = (of(facts).astype(np.int64) for facts in (self.versions, self.counts))
        return StoredBlock(of(self.row_keys).view(key_dtype), of(self.rows), slots, versions, counts)

    def joined(self, blocks: Sequence[StoredBlock]) -> StoredBlock:
        """Blocks as one: of a key that is in several the last; slots that one does not have start as their `fill`."""
        if len(blocks) == 1:
            return blocks[0]
        keys = np.concatenate([block.keys for block in blocks])
        _, last = np.unique(keys[::-1], return_index=True)
        last = len(keys) - 1 - last

        def column(parts: list[np.ndarray]) -> np.ndarray:
            return np.concatenate(parts)[last]

        slots = {}
        for name, slot in self.slots.items():
            form = slot.memory.array.shape[1:]
            own = [block.slots.get(name) for block in blocks]
            if any(rows is not None and rows.shape[1:] == form for rows in own):
                slots[name] = column([
                    np.full((len(block.keys), *form), slot.fill, slot.memory.dtype) if rows is None else rows
                    for rows, block in zip(own, blocks, strict=True)
                ])  # fmt: skip
        rows, versions, counts = (column([getattr(b, name) for b in blocks]) for name in ("rows", "versions", "counts"))
        return StoredBlock(keys[last], rows, slots, versions, counts)

    def putting(self, block: StoredBlock, keys: np.ndarray, removed: np.ndarray = _no_rows) -> list[Callable[[], Any]]:
        """The calls that write a block, over rows that are there, and take out keys that are not in it."""
        slots = {}
        for name, slot in self.slots.items():
            given = block.slots.get(name)
            if given is not None and given.shape[1:] == slot.memory.array.shape[1:]:  # or another optimiser's
                slots[name] = given
        change = self.stage(keys, block.rows, slots=slots)
        if len(removed):
            gone = np.setdiff1d(self.find(removed)[0], np.append(change.rows, -1))
            change.gone = gone, self.row_keys[gone]
        calls: list[Callable[[], Any]] = [self.begin]
        if len(change.born[0]) < len(keys):
            was = ~np.isin(change.rows, change.born[1])
            there = change.rows[was]
            calls.append(functools.partial(operator.setitem, self.rows, there, block.rows[was]))
            for name, slot in self.slots.items():
                new = slots[name][was] if name in slots else slot.fill
                calls.append(functools.partial(operator.setitem, slot.memory.array, there, new))
        calls.append(functools.partial(self.commit, change))
        where = _run_of(change.rows)
        for part, facts in enumerate((block.versions, block.counts)):
            numbers = np.minimum(facts, np.int64(DEAD) - 1)
            calls.append(functools.partial(operator.setitem, self._facts.array, (where, part), numbers))
        return calls

    def expect(self, more: int) -> None:
        """Make the index large enough for so many keys more, at once."""
        with self.lock:
            self.begin()
            self._index.expect(more, len(self) + more)
            self.settle()


def blocks_of(store: Any, which: np.ndarray, rows: int, key_dtype: np.dtype) -> Iterator[StoredBlock]:
    """Rows of a store with all that belongs to them, so many at a time."""
    return (store.block(which[first : first + rows], key_dtype) for first in range(0, len(which), rows))


def _run_of(rows: np.ndarray) -> Any:
    """The same rows as a slice, where each follows the one before it."""
    first = int(rows[0]) if len(rows) else 0
    is_run = len(rows) > 0 and int(rows[-1]) - first + 1 == len(rows) and bool((np.diff(rows) == 1).all())
    return slice(first, first + len(rows)) if is_run else rows


# Which keys make room for others: those of the oldest update, of the fewest updates or of the smallest row.


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
