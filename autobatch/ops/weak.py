"""Lanes that are Python scalars: weak in NumPy's promotion, as each example's scalar is on its own (NEP 50)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of
from autobatch.core.batched import Batched
from autobatch.core.op import Op
from autobatch.errors import note_example

__all__ = ["strong"]

_PYTHON = (int, float, complex)
_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def strong(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """The operands with weak lanes cast to the dtype that NumPy gives a Python scalar in their place.

    Raises:
        OverflowError: a Python integer that the other operand's integer dtype cannot hold, as NumPy says it.
    """
    ufunc = op.impl
    if "dtype" in params or not any(isinstance(x, Batched) and x.scalar in _PYTHON for x in operands):
        return [Batched(x.data, x.sizes) if isinstance(x, Batched) and x.scalar else x for x in operands]
    kinds = [_kind(x) for x in operands]
    if isinstance(ufunc, np.ufunc):
        wanted = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout))
    else:
        wanted = (np.result_type(*(k(0) if isinstance(k, type) else k for k in kinds)),) * len(kinds)
    return [
        _cast(x, dtype, ufunc) if isinstance(x, Batched) and x.scalar else x
        for x, dtype in zip(operands, wanted, strict=False)
    ]


def _kind(x: Any) -> Any:
    if isinstance(x, Batched):
        return x.scalar if x.scalar in _PYTHON else dtype_of(x.data)
    return type(x) if type(x) in _PYTHON else dtype_of(x)


def _cast(x: Batched, dtype: np.dtype, ufunc: Any) -> Batched:
    data = x.data
    if data.dtype == dtype:
        return Batched(data, x.sizes)
    if x.scalar is int and dtype.kind in "iu":
        if ufunc in _COMPARISONS:
            return Batched(data, x.sizes)  # NumPy compares a Python integer of any size exactly
        limits = np.iinfo(dtype)
        wrong = (data < limits.min) | (data > min(limits.max, np.iinfo(np.int64).max))
        if np.any(wrong):
            lane = int(np.argmax(wrong))
            message = f"Python integer {int(data[lane])} out of bounds for {dtype.name}"
            raise note_example(OverflowError(message), lane)
    return Batched(data.astype(dtype), x.sizes)
