"""The row gather and its transposes, out of which all moves of data with per-example positions are made; padding, too.

`rows_p(x, src)` reads `x[src]` along the first axis. `src` holds row numbers in any shape; -1 marks padding: the value
read there is arbitrary and has no gradient. Row numbers are not checked here; the caller has checked them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, check_padding
from autobatch.core.cotangent import SparseCotangent, unbroadcast
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.op import Op, is_boxed
from autobatch.kernels.segment_reductions import segment_sum
from autobatch.ops.rules.padding import fill, fill_p
from autobatch.ops.rules.ragged_checks import check_ids
from autobatch.ops.rules.sizes import as_batched, lane_count, reshaped, sizes_of, spread_out


class Scatter(SparseCotangent):
    """A sparse cotangent: `values` at `array[index]`, zero elsewhere. The vjp of a read returns it.

    Args:
        index: any NumPy index; `unique`: it selects no element twice.
        values: the cotangent of `array[index]`, plain or an array of an outer interpreter.

    >>> Scatter(np.array([2, 0, 2]), np.array([1.0, 5.0, 3.0]), (4,), np.float64, unique=False).to_dense()
    array([5., 0., 4., 0.])
    """

    __slots__ = ("dtype", "index", "shape", "unique", "values")

    def __init__(self, index: Any, values: Any, shape: tuple[int, ...], dtype: Any, *, unique: bool) -> None:
        self.index = index
        self.values = values
        self.shape = shape
        self.dtype = dtype
        self.unique = unique

    @property
    def boxed(self) -> bool:
        return is_boxed(self.values)

    def add_to(self, dense: np.ndarray) -> None:
        if self.unique:
            dense[self.index] += self.values
        elif isinstance(self.index, np.ndarray) and self.index.dtype.kind in "iu":
            ids = np.array(self.index, np.int64).reshape(-1)
            if ids.size and ids.min() < 0:
                ids[ids < 0] += len(dense)
            check_ids(ids, len(dense))
            values = spread_out(self.values, self.index.shape + dense.shape[1:])
            add_rows(dense, ids, values.reshape(len(ids), *dense.shape[1:]))
        else:
            np.add.at(dense, self.index, self.values)

    def to_dense(self) -> Any:
        return _scatter_recorded([self]) if self.boxed else super().to_dense()

    @staticmethod
    @hiding_frames
    def combine(parts: Sequence[Any]) -> Any:
        """The sum of the parts; if they are consecutive slices that cover the array (a loop's steps), concatenated."""
        if any(part.boxed for part in parts):
            return _scatter_recorded(parts)
        rows = _consecutive(parts)
        return SparseCotangent.combine(parts) if rows is None else np.concatenate(rows)


def _consecutive(parts: Sequence[Scatter]) -> list[np.ndarray] | None:
    """The values of the parts in row order if they are disjoint slices that cover the whole array; None otherwise."""
    slices = [part.index for part in parts if type(part.index) is slice and part.index.step is None]
    if len(slices) < len(parts) or any(type(each.start) is not int or type(each.stop) is not int for each in slices):
        return None
    ordered = sorted(parts, key=lambda part: part.index.start)
    ends = [0, *[part.index.stop for part in ordered]]
    if any(part.index.start != end for part, end in zip(ordered, ends, strict=False)) or ends[-1] != parts[0].shape[0]:
        return None
    return [part.values for part in ordered]


def _scatter_recorded(parts: Sequence[Scatter]) -> Any:
    """The dense sum of scatters whose values are recorded arrays, by one op on them."""
    shape = parts[0].shape
    numbers = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    targets = [np.asarray(numbers[part.index]) for part in parts]
    spread = zip(parts, targets, strict=True)
    values = [np.reshape(np.broadcast_to(part.values, target.shape), (-1,)) for part, target in spread]
    places = np.concatenate([target.reshape(-1) for target in targets])
    return np.reshape(scatter_rows_p(np.concatenate(values), places, rows=numbers.size), shape)


_COMPILED = frozenset((np.dtype(np.float32), np.dtype(np.float64)))


def add_rows(dense: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
    """Like `np.add.at(dense, ids, values)`: repeated ids accumulate, in order; float16 accumulates in float32."""
    dtype = dense.dtype
    if dtype == np.float16:
        wide = dense.astype(np.float32)
        add_rows(wide, ids, values.astype(np.float32))
        dense[...] = wide
        return
    # For fewer elements np.add.at is faster.
    by_kernel = values.size >= 2048 and dtype.kind in "fc" and dtype.itemsize >= 4
    by_kernel = by_kernel or (dense.ndim > 1 and dtype in _COMPILED)
    if by_kernel and values.dtype == dtype and dense.flags.c_contiguous:
        width = dense.size // max(dense.shape[0], 1)
        rows = np.ascontiguousarray(spread_out(values, ids.shape + dense.shape[1:])).reshape(len(ids), width)
        segment_sum(rows, None, None, np.ascontiguousarray(ids, np.int64), dense.reshape(dense.shape[0], width))
    elif dense.ndim == 1 and dtype == np.float64 and values.dtype == np.float64:
        dense += np.bincount(ids, weights=values, minlength=dense.shape[0])
    else:
        np.add.at(dense, ids, values)


def _take_rows(x: Any, src: Any, *, unique: bool = False) -> Any:
    x, src = np.asarray(x), np.asarray(src)
    return x.take(src, axis=0) if len(x) else np.zeros(src.shape + x.shape[1:], x.dtype)


def _scatter_rows(values: Any, src: Any, *, rows: int, unique: bool = False) -> Any:
    values, src = np.asarray(values), np.asarray(src)
    out = np.zeros((rows, *values.shape[src.ndim :]), values.dtype)
    flat, ids = _valid_rows(values, src)
    if unique:
        out[ids] = flat  # a sum with 0.0 would not keep -0.0
    else:
        add_rows(out, ids, flat)
    return out


def _put_rows(x: Any, values: Any, src: Any, *, unique: bool = False) -> Any:
    out, values, src = np.array(x), np.asarray(values), np.asarray(src)
    flat, ids = _valid_rows(values, src)
    out[ids] = flat
    return out


def _valid_rows(values: Any, src: np.ndarray) -> tuple[Any, np.ndarray]:
    """The values at the entries of `src` that are not padding, as rows, and those row numbers."""
    flat = values.reshape((src.size, *shape_of(values)[src.ndim :]))
    ids = src.reshape(-1)
    inside = ids >= 0
    return (flat, ids) if np.logical_and.reduce(inside) else (flat[inside], ids[inside])


def _rows_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position != 0:
        return None
    x, src = args[0], args[1]
    if is_boxed(ct) or is_boxed(src):
        return scatter_rows_p(ct, src, rows=shape_of(x)[0], unique=params.get("unique", False))
    values, ids = _valid_rows(ct, np.asarray(src))
    return Scatter(ids, values, tuple(shape_of(x)), dtype_of(x), unique=params.get("unique", False))


def _put_rows_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, values, src = args
    if position == 0:
        return unbroadcast(put_rows_p(ct, np.zeros(shape_of(values), dtype_of(ct)), src, unique=True), x)
    if position != 1:
        return None
    if not params.get("unique", False):
        src = last_writes(np.asarray(src), shape_of(x)[0])
    read = rows_p(ct, src, unique=True)
    lost = np.asarray(src) < 0
    if lost.any():
        lost = lost.reshape(lost.shape + (1,) * (ndim_of(read) - lost.ndim))
        read = np.where(lost, np.zeros((), dtype_of(read)), read)
    return unbroadcast(read, values)


def last_writes(src: np.ndarray, rows: int) -> np.ndarray:
    """`src` with -1 for each entry whose row is also written by a later entry: only the last write takes effect."""
    flat = src.reshape(-1)
    places = np.arange(flat.size)
    owner = np.full(rows + 1, -1)
    owner[flat] = places
    return np.where(owner[flat] == places, flat, -1).reshape(src.shape)


def _concatenated_rows(x: Any, src: Any) -> tuple[Any, np.ndarray]:
    """The data of a batch with its lanes' rows concatenated (or the shared array), and `src` as row numbers in it."""
    if not isinstance(x, Batched):
        return x, np.asarray(fill(src, -1))
    lanes, rows, *rest = x.data.shape
    return reshaped(x.data, (lanes * rows, *rest)), _among_all(src, lanes, rows)


def _among_all(src: Any, lanes: int, rows: int) -> np.ndarray:
    """Row numbers of each lane, -1 for none, as numbers among the rows of all lanes, one lane after the other."""
    ids = np.asarray(fill(src, -1)) if isinstance(src, Batched) else np.broadcast_to(src, (lanes, *shape_of(src)))
    first = np.arange(lanes).reshape((lanes,) + (1,) * (ids.ndim - 1)) * rows
    return np.where(ids < 0, -1, ids + first)


def _rows_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, src = operands
    flat, ids = _concatenated_rows(x, src)
    unique = params.get("unique", False) and isinstance(x, Batched)
    return Batched(rows_p(flat, ids, unique=unique), sizes_of(src) + sizes_of(x)[1:])


def _scatter_rows_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    values, src = operands
    lanes, rows = lane_count(operands), params["rows"]
    ids = _among_all(src, lanes, rows)
    out = scatter_rows_p(as_batched(values, lanes).data, ids, **params | {"rows": lanes * rows})
    sizes = values.sizes[ids.ndim - 1 :] if isinstance(values, Batched) else shape_of(out)[1:]
    return Batched(reshaped(out, (lanes, rows, *shape_of(out)[1:])), (rows, *sizes))


def _put_rows_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, values, src = operands
    lanes = lane_count(operands)
    batched = as_batched(x, lanes)
    flat, ids = _concatenated_rows(batched, src)
    out = put_rows_p(flat, as_batched(values, lanes).data, ids, **params)
    return Batched(reshaped(out, batched.data.shape), batched.sizes)


rows_p = Op("rows", _take_rows, rule=_rows_rule, vjp=_rows_vjp, kind="rows")
scatter_rows_p = Op(
    "scatter_rows",
    _scatter_rows,
    rule=_scatter_rows_rule,
    vjp=lambda position, ct, out, args, params: (
        rows_p(ct, args[1], unique=params.get("unique", False)) if position == 0 else None
    ),
    kind="rows",
)
put_rows_p = Op("put_rows", _put_rows, rule=_put_rows_rule, vjp=_put_rows_vjp, kind="rows")


def gather_axis(data: Any, axis: int, positions: np.ndarray, unique: bool = False, shared: bool = False) -> Any:
    """Read per-example positions along one example axis.

    Args:
        data: (B, *padded), or if `shared`, one array without the batch axis.
        positions: (B, n), -1 at padding; `unique`: no example names a position twice.

    Returns:
        (B, ...) data in which that axis has size n.
    """
    lanes = positions.shape[0]
    if shared:
        out = rows_p(data if axis == 0 else np.moveaxis(data, axis, 0), positions)
    else:
        front = data if axis == 0 else np.moveaxis(data, axis + 1, 1)
        shape = shape_of(front)
        src = np.where(positions < 0, -1, positions + np.arange(lanes)[:, None] * shape[1])
        out = rows_p(reshaped(front, (lanes * shape[1], *shape[2:])), src, unique=unique)
    return out if axis == 0 else np.moveaxis(out, 1, axis + 1)


def pad_by_lane(out: Any, counts: np.ndarray, like: Any = None) -> Batched:
    """Concatenated rows as a padded batch; `counts` is the rows of each example, `like` a batch of the same counts."""
    lanes, shape = counts.shape[0], shape_of(out)[1:]
    if like is not None:
        size, extent = like.sizes[0], shape_of(like.data)[1]
    else:
        alike = lanes == 0 or bool((counts == counts[0]).all())
        size = (int(counts[0]) if lanes else 0) if alike else Lengths(counts)
        extent = int(counts.max(initial=0))
    if not isinstance(size, Lengths):
        return Batched(reshaped(out, (lanes, size, *shape)), (size,))
    return Batched(pad_rows(out, size, width=extent), (size,))


def pad_rows(values: Any, lengths: Lengths, filler: Any = 0, width: int | None = None) -> Any:
    """Pad concatenated rows (N, ...) to (B, width, ...), with `filler` as padding.

    Args:
        width: the padded width; None: the greatest length.
    """
    width = lengths.max() if width is None else width
    shape = shape_of(values)[1:]
    check_padding(len(lengths), (lengths, *shape), (width, *shape), values.dtype.itemsize)
    mask = lengths.mask(width)
    if not is_boxed(values):
        out = np.full((*mask.shape, *shape), filler, values.dtype)
        out[mask] = values
        return out
    spread = scatter_rows_p(values, mask.reshape(-1).nonzero()[0], rows=mask.size, unique=True)
    spread = reshaped(spread, (*mask.shape, *shape))
    return fill_p(spread, mask.reshape(*mask.shape, *[1] * len(shape)), value=filler) if filler else spread
