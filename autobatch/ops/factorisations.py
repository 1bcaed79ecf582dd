"""Factorisations of real matrices, Cholesky, QR, symmetric eigenvalues and singular values, and what is made of them.

An op with several factors gives them as rows of one matrix, which the function of NumPy's name cuts apart. Every matrix
is factorised alone: examples of different sizes run in groups of one size.

Source of the vjps: M. Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008); J. Townsend,
"Differentiating the singular value decomposition" (2016); S. Walter and L. Lehmann (2010) for QR.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths
from autobatch.core.op import Op, is_boxed
from autobatch.ops.composite_linalg import solve_p
from autobatch.ops.rules.dispatch import Declined, implements
from autobatch.ops.rules.grouping import by_length

__all__ = ["alone_rule", "svdvals"]


def alone_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """The rule of an op on whole examples, of which none may be padded."""
    (x,) = operands
    ragged = [axis for axis, size in enumerate(x.sizes) if isinstance(size, Lengths)]
    if ragged:
        return by_length(op, x, params, ragged)
    out = op(x.data, **params)
    return Batched(out, shape_of(out)[1:])


def _factor(name: str, function: Callable[..., Any], vjp: Callable[..., Any]) -> Op:
    """An op of one matrix, or a stack of them: `vjp(ct, out, x, **params)`."""

    def backward(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return vjp(ct, out, args[0], **params)

    return Op(name, function, rule=alone_rule, vjp=backward, kind="linalg")


def _mt(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _chain(*matrices: Any) -> Any:
    out = matrices[0]
    for each in matrices[1:]:
        out = np.matmul(out, each)
    return out


def _ratio(x: Any, y: Any) -> Any:
    """x / y, and 0 where x is: what equal singular values leave undefined counts only where it is asked for."""
    zero = x == 0
    return np.where(zero, np.zeros((), dtype_of(x)), x) / np.where(zero, np.ones((), dtype_of(y)), y)


def _diagonal(n: int) -> np.ndarray:
    return np.eye(n, dtype=bool)


def _zero(x: Any) -> np.ndarray:
    return np.zeros((), dtype_of(x))


def _folded(x: Any, lower: bool) -> Any:
    """The gradient by the triangle that is read of a symmetric matrix, from one by all of its elements."""
    both = x + _mt(x)
    strict = np.tri(shape_of(x)[-1], k=-1, dtype=bool)
    return np.where(strict if lower else strict.T, both, np.where(_diagonal(shape_of(x)[-1]), x, _zero(x)))


def _cholesky_vjp(ct: Any, out: Any, x: Any) -> Any:
    inner = np.matmul(_mt(out), np.tril(ct))
    inner = np.where(_diagonal(shape_of(x)[-1]), inner / 2, np.tril(inner))
    right = solve_p(_mt(out), inner)
    return _folded(_mt(solve_p(_mt(out), _mt(right))), lower=True)


def _qr(x: Any) -> Any:
    return np.concatenate(np.linalg.qr(x), axis=-2)


def _qr_vjp(ct: Any, out: Any, x: Any) -> Any:
    rows = shape_of(x)[-2]
    q, r, ct_q, ct_r = out[..., :rows, :], out[..., rows:, :], ct[..., :rows, :], ct[..., rows:, :]
    inner = np.matmul(r, _mt(np.triu(ct_r))) - np.matmul(_mt(ct_q), q)
    both = ct_q + np.matmul(q, np.tril(inner) + _mt(np.tril(inner, -1)))
    return _mt(solve_p(r, _mt(both)))


def _eigh(x: Any, *, UPLO: Any) -> Any:  # noqa: N803
    values, vectors = np.linalg.eigh(x, UPLO)
    return np.concatenate([values[..., None, :], vectors], axis=-2)


def _eigh_vjp(ct: Any, out: Any, x: Any, UPLO: str) -> Any:  # noqa: N803
    values, vectors, ct_values = out[..., 0, :], out[..., 1:, :], ct[..., 0, :]
    on = _diagonal(shape_of(x)[-1])
    inner = np.where(on, _zero(x), np.matmul(_mt(vectors), ct[..., 1:, :]))
    inner = _ratio(inner, values[..., None, :] - values[..., :, None])
    inner = np.where(on, ct_values[..., None, :], inner)
    return _folded(_chain(vectors, inner, _mt(vectors)), lower=UPLO == "L")


def _eigvalsh_vjp(ct: Any, out: Any, x: Any, UPLO: str) -> Any:  # noqa: N803
    vectors = eigh_p(x, UPLO=UPLO)[..., 1:, :]
    return _folded(np.matmul(vectors * ct[..., None, :], _mt(vectors)), lower=UPLO == "L")


def _svd(x: Any) -> Any:
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return np.concatenate([u, s[..., None, :], _mt(vh)], axis=-2)


def _svd_vjp(ct: Any, out: Any, x: Any) -> Any:
    rows, columns = shape_of(x)[-2:]
    (u, s, v), (ct_u, ct_s, ct_v) = ((y[..., :rows, :], y[..., rows, :], y[..., rows + 1 :, :]) for y in (out, ct))
    own_u, own_v = np.matmul(_mt(u), ct_u), np.matmul(_mt(v), ct_v)
    across, down = s[..., None, :], s[..., :, None]
    gaps = (across - down) * (across + down)
    inner = _ratio(own_u - _mt(own_u), gaps) * across + down * _ratio(own_v - _mt(own_v), gaps)
    inner = np.where(_diagonal(shape_of(s)[-1]), across * 0 + ct_s[..., None, :], inner)
    total = _chain(u, inner, _mt(v))
    if rows > columns:
        total = total + np.matmul(_ratio(ct_u - np.matmul(u, own_u), across), _mt(v))
    if columns > rows:
        total = total + np.matmul(u, _mt(_ratio(ct_v - np.matmul(v, own_v), across)))
    return total


def _svdvals_vjp(ct: Any, out: Any, x: Any) -> Any:
    rows = shape_of(x)[-2]
    both = svd_p(x)
    return np.matmul(both[..., :rows, :] * ct[..., None, :], _mt(both[..., rows + 1 :, :]))


def _pinv_vjp(ct: Any, out: Any, x: Any, **params: Any) -> Any:
    """Golub and Pereyra (1973); where the rank does not change."""
    ct_t = _mt(ct)
    left = _chain(ct_t, out, _mt(out)) - _chain(x, out, ct_t, out, _mt(out))
    right = _chain(_mt(out), out, ct_t) - _chain(_mt(out), out, ct_t, out, x)
    return left + right - _chain(_mt(out), ct, _mt(out))


# fmt: off
cholesky_p = _factor("cholesky", np.linalg.cholesky, _cholesky_vjp)
qr_p       = _factor("qr",       _qr,                _qr_vjp)
eigh_p     = _factor("eigh",     _eigh,              _eigh_vjp)
eigvalsh_p = _factor("eigvalsh", np.linalg.eigvalsh, _eigvalsh_vjp)
svd_p      = _factor("svd",      _svd,               _svd_vjp)
svdvals_p  = _factor("svdvals",  np.linalg.svdvals,  _svdvals_vjp)
pinv_p     = _factor("pinv",     np.linalg.pinv,     _pinv_vjp)
# fmt: on


def _real_matrix(x: Any) -> Any:
    """A matrix that has an op, as one of floats.

    Raises:
        LinAlgError: of fewer than two dimensions.
    """
    if ndim_of(x) < 2:
        raise np.linalg.LinAlgError(f"{ndim_of(x)}-dimensional array given. Array must be at least two-dimensional")
    if dtype_of(x).kind == "c":
        raise Declined("a factorisation of complex matrices")
    return x if dtype_of(x).kind == "f" else x.astype(np.float64)


@implements(np.linalg.cholesky)
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    a = _real_matrix(a)
    return _mt(cholesky_p(_mt(a))) if upper else cholesky_p(a)


@implements(np.linalg.qr)
def qr(a: Any, mode: str = "reduced") -> Any:
    a = _real_matrix(a)
    rows, columns = shape_of(a)[-2:]
    if is_boxed(rows) or is_boxed(columns):
        raise Declined("np.linalg.qr of matrices whose size differs between examples")
    if mode not in ("reduced", "r", "complete") or (mode == "complete" and rows > columns):
        raise Declined(f"np.linalg.qr with mode={mode!r}")
    both = qr_p(a[..., : min(rows, columns)])
    q, r = both[..., :rows, :], both[..., rows:, :]
    if columns > rows:  # what the others are in terms of the first ones
        r = np.concatenate([r, np.matmul(_mt(q), a[..., rows:])], axis=-1)
    return r if mode == "r" else type(np.linalg.qr(np.eye(1)))(q, r)


@implements(np.linalg.eigh)
def eigh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803
    both = eigh_p(_real_matrix(a), UPLO=_triangle(UPLO))
    return type(np.linalg.eigh(np.eye(1)))(both[..., 0, :], both[..., 1:, :])


@implements(np.linalg.eigvalsh)
def eigvalsh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803
    return eigvalsh_p(_real_matrix(a), UPLO=_triangle(UPLO))


def _triangle(name: str) -> str:
    if name.upper() not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    return name.upper()


@implements(np.linalg.svd)
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """np.linalg.svd, but for the vectors that `full_matrices` adds, which the matrix does not determine."""
    a = _real_matrix(a)
    if hermitian:
        raise Declined("np.linalg.svd with hermitian=True")
    if not compute_uv:
        return svdvals_p(a)
    rows, columns = shape_of(a)[-2:]
    sizes_differ = is_boxed(rows) or is_boxed(columns)
    if sizes_differ or (full_matrices and rows != columns):
        raise Declined("its factors are not unique; write full_matrices=False" if not sizes_differ else "sizes differ")
    both = svd_p(a)
    parts = both[..., :rows, :], both[..., rows, :], _mt(both[..., rows + 1 :, :])
    return type(np.linalg.svd(np.eye(1)))(*parts)


@implements(np.linalg.svdvals)
def svdvals(x: Any, /) -> Any:
    return svdvals_p(_real_matrix(x))


@implements(np.linalg.pinv)
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = np._NoValue) -> Any:
    if hermitian or is_boxed(rcond) or is_boxed(rtol):
        raise Declined("np.linalg.pinv with hermitian=True, or a bound for each example")
    given = {"rcond": rcond, "rtol": rtol}
    given = {name: float(x) for name, x in given.items() if x is not None and x is not np._NoValue}
    return pinv_p(_real_matrix(a), **given)


@implements(np.linalg.cond)
def cond(x: Any, p: Any = None) -> Any:
    if p not in (None, 2, -2):
        raise Declined(f"np.linalg.cond with p={p!r}")
    s = svdvals(x)
    return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
