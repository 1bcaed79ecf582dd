"""Examples into padded data: ranks and dtypes checked, the longest length found, one array filled."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Lengths, Size
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, ShapeError

__all__ = ["KINDS", "as_arrays", "as_data", "pad_stack", "read_dims"]

KINDS = "biufcmM"  # of the dtypes that a padded array holds


def as_data(data: Any) -> Any:
    """Padded data as an array of numbers.

    Raises:
        ShapeError: nested lists of different lengths. DTypeError: a dtype that is no number.
    """
    if is_boxed(data):
        return data
    try:
        out = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"the data is not one padded array ({error}); use MaskedBatch.from_examples") from None
    if out.dtype.kind not in KINDS:
        raise DTypeError(f"the data is {out.dtype}; a batch of arrays holds numbers, ab.map takes any objects")
    return out


def as_arrays(examples: Sequence[Any]) -> list[Any]:
    """Each example as an array, all of one rank and dtype.

    An empty list or tuple has no dtype of its own and takes that of the other examples.

    Raises:
        ShapeError: no examples, an example that is no array, or ranks that differ.
        DTypeError: a dtype that is no number, or dtypes that differ. Each names the first offending example.
    """
    if not len(examples):
        raise ShapeError(
            "an empty sequence of examples has no rank and no dtype; "
            "give MaskedBatch(data of shape (0, ...)) for a batch without examples"
        )
    arrays = [x if type(x) is np.ndarray or is_boxed(x) else _as_array(x, i) for i, x in enumerate(examples)]
    bare = [i for i, x in enumerate(examples) if isinstance(x, list | tuple) and arrays[i].size == 0]
    if bare:
        typed = next((x for i, x in enumerate(arrays) if i not in set(bare)), None)
        if typed is not None:
            for i in bare:
                arrays[i] = arrays[i].astype(typed.dtype)
    first = arrays[0]
    if first.dtype.kind not in KINDS:
        raise _no_numbers(0, first)
    for i, x in enumerate(arrays):
        if x.ndim != first.ndim:
            raise ShapeError(
                f"example {i} has {x.ndim} dimensions (shape {x.shape}), example 0 has {first.ndim} "
                f"(shape {first.shape}); all examples of a batch need the same number of dimensions"
            )
        if x.dtype != first.dtype:
            if x.dtype.kind not in KINDS:
                raise _no_numbers(i, x)
            raise DTypeError(
                f"example {i} is {x.dtype}, example 0 is {first.dtype}; convert them first, "
                f"for instance [x.astype({str(np.result_type(x.dtype, first.dtype))!r}) for x in examples]"
            )
    return arrays


def _no_numbers(index: int, x: Any) -> DTypeError:
    return DTypeError(f"example {index} is {x.dtype}; a batch of arrays holds numbers, ab.map takes any objects")


def _as_array(x: Any, index: int) -> np.ndarray:
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ShapeError(
            f"example {index} is not one array ({error}); a batch holds one array per example: ab.map takes any "
            "objects, and PackedBatch.from_examples(examples, depth=2) packs lists of arrays"
        ) from None


def read_dims(dims: Any, rank: int) -> tuple[bool, ...]:
    """Check the `dims` that a caller gave: one bool per example dimension."""
    out = tuple(dims)
    if len(out) != rank or not all(isinstance(dim, bool | np.bool_) for dim in out):
        raise ShapeError(f"dims={dims!r}; expected {rank} bools, one per example dimension (True where it varies)")
    return tuple(map(bool, out))


def pad_stack(arrays: Sequence[Any], dims: tuple[bool, ...] | None = None) -> tuple[Any, tuple[Size, ...]]:
    """Stack arrays of one rank and dtype, padded to the longest along each axis: the data and the sizes.

    Arrays of an interpreter below (a tape, a trace) are stacked by ops, so gradients flow to each example.

    Raises:
        ShapeError: `dims` says that a dimension is static, and the examples differ in it.
    """
    shapes = [x.shape for x in arrays]
    first = shapes[0]
    sizes: list[Size] = list(first)
    varying: list[int] = []
    if dims is not None or any(shape != first for shape in shapes):
        for axis in range(len(first)):
            lengths = [shape[axis] for shape in shapes]
            differs = any(length != first[axis] for length in lengths)
            if dims is None:
                varies = differs
            else:
                varies = dims[axis]
                if differs and not varies:
                    wrong = next(i for i, length in enumerate(lengths) if length != first[axis])
                    raise ShapeError(
                        f"dims says that dimension {axis} is static, but it is {lengths[wrong]} in example {wrong} "
                        f"and {first[axis]} in example 0; give dims with True there"
                    )
            if varies:
                sizes[axis] = Lengths(lengths)
                if differs:
                    varying.append(axis)
    boxed = any(type(x) is not np.ndarray and is_boxed(x) for x in arrays)
    if not varying:
        return np.stack(arrays), tuple(sizes)
    padded = tuple(size.max() if isinstance(size, Lengths) else size for size in sizes)
    if boxed:
        return _stack_boxed(arrays, padded, varying, sizes), tuple(sizes)
    data = np.zeros((len(arrays), *padded), arrays[0].dtype)
    if varying == [0]:
        data[sizes[0].mask(padded[0])] = np.concatenate(arrays)  # type: ignore[union-attr]
    else:
        for i, x in enumerate(arrays):
            corner: tuple[Any, ...] = (i, *(slice(n) for n in x.shape))
            data[corner] = x
    return data, tuple(sizes)


def _stack_boxed(arrays: Sequence[Any], padded: tuple[int, ...], varying: list[int], sizes: Sequence[Size]) -> Any:
    dtype = arrays[0].dtype
    if varying == [0]:  # one gather; every padded position reads a row of zeros, so that no cotangent leaks
        lengths: np.ndarray = sizes[0].values  # type: ignore[union-attr]
        rows = np.concatenate([*arrays, np.zeros((1, *padded[1:]), dtype)])
        mask = sizes[0].mask(padded[0])  # type: ignore[union-attr]
        total = int(lengths.sum())
        index = np.full(mask.shape, total)
        index[mask] = np.arange(total)
        return rows[index]
    out = []
    for x in arrays:
        for axis in varying:
            missing = padded[axis] - x.shape[axis]
            if missing:
                filler = np.zeros((*x.shape[:axis], missing, *x.shape[axis + 1 :]), dtype)
                x = np.concatenate([x, filler], axis=axis)
        out.append(x)
    return np.stack(out)
