"""Kinds of ops: what all ops of a kind share is written here once, and an op's declaration supplies the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.op import Op
from autobatch.errors import ShapeError

__all__ = ["broadcast_sizes", "elementwise", "fill", "unbroadcast", "vjp_columns"]


def vjp_columns(columns: Sequence[Callable[..., Any] | None]) -> Callable[..., Any] | None:
    """One vjp for an op from one per argument: `column(ct, out, *args, **params)`."""
    if not columns:
        return None

    def vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        column = columns[position]
        if column is None:
            return None
        return unbroadcast(column(ct, out, *args, **params), args[position])

    return vjp


def unbroadcast(ct: Any, like: Any) -> Any:
    """Sum a cotangent over the axes along which its operand was broadcast, and give it the operand's dtype."""
    shape, ct_shape = shape_of(like), shape_of(ct)
    if ct_shape != shape:
        extra = len(ct_shape) - len(shape)
        axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1 and ct_shape[extra + i] != 1))
        ct = np.sum(ct, axis=axes).reshape(shape)
    dtype = dtype_of(like)
    return ct if dtype_of(ct) == dtype else ct.astype(dtype)


def elementwise(
    ufunc: Callable[..., Any], *vjps: Callable[..., Any] | None, pad: Any = None, name: str | None = None
) -> Op:
    """An op that acts on each element, operands broadcast against each other as NumPy does.

    Args:
        ufunc: the implementation; static attributes by keyword.
        vjps: for each argument `vjp(ct, out, *args, **params)`, before un-broadcasting; none: piecewise constant.
        pad: a value inside the domain of every operand; padding is filled with it where computing on arbitrary
            padding could warn. None: the op is quiet on any value.
    """
    name = name or getattr(ufunc, "__name__", "elementwise")
    return Op(name, ufunc, rule=_elementwise_rule, vjp=vjp_columns(vjps), kind="elementwise", pad=pad)


def fill(x: Batched, value: Any, axes: Sequence[int] | None = None) -> Any:
    """The data of `x` with `value` selected at the padding (along `axes` only, if given)."""
    mask = padding_mask(x.sizes, x.data.shape[1:], axes)
    return x.data if mask is None else np.where(mask, x.data, np.asarray(value, x.data.dtype))


def broadcast_sizes(all_sizes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The example sizes that NumPy's broadcasting gives, lane by lane.

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
                size = _broadcast_size(size, sizes[offset])
        out.append(size)
    return tuple(out)


def _broadcast_size(a: Size, b: Size) -> Size:
    if same_size(a, b) or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    left, right = np.broadcast_arrays(_per_lane(a), _per_lane(b))
    wrong = (left != right) & (left != 1) & (right != 1)
    if wrong.any():
        lane = int(np.argmax(wrong))
        raise ShapeError(
            f"operands could not be broadcast together: lengths {left[lane]} and {right[lane]} in example {lane}"
        )
    return Lengths(np.where(left == 1, right, left))


def _per_lane(size: Size) -> np.ndarray:
    return size.values if isinstance(size, Lengths) else np.array([size])


def _elementwise_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    batched = [x for x in operands if isinstance(x, Batched)]
    if op.pad is not None:
        operands = [Batched(fill(x, op.pad), x.sizes) if isinstance(x, Batched) and x.is_ragged else x for x in operands]
    sizes = broadcast_sizes([x.sizes if isinstance(x, Batched) else shape_of(x) for x in operands])
    if len(batched) == 1 and len(operands) == 1:
        return Batched(op(operands[0].data, **params), sizes)
    arrays = [_align(x, sizes) if isinstance(x, Batched) else x for x in operands]
    return Batched(op(*arrays, **params), sizes)


def _align(x: Batched, sizes: tuple[Size, ...]) -> Any:
    """The data of `x` with axes of one inserted after the batch axis, so that example ranks agree."""
    missing = len(sizes) - x.rank
    if not missing:
        return x.data
    shape = x.data.shape
    return x.data.reshape(shape[:1] + (1,) * missing + shape[1:])
