"""What the `MaskedBatch` constructor is given, checked: lengths or a mask and `dims`, into a size per dimension."""

from typing import Any

import numpy as np

from autobatch.batches.stacking import read_dims
from autobatch.core.batched import Lengths, Size
from autobatch.errors import DTypeError, ShapeError

__all__ = ["sizes_from_lengths", "sizes_from_mask", "sizes_static"]


def sizes_static(shape: tuple[int, ...], dims: Any) -> tuple[Size, ...]:
    """Every example fills its padded shape; the dimensions that `dims` names still count as varying."""
    batch_size, padded = shape[0], shape[1:]
    varies = read_dims(dims, len(padded)) if dims is not None else (False,) * len(padded)
    return tuple(Lengths(np.full(batch_size, n)) if v else n for n, v in zip(padded, varies, strict=True))


def sizes_from_lengths(shape: tuple[int, ...], lengths: Any, dims: Any) -> tuple[Size, ...]:
    """(B,) lengths of the varying dimensions (the first, if `dims` is None), or (B, k) of k varying dimensions.

    Raises:
        DTypeError: lengths that are no integers.
        ShapeError: a wrong shape, a negative length, or one beyond the padded data.
    """
    batch_size, padded = shape[0], shape[1:]
    lengths = np.asarray(lengths)
    if lengths.size == 0 and lengths.dtype == np.float64:
        lengths = lengths.astype(np.int64)
    if lengths.dtype.kind not in "iu":
        raise DTypeError(f"lengths are {lengths.dtype}; expected integers, one per example")
    if lengths.ndim not in (1, 2) or lengths.shape[0] != batch_size:
        raise ShapeError(
            f"lengths of shape {lengths.shape} for data of shape {shape}; "
            f"expected ({batch_size},), or ({batch_size}, k) for k varying dimensions"
        )
    if dims is None:
        count = 1 if lengths.ndim == 1 else lengths.shape[1]
        if count > len(padded):
            raise ShapeError(f"lengths name {count} varying dimensions, but the examples have {len(padded)}")
        dims = [axis < count for axis in range(len(padded))]
    axes = [axis for axis, varies in enumerate(read_dims(dims, len(padded))) if varies]
    if lengths.ndim == 2 and lengths.shape[1] != len(axes):
        raise ShapeError(
            f"lengths have {lengths.shape[1]} columns, but dims={tuple(dims)} names {len(axes)} dimensions"
        )
    if lengths.ndim == 1 and not axes:
        raise ShapeError(f"lengths are given, but dims={tuple(dims)} says that no dimension varies")
    sizes: list[Size] = list(padded)
    for column, axis in enumerate(axes):
        of_axis = lengths if lengths.ndim == 1 else lengths[:, column]
        wrong = (of_axis < 0) | (of_axis > padded[axis])
        if wrong.any():
            lane = int(np.argmax(wrong))
            raise ShapeError(
                f"length {of_axis[lane]} of example {lane} is not in 0..{padded[axis]}, "
                f"the padded size of dimension {axis}"
            )
        sizes[axis] = Lengths(of_axis)
    return tuple(sizes)


def sizes_from_mask(shape: tuple[int, ...], mask: Any, dims: Any) -> tuple[Size, ...]:
    """A bool mask, True inside the examples: (B, ...) with an axis of one where a dimension is static.

    A mask of fewer dimensions than the data covers its leading ones. In each example it must be True on a leading
    corner and False elsewhere.

    Raises:
        DTypeError: a mask that is not bool.
        ShapeError: a shape that does not fit the data, a mask that is no leading corner, or one that varies along a
            dimension that `dims` says is static.
    """
    padded = shape[1:]
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise DTypeError(f"the mask is {mask.dtype}; expected bool (True inside the examples): write mask != 0")
    given = mask.shape
    fits = 0 < mask.ndim <= len(shape)
    mask = mask.reshape(given + (1,) * (len(shape) - mask.ndim)) if fits else mask
    if not fits or any(n not in (1, size) for n, size in zip(mask.shape, shape, strict=True)):
        raise ShapeError(
            f"a mask of shape {given} for data of shape {shape}; expected the data's shape, "
            "with 1 along dimensions that do not vary"
        )
    mask = np.broadcast_to(mask, (shape[0], *mask.shape[1:]))
    varies = read_dims(dims, len(padded)) if dims is not None else _varying(mask, padded)
    sizes: list[Size] = list(padded)
    rebuilt = np.ones((shape[0],) + (1,) * len(padded), np.bool_)
    for axis, (length, of_mask) in enumerate(zip(padded, mask.shape[1:], strict=True)):
        if varies[axis]:
            others = tuple(other for other in range(1, mask.ndim) if other != axis + 1)
            inside = np.broadcast_to(mask.any(axis=others), (shape[0], length))
            sizes[axis] = Lengths(inside.sum(axis=1))
            along = sizes[axis].mask(length)  # type: ignore[union-attr]
            rebuilt = rebuilt & along.reshape(shape[0], *(1,) * axis, length, *(1,) * (len(padded) - axis - 1))
        elif of_mask > 1 and not (mask == mask.take([0], axis=axis + 1)).all():
            raise ShapeError(f"the mask varies along dimension {axis}, which dims={tuple(varies)} says is static")
    wrong = (rebuilt != mask).any(axis=tuple(range(1, len(shape))))
    if wrong.any():
        raise ShapeError(
            f"the mask of example {int(np.argmax(wrong))} is not True on one leading corner and False elsewhere "
            f"(varying dimensions: {tuple(varies)}); move the padding to the end of each dimension, "
            "or select what is valid (x[mask]) and use MaskedBatch.from_examples"
        )
    return tuple(sizes)


def _varying(mask: np.ndarray, padded: tuple[int, ...]) -> tuple[bool, ...]:
    """The dimensions along which a mask can vary: its axes longer than one, or of one where that is all there is."""
    varies = [n > 1 for n in mask.shape[1:]]
    if not any(varies) and not mask.all():
        varies = [n == 1 for n in padded]
        if sum(varies) > 1:
            varies = [axis == varies.index(True) for axis in range(len(padded))]
    return tuple(varies)
