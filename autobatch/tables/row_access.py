"""How look-ups and bags read a table: kernels get the memory addresses of rows; small or odd cases use NumPy.

Ids, offsets and weights have already been checked by the callers, and are passed to the kernels unchecked.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from autobatch.core.abstract_eval import check_own_dtype, is_bfloat16
from autobatch.core.threads import run_parts, split_work
from autobatch.errors import DTypeError
from autobatch.kernels import bags as kernels
from autobatch.kernels.segment_reductions import sum_rows
from autobatch.kernels.simd_rows import FORMATS, LINE, REGISTER, VectorLayout, computed_dtype

_AHEAD = (16, 96)  # minimum and maximum prefetch distance, in ids
_CACHED = 1 << 18  # tables of at most so many bytes are not prefetched
_WIDEST = 512  # bytes of a row held in registers at a time
_WIDEST_RUN = 1024  # the same for contiguous rows, which are read twice as fast whole as in halves
FEW = 1 << 14  # bytes of rows up to which NumPy's copy is faster than preparing a kernel call
_NEAR = 4 << 20  # rows of tables of at most so many bytes arrive in time if prefetched
_NUMBERS = {format: VectorLayout(format, REGISTER // int(format[1:])) for format in ("f4", "f8", "i8", "u8")}
T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class LocatedRows:
    """Rows in the form that kernels read: row i is at the address `table[0] + table[1] * ids[i]`.

    Attributes:
        dim: number of elements of a row.
        row_bytes: bytes of a row; total_bytes: bytes of the whole table.
        owner: an object that must stay alive while the kernel runs.
    """

    table: tuple[int, int]
    ids: np.ndarray | None
    format: str
    dim: int
    static: bool
    row_bytes: int
    total_bytes: int
    owner: Any

    @property
    def ahead(self) -> int | None:
        return None if self.ids is None else prefetch_distance(self.total_bytes, self.row_bytes)

    def split(self, count: int, rows: int) -> list[tuple[int, int]]:
        """Split `count` items, which have `rows` rows in total, into ranges for threads."""
        return split_work(count, read_cost(rows, self.row_bytes, self.total_bytes if self.ids is not None else 0))


def prefetch_distance(total_bytes: int, row_bytes: int) -> int | None:
    """The prefetch distance, in ids, for a table of `total_bytes`; None: do not prefetch.

    >>> [prefetch_distance(1 << 20, row_bytes) for row_bytes in (32, 512, 4096)], prefetch_distance(1 << 10, 32)
    ([96, 32, 16], None)
    """
    if total_bytes <= _CACHED:
        return None
    least, most = _AHEAD
    return min(most, max(least, (16 << 10) // row_bytes))  # bytes of prefetched rows, a part of the first-level cache


def read_cost(rows: int, row_bytes: int, total_bytes: int) -> int:
    """The cost of reading `rows` rows of a table of `total_bytes`, in bytes read from the cache."""
    # Reading scattered rows of a larger table takes so many times as long as from the cache.
    return rows * row_bytes * (8 if total_bytes > _NEAR else 1)


def integers(ids: np.ndarray) -> np.ndarray:
    """Convert checked ids or offsets for kernels: contiguous int32 or int64."""
    if ids.dtype != np.int32 and ids.dtype != np.int64:
        ids = ids.astype(np.int64)
    return ids if ids.flags.c_contiguous else np.ascontiguousarray(ids)


def locate(table: Any, ids: np.ndarray | None, context: object = None) -> LocatedRows:
    """Where the rows of a table or array are in memory; rows with gaps are gathered into a new array first.

    If `ids` is None, the rows are those of the array `table`, in order.
    """
    if ids is None:
        return locate_array(table, None, False)
    ids = integers(ids)
    if (find := getattr(table, "_ab_locate", None)) is not None:
        return find(ids, context)
    return locate_array(np.asarray(table), ids, False)


def read_consistently(table: object, read: Callable[[], T]) -> T:
    """Return `read()`; a table that another thread may change repeats it if rows changed meanwhile."""
    keep = getattr(table, "_ab_read_consistently", None)
    return read() if keep is None else keep(read)


def locate_array(weights: np.ndarray, ids: np.ndarray | None, static: bool) -> LocatedRows:
    """`locate` for a two-dimensional array."""
    size = weights.itemsize
    if weights.size and weights.shape[1] > 1 and weights.strides[1] != size:
        if ids is None:
            return locate_array(np.ascontiguousarray(weights), None, static)
        rows = np.ascontiguousarray(weights[ids])
        return locate_array(rows, np.arange(len(rows)), static)
    return LocatedRows(
        (weights.__array_interface__["data"][0], weights.strides[0]),
        ids,
        format_of(weights.dtype),
        weights.shape[1],
        static,
        weights.shape[1] * size,
        weights.shape[0] * weights.shape[1] * size,
        weights,
    )


def row_layout(format: str, dim: int, static: bool, table: tuple[int, int], total_bytes: int) -> VectorLayout:
    """The vector layout for rows of `dim` elements, where `table` is (address, stride); one for all small tables."""
    if total_bytes <= _CACHED:  # buffers lie at chance addresses: kernels for each cost more than they save
        return lane_layout(format, dim, static, far=None)
    return lane_layout(format, dim, static, table[0] % LINE, table[1] % LINE, far=total_bytes > _NEAR)


def run_layout(format: str, dim: int) -> VectorLayout:
    """The vector layout for sums of contiguous rows; if dim is 1, a machine vector holds several rows."""
    return _NUMBERS[format] if dim == 1 else lane_layout(format, dim, False, widest=_WIDEST_RUN)


@functools.lru_cache(maxsize=4096)
def lane_layout(
    format: str, dim: int, static: bool, past: int = 0, step: int = 0, widest: int = _WIDEST, far: bool | None = False
) -> VectorLayout:
    """The vector layout that covers `dim` columns: the whole row if short and even, or `static`; else a power of two.

    Args:
        past: the first row's offset from a cache line, in bytes; step: the stride of rows modulo the cache line.
        widest: the maximum width in bytes.
        far: prefetched rows may arrive late (None: none are prefetched). A row of one cache line is then read faster in
            two halves; a row of two cache lines always is.

    >>> lane_layout("f4", 100, False).n, lane_layout("f4", 99, False).n, lane_layout("f4", 99, True).n
    (100, 64, 99)
    >>> lane_layout("f4", 300, True).n, lane_layout("f4", 128, False, 16).lead
    (100, 12)
    >>> lane_layout("f4", 8, False, 32, 32).across, lane_layout("f4", 8, False, 16, 32).across
    (False, True)
    >>> [lane_layout("f4", n, False).register for n in (16, 32, 64)], lane_layout("f4", 16, False, far=True).register
    ([64, 32, 64], 32)
    """
    size = computed_dtype(format).itemsize
    most = widest // size
    if static:
        passes = -(-dim // most)
        n = -(-dim // passes)
    elif dim <= most and dim * size % 16 == 0:
        n = dim
    else:
        n = 1 << min(most, dim, 1 << 9).bit_length() - 1
    lead = 0
    if (
        step == 0
        and past % size == 0
        and n * size >= 4 * LINE
        and n * size % LINE == 0
        and dim % n == 0
        and format[1:] == str(size)
    ):
        lead = -past % LINE // size
    span, between = n * size, math.gcd(step, LINE)  # offsets of rows in a line are multiples of it
    last = past % between + LINE - between + span
    across = far is not None and format[1:] == str(size) and last > -(-span // LINE) * LINE
    halves = format != "u1" and dim * size <= 2 * LINE and (far or dim * size > LINE)
    return VectorLayout(format, n, lead, across, REGISTER // 2 if halves else REGISTER)


def pool(
    found: LocatedRows,
    offsets: np.ndarray,
    weights: np.ndarray | None,
    norm: int,
    wanted: str,
    out: np.ndarray,
) -> None:
    """Reduce each bag of located rows.

    Args:
        weights: a factor for each id, of the computed dtype; only for "sum".
        norm: the divisor of a bag's sum: `bags.SUM` (none), `MEAN` or `SQRTN`; only for "sum".
        wanted: "sum", "max" or "min".
        out: (bags, dim) of the computed dtype, with contiguous rows.
    """
    if not found.dim or not len(offsets) - 1:
        return
    in_order = found.ids is None and wanted == "sum"
    if in_order:
        lanes = lane_layout(found.format, found.dim, found.static, widest=_WIDEST_RUN)
    else:
        lanes = row_layout(found.format, found.dim, found.static, found.table, found.total_bytes)
    offsets = integers(offsets).view()
    offsets.flags.writeable = False  # as a batch's are: a kernel is compiled again for what may be written into
    place = (found.dim, found.ahead, lanes)

    def work(bags: tuple[int, int]) -> None:
        if in_order:
            sum_rows(found.table, offsets, weights, norm, out, bags, found.dim, lanes)
        elif wanted == "sum":
            kernels.pool_sum(found.table, found.ids, offsets, weights, norm, out, bags, *place)
        else:
            of_least = True if wanted == "min" else None
            kernels.pool_extremum(found.table, found.ids, offsets, out, bags, *place, of_least)

    run_parts(work, _by_ids(offsets, found))


def _by_ids(offsets: np.ndarray, found: LocatedRows) -> list[tuple[int, int]]:
    """Split bags into ranges with about equally many ids, for threads."""
    total, bags = int(offsets[-1]), len(offsets) - 1
    parts = found.split(bags, total)
    if len(parts) == 1:
        return parts
    ends = np.searchsorted(offsets[1:], [total * (i + 1) // len(parts) for i in range(len(parts) - 1)], side="left") + 1
    return list(itertools.pairwise([0, *np.minimum(ends, bags).tolist(), bags]))


def read_rows(found: LocatedRows, out: np.ndarray) -> None:
    """Copy located rows into `out`, (ids, dim) with contiguous rows; quantized codes are converted to float32."""
    if not found.dim or found.ids is None or not len(found.ids):
        return
    table, dim = found.table, found.dim
    if found.format == "q8":
        lanes, target = lane_layout(found.format, dim, found.static), out
    else:
        dim, target = found.row_bytes, out.view(np.uint8)
        lanes = row_layout("u1", dim, False, table, found.total_bytes if found.total_bytes > _NEAR else 0)

    def work(part: tuple[int, int]) -> None:
        kernels.gather_rows(table, found.ids, target, part, dim, found.ahead, lanes)

    run_parts(work, found.split(len(found.ids), len(found.ids)))


def gather(table: Any, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """table[ids] for checked ids of any rank; `out` must have contiguous rows and not overlap the table."""
    if out is None:
        out = np.empty((*ids.shape, table.shape[1]), table.dtype)
    whole = table if type(table) is np.ndarray else table._ab_whole
    if whole is not None and ((out.nbytes <= FEW and whole.flags.c_contiguous) or whole.dtype.hasobject):
        whole.take(ids, axis=0, out=out, mode="clip")  # an array with gaps would be copied whole
        return out
    read_consistently(table, lambda: _gathered(table, ids, out))
    return out


def _gathered(table: Any, ids: np.ndarray, out: np.ndarray) -> None:
    flat = out if ids.ndim == 1 else out.reshape(ids.size, table.shape[1])
    read_rows(locate(table, ids.reshape(-1)), flat)


def write_rows(found: LocatedRows, rows: np.ndarray) -> None:
    """Write `rows` (C-contiguous, of the table's dtype) to the located rows, in the order of the ids."""
    if not found.row_bytes or found.ids is None or not len(found.ids):
        return
    source = (rows.__array_interface__["data"][0], found.row_bytes)
    kernels.scatter_rows(found.table, found.ids, source, found.row_bytes, lane_layout("u1", found.row_bytes, False))


def check_computed(dtype: np.dtype) -> None:
    """Check that segments of this dtype can be reduced, possibly after a change of byte order.

    Raises:
        DTypeError: they cannot.
    """
    check_own_dtype(dtype, "a segment reduction")
    if dtype.kind not in "fiub" or (dtype.kind == "f" and dtype.itemsize > 8):
        raise DTypeError(
            f"a segment reduction of {dtype}; expected float16, float32, float64 or integers or booleans: "
            "write .astype(np.float32)"
        )


@functools.cache
def poolable(dtype: np.dtype) -> bool:
    """True if bag kernels support the dtype: numbers in native byte order."""
    return dtype.isnative and format_of(dtype) in FORMATS


def format_of(dtype: np.dtype) -> str:
    """The format code of a dtype, as in `kernels.simd_rows`."""
    return "b2" if is_bfloat16(dtype) else dtype.str[1:]
