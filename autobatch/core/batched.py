"""`Batched`, the operand of a batching rule: padded data of all examples and the size of each example.

`Batched` is data with a leading batch axis and, for each dimension of the *example*, its size: an int if it is equal
for all examples, `Lengths` if it varies. Example i is the leading corner `data[i, :n0, :n1, ...]`; the rest is padding,
with arbitrary values. Valid elements are always a prefix of a dimension, so masks are derived, never stored.

One long example among many short ones makes nearly all of an array padding. A run that another mode can take over is
given up before it makes a large array of that kind (`check_padding`).
"""

import contextlib
import contextvars
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.config import config
from autobatch.core.current_region import check_time, has_deadline, holding
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.op import Op, is_boxed
from autobatch.errors import NeedsLoop, OverTime, ShapeError


class Lengths:
    """The length of one dimension in each example: (B,) int64, read-only; masks are cached per padded width.

    Operands that share one `Lengths` object have equal lengths, without a comparison. `derived` caches values that
    callers compute from the lengths; `known` caches masks by their width.

    >>> Lengths([2, 0]).mask(3)
    array([[ True,  True, False],
           [False, False, False]])
    """

    __slots__ = ("derived", "known", "values")

    @hiding_frames
    def __init__(self, values: Any) -> None:
        self.values = np.array(values, dtype=np.int64)
        self.values.flags.writeable = False
        self.known: dict[Any, Any] = {}
        self.derived: dict[Any, Any] = {}

    @property
    def is_unknown(self) -> bool:
        """True if they are recorded, and have no values yet."""
        return "others" in self.derived

    def plus(self, number: int) -> "Lengths":
        """Unknown lengths that are longer by a number; they have to stay above 0 (`blocks.batched_program`)."""
        return recorded_lengths(self.values + number, self.max() + number, self.derived["others"])

    def mask(self, width: int) -> Any:
        """(B, width) bool: True where a position is inside its example."""
        if (out := self.known.get(width)) is None:
            out = self.known[width] = prefix_mask(self.values, width)
            if not self.is_unknown:
                out.flags.writeable = False
        return out

    def max(self) -> int:
        """The longest, 0 for no example."""
        if "longest" not in self.derived:
            self.derived["longest"] = int(self.values.max(initial=0))
        return self.derived["longest"]

    def has_zero(self) -> bool:
        """True if any example has length 0 (cached)."""
        if "zero" not in self.derived:
            self.derived["zero"] = bool(self.values.min(initial=1) == 0)
        return self.derived["zero"]

    def __len__(self) -> int:
        return self.values.shape[0]

    def __repr__(self) -> str:
        return f"Lengths({self.values.tolist()})"


def recorded_lengths(values: Any, longest: Any, others: dict[Any, Lengths]) -> Lengths:
    """Lengths that are recorded, none of them 0; in a recording, those of one longest are the same.

    Args:
        values: stands for (B,) int64; longest: an `Affine`, which stands for the longest.
        others: {longest: lengths} of the recording, to which these are added.
    """
    out = Lengths.__new__(Lengths)
    out.values, out.known = values, {}
    out.derived = {"zero": False, "longest": longest, "others": others}
    return others.setdefault(longest, out)


def _prefix_mask(lengths: Any, *, width: int) -> np.ndarray:
    return np.arange(width) < lengths[..., None]


_prefix_mask_p = Op("prefix_mask", _prefix_mask, kind="padding")


def prefix_mask(lengths: Any, width: Any) -> Any:
    """(..., width) bool, True where a position is below its length."""
    return _prefix_mask_p(lengths, width=width) if is_boxed(lengths) else _prefix_mask(lengths, width=width)


Size = int | Lengths


def same_size(a: Size, b: Size) -> bool:
    """True if two sizes are equal in every example."""
    if a is b:
        return True
    if not isinstance(a, Lengths) and not isinstance(b, Lengths):
        return a == b
    first, second = (size.values if isinstance(size, Lengths) else size for size in (a, b))
    return bool(np.all(first == second))


