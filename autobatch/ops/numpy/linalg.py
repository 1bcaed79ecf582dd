"""Linear algebra: diagonals and triangles, solve, inverse, determinant, norms, factorisations and least squares."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, is_non_c_order, ndim_of, shape_of
from autobatch.core.batched import Batched
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.errors import Unsupported
from autobatch.ops.numpy.contractions import mt
from autobatch.ops.numpy.creation import CREATION, arange, zeros
from autobatch.ops.numpy.elementwise import share_p
from autobatch.ops.numpy.indexing import placed
from autobatch.ops.rules.aliasing import set_order, view
from autobatch.ops.rules.dispatch import any_shorter, any_true, expect, implements, leave_to_python, source
from autobatch.ops.rules.op_kinds import run_by_length, vjp_columns
from autobatch.ops.rules.padding import where_or_zero
from autobatch.ops.rules.sizes import sizes_of


@source(np.tri)
def tri(N: Any, M: Any = None, k: int = 0, dtype: Any = float) -> Any:  # noqa: N803
    """np.tri; the sizes may differ between examples."""
    return below(N, N if M is None else M, k).astype(dtype)


CREATION[np.tri] = implements(np.tri)(tri)


@source()
def below(rows: Any, columns: Any, k: int) -> Any:
    """A matrix of this size, True on the k-th diagonal and below it."""
    return arange(rows)[:, None] + k >= arange(columns)


@source(np.tril_indices)
def tril_indices(n: Any, k: int = 0, m: Any = None) -> Any:
    """np.tril_indices; the sizes may differ between examples."""
    i, j = np.nonzero(below(n, n if m is None else m, k))
    return np.copy(i), np.copy(j)


@source(np.triu_indices)
def triu_indices(n: Any, k: int = 0, m: Any = None) -> Any:
    """np.triu_indices; the sizes may differ between examples."""
    i, j = np.nonzero(~below(n, n if m is None else m, k - 1))
    return np.copy(i), np.copy(j)


def diag_indices(n: Any, ndim: int = 2) -> Any:
    """np.diag_indices; the sizes may differ between examples."""
    return (arange(n),) * ndim


CREATION |= {np.tril_indices: tril_indices, np.triu_indices: triu_indices, np.diag_indices: diag_indices}


@implements(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    if ndim_of(a) < 2:
        raise ValueError("diag requires an array of at least two dimensions")
    return view(_diagonal(a, offset, axis1, axis2), a, _diagonal, None, (offset, axis1, axis2))


def _diagonal(a: Any, offset: int, axis1: int, axis2: int) -> Any:
    if not is_boxed(a):
        return np.diagonal(a, offset, axis1, axis2)
    a = np.moveaxis(a, (axis1, axis2), (-2, -1))
    rows, columns = shape_of(a)[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    i = arange(np.maximum(np.minimum(rows - down, columns - right), 0))
    return a[..., i + down, i + right]


@implements(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    if ndim_of(v) == 2:
        return diagonal(v, k)
    if ndim_of(v) != 1:
        raise ValueError("Input must be 1- or 2-d.")
    n = shape_of(v)[0]
    i = arange(n)
    return placed(zeros((n + abs(k), n + abs(k)), dtype_of(v)), (i + max(-k, 0), i + max(k, 0)), v)


source(np.eye, np.identity)(lambda N, dtype=float: (np.arange(N)[:, None] == np.arange(N)).astype(dtype))  # noqa: N803


implements(np.diagflat)(lambda v, k=0: diag(np.reshape(v, (-1,)), k))
implements(np.trace)(
    lambda a, offset=0, axis1=0, axis2=1, dtype=None: np.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)
)


def unpadded_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """The batching rule of an op that no padding leaves correct: lanes of equal sizes run together, without padding."""
    if any(isinstance(x, Batched) and x.is_ragged for x in operands):
        return run_by_length(op, operands, params)
    rank = max(len(sizes_of(x)) for x in operands)
    data = [x.data[(slice(None), *[None] * (rank - x.rank))] if isinstance(x, Batched) else x for x in operands]
    out = op(*data, **params)
    return Batched(out, shape_of(out)[1:])


def _matrix_op(name: str, function: Callable[..., Any], *vjp: Callable[..., Any]) -> Op:
    """Make the op of a function of a matrix, or of a stack of them; `vjp(ct, out, x, **params)`."""
    return Op(name, function, rule=unpadded_rule, vjp=vjp_columns(vjp), kind="linalg")


# fmt: off
inv_p: Op = _matrix_op("inv", np.linalg.inv, lambda ct, out, x: -np.matmul(np.matmul(mt(out), ct), mt(out)))
det_p     = _matrix_op("det", np.linalg.det, lambda ct, out, x: (ct * out)[..., None, None] * mt(inv_p(x)))
logdet_p  = _matrix_op("logabsdet", lambda x: np.linalg.slogdet(x)[1],
                       lambda ct, out, x: ct[..., None, None] * mt(inv_p(x)))
sign_p    = _matrix_op("detsign", lambda x: np.linalg.slogdet(x)[0])
phase_p   = _matrix_op("detphase", sign_p.impl,  # of complex matrices: it has a derivative, along the unit circle
                       lambda ct, out, x: -1j * np.real(1j * ct * out)[..., None, None] * mt(inv_p(x)))
# fmt: on


def _solve_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    a, b = args
    back = solve_p(mt(a), ct)
    return unbroadcast(back, b) if position == 1 else unbroadcast(-np.matmul(back, mt(out)), a)


solve_p = Op("solve", np.linalg.solve, rule=unpadded_rule, vjp=_solve_vjp, kind="linalg")


def _check(x: Any) -> Any:
    if ndim_of(x) < 2:
        raise np.linalg.LinAlgError(f"{ndim_of(x)}-dimensional array given. Array must be at least two-dimensional")
    return x if dtype_of(x).kind in "fc" else x.astype(np.float64)


implements(np.linalg.inv)(lambda a: inv_p(_check(a)))
implements(np.linalg.det)(lambda a: det_p(_check(a)))


@implements(np.linalg.slogdet)
def slogdet(a: Any) -> Any:
    a = _check(a)
    sign = phase_p if dtype_of(a).kind == "c" else sign_p
    return type(np.linalg.slogdet(np.eye(1)))(sign(a), logdet_p(a))


@implements(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    a, b = _check(a), b if is_boxed(b) else np.asarray(b)
    return solve_p(a, b[:, None])[..., 0] if ndim_of(b) == 1 else solve_p(a, b)


@source()
def _eliminated(a, b):
    """The triangle that Gauss's algorithm with partial pivoting makes of a, and what of b; the sign of the pivots."""
    x = b * np.ones(1, (a[:0] * 1.0).dtype)
    u = a * np.ones(1, x.dtype)
    sign = 1.0
    if u.shape[0] != u.shape[1] or len(x) != len(u):
        leave_to_python()
    for k in range(len(u)):
        best = k
        for i in range(k + 1, len(u)):
            best = i if abs(u[i, k]) > abs(u[best, k]) else best
        if u[best, k] == 0:
            leave_to_python()
        if best != k:
            sign = -sign
            for each in (u, x):
                for j in range(each.shape[1]):
                    each[k, j], each[best, j] = each[best, j], each[k, j]
        for i in range(k + 1, len(u)):
            factor = u[i, k] / u[k, k]
            for each in (u, x):
                for j in range(each.shape[1]):
                    each[i, j] -= factor * each[k, j]
    return u, x, sign


