"""The commonest calls of the segment functions in one step: sums of plain rows that stand segment after segment.

A small reduction takes a few microseconds, so what is decided on the way to it is most of its cost.
"""

from typing import Any

import numpy as np

from autobatch.core.threads import fits_one_thread
from autobatch.kernels.pooling import MEAN, SQRTN, SUM
from autobatch.kernels.runs import are_bounds, run_bounds, sum_rows, sum_runs
from autobatch.tables.access import lanes_of_runs

__all__ = ["direct"]

_NORMS = {"sum": SUM, "mean": MEAN, "sqrtn": SQRTN}
_FORMATS = {np.dtype(np.float32): "f4", np.dtype(np.float64): "f8"}
_MOST = 1 << 24  # segments: of more the general way says whether there are so many, before there is memory for them
_INT64 = np.dtype(np.int64)


def direct(mode: str, data: Any, form: str, described: Any, count: Any) -> np.ndarray | None:
    """The reduced rows; None where the call is of another kind, large enough for threads, or wrong.

    The general way then does it, or says what is wrong.
    """
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
    bounds: np.ndarray | None = described
    if form == "lengths":  # sums that never fall and end at the number of rows are of lengths that are right
        bounds = np.zeros(described.shape[0] + 1, np.int64)
        described.cumsum(out=bounds[1:])
    elif form == "segment_ids":
        bounds = _bounds(described, len(x), count)
    if bounds is None or (count is not None and count != len(bounds) - 1):
        return None
    if form != "segment_ids" and not are_bounds(bounds, len(x)):
        return None
    out, lanes = np.empty((len(bounds) - 1, dim), data.dtype), lanes_of_runs(format, dim)
    if dim == 1:
        sum_runs(x, None, bounds, out, lanes)
    else:
        place = (x.__array_interface__["data"][0], x.strides[0])
        sum_rows(place, bounds, None, norm, out, (0, len(out)), dim, lanes)
    return out if data.ndim == 2 else out[:, 0]


def _bounds(segments: np.ndarray, rows: int, count: Any) -> np.ndarray | None:
    """The bounds of segments by their ids, if those are right and never fall."""
    if segments.shape[0] != rows or not rows:
        return None
    count = int(segments[-1]) + 1 if count is None else count
    if not 0 < count <= _MOST:
        return None
    bounds = np.zeros(count + 1, np.int64)
    return bounds if run_bounds(segments, bounds) else None
