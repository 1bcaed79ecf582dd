"""layer_norm of many rows of float32 by a kernel, in threads where they are very many."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.diagnostics import underflow_is_ignored
from autobatch.core.threads import run_together, split_work
from autobatch.kernels.normalising import layer_norm_gradient, layer_norm_rows
from autobatch.kernels.vectors import Lanes
from autobatch.ops.nn_softmax_rows import as_rows, is_worthwhile

__all__ = ["layer_norm_gradient_of_rows", "layer_norm_of_rows"]

_COST = 4  # bytes that a thread reads from its cache in the time of one element
_LANES = Lanes("f4", 16)


def layer_norm_of_rows(x: Any, axis: tuple[int, ...], eps: float) -> np.ndarray | None:
    """x less its mean along the last axis, over its deviation; None where NumPy is to do it."""
    return _by(layer_norm_rows, axis, eps, x) if underflow_is_ignored() else None


def layer_norm_gradient_of_rows(ct: Any, x: Any, axis: tuple[int, ...], eps: float) -> np.ndarray | None:
    """The cotangent of x, from that of the result; None where NumPy is to compute it."""
    return _by(layer_norm_gradient, axis, eps, x, ct)


def _by(kernel: Callable[..., bool], axis: tuple[int, ...], eps: float, *arrays: Any) -> np.ndarray | None:
    x = arrays[0]
    if not is_worthwhile(x) or axis != (x.ndim - 1,) or x.shape[-1] % _LANES.n:
        return None
    if any(type(each) is not np.ndarray or each.dtype != x.dtype or each.shape != x.shape for each in arrays):
        return None
    rows = [as_rows(each) for each in arrays]
    out = np.empty_like(rows[0])
    parts = split_work(len(out), x.size * _COST)
    done = run_together([functools.partial(kernel, *rows, out, part, np.float32(eps), _LANES) for part in parts])
    return out.reshape(x.shape) if all(done) else None
