"""Arithmetic on sizes of examples (ints or `Lengths`): broadcasting, axes, and shapes whose sizes are operands."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from autobatch.core.abstract_eval import as_size, shape_of
from autobatch.core.batched import Batched, Lengths, Size, check_padding, same_size
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import ShapeError


def lane_count(operands: Sequence[Any]) -> int:
    """The number of examples of a call with at least one batched operand."""
    return next(x.batch_size for x in operands if isinstance(x, Batched))


def padded_width(size: Size) -> int:
    """The padded width that a size needs: its maximum over the lanes."""
    return size.max() if isinstance(size, Lengths) else size


def padded_shape(lanes: int, sizes: Sequence[Size], itemsize: float = 8.0) -> tuple[int, ...]:
    """The shape (B, *padded) of an array for B examples of these sizes, which is about to be made (`check_padding`)."""
    widths = tuple(map(padded_width, sizes))
    if has_lengths(sizes) and type(lanes) is int:
        check_padding(lanes, sizes, widths, itemsize)
    return lanes, *widths


def as_batched(x: Any, lanes: int) -> Batched:
    """An operand as a batch; a shared one is broadcast to `lanes` equal examples (without a copy)."""
    if isinstance(x, Batched):
        return x
    if not is_boxed(x):
        x = np.asarray(x)
    shape = tuple(shape_of(x))
    return Batched(np.broadcast_to(x, (lanes, *shape)), shape)


def slice_lengths(n: np.ndarray, start: Any, stop: Any, step: Any) -> tuple[Any, Any, Any]:
    """`slice(start, stop, step).indices(n)` for each lane, as (first position, length, step)."""
    step = np.asarray(1 if step is None else step)
    if (step == 0).any():
        raise ValueError("slice step cannot be zero")
    back = step < 0
    low, high = np.where(back, -1, 0), np.where(back, n - 1, n)
    first = _clip_bound(start, n, low, high) if start is not None else np.where(back, high, low)
    last = _clip_bound(stop, n, low, high) if stop is not None else np.where(back, low, high)
    lengths = np.where(back, (first - last - step - 1) // -step, (last - first + step - 1) // step)
    return first, np.maximum(lengths, 0), step


def _clip_bound(value: Any, n: np.ndarray, low: Any, high: Any) -> np.ndarray:
    return np.clip(np.where((given := np.asarray(value)) < 0, given + n, given), low, high)


def sizes_agree(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """True if two shapes are equal in every example."""
    return len(a) == len(b) and all(same_size(x, y) for x, y in zip(a, b, strict=True))


Template = tuple[int | None, ...]  # a shape; None marks a size that is passed as an operand


def size_operands(shape: Any) -> tuple[Template, list[Any]]:
    """Split a shape into a template (None where the size differs between examples) and those sizes as operands."""
    if not isinstance(shape, list | tuple):
        shape = shape.tolist() if isinstance(shape, np.ndarray) and shape.ndim else (shape,)
    template: list[int | None] = []
    operands: list[Any] = []
    for size in shape:
        if rank_of(size) == BATCH_RANK:
            if np.dtype(size.dtype).kind not in "iu":
                raise TypeError(f"'{size.dtype}' object cannot be interpreted as an integer")
            template.append(None)
            operands.append(size)
        else:
            template.append(as_size(size))
    return tuple(template), operands


def fill_template(template: Template, operands: Sequence[Any]) -> tuple[int, ...]:
    """The shape of one example: the template with the operands in place of None."""
    sizes = iter(operands)
    return tuple(int(next(sizes)) if size is None else size for size in template)


reshape_p = Op(  # its rule is in `ops.numpy.shaping`
    "reshape",
    lambda x, *sizes, shape: np.asarray(x).reshape(fill_template(shape, sizes)),
    vjp=lambda position, ct, out, args, params: None if position else reshaped(ct, shape_of(args[0])),
    kind="shape",
)


def reshaped(x: Any, shape: Sequence[Any]) -> Any:
    """`x.reshape(shape)` of an array that nobody writes into: the result is not tracked as a view."""
    return x.reshape(shape) if type(x) is np.ndarray else reshape_p(x, shape=tuple(map(as_size, shape)))


def spread_out(x: Any, shape: tuple[int, ...]) -> Any:
    """`np.broadcast_to`, which takes longer than the arithmetic on a small array, where it changes anything."""
    return x if type(x) is np.ndarray and x.shape == shape else np.broadcast_to(x, shape)


def lane_sizes(template: Template, operands: Sequence[Any]) -> tuple[Size, ...]:
    """The sizes of a batch: the template with `Lengths` (or an int, if the operand is shared) in place of None.

    Raises:
        ValueError: a size is negative in some example.
    """
    sizes = iter(operands)
    out: list[Size] = []
    for size in template:
        if size is None:
            given = next(sizes)
            values = np.asarray(given.data if isinstance(given, Batched) else given).astype(np.int64)
            out.append(Lengths(values) if isinstance(given, Batched) else int(values))
        else:
            out.append(size)
    return tuple(out)


def normalise_axis(axis: Any, rank: int) -> int:
    """An axis of an example as a non-negative int.

    Raises:
        AxisError: out of bounds. OverflowError: too large for a C int.
    """
    return normalize_axis_index(operator.index(axis), rank)


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """One axis or several as non-negative ints, repeats allowed; None: all axes."""
    if axis is None:
        return tuple(range(rank))
    return tuple(normalise_axis(a, rank) for a in (axis if isinstance(axis, list | tuple) else (axis,)))


def array_and_axis(x: Any, axis: Any) -> tuple[Any, int]:
    """The array and its axis as a non-negative int; axis None: the flattened array and axis 0.

    Raises:
        AxisError: out of bounds.
    """
    if axis is None:
        x, axis = np.reshape(x, (-1,)), 0
    return x, normalise_axis(axis, len(shape_of(x)))


def normalise_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """One axis or several as non-negative ints; None: all axes.

    Raises:
        AxisError: out of bounds.
        ValueError: an axis is named twice.
    """
    axes = axes_of(axis, rank)
    if len(set(axes)) != len(axes):
        raise ValueError("repeated axis")
    return axes


def normal_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """The axes of a reduction (an int or a tuple) as sorted non-negative ints; None: all axes.

    Raises:
        AxisError: an axis outside the example's dimensions.
        ValueError: an axis is named twice.
    """
    if axis is None:
        return tuple(range(rank))
    return tuple(sorted(normalise_axes(axis if isinstance(axis, tuple) else (axis,), rank)))


def has_lengths(sizes: Sequence[Size]) -> bool:
    """True if some dimension is ragged, i.e. its size differs between examples (`Lengths`)."""
    return Lengths in map(type, sizes)


def are_unknown(sizes: Sequence[Size]) -> bool:
    """True if some lengths are recorded, and have no values yet."""
    return any(isinstance(size, Lengths) and size.is_unknown for size in sizes)


def size_per_lane(size: Size) -> np.ndarray:
    """The size in each lane: (B,) int64, or (1,) where it is static."""
    return size.values if isinstance(size, Lengths) else np.array([size], np.int64)


def sizes_of(x: Any) -> tuple[Size, ...]:
    """The sizes of an operand's examples, batched or shared."""
    return x.sizes if isinstance(x, Batched) else tuple(shape_of(x))