@source(np.linalg.solve, of=(2,), sums=True)
def _solve_of_one(a, b):
    u, x, _ = _eliminated(a, b.reshape(len(b), -1))
    for i in range(len(u) - 1, -1, -1):
        for c in range(x.shape[1]):
            for j in range(i + 1, len(u)):
                x[i, c] -= u[i, j] * x[j, c]
            x[i, c] /= u[i, i]
    return x.reshape(b.shape)


source(np.linalg.inv, of=(2,), sums=True)(lambda a: _solve_of_one(a, np.eye(len(a), dtype=(a[:0] * 1.0).dtype)))


@source(np.linalg.det, of=(2,), sums=True)
def _det_of_one(a):
    u, _, sign = _eliminated(a, a[:, :0])
    i = np.arange(len(u))
    return np.prod(u[i, i]) * sign


implements(np.linalg.vecdot)(
    lambda x1, x2, /, *, axis=-1: np.vecdot(np.moveaxis(x1, axis, -1), np.moveaxis(x2, axis, -1))
)


_chain = functools.partial(functools.reduce, np.matmul)
_on_diagonal: Any = functools.partial(np.eye, dtype=bool)


def _folded(x: Any, lower: bool) -> Any:
    """The gradient for an op that reads one triangle of a symmetric matrix, from the gradient for all elements."""
    both = x + mt(x)
    strict = np.tri(shape_of(x)[-1], k=-1, dtype=bool)
    return np.where(strict if lower else strict.T, both, where_or_zero(_on_diagonal(shape_of(x)[-1]), x))


