"""Products that contract a dimension: matmul and its family.

A product with a shared matrix is one tall product over all lanes and positions, forward and backward. Where the
contracted dimension is ragged, zero is selected at the padding of both operands.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.cotangent import Product
from autobatch.core.op import Op, is_boxed
from autobatch.core.transposed import transposed
from autobatch.errors import ShapeError
from autobatch.ops.creation import arange
from autobatch.ops.einsum import einsum_p
from autobatch.ops.indexing import getitem
from autobatch.ops.rules.dispatch import UFUNCS, Declined, as_array, implements
from autobatch.ops.rules.padding import fill, quietly, select, unbroadcast
from autobatch.ops.rules.sizes import has_lengths, size_per_lane

__all__ = ["convolve", "correlate", "cross", "kron", "matmul_p"]

_FEW_ROWS = 512  # a product of fewer is joined with others of the same matrix, as far as its gradient goes


def _matmul(x: Any, y: Any, **options: Any) -> Any:
    tall = type(x) is np.ndarray and x.ndim > 2 and type(y) is np.ndarray and y.ndim == 2 and not options
    if tall and y.shape[0] and x.shape[-1] == y.shape[0]:
        return np.matmul(x.reshape(-1, y.shape[0]), y).reshape(*x.shape[:-1], y.shape[1])
    return np.matmul(x, y, **options)


def _t(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, y = args
    x_rank, y_rank = ndim_of(x), ndim_of(y)
    if x_rank == y_rank == 2 and type(ct) is type(x) is type(y) is np.ndarray:
        if len(x) < _FEW_ROWS and x.dtype is ct.dtype is y.dtype:
            return Product(x, ct) if position else np.matmul(ct, transposed(y))
        return unbroadcast(np.matmul(x.T, ct) if position else np.matmul(ct, y.T), args[position])
    if x_rank == 1 and y_rank == 1:
        return unbroadcast(ct * (x if position else y), args[position])
    if x_rank == 1:
        if position:
            if y_rank == 2 and type(ct) is type(x) is type(y) is np.ndarray and x.dtype is ct.dtype is y.dtype:
                return Product(x[None], ct[None])
            return unbroadcast(np.expand_dims(x, -1) * np.expand_dims(ct, -2), y)
        return unbroadcast(matmul_p(y, np.expand_dims(ct, -1))[..., 0], x)
    if y_rank == 1:
        if position:
            width = shape_of(y)[0]
            return unbroadcast(matmul_p(np.reshape(ct, (-1,)), np.reshape(x, (_size(ct), width))), y)
        return unbroadcast(np.expand_dims(ct, -1) * y, x)
    if position == 0:
        return unbroadcast(matmul_p(ct, _t(y)), x)
    if y_rank == 2 and x_rank > 2:
        rows = _size(ct) // max(shape_of(y)[1], 1) if shape_of(y)[1] else int(np.prod(shape_of(x)[:-1]))
        flat = np.reshape(x, (rows, shape_of(y)[0]))
        return unbroadcast(matmul_p(_t(flat), np.reshape(ct, (rows, shape_of(y)[1]))), y)
    return unbroadcast(matmul_p(_t(x), ct), y)


def _size(x: Any) -> int:
    return int(np.prod(shape_of(x), dtype=np.int64))


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, y = operands
    if isinstance(x, Batched):
        if not isinstance(y, Batched):
            shape = shape_of(y)
            if len(shape) == 2 and x.sizes and x.sizes[-1] == shape[0] and x.scalar is None:
                return _tall(op, x, y, params, (*x.sizes[:-1], shape[1]))
        elif len(x.sizes) == len(y.sizes) > 1 and _plain_stack(x.sizes, y.sizes):
            return Batched(op(x.data, y.data, **params), (*x.sizes[:-1], y.sizes[-1]))
    if params:
        raise Declined("np.matmul with dtype= on a batch of these shapes")
    own = [x.sizes if isinstance(x, Batched) else shape_of(x) for x in operands]
    check_matmul(own[0], own[1])
    dtype = np.result_type(*(dtype_of(x.data if isinstance(x, Batched) else x) for x in operands))
    operands = [_as(x, dtype) for x in operands]
    return einsum_p.rule(einsum_p, operands, {"spec": matmul_spec(len(own[0]), len(own[1]))})  # type: ignore[misc]


def _tall(op: Op, x: Batched, y: Any, params: dict[str, Any], sizes: tuple[Size, ...]) -> Batched:
    """The rows of all lanes times a shared matrix. Under a tape padding rows are zero, both ways."""
    if not has_lengths(x.sizes):
        return Batched(op(x.data, y, **params), sizes)
    if is_boxed(x.data) or is_boxed(y):
        return Batched(select(op(fill(x, 0), y, **params), sizes), sizes)
    return Batched(quietly(lambda: op(x.data, y, **params), lambda: op(fill(x, 0), y, **params)), sizes)


def _plain_stack(x: tuple[Size, ...], y: tuple[Size, ...]) -> bool:
    return x[:-2] == y[:-2] and x[-1] == y[-2] and not has_lengths(x) and not has_lengths(y)


def _as(x: Any, dtype: np.dtype) -> Any:
    if isinstance(x, Batched):
        return x if dtype_of(x.data) == dtype and x.scalar is None else Batched(x.data.astype(dtype), x.sizes)
    x = x if hasattr(x, "shape") else np.asarray(x)
    return x if dtype_of(x) == dtype else x.astype(dtype)


def check_matmul(x: tuple[Size, ...], y: tuple[Size, ...], name: str = "matmul") -> None:
    """Raise where the contracted dimensions of some example differ (they never broadcast)."""
    if not x or not y:
        which = 0 if not x else 1
        raise ValueError(
            f"{name}: Input operand {which} does not have enough dimensions (has 0, gufunc core with signature "
            "(n?,k),(k,m?)->(n?,m?) requires 1)"
        )
    check_same(x[-1], y[-2] if len(y) > 1 else y[-1], name)


def check_same(a: Size, b: Size, name: str) -> None:
    if same_size(a, b):
        return
    left, right = np.broadcast_arrays(size_per_lane(a), size_per_lane(b))
    lane = int(np.argmax(left != right))
    raise ShapeError(f"{name}: the contracted dimensions are {left[lane]} and {right[lane]} in example {lane}")


def matmul_spec(x_rank: int, y_rank: int) -> str:
    """matmul of these ranks as subscripts.

    >>> matmul_spec(3, 2)
    'Smk,kn->Smn'
    """
    stack = "STUVWXYZQRP"
    x_stack, y_stack = max(x_rank - 2, 0), max(y_rank - 2, 0)
    both = stack[: max(x_stack, y_stack)]
    left = both[len(both) - x_stack :] + ("mk" if x_rank > 1 else "k")
    right = both[len(both) - y_stack :] + ("kn" if y_rank > 1 else "k")
    return f"{left},{right}->{both}{'m' if x_rank > 1 else ''}{'n' if y_rank > 1 else ''}"


def _layout(params: dict[str, Any], crooked: bool, rank: int) -> bool:
    """Matrices are written in C order; several leading dimensions in that of the operands."""
    return crooked and rank > 3


matmul_p = Op("matmul", _matmul, rule=_rule, vjp=_vjp, layout=_layout, kind="contraction")
UFUNCS[np.matmul] = matmul_p


def _common(*arrays: Any) -> list[Any]:
    arrays_ = [x if hasattr(x, "shape") else np.asarray(x) for x in arrays]
    dtype = np.result_type(*(dtype_of(x) for x in arrays_))
    return [x if dtype_of(x) == dtype else x.astype(dtype) for x in arrays_]


def _example_sizes(x: Any) -> Any:
    """What the dimensions of an operand are called in a check: its shape (per-lane sizes stay opaque)."""
    return x.sizes if isinstance(x, Batched) else shape_of(x)


def _contract(name: str, a: Any, b: Any, spec: str, pairs: Sequence[tuple[int, int]]) -> Any:
    """An einsum whose contracted dimensions must be equal: NumPy broadcasts them in einsum only."""
    a, b = _common(a, b)
    left, right = _example_sizes(a), _example_sizes(b)
    for i, j in pairs:
        if isinstance(left[i], int | Lengths) and isinstance(right[j], int | Lengths):
            check_same(left[i], right[j], name)
    return einsum_p(a, b, spec=spec)


def _vecdot(a: Any, b: Any, **options: Any) -> Any:
    if options:
        raise Declined("np.vecdot with dtype=")
    stack = "STUVWXYZ"
    a, b = _common(a, b)
    a = np.conjugate(a) if dtype_of(a).kind == "c" else a
    x, y = ndim_of(a) - 1, ndim_of(b) - 1
    both = stack[: max(x, y)]
    return _contract("vecdot", a, b, f"{both[len(both) - x :]}k,{both[len(both) - y :]}k->{both}", [(-1, -1)])


def _matvec(a: Any, b: Any, **options: Any) -> Any:
    if options:
        raise Declined("np.matvec with dtype=")
    return np.matmul(a, np.expand_dims(b, -1))[..., 0]


def _vecmat(a: Any, b: Any, **options: Any) -> Any:
    if options:
        raise Declined("np.vecmat with dtype=")
    a = np.conjugate(a) if dtype_of(a).kind == "c" else a
    return np.matmul(np.expand_dims(a, -2), b)[..., 0, :]


UFUNCS[np.vecdot] = _vecdot
UFUNCS[np.matvec] = _matvec
UFUNCS[np.vecmat] = _vecmat


@implements(np.dot)
def _np_dot(a: Any, b: Any, out: Any = None) -> Any:
    if out is not None:
        raise Declined("np.dot with out=")
    if ndim_of(a) == 0 or ndim_of(b) == 0:
        return np.multiply(a, b)
    if ndim_of(b) <= 2:
        return np.matmul(a, b)
    letters = "abcdefghijklmnopqrstuvwxyz"
    left, right = letters[: ndim_of(a) - 1], letters[ndim_of(a) - 1 : ndim_of(a) + ndim_of(b) - 3]
    spec = f"{left}K,{right}KN->{left}{right}N"
    return _contract("dot", a, b, spec, [(-1, -2)])


@implements(np.vdot)
def _np_vdot(a: Any, b: Any) -> Any:
    a = np.conjugate(a) if dtype_of(a).kind == "c" else a
    return np.matmul(_flat(a), _flat(b))


def _flat(x: Any) -> Any:
    return x if ndim_of(x) == 1 else np.ravel(x)


@implements(np.inner)
def _np_inner(a: Any, b: Any) -> Any:
    if ndim_of(a) == 0 or ndim_of(b) == 0:
        return np.multiply(a, b)
    letters = "abcdefghijklmnopqrstuvwxyz"
    left, right = letters[: ndim_of(a) - 1], letters[ndim_of(a) - 1 : ndim_of(a) + ndim_of(b) - 2]
    return _contract("inner", a, b, f"{left}K,{right}K->{left}{right}", [(-1, -1)])


@implements(np.outer)
def _np_outer(a: Any, b: Any, out: Any = None) -> Any:
    if out is not None:
        raise Declined("np.outer with out=")
    return np.multiply(np.expand_dims(_flat(a), 1), np.expand_dims(_flat(b), 0))


@implements(np.tensordot)
def _np_tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    a_rank, b_rank = ndim_of(a), ndim_of(b)
    if isinstance(axes, int | np.integer):
        pairs: Any = list(range(a_rank - int(axes), a_rank)), list(range(int(axes)))
    else:
        pairs = ([axis] if isinstance(axis, int | np.integer) else list(axis) for axis in axes)
    a_axes, b_axes = pairs
    if len(a_axes) != len(b_axes):
        raise ValueError("shape-mismatch for sum")
    a_axes = [int(np.lib.array_utils.normalize_axis_index(axis, a_rank)) for axis in a_axes]
    b_axes = [int(np.lib.array_utils.normalize_axis_index(axis, b_rank)) for axis in b_axes]
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    left = list(letters[:a_rank])
    right = list(letters[a_rank : a_rank + b_rank])
    for i, j in zip(a_axes, b_axes, strict=True):
        right[j] = left[i]
    out = [c for at, c in enumerate(left) if at not in a_axes] + [c for at, c in enumerate(right) if at not in b_axes]
    spec = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    return _contract("tensordot", a, b, spec, list(zip(a_axes, b_axes, strict=True)))


@implements(np.cross, np.linalg.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(as_array(a), axisa, -1), np.moveaxis(as_array(b), axisb, -1)
    if shape_of(a)[-1] != 3 or shape_of(b)[-1] != 3:
        raise Declined("np.cross of vectors that are not of three elements")
    x, y, z = (a[..., i] for i in range(3))
    u, v, w = (b[..., i] for i in range(3))
    return np.moveaxis(np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=-1), -1, axisc)


@implements(np.kron)
def kron(a: Any, b: Any) -> Any:
    a, b = as_array(a), as_array(b)
    rank = max(ndim_of(a), ndim_of(b))
    a, b = a[(None,) * (rank - ndim_of(a))], b[(None,) * (rank - ndim_of(b))]
    left = a[tuple(item for _ in range(rank) for item in (slice(None), None))]
    right = b[tuple(item for _ in range(rank) for item in (None, slice(None)))]
    sizes = tuple(m * n for m, n in zip(shape_of(a), shape_of(b), strict=True))
    return np.reshape(left * right, sizes)


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """np.convolve: sums of the rows of the Toeplitz matrix of `v` times `a`, by selection, since 0 times inf is NaN."""
    a, v = as_array(a), as_array(v)
    n, m = shape_of(a)[0], shape_of(v)[0]
    for name, size in (("a", n), ("v", m)):
        if np.any(np.equal(size.data if is_boxed(size) else size, 0)):
            raise ValueError(f"{name} cannot be empty")
    if mode not in ("full", "valid", "same"):
        raise Declined(f"np.convolve with mode={mode!r}")
    if mode != "full" and (is_boxed(n) or is_boxed(m)):
        raise Declined("np.convolve of lengths that differ between examples, with a mode other than full")
    places = arange(n + m - 1)[:, None] - arange(n)
    inside = (places >= 0) & (places < m)
    dtype = np.result_type(dtype_of(a), dtype_of(v))
    wide = np.float32 if dtype == np.float16 else dtype  # in which NumPy's own products of halves are summed
    terms = getitem(v, np.where(inside, places, 0)).astype(wide) * a.astype(wide)
    out = np.sum(np.where(inside, terms, np.zeros((), wide)), axis=1, dtype=wide).astype(dtype)
    if mode == "full":
        return out
    small, large = min(n, m), max(n, m)
    if mode == "valid":
        return out[small - 1 : large]
    return out[(small - 1) // 2 : (small - 1) // 2 + large]


@implements(np.correlate)
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    return convolve(a, np.conjugate(as_array(v))[::-1], mode)
