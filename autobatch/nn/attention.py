"""Attention with several heads, over the rows of one example."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autobatch.api.batch import batch
from autobatch.errors import OptionError
from autobatch.nn.layers import Seed, check_sizes, seeds_from
from autobatch.ops.nn.init import Initializer, xavier_uniform
from autobatch.ops.nn.losses import causal_mask
from autobatch.ops.nn.normalisation import softmax


class MultiHeadAttention:
    """Each row's mixture of all rows, for several heads (Vaswani et al. 2017).

    Args:
        size: of a row, before and after.
        heads: into how many parts it is cut; a divisor of the size.
        init, seed, dtype: as for `Linear`.

    Attributes:
        query, key, value, out: (size, size).
        heads: how many.

    Raises:
        OptionError: a size that is no positive integer, or heads that do not divide it.

    A call takes (t, size), and optionally `context`, (s, size), the rows to mix instead of the own ones; `causal=True`,
    which lets a row look at those up to itself only; and `mask`, (t, s) bool, True where a row may look.

    >>> MultiHeadAttention(8, heads=2, seed=0)(np.ones((5, 8), np.float32)).shape
    (5, 8)
    """

    def __init__(
        self,
        size: int,
        heads: int,
        *,
        init: Initializer | None = None,
        seed: Seed = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_sizes(size=size, heads=heads)
        if size % heads:
            raise OptionError(f"heads={heads} for a size of {size}; expected a divisor of it")
        init = init or xavier_uniform()
        self.query, self.key, self.value, self.out = (init((size, size), own, dtype) for own in seeds_from(seed, 4))
        self.heads = heads

    @batch
    def __call__(self, x: NDArray[Any], context: Any = None, mask: Any = None, causal: bool = False) -> NDArray[Any]:
        rows = x if context is None else context
        heads, size = self.heads, self.query.shape[0]
        dim = size // heads
        q = (x @ self.query).reshape(x.shape[0], heads, dim).transpose(1, 0, 2)
        k = (rows @ self.key).reshape(rows.shape[0], heads, dim).transpose(1, 2, 0)
        v = (rows @ self.value).reshape(rows.shape[0], heads, dim).transpose(1, 0, 2)
        scores = q @ k * x.dtype.type(dim**-0.5)
        if causal:
            scores = causal_mask(scores)
        if mask is not None:
            scores = np.where(mask, scores, x.dtype.type(-np.inf))
        return (softmax(scores) @ v).transpose(1, 0, 2).reshape(x.shape[0], size) @ self.out
