"""`Unpadded`: stands for padded data, but stores only the positions inside the examples.

Ops that act on each position separately (element-wise ops, products with a shared matrix, normalisation along the
features) then compute nothing for padding, forward and backward, and need no masking. Ops that mix positions get the
padded array, which is made once.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.batched import Lengths
from autobatch.core.op import Op, is_boxed
from autobatch.ops.array_protocols import StandIn
from autobatch.ops.numpy.indexing import getitem_p
from autobatch.ops.rules.index_rule import FULL
from autobatch.ops.rules.op_kinds import detach
from autobatch.ops.rules.row_gather import pad_rows, rows_p
from autobatch.ops.rules.sizes import reshape_p, reshaped

_LEAST_ELEMENTS = 1 << 13  # of the padded array; of fewer, the copies take longer than what they save
_MOST_FILLED = 0.9  # share of positions inside examples; if more are, the copies cost more than they save


class _Layout:
    """The positions inside the examples in a (lanes, width) array, row by row.

    Attributes:
        shape: (lanes, width); offsets: (lanes + 1,) int64, where each lane's positions begin among all of them.
        count: the number of positions.
    """

    def __init__(self, lengths: Lengths, width: int) -> None:
        self.lengths = lengths
        self.shape = (len(lengths), width)
        self.offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths.values, out=self.offsets[1:])
        self.count = int(self.offsets[-1])

    @property
    def mask(self) -> np.ndarray:
        """True inside the examples."""
        return self.lengths.mask(self.shape[1])

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """(count,) int64, each position's index in the flattened (lanes, width) array."""
        return np.flatnonzero(self.mask)

    @functools.cached_property
    def lanes(self) -> np.ndarray:
        """(count,) int64, the lane of each position."""
        return np.repeat(np.arange(self.shape[0]), self.lengths.values)

    def take(self, x: Any) -> Any:
        """The (count, ...) rows inside the examples, of a (lanes, width, ...) array."""
        x = reshaped(x, (-1, *shape_of(x)[2:]))
        return x.take(self.rows, axis=0) if type(x) is np.ndarray else rows_p(x, self.rows, unique=True)


