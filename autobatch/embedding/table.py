"""`EmbeddingTable`, and the look-up: rows of a table named by ids of any rank."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.lanes import current_region
from autobatch.core.op import Op, is_boxed
from autobatch.embedding.ids import as_ids, bad_id_message, check_ids, is_integer_index
from autobatch.embedding.pending import PendingRows
from autobatch.embedding.sparse import SparseRows
from autobatch.errors import BadIdError, DTypeError, ShapeError, note_example
from autobatch.kernels import rows as kernels

__all__ = ["EmbeddingTable", "lookup_p", "lookup_where_p", "rows_of"]

_GATHERED = frozenset(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))


class EmbeddingTable:
    """A matrix of weights whose rows are looked up by id, and whose gradient is `SparseRows`.

    A thin wrapper: the weights are the array that was given, not a copy, and updates write into them. Rows may be
    strided. `table[ids]` with integers of any rank is a look-up (negative ids are errors); any other index is NumPy's.

    Args:
        weights: (num_rows, dim), any dtype.

    Raises:
        ShapeError: not two dimensions.

    >>> table = EmbeddingTable(np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    >>> table[[2, 0]]
    array([[4., 5.],
           [0., 1.]])
    >>> np.asarray(table) is table.weights
    True
    """

    __slots__ = ("weights",)

    weights: np.ndarray

    def __init__(self, weights: Any) -> None:
        if isinstance(weights, EmbeddingTable):
            weights = weights.weights
        if is_boxed(weights):
            raise DTypeError(
                "EmbeddingTable(...) of a value that carries a gradient or is recorded; make the table outside of the "
                "function and pass it in"
            )
        weights = np.asarray(weights)
        if weights.ndim != 2:
            raise ShapeError(f"an EmbeddingTable of weights of shape {weights.shape}; expected (num_rows, dim)")
        self.weights = weights

    @property
    def shape(self) -> tuple[int, int]:
        return self.weights.shape

    @property
    def dtype(self) -> np.dtype:
        return self.weights.dtype

    @property
    def ndim(self) -> int:
        return 2

    @property
    def size(self) -> int:
        return self.weights.size

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: Any) -> Any:
        return EmbeddingTable._ab_lookup(self, index, self.weights.__getitem__)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.weights[index] = value

    @staticmethod
    def _ab_lookup(table: Any, index: Any, otherwise: Callable[[Any], Any]) -> Any:
        """`table[index]`, the table plain or boxed: a look-up for integers, else `otherwise(index)`."""
        if not is_integer_index(index):
            return otherwise(index)
        return lookup_p(table, index if is_boxed(index) else as_ids(index))

    def _ab_gradient(self, ct: Any, taken: set[int]) -> SparseRows:
        """A cotangent of the table as `SparseRows`, its rows in memory that is not among `taken` yet."""
        if ct is None:
            return SparseRows.trusted(np.empty(0, np.int64), np.empty((0, self.shape[1]), self.dtype), len(self))
        if isinstance(ct, SparseRows):
            ids, rows = ct.ids, ct.rows
        else:
            ids, rows = np.arange(len(self)), ct.to_dense() if isinstance(ct, SparseCotangent) else ct
        if type(rows) is np.ndarray:
            owner = rows if rows.base is None else rows.base
            if not rows.flags.writeable or id(owner) in taken:
                owner = rows = rows.copy()
            taken.add(id(owner))
        return SparseRows.trusted(ids, rows, len(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"a table of {self.dtype} as {dtype} needs a copy")
            return np.array(self.weights, dtype=dtype)
        return self.weights

    def __copy__(self) -> "EmbeddingTable":
        return EmbeddingTable(self.weights)

    def __repr__(self) -> str:
        return f"EmbeddingTable({self.weights!r})"


def rows_of(table: Any) -> np.ndarray:
    """The plain array of a table or an array."""
    return table.weights if isinstance(table, EmbeddingTable) else np.asarray(table)


def _for_kernel(weights: np.ndarray) -> bool:
    """Whether the compiled gather takes the rows; NumPy moves rarer dtypes and layouts as fast as it can."""
    return weights.flags.c_contiguous and weights.ndim == 2 and weights.dtype in _GATHERED


def gather(weights: np.ndarray, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """weights[ids] for checked int64 ids."""
    if not _for_kernel(weights):
        if out is None:
            return weights[ids]
        out[...] = weights[ids]
        return out
    if out is None:
        out = np.empty((*ids.shape, weights.shape[1]), weights.dtype)
    kernels.gather(weights, np.ascontiguousarray(ids).reshape(-1), out.reshape(ids.size, weights.shape[1]))
    return out


def _lookup(table: Any, ids: Any) -> np.ndarray:
    weights, ids = rows_of(table), as_ids(ids)
    check_ids(ids, weights.shape[0])
    return gather(weights, ids)


def _lookup_where(table: Any, ids: Any, mask: np.ndarray) -> np.ndarray:
    weights, ids = rows_of(table), as_ids(ids)
    places = np.flatnonzero(mask)
    valid = ids.reshape(-1)[places]
    _check_lanes(valid, weights.shape[0], places, ids.shape)
    out = np.zeros((ids.size, *weights.shape[1:]), weights.dtype)
    if _for_kernel(weights):
        kernels.gather_where(weights, np.ascontiguousarray(ids).reshape(-1), np.ravel(mask), out)
    else:
        out[places] = weights[valid]
    return out.reshape(*ids.shape, *weights.shape[1:])


def _check_lanes(valid: np.ndarray, num_rows: int, places: np.ndarray, shape: tuple[int, ...]) -> None:
    """As `check_ids`, for ids of which each example has its own; `places` are theirs in the flattened batch."""
    at = int(kernels.first_bad_id(valid, num_rows))
    if at < 0:
        return
    lane, *position = map(int, np.unravel_index(places[at], shape))
    place = f"position {position[0] if len(position) == 1 else tuple(position)} of example {lane}"
    raise note_example(BadIdError(bad_id_message(int(valid[at]), place, num_rows)), lane)


def _lookup_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position != 0:
        return None
    table, ids = args
    shape = shape_of(table)
    ids = np.reshape(ids if is_boxed(ids) else as_ids(ids), (-1,))
    return SparseRows.trusted(ids, np.reshape(ct, (ids.shape[0], *shape[1:])), shape[0])


def _lookup_where_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position != 0:
        return None
    table, ids, mask = args
    shape = shape_of(table)
    places = np.flatnonzero(mask)
    flat = np.reshape(ct, (-1, *shape[1:]))
    return SparseRows.trusted(as_ids(ids).reshape(-1)[places], flat[places], shape[0])


def _lookup_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    table, ids = operands
    if isinstance(table, Batched):
        return _lookup_own(table, ids)
    mask = padding_mask(ids.sizes, ids.data.shape[1:])
    sizes = (*ids.sizes, *shape_of(table)[1:])
    if mask is not None:
        mask = np.broadcast_to(mask, ids.data.shape)
        if current_region() is not None and ids.rank == 1 and len(sizes) == 2 and not is_boxed(ids.data):
            wanted = as_ids(ids.data)
            _check_lanes(wanted[mask], shape_of(table)[0], np.flatnonzero(mask), wanted.shape)
            return Batched(PendingRows(table, wanted, mask, lookup_where_p), sizes)
        return Batched(lookup_where_p(table, ids.data, mask), sizes)
    try:
        return Batched(lookup_p(table, ids.data), sizes)
    except BadIdError:
        flat = as_ids(ids.data).reshape(-1)
        _check_lanes(flat, shape_of(table)[0], np.arange(flat.size), ids.data.shape)
        raise


def _lookup_own(table: Batched, ids: Any) -> Batched:
    """Each example looks up in a table of its own: one table below the other, ids moved to their example's rows."""
    lanes, padded = table.data.shape[:2]
    shared = not isinstance(ids, Batched)
    sizes = shape_of(ids) if shared else ids.sizes
    data = np.broadcast_to(as_ids(ids), (lanes, *shape_of(ids))) if shared else as_ids(ids.data)
    mask = None if shared else padding_mask(sizes, data.shape[1:])
    mask = np.broadcast_to(True if mask is None else mask, data.shape)
    rows = table.sizes[0]
    counts = rows.values if isinstance(rows, Lengths) else np.full(lanes, rows)
    column = (lanes,) + (1,) * (data.ndim - 1)
    bad = mask & ((data < 0) | (data >= counts.reshape(column)))
    if bad.any():
        lane = int(np.nonzero(bad)[0][0])
        _check_lanes(data[mask & bad], int(counts[lane]), np.flatnonzero(bad), data.shape)
    moved = np.where(mask, data, 0) + np.arange(lanes).reshape(column) * padded
    flat = table.data.reshape((lanes * padded, *table.data.shape[2:]))
    return Batched(lookup_where_p(flat, moved, mask), (*sizes, *table.sizes[1:]))


lookup_p = Op("lookup", _lookup, rule=_lookup_rule, vjp=_lookup_vjp, kind="lookup")
lookup_where_p = Op("lookup_where", _lookup_where, vjp=_lookup_where_vjp, kind="lookup")