def _cholesky_vjp(ct: Any, out: Any, x: Any) -> Any:
    inner = np.matmul(mt(out), np.tril(ct))
    inner = np.where(_on_diagonal(shape_of(x)[-1]), inner / 2, np.tril(inner))
    right = solve_p(mt(out), inner)
    return _folded(mt(solve_p(mt(out), mt(right))), lower=True)


def _qr_vjp(ct: Any, out: Any, x: Any) -> Any:
    rows = shape_of(x)[-2]
    q, r, ct_q, ct_r = out[..., :rows, :], out[..., rows:, :], ct[..., :rows, :], ct[..., rows:, :]
    inner = np.matmul(r, mt(np.triu(ct_r))) - np.matmul(mt(ct_q), q)
    both = ct_q + np.matmul(q, np.tril(inner) + mt(np.tril(inner, -1)))
    return mt(solve_p(r, mt(both)))


def _eigh(x: Any, *, UPLO: Any) -> Any:  # noqa: N803
    values, vectors = np.linalg.eigh(x, UPLO)
    return np.concatenate([values[..., None, :], vectors], axis=-2)


def _eigh_vjp(ct: Any, out: Any, x: Any, UPLO: str) -> Any:  # noqa: N803
    values, vectors, ct_values = out[..., 0, :], out[..., 1:, :], ct[..., 0, :]
    on = _on_diagonal(shape_of(x)[-1])
    inner = where_or_zero(~on, np.matmul(mt(vectors), ct[..., 1:, :]))
    inner = share_p(inner, values[..., None, :] - values[..., :, None])
    inner = np.where(on, ct_values[..., None, :], inner)
    return _folded(_chain([vectors, inner, mt(vectors)]), lower=UPLO == "L")


def _eigvalsh_vjp(ct: Any, out: Any, x: Any, UPLO: str) -> Any:  # noqa: N803
    vectors = eigh_p(x, UPLO=UPLO)[..., 1:, :]
    return _folded(np.matmul(vectors * ct[..., None, :], mt(vectors)), lower=UPLO == "L")


def _svd(x: Any) -> Any:
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return np.concatenate([u, s[..., None, :], mt(vh)], axis=-2)


def _svd_vjp(ct: Any, out: Any, x: Any) -> Any:
    rows, columns = shape_of(x)[-2:]
    (u, s, v), (ct_u, ct_s, ct_v) = ((y[..., :rows, :], y[..., rows, :], y[..., rows + 1 :, :]) for y in (out, ct))
    own_u, own_v = np.matmul(mt(u), ct_u), np.matmul(mt(v), ct_v)
    across, down = s[..., None, :], s[..., :, None]
    gaps = (across - down) * (across + down)
    inner = share_p(own_u - mt(own_u), gaps) * across + down * share_p(own_v - mt(own_v), gaps)
    inner = np.where(_on_diagonal(shape_of(s)[-1]), across * 0 + ct_s[..., None, :], inner)
    total = _chain([u, inner, mt(v)])
    if rows > columns:
        total = total + np.matmul(share_p(ct_u - np.matmul(u, own_u), across), mt(v))
    if columns > rows:
        total = total + np.matmul(u, mt(share_p(ct_v - np.matmul(v, own_v), across)))
    return total


