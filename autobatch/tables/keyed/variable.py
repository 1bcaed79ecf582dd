"""`EmbeddingVariable`: a table of rows addressed by keys, which grows in training and shrinks by `steps_to_live`."""

import functools
import itertools
import operator
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from autobatch.core.formatting import ArrayLike, DTypeLike
from autobatch.errors import BadIdError, DTypeError, OptionError, ShapeError, StructureError, UnsupportedError
from autobatch.kernels.hash_table import DEAD
from autobatch.ops.nn import init
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.tables.keyed import admission as admissions
from autobatch.tables.keyed.keyed_table import Calls, KeyedTable
from autobatch.tables.keyed.partitioned import partitioned_from
from autobatch.tables.keyed.row_store import Change, Changes, RowStore, SortedRows, StoredBlock, blocks_of
from autobatch.tables.protocol import Context
from autobatch.tables.row_access import LocatedRows
from autobatch.tables.sparse import SparseRows, first_seen

_EVICTIONS = ("lru", "lfu", "norm")
_KEYS = (np.dtype(np.int64), np.dtype(np.uint64))
_SLOT = "slot:"  # before the names of slots, in an Arrow table
_SETTINGS = (
    "dim", "initializer", "seed", "capacity", "steps_to_live", "eviction", "insert_on", "trainable", "name", "step",
)  # fmt: skip
_tokens = itertools.count(1)
_none = np.empty(0, np.int64)
T = TypeVar("T")


class SlotOf:
    """A reference, in an optimiser's state, to a slot (per-row optimiser state) that the variable itself stores.

    Attributes:
        name: the slot's name. token: the number of the `init` call that made it; the variable's slot has the same.
    """

    __slots__ = ("name", "token")

    def __init__(self, name: str, token: int) -> None:
        self.name, self.token = name, token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlotOf) and (self.name, self.token) == (other.name, other.token)

    def __hash__(self) -> int:
        return hash((self.name, self.token))

    def __repr__(self) -> str:
        return f"SlotOf({self.name!r}, token={self.token})"


