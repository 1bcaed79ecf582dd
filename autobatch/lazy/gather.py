"""Reading rows of launched buffers: views where they are consecutive, else one gather; and its gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.cotangent import Scatter
from autobatch.core.op import Op

__all__ = ["gather_p", "gather_rows", "row_p"]


def gather_rows(buffers: Sequence[Any], which: np.ndarray, rows: np.ndarray) -> Any:
    """Row `rows[i]` of buffer `which[i]`, for each i, as one array.

    Args:
        buffers: arrays (n_k, *shape) of one shape and dtype, plain or of an interpreter below.
        which: (n,) int64; rows: (n,) int64.
    """
    first = which[0]
    if (which == first).all():
        buffer = buffers[first]
        n, start = rows.shape[0], int(rows[0])
        if int(rows[-1]) - start == n - 1 and (n <= 2 or (rows[1:] - rows[:-1] == 1).all()):
            if n == buffer.shape[0]:
                return buffer
            return gather_p(buffer, which=None, rows=slice(start, start + n))
        return gather_p(buffer, which=None, rows=rows)
    used = np.unique(which)
    return gather_p(*[buffers[k] for k in used.tolist()], which=np.searchsorted(used, which), rows=rows)


def _gather(*buffers: Any, which: np.ndarray | None, rows: Any) -> np.ndarray:
    if which is None:
        buffer = buffers[0]  # take() copies all of a strided array first
        return buffer.take(rows, axis=0) if buffer.flags.c_contiguous and type(rows) is np.ndarray else buffer[rows]
    out = np.empty((rows.shape[0], *buffers[0].shape[1:]), buffers[0].dtype)
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(buffers) + 1)).tolist()
    for k, buffer in enumerate(buffers):
        mine = order[bounds[k] : bounds[k + 1]]
        out[mine] = buffer[rows[mine]]
    return out


def _gather_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    which, rows, buffer = params["which"], params["rows"], args[position]
    if which is not None:
        mine = np.flatnonzero(which == position)
        rows, ct = rows[mine], ct[mine]
    return Scatter(rows, ct, tuple(buffer.shape), buffer.dtype, unique=isinstance(rows, slice) or _distinct(rows))


def _distinct(rows: np.ndarray) -> bool:
    return bool((np.bincount(rows) <= 1).all())


gather_p = Op("gather", _gather, vjp=_gather_vjp, kind="gather")


def _row_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return Scatter(params["row"], ct, tuple(args[0].shape), args[0].dtype, unique=True)


row_p = Op("row", lambda buffer, *, row: buffer[row], vjp=_row_vjp, kind="gather")
