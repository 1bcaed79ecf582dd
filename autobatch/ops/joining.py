"""Joining and splitting: concatenate, stack, split, and their relatives."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import NeedsLoop, ShapeError
from autobatch.ops.rules.dispatch import Declined, as_array, implements
from autobatch.ops.rules.indexing import on_axis
from autobatch.ops.rules.padding import to_width
from autobatch.ops.rules.rows import gather_axis
from autobatch.ops.rules.sizes import as_batched, lanes_of, normalise_axis, size_per_lane, width_of
from autobatch.ops.shaping_reshape import _atleast

__all__ = [
    "append",
    "array_split",
    "block",
    "column_stack",
    "concatenate",
    "concatenate_p",
    "delete",
    "dstack",
    "hstack",
    "insert",
    "split",
    "stack",
    "stack_p",
    "unstack",
    "vstack",
]


def _arrays(arrays: Any) -> list[Any]:
    """The arrays to join; a batch may itself be the sequence, along its first dimension."""
    if is_boxed(arrays):
        first = shape_of(arrays)[0]
        if is_boxed(first):
            raise Declined("joining the rows of an array whose number differs between examples")
        return [arrays[i] for i in range(first)]
    return [as_array(x) for x in arrays]


def _cast(arrays: list[Any], dtype: Any, casting: str) -> list[Any]:
    if dtype is None:
        return arrays
    dtype = np.dtype(dtype)
    for x in arrays:
        if not np.can_cast(dtype_of(x), dtype, casting):  # type: ignore[arg-type]
            raise TypeError(
                f"Cannot cast array data from {dtype_of(x)!r} to {dtype!r} according to the rule '{casting}'"
            )
    return [x if dtype_of(x) == dtype else x.astype(dtype) for x in arrays]


@implements(np.concatenate)
def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """np.concatenate of each example; lengths along the axis may differ between examples."""
    if out is not None:
        raise Declined("concatenate with out=")
    parts = _cast(_arrays(arrays), dtype, casting)
    if not parts:
        raise ValueError("need at least one array to concatenate")
    if axis is None:
        parts = [x.reshape((-1,)) for x in parts]
        axis = 0
    rank = ndim_of(parts[0])
    if rank == 0:
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    for place, x in enumerate(parts):
        if ndim_of(x) != rank:
            raise ValueError(
                "all the input array dimensions except for the concatenation axis must match exactly, but the array at "
                f"index 0 has {rank} dimension(s) and the array at index {place} has {ndim_of(x)} dimension(s)"
            )
    return concatenate_p(*parts, axis=normalise_axis(axis, rank))


@implements(np.stack)
def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """np.stack of each example."""
    if out is not None:
        raise Declined("stack with out=")
    parts = _cast(_arrays(arrays), dtype, casting)
    if not parts:
        raise ValueError("need at least one array to stack")
    rank = ndim_of(parts[0])
    if any(ndim_of(x) != rank for x in parts):
        raise ValueError("all input arrays must have the same shape")
    return stack_p(*parts, axis=normalise_axis(axis, rank + 1))


def _concatenate(*arrays: Any, axis: int) -> Any:
    return np.concatenate(arrays, axis=axis)


def _concatenate_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    axis = params["axis"]
    first = sum(shape_of(x)[axis] for x in args[:position])
    part = ct[(slice(None),) * axis + (slice(first, first + shape_of(args[position])[axis]),)]
    return _like(part, args[position])


def _like(ct: Any, arg: Any) -> Any:
    have, want = dtype_of(ct), dtype_of(arg)
    if have == want:
        return ct
    if have.kind == "c" and want.kind != "c":
        ct = np.real(ct)
    return ct.astype(want)


def _stack(*arrays: Any, axis: int) -> Any:
    return np.stack(arrays, axis=axis)


def _stack_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return _like(ct[(slice(None),) * params["axis"] + (position,)], args[position])


def _common(parts: Sequence[Batched], skip: int, what: str) -> tuple[list[Any], list[Size]]:
    """The data of batches whose sizes agree (along all axes but `skip`), padded alike, and those sizes."""
    sizes: list[Size] = []
    data = [part.data for part in parts]
    for axis in range(parts[0].rank):
        if axis == skip:
            sizes.append(0)
            continue
        every = [part.sizes[axis] for part in parts]
        size = next((size for size in every if isinstance(size, Lengths)), every[0])
        for other in every:
            if not same_size(size, other):
                have, want = np.broadcast_arrays(size_per_lane(other), size_per_lane(size))
                lane = int(np.argmax(have != want))
                raise ShapeError(f"{what}: sizes {want[lane]} and {have[lane]} along axis {axis} in example {lane}")
        sizes.append(size)
        width = min(shape_of(x)[axis + 1] for x in data)
        if any(shape_of(x)[axis + 1] != width for x in data):
            width = width_of(size)
        data = [to_width(x, axis + 1, width) for x in data]
    return data, sizes


def _stack_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes, axis = lanes_of(operands), params["axis"]
    first = operands[0]
    if all(isinstance(x, Batched) and x.scalar is None and x.sizes == first.sizes for x in operands):
        data = [x.data for x in operands]
        if len({tuple(shape_of(x)) for x in data}) == 1:
            return Batched(op(*data, axis=axis + 1), (*first.sizes[:axis], len(data), *first.sizes[axis:]))
    parts = [as_batched(x, lanes) for x in operands]
    if len({part.rank for part in parts}) > 1:
        raise ShapeError("all input arrays must have the same shape")
    data, sizes = _common(parts, -1, "all input arrays must have the same shape")
    sizes.insert(axis, len(parts))
    return Batched(op(*data, axis=axis + 1), sizes)


def _concatenate_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes, axis = lanes_of(operands), params["axis"]
    parts = [as_batched(x, lanes) for x in operands]
    data, sizes = _common(
        parts, axis, "all the input array dimensions except for the concatenation axis must match exactly"
    )
    along = [part.sizes[axis] for part in parts]
    joined = op(*data, axis=axis + 1)
    if not any(isinstance(size, Lengths) for size in along):
        sizes[axis] = sum(along)
        return Batched(joined, sizes)
    total = np.zeros(lanes, np.int64)
    for size in along:
        total = total + size_per_lane(size)
    sizes[axis] = Lengths(total)
    if not any(isinstance(size, Lengths) for size in along[:-1]):
        return Batched(joined, sizes)
    width = int(total.max(initial=0))
    steps = np.arange(width)
    src = np.full((lanes, width), -1, np.int64)
    first = np.zeros((lanes, 1), np.int64)
    offset = 0
    for part, size in zip(data, along, strict=True):
        count = size_per_lane(size).reshape(-1, 1)
        here = (steps >= first) & (steps < first + count)
        src = np.where(here, steps - first + offset, src)
        first = first + count
        offset += shape_of(part)[axis + 1]
    return Batched(gather_axis(joined, axis, src, unique=True), sizes)


concatenate_p = Op("concatenate", _concatenate, rule=_concatenate_rule, vjp=_concatenate_vjp, kind="join")
stack_p = Op("stack", _stack, rule=_stack_rule, vjp=_stack_vjp, kind="join")


# splitting: slices, so that the parts are views


@implements(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    axis = normalise_axis(axis, ndim_of(ary))
    total = shape_of(ary)[axis]
    if isinstance(indices_or_sections, list | tuple | np.ndarray) or ndim_of(indices_or_sections) == 1:
        points = [0, *indices_or_sections, total]
    else:
        if rank_of(indices_or_sections) == BATCH_RANK:
            raise NeedsLoop("split into a number of parts that differs between examples")
        sections = int(indices_or_sections)
        if sections <= 0:
            raise ValueError("number sections must be larger than 0.")
        each, extras = total // sections, total % sections
        points = [0]
        for i in range(sections):
            points.append(points[-1] + each + (extras > i))
    lead = (slice(None),) * axis
    return [ary[(*lead, slice(start, stop))] for start, stop in itertools.pairwise(points)]


@implements(np.split)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    if not isinstance(indices_or_sections, list | tuple | np.ndarray) and ndim_of(indices_or_sections) == 0:
        total = shape_of(ary)[normalise_axis(axis, ndim_of(ary))]
        if np.any(np.asarray(getattr(total % indices_or_sections, "data", total % indices_or_sections))):
            raise ValueError("array split does not result in an equal division")
    return array_split(ary, indices_or_sections, axis)


@implements(np.unstack)
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    if ndim_of(x) == 0:
        raise ValueError("Input array must be at least 1-d.")
    axis = normalise_axis(axis, ndim_of(x))
    total = shape_of(x)[axis]
    if is_boxed(total):
        raise NeedsLoop("unstack gives as many arrays as an example has rows, and that differs between examples")
    return tuple(x[(*(slice(None),) * axis, i)] for i in range(total))


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    return np.concatenate([_atleast(x, 2) for x in tup], 0, dtype=dtype, casting=casting)  # type: ignore[call-overload]


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    parts = [_atleast(x, 1) for x in tup]
    axis = 0 if parts and ndim_of(parts[0]) == 1 else 1
    return np.concatenate(parts, axis, dtype=dtype, casting=casting)  # type: ignore[call-overload]


@implements(np.dstack)
def dstack(tup: Any) -> Any:
    return np.concatenate([_atleast(x, 3) for x in tup], 2)


@implements(np.column_stack)
def column_stack(tup: Any) -> Any:
    parts = [as_array(x) for x in tup]
    return np.concatenate([_atleast(x, 2).T if ndim_of(x) < 2 else x for x in parts], 1)


@implements(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    if axis is None:
        arr, values, axis = np.reshape(as_array(arr), (-1,)), np.reshape(as_array(values), (-1,)), 0
    return np.concatenate((arr, values), axis=axis)


@implements(np.block)
def block(arrays: Any) -> Any:
    depth, rank = _block_depth(arrays)
    return _block(arrays, 1, depth, max(depth, rank))


def _block_depth(item: Any) -> tuple[int, int]:
    if not isinstance(item, list):
        return 0, ndim_of(item)
    depths = [_block_depth(part) for part in item]
    return 1 + max(d for d, _ in depths), max(r for _, r in depths)


def _block(item: Any, level: int, depth: int, rank: int) -> Any:
    if isinstance(item, list):
        return np.concatenate([_block(part, level + 1, depth, rank) for part in item], axis=-(depth - level + 1))
    return _atleast(item, rank) if rank < 3 else as_array(item)[(None,) * (rank - ndim_of(item))]


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    if axis is None:
        arr, axis = np.reshape(arr, (-1,)), 0
    axis = normalise_axis(axis, ndim_of(arr))
    n = shape_of(arr)[axis]
    if is_boxed(n) or is_boxed(obj):
        raise Declined("np.delete at places that differ between examples")
    return arr[on_axis(axis, np.delete(np.arange(n), obj))]


@implements(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    if not isinstance(obj, int) or (axis is not None and ndim_of(values) != ndim_of(arr) - 1):
        raise Declined("np.insert at several places")
    if axis is None:
        arr, axis, values = np.reshape(arr, (-1,)), 0, np.reshape(as_array(values), (-1,))
        if shape_of(values) != (1,):
            raise Declined("np.insert of several values")
    else:
        axis = normalise_axis(axis, ndim_of(arr))
        values = np.expand_dims(as_array(values), axis)
    parts = (arr[on_axis(axis, slice(None, obj))], values.astype(dtype_of(arr)), arr[on_axis(axis, slice(obj, None))])
    return np.concatenate(parts, axis)