class EmbeddingVariable(KeyedTable):
    """A table of rows addressed by arbitrary integer keys, which grows in training: `users[keys]`, like other tables.

    A look-up does not change the table: a key that is not in it reads as the row that the initialiser makes from
    `(seed, key)`, which is also the key's first row. A key is inserted when its gradient reaches `optimizer.update`, by
    `insert`, or, with `insert_on="lookup"`, by a look-up. The variable stores the optimisers' per-row state (slots)
    itself; `opt.init` and `opt.update` are used as for any table. Rows never move, so `row_addresses` stay valid; the
    row of a removed key is reinitialised and reused for a later key.

    Args:
        dim: number of elements of a row.
        dtype: float16, float32 or float64.
        key_dtype: int64 or uint64; any key is valid, also a negative one. For strings: `ab.Vocabulary`, `ab.hash_keys`.
        initializer: `ab.nn.init.normal(...)`, `uniform`, `constant`, or a function `f(seed, keys, dim, dtype)` that
            returns rows (n, dim), each a function of its key only.
        seed: the seed passed to the initialiser.
        capacity: the maximum number of keys; None: limited by memory only.
        steps_to_live: `shrink` removes the keys whose last update is more than this number of steps ago.
        admission: `ab.tables.admission.count(n)` or `bloom(n, ...)`: a key is inserted with its n-th update.
        eviction: which keys to remove when there are more than `capacity`: "lru" (oldest update), "lfu" (fewest
            updates) or "norm" (smallest row); None: new keys raise MemoryError.
        insert_on: "update" or "lookup".
        trainable: False: the rows are only looked up, and the gradient is None.
        storage: an empty folder for memory-mapped files of rows and slots, for tables larger than memory; None: RAM.
        name: shown in `repr` and messages.

    Raises:
        ShapeError, DTypeError, OptionError: an argument is not valid.

    Source: "Embedding Variable in TensorFlow" (RFC, 2019); DeepRec's `EmbeddingVariable`.

    >>> users = EmbeddingVariable(2, initializer=ab.nn.init.zeros())
    >>> users[[17, -4]]
    array([[0., 0.],
           [0., 0.]], dtype=float32)
    >>> opt = ab.optim.SGD(lr=1.0)
    >>> grads = ab.grad(lambda table: table[[17, 17]].sum())(users)
    >>> _ = opt.update(users, grads, opt.init(users))
    >>> users[17], len(users), -4 in users
    (array([-2., -2.], dtype=float32), 1, False)
    """

    __slots__ = (
        "_admission", "_store", "capacity", "eviction", "initializer", "insert_on", "name", "seed", "step",
        "steps_to_live", "storage",
    )  # fmt: skip
    _ab_in_one = True  # so that `tables.fast_paths` recognises the class without importing it

    def __init__(
        self,
        dim: int,
        *,
        dtype: DTypeLike = np.float32,
        key_dtype: DTypeLike = np.int64,
        initializer: Any = None,
        seed: int = 0,
        capacity: int | None = None,
        steps_to_live: int | None = None,
        admission: admissions.Admission | None = None,
        eviction: str | None = "lru",
        insert_on: str = "update",
        trainable: bool = True,
        storage: Any = None,
        name: str | None = None,
    ) -> None:
        self.dim = whole_option(dim, "dim")
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float16, np.float32, np.float64):
            raise DTypeError(f"an EmbeddingVariable of {self.dtype}; expected float16, float32 or float64")
        self.key_dtype = np.dtype(key_dtype)
        if self.key_dtype not in _KEYS:
            raise DTypeError(
                f"keys of {self.key_dtype}; expected int64 or uint64, to which smaller integers are converted"
            )
        self.initializer = init.normal(std=0.01) if initializer is None else initializer
        if not callable(self.initializer) or not getattr(self.initializer, "by_row", True):
            raise OptionError(
                f"initializer={initializer!r}; expected one whose rows depend on keys alone: ab.nn.init.normal, "
                "uniform or constant, or a function f(seed, keys, dim, dtype)"
            )
        self.seed = operator.index(seed)
        self.capacity = None if capacity is None else whole_option(capacity, "capacity")
        self.steps_to_live = None if steps_to_live is None else whole_option(steps_to_live, "steps_to_live", 0)
        if admission is not None and not isinstance(admission, admissions.Admission):
            raise OptionError(f"admission={admission!r}; expected ab.tables.admission.count(n) or .bloom(n, ...)")
        self._admission = None if admission is None else admission.fresh()
        if eviction is not None and eviction not in _EVICTIONS:
            known = ", ".join(_EVICTIONS)
            raise OptionError(f"eviction={eviction!r}; expected one of {known}, or None to refuse new keys")
        self.eviction = eviction
        if insert_on not in ("update", "lookup"):
            raise OptionError(f"insert_on={insert_on!r}; expected 'update' or 'lookup'")
        self.insert_on, self.trainable, self.name = insert_on, bool(trainable), name
        self.storage = None if storage is None else pathlib.Path(storage)
        self.step = 0
        if self.storage is not None:
            self.storage.mkdir(parents=True, exist_ok=True)
            if any(self.storage.glob("*.bin")):
                raise OptionError(
                    f"storage={str(self.storage)!r} holds the rows of another variable; give an empty folder"
                )
        initial = functools.partial(  # not a bound method, so that no reference cycle keeps the memory alive
            _initial_rows, self.initializer, self.seed, self.dim, self.dtype, self.key_dtype
        )
        self._store = RowStore(self.dim, self.dtype, initial, self.capacity, self.storage)

    # Reading, as any table.

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(number of keys in the table, dim)."""
        return len(self._store), self.dim

    @property
    def nbytes(self) -> int:
        """The number of bytes used by rows, slots, keys and the index."""
        return self._store.nbytes

    @property
    def admission(self) -> admissions.Admission | None:
        """The admission rule with its counts so far, or None."""
        return self._admission

    def row_addresses(self, ids: ArrayLike, context: Context = Context.NO_CONTEXT) -> np.ndarray:
        """The memory addresses of the keys' rows; the address of a key is the same until the key is removed.

        Args:
            ids: (n,) keys. context: ignored here.

        Returns:
            (n,) int64 addresses, each of `dim` elements.

        Raises:
            BadIdError: a key is not in the table.
        """
        keys = self._flat(ids)
        rows, missing = self._store.find(keys)
        if missing:
            key = keys.view(self.key_dtype)[np.argmin(rows)]
            raise BadIdError(f"key {key} is not in the table and has no address; insert it first")
        return self._base + rows * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row."""
        return self.dim * self.dtype.itemsize

    @property
    def _base(self) -> int:
        return self._store.rows.__array_interface__["data"][0]

    def _ab_locate(self, ids: np.ndarray, context: Context | None) -> LocatedRows:
        keys = np.ascontiguousarray(ids, np.int64)
        if self.insert_on == "lookup":
            self._born(keys)
        rows, missing = self._store.find(keys)
        total = self._store.high * self.row_bytes
        form = self.dtype.str[1:]
        if not missing:
            return LocatedRows((self._base, self.row_bytes), rows, form, self.dim, False, self.row_bytes, total, self)
        places = np.flatnonzero(rows < 0)
        new, inverse = first_seen(keys[places])
        made = np.ascontiguousarray(self._store.initial(new))
        addresses = self._base + rows * self.row_bytes
        addresses[places] = made.__array_interface__["data"][0] + inverse * self.row_bytes
        return LocatedRows((0, 1), addresses, form, self.dim, False, self.row_bytes, total, (self, made))

    def _born(self, keys: np.ndarray) -> None:
        if self._store.find(keys)[1]:
            with self._store.lock:
                self._store.commit(self._staged_new(first_seen(keys)[0]), self.step)

    def _ab_read_consistently(self, read: Callable[[], T]) -> T:
        return self._store.read_consistently(read)

    def _ab_overlaps(self, out: np.ndarray) -> bool:
        return np.may_share_memory(out, self._store.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an EmbeddingVariable as one array needs a copy")
        with self._store.lock:
            rows = self._store.rows[self._store.in_order(self.key_dtype)]
        return rows.astype(dtype or self.dtype, copy=False)

    # Keys.

    def keys(self) -> np.ndarray:
        """The keys in the table, (n,), in ascending order."""
        with self._store.lock:
            return np.sort(self._store.row_keys[self._store.alive()].view(self.key_dtype))

    def contains(self, keys: Any) -> np.ndarray:
        """For each key, True if it is in the table; in the shape of `keys`."""
        keys = self._ab_ids(keys)
        flat = np.ascontiguousarray(keys.reshape(-1)).view(np.int64)
        return (self._store.read_consistently(lambda: self._store.find(flat)[0]) >= 0).reshape(keys.shape)

    def _inserting(self, keys: np.ndarray, rows: np.ndarray | None) -> Calls:
        unique, inverse = first_seen(keys)
        if rows is not None:
            first = np.empty(len(unique), np.int64)
            first[inverse[::-1]] = np.arange(len(keys))[::-1]  # in reverse: a key's first position stays
            rows = rows[first]
        return [functools.partial(self._store.commit, self._staged_new(unique, rows), self.step)]

    def _assigning(self, keys: np.ndarray, rows: np.ndarray) -> Calls:
        if (change := self._store.name(keys)) is None:
            keys, inverse = first_seen(keys)
            if len(keys) < len(rows):
                last = np.empty(len(keys), np.int64)
                last[inverse] = np.arange(len(rows))
                rows = rows[last]
            change = self._staged(keys, rows)
        calls: Calls = [self._store.begin, functools.partial(self._store.commit, change, self.step)]
        if len(change.born[0]) < len(keys):  # else `stage` has written all rows already
            calls.insert(1, functools.partial(self._store.put, change.rows, rows))
        return calls

    def _staged(self, keys: np.ndarray, rows: np.ndarray | None = None) -> Change:
        """Stage the insertion of distinct keys (those that are missing), with evictions if there would be too many."""
        if self.capacity is None:
            return self._store.stage(keys, rows)
        return self._store.stage(keys, rows, self._victims, self.capacity)

    def _staged_new(self, keys: np.ndarray, rows: np.ndarray | None = None) -> Change:
        """Stage the insertion of distinct keys; those in the table are not evicted, but do not count as updated."""
        change = self._staged(keys, rows)
        change.rows = change.born[1]
        return change

    def _victims(self, wanted: int, kept: np.ndarray) -> np.ndarray:
        if self.eviction is None:
            raise MemoryError(
                f"{wanted} keys more than the capacity of {self.capacity}, and eviction=None; remove keys, or name an "
                "eviction: 'lru', 'lfu' or 'norm'"
            )
        return self._store.victims(self.eviction, wanted, kept, self.key_dtype)

    def _removing(self, keys: np.ndarray) -> Calls:
        rows = self._store.find(first_seen(keys)[0])[0]
        return self._taking_out(rows[rows >= 0])

    def _shrinking(self, step: int | None) -> Calls:
        if self.steps_to_live is None:
            raise UnsupportedError("shrink() of a variable whose keys never expire; make it with steps_to_live=")
        versions = self._store.versions
        old = versions.astype(np.int64) < (self.step if step is None else step) - self.steps_to_live
        return self._taking_out(np.flatnonzero(old & (versions != DEAD)))

    def _taking_out(self, rows: np.ndarray) -> Calls:
        return [functools.partial(self._store.commit, self._store.stage_removal(rows))] if len(rows) else []

    def export(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Copies of the table's contents, in ascending order of the keys.

        Returns:
            keys (n,), rows (n, dim), versions (n,) (step of each key's last update), counts (n,) (number of updates).
        """
        block = self._whole()
        return block.keys, block.rows, block.versions, block.counts

    def _whole(self) -> StoredBlock:
        """Copies of the table's contents, in ascending order of the keys."""
        with self._store.lock:
            return self._store.block(self._store.in_order(self.key_dtype), self.key_dtype)

    def to_arrow(self) -> Any:
        """The table's contents as a `pyarrow.Table`, in ascending order of the keys, such as for `pyarrow.parquet`.

        Its columns are "key", "row", "version", "count", and "slot:<name>" for each of the optimiser's slots.
        """
        import pyarrow as pa  # noqa: PLC0415

        def lists(rows: np.ndarray) -> Any:
            return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])

        block = self._whole()
        columns = {"key": block.keys, "row": lists(block.rows), "version": block.versions, "count": block.counts}
        return pa.table(columns | {_SLOT + name: lists(x) for name, x in block.slots.items()})

    def from_arrow(self, table: object) -> None:
        """Write the rows of a `pyarrow.Table` as of `to_arrow`, inserting or replacing keys; unknown slots are ignored.

        Versions and counts that it does not have are 0.

        Raises:
            StructureError: the column "key" or "row" is missing. ShapeError: rows of another length.
            UnsupportedError: something that is not an Arrow table.
        """
        if not (hasattr(table, "column_names") and hasattr(table, "combine_chunks")):
            raise UnsupportedError(f"from_arrow of a {type(table).__name__}; expected a pyarrow.Table of to_arrow()")
        if missing := {"key", "row"} - set(table.column_names):
            raise StructureError(f"an Arrow table of {table.column_names}; it lacks {sorted(missing)}")
        table.validate(full=True)  # type: ignore[attr-defined]  # raises ValueError for offsets and lengths that lie
        columns = {name: table[name].combine_chunks() for name in table.column_names}  # type: ignore[index]
        rows = _matrix(columns["row"]).astype(self.dtype, copy=False)
        if rows.shape[1] != self.dim:
            raise ShapeError(f"rows of {rows.shape[1]} numbers in an Arrow table; expected {self.dim}")
        slots = {name.removeprefix(_SLOT): _matrix(x) for name, x in columns.items() if name.startswith(_SLOT)}
        keys, *numbers = (
            columns[name].to_numpy(zero_copy_only=False) if name in columns else np.zeros(len(rows), np.int64)
            for name in ("key", "version", "count")
        )
        self.restore_block(StoredBlock(keys, rows, slots, *numbers))

    # Optimisers.

    def add_slot(self, name: str, fill: float, dtype: DTypeLike, by_row: bool, token: int | None = None) -> SlotOf:
        """Create (or replace) the slot `name`: an optimiser's state for each row, initially `fill`.

        Args:
            by_row: one number for each row, else `dim`. token: the slot's number; None: a new one.

        Returns:
            The reference to put into the optimiser's state.
        """
        with self._store.lock:
            if token is None:
                token = max([next(_tokens), *(slot.token + 1 for slot in self._store.slots.values())])
            self._store.add_slot(name, fill, np.dtype(dtype), 1 if by_row else self.dim, token)
        return SlotOf(name, token)

    def slot_array(self, slot: Any, by_row: bool = False) -> np.ndarray:
        """The array of a slot, (reserved rows, width), indexed like `row_array`.

        Raises:
            StructureError: the variable has no such slot.
        """
        own = self._store.slots.get(slot.name) if isinstance(slot, SlotOf) else None
        width = 1 if by_row else self.dim
        if own is None or own.token != slot.token or own.memory.array.shape[1] != width:
            raise StructureError(
                f"the state of {self!r} is {slot!r}, which does not match its rows; call init(params) again"
            )
        return own.memory.array

    @property
    def locks(self) -> list[Any]:
        """The locks to hold while changing the variable."""
        return [self._store.lock]

    def split(self, grad: SparseRows) -> list[tuple["EmbeddingVariable", SparseRows]]:
        """Pairs of (part of the table, its part of the gradient); here the whole table."""
        return [(self, grad)]

    def partition(self, n: int) -> Any:
        """A copy as a table of n parts, where a hash of the key decides its part; results do not depend on n.

        Rows, slots, versions and counts are copied, and existing optimiser states remain valid for the copy. Only
        `capacity` is divided: each part may hold an n-th of it, so evictions may differ.

        Args:
            n: the number of parts, at least 1.

        Returns:
            A table of keys with `.parts` (variables), `.part_of(keys)` and `.join()`.
        """
        return partitioned_from(self, whole_option(n, "n"))

    @property
    def row_array(self) -> np.ndarray:
        """The array of all rows, (reserved rows, dim); optimisers write to the rows that `Update.rows_of` gives."""
        return self._store.rows

    def start_update(self, grad: SparseRows) -> "Update":
        """Begin an optimiser's step, which becomes visible with its `finish`; the caller holds the lock."""
        self._store.settle()
        return Update(self, grad)

    # Saving: `settings` go into a JSON document, `arrays` are saved as they are, and rows as `blocks`: all of them, or
    # those that changed since a mark. `from_settings`, then `restore_block` for each block, make the variable again.

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, the step and the slots, as a dict for JSON.

        Raises:
            UnsupportedError: the initialiser is a user's function.
        """
        if not isinstance(self.initializer, init.Initializer):
            raise UnsupportedError(f"the initializer {self.initializer!r} cannot be saved; use one of ab.nn.init")
        return self._arguments() | {"initializer": self.initializer.settings}

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS} | {
            "dtype": self.dtype.name,
            "key_dtype": self.key_dtype.name,
            "admission": None if self._admission is None else self._admission.settings,
            "slots": [slot.settings for slot in self._store.slots.values()],
        }

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "EmbeddingVariable":
        """Make an empty variable with the `settings` of another, including step and slots."""
        given = dict(settings) if isinstance(settings, dict) else {}
        if absent := {"dim", "initializer", "admission", "step", "slots"} - given.keys():
            raise StructureError(f"settings without {sorted(absent)}; expected the .settings of a variable")
        step, slots = given.pop("step"), given.pop("slots")
        if isinstance(given["initializer"], dict):
            given["initializer"] = init.from_settings(given["initializer"])
        if given["admission"] is not None:
            given["admission"] = admissions.from_settings(given["admission"])
        out = cls(given.pop("dim"), **given)
        out.step = step
        for slot in slots:
            name, fill, dtype, width, token = (slot[key] for key in ("name", "fill", "dtype", "width", "token"))
            out._store.add_slot(name, fill, np.dtype(dtype), width, token)
        return out

    def arrays(self) -> dict[str, np.ndarray]:
        """The counts of the admission rule, as arrays."""
        return {} if self._admission is None else self._admission.arrays()

    def _admission_of(self, tables: Sequence[Any], mine: Callable[[np.ndarray], np.ndarray]) -> None:
        """Take over the admission counts of other tables, for the keys where `mine(keys)` is True."""
        if self._admission is not None:
            self._admission.take([table.arrays() for table in tables], mine)

    def blocks(self, rows: int = 1 << 16) -> Iterator[StoredBlock]:
        """All contents in blocks of at most `rows` keys; the table must not change while they are read."""
        with self._store.lock:
            alive = self._store.alive()
        return blocks_of(self._store, alive, whole_option(rows, "rows"), self.key_dtype)

    def mark(self) -> int:
        """Mark this moment; returns a number for `changed_since`."""
        return self._store.mark()

    def changed_since(self, mark: int, rows: int = 1 << 16) -> Changes | None:
        """What changed since a mark, found from the log of changes; None if the log does not go back so far.

        From the first mark on, changes are logged. The log is discarded when it becomes as long as the table, and when
        a slot is replaced; entries before `mark` are dropped by this call.
        """
        return self._store.changed_since(operator.index(mark), whole_option(rows, "rows"), self.key_dtype)

    def _restoring(
        self, block: StoredBlock | None, removed: np.ndarray, arrays: dict[str, np.ndarray] | None, step: int | None
    ) -> Calls:
        calls = []
        if block is not None:
            if np.shape(block.rows) != (wanted := (len(block.keys), self.dim)):
                raise ShapeError(f"a block of rows of shape {np.shape(block.rows)}; expected {wanted}")
            calls += self._store.putting(block, self._flat(block.keys), removed)
        elif len(removed):
            calls += self._removing(removed)
        if arrays and self._admission is not None:
            rule = self._admission.fresh()
            rule.restore(arrays)
            calls.append(functools.partial(setattr, self, "_admission", rule))
        if step is not None:
            calls.append(functools.partial(setattr, self, "step", operator.index(step)))
        return calls

    def __reduce__(self) -> Any:
        return _rebuilt, (self._arguments(), list(self.blocks()), self.arrays())

    def __copy__(self) -> "EmbeddingVariable":
        out = object.__new__(EmbeddingVariable)
        for name in (*KeyedTable.__slots__, *self.__slots__):
            setattr(out, name, getattr(self, name))
        return out

    def __repr__(self) -> str:
        name = "" if self.name is None else f"{self.name!r}, "
        limit = "" if self.capacity is None else f" of at most {self.capacity}"
        return f"EmbeddingVariable({name}{len(self)} keys{limit}, dim={self.dim}, dtype={self.dtype})"


class Update:
    """An optimiser's step on a variable that is not yet visible.

    Attributes:
        grad: the gradient, without the keys that the admission rule does not admit.
    """

    __slots__ = ("_change", "_new", "_seen", "_step", "_table", "grad")

    def __init__(self, table: EmbeddingVariable, grad: SparseRows) -> None:
        self._table, self.grad, self._change = table, grad, table._store.stage_removal(_none)
        self._step, self._new, self._seen = table.step + 1, _none, _none
        rule = table._admission
        if rule is not None:
            unique, inverse = first_seen(grad.checked_ids())
            absent = table._store.find(unique)[0] < 0
            self._new = unique[absent]
            self._seen = rule.seen(self._new)
            kept = np.ones(len(unique), np.bool_)
            kept[absent] = rule.admits(self._seen)
            if not kept.all():
                self.grad = grad.where(kept[inverse])

    def rows_of(self, keys: np.ndarray) -> np.ndarray:
        """The row numbers of distinct keys, new keys' rows initialised; from now on these rows may be written."""
        self._change = self._table._staged(keys)
        self._table._store.begin()
        return self._change.rows

    def finish(self) -> None:
        """Make the step visible; calling it again has no effect."""
        table = self._table
        if table._admission is not None:
            table._admission.count(self._new, self._seen)
        table._store.commit(self._change, self._step, counted=True)
        table.step = self._step


def _initial_rows(
    initializer: object, seed: int, dim: int, dtype: np.dtype, key_dtype: np.dtype, keys: np.ndarray
) -> np.ndarray:
    """The initial rows (n, dim) of keys."""
    made: Any = getattr(initializer, "rows", initializer)
    rows = np.asarray(made(seed, keys.view(key_dtype), dim, dtype))
    if rows.shape != (len(keys), dim):
        raise ShapeError(f"the initializer gave rows of shape {rows.shape}; expected {(len(keys), dim)}")
    return rows.astype(dtype, copy=False)


def _rebuilt(arguments: dict[str, Any], blocks: list[StoredBlock], arrays: dict[str, np.ndarray]) -> EmbeddingVariable:
    out = EmbeddingVariable.from_settings(arguments)
    for block in blocks:
        out.restore_block(block)
    out.restore_block(arrays=arrays)
    return out


def _matrix(column: Any) -> np.ndarray:
    """A column of an Arrow table as an array (n, width)."""
    if not hasattr(column.type, "list_size"):
        raise ShapeError(f"rows of type {column.type} in an Arrow table; expected lists of one size, as to_arrow gives")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), column.type.list_size)


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
