"""`SparseRows`: the gradient of a table of which few rows were read."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.cotangent import Scatter, SparseCotangent
from autobatch.core.op import is_boxed
from autobatch.embedding.ids import as_ids, check_ids
from autobatch.errors import ShapeError, StructureError
from autobatch.kernels import rows as kernels

__all__ = ["SparseRows", "first_seen"]

_ADDED = frozenset(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))


class SparseRows(SparseCotangent):
    """Rows of a table, named by ids; a row that is named more than once counts as the sum, one not named as zero.

    Args:
        ids: (n,) integers, 0 <= id < num_rows; ids may repeat.
        rows: (n, *row_shape).
        num_rows: how many rows the whole table has.

    Raises:
        ShapeError: not one row for each id.
        BadIdError: an id outside the table.

    >>> SparseRows([3, 0, 3], [[1.0, 2.0], [5.0, 5.0], [10.0, 20.0]], 4).coalesce()
    SparseRows(ids=[3, 0], rows=array([[11., 22.],
           [ 5.,  5.]]), num_rows=4)
    """

    __slots__ = ("ids", "num_rows", "rows")

    def __init__(self, ids: Any, rows: Any, num_rows: int) -> None:
        ids = as_ids(ids)
        rows = rows if is_boxed(rows) else np.asarray(rows)
        if ids.ndim != 1 or not shape_of(rows) or shape_of(rows)[0] != ids.shape[0]:
            raise ShapeError(
                f"ids of shape {ids.shape} and rows of shape {shape_of(rows)}; expected (n,) ids and (n, ...) rows"
            )
        check_ids(ids, num_rows)
        self.ids = ids
        self.rows = rows
        self.num_rows = num_rows

    @classmethod
    def trusted(cls, ids: Any, rows: Any, num_rows: int) -> "SparseRows":
        """Without the checks; ids and rows may be of an interpreter."""
        self = object.__new__(cls)
        self.ids, self.rows, self.num_rows = ids, rows, num_rows
        return self

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.num_rows, *shape_of(self.rows)[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return dtype_of(self.rows)

    @property
    def boxed(self) -> bool:
        return is_boxed(self.rows) or is_boxed(self.ids)

    def map_arrays(self, f: Callable[[Any], Any]) -> "SparseRows":
        """With `f` applied to the ids and to the rows."""
        return SparseRows.trusted(f(self.ids), f(self.rows), self.num_rows)

    def coalesce(self) -> "SparseRows":
        """Each id once, in the order of first occurrence, its rows added in the order in which they stand.

        Equal input gives bit-equal output.
        """
        unique, inverse = first_seen(self.ids)
        if len(unique) == len(self.ids):
            return self
        out = np.zeros((len(unique), *self.rows.shape[1:]), self.dtype)
        _add_rows(out, inverse, self.rows)
        return SparseRows.trusted(unique, out, self.num_rows)

    def add_to(self, dense: np.ndarray) -> None:
        _add_rows(dense, self.ids, self.rows)

    def to_dense(self) -> Any:
        """The whole table's gradient, (num_rows, *row_shape)."""
        if self.boxed:
            return Scatter(np.asarray(self.ids), self.rows, self.shape, self.dtype, unique=False).to_dense()
        return super().to_dense()

    @staticmethod
    def combine(parts: Sequence["SparseRows"]) -> "SparseRows":
        ids = np.concatenate([part.ids for part in parts])
        return SparseRows.trusted(ids, np.concatenate([part.rows for part in parts]), parts[0].num_rows)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, SparseRows):
            if self.shape != other.shape:
                raise StructureError(f"SparseRows of shape {self.shape} and {other.shape} do not add up")
            return SparseRows.combine([self, other])
        if isinstance(other, int | float) and other == 0:  # what sum() starts from
            return self
        return self.to_dense() + other

    __radd__ = __add__

    def __mul__(self, scalar: Any) -> "SparseRows":
        if shape_of(scalar) != ():
            raise ShapeError(f"SparseRows times an array of shape {shape_of(scalar)}; only numbers: use .to_dense()")
        return SparseRows.trusted(self.ids, self.rows * scalar, self.num_rows)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> "SparseRows":
        if shape_of(scalar) != ():
            raise ShapeError(f"SparseRows by an array of shape {shape_of(scalar)}; only numbers: use .to_dense()")
        return SparseRows.trusted(self.ids, self.rows / scalar, self.num_rows)

    def __neg__(self) -> "SparseRows":
        return SparseRows.trusted(self.ids, -self.rows, self.num_rows)

    __array_ufunc__ = None  # array + sparse and array * sparse come here instead of element by element

    def __repr__(self) -> str:
        ids = self.ids.tolist() if isinstance(self.ids, np.ndarray) and len(self.ids) <= 20 else self.ids
        return f"SparseRows(ids={ids}, rows={self.rows!r}, num_rows={self.num_rows})"


def first_seen(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids in the order of first occurrence, and for each id its place among them."""
    slots = np.full(1 << max(3, (2 * len(ids)).bit_length()), -1, np.int64)
    inverse, unique = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = kernels.unique_first_seen(np.ascontiguousarray(ids), slots, inverse, unique)
    return unique[:count].copy(), inverse


def _add_rows(dense: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> None:
    """dense[ids] += rows, repeated ids counted, in the order of the ids."""
    if dense.dtype in _ADDED and dense.flags.c_contiguous:
        rows = np.ascontiguousarray(rows, dense.dtype)
        width = int(np.prod(dense.shape[1:], dtype=np.int64))
        kernels.scatter_add(rows.reshape(len(ids), width), ids, dense.reshape(len(dense), width))
    elif dense.dtype == np.float16:
        wide = dense.astype(np.float32)
        _add_rows(wide, ids, rows.astype(np.float32))
        dense[...] = wide
    else:
        np.add.at(dense, ids, rows)
