"""Functions that join, split, insert, delete, repeat, tile, roll or pad the arrays of each example."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import Affine, dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import OWN_LENGTHS, NeedsLoop, ShapeError, Unsupported
from autobatch.ops.numpy.creation import arange, full
from autobatch.ops.numpy.indexing import getitem, picked_along
from autobatch.ops.rules.dispatch import (
    any_shorter,
    any_true,
    as_array,
    cast,
    check_cast,
    expect,
    implements,
    leave_to_python,
    source,
)
from autobatch.ops.rules.index_rule import on_axis
from autobatch.ops.rules.op_kinds import looped_op
from autobatch.ops.rules.padding import to_width
from autobatch.ops.rules.row_gather import gather_axis
from autobatch.ops.rules.sizes import (
    array_and_axis,
    as_batched,
    axes_of,
    first_difference,
    lane_count,
    normalise_axis,
    padded_width,
    size_per_lane,
)


def _arrays(arrays: Any) -> list[Any]:
    """The arrays to join, as a list; an array of this library is split along its first dimension."""
    if is_boxed(arrays):
        first = shape_of(arrays)[0]
        if is_boxed(first):
            raise Unsupported("joining the rows of an array whose number differs between examples")
        return [arrays[i] for i in range(first)]
    return [as_array(x) for x in arrays]


def _cast(arrays: list[Any], dtype: Any, casting: str) -> list[Any]:
    if dtype is None:
        return arrays
    dtype = np.dtype(dtype)
    for x in arrays:
        check_cast(dtype_of(x), dtype, casting)
    return [cast(x, dtype) for x in arrays]


@implements(np.concatenate)
def concatenate(arrays: Any, /, axis: Any = 0, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """np.concatenate of each example; lengths along the axis may differ between examples."""
    parts = _arrays(arrays)
    if axis is None and dtype is None and not is_boxed(arrays):  # Python numbers are weak here
        weak = [type(x) in (int, float, complex) for x in arrays]
        dtype = (
            np.result_type(*(x if w else dtype_of(x) for x, w in zip(arrays, weak, strict=True))) if any(weak) else None
        )
    parts = _cast(parts, dtype, casting)
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
def stack(arrays: Any, axis: int = 0, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """np.stack of each example."""
    parts = _cast(_arrays(arrays), dtype, casting)
    if not parts:
        raise ValueError("need at least one array to stack")
    rank = ndim_of(parts[0])
    if any(ndim_of(x) != rank for x in parts):
        raise ValueError("all input arrays must have the same shape")
    return stack_p(*parts, axis=normalise_axis(axis, rank + 1))


@source(np.stack)
def _stacked_along(arrays, axis=0):
    out = np.array(list(arrays))
    return out if axis == 0 else np.moveaxis(out, 0, axis).copy()


def filled(out, parts):
    """An empty array, filled with the elements of the parts."""
    return np.concatenate([np.ravel(part) for part in parts]).reshape(out.shape)


@source()
def stacked_of_one(parts):
    """Arrays of one shape, along a new first axis."""
    if not len(parts) or any(part.shape != parts[0].shape for part in parts):
        raise ValueError
    return filled(np.empty((len(parts), *parts[0].shape), parts[0].dtype), parts)


stacked_of_lists = source()(lambda rows: stacked_of_one([np.array(row) for row in rows]))
source(np.column_stack)(lambda tup: np.stack(tup, 1) if tup[0].ndim == 1 else np.concatenate(tup, 1))


@source()
def joined_of_one(parts, axis=0):
    """Arrays that differ in length along one axis, one after the other."""
    if axis:
        return np.moveaxis(joined_of_one([np.moveaxis(part, axis, 0) for part in parts]), 0, axis).copy()
    if not len(parts) or any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise ValueError
    return filled(np.empty((sum([len(part) for part in parts]), *parts[0].shape[1:]), parts[0].dtype), parts)


def _concatenate_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    axis = params["axis"]
    first = sum([x.shape[axis] for x in args[:position]])
    last = None if position + 1 == len(args) else first + shape_of(args[position])[axis]
    return unbroadcast(ct[on_axis(axis, slice(first, last))], args[position])


def _common(parts: Sequence[Batched], skip: int, what: str) -> tuple[list[Any], list[Size]]:
    """The data of batches, cropped to common widths, and their sizes, which must agree along all axes but `skip`."""
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
                want, have, lane = first_difference(size, other)
                raise ShapeError(f"{what}: sizes {want} and {have} along axis {axis} in example {lane}")
        sizes.append(size)
        width = min(shape_of(x)[axis + 1] for x in data)
        if any(shape_of(x)[axis + 1] != width for x in data):
            width = padded_width(size)
        data = [to_width(x, axis + 1, width) for x in data]
    return data, sizes


def _stack_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes, axis = lane_count(operands), params["axis"]
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


# repeated(x, batch): (B, ...), the same value for each example of a batch whose number of examples is not known.
repeated_p = Op(
    "repeated", lambda x, batch: np.broadcast_to(x, (len(batch), *np.shape(x))),
    vjp=lambda position, ct, out, args, params: None if position else unbroadcast(ct, args[0]), kind="padding",
)  # fmt: skip


def _concatenate_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes, axis = lane_count(operands), params["axis"]
    if type(lanes) is Affine:
        some = next(x.data for x in operands if isinstance(x, Batched))
        operands = [x if isinstance(x, Batched) else Batched(repeated_p(x, some), shape_of(x)) for x in operands]
    parts = [as_batched(x, lanes) for x in operands]
    data, sizes = _common(
        parts, axis, "all the input array dimensions except for the concatenation axis must match exactly"
    )
    along = [part.sizes[axis] for part in parts]
    joined = op(*data, axis=axis + 1)
    if not any(isinstance(size, Lengths) for size in along):
        sizes[axis] = sum(along)
        return Batched(joined, sizes)
    *before, size = along
    if isinstance(size, Lengths) and size.is_unknown and not any(isinstance(each, Lengths) for each in before):
        sizes[axis] = size.plus(sum(before))
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


concatenate_p = Op("concatenate", lambda *arrays, axis: np.concatenate(arrays, axis=axis), rule=_concatenate_rule,
                   vjp=_concatenate_vjp, kind="join")  # fmt: skip
stack_p = Op(
    "stack", lambda *arrays, axis: np.stack(arrays, axis=axis), rule=_stack_rule, kind="join",
    vjp=lambda position, ct, out, args, params: unbroadcast(ct[on_axis(params["axis"], position)], args[position]),
)  # fmt: skip


# splitting: by slices, so the parts are views


@implements(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    axis = normalise_axis(axis, ndim_of(ary))
    total = shape_of(ary)[axis]
    if isinstance(indices_or_sections, list | tuple | np.ndarray) or ndim_of(indices_or_sections) == 1:
        points = [0, *indices_or_sections, total]
    else:
        if rank_of(indices_or_sections) == BATCH_RANK:
            raise NeedsLoop("split into a number of parts that differs between examples", instead=OWN_LENGTHS)
        sections = int(indices_or_sections)
        if sections <= 0:
            raise ValueError("number sections must be larger than 0.")
        each, extras = total // sections, total % sections
        points = [0, *itertools.accumulate(each + (extras > i) for i in range(sections))]
    lead = (slice(None),) * axis
    return [ary[(*lead, slice(start, stop))] for start, stop in itertools.pairwise(points)]


@implements(np.block)
def block(arrays: Any) -> Any:
    depth, rank = _block_depth(arrays)
    out = _block(arrays, 1, depth, max(depth, rank))
    return out if depth else np.copy(out, order="C")


def _block_depth(item: Any) -> tuple[int, int]:
    if not isinstance(item, list):
        return 0, ndim_of(item)
    depths = [_block_depth(part) for part in item]
    return 1 + max(d for d, _ in depths), max(r for _, r in depths)


def _block(item: Any, level: int, depth: int, rank: int) -> Any:
    if isinstance(item, list):
        return np.concatenate([_block(part, level + 1, depth, rank) for part in item], axis=-(depth - level + 1))
    return as_array(item)[(None,) * (rank - ndim_of(item))]


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    arr, axis = array_and_axis(arr, axis)
    n = shape_of(arr)[axis]
    if is_boxed(n) or is_boxed(obj):
        return _without_one(arr, obj, axis, n)
    return picked_along(arr, axis, np.delete(np.arange(n), obj), keeps_order=True)


def _without_some(arr: Any, places: Sequence[int], axis: int, n: Any) -> Any:
    """np.delete at positions that are the same in all examples, along an axis whose length differs."""
    if any(any_true((n <= place) | (n < -place)) for place in places):
        raise Unsupported("np.delete out of bounds")
    kept = arange(n)
    for place in places:
        kept = kept[kept != (place if place >= 0 else n + place)]
    return arr[on_axis(axis, kept)]


def _without_one(arr: Any, obj: Any, axis: int, n: Any) -> Any:
    """np.delete of one position per example, where the position or the axis's length differs between examples."""
    if isinstance(obj, list | tuple) and all(type(each) is int for each in obj):
        return _without_some(arr, obj, axis, n)
    whole = ndim_of(obj) == 0 and (is_boxed(obj) or isinstance(obj, int | np.integer)) and dtype_of(obj).kind in "iu"
    if not whole or any_true((obj < -n) | (obj >= n)):
        raise Unsupported("np.delete at places that differ between examples, other than one for each")
    place = np.where(obj < 0, obj + n, obj)
    kept = arange(n - 1)
    return arr[on_axis(axis, kept + (kept >= place))]


