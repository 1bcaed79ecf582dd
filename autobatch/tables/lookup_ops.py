"""The look-up: rows of a table named by ids of any rank, plain, batched and backward."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.lanes import current_region
from autobatch.core.op import Op, is_boxed
from autobatch.errors import BadIdError, note_example
from autobatch.kernels import rows as kernels
from autobatch.tables.access import gather
from autobatch.tables.ids import as_ids, bad_id_message, check_ids, integer_ids, is_integer_index
from autobatch.tables.pending import PendingRows
from autobatch.tables.sparse import SparseRows

__all__ = ["index_table", "lookup_p", "lookup_where_p"]


def index_table(table: Any, index: Any, otherwise: Callable[[Any], Any]) -> Any:
    """`table[index]`, the table plain or boxed: a look-up for integers, else `otherwise(index)`."""
    if not is_integer_index(index):
        return otherwise(index)
    return lookup_p(table, index if is_boxed(index) else integer_ids(index))


def _plain(table: Any) -> Any:
    return table if hasattr(table, "_ab_locate") else np.asarray(table)


def _lookup(table: Any, ids: Any) -> np.ndarray:
    table, ids = _plain(table), integer_ids(ids)
    check_ids(ids, table.shape[0])
    if table.ndim != 2:
        return table[ids]
    return gather(table, ids)


def _lookup_where(table: Any, ids: Any, mask: np.ndarray) -> np.ndarray:
    table, ids = _plain(table), integer_ids(ids)
    places = np.flatnonzero(mask)
    valid = ids.reshape(-1)[places]
    _check_lanes(valid, table.shape[0], places, ids.shape)
    out = np.zeros((ids.size, *table.shape[1:]), table.dtype)
    if type(table) is np.ndarray and table.flags.c_contiguous and table.dtype in _GATHERED and table.ndim == 2:
        kernels.gather_where(table, np.ascontiguousarray(ids).reshape(-1), np.ravel(mask), out)
    else:
        out[places] = table[valid] if type(table) is np.ndarray else gather(table, valid)
    return out.reshape(*ids.shape, *table.shape[1:])


_GATHERED = frozenset(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))


def _check_lanes(valid: np.ndarray, num_rows: int, places: np.ndarray, shape: tuple[int, ...]) -> None:
    """As `check_ids`, for ids of which each example has its own; `places` are theirs in the flattened batch."""
    at = int(kernels.first_bad_id(valid, num_rows))
    if at < 0:
        return
    lane, *position = map(int, np.unravel_index(places[at], shape))
    place = f" at position {position[0] if len(position) == 1 else tuple(position)} of example {lane}"
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
