"""Buffers hold the values of launched calls as rows, of equal or differing sizes; operands are gathered from them.

The results of a launch are rows of one buffer: an array or `RaggedRows`. An operand of a later launch is a view if its
rows are consecutive, else one gather. If a buffer belongs to an interpreter below (a tape), both are recorded as ops.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.unpadded import Unpadded, layout_of, padded
from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Lengths, Size, check_padding
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.op import BATCH_RANK, Op
from autobatch.kernels.rows import CONSECUTIVE, ONE_BUFFER, SEVERAL, copy_spans, gather_buffers
from autobatch.kernels.segment_reductions import segment_sum
from autobatch.ops.rules.padding import to_widths
from autobatch.ops.rules.row_gather import Scatter, rows_p
from autobatch.ops.rules.sizes import lane_lengths, padded_width

_ADDED = (np.float32, np.float64)


class RaggedRows:
    """A buffer of rows whose sizes differ.

    Attributes:
        data: `Unpadded` where the first dimension alone varies, else (n, ...) padded; plain or of an interpreter below.
        sizes: one `Size` for each dimension of a row.

    >>> sizes = (Lengths([1, 2]),)
    >>> rows = RaggedRows(np.array([[5.0, 0.0], [6.0, 7.0]]), sizes)
    >>> rows.row(0), rows.row(1), rows.is_packed
    (array([5.]), array([6., 7.]), True)
    """

    __slots__ = ("data", "sizes")
    _ab_rank = BATCH_RANK - 1

    def __init__(self, data: Any, sizes: tuple[Size, ...]) -> None:
        self.data = packed(data, sizes)
        self.sizes = sizes

    @property
    def is_packed(self) -> bool:
        return type(self.data) is Unpadded

    @property
    def values(self) -> Any:
        """All rows concatenated; for packed data only."""
        return self.data.values

    @property
    def offsets(self) -> np.ndarray:
        """Where each row begins in `values`; for packed data only."""
        return self.data.layout.offsets

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def is_plain(self) -> bool:
        return type(self.data.values if self.is_packed else self.data) is np.ndarray

    def row(self, index: int) -> Any:
        """One row without its padding, in an array of its own shape."""
        if self.is_packed:
            return self.values[self.offsets.item(index) : self.offsets.item(index + 1)]
        sizes = [size.values.item(index) if isinstance(size, Lengths) else size for size in self.sizes]
        out = self.data[(index, *map(slice, sizes))]
        return out.copy(order="K") if type(out) is np.ndarray else out

    def between(self, start: int, count: int, sizes: tuple[Size, ...]) -> Any:
        """Data of `count` consecutive rows without a copy; None if that is not possible."""
        if start == 0 and count == self.data.shape[0] and Lengths in map(type, sizes):
            return packed(self.data, sizes)
        if not self.is_packed or type(self.values) is not np.ndarray:
            return None
        return shaped(self.values[self.offsets.item(start) : self.offsets.item(start + count)], sizes, count)

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.row(params["row"])  # `row_p` is the only op on a buffer


def widths_of(sizes: Sequence[Size]) -> list[int]:
    """The largest size of each dimension."""
    return list(map(padded_width, sizes))


def packed(data: Any, sizes: tuple[Size, ...]) -> Any:
    """Data of these sizes: `Unpadded` if only the first dimension varies, else padded to the largest sizes."""
    first, *rest = sizes
    widths = widths_of(sizes)
    layout = layout_of(first, widths[0]) if isinstance(first, Lengths) and Lengths not in map(type, rest) else None
    if layout is not None and type(data) is Unpadded and data.layout.shape[1] == widths[0]:
        return data if data.layout.lengths is first else Unpadded(data.values, layout, data.pad)
    data = to_widths(padded(data), widths)
    return data if layout is None else Unpadded(layout.take(data), layout)


def ragged_rows(values: Sequence[Any], sizes: tuple[Size, ...]) -> RaggedRows:
    """A buffer of these values, each of its own size."""
    first, *rest = sizes
    if Lengths not in map(type, rest):
        assert isinstance(first, Lengths)
        return RaggedRows(Unpadded(np.concatenate(values), layout_of(first, first.max())), sizes)
    widths = widths_of(sizes)
    check_padding(len(values), sizes, widths, values[0].dtype.itemsize)
    if all(type(value) is np.ndarray for value in values):
        data = np.zeros((len(values), *widths), values[0].dtype)
        for lane, value in zip(data, values, strict=True):
            lane[tuple(map(slice, value.shape))] = value
        return RaggedRows(data, sizes)
    return RaggedRows(np.concatenate([to_widths(value[None], widths) for value in values]), sizes)


def joined_rows(arrays: Sequence[Any], which: np.ndarray, rows: np.ndarray, sizes: tuple[Size, ...]) -> Any:
    """Gather row `rows[i]` of array `which[i]` for each i, by ops only (a tape sees it); some may be `RaggedRows`.

    Returns:
        Rows of these sizes, packed or padded; one array (n, ...) if the sizes do not differ.
    """
    rest = sizes[1:]
    used, number = np.unique(which, return_inverse=True)
    several = [arrays[k] for k in used.tolist()]
    is_flat = sizes and Lengths not in map(type, rest)
    if is_flat and all(type(each) is not RaggedRows or each.is_packed for each in several):
        lengths = lane_lengths(sizes[0], len(rows))
        first = np.empty(len(rows), np.int64)
        parts, base = [], 0
        for k, each in enumerate(several):
            mine = number == k
            if type(each) is RaggedRows:
                flat, starts = each.values, each.offsets[rows[mine]]
            else:
                flat = np.reshape(each, (-1, *shape_of(each)[2:]))
                starts = rows[mine] * shape_of(each)[1]
            first[mine] = starts + base
            base += shape_of(flat)[0]
            parts.append(flat)
        flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
        stops = np.cumsum(lengths)
        places = np.repeat(first - stops + lengths, lengths) + np.arange(stops[-1])
        return shaped(rows_p(flat, places, unique=_distinct(number * (int(rows.max()) + 1) + rows)), sizes, len(rows))
    if Lengths not in map(type, sizes):
        return np.stack([_row(arrays[k], row) for k, row in zip(which.tolist(), rows.tolist(), strict=True)])
    if len(several) == 1 and type(several[0]) is RaggedRows and not several[0].is_packed:
        return packed(rows_p(several[0].data, rows, unique=_distinct(number * (int(rows.max()) + 1) + rows)), sizes)
    return ragged_rows([_row(arrays[k], row) for k, row in zip(which.tolist(), rows.tolist(), strict=True)], sizes).data


def _row(array: Any, row: int) -> Any:
    return array.row(row) if type(array) is RaggedRows else array[row]


def shaped(flat: Any, sizes: tuple[Size, ...], n: int) -> Any:
    """Reshape the concatenated rows of n values to data of these sizes."""
    first = sizes[0]
    if isinstance(first, Lengths):
        return Unpadded(flat, layout_of(first, first.max()))
    return np.reshape(flat, (n, *sizes))


def _distinct(rows: np.ndarray) -> bool:
    return bool((np.bincount(rows) <= 1).all())


class Buffers:
    """The buffers of one segment: arrays of rows, plain or of an interpreter below.

    Attributes:
        arrays: the buffers by number; None for one not computed yet, or dropped.
        nbytes: memory used by the values.
        plain: True if all computed buffers are plain arrays.
        ragged: the numbers of the `RaggedRows`.
    """

    __slots__ = ("_addresses", "_strided", "_strides", "arrays", "nbytes", "plain", "ragged")

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.nbytes = 0
        self.plain = True
        self.ragged: set[int] = set()
        self._strided: set[int] = set()  # numbers of plain arrays whose rows are not contiguous
        self._addresses = self._strides = np.zeros(0, np.int64)

    def reserve(self, count: int) -> int:
        """Make room for some more buffers; returns the number of the first."""
        number = len(self.arrays)
        self.arrays += [None] * count
        if len(self.arrays) > len(self._addresses):
            more = np.zeros(len(self.arrays), np.int64)
            self._addresses = np.concatenate([self._addresses, more])
            self._strides = np.concatenate([self._strides, more])
        return number

    def put(self, number: int, array: Any) -> None:
        """Set a buffer."""
        if type(array) is RaggedRows:
            self.ragged.add(number)
            self.plain = self.plain and array.is_plain
        elif type(array) is not np.ndarray:
            self.plain = False
        elif array.flags.c_contiguous or array[:1].flags.c_contiguous:
            self._addresses[number] = array.__array_interface__["data"][0]
            self._strides[number] = array.strides[0]
        else:
            self._strided.add(number)
        self.arrays[number] = array
        self.nbytes += getattr(array, "nbytes", 0)

    def append(self, array: Any) -> int:
        """Add a buffer; returns its number."""
        number = self.reserve(1)
        self.put(number, array)
        return number

    def starts(self, which: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """The address of row `rows[i]` of buffer `which[i]` for each i; None if any such buffer is not contiguous."""
        out = self._addresses[which] + rows * self._strides[which]
        for number in np.flatnonzero(np.bincount(which)).tolist():
            array = self.arrays[number]
            if number in self.ragged:
                if not (array.is_packed and array.values.flags.c_contiguous):
                    return None
                mine = which == number
                values = array.values
                out[mine] = values.__array_interface__["data"][0] + array.offsets[rows[mine]] * values.strides[0]
            elif number in self._strided:
                return None
        return out

    def copied(self, like: int, which: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Gather row `rows[i]` of buffer `which[i]` for each i; all are plain, with rows like buffer number `like`."""
        for number in self._strided.intersection(which.tolist()) if self._strided else ():
            self._strided.discard(number)
            self.put(number, np.ascontiguousarray(self.arrays[number]))
        array = self.arrays[like]
        out = np.empty((rows.shape[0], *array.shape[1:]), array.dtype)
        if out.size:
            start = out.__array_interface__["data"][0]
            gather_buffers(self._addresses, self._strides, which, rows, out.strides[0], start)
        return out


