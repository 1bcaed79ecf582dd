"""The table classes: rows stored in one array, in several arrays (chunks), or as 8-bit codes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import check_plain
from autobatch.core.formatting import ArrayLike, few_rows
from autobatch.errors import DTypeError, ShapeError
from autobatch.kernels.rows import first_bad_id, split_addresses
from autobatch.ops.rules.ragged_checks import as_ids, as_integers, check_ids, whole_number
from autobatch.tables.protocol import Context, Table, checked_matrix
from autobatch.tables.row_access import LocatedRows, locate_array

_SCALE_AND_BIAS, _MOST_CODE = 8, 255  # bytes after the codes of a quantized row; the largest code


class EmbeddingTable(Table):
    """A matrix of weights whose rows are looked up by id, and whose gradient is `SparseRows`.

    A thin wrapper: the weights are the given array, not a copy, and updates write into it. Rows may be strided. The
    array may be a `np.memmap` larger than memory; only the rows that are looked up are read. `table[ids]` with integer
    ids of any shape is a look-up, in which a negative id is an error; any other index means the same as in NumPy.

    Args:
        weights: (num_rows, dim), any numeric dtype.
        static: compile kernels for exactly this dim. Compilation takes about a third of a second per dim; the kernels
            are then faster if the dim is not a power of two.

    Raises:
        ShapeError: weights are not two-dimensional. DTypeError: weights are not numbers, or carry a gradient.

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

    def _small_lookup(self, index: Any) -> Any:
        weights, cls = self.weights, type(index)
        is_plain = type(weights) is np.ndarray
        if cls is int and is_plain and 0 <= index < len(weights):
            return weights[index].copy()
        # For more ids, the kernel that prefetches rows is faster than `ndarray.take`.
        is_few = cls is np.ndarray and index.dtype == np.int64 and index.ndim == 1 and len(index) < 1 << 10
        if not (is_few and is_plain and weights.flags.c_contiguous and len(weights)):
            return None
        rows = weights.take(index, 0, mode="clip")  # before the check: another thread may write into the ids
        return rows if first_bad_id(index, len(weights)) < 0 else None

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """The shape of the weights, (rows, dim)."""
        return self.weights.shape

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        """The dtype of the weights and of looked-up rows."""
        return self.weights.dtype

    @property
    def writeable(self) -> bool:
        """True if the array can be written to."""
        return self.weights.flags.writeable

    def row_addresses(self, ids: np.ndarray, context: Context = Context.NO_CONTEXT) -> np.ndarray:
        """The memory address of each named row."""
        return self.weights.__array_interface__["data"][0] + self.weights.strides[0] * as_integers(ids)

    @property
    def _ab_whole(self) -> np.ndarray:
        return self.weights

    def _ab_locate(self, ids: np.ndarray, context: Context | None) -> LocatedRows:
        return locate_array(self.weights, ids, self.static)

    def _ab_overlaps(self, out: np.ndarray) -> bool:
        return np.may_share_memory(out, self.weights)

    def _basic_index(self, index: Any) -> Any:
        return self.weights[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.weights[index] = value

    def write(self, ids: Any, rows: ArrayLike) -> None:
        """Set row ids[i] to rows[i], for each i."""
        self._refuse_updates()
        ids = as_ids(ids)
        check_ids(ids, self.shape[0])
        self.weights[ids] = rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"a table of {self.dtype} as {dtype} needs a copy")
            return np.array(self.weights, dtype=dtype)
        return self.weights

    def __repr__(self) -> str:
        return f"EmbeddingTable({few_rows(self.weights)}{', static=True' if self.static else ''})"


