"""Shape and dtype of anything an op takes, without dispatching and without reading its data."""

from typing import Any

import numpy as np

__all__ = ["dtype_of", "ndim_of", "shape_of", "type_of"]


def shape_of(x: Any) -> Any:
    """The shape of an array of any interpreter, or of a Python scalar or sequence.

    `np.shape` is itself overridable, so it must not be used inside rules and vjps.
    """
    shape = getattr(x, "shape", None)
    return np.asarray(x).shape if shape is None else shape


def ndim_of(x: Any) -> int:
    """The number of dimensions, as `shape_of`."""
    ndim = getattr(x, "ndim", None)
    return np.asarray(x).ndim if ndim is None else ndim


def dtype_of(x: Any) -> np.dtype:
    """The dtype; of a Python scalar, the one NumPy gives it on its own."""
    dtype = getattr(x, "dtype", None)
    return np.asarray(x).dtype if dtype is None else dtype


def type_of(x: Any, *more: Any) -> Any:
    """What `type` says; of an array of ours the class of what NumPy would have in its place."""
    return x.__class__ if hasattr(x, "_ab_rank") and not more else type(x, *more)
