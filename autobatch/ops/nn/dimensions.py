"""`split_dim` and `join_dims`: one dimension of an example reshaped into two, and two joined into one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import ndim_of
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import is_boxed
from autobatch.errors import OptionError
from autobatch.ops.rules.dispatch import as_array


@hiding_frames
def split_dim(x: ArrayLike, axis: int, parts: int) -> NDArray[Any]:
    """Split a dimension in two: (..., size, ...) becomes (..., size // parts, parts, ...).

    Args:
        x: any dtype. axis: the dimension, counted in an example; parts: the size of the second of the two.

    Returns:
        An array with one more dimension.

    Raises:
        OptionError: there is no such dimension, or `parts` is 0. ValueError: its size is not a multiple of `parts`.

    Source: Matchbox's `split_dim` (Bradbury and Fu, 2018), used to split attention heads.

    >>> split_dim(np.arange(6), 0, 2).tolist()
    [[0, 1], [2, 3], [4, 5]]
    """
    x = as_array(x)
    axis = _place(x, axis)
    shape = np.shape(x)
    if not is_boxed(parts) and parts == 0:
        raise OptionError(f"split_dim(x, {axis}, {parts!r}); expected parts of at least one element")
    return np.reshape(x, (*shape[:axis], shape[axis] // parts, parts, *shape[axis + 1 :]))


@hiding_frames
def join_dims(x: ArrayLike, first: int, second: int) -> NDArray[Any]:
    """Join two dimensions of sizes m and n into one of size m * n at the position of `first`; `second` varies fastest.

    Args:
        x: any dtype. first, second: the dimensions; they need not be adjacent.

    Returns:
        An array with one dimension less.

    Raises:
        OptionError: there is no such dimension, or both are the same.

    Source: Matchbox's `join_dims` (Bradbury and Fu, 2018).

    >>> join_dims(np.arange(6).reshape(3, 2), 1, 0).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    first, second = _place(x, first), _place(x, second)
    if first == second:
        raise OptionError(f"join_dims(x, {first}, {second}); expected two dimensions")
    place = first - (second < first)
    moved: Any = np.moveaxis(as_array(x), second, place + 1)
    shape = np.shape(moved)
    return np.reshape(moved, (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]))


def _place(x: Any, axis: int) -> int:
    rank = ndim_of(as_array(x))
    if not isinstance(axis, int | np.integer) or not -rank <= axis < rank:
        raise OptionError(f"dimension {axis!r} of an array of {rank}; expected {-rank} to {rank - 1}")
    return axis % rank
