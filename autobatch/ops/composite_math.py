"""Numeric functions composed of ops: differences, comparisons with tolerance, products, polynomials."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, padding_mask, same_size
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.ops.composite_lanes import values_of
from autobatch.ops.creation import arange
from autobatch.ops.indexing import getitem
from autobatch.ops.indexing_spec import on_axis
from autobatch.ops.inplace import into
from autobatch.ops.rules.padding import to_width
from autobatch.ops.rules.sizes import as_batched, lanes_of, normalise_axis, width_of
from autobatch.ops.table import Declined, implements

__all__ = ["array_equal", "diff", "interp", "isclose", "kron"]


def _boxed(x: Any) -> Any:
    return x if is_boxed(x) else np.asarray(x)


# differences and integrals


@implements(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    axis = normalise_axis(axis, ndim_of(a))
    parts = [a]
    for extra, first in ((_given(prepend), True), (_given(append), False)):
        if extra is not None:
            extra = _boxed(extra)
            if ndim_of(extra) == 0:
                shape = list(shape_of(a))
                shape[axis] = 1
                extra = np.broadcast_to(extra, tuple(shape))
            parts.insert(0, extra) if first else parts.append(extra)
    out = np.concatenate(parts, axis) if len(parts) > 1 else a
    for _ in range(n):
        later, sooner = out[on_axis(axis, slice(1, None))], out[on_axis(axis, slice(None, -1))]
        out = later != sooner if dtype_of(out).kind == "b" else later - sooner
    return out


def _given(value: Any) -> Any:
    return None if value is np._NoValue else value


@implements(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    flat = np.reshape(ary, (-1,))
    parts = [flat[1:] - flat[:-1]]
    if to_begin is not None:
        parts.insert(0, np.reshape(_boxed(to_begin), (-1,)).astype(dtype_of(ary)))
    if to_end is not None:
        parts.append(np.reshape(_boxed(to_end), (-1,)).astype(dtype_of(ary)))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@implements(np.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    axis = normalise_axis(axis, ndim_of(y))
    step: Any = dx
    if x is not None:
        step = diff(x) if ndim_of(x) == 1 else diff(x, axis=axis)
        if ndim_of(x) == 1:
            step = np.reshape(step, (-1,) + (1,) * (ndim_of(y) - axis - 1))
    later, sooner = y[on_axis(axis, slice(1, None))], y[on_axis(axis, slice(None, -1))]
    return np.sum(step * (later + sooner) / 2.0, axis=axis)


@implements(np.gradient)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    axes = range(ndim_of(f)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if edge_order != 1 or len(varargs) > 1 or any(ndim_of(v) for v in varargs) or dtype_of(f).kind != "f":
        raise Declined("np.gradient with second-order edges or uneven spacing")
    step = varargs[0] if varargs else 1.0
    out = []
    for place in axes:
        place = normalise_axis(place, ndim_of(f))

        def at(start: Any, stop: Any, place: int = place) -> Any:
            return f[on_axis(place, slice(start, stop))]

        inner = (at(2, None) - at(None, -2)) / (2.0 * step)
        first, last = (at(1, 2) - at(0, 1)) / step, (at(-1, None) - at(-2, -1)) / step
        out.append(np.concatenate([first, inner, last], place))
    return out[0] if len(out) == 1 else tuple(out)


# comparison


@implements(np.isclose)
def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    a, b = _boxed(a), _boxed(b)
    if dtype_of(b).kind in "biu":
        b = b.astype(np.result_type(dtype_of(b), 1.0))
    with np.errstate(invalid="ignore"):
        close = (np.absolute(a - b) <= atol + rtol * np.absolute(b)) & np.isfinite(b) | (a == b)
    return close | (np.isnan(a) & np.isnan(b)) if equal_nan else close


@implements(np.allclose)
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    return _python_bool(np.all(isclose(a, b, rtol, atol, equal_nan)))


def _python_bool(answer: Any) -> Any:
    """A Python bool, as NumPy's function gives; of a batch one for each example."""
    return answer.item() if rank_of(answer) == BATCH_RANK else bool(answer)


def _array_equal(a: Any, b: Any, *, equal_nan: bool) -> Any:
    return np.bool_(np.array_equal(a, b, equal_nan=equal_nan))


def _array_equal_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lanes_of(operands)
    a, b = (as_batched(x, lanes) for x in operands)
    if a.rank != b.rank:
        return Batched(np.zeros(lanes, bool), ())
    alike = np.ones(lanes, bool)
    left, right = values_of(a.data), values_of(b.data)
    for axis, (one, two) in enumerate(zip(a.sizes, b.sizes, strict=True)):
        if not same_size(one, two):
            alike &= getattr(one, "values", one) == getattr(two, "values", two)
        width = min(width_of(one), width_of(two))
        left, right = to_width(left, axis + 1, width), to_width(right, axis + 1, width)
    same = left == right
    if params["equal_nan"] and left.dtype.kind in "fc" and right.dtype.kind in "fc":
        same |= np.isnan(left) & np.isnan(right)
    mask = padding_mask(a.sizes, same.shape[1:])
    same = same if mask is None else same | ~mask
    return Batched(alike & same.reshape(lanes, -1).all(axis=1) if same.size else alike, ())


array_equal_p = Op("array_equal", _array_equal, rule=_array_equal_rule, kind="compare")


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    return _python_bool(array_equal_p(_boxed(a1), _boxed(a2), equal_nan=equal_nan))


# numbers


