"""Reductions (sum, prod, max, min, any, all, argmax, argmin), and the identity with which each fills padding.

Along reduced dimensions the padding is filled with the reduction's identity; along others it remains padding.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, prefix_mask
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.errors import Unsupported, UnsupportedError, note_example
from autobatch.ops.numpy.elementwise import highest, lowest
from autobatch.ops.rules.dispatch import UFUNCS, as_array, cast, implements
from autobatch.ops.rules.op_kinds import examples, lane_by_lane
from autobatch.ops.rules.padding import expect_class, fill, speculate
from autobatch.ops.rules.sizes import differ_somewhere, normal_axes, normalise_axis, reshaped


def reduced_sizes(sizes: Sequence[Size], axes: Sequence[int], keepdims: bool) -> tuple[Size, ...]:
    """The example sizes after a reduction of these axes."""
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    return tuple(size for axis, size in enumerate(sizes) if axis not in axes)


def expand(x: Any, axes: Sequence[int], keepdims: bool) -> Any:
    """A reduced array with the reduced axes restored with size 1 (unchanged if `keepdims`)."""
    if keepdims or not axes:
        return x
    shape = list(shape_of(x))
    for axis in axes:
        shape.insert(axis, 1)
    return reshaped(x, shape)


def stretched(ct: Any, shape: tuple[int, ...]) -> Any:
    """A cotangent broadcast to a shape; a small plain one fills an array, which is sooner than `np.broadcast_to`."""
    cls = type(ct)  # what is recorded says that it is one of NumPy's
    if (cls is not np.ndarray and not issubclass(cls, np.generic)) or math.prod(shape) > 1024:
        return np.broadcast_to(ct, shape)
    out = np.empty(shape, ct.dtype)
    out[...] = ct
    return out


def counts(sizes: Sequence[Size], axes: Sequence[int]) -> Any:
    """The number of elements reduced per result: an int, or (B,) if it differs between examples."""
    total: Any = 1
    for axis in axes:
        size = sizes[axis]
        total = total * (size.values if isinstance(size, Lengths) else size)
    return total


@functools.lru_cache(maxsize=256)
def shifted(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of an example as axes of the batch's data: each plus one."""
    return tuple(axis + 1 for axis in axes)


def reduces_nothing(x: Batched, axes: Sequence[int]) -> bool:
    """True if a reduced dimension is empty in some example."""
    for axis in axes:
        size = x.sizes[axis]
        if size == 0 or (isinstance(size, Lengths) and size.has_zero()):
            return True
    return False


def check_not_empty(x: Batched, axes: Sequence[int], message: str) -> None:
    """Raise ValueError if an example reduces an empty dimension, as NumPy does even if the result is empty, too."""
    if not reduces_nothing(x, axes):
        return
    empty = np.broadcast_to(np.asarray(counts(x.sizes, axes) == 0), (x.batch_size,))
    if empty.any():
        raise note_example(ValueError(message), int(np.argmax(empty)))


_every, _some = np.logical_and.reduce, np.logical_or.reduce
_EXTREMES = (np.minimum, np.maximum, np.fmin, np.fmax)