class SplitTable(Table):
    """A table whose rows are stored in several arrays (chunks) of equal row count; the last chunk may have fewer rows.

    Each chunk is the given array, not a copy; chunks may be memory-mapped files.

    Args:
        chunks: one or more arrays (rows, dim) of the same dtype and dim, with contiguous rows.

    Raises:
        ShapeError: there is no chunk, dims differ, a chunk other than the last differs in its number of rows, or
            rows are not contiguous. DTypeError: dtypes differ.

    >>> table = SplitTable([np.zeros((2, 3)), np.ones((2, 3)), np.full((1, 3), 2.0)])
    >>> table.shape, table[[4, 1, 2]][:, 0]
    ((5, 3), array([2., 0., 1.]))
    """

    __slots__ = ("_bases", "_strides", "chunks", "dtype", "shape")

    def __init__(self, chunks: Sequence[Any]) -> None:
        arrays = [checked_matrix(chunk, "SplitTable") for chunk in chunks]
        if not arrays:
            raise ShapeError("a SplitTable got no chunks; expected at least one array (rows, dim)")
        first = arrays[0]
        for i, chunk in enumerate(arrays):
            if chunk.shape[1] != first.shape[1]:
                raise ShapeError(f"chunk {i} has rows of {chunk.shape[1]}; expected {first.shape[1]}, as chunk 0")
            if chunk.dtype != first.dtype:
                raise DTypeError(f"chunk {i} has dtype {chunk.dtype}; expected {first.dtype}, as chunk 0")
            if len(chunk) > len(first) or (len(chunk) < len(first) and i + 1 < len(arrays)):
                raise ShapeError(f"chunk {i} has {len(chunk)} rows; expected {len(first)}, or fewer in the last one")
            if chunk.shape[1] > 1 and chunk.strides[1] != chunk.itemsize:
                raise ShapeError(f"chunk {i} has rows with gaps, strides {chunk.strides}; expected contiguous rows")
        self._set(arrays)

    def _set(self, arrays: Sequence[np.ndarray]) -> None:
        self.chunks = tuple(arrays)
        self.shape = (sum(map(len, arrays)), arrays[0].shape[1])
        self.dtype = arrays[0].dtype
        self._bases = np.array([chunk.__array_interface__["data"][0] for chunk in arrays], np.int64)
        self._strides = np.array([chunk.strides[0] for chunk in arrays], np.int64)

    @classmethod
    def from_array(cls, weights: object, rows: int) -> "SplitTable":
        """Split an array into chunks of `rows` rows each; the chunks are views of the array."""
        check_plain(weights, "the weights of a table")
        weights = np.asarray(weights)
        rows = whole_number(rows, "rows of a chunk", 1)
        return cls([weights[i : i + rows] for i in range(0, max(len(weights), 1), rows)])

    def row_addresses(self, ids: np.ndarray, context: Context = Context.NO_CONTEXT) -> np.ndarray:
        """The memory address of each named row, inside its chunk."""
        out = np.empty(len(ids), np.int64)
        if len(ids):
            split_addresses(self._bases, self._strides, len(self.chunks[0]), ids, out)
        return out

    @property
    def writeable(self) -> bool:
        """True if every chunk can be written to."""
        return all(chunk.flags.writeable for chunk in self.chunks)

    def _ab_overlaps(self, out: np.ndarray) -> bool:
        return any(np.may_share_memory(out, chunk) for chunk in self.chunks)

    def __reduce__(self) -> Any:
        return SplitTable, (list(self.chunks),)