def classify_rows(which: np.ndarray, rows: np.ndarray) -> int:
    """CONSECUTIVE, ONE_BUFFER or SEVERAL, as `kernels.rows.locate` classifies rows that lie in buffers."""
    if (which != which[0]).any():
        return SEVERAL
    return CONSECUTIVE if (np.diff(rows) == 1).all() else ONE_BUFFER


def gather_rows(buffers: Buffers, which: np.ndarray, rows: np.ndarray, how: int, shape: tuple[int, ...]) -> Any:
    """Gather row `rows[i]` of buffer `which[i]` for each i into one array; a view if possible.

    Args:
        buffers: arrays (n_k, *shape) or `RaggedRows`; those in `which` have one dtype.
        which: (n,) int64; rows: (n,) int64; how: CONSECUTIVE, ONE_BUFFER or SEVERAL (see `kernels.rows.locate`).
        shape: the shape of a row.
    """
    first = which.item(0)
    buffer = buffers.arrays[first]
    if buffers.ragged and not buffers.ragged.isdisjoint(which.tolist()):
        return sized_rows(buffers, which, rows, how, shape)
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
    return gather_p(*several, which=_BufferNumbers(number[which]), rows=rows)


def sized_rows(buffers: Buffers, which: np.ndarray, rows: np.ndarray, how: int, sizes: tuple[Size, ...]) -> Any:
    """Like `gather_rows`, if the rows, or those of their buffers, differ in sizes: gives packed or padded data."""
    buffer = buffers.arrays[which.item(0)]
    if how == CONSECUTIVE and type(buffer) is RaggedRows:
        found = buffer.between(rows.item(0), len(rows), sizes)
        if found is not None:
            return found
    if sizes and Lengths not in map(type, sizes[1:]) and buffers.plain:
        starts = buffers.starts(which, rows)
        if starts is not None:
            lengths = lane_lengths(sizes[0], len(rows))
            flat = np.empty((int(lengths.sum()), *widths_of(sizes[1:])), buffer.dtype)
            if flat.size:
                copy_spans(starts, lengths, flat.strides[0], flat.__array_interface__["data"][0])
            return shaped(flat, sizes, len(rows))
    return joined_rows(buffers.arrays, which, rows, sizes)