@implements(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    dtype = dtype_of(x)
    if dtype.kind == "c":
        raise Declined("np.nan_to_num of complex numbers")
    if dtype.kind != "f":
        return np.copy(x) if copy else x
    limits = np.finfo(dtype)
    out = np.where(np.isnan(x), np.asarray(nan, dtype), x)
    out = np.where(x == np.inf, np.asarray(limits.max if posinf is None else posinf, dtype), out)
    out = np.where(x == -np.inf, np.asarray(limits.min if neginf is None else neginf, dtype), out)
    return out if copy or not is_boxed(x) else into(x, out)


@implements(np.angle)
def angle(z: Any, deg: bool = False) -> Any:
    out = np.arctan2(np.imag(z), np.real(z))
    return out * (180 / np.pi) if deg else out


@implements(np.sinc)
def sinc(x: Any) -> Any:
    y = np.pi * np.where(x == 0, 1.0e-20, x)
    return np.sin(y) / y


@implements(np.fix)
def fix(x: Any, out: Any = None) -> Any:
    new = np.trunc(x)
    return new if out is None else into(out, new)


@implements(np.round, np.around)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    kind = dtype_of(a).kind
    if kind == "b" and decimals:
        raise Declined("np.round of bools to other than integers")
    if kind in "biu" and decimals >= 0:
        new = np.copy(a).astype(np.float16) if kind == "b" else np.copy(a)
    elif kind != "f":
        raise Declined("np.round of integers to tens, or of complex numbers")
    elif decimals == 0:
        new = np.rint(a)
    else:
        factor = np.asarray(10.0 ** abs(decimals), np.result_type(dtype_of(a)))
        new = np.rint(a * factor) / factor if decimals > 0 else np.rint(a / factor) * factor
    return new if out is None else into(out, new)


@implements(np.isneginf)
def isneginf(x: Any, out: Any = None) -> Any:
    return (x == -np.inf) if out is None else into(out, x == -np.inf)


@implements(np.isposinf)
def isposinf(x: Any, out: Any = None) -> Any:
    return (x == np.inf) if out is None else into(out, x == np.inf)


@implements(np.iscomplex)
def iscomplex(x: Any) -> Any:
    return np.imag(x) != 0


@implements(np.isreal)
def isreal(x: Any) -> Any:
    return np.imag(x) == 0


# products


@implements(np.cross, np.linalg.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(_boxed(a), axisa, -1), np.moveaxis(_boxed(b), axisb, -1)
    if shape_of(a)[-1] != 3 or shape_of(b)[-1] != 3:
        raise Declined("np.cross of vectors that are not of three elements")
    x, y, z = (a[..., i] for i in range(3))
    u, v, w = (b[..., i] for i in range(3))
    return np.moveaxis(np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=-1), -1, axisc)


@implements(np.kron)
def kron(a: Any, b: Any) -> Any:
    a, b = _boxed(a), _boxed(b)
    rank = max(ndim_of(a), ndim_of(b))
    a, b = a[(None,) * (rank - ndim_of(a))], b[(None,) * (rank - ndim_of(b))]
    left = a[tuple(item for _ in range(rank) for item in (slice(None), None))]
    right = b[tuple(item for _ in range(rank) for item in (None, slice(None)))]
    sizes = tuple(m * n for m, n in zip(shape_of(a), shape_of(b), strict=True))
    return np.reshape(left * right, sizes)


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """np.convolve: sums of the rows of the Toeplitz matrix of `v` times `a`, by selection, since 0 times inf is NaN."""
    a, v = _boxed(a), _boxed(v)
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
    return convolve(a, np.conjugate(_boxed(v))[::-1], mode)


@implements(np.polyval)
def polyval(p: Any, x: Any) -> Any:
    p = _boxed(p)
    count = shape_of(p)[0]
    if is_boxed(count):
        raise Declined("np.polyval of degrees that differ between examples")
    return functools.reduce(lambda y, i: y * x + p[i], range(count), np.zeros_like(x))


@implements(np.vander)
def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:  # noqa: N803
    powers = arange(shape_of(x)[0] if N is None else N)
    out = x[:, None] ** powers
    return out if increasing else out[:, ::-1]


@implements(np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """np.interp, differentiable in x and fp."""
    xp, fp, x = _boxed(xp), _boxed(fp), _boxed(x)
    if period is not None or is_boxed(shape_of(xp)[0]) or shape_of(xp)[0] < 2:
        raise Declined("np.interp with a period, or with points whose number differs between examples")
    n = shape_of(xp)[0]
    below = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, n - 2)
    x0, x1 = getitem(xp, below), getitem(xp, below + 1)
    y0, y1 = getitem(fp, below), getitem(fp, below + 1)
    out = (y1 - y0) / (x1 - x0) * (x - x0) + y0
    out = np.where(x < xp[0], fp[0] if left is None else left, out)
    return np.where(x > xp[n - 1], fp[n - 1] if right is None else right, np.where(x == xp[n - 1], fp[n - 1], out))


@implements(np.cov)
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    if y is not None or fweights is not None or aweights is not None or dtype is not None or ndim_of(m) != 2:
        raise Declined("np.cov with weights, a second set or one variable")
    x = m if rowvar else m.T
    ddof = ddof if ddof is not None else int(not bias)
    centred = x - np.mean(x, axis=1, keepdims=True)
    return np.matmul(centred, np.conjugate(centred.T)) * (1 / (shape_of(x)[1] - ddof))


@implements(np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    c = cov(x, y, rowvar, dtype=dtype)
    spread = np.sqrt(np.diagonal(c))
    return np.clip(c / spread[:, None] / spread[None, :], -1, 1)
