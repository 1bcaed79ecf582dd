"""`EmbeddingTable`: rows of an array that is there already."""

from typing import Any

import numpy as np

from autobatch.tables.access import Located, gather, locate_array
from autobatch.tables.ids import check_ids
from autobatch.tables.lookup_ops import lookup_p, lookup_where_p
from autobatch.tables.protocol import Context, Table, checked_matrix

__all__ = ["EmbeddingTable", "gather", "lookup_p", "lookup_where_p", "rows_of"]


class EmbeddingTable(Table):
    """A matrix of weights whose rows are looked up by id, and whose gradient is `SparseRows`.

    A thin wrapper: the weights are the array that was given, not a copy, and updates write into them. Rows may be
    strided, and the array may be a `np.memmap` larger than memory, of which only the rows that are named are read.
    `table[ids]` with integers of any rank is a look-up (negative ids are errors); any other index is NumPy's.

    Args:
        weights: (num_rows, dim), any dtype of numbers.
        static: compile the kernels for exactly this dim: a third of a second when a dim is first met, and faster for
            dims that are no power of two.

    Raises:
        ShapeError: not two dimensions. DTypeError: no numbers, or a value that carries a gradient.

    >>> table = EmbeddingTable(np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    >>> table[[2, 0]]
    array([[4., 5.],
           [0., 1.]])
    >>> np.asarray(table) is table.weights
    True
    """

    __slots__ = ("static", "weights")

    weights: np.ndarray
    static: bool

    def __init__(self, weights: Any, static: bool = False) -> None:
        if isinstance(weights, EmbeddingTable):
            static, weights = static or weights.static, weights.weights
        self.weights = checked_matrix(weights, "EmbeddingTable")
        self.static = static

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(rows, dim), that of the weights."""
        return self.weights.shape

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        """The weights' dtype, in which rows are given."""
        return self.weights.dtype

    @property
    def writeable(self) -> bool:
        """Whether the array can be written to."""
        return self.weights.flags.writeable

    def row_addresses(self, ids: np.ndarray, context: Context = Context.NO_CONTEXT) -> np.ndarray:
        """Where rows start in the array."""
        return self.weights.__array_interface__["data"][0] + self.weights.strides[0] * ids.astype(np.int64)

    @property
    def _ab_whole(self) -> np.ndarray:
        return self.weights

    def _ab_locate(self, ids: np.ndarray, context: Context | None) -> Located:
        return locate_array(self.weights, ids, self.static)

    def _ab_overlaps(self, out: np.ndarray) -> bool:
        return np.may_share_memory(out, self.weights)

    def _part(self, index: Any) -> Any:
        return self.weights[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.weights[index] = value

    def write(self, ids: Any, rows: Any) -> None:
        """Row ids[i] becomes rows[i]."""
        self._refuse_updates()
        ids = np.asarray(ids, np.int64)
        check_ids(ids, self.shape[0])
        self.weights[ids] = rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"a table of {self.dtype} as {dtype} needs a copy")
            return np.array(self.weights, dtype=dtype)
        return self.weights

    def __copy__(self) -> "EmbeddingTable":
        return EmbeddingTable(self.weights, self.static)

    def __repr__(self) -> str:
        return f"EmbeddingTable({self.weights!r}{', static=True' if self.static else ''})"


def rows_of(table: Any) -> np.ndarray:
    """The plain array of a table or an array; a copy where the rows are in several places."""
    return table.weights if isinstance(table, EmbeddingTable) else np.asarray(table)
