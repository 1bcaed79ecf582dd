"""Shape functions of each example: transpose, reshape, new axes, squeeze, broadcasting; most results are views."""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from autobatch.core.abstract_eval import is_non_c_order, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import WRITE_AXIS, NeedsLoop, ShapeError, Unsupported
from autobatch.ops.rules.aliasing import (
    is_contiguous,
    is_scalar,
    report_error,
    set_order,
    stand_in,
    unclear_view,
    view,
    zero_d,
)
from autobatch.ops.rules.dispatch import any_shorter, as_array, implements
from autobatch.ops.rules.op_kinds import elementwise
from autobatch.ops.rules.padding import mask_cotangent, to_width
from autobatch.ops.rules.row_gather import rows_p
from autobatch.ops.rules.sizes import (
    Template,
    as_batched,
    broadcast_sizes,
    differ_somewhere,
    fill_template,
    lane_count,
    lane_sizes,
    normalise_axes,
    normalise_axis,
    padded_shape,
    padded_width,
    reshape_p,
    reshaped,
    size_operands,
    size_per_lane,
    sizes_agree,
    sizes_of,
    spread_out,
)

# transposition


@implements(np.transpose, np.permute_dims)
def transpose(a: Any, axes: Any = None) -> Any:
    rank = ndim_of(a)
    order = tuple(range(rank - 1, -1, -1)) if axes is None else tuple(normalise_axis(axis, rank) for axis in axes)
    if len(order) != rank:
        raise ValueError("axes don't match array")
    if len(set(order)) != rank:
        raise ValueError("repeated axis in transpose")
    if is_scalar(a):
        return a
    if not is_boxed(a):
        return np.asarray(a).transpose(order)
    return view(transpose_p(a, axes=order), a, *_TRANSPOSED, (order,))


_TRANSPOSED = (
    lambda base, order: transpose_p(base, axes=order), lambda base, new, order: transpose_p(new, axes=_inverse(order)),
)  # fmt: skip


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _transpose_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,), order = operands, params["axes"]
    return Batched(op(x.data, axes=(0, *(axis + 1 for axis in order))), [x.sizes[axis] for axis in order])


transpose_p: Op = Op(
    "transpose", lambda x, *, axes: np.asarray(x).transpose(axes), rule=_transpose_rule,
    vjp=lambda position, ct, out, args, params: transpose_p(ct, axes=_inverse(params["axes"])),
    layout=lambda params, non_c_order, rank: non_c_order or params["axes"] != tuple(range(len(params["axes"]))),
    kind="shape",
)  # fmt: skip


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = list(range(ndim_of(a)))
    one, two = normalise_axis(axis1, len(order)), normalise_axis(axis2, len(order))
    order[one], order[two] = two, one
    return transpose(a, order)


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    places = normalise_axes(axes, ndim_of(a) + len(axes))
    index = tuple(None if place in places else slice(None) for place in range(ndim_of(a) + len(axes)))
    return a[index] if is_boxed(a) else np.asarray(a)[index]


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any) -> Any:
    template, operands = size_operands(shape)
    return zero_d(view(_broadcast(array, template, operands), array, _broadcast, None, (template, operands)))


def _broadcast(array: Any, template: Template, operands: Sequence[Any]) -> Any:
    return broadcast_to_p(array, *operands, shape=template)


def _broadcast_to_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lane_count(operands)
    x = operands[0]
    target = lane_sizes(params["shape"], operands[1:])
    have = sizes_of(x)
    if len(have) > len(target) or not sizes_agree(broadcast_sizes([have, target]), target):
        raise ShapeError(f"operands could not be broadcast together with remapped shapes {have} -> {target}")
    x = as_batched(x, lanes)
    missing = len(target) - len(have)
    data = mask_cotangent(x.data, x.sizes)
    padded = padded_shape(lanes, target)[1:]
    for axis, size in enumerate(have):
        if isinstance(size, Lengths) or (size != 1 and isinstance(target[axis + missing], Lengths)):
            if not same_size(size, target[axis + missing]):
                raise NeedsLoop("broadcast_to: a length is 1 in some examples only", instead=WRITE_AXIS)
            data = to_width(data, axis + 1, padded[axis + missing])
    if missing:
        data = reshaped(data, (lanes, *(1,) * missing, *shape_of(data)[1:]))
    return Batched(_select_new(op(data, shape=(lanes, *padded)), x, target, missing), target)