class QuantizedTable(Table):
    """A table of 8-bit codes with a scale and a bias for each row: element j is scale * code[j] + bias.

    Look-ups return float32; the table cannot be trained or written. A row is stored as its codes, followed by scale and
    bias as float32: the layout of `torch.ops.quantized.embedding_bag_byte_prepack`.

    Args:
        packed: (num_rows, dim + 8) uint8, rows in the layout above; not copied, and may be memory-mapped.

    Raises:
        DTypeError: `packed` is not uint8. ShapeError: rows without room for a scale and a bias, or with gaps.

    >>> table = QuantizedTable.from_weights([[0.0, 51.0, 255.0], [1.0, 1.0, 1.0]])
    >>> table[[0, 1]]
    array([[  0.,  51., 255.],
           [  1.,   1.,   1.]], dtype=float32)
    >>> table.packed.nbytes
    22
    """

    __slots__ = ("packed", "shape")

    trainable = False
    dtype = np.dtype(np.float32)

    def __init__(self, packed: Any) -> None:
        packed = checked_matrix(packed, "QuantizedTable")
        if packed.dtype != np.uint8:
            raise DTypeError(f"packed rows of dtype {packed.dtype}; expected uint8: see QuantizedTable.from_weights")
        if packed.shape[1] < _SCALE_AND_BIAS or packed.strides[1] != 1:
            raise ShapeError(
                f"packed rows of shape {packed.shape}; expected codes and 8 bytes of scale and bias, without gaps"
            )
        self.packed, self.shape = packed, (len(packed), packed.shape[1] - _SCALE_AND_BIAS)

    @classmethod
    def from_weights(cls, weights: ArrayLike) -> "QuantizedTable":
        """Quantize rows of finite floats: each value to the nearest code, between its row's minimum and maximum."""
        weights = checked_matrix(weights, "QuantizedTable").astype(np.float32)
        if not np.isfinite(weights).all():
            raise DTypeError("weights that are not finite have no codes; expected finite floats")
        low = weights.min(axis=1, initial=np.inf) if weights.shape[1] else np.zeros(len(weights), np.float32)
        high = weights.max(axis=1, initial=-np.inf) if weights.shape[1] else low
        scale = (high.astype(np.float64) - low) / _MOST_CODE
        safe = np.where(scale > 0, scale, 1)[:, None]
        codes = np.clip(np.rint((weights.astype(np.float64) - low[:, None]) / safe), 0, _MOST_CODE).astype(np.uint8)
        return cls.from_codes(codes, scale, low)

    @classmethod
    def from_codes(cls, codes: ArrayLike, scale: ArrayLike, bias: ArrayLike) -> "QuantizedTable":
        """Pack codes (num_rows, dim) and each row's scale and bias, (num_rows,) or one number for all, into a table.

        Raises:
            ShapeError: other shapes. DTypeError: codes are not integers from 0 to 255.
        """
        codes = checked_matrix(codes, "QuantizedTable")
        rows = len(codes)
        if codes.dtype.kind not in "iu" or (codes.size and not 0 <= int(codes.min()) <= int(codes.max()) <= _MOST_CODE):
            raise DTypeError(f"codes of dtype {codes.dtype}; expected integers from 0 to {_MOST_CODE}")
        numbers = np.empty((rows, 2), np.float32)
        for column, values in enumerate((scale, bias)):
            if np.shape(values) not in ((), (rows,)):
                raise ShapeError(f"scale and bias have shape {np.shape(values)}; expected one for each row, ({rows},)")
            numbers[:, column] = values
        return cls(np.concatenate([codes.astype(np.uint8), numbers.view(np.uint8)], axis=1))

    @property
    def nbytes(self) -> int:
        """The number of bytes of the packed rows, including scales and biases."""
        return self.packed.nbytes

    def row_addresses(self, ids: np.ndarray, context: Context = Context.NO_CONTEXT) -> np.ndarray:
        """The memory address of each named packed row; raises UnsupportedError for an update."""
        if context is Context.UPDATE:
            self._refuse_updates()
        return self.packed.__array_interface__["data"][0] + self.packed.strides[0] * as_integers(ids)

    def _ab_locate(self, ids: np.ndarray, context: Context | None) -> LocatedRows:
        if context is Context.UPDATE:
            self._refuse_updates()
        place = self.packed.__array_interface__["data"][0], self.packed.strides[0]
        row_bytes, nbytes = self.packed.shape[1], self.packed.nbytes
        return LocatedRows(place, ids, "q8", self.shape[1], False, row_bytes, nbytes, self.packed)

    def _ab_overlaps(self, out: np.ndarray) -> bool:
        return np.may_share_memory(out, self.packed)

    def __reduce__(self) -> Any:
        return QuantizedTable, (self.packed,)