@implements(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    if not isinstance(obj, int) or (axis is not None and ndim_of(values) != ndim_of(arr) - 1):
        raise Unsupported("np.insert at several places")
    if axis is None:
        arr, axis, values = np.reshape(arr, (-1,)), 0, np.reshape(as_array(values), (-1,))
        if shape_of(values) != (1,):
            raise Unsupported("np.insert of several values")
    else:
        axis = normalise_axis(axis, ndim_of(arr))
        values = np.expand_dims(as_array(values), axis)
    if any_shorter(arr, abs(obj), axis):
        raise Unsupported("np.insert past an end")
    parts = (arr[on_axis(axis, slice(None, obj))], values.astype(dtype_of(arr)), arr[on_axis(axis, slice(obj, None))])
    return np.concatenate(parts, axis)


_repeat_places_p = looped_op("repeat_places", lambda n, repeats: np.repeat(np.arange(n), repeats))


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """np.repeat; the counts may differ between examples and between elements."""
    a, axis = array_and_axis(a, axis)
    n = shape_of(a)[axis]
    if not is_boxed(repeats):
        repeats = np.asarray(repeats)
        repeats = int(repeats) if repeats.ndim == 0 else repeats
    if ndim_of(repeats) == 0:
        if not is_boxed(repeats) and repeats < 0:
            raise ValueError("repeats may not contain negative values.")
        places = arange(n * repeats) // np.maximum(repeats, 1)
    else:
        places = _repeat_places_p(n, repeats)
    return picked_along(a, axis, places)


@implements(np.tile)
def tile(A: Any, reps: Any) -> Any:  # noqa: N803
    """np.tile; the counts may differ between examples."""
    counts = list(reps) if isinstance(reps, list | tuple) or (not is_boxed(reps) and ndim_of(reps)) else [reps]
    rank = max(ndim_of(A), len(counts))
    counts = [1] * (rank - len(counts)) + counts
    out = A[(None,) * (rank - ndim_of(A))] if rank > ndim_of(A) else np.copy(A)
    for axis, count in enumerate(counts):
        if is_boxed(count) or count != 1:
            n = shape_of(out)[axis]
            out = picked_along(out, axis, arange(n * count) % np.maximum(n, 1))
    return out


@implements(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    shape = tuple(new_shape) if isinstance(new_shape, list | tuple) else (new_shape,)
    expect(a, "np.resize", least=1)
    flat = np.reshape(a, (-1,))
    total: Any = 1
    for size in shape:
        total = total * size
    return np.reshape(getitem(flat, arange(total) % np.maximum(shape_of(flat)[0], 1)), shape)


def _pairs(value: Any, rank: int) -> list[tuple[Any, Any]]:
    """The (before, after) pad widths or values for each axis, from any of the short forms that np.pad accepts."""
    if type(value) is np.ndarray:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return [(value, value)] * rank
    items = [tuple(item) if isinstance(item, list | tuple | np.ndarray) else item for item in value]
    if all(isinstance(item, tuple) for item in items):
        pairs = [item if len(item) == 2 else (item[0], item[0]) for item in items]
        pairs = pairs * rank if len(pairs) == 1 else pairs
    else:
        pairs = [(items[0], items[-1])] * rank
    if len(pairs) != rank:
        raise ValueError(f"operands could not be broadcast together: {len(pairs)} pad widths for {rank} dimensions")
    return pairs


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """np.pad; widths may differ between examples. Modes constant, edge, wrap, reflect, symmetric, empty."""
    rank = ndim_of(array)
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(axis, pad_width.get(axis - rank, 0)) for axis in range(rank)]
        pad_width = [item if isinstance(item, tuple) else (item, item) for item in pad_width]
    widths = _pairs(pad_width, rank)
    if mode == "empty":
        mode = "constant"
    if mode != "constant":
        expect(array, f"np.pad with mode={mode!r}", least=1)
    if mode == "constant":
        values = _pairs(kwargs.pop("constant_values", 0), rank)
    if kwargs or mode not in ("constant", "edge", "wrap", "reflect", "symmetric"):
        raise Unsupported(f"np.pad with mode={mode!r} or its options")
    if not dtype_of(array).isnative:  # which `np.concatenate` does not keep
        raise Unsupported(f"np.pad of dtype {dtype_of(array)}")
    out = array
    for axis, (before, after) in enumerate(widths):
        if not is_boxed(before) and not is_boxed(after):
            if before < 0 or after < 0:
                raise ValueError("index can't contain negative values")
            if before == after == 0:
                continue
        if mode == "constant":
            out = np.concatenate(
                [_side(out, axis, before, values[axis][0]), out, _side(out, axis, after, values[axis][1])], axis
            )
        else:
            n = shape_of(out)[axis]
            places = arange(before + n + after) - before
            out = picked_along(out, axis, _places(mode, n, places), keeps_order=True)
    return out if out is not array else np.copy(array)


def _side(x: Any, axis: int, width: Any, value: Any) -> Any:
    return full((*shape_of(x)[:axis], width, *shape_of(x)[axis + 1 :]), value, dtype_of(x))


def _places(mode: str, n: Any, i: Any) -> Any:
    if mode == "edge":
        return np.clip(i, 0, n - 1)
    if mode == "wrap":
        return i % np.maximum(n, 1)
    period = 2 * n if mode == "symmetric" else 2 * n - 2
    j = i % np.maximum(period, 1)
    back = period - 1 - j if mode == "symmetric" else period - j
    return np.where(j >= n, back, j)


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """np.roll; shifts may differ between examples."""
    if axis is None:
        return np.reshape(roll(np.reshape(a, (-1,)), shift, 0), shape_of(a))
    axes = axes_of(axis, ndim_of(a))
    several = isinstance(shift, list | tuple) or (not is_boxed(shift) and ndim_of(shift))
    shifts = list(shift) if several else [shift] * len(axes)
    if len(shifts) != len(axes):
        axes = axes * len(shifts) if len(axes) == 1 else axes
    for place, by in zip(axes, shifts, strict=True):
        n = shape_of(a)[place]
        a = picked_along(a, place, (arange(n) - by) % np.maximum(n, 1), keeps_order=True)
    return a


@source(np.roll, of=(1, 2))
def _roll_of_one(a, shift, axis=None):
    if np.ndim(shift) or (axis is None and np.ndim(a) == 2):
        leave_to_python()
    along = 0 if axis is None else axis
    x = np.moveaxis(a, along, 0)
    return np.moveaxis(x[(np.arange(len(x)) - shift) % max(len(x), 1)], 0, along).copy()