def _select_new(data: Any, x: Batched, target: Sequence[Size], missing: int) -> Any:
    """Zero the padding that this broadcast made, since its cotangents would be summed into a valid element."""
    if not is_boxed(data):
        return data
    axes = [axis for axis, size in enumerate(target) if isinstance(size, Lengths)]
    axes = [axis for axis in axes if axis < missing or not isinstance(x.sizes[axis - missing], Lengths)]
    mask = padding_mask(target, shape_of(data)[1:], axes)
    return data if mask is None else np.where(mask, data, np.zeros((), data.dtype))


# NumPy's copies in K order have axes that repeat elements innermost.
broadcast_to_p = Op(
    "broadcast_to", lambda x, *sizes, shape: spread_out(x, fill_template(shape, sizes)), rule=_broadcast_to_rule,
    vjp=lambda position, ct, out, args, params: unbroadcast(ct, args[0]) if position == 0 else None,
    layout=lambda *_: True, kind="shape",
)  # fmt: skip


@implements(np.reshape)
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, copy: bool | None = None) -> Any:
    """np.reshape of each example; one size may be negative, and sizes may differ between examples."""
    if order == "F":
        template = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
        return transpose(reshape(transpose(a), template[::-1], copy=copy))
    if order == "A" and _is_fortran(a):
        return reshape(a, shape, "F", copy=copy)
    if order not in ("C", "A", "K"):
        raise Unsupported(f"reshape with order={order!r}")
    template, operands = size_operands(shape)
    if any(type(size) is int and size < -1 for size in template):  # NumPy takes them as -1, down to a limit
        np.empty(0).reshape([size for size in template if type(size) is int and size < 0])
        template = tuple([-1 if type(size) is int and size < 0 else size for size in template])
    out = reshape_p(a, *operands, shape=template)
    if is_scalar(a) and not ndim_of(out):
        return a
    if copy or not is_boxed(out):
        return zero_d(out)
    return _shared(out, a, _shares(a, shape_of(out)), template, operands)


def _shared(out: Any, a: Any, shares: bool | None, template: Template, operands: Sequence[Any]) -> Any:
    """Mark the result of a reshape of `a` as a view (`shares` True), a copy (False), or either of them (None)."""
    if shares is None:
        return unclear_view(out, a)
    if not shares:
        return zero_d(set_order(out, False))
    reshaped = lambda base, template, operands: reshape_p(base, *operands, shape=template)
    return view(out, a, reshaped, _restore_reshape, (template, tuple(operands)), contiguous=True)


def flat_view(a: Any) -> Any:
    """All elements of an array in C order, as a view: a write into it always reaches the array."""
    return _shared(reshape_p(a, shape=(-1,)), a, True, (-1,), ())


class FlatIterator:
    """`ndarray.flat` of this library's arrays: like np.flatiter, it has items, but no operators and no shape.

    Any other use of an np.flatiter raises NeedsLoop, so the loop over the examples runs it.
    """

    __slots__ = ("_array",)
    _ab_internal = True

    def __init__(self, array: Any) -> None:
        self._array = array

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.flatiter

    def __getitem__(self, index: Any) -> Any:
        out = flat_view(self._array)[index]
        return np.copy(out) if ndim_of(out) else out

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write the value's elements in C order, repeated or cut to the number of places, as np.flatiter does."""
        flat = flat_view(self._array)
        if ndim_of(value) and ndim_of(places := flat[index]):
            value = np.reshape(value, (-1,))
            wanted, given = shape_of(places)[0], shape_of(value)[0]
            if not differ_somewhere(given, 0):
                return
            if any_shorter(value, 1):
                error = NeedsLoop("a write through ndarray.flat of an array that is empty in some examples")
                raise report_error(self._array, error)
            if differ_somewhere(wanted, given):
                value = np.resize(value, (wanted,))
        flat[index] = value

    def __iter__(self) -> Any:
        return iter(flat_view(self._array))

    def copy(self) -> Any:
        return flat_view(self._array).copy()

    def __getattr__(self, name: str) -> Any:
        if not hasattr(np.flatiter, name):
            raise AttributeError(f"'numpy.flatiter' object has no attribute {name!r}")
        self._refuse()

    def __len__(self) -> int:
        return flat_view(self._array).__len__()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise report_error(self._array, NeedsLoop("ndarray.flat as an object"))

    __array__ = __next__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]


FlatIterator.__name__ = "flatiter"


def _shares(a: Any, shape: Any) -> bool | None:
    """True if NumPy's reshape returns a view, which depends on the strides; None if they are unknown."""
    if rank_of(a) == BATCH_RANK:
        return True if is_contiguous(a) else None
    if is_contiguous(a) and getattr(a, "_ab_plain", None) is None and getattr(a, "_view", None) is None:
        return True
    plain = stand_in(a)
    return None if plain is None else not plain.size or np.may_share_memory(plain.reshape(shape), plain)