class Batched:
    """Padded data of B examples and the size of each example's dimensions.

    Attributes:
        data: (B, *padded) array, plain, or one that an outer tape or trace records.
        sizes: one `Size` per example dimension; padded[i] equals an int size, and is at least the largest of `Lengths`.
        scalar: int, float, bool or complex if each example is a Python scalar (weak in promotion), else None.

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
        try:
            self.sizes = tuple(sizes)
        except TypeError:
            raise ShapeError(f"sizes={sizes!r:.60}; expected an int or Lengths for each dimension") from None
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
        """True if any dimension varies by example, so that there may be padding."""
        return Lengths in map(type, self.sizes)

    def __repr__(self) -> str:
        return f"Batched({self.data!r}, sizes={self.sizes}, scalar={self.scalar})"


class Packed:
    """An operand of variable first length without padding: the values of all examples, concatenated.

    Given to batching rules in the `ragged` positions of their op (a bag's ids or weights).

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


_LARGE_PER_LANE = 1 << 14  # bytes; computing less padding takes no longer than running an example by itself
_limited: contextvars.ContextVar[bool] = contextvars.ContextVar("autobatch_limited_padding", default=False)
limit_padding = _limited.set


def limited_padding() -> contextlib.AbstractContextManager[Any]:
    """Let `check_padding` give up the run inside the block, which another mode then takes over."""
    return holding(_limited, True)


def check_padding(lanes: int, sizes: Sequence[Size], widths: Sequence[int], itemsize: float = 8.0) -> None:
    """Check a padded array before it is made; outside `limited_padding`, and under `strict`, any array may be made.

    Args:
        lanes, sizes, widths: the number of examples, their sizes, and the padded width of each dimension.
        itemsize: bytes per element.

    Raises:
        NeedsLoop: the array is large and mostly padding; OverTime in a run that has a deadline.
        OverTime: making it takes longer than there is time before the deadline.
    """
    padded = itemsize * lanes * math.prod(widths)
    if padded < _LARGE_PER_LANE or not _limited.get() or config.strict:
        return
    check_time(padded / 8e9)  # no array is computed faster
    if padded < max(1 << 26, lanes * _LARGE_PER_LANE):  # bytes; less padding than that is computed in little time
        return
    inside = np.ones(lanes)
    for size in sizes:
        inside *= size.values if isinstance(size, Lengths) else size
    if itemsize * inside.sum() < 0.25 * padded:  # an array of which less is inside the examples is mostly padding
        if has_deadline():
            raise OverTime
        why = f"{padded / 2**20:.0f} MiB for these examples together, mostly padding, since few of them are long"
        raise NeedsLoop(why, passing=True)


def padding_mask(sizes: Sequence[Size], padded: Sequence[int], axes: Sequence[int] | None = None) -> np.ndarray | None:
    """Mask that is True inside the examples, broadcastable to (B, *padded); None if there is no padding.

    Args:
        sizes: the `Size` of each example dimension.
        padded: the padded size of each example dimension.
        axes: consider padding along these example axes only; None: along all.

    Returns:
        A bool array with size 1 along axes without (considered) padding, or None.

    >>> padding_mask((Lengths([1, 3]),), (3,))
    array([[ True, False, False],
           [ True,  True,  True]])
    """
    out: np.ndarray | None = None
    for axis, size in enumerate(sizes):
        if not isinstance(size, Lengths) or (axes is not None and axis not in axes):
            continue
        mask = size.known.get(padded[axis])
        mask = size.mask(padded[axis]) if mask is None else mask
        shape = (mask.shape[0],) + (1,) * axis + (padded[axis],) + (1,) * (len(sizes) - axis - 1)
        mask = mask.reshape(shape)
        out = mask if out is None else out & mask
    return out
