"""Reading rows of launched buffers: views where they are consecutive, else one gather; and its gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.cotangent import Scatter
from autobatch.core.op import Op
from autobatch.kernels.memory import gather_buffers

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
    return gather_p(*[buffers[k] for k in used.tolist()], which=_Which(np.searchsorted(used, which)), rows=rows)


class _Which:
    """Which buffer each row comes from; the rows of one buffer are found once for all buffers, when first asked for."""

    __slots__ = ("_bounds", "_order", "numbers")

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers
        self._order: np.ndarray | None = None
        self._bounds: list[int] = []

    def places(self, buffer: int) -> np.ndarray:
        """The places whose row is in this buffer, in order."""
        if self._order is None:
            self._order = np.argsort(self.numbers, kind="stable")
            self._bounds = np.searchsorted(self.numbers[self._order], np.arange(int(self.numbers.max()) + 2)).tolist()
        return self._order[self._bounds[buffer] : self._bounds[buffer + 1]]


def _gather(*buffers: Any, which: _Which | None, rows: Any) -> np.ndarray:
    if which is None:
        buffer = buffers[0]  # take() copies all of a strided array first
        return buffer.take(rows, axis=0) if buffer.flags.c_contiguous and type(rows) is np.ndarray else buffer[rows]
    buffers = tuple(buffer if buffer[:1].flags.c_contiguous else np.ascontiguousarray(buffer) for buffer in buffers)
    out = np.empty((rows.shape[0], *buffers[0].shape[1:]), buffers[0].dtype)
    if out.nbytes:
        addresses = np.array([buffer.__array_interface__["data"][0] for buffer in buffers])
        strides = np.array([buffer.strides[0] for buffer in buffers])
        gather_buffers(addresses, strides, which.numbers, rows, out.strides[0], out.__array_interface__["data"][0])
    return out


def _gather_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    which, rows, buffer = params["which"], params["rows"], args[position]
    if which is not None:
        mine = which.places(position)
        rows, ct = rows[mine], ct[mine]
    return Scatter(rows, ct, tuple(buffer.shape), buffer.dtype, unique=isinstance(rows, slice) or _distinct(rows))


def _distinct(rows: np.ndarray) -> bool:
    return bool((np.bincount(rows) <= 1).all())


gather_p = Op("gather", _gather, vjp=_gather_vjp, kind="gather")


def _row_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return Scatter(params["row"], ct, tuple(args[0].shape), args[0].dtype, unique=True)


row_p = Op("row", lambda buffer, *, row: buffer[row], vjp=_row_vjp, kind="gather")