def _restore_reshape(base: Any, new: Any, template: Template, operands: tuple[Any, ...]) -> Any:
    back, sizes = size_operands(shape_of(base))
    return reshape_p(new, *sizes, shape=back)


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    if order == "K":
        plain = _in_memory(a)
        if plain is not None:  # in memory order
            a = transpose(a, _axes_in_memory(plain))
    elif order == "F" or (order == "A" and _is_fortran(a)):
        a = transpose(a)
    elif order not in ("C", "A"):
        raise Unsupported(f"ravel with order={order!r}")
    out = reshape_p(a, shape=(-1,))
    return _shared(out, a, _is_one_run(a), (-1,), ()) if is_boxed(out) else out


def _in_memory(a: Any) -> np.ndarray | None:
    """A plain array with the strides of this one; None if the array of every example is in C order.

    Raises:
        NeedsLoop: the memory order is unknown.
    """
    plain = stand_in(a) if rank_of(a) < BATCH_RANK else None
    if plain is None and is_non_c_order(a):
        raise report_error(a, NeedsLoop("the order of elements of an array that may not be in C order"))
    return plain


def _axes_in_memory(plain: np.ndarray) -> list[int]:
    """The axes in the order in which NumPy's iterator in K order goes through them, the outermost first."""
    forward = plain[tuple([slice(None, None, -1 if step < 0 else 1) for step in plain.strides])]
    corner = np.nditer(forward[(slice(2),) * plain.ndim], ["multi_index", "zerosize_ok"], order="K")
    places = [corner.multi_index for _ in corner]
    steps = {place.index(1): number for number, place in enumerate(places) if sum(place) == 1}
    return sorted(range(plain.ndim), key=lambda axis: -steps.get(axis, 0))


def _is_fortran(a: Any) -> bool:
    plain = _in_memory(a)
    return plain is not None and plain.flags.fnc


def _is_one_run(a: Any) -> bool | None:
    """True if NumPy's array would be C-contiguous; None if that is unknown."""
    if rank_of(a) < BATCH_RANK and (plain := stand_in(a)) is not None:
        return plain.flags.c_contiguous
    return True if is_contiguous(a) else None


def _reshape_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lane_count(operands)
    x = as_batched(operands[0], lanes)
    wanted = [_own(size, x.sizes) for size in lane_sizes(params["shape"], operands[1:])]
    target = _resolve(x.sizes, wanted, lanes)
    padded = _same_places(x, target)
    if padded is not None:
        return Batched(x.data.reshape((lanes, *padded)), target)
    if _leading_only(x.sizes) and _leading_only(target):
        return _reshape_leading(x, target, lanes)
    return _repack(x, target, lanes)


def _own(size: Size, sizes: Sequence[Size]) -> Size:
    """The size object of the operand that equals this one, if any: values cached on it are then reused."""
    if not isinstance(size, Lengths):
        return size
    return next((own for own in sizes if isinstance(own, Lengths) and same_size(own, size)), size)


