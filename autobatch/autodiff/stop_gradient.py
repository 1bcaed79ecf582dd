"""`ab.stop_gradient`: a value as it is, through which no gradient flows."""

from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.core.op import is_boxed
from autobatch.core.pytree import map_tree
from autobatch.ops.rules.kinds import elementwise


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


stop_gradient_p = elementwise(_copied, name="stop_gradient")


def stop_gradient(x: Any) -> Any:
    """x, which counts as a constant where something is differentiated.

    Args:
        x: an array, a number, a batch, or a tree of them.

    Returns:
        The same values, arrays in memory of their own; a leaf that is no array is the same object.

    Source: JAX's `jax.lax.stop_gradient`.

    >>> from autobatch.autodiff.grad import grad
    >>> grad(lambda x: x * stop_gradient(x))(3.0)
    3.0
    """
    return map_tree(_stopped, x)


def _stopped(leaf: Any) -> Any:
    while type(leaf) is TapeArray:
        leaf = leaf.value
    is_table = hasattr(leaf, "_ab_gradient")  # what it gives to read is its own
    return leaf if is_table or not (isinstance(leaf, np.ndarray) or is_boxed(leaf)) else stop_gradient_p(leaf)
