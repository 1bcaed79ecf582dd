"""`Unpadded`: padded data that is held without its padding.

What acts on each position by itself (element-wise ops, products with a shared matrix, normalisation along the features)
computes nothing for padding then, forward and backward, and need not keep it out of anything. Whatever mixes positions
gets the padded array, made once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.batched import Lengths
from autobatch.core.op import Op, is_boxed
from autobatch.ops.array_protocols import StandIn
from autobatch.ops.numpy.indexing import getitem_p
from autobatch.ops.numpy.shaping import reshape_p
from autobatch.ops.rules.index_rule import FULL
from autobatch.ops.rules.row_gather import rows_p, scatter_rows_p

__all__ = ["Unpadded", "padded", "stacked_rows", "unpadded"]

_LEAST_ELEMENTS = 1 << 13
_MOST_FILLED = 0.9  # of the padded positions; where more are filled, the copies cost more than they save


class _Layout:
    """Where the positions inside the examples are in (lanes, width), row by row.

    Attributes:
        rows: the number of each one's position, `lanes` the lane that it is in.
        mask: True inside the examples.
    """

    __slots__ = ("lanes", "mask", "rows", "shape")

    def __init__(self, lengths: Lengths, width: int) -> None:
        self.mask = lengths.mask(width)
        self.shape = self.mask.shape
        self.rows = np.flatnonzero(self.mask)
        self.lanes = self.rows // max(width, 1)

    def take(self, x: Any) -> Any:
        """The rows of an array over (lanes, width)."""
        return _taken(np.reshape(x, (-1, *shape_of(x)[2:])), self.rows)


class Unpadded(StandIn):
    """Stands for (lanes, width, ...) data of examples whose first dimension alone varies; zero at the padding.

    Args:
        values: (positions inside the examples, ...), plain or of an interpreter below a batch.
        layout: where they belong.
    """

    __slots__ = ("_padded", "layout", "values")
    _ab_unpadded = True

    def __init__(self, values: Any, layout: _Layout) -> None:
        self.values = values
        self.layout = layout
        self._padded: Any = None

    def _ab_force(self) -> Any:
        """The padded array."""
        if self._padded is None:
            layout, values = self.layout, self.values
            count = layout.mask.size
            if type(values) is np.ndarray:
                flat: Any = np.zeros((count, *values.shape[1:]), values.dtype)
                flat[layout.rows] = values
            else:
                flat = scatter_rows_p(values, layout.rows, rows=count, unique=True)
            self._padded = np.reshape(flat, self.shape)
        return self._padded

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if op.name == "fill" and args[0] is self and params["value"] == 0 and self._is_padding(args[1]):
            return self
        on_values = _ON_VALUES.get(op.name) or _ON_VALUES.get(op.kind)
        found = None if on_values is None else on_values(self, args, params)
        if found is None:
            return op(*map(padded, args), **params)
        operands, params = found
        return Unpadded(op(*operands, **params), self.layout)

    def _is_padding(self, mask: Any) -> bool:
        own = self.layout.mask
        return mask.shape[:2] == own.shape and mask.size == own.size and (mask is own or mask.base is own)

    def _ab_rebind(self, new: Any) -> None:
        self._padded = padded(new)
        self.values = self.layout.take(self._padded)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.layout.shape, *shape_of(self.values)[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype


def padded(x: Any) -> Any:
    """The padded array of `Unpadded` data; anything else as it is."""
    return x._ab_force() if type(x) is Unpadded else x


def unpadded(data: Any, sizes: Sequence[Any]) -> Any:
    """The data without its padding, where the first dimension alone varies and that saves something; else as it is."""
    if type(data) is Unpadded or not isinstance(sizes[0], Lengths) or Lengths in map(type, sizes[1:]):
        return data
    if not _pays(shape_of(data), sizes[0]):
        return data
    layout = _layout(sizes[0], shape_of(data)[1])
    return Unpadded(layout.take(data), layout)


def stacked_rows(rows: Any, table: np.ndarray, lengths: Lengths) -> Any:
    """The (lanes, width, ...) data whose position (i, j) is `rows[table[i, j]]`; len(rows) stands for padding."""
    if _pays((*table.shape, *shape_of(rows)[1:]), lengths):
        layout = _layout(lengths, table.shape[1])
        return Unpadded(rows[table[layout.mask]], layout)
    data = np.concatenate([rows, np.zeros((1, *rows.shape[1:]), rows.dtype)])
    return data[table]


def _pays(shape: Sequence[int], lengths: Lengths) -> bool:
    positions = shape[0] * shape[1]
    return math.prod(shape) >= _LEAST_ELEMENTS and int(lengths.values.sum()) <= _MOST_FILLED * positions


def _layout(lengths: Lengths, width: int) -> _Layout:
    layout = lengths.derived.get(width)
    if layout is None:
        layout = lengths.derived[width] = _Layout(lengths, width)
    return layout


def _taken(x: Any, rows: np.ndarray) -> Any:
    return x.take(rows, axis=0) if type(x) is np.ndarray else rows_p(x, rows, unique=True)


Found = tuple[list[Any], dict[str, Any]] | None


def _elementwise(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Found:
    operands = []
    for arg in args:
        operand = _lined_up(x, arg)
        if operand is None:
            return None
        operands.append(operand)
    return operands, params


def _lined_up(x: Unpadded, arg: Any) -> Any:
    """An operand of an element-wise op, lined up with the values; None if it has no place beside them."""
    layout = x.layout
    if type(arg) is Unpadded:
        return arg.values if arg.layout is layout and arg.ndim == x.ndim else None
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


def _product(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Found:
    if args[0] is not x or type(args[1]) is Unpadded or ndim_of(args[1]) > 2 or x.ndim < 3:
        return None
    return [x.values, args[1]], params


def _along(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Found:
    """An op along axes that are not the batch's nor the one that varies."""
    axis = params.get("axis")
    axes = axis if isinstance(axis, tuple) else (axis,)
    if args[0] is not x or any(type(a) is not int or a < 2 for a in axes):
        return None
    if any(type(arg) is Unpadded or ndim_of(arg) > x.ndim - 2 for arg in args[1:]):
        return None
    down = tuple(a - 1 for a in axes)
    return [x.values, *args[1:]], {**params, "axis": down if isinstance(axis, tuple) else down[0]}


def _reshape(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Found:
    shape = params["shape"]
    if len(args) > 1 or shape[:2] != x.layout.shape or any(type(n) is not int or n < 0 for n in shape):
        return None
    return [x.values], {"shape": (len(x.layout.rows), *shape[2:])}


def _getitem(x: Unpadded, args: Sequence[Any], params: dict[str, Any]) -> Found:
    spec = params["spec"]
    return ([x.values], {"spec": spec[1:]}) if len(args) == 1 and spec[:2] == (FULL, FULL) else None


_ON_VALUES: dict[str, Callable[[Unpadded, Sequence[Any], dict[str, Any]], Found]] = {
    "elementwise": _elementwise,
    "matmul": _product,
    "reduction": _along,
    "normalisation": _along,
    reshape_p.name: _reshape,
    getitem_p.name: _getitem,
}