def _resolve(have: Sequence[Size], want: Sequence[Size], lanes: int) -> tuple[Size, ...]:
    """The sizes after a reshape, with -1 replaced.

    Raises:
        ShapeError: the number of elements of some example does not fit.
    """
    quick = _resolve_quickly(have, want)
    if quick is not None:
        return quick
    total = _product(have, lanes)
    free = [i for i, size in enumerate(want) if isinstance(size, int) and size == -1]
    if len(free) > 1:
        raise ValueError("can only specify one unknown dimension")
    out = list(want)
    known = _product([size for i, size in enumerate(want) if i not in free], lanes)
    if free:
        wrong = (known == 0) | (total % np.where(known == 0, 1, known) != 0)
        out[free[0]] = 0 if wrong.any() else _own(Lengths(total // known), have)
    else:
        wrong = known != total
    if wrong.any() or (not lanes and not free and total.size and (known != total).any()):
        lane = int(np.argmax(wrong))
        shape = tuple(int(size_per_lane(size)[lane if isinstance(size, Lengths) else 0]) for size in want)
        raise ShapeError(f"cannot reshape array of size {total[lane]} into shape {shape} in example {lane}")
    for size in out:
        if (size_per_lane(size) < 0).any():
            raise ValueError("negative dimensions not allowed")
    return tuple(out)


def _resolve_quickly(have: Sequence[Size], want: Sequence[Size]) -> tuple[Size, ...] | None:
    """The resolved shape if static sizes and equal `Lengths` suffice to find it; None if not, or on an error."""
    left = [size for size in have if isinstance(size, Lengths)]
    right = [size for size in want if isinstance(size, Lengths)]
    whole = math.prod(size for size in have if isinstance(size, int))
    part = math.prod(size for size in want if isinstance(size, int))
    same = len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))
    if part > 0:
        return tuple(want) if same and whole == part else None
    place = next((i for i, size in enumerate(want) if isinstance(size, int) and size == -1), None)
    if place is None or part == 0 or min(size for size in want if isinstance(size, int)) < -1:
        return None
    if same and (not left or all((size.values > 0).all() for size in left)) and whole % -part == 0:
        return (*want[:place], whole // -part, *want[place + 1 :])
    if len(left) == 1 and not right and whole == -part:
        return (*want[:place], left[0], *want[place + 1 :])
    return None


def _product(sizes: Sequence[Size], lanes: int) -> np.ndarray:
    out = np.ones(lanes, np.int64)
    for size in sizes:
        out = out * size_per_lane(size)
    return out


def _same_places(x: Batched, target: Sequence[Size]) -> list[int] | None:
    """The padded shape after a reshape that moves no ragged dimension; None if the reshape moves one."""
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
    """Reshape if only the first dimension is ragged: an example is a prefix of its flattened lane, before and after."""
    widths = shape_of(x.data)[1:]
    flat = x.data.reshape((lanes, math.prod(widths)))
    rest = [int(size) for size in target[1:]]  # type: ignore[arg-type]
    first = padded_width(target[0])
    flat = to_width(flat, 1, first * int(np.prod(rest)))
    return Batched(flat.reshape((lanes, first, *rest)), target)


def _repack(x: Batched, target: tuple[Size, ...], lanes: int) -> Batched:
    """The general reshape: gather the elements of each example, in order, into their new positions."""
    shape = tuple(shape_of(x.data))
    padded = padded_shape(lanes, target)
    src = np.full(padded, -1, np.int64)
    src[_inside(target, padded)] = np.flatnonzero(_inside(x.sizes, shape))
    return Batched(rows_p(x.data.reshape((math.prod(shape),)), src, unique=True), target)


def _inside(sizes: Sequence[Size], shape: tuple[int, ...]) -> np.ndarray:
    mask = padding_mask(sizes, shape[1:])
    return np.ones(shape, bool) if mask is None else spread_out(mask, shape)


reshape_p.rule = _reshape_rule


@implements(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    if not is_boxed(a):
        return np.asarray(a).squeeze(axis)
    sizes = shape_of(a)
    axes = [at for at, size in enumerate(sizes) if _is_one(size)] if axis is None else normalise_axes(axis, len(sizes))
    for size in (sizes[at] for at in axes):
        if differ_somewhere(size, 1):
            note = f" in example {int(np.argmax(np.not_equal(size.data, 1)))}" if is_boxed(size) else ""
            raise ShapeError(f"cannot select an axis to squeeze out which has size not equal to one{note}")
    template, operands = size_operands([size for at, size in enumerate(sizes) if at not in axes])
    return a if is_scalar(a) else _shared(reshape_p(a, *operands, shape=template), a, True, template, operands)


def _is_one(size: Any) -> bool:
    one = np.asarray((size == 1).data if is_boxed(size) else size == 1)
    if one.any() and not one.all():
        raise ShapeError("squeeze: a dimension is 1 in some examples only, so results differ in rank; give `axis`")
    return bool(one.size) and bool(one.all())


_first_p = elementwise(
    lambda x, y: np.broadcast_to(x, np.broadcast_shapes(np.shape(x), np.shape(y))), lambda ct, out, x, y: ct, None,
    name="broadcast_against",
)  # fmt: skip
_first_p.layout = broadcast_to_p.layout


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: Any) -> tuple[Any, ...]:
    arrays = [as_array(x) for x in args]
    out = []
    for place, x in enumerate(arrays):
        wide = x
        for other in (*arrays[:place], *arrays[place + 1 :]):
            wide = _first_p(wide, other)
        out.append(unclear_view(wide, x))
    return tuple(out)


@implements(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    rank = len(xi)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[0], places[1] = 1, 0
    out = tuple(
        np.reshape(as_array(x), (1,) * place + (-1,) + (1,) * (rank - place - 1))
        for x, place in zip(xi, places, strict=True)
    )
    if not sparse:
        out = broadcast_arrays(*out)
    return tuple(np.copy(x, order="C") for x in out) if copy else out
