"""What a block's inputs and outputs have to be alike in, so that one program serves."""

from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.masked import MaskedBatch
from autobatch.core.abstract_eval import WEAK, aval_of, is_non_c_order
from autobatch.ops.rules.aliasing import is_contiguous, is_scalar, zero_d

__all__ = ["batch_of", "is_new", "kind_of"]

_NUMERIC = frozenset("biufc")
_INDEX = (int, bool, str, float, type(None), tuple, type(Ellipsis), slice, type, np.dtype)


def is_new(out: Any) -> bool:
    """Whether an output lies as a new array does, so that whether a reshape of it is a view is known again."""
    return is_contiguous(out) or (is_non_c_order(out) and getattr(out, "_view", None) is None)


def kind_of(value: Any, static: bool) -> tuple[Any, Any] | None:
    """A hashable key for the kind of an input, and what it is traced as (None: a constant); None if it has none."""
    kind: Any = type(value)
    if kind is MaskedBatch:
        data = value.data
        plain = type(data) is np.ndarray or (type(data) is TapeArray and type(data.value) is np.ndarray)
        if not plain or value.is_ragged or data.dtype.kind not in _NUMERIC or value.scalar is not None:
            return None
        scalar = is_scalar(value)
        non_c_order = is_non_c_order(value)
        return ("b", value.sizes, data.dtype, scalar, non_c_order), aval_of(
            value.sizes, data.dtype, scalar, non_c_order
        )
    if kind in WEAK and not static:
        return ("w", kind), WEAK[kind]
    if isinstance(value, np.generic) and not static:
        return (("w", kind), aval_of((), value.dtype, True)) if value.dtype.kind in _NUMERIC else None
    if kind is np.ndarray or (kind is TapeArray and type(value.value) is np.ndarray):
        if value.dtype.kind not in _NUMERIC:
            return None
        non_c_order = is_non_c_order(value)
        return ("s", value.shape, value.dtype, non_c_order), aval_of(value.shape, value.dtype, non_c_order=non_c_order)
    if kind is tuple and not all(type(part) is int for part in value):
        return None
    return (("c", kind, repr(value)), None) if static and isinstance(value, _INDEX) else None


def batch_of(rows: Any, kind: tuple[Any, bool, bool], region: Any) -> Any:
    """Rows that a block made as a batch.

    Args:
        kind: the sizes of an example's array; whether it is a 0-d array; whether it may not be in C order.
    """
    sizes, zero_dim, non_c_order = kind
    batch = MaskedBatch.of_data(rows, sizes, region)
    if non_c_order:
        batch._ab_set_order(True)
    return zero_d(batch) if zero_dim else batch
