"""What a batching rule sees of a batched operand: padded data and the size of each example.

`Batched` is data with a leading batch axis and, for each dimension of the *example*, its size: an int where every
example has it, `Lengths` where it varies. Example i occupies the leading corner `data[i, :n0, :n1, ...]`; the rest is
padding, of any value. A dimension that varies is always a prefix, so a mask is never stored, only derived.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Lengths:
    """The length of one dimension in each example: (B,) int64, read-only; masks are cached per padded width.

    Two operands that share one `Lengths` object are known to agree without a comparison. `derived` is for what others
    compute from the lengths once, `known` has the masks so far, by their width.

    >>> Lengths([2, 0]).mask(3)
    array([[ True,  True, False],
           [False, False, False]])
    """

    __slots__ = ("derived", "known", "values")

    def __init__(self, values: Any) -> None:
        self.values = np.array(values, dtype=np.int64)
        self.values.flags.writeable = False
        self.known: dict[int, np.ndarray] = {}
        self.derived: dict[Any, Any] = {}

    def mask(self, width: int) -> np.ndarray:
        """(B, width) bool: True where a position is inside its example."""
        out = self.known.get(width)
        if out is None:
            out = np.arange(width) < self.values[:, None]
            out.flags.writeable = False
            self.known[width] = out
        return out

    def max(self) -> int:
        """The longest, 0 for no example."""
        return int(self.values.max(initial=0))

    def has_zero(self) -> bool:
        """Whether an example has length 0."""
        if "zero" not in self.derived:
            self.derived["zero"] = bool(self.values.min(initial=1) == 0)
        return self.derived["zero"]

    def __len__(self) -> int:
        return self.values.shape[0]

    def __repr__(self) -> str:
        return f"Lengths({self.values.tolist()})"


Size = int | Lengths


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal in every example."""
    if a is b:
        return True
    if not isinstance(a, Lengths) and not isinstance(b, Lengths):
        return a == b
    first, second = (size.values if isinstance(size, Lengths) else size for size in (a, b))
    return bool(np.all(first == second))


class Batched:
    """Padded data of B examples and the size of each example's dimensions.

    Attributes:
        data: (B, *padded) array, plain or of an interpreter below (a tape).
        sizes: one `Size` per example dimension; padded[i] is that int, or at least the longest of the lengths.
        scalar: int, float, bool or complex where each example is a Python scalar (weak in promotion), else None.

    >>> x = Batched(np.zeros((2, 3, 4)), (Lengths([1, 3]), 4))
    >>> x.batch_size, x.rank, x.is_ragged
    (2, 2, True)
    """

    __slots__ = ("data", "scalar", "sizes")

    data: Any
    sizes: tuple[Size, ...]
    scalar: type | None

    def __init__(self, data: Any, sizes: Sequence[Size], scalar: type | None = None) -> None:
        self.data = data
        self.sizes = tuple(sizes)
        self.scalar = scalar

    @property
    def batch_size(self) -> int:
        """The number of examples, B."""
        return self.data.shape[0]

    @property
    def rank(self) -> int:
        """The number of dimensions of an example."""
        return len(self.sizes)

    @property
    def is_ragged(self) -> bool:
        """Whether any dimension varies by example, so that there may be padding."""
        return Lengths in map(type, self.sizes)

    def __repr__(self) -> str:
        return f"Batched({self.data!r}, sizes={self.sizes}, scalar={self.scalar})"


class Packed:
    """An operand of variable first length without padding: the values of all examples, one after the other.

    What a batching rule may be given in a `ragged` position of its op (a bag of ids, its weights).

    Attributes:
        values: (N, ...) array, plain or of an interpreter below; every example's values have the same trailing shape.
        offsets: (B + 1,) int64, non-decreasing from 0 to N: example i is `values[offsets[i]:offsets[i + 1]]`.

    >>> Packed(np.array([5, 6, 7]), np.array([0, 2, 2, 3])).lengths
    array([2, 0, 1])
    """

    __slots__ = ("offsets", "values")

    values: Any
    offsets: np.ndarray

    def __init__(self, values: Any, offsets: np.ndarray) -> None:
        self.values = values
        self.offsets = offsets

    @property
    def batch_size(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def __repr__(self) -> str:
        return f"Packed({self.values!r}, offsets={self.offsets!r})"


def padding_mask(sizes: Sequence[Size], padded: Sequence[int], axes: Sequence[int] | None = None) -> np.ndarray | None:
    """True inside the examples, broadcastable to (B, *padded); None where nothing is padding.

    `axes` restricts it to padding along those example axes.

    Args:
        sizes: of each dimension of an example, an int or `Lengths`.
        padded: the data's size of each of these dimensions.
        axes: the dimensions whose padding is meant; None: all.

    Returns:
        A bool array, with an axis of 1 where no padding is meant; None where nothing is padding.

    >>> padding_mask((Lengths([1, 3]),), (3,))
    array([[ True, False, False],
           [ True,  True,  True]])
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
