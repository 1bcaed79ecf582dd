"""Transposition, new axes and broadcasting of each example."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.op import Op, is_boxed
from autobatch.errors import ShapeError
from autobatch.ops.rules.aliasing import view
from autobatch.ops.rules.dispatch import implements
from autobatch.ops.rules.padding import to_width, unbroadcast, without_padding
from autobatch.ops.rules.sizes import (
    Template,
    as_batched,
    broadcast_sizes,
    filled,
    lane_sizes,
    lanes_of,
    normalise_axes,
    normalise_axis,
    size_operands,
    sizes_agree,
    width_of,
)

__all__ = ["broadcast_to", "broadcast_to_p", "expand_dims", "moveaxis", "swapaxes", "transpose", "transpose_p"]


# transposition


@implements(np.transpose, np.permute_dims)
def transpose(a: Any, axes: Any = None) -> Any:
    rank = ndim_of(a)
    order = tuple(range(rank - 1, -1, -1)) if axes is None else tuple(normalise_axis(axis, rank) for axis in axes)
    if len(order) != rank:
        raise ValueError("axes don't match array")
    if len(set(order)) != rank:
        raise ValueError("repeated axis in transpose")
    if not is_boxed(a):
        return np.asarray(a).transpose(order)
    return view(transpose_p(a, axes=order), a, _derive_transpose, _restore_transpose, (order,))


def _derive_transpose(base: Any, order: tuple[int, ...]) -> Any:
    return transpose_p(base, axes=order)


def _restore_transpose(base: Any, new: Any, order: tuple[int, ...]) -> Any:
    return transpose_p(new, axes=_inverse(order))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _transpose(x: Any, *, axes: tuple[int, ...]) -> Any:
    return np.asarray(x).transpose(axes)


def _transpose_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return transpose_p(ct, axes=_inverse(params["axes"]))


def _transpose_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,), order = operands, params["axes"]
    return Batched(op(x.data, axes=(0, *(axis + 1 for axis in order))), [x.sizes[axis] for axis in order])


def _transpose_layout(params: dict[str, Any], crooked: bool, rank: int) -> bool:
    return crooked or params["axes"] != tuple(range(len(params["axes"])))


transpose_p = Op(
    "transpose", _transpose, rule=_transpose_rule, vjp=_transpose_vjp, layout=_transpose_layout, kind="shape"
)


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = list(range(ndim_of(a)))
    one, two = normalise_axis(axis1, len(order)), normalise_axis(axis2, len(order))
    order[one], order[two] = two, one
    return transpose(a, order)


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    rank = ndim_of(a)
    sources, places = normalise_axes(source, rank), normalise_axes(destination, rank)
    if len(sources) != len(places):
        raise ValueError("`source` and `destination` arguments must have the same number of elements")
    order = [axis for axis in range(rank) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return transpose(a, order)


# axes of one


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    places = normalise_axes(axes, ndim_of(a) + len(axes))
    index = tuple(None if place in places else slice(None) for place in range(ndim_of(a) + len(axes)))
    return a[index] if is_boxed(a) else np.asarray(a)[index]


# broadcasting


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    template, operands = size_operands(shape)
    return view(_broadcast(array, template, operands), array, _broadcast, None, (template, operands))


def _broadcast(array: Any, template: Template, operands: Sequence[Any]) -> Any:
    return broadcast_to_p(array, *operands, shape=template)


def _broadcast_to(x: Any, *sizes: Any, shape: Template) -> Any:
    return np.broadcast_to(x, filled(shape, sizes))


def _broadcast_to_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return unbroadcast(ct, args[0]) if position == 0 else None


def _broadcast_to_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lanes_of(operands)
    x = operands[0]
    target = lane_sizes(params["shape"], operands[1:])
    have = x.sizes if isinstance(x, Batched) else tuple(shape_of(x))
    if len(have) > len(target) or not sizes_agree(broadcast_sizes([have, target]), target):
        raise ShapeError(f"operands could not be broadcast together with remapped shapes {have} -> {target}")
    if not isinstance(x, Batched):
        x = as_batched(x, lanes)
    missing = len(target) - len(have)
    data = without_padding(x)
    padded = [width_of(size) for size in target]
    for axis, size in enumerate(have):
        if isinstance(size, Lengths) or (size != 1 and isinstance(target[axis + missing], Lengths)):
            if not same_size(size, target[axis + missing]):
                raise ShapeError("broadcast_to: a length is 1 in some examples only")
            data = to_width(data, axis + 1, padded[axis + missing])
    shape = shape_of(data)
    data = data.reshape((lanes, *(1,) * missing, *shape[1:]))
    return Batched(_select_new(op(data, shape=(lanes, *padded)), x, target, missing), target)


def _select_new(data: Any, x: Batched, target: Sequence[Size], missing: int) -> Any:
    """Stop cotangents at padding that this broadcast made, since they are summed into a value that is none."""
    if not is_boxed(data):
        return data
    axes = [axis for axis, size in enumerate(target) if isinstance(size, Lengths)]
    axes = [axis for axis in axes if axis < missing or not isinstance(x.sizes[axis - missing], Lengths)]
    mask = padding_mask(target, shape_of(data)[1:], axes)
    return data if mask is None else np.where(mask, data, np.zeros((), data.dtype))


broadcast_to_p = Op("broadcast_to", _broadcast_to, rule=_broadcast_to_rule, vjp=_broadcast_to_vjp, kind="shape")