@dataclasses.dataclass(slots=True, eq=False)
class _BufferNumbers:
    """The buffer number of each gathered row, with a lazily computed inverse (`places`)."""

    numbers: np.ndarray
    _order: np.ndarray | None = None
    _bounds: list[int] = dataclasses.field(default_factory=list)

    def places(self, buffer: int) -> np.ndarray:
        """The positions whose row comes from this buffer, in order."""
        if self._order is None:
            self._order = np.argsort(self.numbers, kind="stable")
            self._bounds = np.searchsorted(self.numbers[self._order], np.arange(int(self.numbers.max()) + 2)).tolist()
        return self._order[self._bounds[buffer] : self._bounds[buffer + 1]]


class Picked(SparseCotangent):
    """Cotangent of one of several gathered buffers: `values[places]` added at `rows`, zero elsewhere.

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
            segment_sum(values.reshape(len(values), flat.shape[1]), self.places, None, self.rows, flat)
        else:
            np.add.at(dense, self.rows, self.values[self.places])


def _gather(*buffers: Any, which: _BufferNumbers | None, rows: Any) -> np.ndarray:
    if which is None:
        buffer = buffers[0]  # take() would first copy a whole non-contiguous array
        return buffer.take(rows, axis=0) if buffer.flags.c_contiguous and type(rows) is np.ndarray else buffer[rows]
    own = Buffers()
    for buffer in buffers:
        own.append(buffer)
    return own.copied(0, which.numbers, rows)


def _gather_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    which, rows, buffer = params["which"], params["rows"], args[position]
    if which is not None:
        mine = which.places(position)
        rows = rows[mine]
        if type(ct) is np.ndarray and ct.dtype == buffer.dtype and ct.dtype in _ADDED:
            return Picked(rows, ct, mine, tuple(buffer.shape))
        ct = ct[mine]
    return Scatter(rows, ct, tuple(buffer.shape), buffer.dtype, unique=isinstance(rows, slice) or _distinct(rows))


gather_p = Op("gather", _gather, vjp=_gather_vjp, kind="gather")


row_p = Op(
    "row",
    lambda buffer, *, row: buffer[row],
    vjp=lambda position, ct, out, args, params: Scatter(
        params["row"], ct, tuple(args[0].shape), args[0].dtype, unique=True
    ),
    kind="gather",
)
