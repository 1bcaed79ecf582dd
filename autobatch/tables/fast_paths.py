"""Fast paths for the most common calls: sums of plain arrays by bag and by segment, checked while they are computed.

A small reduction takes a few microseconds, so dispatch is most of its cost. These functions return None if a call is of
another kind, large enough for threads, or wrong; the general code then computes it, or raises the right error.
"""

from typing import Any

import numpy as np

from autobatch.core.threads import fits_one_thread
from autobatch.kernels.bags import SUM, pool_sum_checked
from autobatch.kernels.segment_reductions import are_valid_bounds, run_bounds, sum_rows, sum_runs
from autobatch.tables.reduction_modes import MODES
from autobatch.tables.row_access import prefetch_distance, read_cost, row_layout, run_layout
from autobatch.tables.table import EmbeddingTable

_NORMS = {name: mode.norm.kernel for name, mode in MODES.items() if mode.norm is not None}
_FORMATS = {np.dtype(np.float32): "f4", np.dtype(np.float64): "f8"}
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_ANY = 2**63 - 1  # the number of rows if ids need no check: rows found for keys, or addresses
_MOST = 1 << 24  # segments: with more, the general code checks the count before memory is allocated


def direct_bags(
    ids: Any, table: Any, offsets: Any, mode: object, weights: Any, closed: bool, padding: Any = None
) -> np.ndarray | None:
    """The reduced bags (bags, dim), or None: use the general code. `closed`: the last offset is the end."""
    static = False
    if type(table) is EmbeddingTable:
        table, static = table.weights, table.static
    if offsets is None and weights is None and type(ids) is np.ndarray and ids.ndim == 2 and ids.dtype is _INT64:
        offsets, closed = np.arange(ids.shape[0] + 1) * ids.shape[1], True
        ids = ids.reshape(-1)
    of_keys = "_ab_in_one" in vars(type(table))
    if not (type(ids) is type(offsets) is np.ndarray and (of_keys or type(table) is np.ndarray) and type(mode) is str):
        return None
    norm, format, dtype = _NORMS.get(mode), _FORMATS.get(table.dtype), ids.dtype
    if norm is None or format is None or offsets.dtype is not dtype or (dtype is not _INT64 and dtype is not _INT32):
        return None
    if not (table.ndim == 2 and ids.ndim == offsets.ndim == 1 and ids.flags.carray and offsets.flags.carray):
        return None
    if of_keys and (dtype is not table.key_dtype or table.insert_on == "lookup"):  # inserts, so offsets come first
        return None
    if weights is not None and not (
        norm == SUM
        and type(weights) is np.ndarray
        and weights.dtype is table.dtype
        and weights.shape == ids.shape
        and weights.flags.carray
    ):
        return None
    rows, dim = table.shape
    if padding is not None:
        if of_keys or type(padding) is not int or not -rows <= padding < rows:
            return None
        padding = padding + rows if padding < 0 else padding
    row_bytes = dim * table.dtype.itemsize
    if not dim or not fits_one_thread(read_cost(ids.shape[0], row_bytes, table.nbytes)):
        return None
    out = np.empty((max(offsets.shape[0] - closed, 0), dim), table.dtype)
    if of_keys:

        def read() -> bool:
            found = table._ab_locate(ids, None)
            lanes = row_layout(format, dim, False, found.table, found.total_bytes)
            bags = offsets, closed, weights, norm, out, dim, found.ahead, lanes
            return pool_sum_checked(found.table, _ANY, found.ids, *bags, None)

        return out if table._ab_read_consistently(read) else None
    stride, step = table.strides
    if dim > 1 and step != table.itemsize:
        return None
    place = (table.__array_interface__["data"][0], stride)
    lanes = row_layout(format, dim, static, place, rows * row_bytes)
    bags = offsets, closed, weights, norm, out, dim, prefetch_distance(rows * row_bytes, row_bytes), lanes
    return out if pool_sum_checked(place, rows, ids, *bags, padding) else None


def direct_segments(mode: str, data: object, form: str, described: object, count: object) -> np.ndarray | None:
    """The reduced rows (segments, ...) of a segment function; None: use the general code."""
    if not (type(data) is type(described) is np.ndarray and described.dtype is _INT64 and described.flags.carray):
        return None
    if count is not None and type(count) is not int:
        return None
    norm, format = _NORMS.get(mode), _FORMATS.get(data.dtype)
    if norm is None or format is None or data.ndim not in (1, 2) or described.ndim != 1 or not data.flags.carray:
        return None
    x = data if data.ndim == 2 else data.reshape(-1, 1)
    dim = x.shape[1]
    if not dim or (dim == 1 and norm != SUM) or not fits_one_thread(data.nbytes):
        return None
    bounds: np.ndarray | None
    if form == "lengths":  # if their cumulative sums are valid bounds, the lengths are valid
        bounds = np.zeros(described.shape[0] + 1, np.int64)
        described.cumsum(out=bounds[1:])
    else:
        bounds = _bounds(described, len(x), count) if form == "segment_ids" else described.copy()
    if bounds is None or (count is not None and count != len(bounds) - 1):
        return None
    if form != "segment_ids" and not are_valid_bounds(bounds, len(x)):
        return None
    out, lanes = np.empty((len(bounds) - 1, dim), data.dtype), run_layout(format, dim)
    if dim == 1:
        sum_runs(x, None, bounds, out, lanes)
    else:
        place = (x.__array_interface__["data"][0], x.strides[0])
        sum_rows(place, bounds, None, norm, out, (0, len(out)), dim, lanes)
    return out if data.ndim == 2 else out[:, 0]


def _bounds(segments: np.ndarray, rows: int, count: Any) -> np.ndarray | None:
    """The bounds (segments + 1,) of segments given by ids; None if the ids are invalid or not in ascending order."""
    if segments.shape[0] != rows or not rows:
        return None
    count = int(segments[-1]) + 1 if count is None else count
    if not 0 < count <= _MOST:
        return None
    bounds = np.zeros(count + 1, np.int64)
    return bounds if run_bounds(segments, bounds) else None
