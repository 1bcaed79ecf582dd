"""Writing by index: an op that gives the array as it is after the write."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.op import Op, is_boxed
from autobatch.errors import NeedsLoop, ShapeError
from autobatch.ops.indexing_get import getitem_op
from autobatch.ops.rules.indexing import FULL, Spec, basic_index, build, flat_positions
from autobatch.ops.rules.padding import to_width, unbroadcast
from autobatch.ops.rules.rows import last_writes, put_rows_p, rows_p, scatter_rows_p
from autobatch.ops.rules.sizes import as_batched, broadcast_sizes, lanes_of, size_per_lane

__all__ = ["add_at_p", "setitem_p"]


def _setitem(x: Any, value: Any, *operands: Any, spec: Spec) -> Any:
    out = np.array(x)
    out[build(spec, operands)] = value
    return out


def _setitem_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, value, *operands = args
    spec = params["spec"]
    if position == 0:
        return unbroadcast(setitem_p(ct, np.zeros((), dtype_of(ct)), *operands, spec=spec), x)
    if position != 1:
        return None
    if all(entry[0] != "a" for entry in spec):
        read = getitem_op(spec)(ct, *operands, spec=spec)
        return unbroadcast(read, value)
    shape = tuple(shape_of(x))
    size = int(np.prod(shape))
    src = np.arange(size).reshape(shape)[build(spec, [np.asarray(operand) for operand in operands])]
    src = last_writes(src, size)
    read = rows_p(ct.reshape((size,)), src, unique=True)
    return unbroadcast(np.where(src >= 0, read, np.zeros((), dtype_of(read))), value)


def _setitem_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, value, *index = operands
    spec: Spec = params["spec"]
    x = as_batched(x, lanes_of(operands))
    basic = basic_index(x.sizes, spec, index)
    if basic is not None and not _leaks(value, basic[1]):
        data = _value_for(value, basic[1], tuple(shape_of(np.broadcast_to(np.int8(0), shape_of(x.data))[basic[0]])))
        return Batched(setitem_p(x.data, data, *index, spec=(FULL, *spec)), x.sizes)
    if len(spec) == 1 and spec[0][0] == "b" and spec[0][1] == len(x.sizes) and _rank(value) == 0:
        mask = index[0]
        _check_mask(mask, x)
        mask_data = _resized(mask.data, x.data) if isinstance(mask, Batched) else mask
        one = value.data.reshape((-1,) + (1,) * len(x.sizes)) if isinstance(value, Batched) else value
        one = one if dtype_of(one) == dtype_of(x.data) else one.astype(dtype_of(x.data))
        if not is_boxed(one) or not x.is_ragged:
            return Batched(np.where(mask_data, one, x.data), x.sizes)
    src, sizes = flat_positions(x, spec, index)
    data = _value_for(value, sizes, src.shape)
    if dtype_of(data) != dtype_of(x.data):
        data = data.astype(dtype_of(x.data))
    shape = tuple(shape_of(x.data))
    unique = all(entry[0] != "a" for entry in spec)
    flat = put_rows_p(x.data.reshape((int(np.prod(shape)),)), np.broadcast_to(data, src.shape), src, unique=unique)
    return Batched(flat.reshape(shape), x.sizes)


def _rank(value: Any) -> int:
    return value.rank if isinstance(value, Batched) else ndim_of(value)


def _leaks(value: Any, sizes: Sequence[Size]) -> bool:
    """Whether the cotangent of a broadcast value would be summed over padding."""
    ragged = any(isinstance(size, Lengths) for size in sizes)
    if not ragged:
        return False
    if not isinstance(value, Batched):
        return is_boxed(value)
    return is_boxed(value.data) and not (len(value.sizes) == len(sizes) and all(map(same_size, value.sizes, sizes)))


def _check_mask(mask: Any, x: Batched) -> None:
    sizes = mask.sizes if isinstance(mask, Batched) else shape_of(mask)
    for axis, (size, want) in enumerate(zip(sizes, x.sizes, strict=True)):
        if not same_size(size, want):
            have, wants = np.broadcast_arrays(size_per_lane(size), size_per_lane(want))
            lane = int(np.argmax(have != wants))
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is {wants[lane]} but "
                f"size of corresponding boolean axis is {have[lane]}"
            )


def _resized(data: Any, like: Any) -> Any:
    for axis in range(1, ndim_of(data)):
        data = to_width(data, axis, shape_of(like)[axis])
    return data


def _value_for(value: Any, sizes: Sequence[Size], padded: Sequence[int]) -> Any:
    """The value's data, broadcastable to (B, *padded) where it broadcasts to `sizes`.

    Raises:
        ShapeError: the value does not broadcast into the place it is written to, with the example.
    """
    batched = isinstance(value, Batched)
    have = value.sizes if batched else tuple(shape_of(value))
    if len(have) > len(sizes):
        raise ShapeError(f"could not broadcast input array of {len(have)} dimensions into {len(sizes)}")
    broadcast = broadcast_sizes([have, tuple(sizes)])
    data = value.data if batched else value
    if not batched and not is_boxed(data):
        data = np.asarray(data)
    for place, size in enumerate(have):
        axis = len(sizes) - len(have) + place
        if not same_size(broadcast[axis], sizes[axis]):
            wants, gives = np.broadcast_arrays(size_per_lane(sizes[axis]), size_per_lane(size))
            lane = int(np.argmax((wants != gives) & (gives != 1)))
            raise ShapeError(
                f"could not broadcast input array of length {gives[lane]} into length {wants[lane]} in example {lane}"
            )
        if isinstance(size, int) and size == 1:
            continue
        if not same_size(size, sizes[axis]):
            raise NeedsLoop("a value whose length is 1 in some examples only is broadcast")
        data = to_width(data, place + batched, padded[axis + 1])
    if batched:
        shape = shape_of(data)
        return data.reshape((shape[0],) + (1,) * (len(sizes) - len(have)) + tuple(shape[1:]))
    return data


setitem_p = Op("setitem", _setitem, rule=_setitem_rule, vjp=_setitem_vjp, kind="index")


def _add_at(x: Any, values: Any, *operands: Any, spec: Spec) -> Any:
    out = np.array(x)
    np.add.at(out, build(spec, operands), values)
    return out


def _add_at_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, values, *operands = args
    if position == 0:
        return unbroadcast(ct, x)
    spec = params["spec"]
    return unbroadcast(getitem_op(spec)(ct, *operands, spec=spec), values) if position == 1 else None


def _add_at_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, values, *index = operands
    x = as_batched(x, lanes_of(operands))
    src, sizes = flat_positions(x, params["spec"], index)
    data = _value_for(values, sizes, src.shape)
    if dtype_of(data) != dtype_of(x.data):
        data = data.astype(dtype_of(x.data))
    data = np.broadcast_to(data, src.shape)
    if is_boxed(data):  # what is at padding is not added, and gets no cotangent
        data = np.where(src >= 0, data, np.zeros((), dtype_of(data)))
    shape = tuple(shape_of(x.data))
    return Batched(x.data + scatter_rows_p(data, src, rows=int(np.prod(shape))).reshape(shape), x.sizes)


add_at_p = Op("add_at", _add_at, rule=_add_at_rule, vjp=_add_at_vjp, kind="index")
