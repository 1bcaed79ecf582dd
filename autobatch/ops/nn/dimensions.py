"""One dimension as two, and two as one, of an example as of a batch."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autobatch.core.abstract_eval import ndim_of
from autobatch.core.op import is_boxed
from autobatch.errors import OptionError
from autobatch.ops.rules.dispatch import as_array


def split_dim(x: ArrayLike, axis: int, parts: int) -> NDArray[Any]:
    """A dimension cut into two: (..., size, ...) becomes (..., size // parts, parts, ...).

    Args:
        x: any dtype. axis: the dimension, one of an example; parts: the size of the second of the two.

    Returns:
        An array of one dimension more.

    Raises:
        OptionError: there is no such dimension, or `parts` is 0. ValueError: its size is no multiple of `parts`.

    Source: Matchbox's `split_dim` (Bradbury and Fu, 2018), which attention heads are made by.

    >>> split_dim(np.arange(6), 0, 2).tolist()
    [[0, 1], [2, 3], [4, 5]]
    """
    x = as_array(x)
    axis = _place(x, axis)
    shape = np.shape(x)
    if not is_boxed(parts) and parts == 0:
        raise OptionError(f"split_dim(x, {axis}, {parts!r}); expected parts of at least one element")
    return np.reshape(x, (*shape[:axis], shape[axis] // parts, parts, *shape[axis + 1 :]))


def join_dims(x: ArrayLike, first: int, second: int) -> NDArray[Any]:
    """Two dimensions as one, where the first of them was: of sizes m and n it is m * n, the second running faster.

    Args:
        x: any dtype. first, second: the dimensions, beside each other or not.

    Returns:
        An array of one dimension less.

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
    if not -rank <= axis < rank:
        raise OptionError(f"dimension {axis} of an array of {rank}; expected {-rank} to {rank - 1}")
    return axis % rank