def _of_signed_zeros(rule: Callable[..., Batched]) -> Callable[..., Batched]:
    """A rule that reduces one by one where zeros of both signs meet: which of them an extreme is, depends on how many
    numbers there are.
    """

    def call(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        out, x = rule(op, operands, params), operands[0]
        if x.data.dtype.kind != "f" or type(out.data) is not np.ndarray or _every(out.data, axis=None):
            return out
        data = x.data._ab_force() if hasattr(x.data, "_ab_force") else x.data
        signs = np.signbit(data[data == 0])
        signs = np.append(signs, np.signbit(params["initial"])) if params.get("initial") == 0 else signs
        return out if not _some(signs) or _every(signs) else lane_by_lane(op, [Batched(data, x.sizes)], params)

    return call


def _shows_identity(ufunc: np.ufunc, dtype: np.dtype, initial: Any) -> bool:
    """True where one more zero or one shows: in sums that start at -0.0, in the signs and NaNs of complex products."""
    if ufunc is np.add and initial is not None:
        return dtype.kind == "c" or (initial == 0 and bool(np.signbit(np.real(initial))))
    return ufunc is np.multiply and dtype.kind == "c"


def reduction(ufunc: np.ufunc, identity: Any = None, vjp: Callable[..., Any] | None = None, *, name: str) -> Op:
    """Make the op of a ufunc's `reduce`: padding is filled with the identity, so it does not affect the result.

    Params of the op: axis (sorted, non-negative), keepdims, and optionally dtype and initial.

    Args:
        identity: returns the identity for the operand's dtype; None: that of the ufunc's op.
        vjp: `vjp(ct, out, x, axis)`; `ct` and `out` keep the reduced axes with size 1. None: piecewise constant.

    Returns:
        The op, a function of the operand and of these parameters.

    Raises:
        UnsupportedError: it is not a ufunc of two numbers, or has no identity and none is given.

    >>> union = reduction(np.bitwise_or, lambda dtype: 0, name="union")
    >>> union(np.array([[1, 2], [4, 8]]), axis=(1,))
    array([ 3, 12])
    """
    expect_class(ufunc, np.ufunc, "reduction")
    of_dtype = getattr(UFUNCS.get(ufunc), "identity", None) if identity is None else identity
    if not callable(of_dtype) or ufunc.signature or (ufunc.nin, ufunc.nout) != (2, 1):
        given = f"reduction of {ufunc.__name__} with identity={identity!r}"
        raise UnsupportedError(f"{given}; expected a ufunc of two numbers, and identity=lambda dtype: 0")
    filler = functools.lru_cache(maxsize=64)(of_dtype)

    def rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        x, axes, keepdims = operands[0], params["axis"], params.get("keepdims", False)
        down = {**params, "axis": shifted(axes)}
        sizes = () if len(axes) == len(x.sizes) and not keepdims else reduced_sizes(x.sizes, axes, keepdims)
        if Lengths not in map(type, x.sizes):
            return Batched(op(x.data, **down), sizes)
        dtype = x.data.dtype
        if (dtype.kind == "c" or "initial" in params) and _shows_identity(ufunc, dtype, params.get("initial")):
            data = x.data._ab_force() if hasattr(x.data, "_ab_force") else x.data
            if not is_boxed(data):
                return lane_by_lane(op, [Batched(data, x.sizes)], params)
            if len(data) and Lengths not in map(type, sizes):
                return Batched(np.stack([op(each, **params) for each in examples(data, x.sizes)]), sizes)
        if ufunc.identity is None and "initial" not in params:
            check_not_empty(x, axes, f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
            if 0 in [x.data.shape[1 + axis] for axis in axes]:  # only examples with empty results remain
                down["initial"] = filler(dtype)
        value = filler(dtype)
        inside = fill(x, value, axes)
        if Lengths not in map(type, sizes):  # no padding remains that could cause a warning
            return Batched(op(inside, **down), sizes)

        def rerun() -> Any:
            rest = padding_mask(x.sizes, x.data.shape[1:], [a for a in range(x.rank) if a not in axes])
            return op(inside if rest is None else np.where(rest, inside, np.asarray(value, dtype)), **down)

        return Batched(speculate(lambda: op(inside, **down), rerun), sizes)

    def backward(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        axes, keepdims = params["axis"], params.get("keepdims", False)
        return unbroadcast(vjp(expand(ct, axes, keepdims), expand(out, axes, keepdims), args[0], axes), args[0])  # type: ignore[misc]

    return Op(name, ufunc.reduce, rule=_of_signed_zeros(rule) if ufunc in _EXTREMES else rule,
              vjp=backward if vjp else None, kind="reduction", identity=filler, ufunc=ufunc)  # fmt: skip


def _to_last(x: Any, axes: Sequence[int]) -> Any:
    """Move the axes of a reduction to the end and flatten them into one."""
    ndim = ndim_of(x)
    kept = [axis for axis in range(ndim) if axis not in axes]
    x = np.transpose(x, (*kept, *axes)) if (*kept, *axes) != tuple(range(ndim)) else x
    shape = shape_of(x)[: len(kept)]
    return np.reshape(x, (*shape, math.prod(shape_of(x)[len(kept) :])))


def _from_last(flat: Any, axes: Sequence[int], shape: tuple[int, ...]) -> Any:
    """The inverse of `_to_last`, for an array of this shape."""
    order = (*(axis for axis in range(len(shape)) if axis not in axes), *axes)
    x = np.reshape(flat, tuple(shape[axis] for axis in order))
    return x if order == tuple(range(len(shape))) else np.transpose(x, tuple(np.argsort(order).tolist()))


def _first_vjp(ct: Any, out: Any, x: Any, axes: Any) -> Any:
    """The cotangent goes to the first element equal to the result (or the first NaN), as in argmax."""
    if not axes:
        return ct
    hit = _to_last((x == out) | (x != x), axes)
    width = shape_of(hit)[-1]
    if width == 0:
        return np.zeros(shape_of(x), dtype_of(ct))
    place = np.argmax(hit, axis=-1)
    first = _from_last(hit & prefix_mask(place + 1, width) & ~prefix_mask(place, width), axes, shape_of(x))
    return np.where(first, ct, np.zeros((), dtype_of(ct)))


def _prod_vjp(ct: Any, out: Any, x: Any, axes: Any) -> Any:
    """The derivative is the product of all other elements: those before times those after, so zeros are no problem."""
    flat = _to_last(cast(x, dtype_of(out)), axes)
    if shape_of(flat)[-1] == 0:
        return np.zeros(shape_of(x), dtype_of(ct))
    one = np.ones((*shape_of(flat)[:-1], 1), dtype_of(flat))
    left = np.cumprod(np.concatenate([one, flat[..., :-1]], axis=-1), axis=-1)
    right = np.cumprod(np.concatenate([one, flat[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return ct * _from_last(left * right, axes, shape_of(x))


def _first_number_vjp(ct: Any, out: Any, x: Any, axes: Any) -> Any:
    """`_first_vjp` for fmax and fmin, which ignore NaN unless all elements are NaN."""
    another = np.where(out == 0, 1, np.zeros((), dtype_of(out)))
    return _first_vjp(ct, out, np.where((x != x) & (out == out), another, x), axes)


sum_p = reduction(np.add, None, lambda ct, out, x, axes: stretched(ct, shape_of(x)), name="sum")
prod_p = reduction(np.multiply, None, _prod_vjp, name="prod")
amax_p = reduction(np.maximum, None, _first_vjp, name="max")
amin_p = reduction(np.minimum, None, _first_vjp, name="min")
any_p = reduction(np.logical_or, name="any")
all_p = reduction(np.logical_and, name="all")
fmax_p = reduction(np.fmax, None, _first_number_vjp, name="fmax.reduce")
fmin_p = reduction(np.fmin, None, _first_number_vjp, name="fmin.reduce")


def _position(function: Callable[..., Any], fill_value: Callable[[np.dtype], Any], name: str) -> Op:
    """Make the op of argmax or argmin along one axis; padding is filled with `fill_value(dtype)`."""

    def rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        x, axis, keepdims = operands[0], params["axis"], params.get("keepdims", False)
        sizes = reduced_sizes(x.sizes, (axis,), keepdims)
        check_not_empty(x, (axis,), f"attempt to get {name} of an empty sequence")
        if x.data.shape[1 + axis] == 0:
            shape = tuple(n for at, n in enumerate(x.data.shape) if keepdims or at != axis + 1)
            return Batched(np.zeros(shape, np.intp), sizes)
        return Batched(op(fill(x, fill_value(dtype_of(x.data)), (axis,)), axis=axis + 1, keepdims=keepdims), sizes)

    return Op(name, function, rule=rule, kind="reduction")


argmax_p = _position(np.argmax, lowest, "argmax")
argmin_p = _position(np.argmin, highest, "argmin")


_ALL_AXES = {rank: tuple(range(rank)) for rank in range(9)}


def _numpys(op: Op) -> Callable[..., Any]:
    """A reduction op as a function with NumPy's arguments; options that are not given are not passed to the op."""

    def reduce(
        a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
    ) -> Any:
        if where is not True:
            a = _chosen(op, a, where, initial)
        options: dict[str, Any] = {} if dtype is None else {"dtype": np.dtype(dtype)}
        if initial is not None:
            if is_boxed(initial) or not isinstance(initial, int | float | complex | np.generic):
                raise Unsupported("a reduction with an array for initial=")
            options["initial"] = initial
        axes = _ALL_AXES.get(getattr(a, "ndim", -1)) if axis is None else None
        if axes is None:  # a ufunc's `reduce` accepts axis 0 and -1 of a 0-d array
            rank = ndim_of(a)
            axes = () if not rank and axis in (0, -1) else normal_axes(axis, rank)
        return op(a, axis=axes, keepdims=bool(keepdims), **options)

    return reduce


def _chosen(op: Op, a: Any, where: Any, initial: Any) -> Any:
    """The array with the reduction's identity in all places that `where=` leaves out."""
    ufunc, identity = op.ufunc, op.identity
    if ufunc.identity is None and initial is None:
        raise ValueError(
            f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where mask one has to "
            "specify 'initial'"
        )
    mask, dtype = as_array(where), dtype_of(a)
    if dtype_of(mask).kind != "b" or dtype.kind not in "biufc":
        raise Unsupported("a reduction with where= that is not an array of bools")
    if _shows_identity(ufunc, dtype, initial):
        raise Unsupported("a sum from -0.0, or a complex product, with where=")
    out = np.where(mask, a, np.asarray(identity(dtype), dtype))  # type: ignore[misc]
    if ndim_of(out) != ndim_of(a) or any(map(differ_somewhere, shape_of(out), shape_of(a))):
        raise Unsupported("a reduction with where= of a shape that does not broadcast to the array's")
    return out


def _of_floats(ufunc: np.ufunc, op: Op) -> Callable[..., Any]:
    """`_numpys` for a ufunc that computes in floats: integers are cast to float first."""
    reduce = _numpys(op)

    def cast_first(a: Any, axis: Any = 0, dtype: Any = None, **options: Any) -> Any:
        own = dtype_of(a)
        taken = ufunc.resolve_dtypes((own, own, None))[0] if dtype is None else np.dtype(dtype)
        return reduce(cast(a, taken) if taken != own else a, axis, **options)

    return cast_first


REDUCTIONS: dict[Any, Op] = {
    np.amax: amax_p, np.amin: amin_p, np.sum: sum_p, np.prod: prod_p, np.max: amax_p, np.min: amin_p, np.any: any_p,
    np.all: all_p, np.argmax: argmax_p, np.argmin: argmin_p,
}  # fmt: skip
_OF_UFUNCS: dict[Any, Any] = {op.ufunc: function for function, op in REDUCTIONS.items() if op.ufunc is not None}
_OF_UFUNCS |= {np.fmax: _numpys(fmax_p), np.fmin: _numpys(fmin_p)}


def ufunc_reduction(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """What is called for `ufunc.reduce`: NumPy's own function, or one made from what the ufunc's op declares."""
    op: Any = UFUNCS.get(ufunc)
    if not {ufunc, op} & _OF_UFUNCS.keys() and getattr(op, "each", None) is not None and op.identity is not None:
        own = reduction(ufunc, None, lambda ct, out, x, axes: op.each(ct, out, x), name=f"{ufunc.__name__}.reduce")
        _OF_UFUNCS[op] = _of_floats(ufunc, own)
    return _OF_UFUNCS.get(ufunc, _OF_UFUNCS.get(op))


def along_one(a: Any, axis: Any) -> tuple[Any, int]:
    """The array and a non-negative axis, as argmax and cumsum take them; axis None: the flattened array and 0.

    An array without dimensions becomes one of length 1.
    """
    rank = ndim_of(a)
    if axis is not None:
        axis = normalise_axis(axis, max(rank, 1))
    if rank == 1:
        return a, 0
    return (np.reshape(a, (-1,)), 0) if axis is None or not rank else (a, axis)


def _numpys_position(op: Op) -> Callable[..., Any]:
    def position(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        x, at = along_one(a, axis)
        out = op(x, axis=at, keepdims=bool(keepdims))
        return np.reshape(out, (1,) * ndim_of(a)) if keepdims and (axis is None or not ndim_of(a)) else out

    return position


for _function, _op in REDUCTIONS.items():
    implements(_function)(_numpys_position(_op) if _op.ufunc is None else _numpys(_op))
