"""`KeyedTable`: the base class of tables addressed by keys, independent of how they store the rows."""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import check_plain
from autobatch.core.formatting import ArrayLike
from autobatch.core.memory import run_all
from autobatch.core.op import is_boxed
from autobatch.core.pytree import leaves
from autobatch.core.threads import with_locks
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from autobatch.ops.rules.ragged_checks import as_integers, is_integer_index, whole_number
from autobatch.tables.keyed.row_store import StoredBlock
from autobatch.tables.protocol import Table
from autobatch.tables.sparse import SparseRows

_MOST = np.iinfo(np.int64).max
Calls = list[Callable[[], Any]]


class KeyedTable(Table):
    """A table whose ids are keys: any 64-bit integer is a valid key, and a look-up does not change the table.

    Attributes:
        key_dtype: int64 or uint64.
    """

    __slots__ = ("dim", "dtype", "key_dtype", "trainable")

    dim: int
    key_dtype: np.dtype
    _ab_own_names = (
        "add_slot arrays blocks changed_since from_settings locks mark restore_block row_array row_bytes settings "
        "slot_array split start_update"
    )

    def _take_settings(self, like: "KeyedTable") -> None:
        """Have the dim, the dtypes and the trainability of another table."""
        for name in KeyedTable.__slots__:
            setattr(self, name, getattr(like, name))

    @abc.abstractmethod
    def keys(self) -> np.ndarray:
        """The keys in the table, (n,), in ascending order."""

    @abc.abstractmethod
    def contains(self, keys: ArrayLike) -> np.ndarray:
        """For each key, True if it is in the table; in the shape of `keys`."""

    @property
    @abc.abstractmethod
    def locks(self) -> list[Any]:
        """The locks to hold while changing the table."""

    # Changes. Each is first staged; the returned calls then carry it out, all of them even after an interrupt.

    @abc.abstractmethod
    def _inserting(self, keys: np.ndarray, rows: np.ndarray | None) -> Calls:
        """Stage a change; each of the returned calls may be repeated, and returns the number of keys it removes."""

    @abc.abstractmethod
    def _assigning(self, keys: np.ndarray, rows: np.ndarray) -> Calls: ...

    @abc.abstractmethod
    def _removing(self, keys: np.ndarray) -> Calls: ...

    @abc.abstractmethod
    def _shrinking(self, step: int | None) -> Calls: ...

    @abc.abstractmethod
    def _restoring(
        self, block: StoredBlock | None, removed: np.ndarray, arrays: dict[str, np.ndarray] | None, step: int | None
    ) -> Calls: ...

    def _made(self, ready: Callable[[], Calls]) -> int:
        return sum(gone or 0 for gone in with_locks(self.locks, lambda: run_all(ready())))

    def insert(self, keys: ArrayLike, rows: ArrayLike | None = None) -> None:
        """Insert keys; those that are in the table already are not changed.

        Args:
            keys: (n,), may repeat. rows: (n, dim), used for the new keys (of a repeated key, the first row); None: the
                initialiser's rows.

        Raises:
            ShapeError: there is not one row for each key. MemoryError: not enough memory or capacity.
        """
        flat = self._flat(keys)
        given = None if rows is None else self._rows_for(flat, rows)
        self._made(lambda: self._inserting(flat, given))

    def assign(self, keys: ArrayLike, rows: ArrayLike) -> None:
        """Set the rows of keys, inserting missing keys; of a repeated key, the last row stays.

        Args:
            keys: (n,). rows: (n, dim).

        Raises:
            ShapeError: there is not one row for each key. UnsupportedError: the table is for look-ups only.
        """
        self._refuse_updates()
        flat = self._flat(keys)
        given = self._rows_for(flat, rows)
        self._made(lambda: self._assigning(flat, given))

    def remove(self, keys: ArrayLike) -> int:
        """Remove keys, and return how many of them were in the table. They then read as their initial rows."""
        flat = self._flat(keys)
        return self._made(lambda: self._removing(flat))

    def shrink(self, step: int | None = None) -> int:
        """Remove the keys whose last update is more than `steps_to_live` steps ago; returns their number.

        Args:
            step: the current step; None: `users.step`.

        Raises:
            UnsupportedError: the table has no `steps_to_live`.
        """
        now = None if step is None else whole_number(step, "step")
        return self._made(lambda: self._shrinking(now))

    def restore_block(
        self,
        block: StoredBlock | None = None,
        *,
        removed: Any = (),
        arrays: dict[str, np.ndarray] | None = None,
        step: int | None = None,
    ) -> None:
        """Remove keys, then insert or replace the keys of a block, in one atomic change.

        Args:
            block: slots that it lacks are reset. arrays: those that the saved table had besides its rows.
            step: that of the saved table; None: it stays.
        """
        for name, given, of in (("block", block, StoredBlock), ("arrays", arrays, dict)):
            if not isinstance(given, of | None):
                raise UnsupportedError(f"restore_block got {name}={given!r:.60}; expected a {of.__name__}")
        gone = self._flat(removed) if np.size(removed) else np.empty(0, np.int64)
        self._made(lambda: self._restoring(block, gone, arrays, step))

    def _ab_ids(self, keys: object) -> np.ndarray:
        """Check keys of any rank, and convert them to the key dtype."""
        if type(keys) is np.ndarray and keys.dtype == self.key_dtype:
            return keys
        if self.key_dtype == np.int64:
            if type(keys) is np.ndarray and keys.dtype == np.uint64 and keys.size and keys.max() > _MOST:
                raise BadIdError(f"key {keys.max()} in a table of int64 keys; make it one of key_dtype=np.uint64")
            return as_integers(keys, "keys")
        check_plain(keys, "keys")
        found = np.asarray(keys)
        if found.dtype.kind not in "iu" and not isinstance(keys, np.ndarray):
            try:  # a mix of Python integers below and above the range of int64
                if found.size and all(type(key) is int for key in leaves(keys)):
                    found = np.array(keys, np.uint64)
                found = found.astype(np.uint64) if not found.size else found
            except OverflowError:
                raise BadIdError("keys outside the range of uint64; expected 0 to 2**64 - 1") from None
        if found.dtype.kind not in "iu":
            raise DTypeError(f"keys have dtype {found.dtype}; expected integers: ab.hash_keys turns strings into keys")
        if found.dtype.kind == "i" and found.size and found.min() < 0:
            raise BadIdError(f"key {int(found.min())} in a table of uint64 keys; make it one of key_dtype=np.int64")
        return found.astype(np.uint64)

    def _flat(self, keys: ArrayLike) -> np.ndarray:
        """A copy of keys (n,) for the kernels: uint64 keys are viewed as int64."""
        found = self._ab_ids(keys)
        if found.ndim > 1:
            raise ShapeError(f"keys of shape {found.shape}; expected (n,)")
        return np.array(found.reshape(-1)).view(np.int64)

    def read(self, ids: ArrayLike) -> np.ndarray:
        """The rows (n, dim) of keys (n,)."""
        return self[self._ab_ids(ids)]

    def write(self, ids: ArrayLike, rows: ArrayLike) -> None:
        """The same as `assign`."""
        self.assign(ids, rows)

    def __setitem__(self, index: object, value: Any) -> None:
        if not is_integer_index(index) and not isinstance(index, int | list):
            raise DTypeError(f"a table of keys is written to by keys, integers of any rank; got {index!r}")
        keys = self._ab_ids(index)
        self.assign(keys.reshape(-1), np.broadcast_to(value, (*keys.shape, self.dim)).reshape(-1, self.dim))

    __iter__ = None  # type: ignore[assignment]  # rows have no order: use .keys() or .export()

    def __contains__(self, key: Any) -> bool:
        return bool(self.contains([key] if np.ndim(key) == 0 else key).all())

    def _ab_gradient(self, ct: Any, taken: set[int]) -> SparseRows:
        if not self.trainable:
            raise AttributeError("a table for look-ups only has no gradient")
        if ct is not None and not isinstance(ct, SparseRows):
            ids = self.keys()
            return SparseRows.trusted(ids, np.array(ct.to_dense() if hasattr(ct, "to_dense") else ct), None)
        out = super()._ab_gradient(ct, taken)
        return SparseRows.trusted(out.ids.astype(self.key_dtype, copy=False), out.rows, None)

    def lookup(self, keys: ArrayLike) -> np.ndarray:
        """The rows of keys of any rank, the same as `users[keys]`."""
        return self[keys]

    def _rows_for(self, keys: np.ndarray, rows: object) -> np.ndarray:
        if is_boxed(rows):
            raise UnsupportedError("rows that carry a gradient or are recorded; write plain arrays into a variable")
        rows = np.asarray(rows, self.dtype)
        try:
            return np.broadcast_to(rows, (len(keys), self.dim))
        except ValueError:
            raise ShapeError(
                f"rows of shape {rows.shape} for {len(keys)} keys; expected {(len(keys), self.dim)}"
            ) from None
