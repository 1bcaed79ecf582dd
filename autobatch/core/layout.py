"""In which order the axes of an example's array lie in NumPy's memory, as far as a view or a copy hangs on it.

An element-wise result lies as its operands do (`order="K"`), so that of a transposed array is transposed, too, and its
reshape a copy. An array is *crooked* if its axes may lie in other than C order; one that is not, and no view, is
contiguous. Only "not crooked" is a promise.
"""

from typing import Any

import numpy as np

from autobatch.core.op import Op

__all__ = ["bends", "is_crooked"]


def is_crooked(value: Any) -> bool:
    """Whether the axes of this array, plain or of ours, may lie in other than C order.

    >>> x = np.zeros((3, 4))
    >>> [is_crooked(y) for y in (x, x[:, ::2], x.T, x.T[:1])]
    [False, False, True, False]
    """
    if type(value) is not np.ndarray:
        return getattr(value, "_ab_crooked", False)
    if value.ndim < 2 or value.flags.c_contiguous:
        return False
    steps = [abs(step) for step, size in zip(value.strides, value.shape, strict=True) if step and size > 1]
    return any(steps[i] < steps[i + 1] for i in range(len(steps) - 1))


def bends(op: Op, params: dict[str, Any], crooked: bool, rank: int) -> bool:
    """Whether the result of a call, of this rank, may be crooked; `crooked`: whether an operand is."""
    if rank < 2:
        return False
    return crooked if op.layout is None else op.layout(params, crooked, rank)