class Unpadded(StandIn):
    """Stands for (lanes, width, ...) data of examples of which only the first dimension varies.

    Args:
        values: (positions inside the examples, ...), a plain array or one on a tape or trace.
        layout: where the values belong in the padded array.
        pad: the value of the padding.
    """

    __slots__ = ("_padded", "layout", "pad", "values")
    _ab_unpadded = True

    def __init__(self, values: Any, layout: _Layout, pad: Any = 0) -> None:
        self.values = values
        self.layout = layout
        self.pad = pad
        self._padded: Any = None

    def _ab_force(self) -> Any:
        """The padded array."""
        if self._padded is None:
            self._padded = pad_rows(self.values, self.layout.lengths, self.pad, self.layout.shape[1])
        return self._padded

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if op.name == "fill" and args[0] is self and self._is_padding(args[1]):
            value = params["value"]
            return self if value == self.pad else Unpadded(self.values, self.layout, value)
        on_values = _ON_VALUES.get(op.name) or _ON_VALUES.get(op.kind)
        found = None
        if on_values is not None and (self.pad == 0 or op.name in _MOVES):
            found = on_values(self, args, params)
        if found is None:
            reduced = _over_lanes(self, op, args, params) if op.kind == "reduction" else None
            return op(*map(padded, args), **params) if reduced is None else reduced
        operands, params = found
        return Unpadded(op(*operands, **params), self.layout, self.pad)

    def _is_padding(self, mask: Any) -> bool:
        own = self.layout.mask
        return mask.shape[:2] == own.shape and mask.size == own.size and (mask is own or mask.base is own)

    def _ab_rebind(self, new: object) -> None:
        self._padded = padded(new)
        self.values, self.pad = self.layout.take(self._padded), 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.layout.shape, *shape_of(self.values)[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype


def padded(x: object) -> Any:
    """The padded array of `Unpadded` data; any other value unchanged."""
    return x._ab_force() if type(x) is Unpadded else x


def unpadded(data: object, sizes: Sequence[Any]) -> Any:
    """The data as `Unpadded` if only the first dimension varies and this saves work; else unchanged."""
    if type(data) is Unpadded or not isinstance(sizes[0], Lengths) or Lengths in map(type, sizes[1:]):
        return data
    if not _saves_work(shape_of(data), sizes[0]):
        return data
    layout = layout_of(sizes[0], shape_of(data)[1])
    return Unpadded(layout.take(data), layout)


def stacked_rows(rows: Any, table: np.ndarray, lengths: Lengths) -> Any:
    """(lanes, width, ...) data with `rows[table[i, j]]` at position (i, j); an entry of len(rows) is padding."""
    if _saves_work((*table.shape, *shape_of(rows)[1:]), lengths):
        layout = layout_of(lengths, table.shape[1])
        return Unpadded(rows[table[layout.mask]], layout)
    data = np.concatenate([rows, np.zeros((1, *rows.shape[1:]), rows.dtype)])
    return data[table]


def _saves_work(shape: Sequence[int], lengths: Lengths) -> bool:
    positions = shape[0] * shape[1]
    return math.prod(shape) >= _LEAST_ELEMENTS and int(lengths.values.sum()) <= _MOST_FILLED * positions


def layout_of(lengths: Lengths, width: int) -> _Layout:
    """The `_Layout` of lanes of these lengths in data of this width."""
    layout = lengths.derived.get(width)
    if layout is None:
        layout = lengths.derived[width] = _Layout(lengths, width)
    return layout


Moved = tuple[list[Any], dict[str, Any]] | None


def _elementwise(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Moved:
    operands = []
    for arg in args:
        operand = _align(x, arg)
        if operand is None:
            return None
        operands.append(operand)
    return operands, params


def _align(x: Unpadded, arg: Any) -> Any:
    """An operand of an element-wise op aligned with the values of `x`; None if that is not possible."""
    layout = x.layout
    if type(arg) is Unpadded:
        return arg.values if arg.layout is layout and arg.ndim == x.ndim and arg.pad == 0 else None
    rank = ndim_of(arg)
    if rank <= x.ndim - 2:
        return arg
    if rank < x.ndim:
        arg = np.expand_dims(arg, 0) if rank == x.ndim - 1 else arg
    elif rank > x.ndim:
        return None
    lanes, width = shape_of(arg)[:2]
    if (lanes, width) == layout.shape:
        return layout.take(arg)
    if width == 1 and lanes == layout.shape[0]:
        arg = arg[:, 0]
        return rows_p(arg, layout.lanes) if is_boxed(arg) else arg.take(layout.lanes, axis=0)
    return arg[0] if lanes == width == 1 else None


def _product(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Moved:
    if args[0] is not x or type(args[1]) is Unpadded or ndim_of(args[1]) > 2 or x.ndim < 3:
        return None
    return [x.values, args[1]], params


def _other_axes(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Moved:
    """An op along axes other than the batch axis and the varying axis."""
    axis = params.get("axis")
    axes = axis if isinstance(axis, tuple) else (axis,)
    if args[0] is not x or any(type(a) is not int or a < 2 for a in axes):
        return None
    if any(type(arg) is Unpadded or ndim_of(arg) > x.ndim - 2 for arg in args[1:]):
        return None
    down = tuple(a - 1 for a in axes)
    return [x.values, *args[1:]], {**params, "axis": down if isinstance(axis, tuple) else down[0]}


def _reshape(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Moved:
    shape = params["shape"]
    if len(args) > 1 or shape[:2] != x.layout.shape or any(type(n) is not int or n < 0 for n in shape):
        return None
    return [x.values], {"shape": (x.layout.count, *shape[2:])}


def _getitem(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Moved:
    spec = params["spec"]
    return ([x.values], {"spec": spec[1:]}) if len(args) == 1 and spec[:2] == (FULL, FULL) else None


def _segments(values: Any, *, ufunc: np.ufunc, layout: _Layout, dtype: np.dtype, empty: object) -> np.ndarray:
    """Reduce each lane's values over the first axis; `empty` for lanes without values."""
    starts = layout.offsets[:-1]
    out = np.empty((layout.shape[0], *values.shape[1:]), dtype)
    # On wider rows `reduceat` walks memory in strides, so each lane is reduced by itself.
    if math.prod(values.shape[1:]) > 64:
        for lane, start, stop in zip(out, starts.tolist(), layout.offsets[1:].tolist(), strict=True):
            if start == stop:
                lane[...] = empty
            else:
                ufunc.reduce(values[start:stop], axis=0, dtype=dtype, out=lane)
        return out
    if layout.lengths.has_zero():
        full = np.flatnonzero(layout.lengths.values)
        out[...] = empty
        if len(full):
            out[full] = ufunc.reduceat(values, starts[full], axis=0, dtype=dtype)
    elif len(starts):
        ufunc.reduceat(values, starts, axis=0, dtype=dtype, out=out)
    if ufunc is np.add and dtype.kind in "fc":  # `reduceat` of -0.0 gives -0.0; NumPy's sum starts at 0.0
        out += 0
    return out


def _segments_vjp(position: int, ct: Any, out: object, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The vjp: a sum's cotangent goes to all elements, an extremum's to the lane's first element that attains it."""
    ufunc, layout, (values,) = params["ufunc"], params["layout"], args
    spread = rows_p(ct, layout.lanes)
    if ufunc is np.add:
        return spread
    plain, best = detach(values), detach(out)
    hit = (plain == best[layout.lanes]) | (plain != plain)
    places = np.arange(layout.count).reshape(-1, *(1,) * (plain.ndim - 1))
    found = np.where(hit, places, layout.count)
    first = _segments(found, ufunc=np.minimum, layout=layout, dtype=np.dtype(np.int64), empty=0)
    return np.where(places == first[layout.lanes], spread, np.zeros((), ct.dtype))


# segments(values, ufunc=, layout=, dtype=, empty=): (lanes, ...) from the values of all lanes, one after the other.
_segments_p = Op("segments", _segments, vjp=_segments_vjp, kind="segments")
_constant_segments_p = Op("segments", _segments, kind="segments")
_OVER_LANES = {
    "sum": (_segments_p, np.add),
    "max": (_segments_p, np.maximum),
    "min": (_segments_p, np.minimum),
    "any": (_constant_segments_p, np.logical_or),
    "all": (_constant_segments_p, np.logical_and),
}


@functools.lru_cache(maxsize=64)
def _reduced_dtype(ufunc: np.ufunc, dtype: np.dtype) -> np.dtype:
    return ufunc.reduce(np.ones(1, dtype)).dtype


def _over_lanes(x: Unpadded, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """A reduction along the varying axis; None if it must run on the padded array."""
    axes = params.get("axis")
    op_and_ufunc = _OVER_LANES.get(op.name)
    if op_and_ufunc is None or len(args) > 1 or type(axes) is not tuple or 1 not in axes or 0 in axes:
        return None
    if x.dtype.kind not in "biuf" or x.dtype.itemsize == 2 or not set(params) <= {"axis", "keepdims"}:
        return None
    values = x.values
    inner = tuple(axis - 1 for axis in axes if axis > 1)
    keepdims = params.get("keepdims", False)
    if inner:
        values = op(values, axis=inner, keepdims=keepdims)
    segments_p, ufunc = op_and_ufunc
    dtype = _reduced_dtype(ufunc, np.dtype(values.dtype))
    out = segments_p(values, ufunc=ufunc, layout=x.layout, dtype=dtype, empty=x.pad)
    return np.expand_dims(out, 1) if keepdims else out


def _concatenate(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Moved:
    """Concatenation along an axis after the varying one."""
    axis = params["axis"]
    if axis < 2 or any(ndim_of(arg) != x.ndim for arg in args):
        return None
    operands = [_align(x, arg) for arg in args]
    if any(operand is None or shape_of(operand)[:1] != (x.layout.count,) for operand in operands):
        return None
    return operands, {"axis": axis - 1}


_MOVES = frozenset((reshape_p.name, getitem_p.name))  # ops that leave the padding's value unchanged

_ON_VALUES: dict[str, Callable[[Unpadded, Sequence[Any], dict[str, Any]], Moved]] = {
    "elementwise": _elementwise,
    "join": _concatenate,
    "matmul": _product,
    "reduction": _other_axes,
    "normalisation": _other_axes,
    reshape_p.name: _reshape,
    getitem_p.name: _getitem,
}
