"""`RowStore`: the storage of a variable: keys, rows and optimiser slots, changed atomically.

Every change is first staged: memory is allocated and new keys' rows are written to unused places, with no visible
effect. Then one kernel call (`commit_rows`) makes the change visible; repeating the call has no effect. So an interrupt
or a failed allocation leaves the state before or after the change, never between. A writer must hold the lock.

`SortedRows` takes its place in a variable that is for look-ups only.
"""

import dataclasses
import functools
import itertools
import operator
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from autobatch.core.threads import run_parts, split_work
from autobatch.errors import UnsupportedError
from autobatch.kernels import hash_table as kernels
from autobatch.kernels.hash_table import DEAD, FREE, HIGH, LIVE, LOGGED, NOTES, SPECIAL, VERSION
from autobatch.tables.keyed.growing_arrays import Reserved, memory_of_machine
from autobatch.tables.keyed.key_index import KeyIndex
from autobatch.tables.row_access import FEW, locate_array, write_rows

_MOST_ROWS = (1 << 32) - 2  # their numbers are uint32, of which the last two mean something else

_tickets = itertools.count(1)
_no_rows = np.empty(0, np.int64)
T = TypeVar("T")


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


@dataclasses.dataclass(slots=True)
class RowSlot:
    """An optimiser's state for each row, (rows, width), under one name; `fill` is the value for a new key.

    Attributes:
        token: the number of the `init` call that made it.
    """

    name: str
    fill: float
    token: int
    memory: Reserved

    @property
    def settings(self) -> dict[str, Any]:
        """The slot's description as a dict for JSON."""
        array = self.memory.array
        return {
            "name": self.name, "fill": self.fill, "token": self.token, "dtype": array.dtype.name,
            "width": array.shape[1],
        }  # fmt: skip


@dataclasses.dataclass(slots=True)
class Change:
    """A staged change, ready for `commit`.

    Attributes:
        ticket: a unique number, by which the kernel ignores a second commit.
        rows: the row of each requested key, existing or new.
        born: (keys, rows) of the new keys; the first `from_free` of these rows come from the free list.
        gone: (rows, keys) to be removed."""

    ticket: int
    rows: np.ndarray
    born: tuple[np.ndarray, np.ndarray] = (_no_rows, _no_rows)
    from_free: int = 0
    gone: tuple[np.ndarray, np.ndarray] = (_no_rows, _no_rows)