def _svdvals_vjp(ct: Any, out: Any, x: Any) -> Any:
    rows, both = shape_of(x)[-2], svd_p(x)
    return np.matmul(both[..., :rows, :] * ct[..., None, :], mt(both[..., rows + 1 :, :]))


def _pinv_vjp(ct: Any, out: Any, x: Any, **params: Any) -> Any:
    """The derivative by Golub and Pereyra (1973), which holds where the rank is locally constant."""
    ct_t = mt(ct)
    left = _chain([ct_t, out, mt(out)]) - _chain([x, out, ct_t, out, mt(out)])
    right = _chain([mt(out), out, ct_t]) - _chain([mt(out), out, ct_t, out, x])
    return left + right - _chain([mt(out), ct, mt(out)])


# fmt: off
cholesky_p = _matrix_op("cholesky", np.linalg.cholesky, _cholesky_vjp)
qr_p       = _matrix_op("qr",       lambda x: np.concatenate(np.linalg.qr(x), axis=-2), _qr_vjp)
eigh_p     = _matrix_op("eigh",     _eigh,              _eigh_vjp)
eigvalsh_p = _matrix_op("eigvalsh", np.linalg.eigvalsh, _eigvalsh_vjp)
svd_p      = _matrix_op("svd",      _svd,               _svd_vjp)
svdvals_p  = _matrix_op("svdvals",  np.linalg.svdvals,  _svdvals_vjp)
pinv_p     = _matrix_op("pinv",     np.linalg.pinv,     _pinv_vjp)
# fmt: on


def _real_matrix(x: Any) -> Any:
    """The matrix cast to float; Unsupported for complex matrices, whose factorisations have no op."""
    x = _check(x)
    if dtype_of(x).kind == "c":
        raise Unsupported("a factorisation of complex matrices")
    return x


@implements(np.linalg.cholesky)
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    a = _real_matrix(a)
    return mt(cholesky_p(mt(a))) if upper else cholesky_p(a)


def _own(*parts: Any) -> list[Any]:
    """The parts of a packed result as arrays of their own in C order, as NumPy returns them."""
    return [np.copy(part, order="C") for part in parts]


@implements(np.linalg.qr)
def qr(a: Any, mode: str = "reduced") -> Any:
    a = _real_matrix(a)
    rows, columns = shape_of(a)[-2:]
    if is_boxed(rows) or is_boxed(columns):
        raise Unsupported("np.linalg.qr of matrices whose size differs between examples")
    if mode not in ("reduced", "r", "complete") or (mode == "complete" and rows > columns):
        raise Unsupported(f"np.linalg.qr with mode={mode!r}")
    both = qr_p(a[..., : min(rows, columns)])
    q, r = _own(both[..., :rows, :], both[..., rows:, :])
    if columns > rows:  # the remaining columns of R
        r = np.concatenate([r, np.matmul(mt(q), a[..., rows:])], axis=-1)
    r = set_order(r, is_non_c_order(a))  # NumPy keeps the order of the matrices
    return r if mode == "r" else type(np.linalg.qr(np.eye(1)))(q, r)


@implements(np.linalg.eigh)
def eigh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803
    both = eigh_p(_real_matrix(a), UPLO=_triangle(UPLO))
    return type(np.linalg.eigh(np.eye(1)))(*_own(both[..., 0, :], both[..., 1:, :]))


implements(np.linalg.eigvalsh)(lambda a, UPLO="L": eigvalsh_p(_real_matrix(a), UPLO=_triangle(UPLO)))  # noqa: N803


def _triangle(UPLO: str) -> str:  # noqa: N803
    if UPLO.upper() not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    return UPLO.upper()


