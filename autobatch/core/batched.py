"""What a batching rule sees of a batched operand: padded data and the size of each example.

`Batched` is data with a leading batch axis and, for each dimension of the *example*, its size: an int where every
example has it, `Lengths` where it varies. Example i occupies the leading corner `data[i, :n0, :n1, ...]`; the rest is
padding, of any value. A dimension that varies is always a prefix, so a mask is never stored, only derived.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Batched", "Lengths", "Size", "padding_mask", "same_size"]


class Lengths:
    """The length of one dimension in each example: (B,) int64, read-only; masks are cached per padded width.

    Two operands that share one `Lengths` object are known to agree without a comparison.

    >>> Lengths([2, 0]).mask(3)
    array([[ True,  True, False],
           [False, False, False]])
    """

    __slots__ = ("values", "_masks")

    def __init__(self, values: Any) -> None:
        self.values = np.array(values, dtype=np.int64)
        self.values.flags.writeable = False
        self._masks: dict[int, np.ndarray] = {}

    def mask(self, width: int) -> np.ndarray:
        """(B, width) bool: True where a position is inside its example."""
        out = self._masks.get(width)
        if out is None:
            out = np.arange(width) < self.values[:, None]
            out.flags.writeable = False
            self._masks[width] = out
        return out

    def max(self) -> int:
        return int(self.values.max(initial=0))

    def __len__(self) -> int:
        return self.values.shape[0]

    def __repr__(self) -> str:
        return f"Lengths({self.values.tolist()})"


Size = int | Lengths


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal in every example."""
    if a is b:
        return True
    if isinstance(a, Lengths) and isinstance(b, Lengths):
        return bool(np.array_equal(a.values, b.values))
    if isinstance(a, Lengths):
        return bool((a.values == b).all())
    if isinstance(b, Lengths):
        return bool((b.values == a).all())
    return a == b


class Batched:
    """Padded data of B examples and the size of each example's dimensions.

    Attributes:
        data: (B, *padded) array, plain or of an interpreter below (a tape).
        sizes: one `Size` per example dimension; padded[i] is that int, or at least the longest of the lengths.
        scalar: int, float, bool or complex where each example is a Python scalar (weak in NumPy's promotion), else None.
    """

    __slots__ = ("data", "sizes", "scalar")

    data: Any
    sizes: tuple[Size, ...]
    scalar: type | None

    def __init__(self, data: Any, sizes: Sequence[Size], scalar: type | None = None) -> None:
        self.data = data
        self.sizes = tuple(sizes)
        self.scalar = scalar

    @property
    def batch_size(self) -> int:
        return self.data.shape[0]

    @property
    def rank(self) -> int:
        """The number of dimensions of an example."""
        return len(self.sizes)

    @property
    def is_ragged(self) -> bool:
        return any(isinstance(size, Lengths) for size in self.sizes)

    def __repr__(self) -> str:
        return f"Batched({self.data!r}, sizes={self.sizes}, scalar={self.scalar})"


def padding_mask(sizes: Sequence[Size], padded: Sequence[int], axes: Sequence[int] | None = None) -> np.ndarray | None:
    """True inside the examples, broadcastable to (B, *padded); None where nothing is padding.

    `axes` restricts it to padding along those example axes.
    """
    out: np.ndarray | None = None
    for axis, size in enumerate(sizes):
        if not isinstance(size, Lengths) or (axes is not None and axis not in axes):
            continue
        mask = size.mask(padded[axis])
        shape = (mask.shape[0],) + (1,) * axis + (padded[axis],) + (1,) * (len(sizes) - axis - 1)
        mask = mask.reshape(shape)
        out = mask if out is None else out & mask
    return out
