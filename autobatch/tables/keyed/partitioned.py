"""`PartitionedVariable`: a table of keys split into parts, where a fixed hash of a key decides its part."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from autobatch.core.formatting import ArrayLike, DTypeLike
from autobatch.errors import OptionError
from autobatch.kernels.hash_table import assign_partitions
from autobatch.tables.keyed.keyed_table import Calls, KeyedTable
from autobatch.tables.keyed.row_store import StoredBlock
from autobatch.tables.protocol import Context
from autobatch.tables.row_access import LocatedRows
from autobatch.tables.sparse import SparseRows

T = TypeVar("T")


class PartitionedVariable(KeyedTable):
    """Several variables as one table; a hash, the same on every machine, decides which of them holds a key.

    `users.partition(n)` makes it. Results, gradients and steps are those of a single variable, for any n.

    Args:
        parts: `EmbeddingVariable`s of the same dim, dtype, key dtype, initialiser and seed, each with its own keys.

    Raises:
        OptionError: there are no parts, or they differ in one of these.

    >>> users = ab.EmbeddingVariable(2, seed=5).partition(3)
    >>> users.assign([1, 2, 3, 4], np.ones((4, 2)))
    >>> users.shape, users.keys(), sum(map(len, users.parts))
    ((4, 2), array([1, 2, 3, 4]), 4)
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)
        if not self.parts:
            raise OptionError("a PartitionedVariable got no parts; expected at least one EmbeddingVariable")
        first = self.parts[0]
        for i, part in enumerate(self.parts):
            for name in (*KeyedTable.__slots__, "initializer", "seed"):
                if getattr(part, name) != getattr(first, name):
                    raise OptionError(
                        f"part {i} has {name}={getattr(part, name)}; expected {getattr(first, name)}, as part 0"
                    )
        self._take_settings(first)

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(number of keys in the table, dim)."""
        return sum(map(len, self.parts)), self.dim

    @property
    def nbytes(self) -> int:
        """The number of bytes used by all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def step(self) -> int:
        """The number of optimiser steps taken."""
        return max(part.step for part in self.parts)

    def part_of(self, keys: Any) -> np.ndarray:
        """The number of the part that each key belongs to, in the shape of the keys."""
        keys = self._ab_ids(keys)
        flat = np.ascontiguousarray(keys.reshape(-1)).view(np.int64)
        out = np.empty(len(flat), np.int64)
        assign_partitions(flat, len(self.parts), out)
        return out.reshape(keys.shape)

    def _shares(self, keys: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
        """Pairs of (part, positions of its keys in `keys`)."""
        of = self.part_of(keys)
        return ((part, np.flatnonzero(of == i)) for i, part in enumerate(self.parts))

    def row_addresses(self, ids: ArrayLike, context: Context = Context.NO_CONTEXT) -> np.ndarray:
        """The memory addresses of the keys' rows; the address of a key is the same until the key is removed."""
        keys = self._ab_ids(ids)
        out = np.empty(len(keys), np.int64)
        for part, at in self._shares(keys):
            out[at] = part.row_addresses(keys[at], context)
        return out

    def _ab_locate(self, ids: np.ndarray, context: Context | None) -> LocatedRows:
        addresses, keep, total = np.empty(len(ids), np.int64), [], 0
        keys = ids.view(self.key_dtype)
        for part, at in self._shares(keys):
            found = part._ab_locate(ids[at], context)
            addresses[at] = found.table[0] + found.table[1] * found.ids
            keep.append(found.owner)
            total += found.total_bytes
        size = self.dim * self.dtype.itemsize
        return LocatedRows((0, 1), addresses, self.dtype.str[1:], self.dim, False, size, total, keep)

    def _ab_read_consistently(self, read: Callable[[], T]) -> T:
        for part in self.parts:
            read = functools.partial(part._ab_read_consistently, read)
        return read()

    def keys(self) -> np.ndarray:
        """The keys in the table, (n,), in ascending order."""
        return np.sort(np.concatenate([part.keys() for part in self.parts]))

    def contains(self, keys: Any) -> np.ndarray:
        """For each key, True if it is in the table; in the shape of `keys`."""
        keys = self._ab_ids(keys)
        flat = keys.reshape(-1)
        out = np.zeros(len(flat), np.bool_)
        for part, at in self._shares(flat):
            out[at] = part.contains(flat[at])
        return out.reshape(keys.shape)

    def _inserting(self, keys: np.ndarray, rows: np.ndarray | None) -> Calls:
        return self._of_parts(keys, lambda part, at: part._inserting(keys[at], None if rows is None else rows[at]))

    def _assigning(self, keys: np.ndarray, rows: np.ndarray) -> Calls:
        return self._of_parts(keys, lambda part, at: part._assigning(keys[at], rows[at]))

    def _removing(self, keys: np.ndarray) -> Calls:
        return self._of_parts(keys, lambda part, at: part._removing(keys[at]))

    def _shrinking(self, step: int | None) -> Calls:
        return [call for part in self.parts for call in part._shrinking(self.step if step is None else step)]

    def _of_parts(self, keys: np.ndarray, calls: Callable[[Any, np.ndarray], Calls]) -> Calls:
        return [call for part, at in self._shares(keys.view(self.key_dtype)) for call in calls(part, at)]

    def export(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Copies of the contents, in ascending order of the keys: keys, rows, versions, counts."""
        parts = [np.concatenate(arrays) for arrays in zip(*(part.export() for part in self.parts), strict=True)]
        order = np.argsort(parts[0], kind="stable")
        keys, rows, versions, counts = (part[order] for part in parts)
        return keys, rows, versions, counts

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a PartitionedVariable as one array needs a copy")
        return self.export()[1].astype(dtype or self.dtype, copy=False)

    def blocks(self, rows: int = 1 << 16) -> Iterator[StoredBlock]:
        """All contents, in blocks of at most `rows` keys."""
        return (block for part in self.parts for block in part.blocks(rows))

    def _restoring(
        self, block: StoredBlock | None, removed: np.ndarray, arrays: dict[str, np.ndarray] | None, step: int | None
    ) -> Calls:
        own: list[StoredBlock | None] = [None] * len(self.parts)
        if block is not None:
            own = [block.take(at) for _, at in self._shares(self._ab_ids(block.keys))]
        gone = [removed[at] for _, at in self._shares(removed.view(self.key_dtype))]
        given = zip(self.parts, own, gone, strict=True)
        return [call for part, mine, keys in given for call in part._restoring(mine, keys, arrays, step)]

    def partition(self, n: int) -> "PartitionedVariable":
        """A copy in n parts."""
        return self.join().partition(n)

    def join(self) -> Any:
        """A copy as one `EmbeddingVariable`."""
        settings = dict(self.parts[0]._arguments())
        capacity = settings["capacity"]
        out = type(self.parts[0]).from_settings(
            settings | {"capacity": None if capacity is None else capacity * len(self.parts), "step": self.step}
        )
        for block in self.blocks():
            out.restore_block(block)
        out._admission_of(self.parts, lambda keys: np.ones(len(keys), np.bool_))
        return out

    # Optimisers.

    @property
    def locks(self) -> list[Any]:
        """The locks to hold while changing the table."""
        return [lock for part in self.parts for lock in part.locks]

    def add_slot(self, name: str, fill: float, dtype: DTypeLike, by_row: bool) -> Any:
        """Create (or replace) a slot, an optimiser's state for each row, in every part."""
        slot = self.parts[0].add_slot(name, fill, dtype, by_row)
        for part in self.parts[1:]:
            part.add_slot(name, fill, dtype, by_row, slot.token)
        return slot

    def slot_array(self, slot: object, by_row: bool = False) -> np.ndarray:
        """Check that all parts have the slot, and return the array of the first part."""
        return next(iter([part.slot_array(slot, by_row) for part in self.parts]))

    def split(self, grad: SparseRows) -> list[tuple[Any, SparseRows]]:
        """Pairs of (part, its part of the gradient)."""
        of = self.part_of(grad.checked_ids().view(self.key_dtype))
        return [(part, grad.where(of == i)) for i, part in enumerate(self.parts)]

    def __reduce__(self) -> Any:
        return PartitionedVariable, (self.parts,)

    def __repr__(self) -> str:
        return f"PartitionedVariable({len(self)} keys in {len(self.parts)} parts, dim={self.dim}, dtype={self.dtype})"


def partitioned_from(table: Any, n: int) -> PartitionedVariable:
    """A copy of a variable in n parts."""
    settings = dict(table._arguments())
    if table.capacity is not None:
        settings["capacity"] = -(-table.capacity // n)
    out = PartitionedVariable([type(table).from_settings(settings) for _ in range(n)])
    for block in table.blocks():
        out.restore_block(block)
    for i, part in enumerate(out.parts):
        part.step = table.step
        part._admission_of([table], lambda keys, i=i: out.part_of(keys.view(table.key_dtype)) == i)
    return out
