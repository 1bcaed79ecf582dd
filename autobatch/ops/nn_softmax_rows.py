"""softmax of many rows of float32 by a kernel, in threads where they are very many."""

import functools
import math
from typing import Any

import numpy as np

from autobatch.core.config import config
from autobatch.core.diagnostics import underflow_is_ignored
from autobatch.core.threads import run_together, split_work
from autobatch.kernels.softmax import softmax_gradient, softmax_rows
from autobatch.kernels.vectors import Lanes

__all__ = ["as_rows", "is_worthwhile", "softmax_gradient_of_rows", "softmax_of_rows"]

_LEAST_ELEMENTS = 1 << 14
_COST = 8  # bytes that a thread reads from its cache in the time of one element
_LANES = Lanes("f4", 16)


def softmax_of_rows(x: Any, counts: Any) -> np.ndarray | None:
    """softmax along the last axis; None where NumPy is to do it.

    Args:
        counts: how many elements each row has; None: all.
    """
    if not is_worthwhile(x) or not underflow_is_ignored():
        return None
    rows, counts = as_rows(x), _counts(x, counts)
    out = np.empty_like(rows)

    def work(part: tuple[int, int]) -> bool:
        scratch = np.arange(32, dtype=np.float32)
        return bool(softmax_rows(rows, counts, out, part, scratch, _LANES))

    done = run_together([functools.partial(work, part) for part in split_work(len(rows), x.size * _COST)])
    return out.reshape(x.shape) if all(done) else None


def softmax_gradient_of_rows(y: Any, ct: Any, counts: Any) -> np.ndarray | None:
    """The cotangent of the operand, from the result and its cotangent; None where NumPy is to compute it."""
    if not is_worthwhile(y) or type(ct) is not np.ndarray or ct.dtype != y.dtype:
        return None
    rows, counts = as_rows(y), _counts(y, counts)
    above = as_rows(ct)
    out = np.empty_like(rows)
    work = [
        functools.partial(softmax_gradient, rows, above, counts, out, part)
        for part in split_work(len(rows), y.size * _COST)
    ]
    run_together(work)
    return out.reshape(y.shape)


def is_worthwhile(x: Any) -> bool:
    """Whether there are enough elements for a kernel to be faster."""
    return type(x) is np.ndarray and x.dtype == np.float32 and x.size >= _LEAST_ELEMENTS and config.kernels


def as_rows(x: np.ndarray) -> np.ndarray:
    """Its last axis as the rows of a matrix."""
    return np.ascontiguousarray(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _counts(x: np.ndarray, counts: Any) -> np.ndarray:
    if counts is None:
        return np.full(math.prod(x.shape[:-1]), x.shape[-1])
    return np.ascontiguousarray(counts, np.int64).reshape(-1)
