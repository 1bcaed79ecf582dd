"""Shapes: reshape, transposition and broadcasting of each example."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import ShapeError
from autobatch.ops.indexing_rows import rows_p
from autobatch.ops.inplace import is_contiguous, view
from autobatch.ops.kinds import broadcast_sizes, unbroadcast
from autobatch.ops.sizes import as_batched, lanes_of, per_lane, sizes_agree, to_width, width_of, without_padding
from autobatch.ops.table import Declined, implements

__all__ = [
    "broadcast_to",
    "broadcast_to_p",
    "expand_dims",
    "moveaxis",
    "normalise_axis",
    "ravel",
    "reshape",
    "reshape_p",
    "size_operands",
    "squeeze",
    "swapaxes",
    "transpose",
    "transpose_p",
]

Template = tuple[int | None, ...]


def size_operands(shape: Any) -> tuple[Template, list[Any]]:
    """A shape as static sizes with None where a size differs between examples, and those sizes."""
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
            template.append(operator.index(size))
    return tuple(template), operands


def filled(template: Template, operands: Sequence[Any]) -> tuple[int, ...]:
    """The shape of one example."""
    sizes = iter(operands)
    return tuple(int(next(sizes)) if size is None else size for size in template)


def lane_sizes(template: Template, operands: Sequence[Any]) -> tuple[Size, ...]:
    """The sizes of a batch of examples.

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
        AxisError: out of bounds.
    """
    axis = operator.index(axis)
    if not -rank <= axis < rank:
        raise np.exceptions.AxisError(axis, rank)
    return axis + rank if axis < 0 else axis


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    axes = tuple(normalise_axis(a, rank) for a in (axis if isinstance(axis, list | tuple) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ValueError("repeated axis")
    return axes


# reshape


@implements(np.reshape)
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, copy: bool | None = None) -> Any:
    """np.reshape of each example; one size may be -1, and sizes may differ between examples."""
    if order == "F":
        template = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
        return transpose(reshape(transpose(a), template[::-1], copy=copy))
    if order not in ("C", "A", "K"):
        raise Declined(f"reshape with order={order!r}")
    template, operands = size_operands(shape)
    out = reshape_p(a, *operands, shape=template)
    if copy or not is_boxed(out) or not is_contiguous(a):
        return out
    return view(out, a, _derive_reshape, _restore_reshape, (template, tuple(operands)), contiguous=True)


def _derive_reshape(base: Any, template: Template, operands: tuple[Any, ...]) -> Any:
    return reshape_p(base, *operands, shape=template)


def _restore_reshape(base: Any, new: Any, template: Template, operands: tuple[Any, ...]) -> Any:
    back, sizes = size_operands(shape_of(base))
    return reshape_p(new, *sizes, shape=back)


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    return reshape(a, (-1,), order=order)


def _reshape(x: Any, *sizes: Any, shape: Template) -> Any:
    return np.asarray(x).reshape(filled(shape, sizes))


def _reshape_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return ct.reshape(tuple(shape_of(args[0]))) if position == 0 else None


def _reshape_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lanes_of(operands)
    x = as_batched(operands[0], lanes)
    target = _resolve(x.sizes, lane_sizes(params["shape"], operands[1:]), lanes)
    padded = _same_places(x, target)
    if padded is not None:
        return Batched(x.data.reshape((lanes, *padded)), target)
    if _leading_only(x.sizes) and _leading_only(target):
        return _reshape_leading(x, target, lanes)
    return _repack(x, target, lanes)


def _resolve(have: Sequence[Size], want: Sequence[Size], lanes: int) -> tuple[Size, ...]:
    """The sizes after a reshape, -1 resolved.

    Raises:
        ShapeError: the number of elements of some example does not fit.
    """
    total = _product(have, lanes)
    free = [i for i, size in enumerate(want) if isinstance(size, int) and size == -1]
    if len(free) > 1:
        raise ValueError("can only specify one unknown dimension")
    out = list(want)
    known = _product([size for i, size in enumerate(want) if i not in free], lanes)
    if free:
        wrong = (known == 0) | (total % np.where(known == 0, 1, known) != 0)
        out[free[0]] = 0 if wrong.any() else _free_size(have, want, total // known)
    else:
        wrong = known != total
    if wrong.any() or (not lanes and not free and total.size and (known != total).any()):
        lane = int(np.argmax(wrong))
        shape = tuple(int(per_lane(size)[lane if isinstance(size, Lengths) else 0]) for size in want)
        raise ShapeError(f"cannot reshape array of size {total[lane]} into shape {shape} in example {lane}")
    for size in out:
        if (per_lane(size) < 0).any():
            raise ValueError("negative dimensions not allowed")
    return tuple(out)


def _free_size(have: Sequence[Size], want: Sequence[Size], values: np.ndarray) -> Size:
    """The size that -1 stands for, as an int or the very `Lengths` that it repeats where that is known."""
    ragged = [size for size in have if isinstance(size, Lengths)]
    for size in want:
        if isinstance(size, Lengths):
            match = next((i for i, other in enumerate(ragged) if same_size(size, other)), None)
            if match is None:
                return Lengths(values)
            ragged.pop(match)
    if not ragged:
        whole = int(np.prod([size for size in have if isinstance(size, int)]))
        part = int(np.prod([size for size in want if isinstance(size, int) and size != -1]))
        return whole // part if part else 0
    if len(ragged) == 1 and np.array_equal(ragged[0].values, values):
        return ragged[0]
    return Lengths(values)


def _product(sizes: Sequence[Size], lanes: int) -> np.ndarray:
    out = np.ones(lanes, np.int64)
    for size in sizes:
        out = out * per_lane(size)
    return out


def _same_places(x: Batched, target: Sequence[Size]) -> list[int] | None:
    """The padded shape after a reshape that leaves every varying dimension where it is; None if it does not."""
    widths = shape_of(x.data)[1:]
    padded: list[int] = []
    place = 0
    left = right = 1
    for size in target:
        if not isinstance(size, Lengths):
            padded.append(size)
            right *= size
            continue
        while place < len(x.sizes) and not isinstance(x.sizes[place], Lengths):
            left *= x.sizes[place]  # type: ignore[operator]
            place += 1
        if place == len(x.sizes) or left != right or not same_size(x.sizes[place], size):
            return None
        padded.append(widths[place])
        place += 1
        left = right = 1
    for size in x.sizes[place:]:
        if isinstance(size, Lengths):
            return None
        left *= size
    return padded if left == right else None


def _leading_only(sizes: Sequence[Size]) -> bool:
    return bool(sizes) and isinstance(sizes[0], Lengths) and not any(isinstance(size, Lengths) for size in sizes[1:])


def _reshape_leading(x: Batched, target: tuple[Size, ...], lanes: int) -> Batched:
    """Where only the first dimension varies, an example is a prefix of its flattened lane before and after."""
    widths = shape_of(x.data)[1:]
    flat = x.data.reshape((lanes, int(np.prod(widths))))
    rest = [int(size) for size in target[1:]]  # type: ignore[arg-type]
    first = width_of(target[0])
    flat = to_width(flat, 1, first * int(np.prod(rest)))
    return Batched(flat.reshape((lanes, first, *rest)), target)


def _repack(x: Batched, target: tuple[Size, ...], lanes: int) -> Batched:
    """The general case: the elements of each example, in order, to their new places."""
    shape = tuple(shape_of(x.data))
    padded = tuple(map(width_of, target))
    src = np.full((lanes, *padded), -1, np.int64)
    src[_inside(target, (lanes, *padded))] = np.flatnonzero(_inside(x.sizes, shape))
    return Batched(rows_p(x.data.reshape((int(np.prod(shape)),)), src, unique=True), target)


def _inside(sizes: Sequence[Size], shape: tuple[int, ...]) -> np.ndarray:
    mask = padding_mask(sizes, shape[1:])
    return np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)


reshape_p = Op("reshape", _reshape, rule=_reshape_rule, vjp=_reshape_vjp, kind="shape")


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


transpose_p = Op("transpose", _transpose, rule=_transpose_rule, vjp=_transpose_vjp, kind="shape")


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = list(range(ndim_of(a)))
    one, two = normalise_axis(axis1, len(order)), normalise_axis(axis2, len(order))
    order[one], order[two] = two, one
    return transpose(a, order)


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    rank = ndim_of(a)
    sources, places = _axes(source, rank), _axes(destination, rank)
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
    places = _axes(axes, ndim_of(a) + len(axes))
    index = tuple(None if place in places else slice(None) for place in range(ndim_of(a) + len(axes)))
    return a[index] if is_boxed(a) else np.asarray(a)[index]


@implements(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    rank = ndim_of(a)
    axes = None if axis is None else _axes(axis, rank)
    out = squeeze_p(a, axes=axes)
    if not is_boxed(out):
        return out
    return view(out, a, _derive_squeeze, _restore_reshape, (axes, ()), contiguous=True)


def _derive_squeeze(base: Any, axes: tuple[int, ...] | None, _: Any) -> Any:
    return squeeze_p(base, axes=axes)


def _squeeze(x: Any, *, axes: tuple[int, ...] | None) -> Any:
    return np.asarray(x).squeeze(axes)


def _squeeze_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,), axes = operands, params["axes"]
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(x.sizes) if _is_one(size))
    for axis in axes:
        bad = per_lane(x.sizes[axis]) != 1
        if bad.any():
            note = f" in example {int(np.argmax(bad))}" if isinstance(x.sizes[axis], Lengths) else ""
            raise ShapeError(f"cannot select an axis to squeeze out which has size not equal to one{note}")
    index = (
        slice(None),
        *(0 if axis in axes and shape_of(x.data)[axis + 1] else slice(None) for axis in range(x.rank)),
    )
    data = (
        x.data[index]
        if 0 not in shape_of(x.data)
        else x.data.reshape(tuple(n for axis, n in enumerate(shape_of(x.data)) if axis - 1 not in axes or axis == 0))
    )
    return Batched(data, [size for axis, size in enumerate(x.sizes) if axis not in axes])


def _is_one(size: Size) -> bool:
    if not isinstance(size, Lengths):
        return size == 1
    one = size.values == 1
    if one.any() and not one.all():
        raise ShapeError(
            "squeeze: a dimension is 1 in some examples only, so their results differ in rank; give `axis`"
        )
    return bool(one.size) and bool(one.all())


squeeze_p = Op("squeeze", _squeeze, rule=_squeeze_rule, vjp=_reshape_vjp, kind="shape")


# broadcasting


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    template, operands = size_operands(shape)
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