class RowStore:
    """Keys and their rows; row numbers are in no particular order.

    Args:
        initial: `initial(keys)` returns the rows of new keys, (n, dim).
        most: the maximum number of keys; None: as many as fit into memory.
        folder: the folder for files of rows and slots; None: in memory.
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
        self._facts = Reserved(wanted, 3, np.uint32)  # version, count, log mark: adjacent, so one cache miss per row
        self._free = Reserved(wanted, 1, np.uint32)
        self._log = Reserved(wanted, 1, np.uint32)

    def _reserve(self, name: str, rows: int, width: int, dtype: Any) -> Reserved:
        return Reserved(rows, width, dtype, None if self.folder is None else self.folder / f"{name}.bin")

    # Reading.

    def __len__(self) -> int:
        return int(self.notes[LIVE])

    @property
    def rows(self) -> np.ndarray:
        """The array of rows, (reserved rows, dim); its address never changes."""
        return self._rows.array

    @property
    def high(self) -> int:
        """The number of rows ever used, including those that are free now."""
        return int(self.notes[HIGH])

    @property
    def row_keys(self) -> np.ndarray:
        """The key of each of the first `high` rows."""
        return self._keys.array[: self.high, 0]

    @property
    def versions(self) -> np.ndarray:
        """The step of each row's last update; `DEAD` for a free row."""
        return self._facts.array[: self.high, 0]

    @property
    def counts(self) -> np.ndarray:
        """The number of updates of each row."""
        return self._facts.array[: self.high, 1]

    @property
    def nbytes(self) -> int:
        """The number of bytes used by rows, slots, keys, versions, counts and the index."""
        return sum(part.row_bytes for part in self._by_row()) * self.high + self._index.nbytes

    def _by_row(self) -> list[Reserved]:
        return [self._rows, self._keys, self._facts, *(slot.memory for slot in self.slots.values())]

    def alive(self) -> np.ndarray:
        """The row numbers in use."""
        return np.flatnonzero(self.versions != DEAD)

    def in_order(self, key_dtype: np.dtype) -> np.ndarray:
        """The row numbers in use, in ascending order of their keys."""
        rows = self.alive()
        return rows[np.argsort(self.row_keys[rows].view(key_dtype), kind="stable")]

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, int]:
        """(row of each key, or -1 if it is missing, (n,); number of missing keys)."""
        return self._index.find(keys, self.notes[SPECIAL])

    def read_consistently(self, read: Callable[[], T]) -> T:
        """Return `read()`, repeated under the lock if another thread changed rows meanwhile (a sequence lock)."""
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
        """Stage the insertion of those of the distinct keys that are not in the table.

        Args:
            wanted: (n, dim), the initial row of each key, used for the new ones; None: `initial(keys)`.
            slots: by name, the initial slot rows, likewise; other slots start with their `fill`.
            evict: `evict(n, kept)` returns at least n rows to remove, none of `kept`; called if keys exceed `most`.
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
        """Stage a change of the rows of (n,) keys, which may repeat; None if a key is not in the table."""
        rows, missing = self.find(keys)
        self._note_less(len(keys))
        return None if missing else Change(next(_tickets), rows)

    def stage_removal(self, rows: np.ndarray) -> Change:
        """Stage the removal of the keys of these rows."""
        return Change(next(_tickets), _no_rows, gone=(rows, self.row_keys[rows]))

    def put(self, where: np.ndarray, rows: np.ndarray) -> None:
        """Write `rows` to the row numbers `where`."""
        if rows.nbytes <= FEW:
            self.rows[where] = rows
        else:
            write_rows(locate_array(self.rows, where, False), np.ascontiguousarray(rows))

    def begin(self) -> None:
        """Make the version odd: rows are being written, until `commit` or `settle`."""
        self.notes[VERSION] |= 1

    def settle(self) -> None:
        """Make the version even again: no write is in progress."""
        if self.notes[VERSION] & 1:
            self.notes[VERSION] += 1

    def commit(self, change: Change, step: int = -1, counted: bool = False) -> int:
        """Make a change visible; a repeated call has no effect. Its rows get the version `step`, unless that is -1.

        Returns:
            The number of keys that the change removes.
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
        """Ensure memory for `more` keys, and for `high` rows; the index grows incrementally."""
        for part in self._by_row():
            part.ensure(high)
        if not self._index.is_enough(len(self) + more):
            self.begin()
            self._index.make_room(more, len(self) + more)
            self.settle()

    def victims(self, eviction: str, wanted: int, kept: np.ndarray, key_dtype: np.dtype) -> np.ndarray:
        """Choose at least `wanted` rows to evict; ties are broken by the least key.

        Args:
            eviction: "lru", "lfu" or "norm". kept: rows that must stay.

        Raises:
            MemoryError: there are not so many other rows.
        """
        excluded = np.zeros(self.high, np.bool_)
        excluded[kept] = True
        available = len(self) - len(kept)
        if wanted > available:
            raise MemoryError(
                f"one step names {wanted - available} keys more than the table's capacity; give it a larger capacity, "
                "or take smaller batches"
            )
        # Tables with more rows evict more than needed, so that not every step has to scan all rows:
        if len(self) > 1 << 16:
            wanted = min(max(wanted, len(self) >> 8), available)  # at least 1 / 2**8 of the table
        scores = _scores(self, eviction)
        rows = np.flatnonzero((self.versions != DEAD) & ~excluded)
        found = scores[rows]
        limit = np.partition(found, wanted - 1)[wanted - 1]
        out, ties = rows[found < limit], rows[found == limit]
        if wanted - len(out) < len(ties):
            ties = ties[np.argsort(self.row_keys[ties].view(key_dtype), kind="stable")[: wanted - len(out)]]
        return np.concatenate([out, ties])

    # Slots of optimisers.

    def add_slot(self, name: str, fill: float, dtype: object, width: int, token: int) -> None:
        """Create a slot, or replace it: of every row, which the log of changes does not hold, and is discarded for."""
        memory = self._reserve(f"slot-{name}", len(self.rows), width, dtype)
        memory.ensure(max(self.high, 1))
        memory.array[: self.high] = fill
        self.slots[name] = RowSlot(name, fill, token, memory)
        self._discard_log()

    # The log of changes.

    def mark(self) -> int:
        """Mark this moment; returns a number for `changed_since`."""
        with self.lock:
            self._close()
            return self._mark

    def _close(self) -> None:
        self._closed.append((self._mark, self._log.array[: self.notes[LOGGED], 0].copy()))
        self._mark += 1
        self.notes[LOGGED] = 0

    def _note_less(self, more: int) -> None:
        """Discard the log of changes if it would become longer than the table."""
        if not self._mark:
            return
        noted = sum(len(rows) for _, rows in self._closed) + int(self.notes[LOGGED])
        # So many changed rows are logged, or as many as there are rows.
        if noted + more > max(1 << 16, self.high):
            self._discard_log()

    def _discard_log(self) -> None:
        """Discard the log of changes, so that the next increment contains the whole table."""
        if self._mark:
            self._close()
            self._closed, self._removed = [], []

    def changed_since(self, mark: int, rows: int, key_dtype: np.dtype) -> Changes | None:
        """What changed since a mark; None if the log does not go back so far."""
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
        """Copies of these rows with their keys, slots, versions and counts."""
        where = _run_of(which)

        def of(array: np.ndarray) -> np.ndarray:
            return array[where].copy() if isinstance(where, slice) else array.take(where, axis=0)

        slots = {name: of(slot.memory.array) for name, slot in self.slots.items()}
        versions, counts = (of(facts).astype(np.int64) for facts in (self.versions, self.counts))
        return StoredBlock(of(self.row_keys).view(key_dtype), of(self.rows), slots, versions, counts)

    def putting(self, block: StoredBlock, keys: np.ndarray, removed: np.ndarray = _no_rows) -> list[Callable[[], Any]]:
        """The calls that write a block (inserting or replacing keys), and remove those of `removed` not in it."""
        slots = {}
        for name, slot in self.slots.items():
            given = block.slots.get(name)
            if given is not None and given.shape[1:] == slot.memory.array.shape[1:]:  # else of another optimiser
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
        """Grow the index for `more` further keys, at once."""
        with self.lock:
            self.begin()
            self._index.expect(more, len(self) + more)
            self.settle()


class SortedRows:
    """A read-only stand-in for a `RowStore`, over given arrays sorted by key, which are opened without reading them.

    They may be memory-mapped files. There is no index: keys are found by binary search. Changes are refused.
    """

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
        run_parts(lambda part: kernels.find_sorted(keys, self.row_keys, out, *part), parts)
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


def blocks_of(store: Any, which: np.ndarray, rows: int, key_dtype: np.dtype) -> Iterator[StoredBlock]:
    """The rows `which` of a store as blocks of at most `rows` rows."""
    return (store.block(which[first : first + rows], key_dtype) for first in range(0, len(which), rows))


def _run_of(rows: np.ndarray) -> Any:
    """The row numbers as a slice if they are consecutive, else unchanged."""
    first = int(rows[0]) if len(rows) else 0
    is_run = len(rows) > 0 and int(rows[-1]) - first + 1 == len(rows) and bool((np.diff(rows) == 1).all())
    return slice(first, first + len(rows)) if is_run else rows