@implements(np.linalg.svd)
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """np.linalg.svd; declines the extra vectors of `full_matrices=True`, since the matrix does not determine them."""
    a = _real_matrix(a)
    if not compute_uv:
        return svdvals_p(a)
    rows, columns = shape_of(a)[-2:]
    sizes_differ = is_boxed(rows) or is_boxed(columns)
    if sizes_differ or (full_matrices and rows != columns):
        raise Unsupported(
            "its factors are not unique; write full_matrices=False" if not sizes_differ else "sizes differ"
        )
    both = svd_p(a)
    parts = _own(both[..., :rows, :], both[..., rows, :], mt(both[..., rows + 1 :, :]))
    return type(np.linalg.svd(np.eye(1)))(*parts)


@implements(np.linalg.pinv)
def pinv(a: Any, rcond: Any = None, *, rtol: Any = None) -> Any:
    if is_boxed(rcond) or is_boxed(rtol):
        raise Unsupported("np.linalg.pinv with a bound for each example")
    expect(a, "np.linalg.pinv", least=1)
    given = {name: float(x) for name, x in (("rcond", rcond), ("rtol", rtol)) if x is not None}
    return pinv_p(_real_matrix(a), **given)


_CLEAR = 1e-5  # smallest / largest singular value above which the matrix certainly has full rank


@implements(np.linalg.lstsq)
def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """np.linalg.lstsq with more equations than unknowns and full rank; other cases are declined."""
    expect(a, "np.linalg.lstsq", rank=2, kinds="f")
    expect(b, "np.linalg.lstsq", kinds="f")
    unknowns = shape_of(a)[1]
    if ndim_of(b) not in (1, 2) or is_boxed(unknowns) or any_shorter(a, unknowns + 1, 0):
        raise Unsupported("np.linalg.lstsq of as many unknowns as equations")
    if is_boxed(rcond) or (rcond is not None and rcond > _CLEAR):
        raise Unsupported("np.linalg.lstsq with a bound that may decide the rank")
    dtype = np.result_type(dtype_of(a), dtype_of(b))
    a, b = (x if dtype_of(x) == np.float64 else x.astype(np.float64) for x in (a, b))  # as NumPy computes it
    x, s = _least_squares(a, b, "np.linalg.lstsq")
    rest = b - np.matmul(a, x)
    x, residuals, s = (
        each if dtype == np.float64 else each.astype(dtype) for each in (x, np.atleast_1d((rest * rest).sum(axis=0)), s)
    )
    return x, residuals, np.int32(unknowns), s


def _least_squares(a: Any, b: Any, what: str) -> tuple[Any, Any]:
    """(the least-squares solution, the singular values); Unsupported unless the rank is certainly full."""
    if any_shorter(a, 1) or any_true(np.not_equal(shape_of(a)[0], shape_of(b)[0])):
        raise Unsupported(f"{what} of right-hand sides that do not fit")
    s = svdvals_p(a)
    if any_true(~(s[-1] > _CLEAR * s[0])):
        raise Unsupported(f"{what} of equations of uncertain rank")
    return np.matmul(pinv_p(a), b), s


@implements(np.polyfit)
def polyfit(x: Any, y: Any, deg: Any) -> Any:
    """np.polyfit without weights: least squares on the Vandermonde matrix, its columns scaled to norm 1 as in NumPy."""
    if not isinstance(deg, int) or deg < 0:
        raise Unsupported("np.polyfit of a degree that is not a single number")
    expect(x, "np.polyfit", rank=1, kinds="iuf")
    expect(y, "np.polyfit", kinds="iuf")
    x, y = x + 0.0, y + 0.0
    powers = [np.ones_like(x)]
    for _ in range(deg):
        powers.append(powers[-1] * x)
    columns = np.stack(powers[::-1], axis=-1)
    scale = np.sqrt((columns * columns).sum(axis=0))
    if any_true(scale == 0):
        raise Unsupported("np.polyfit at points of uncertain rank")
    if any_shorter(x, deg + 1):
        raise Unsupported("np.polyfit of fewer points than coefficients")
    solution, _ = _least_squares(columns / scale, y, "np.polyfit")
    return (solution.T / scale).T