def differ_somewhere(a: Any, b: Any) -> bool:
    """True if two sizes (ints or per-example integers) differ in some example that runs now."""
    different = a != b
    return bool(np.any(different.data if isinstance(different, Batched) else different))


def lane_lengths(size: Size, lanes: int) -> np.ndarray:
    """The size in each lane, also if it is static: (lanes,) int64."""
    return size.values if isinstance(size, Lengths) else np.full(lanes, size, np.int64)


def first_difference(a: Size, b: Size) -> tuple[int, int, int]:
    """(a, b, lane): the values of two sizes in the first lane where they differ, and that lane."""
    left, right = np.broadcast_arrays(size_per_lane(a), size_per_lane(b))
    lane = int(np.argmax(left != right))
    return int(left[lane]), int(right[lane]), lane


def check_mask_sizes(mask: Any, sizes: Sequence[Size], axis: int = 0) -> None:
    """Raise IndexError if the sizes of a boolean index differ from `sizes`; `axis` is the axis of the first of them."""
    for offset, (have, want) in enumerate(zip(sizes_of(mask), sizes, strict=False)):
        if not same_size(have, want):
            wants, gives, _ = first_difference(want, have)
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis + offset}; size of axis is {wants} but "
                f"size of corresponding boolean axis is {gives}"
            )


def is_one_in_some(own: Sequence[Size], sizes: Sequence[Size]) -> bool:
    """True if a dimension of an operand has length 1, and is broadcast to `sizes`, in some examples only."""
    return any(
        not same_size(size, sizes[axis]) and not (size_per_lane(size) == 1).all()
        for axis, size in enumerate(own, len(sizes) - len(own))
    )


def broadcast_sizes(all_sizes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The example sizes after NumPy's broadcasting, computed per lane.

    Raises:
        ShapeError: in some example two sizes differ and neither is 1; names the first such example.
    """
    rank = max(map(len, all_sizes), default=0)
    out: list[Size] = []
    for axis in range(rank):
        size: Size = 1
        for sizes in all_sizes:
            offset = axis - (rank - len(sizes))
            if offset >= 0:
                size = broadcast_size(size, sizes[offset])
        out.append(size)
    return tuple(out)


def broadcast_size(a: Size, b: Size) -> Size:
    """The size of one dimension after broadcasting, computed per lane.

    Raises:
        ShapeError: in some example the two differ and neither is 1; names the first such example.
    """
    if a is b or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    if same_size(a, b):
        return a if isinstance(a, Lengths) else b
    left, right = np.broadcast_arrays(size_per_lane(a), size_per_lane(b))
    wrong = (left != right) & (left != 1) & (right != 1)
    if wrong.any():
        lane = int(np.argmax(wrong))
        raise ShapeError(
            f"operands could not be broadcast together: lengths {left[lane]} and {right[lane]} in example {lane}"
        )
    if isinstance(a, int) and isinstance(b, int):
        return b if a == 1 else a
    return Lengths(np.where(left == 1, right, left))
