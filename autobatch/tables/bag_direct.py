"""The commonest call of `embedding_bag` in one step: sums of plain arrays, checked in the pass that reads them.

A small bag takes a few microseconds, so what is decided on the way to it is most of its cost.
"""

from typing import Any

import numpy as np

from autobatch.core.threads import fits_one_thread
from autobatch.kernels.pooling import MEAN, SQRTN, SUM, checked_sum
from autobatch.tables.access import ahead_of, lanes_of
from autobatch.tables.table import EmbeddingTable

__all__ = ["direct"]

_NORMS = {"sum": SUM, "mean": MEAN, "sqrtn": SQRTN}
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_FORMATS = {np.dtype(np.float32): "f4", np.dtype(np.float64): "f8"}


def direct(ids: Any, table: Any, offsets: Any, mode: Any, weights: Any, closed: bool) -> np.ndarray | None:
    """The reduced bags; None where the call is of another kind, large enough for threads, or wrong.

    The general way then does it, or says what is wrong.
    """
    static = False
    if type(table) is EmbeddingTable:
        table, static = table.weights, table.static
    if offsets is None and weights is None and type(ids) is np.ndarray and ids.ndim == 2 and ids.dtype is _INT64:
        offsets, closed = np.arange(ids.shape[0] + 1) * ids.shape[1], True
        ids = ids.reshape(-1)
    if not (type(table) is type(ids) is type(offsets) is np.ndarray and type(mode) is str):
        return None
    norm, format, dtype = _NORMS.get(mode), _FORMATS.get(table.dtype), ids.dtype
    if norm is None or format is None or offsets.dtype is not dtype or (dtype is not _INT64 and dtype is not _INT32):
        return None
    if not (table.ndim == 2 and ids.ndim == offsets.ndim == 1 and ids.flags.carray and offsets.flags.carray):
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
    stride, step = table.strides
    row_bytes = dim * table.itemsize
    if not dim or (dim > 1 and step != table.itemsize) or not fits_one_thread(ids.shape[0] * row_bytes):
        return None
    out = np.empty((max(offsets.shape[0] - closed, 0), dim), table.dtype)
    place = (table.__array_interface__["data"][0], stride)
    lanes = lanes_of(format, dim, static, place, rows * row_bytes)
    ahead = ahead_of(rows * row_bytes, row_bytes)
    return out if checked_sum(place, rows, ids, offsets, closed, weights, norm, out, dim, ahead, lanes) else None
