"""Linear algebra: solve, inv, det and slogdet of stacks of matrices as ops; norms and powers composed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.op import Op, is_boxed
from autobatch.errors import ShapeError
from autobatch.ops.rules.dispatch import Declined, implements
from autobatch.ops.rules.padding import fill, select, to_width, unbroadcast
from autobatch.ops.rules.sizes import as_batched, axes_of, lanes_of, normalise_axis

__all__ = ["det", "inv", "norm", "slogdet", "solve"]


def _with_identity(x: Batched) -> Any:
    """Square matrices whose padding is that of the identity, so that it adds a block that changes nothing."""
    rows, columns = x.sizes[-2:]
    if not same_size(rows, columns):
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if not isinstance(rows, Lengths) and not isinstance(columns, Lengths):
        return x.data
    if any(isinstance(size, Lengths) for size in x.sizes[:-2]):
        raise ShapeError("stacks of matrices whose number differs between examples")
    data = fill(x, 0)
    width = shape_of(data)[-1]
    lengths = rows if isinstance(rows, Lengths) else columns
    places = np.arange(width)
    outside = places >= lengths.values.reshape((-1,) + (1,) * (x.rank - 1))  # type: ignore[union-attr]
    ones = outside[..., None] & (places[:, None] == places)
    return np.where(ones, np.ones((), dtype_of(data)), data)


def _matrix_rule(out_rank: int) -> Callable[..., Batched]:
    def rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        (x,) = operands
        out = op(_with_identity(x))
        if out_rank == 0:
            return Batched(out, x.sizes[:-2])
        return Batched(_closed(out, x.sizes), x.sizes)

    return rule


def _closed(data: Any, sizes: Sequence[Size]) -> Any:
    """A result whose padding sends no cotangent back, since every element of a matrix has a part in every other."""
    return select(data, sizes) if is_boxed(data) else data


def _mt(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


inv_p = Op(
    "inv",
    np.linalg.inv,
    rule=_matrix_rule(2),
    vjp=lambda position, ct, out, args, params: -np.matmul(np.matmul(_mt(out), ct), _mt(out)),
    kind="linalg",
)
det_p = Op(
    "det",
    np.linalg.det,
    rule=_matrix_rule(0),
    vjp=lambda position, ct, out, args, params: (ct * out)[..., None, None] * _mt(inv_p(args[0])),
    kind="linalg",
)
logdet_p = Op(
    "logabsdet",
    lambda x: np.linalg.slogdet(x)[1],
    rule=_matrix_rule(0),
    vjp=lambda position, ct, out, args, params: ct[..., None, None] * _mt(inv_p(args[0])),
    kind="linalg",
)


def _sign(x: Any) -> Any:
    return np.linalg.slogdet(x)[0]


def _phase_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The sign of a complex determinant turns with it."""
    return -1j * np.real(1j * ct * out)[..., None, None] * _mt(inv_p(args[0]))


sign_p = Op("detsign", _sign, rule=_matrix_rule(0), kind="linalg")
phase_p = Op("detphase", _sign, rule=_matrix_rule(0), vjp=_phase_vjp, kind="linalg")


def _solve_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    a, b = args
    back = solve_p(_mt(a), ct)
    return unbroadcast(back, b) if position == 1 else unbroadcast(-np.matmul(back, _mt(out)), a)


def _solve_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lanes_of(operands)
    a, b = (as_batched(x, lanes) for x in operands)
    if a.rank != 2 or b.rank != 2:
        if a.is_ragged or b.is_ragged:
            raise ShapeError("stacks of linear systems of sizes that differ between examples")
        out = op(*(_lifted(x, max(a.rank, b.rank)) for x in (a, b)))
        return Batched(out, shape_of(out)[1:])
    if not same_size(a.sizes[0], b.sizes[0]):
        raise ValueError("solve: Input operand 1 has a mismatch in its core dimension 0")
    matrix = _with_identity(a)
    data = to_width(fill(b, 0) if b.is_ragged else b.data, 1, shape_of(matrix)[1])
    sizes = (a.sizes[0], b.sizes[1])
    return Batched(_closed(op(matrix, data), sizes), sizes)


def _lifted(x: Batched, rank: int) -> Any:
    """The data of examples as of that rank."""
    return x.data[(slice(None), *[None] * (rank - x.rank))]


solve_p = Op("solve", np.linalg.solve, rule=_solve_rule, vjp=_solve_vjp, kind="linalg")


def _check(x: Any) -> Any:
    if ndim_of(x) < 2:
        raise np.linalg.LinAlgError(f"{ndim_of(x)}-dimensional array given. Array must be at least two-dimensional")
    return x if dtype_of(x).kind in "fc" else x.astype(np.float64)


