"""Reading rows of launched buffers: views where they are consecutive, else one gather; and its gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.cotangent import Scatter, SparseCotangent
from autobatch.core.op import Op
from autobatch.kernels.buffers import CONSECUTIVE, ONE_BUFFER, gather_buffers
from autobatch.kernels.rows import add_picked

__all__ = ["Buffers", "Picked", "gather_p", "gather_rows", "row_p"]

_ADDED = (np.float32, np.float64)


class Buffers:
    """The buffers of one wave: arrays of rows, plain or of an interpreter below.

    Attributes:
        arrays: them, by their number; None for one that is still to come.
        plain: whether all that are there are plain arrays.
    """

    __slots__ = ("_addresses", "_strided", "_strides", "arrays", "plain")

    def __init__(self, arrays: list[Any], count: int) -> None:
        self.arrays = arrays
        self.plain = True
        self._strided: set[int] = set()  # numbers of plain arrays whose rows do not lie in one piece
        arrays += [None] * count
        self._addresses = np.zeros(len(arrays), np.int64)
        self._strides = np.zeros(len(arrays), np.int64)

    def put(self, number: int, array: Any) -> None:
        """Let a buffer be this array."""
        if type(array) is not np.ndarray:
            self.plain = False
        elif array.flags.c_contiguous or array[:1].flags.c_contiguous:
            self._addresses[number] = array.__array_interface__["data"][0]
            self._strides[number] = array.strides[0]
        else:
            self._strided.add(number)
        self.arrays[number] = array

    def append(self, array: Any) -> int:
        """Add a buffer; its number."""
        number = len(self.arrays)
        self.arrays.append(None)
        if number >= len(self._addresses):
            self._addresses = np.concatenate([self._addresses, np.zeros(number + 1, np.int64)])
            self._strides = np.concatenate([self._strides, np.zeros(number + 1, np.int64)])
        self.put(number, array)
        return number

    def copied(self, like: int, which: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Row `rows[i]` of buffer `which[i]`, for each i, of plain buffers that are all like number `like`."""
        for number in self._strided.intersection(which.tolist()) if self._strided else ():
            self._strided.discard(number)
            self.put(number, np.ascontiguousarray(self.arrays[number]))
        array = self.arrays[like]
        out = np.empty((rows.shape[0], *array.shape[1:]), array.dtype)
        if out.size:
            start = out.__array_interface__["data"][0]
            gather_buffers(self._addresses, self._strides, which, rows, out.strides[0], start)
        return out


def gather_rows(buffers: Buffers, which: np.ndarray, rows: np.ndarray, how: int) -> Any:
    """Row `rows[i]` of buffer `which[i]`, for each i, as one array.

    Args:
        buffers: arrays (n_k, *shape), those that are named of one shape and dtype.
        which: (n,) int64; rows: (n,) int64; how: what `kernels.buffers.locate` found, CONSECUTIVE or later.
    """
    first = which.item(0)
    buffer = buffers.arrays[first]
    if how == CONSECUTIVE:
        n = rows.shape[0]
        if n == buffer.shape[0]:
            return buffer
        start = rows.item(0)
        if type(buffer) is np.ndarray:
            return buffer[start : start + n]
        return gather_p(buffer, which=None, rows=slice(start, start + n))
    if buffers.plain or (how == ONE_BUFFER and type(buffer) is np.ndarray):
        return buffers.copied(first, which, rows)
    if how == ONE_BUFFER:
        return gather_p(buffer, which=None, rows=rows)
    used = np.flatnonzero(np.bincount(which)).tolist()
    several = [buffers.arrays[k] for k in used]
    if all(type(each) is np.ndarray for each in several):
        return buffers.copied(first, which, rows)
    number = np.zeros(used[-1] + 1, np.int64)
    number[used] = np.arange(len(used))
    return gather_p(*several, which=_Which(number[which]), rows=rows)


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


class Picked(SparseCotangent):
    """`values[places]` at `rows` of an array, zero elsewhere: what one of several buffers that a gather read gets.

    >>> Picked(np.array([1, 1]), np.array([[1.0], [2.0], [3.0]]), np.array([0, 2]), (2, 1)).to_dense()
    array([[0.],
           [4.]])
    """

    __slots__ = ("dtype", "places", "rows", "shape", "values")

    def __init__(self, rows: np.ndarray, values: np.ndarray, places: np.ndarray, shape: tuple[int, ...]) -> None:
        self.rows = rows
        self.values = values
        self.places = places
        self.shape = shape
        self.dtype = values.dtype

    def add_to(self, dense: np.ndarray) -> None:
        if dense.flags.c_contiguous and dense.dtype == self.dtype and dense.size:
            values = np.ascontiguousarray(self.values)
            flat = dense.reshape(len(dense), -1)
            add_picked(values.reshape(len(values), flat.shape[1]), self.places, self.rows, flat)
        else:
            np.add.at(dense, self.rows, self.values[self.places])


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
        rows = rows[mine]
        if type(ct) is np.ndarray and ct.dtype == buffer.dtype and ct.dtype in _ADDED:
            return Picked(rows, ct, mine, tuple(buffer.shape))
        ct = ct[mine]
    return Scatter(rows, ct, tuple(buffer.shape), buffer.dtype, unique=isinstance(rows, slice) or _distinct(rows))


def _distinct(rows: np.ndarray) -> bool:
    return bool((np.bincount(rows) <= 1).all())


gather_p = Op("gather", _gather, vjp=_gather_vjp, kind="gather")


def _row_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return Scatter(params["row"], ct, tuple(args[0].shape), args[0].dtype, unique=True)


row_p = Op("row", lambda buffer, *, row: buffer[row], vjp=_row_vjp, kind="gather")
