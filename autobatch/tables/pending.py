"""Looked-up rows of ragged examples that are not there yet: a reduction over them is one bag launch instead."""

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.op import BATCH_RANK, Op
from autobatch.ops.face import ArrayFace
from autobatch.tables.bags import bags_p

__all__ = ["PackedRows", "PendingRows"]


_OVER_ROWS = ({"axis": (1,)}, {"axis": (1,), "keepdims": False})
_OVER_PACKED = ({"axis": (0,)}, {"axis": (0,), "keepdims": False})
_MODES = {"sum": "sum", "mean": "mean", "max": "max", "min": "min"}


class PendingRows(ArrayFace):
    """Stands for the rows of a look-up, (B, T, dim), zero at the padding.

    Selecting zeros at the padding leaves it as it is, a sum over the second axis is a bag launch, and whatever else is
    done with it looks the rows up first.

    Args:
        table: (num_rows, dim), plain or of an interpreter below a batch.
        ids: (B, T) int64, checked where the mask is True, arbitrary elsewhere.
        mask: (B, T), True inside the examples, a prefix of each row.
        look_up: `look_up(table, ids, mask)` gives the rows.
    """

    __slots__ = ("__weakref__", "_rows", "_view", "_views", "ids", "look_up", "mask", "table")
    _ab_rank = BATCH_RANK - 1

    def __init__(self, table: Any, ids: np.ndarray, mask: np.ndarray, look_up: Callable[..., Any]) -> None:
        self.table = table
        self.ids = ids
        self.mask = mask
        self.look_up = look_up
        self._rows: Any = None

    def _ab_force(self) -> Any:
        """The rows, looked up once."""
        if self._rows is None:
            self._rows = self.look_up(self.table, self.ids, self.mask)
        return self._rows

    def _ab_apply(self, op: Op, args: Any, params: dict[str, Any]) -> Any:
        if args[0] is self and self._rows is None:
            if op.name == "fill" and self._is_padding(args[1]) and _is_zero(params["value"]):
                return self
            if op.name == "sum" and params in _OVER_ROWS:
                offsets = np.concatenate([[0], np.cumsum(self.mask.sum(axis=1))])
                return bags_p(self.table, self.ids[self.mask], offsets, mode="sum")
        return op(*(arg._ab_force() if type(arg) is PendingRows else arg for arg in args), **params)

    def _is_padding(self, mask: Any) -> bool:
        shape = (*self.mask.shape, 1)
        return mask.shape == shape and bool(np.array_equal(mask.reshape(self.mask.shape), self.mask))

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        def forced(x: Any) -> Any:
            return x._ab_force() if type(x) is PendingRows else x

        return function(*map(forced, args), **{key: forced(value) for key, value in kwargs.items()})

    def _ab_rebind(self, new: Any) -> None:
        self._rows = new

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.mask.shape, shape_of(self.table)[1])

    @property
    def ndim(self) -> int:
        return 3

    @property
    def size(self) -> int:
        return self.mask.size * shape_of(self.table)[1]

    @property
    def dtype(self) -> np.dtype:
        return dtype_of(self.table)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._ab_force(), dtype)

    def __repr__(self) -> str:
        return repr(self._ab_force())


class PackedRows:
    """Stands for the rows of a look-up by the ids of all examples, one after the other: (N, dim).

    Args:
        table: (num_rows, dim), plain or of an interpreter below a batch.
        ids: (N,) int64, checked.
        look_up: `look_up(table, ids)` gives the rows.
    """

    __slots__ = ("_rows", "ids", "look_up", "table")
    ndim = 2

    def __init__(self, table: Any, ids: np.ndarray, look_up: Callable[..., Any]) -> None:
        self.table = table
        self.ids = ids
        self.look_up = look_up
        self._rows: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.ids.shape[0], shape_of(self.table)[1])

    @property
    def dtype(self) -> np.dtype:
        return dtype_of(self.table)

    def force(self) -> Any:
        """The rows, looked up once."""
        if self._rows is None:
            self._rows = self.look_up(self.table, self.ids)
        return self._rows

    def reduced(self, op: Op, params: dict[str, Any], offsets: np.ndarray) -> Any:
        """A reduction over the rows of each example as a bag launch: (B, dim); None if it is none.

        What NumPy says of no rows (a warning, an exception) is left to NumPy, as the reduction of the rows themselves.
        """
        mode = _MODES.get(op.name)
        if mode is None or params not in _OVER_PACKED or self._rows is not None:
            return None
        if mode != "sum" and (offsets[1:] == offsets[:-1]).any():
            return None
        return bags_p(self.table, self.ids, offsets, mode=mode)


def _is_zero(value: Any) -> bool:
    return type(value) is not np.ndarray and bool(value == 0)