@implements(np.linalg.inv)
def inv(a: Any) -> Any:
    return inv_p(_check(a))


@implements(np.linalg.det)
def det(a: Any) -> Any:
    return det_p(_check(a))


@implements(np.linalg.slogdet)
def slogdet(a: Any) -> Any:
    a = _check(a)
    sign = phase_p if dtype_of(a).kind == "c" else sign_p
    return type(np.linalg.slogdet(np.eye(1)))(sign(a), logdet_p(a))


@implements(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    a, b = _check(a), b if is_boxed(b) else np.asarray(b)
    return solve_p(a, b[:, None])[..., 0] if ndim_of(b) == 1 else solve_p(a, b)


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """np.linalg.norm of vectors, and the Frobenius norm of matrices."""
    if dtype_of(x).kind not in "fc":
        x = x.astype(np.float64)
    if axis is None and ord is None:
        return _root(x, tuple(range(ndim_of(x))), keepdims)
    axes = axes_of(axis, ndim_of(x))
    if len(axes) == 2:
        return _root(x, axes, keepdims) if ord in (None, "fro") else _matrix_norm(x, ord, axes, keepdims)
    size = np.absolute(x)
    if ord in (None, 2):
        return _root(x, axes, keepdims)
    if ord == np.inf:
        return np.max(size, axis=axes, keepdims=keepdims)
    if ord == -np.inf:
        return np.min(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return np.sum((x != 0).astype(dtype_of(size)), axis=axes, keepdims=keepdims)
    if ord == 1:
        return np.sum(size, axis=axes, keepdims=keepdims)
    if isinstance(ord, str):
        raise ValueError(f"Invalid norm order '{ord}' for vectors")
    return np.sum(size**ord, axis=axes, keepdims=keepdims) ** (1.0 / ord)


def _root(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    square = x * x if dtype_of(x).kind == "f" else np.real(np.conjugate(x) * x)
    return np.sqrt(np.sum(square, axis=axes, keepdims=keepdims))


def _matrix_norm(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    rows, columns = axes
    if ord in (1, -1, np.inf, -np.inf):
        first, then = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = np.sum(np.absolute(x), axis=first, keepdims=True)
        out = (np.max if ord > 0 else np.min)(sums, axis=then, keepdims=True)
    elif ord in (2, -2, "nuc"):
        values = np.linalg.svd(np.moveaxis(x, axes, (-2, -1)), compute_uv=False)
        out = np.sum(values, axis=-1) if ord == "nuc" else values[..., 0 if ord == 2 else -1]
        out = np.expand_dims(out, axes)
    else:
        raise ValueError("Invalid norm order for matrices.")
    return out if keepdims else np.squeeze(out, axes)


@implements(np.linalg.vector_norm)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    if axis is None and not keepdims:
        return norm(np.reshape(x, (-1,)), ord, 0)
    if not isinstance(axis, int):
        raise Declined("vector_norm along several axes")
    return norm(x, ord, normalise_axis(axis, ndim_of(x)), keepdims)


@implements(np.linalg.matrix_norm)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    return norm(x, ord, (-2, -1), keepdims)


@implements(np.linalg.matrix_power)
def matrix_power(a: Any, n: int) -> Any:
    if n < 0:
        return matrix_power(inv(a), -n)
    if n == 0:
        return np.matmul(inv(a), a)
    out = a
    for _ in range(n - 1):
        out = np.matmul(out, a)
    return out


@implements(np.linalg.multi_dot)
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    if out is not None:
        raise Declined("multi_dot with out=")
    result = arrays[0]
    for x in arrays[1:]:
        result = np.dot(result, x)
    return result


@implements(np.matrix_transpose, np.linalg.matrix_transpose)
def matrix_transpose(x: Any, /) -> Any:
    if ndim_of(x) < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {ndim_of(x)}")
    return _mt(x)


@implements(np.linalg.diagonal)
def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return np.diagonal(x, offset, -2, -1)


@implements(np.linalg.trace)
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return np.trace(x, offset, -2, -1, dtype=dtype)


@implements(np.linalg.vecdot)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return np.vecdot(np.moveaxis(x1, axis, -1), np.moveaxis(x2, axis, -1))


@implements(np.linalg.outer)
def outer(x1: Any, x2: Any, /) -> Any:
    if ndim_of(x1) != 1 or ndim_of(x2) != 1:
        raise ValueError(f"Input arrays must be one-dimensional, but they are {ndim_of(x1)=} and {ndim_of(x2)=}.")
    return np.outer(x1, x2)
