"""softmax, log_softmax, logsumexp and layer_norm: numerically stable, one op each.

Large float32 arrays go through a compiled kernel, very large ones in several threads.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask, prefix_mask
from autobatch.core.config import config
from autobatch.core.cotangent import unbroadcast
from autobatch.core.diagnostics import hiding_frames, underflow_is_ignored
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import Op
from autobatch.core.threads import run_together, split_work
from autobatch.errors import DTypeError
from autobatch.kernels.simd_rows import VectorLayout
from autobatch.kernels.softmax_layer_norm import layer_norm_gradient, layer_norm_rows, softmax_gradient, softmax_rows
from autobatch.ops.numpy.reductions import expand, reduced_sizes, shifted
from autobatch.ops.rules.dispatch import as_array, source
from autobatch.ops.rules.op_kinds import run_by_length, vjp_columns
from autobatch.ops.rules.padding import fill, fill_p, speculate, where_or_zero
from autobatch.ops.rules.sizes import has_lengths, normal_axes, normalise_axis, spread_out

_LEAST_ELEMENTS = 1 << 14  # for fewer, NumPy is as fast
_SOFTMAX_COST, _NORM_COST = 8, 4  # cost per element, in bytes that a thread reads from its cache in that time
VECTOR = VectorLayout("f4", 16)


def _by_rows(cost: int, work: Callable[..., Any], *arrays: Any) -> np.ndarray | None:
    """Run `work(*arrays, out, part)` on parts of the rows, in threads; returns `out`, or None if NumPy must compute it.

    The arrays and `out` are passed as matrices. The first array must satisfy `is_worthwhile`.

    Args:
        cost: cost per element, in bytes that a thread reads from its cache in that time.
        work: returns False if the kernel cannot compute the part.
    """
    x = arrays[0]
    if any(type(each) is not np.ndarray or each.dtype != x.dtype or each.shape != x.shape for each in arrays):
        return None
    rows = [as_rows(each) for each in arrays]
    out = np.empty_like(rows[0])
    parts = split_work(len(out), x.size * cost)
    done = run_together([functools.partial(work, *rows, out, part) for part in parts])
    return None if False in done else out.reshape(x.shape)


def _softmax_of_rows(kernel: Any, counts: Any, *arrays: Any, more: tuple[Any, ...] = ()) -> np.ndarray | None:
    """softmax along the last axis or its gradient, by a kernel; None if NumPy must compute it.

    Args:
        counts: the number of valid elements of each row; None: all.
    """
    if not is_worthwhile(arrays[0]):
        return None
    valid = _counts(arrays[0], counts)
    return _by_rows(_SOFTMAX_COST, lambda *rows: kernel(*rows[:-2], valid, *rows[-2:], *more), *arrays)


def is_worthwhile(x: Any) -> bool:
    """True for a plain float32 array with enough elements for a kernel to be faster, if kernels are enabled."""
    return type(x) is np.ndarray and x.dtype == np.float32 and x.size >= _LEAST_ELEMENTS and config.kernels


def as_rows(x: np.ndarray) -> np.ndarray:
    """The array as a C-contiguous matrix whose rows run along its last axis."""
    return np.ascontiguousarray(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _counts(x: np.ndarray, counts: Any) -> np.ndarray:
    if counts is None:
        return np.full(math.prod(x.shape[:-1]), x.shape[-1])
    return np.ascontiguousarray(counts, np.int64).reshape(-1)


def as_numbers(x: Any) -> Any:
    """An argument as an array of numbers.

    Raises:
        DTypeError: another dtype, such as object.
    """
    x = as_array(x)
    if dtype_of(x).kind not in "biufc":
        raise DTypeError(f"an array of dtype {dtype_of(x)}; expected numbers")
    return x


def as_floating(x: Any) -> Any:
    """An array with integers and bools cast to float64, as NumPy's own functions of real numbers do."""
    if type(x) is not np.ndarray or x.dtype.kind not in "fc":
        x = as_array(x)
        x = x.astype(np.float64) if x.dtype.kind in "iub" else x
    return x


def _softmax(x: Any, counts: Any = None, *, axis: int) -> Any:
    x = as_floating(x)
    if not x.shape[axis]:
        return x.copy()
    if axis == x.ndim - 1 and underflow_is_ignored():
        found = _softmax_of_rows(softmax_rows, counts, x, more=(np.arange(32, dtype=np.float32), VECTOR))
        if found is not None:
            return found
    x = _without_the_rest(x, counts)
    out = np.exp(x - np.maximum.reduce(x, axis=axis, keepdims=True))
    out /= np.add.reduce(out, axis=axis, keepdims=True)
    return out if counts is None else where_or_zero(prefix_mask(counts, x.shape[axis]), out)


def _softmax_vjp(ct: Any, out: Any, x: Any, counts: Any = None, *, axis: int) -> Any:
    if axis == ndim_of(out) - 1 and (found := _softmax_of_rows(softmax_gradient, counts, out, ct)) is not None:
        return found
    ct = _zero_behind(ct, counts)
    return _zero_behind(out * (ct - np.sum(ct * out, axis=axis, keepdims=True)), counts)


def _log_softmax(x: Any, counts: Any = None, *, axis: int) -> Any:
    x = as_floating(x)
    if not x.shape[axis]:
        return x.copy()
    x = _without_the_rest(x, counts)
    out = x - np.maximum.reduce(x, axis=axis, keepdims=True)
    out -= np.log(np.add.reduce(np.exp(out), axis=axis, keepdims=True))
    return out if counts is None else where_or_zero(prefix_mask(counts, x.shape[axis]), out)


def _log_softmax_vjp(ct: Any, out: Any, x: Any, counts: Any = None, *, axis: int) -> Any:
    ct = _zero_behind(ct, counts)
    return _zero_behind(ct - np.exp(out) * np.sum(ct, axis=axis, keepdims=True), counts)


def _zero_behind(ct: Any, counts: Any) -> Any:
    return ct if counts is None else fill_p(ct, prefix_mask(counts, shape_of(ct)[-1]), value=0)


def _without_the_rest(x: Any, counts: Any) -> Any:
    """x with -inf after the first `counts` elements of each row; with 0 in a row without any, to avoid NaN."""
    if counts is None:
        return x
    behind = np.where(counts > 0, -np.inf, 0).astype(x.dtype)
    return np.where(prefix_mask(counts, x.shape[-1]), x, behind[..., None])


def _along(impl: Callable[..., Any], vjp: Callable[..., Any], name: str) -> Op:
    """Make an op that normalises along one axis; a ragged axis is moved to the end, with 0 after `counts` elements."""

    def rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        x, axis = operands[0], params["axis"]
        if not has_lengths(x.sizes):
            return Batched(op(x.data, axis=axis + 1), x.sizes)
        size = x.sizes[axis]
        if not isinstance(size, Lengths):
            out = speculate(lambda: op(x.data, axis=axis + 1), lambda: op(fill(x, 0), axis=axis + 1))
            return Batched(out, x.sizes)
        data = np.moveaxis(x.data, axis + 1, -1) if axis < x.rank - 1 else x.data
        others = [n for at, n in enumerate(x.sizes) if at != axis]
        counts = spread_out(size.values.reshape((-1,) + (1,) * len(others)), data.shape[:-1])
        mask = padding_mask(others, data.shape[1:-1])
        out = op(data, counts if mask is None else np.where(mask, counts, 0), axis=x.rank)
        return Batched(np.moveaxis(out, -1, axis + 1) if axis < x.rank - 1 else out, x.sizes)

    return Op(name, impl, rule=rule, vjp=vjp_columns([vjp, None]), kind="normalisation")


# Operands: x, and if the lengths of its rows differ, `counts`, the length of each. Param: axis (non-negative).
softmax_p = _along(_softmax, _softmax_vjp, "softmax")
log_softmax_p = _along(_log_softmax, _log_softmax_vjp, "log_softmax")


def _logsumexp(x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    x = as_floating(x)
    peak = np.maximum.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
    peak = np.where(np.isfinite(peak), peak, np.zeros((), x.dtype))
    with np.errstate(divide="ignore"):  # log(0) = -inf is the result of an empty sum
        out = np.log(np.add.reduce(np.exp(x - peak), axis=axis, keepdims=True)) + peak
    return out if keepdims else out.squeeze(axis)[()]


def _logsumexp_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, axes = operands[0], params["axis"]
    down = {**params, "axis": shifted(axes)}
    sizes = reduced_sizes(x.sizes, axes, params.get("keepdims", False))
    if not has_lengths(x.sizes):
        return Batched(op(x.data, **down), sizes)
    x = Batched(as_floating(x.data), x.sizes)
    return Batched(speculate(lambda: op(fill(x, -np.inf, axes), **down), lambda: op(fill(x, -np.inf), **down)), sizes)


def _logsumexp_vjp(ct: Any, out: Any, x: Any, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    ct, out = expand(ct, axis, keepdims), expand(out, axis, keepdims)
    return spread_out(ct * np.exp(x - where_or_zero(out != -np.inf, out)), shape_of(x))


# Params: axis (sorted, non-negative), keepdims.
logsumexp_p = Op("logsumexp", _logsumexp, rule=_logsumexp_rule, vjp=vjp_columns([_logsumexp_vjp]), kind="reduction")


def _normalised_by(kernel: Any, axis: tuple[int, ...], eps: float, *arrays: Any) -> np.ndarray | None:
    """(x - mean) / sqrt(var + eps) along the last axis, or its gradient, by a kernel; None if NumPy must compute it."""
    x = arrays[0]
    if not is_worthwhile(x) or axis != (x.ndim - 1,) or x.shape[-1] % VECTOR.n:
        return None
    return _by_rows(_NORM_COST, lambda *operands: bool(kernel(*operands, np.float32(eps), VECTOR)), *arrays)


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if dtype_of(x) == np.float16 else x


def _standardise(x: Any, axis: tuple[int, ...], eps: float) -> tuple[Any, Any]:
    """(x - mean) / sqrt(var + eps), and 1 / sqrt(var + eps); float16 is computed in float32."""
    x = _wide(x)
    n = max(math.prod([shape_of(x)[a] for a in axis]), 1)
    centered = x - np.sum(x, axis=axis, keepdims=True) / n
    inverse = 1 / np.sqrt(np.sum(centered * centered, axis=axis, keepdims=True) / n + eps)
    return centered * inverse, inverse


def _layer_norm(x: Any, *, axis: tuple[int, ...], eps: float) -> Any:
    x = as_floating(x)
    out = _normalised_by(layer_norm_rows, axis, eps, x) if underflow_is_ignored() else None
    out = _standardise(x, axis, eps)[0] if out is None else out
    return out if out.dtype == x.dtype else out.astype(x.dtype)


def _layer_norm_vjp(ct: Any, out: Any, x: Any, *, axis: tuple[int, ...], eps: float) -> Any:
    ct = _wide(ct)
    if (found := _normalised_by(layer_norm_gradient, axis, eps, x, ct)) is not None:
        return found
    standard, inverse = _standardise(x, axis, eps)
    n = max(math.prod([shape_of(x)[a] for a in axis]), 1)
    mean = np.sum(ct, axis=axis, keepdims=True) / n
    along = np.sum(ct * standard, axis=axis, keepdims=True) / n
    return unbroadcast(inverse * (ct - mean - standard * along), x)


def _layer_norm_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,), down = operands, {**params, "axis": shifted(params["axis"])}
    if any(isinstance(x.sizes[axis], Lengths) for axis in params["axis"]):
        return run_by_length(op, [x], params, params["axis"])
    if not has_lengths(x.sizes):
        return Batched(op(x.data, **down), x.sizes)
    return Batched(speculate(lambda: op(x.data, **down), lambda: op(fill(x, 0), **down)), x.sizes)


# Params: axis (sorted, non-negative), eps.
layer_norm_p = Op("layer_norm", _layer_norm, rule=_layer_norm_rule, vjp=vjp_columns([_layer_norm_vjp]),
                  kind="normalisation")  # fmt: skip


@hiding_frames
def softmax(x: ArrayLike, axis: int = -1) -> NDArray[Any]:
    """exp(x) / sum(exp(x)) along an axis; the maximum is subtracted first, so exp does not overflow.

    Args:
        x: an array of at least one dimension; integers become float64.
        axis: the dimension along which the result adds up to 1.

    Returns:
        An array of x's shape, of its floating dtype.

    Raises:
        AxisError: x has no such axis.

    >>> softmax(np.array([0.0, np.log(3.0)])).round(6).tolist()
    [0.25, 0.75]
    """
    x = as_numbers(x)
    return softmax_p(x, axis=normalise_axis(axis, ndim_of(x)))


@hiding_frames
def log_softmax(x: ArrayLike, axis: int = -1) -> NDArray[Any]:
    """log(softmax(x)) along an axis, computed without the softmax itself, so small probabilities do not give -inf.

    Args:
        x: an array of at least one dimension; integers become float64.
        axis: the dimension along which the probabilities add up to 1.

    Returns:
        An array of x's shape, of its floating dtype.

    Raises:
        AxisError: x has no such axis.

    >>> log_softmax(np.array([0.0, 0.0])).round(6).tolist()
    [-0.693147, -0.693147]
    """
    x = as_numbers(x)
    return log_softmax_p(x, axis=normalise_axis(axis, ndim_of(x)))


@source(constant=True)
def _peaks(x, axis=-1):
    """The largest numbers along an axis, which is kept."""
    return x.max(axis=axis, keepdims=True)


@source()
def _below_peak(x, axis=-1):
    """The numbers minus the largest of them along an axis, as floats."""
    y = np.asarray(x)
    y = y if y.dtype.kind == "f" else y * 1.0
    return y - _peaks(y, axis) if y.ndim > 1 or len(y) else y * 1.0


@source(softmax, of=(1, 2, 3), sums=True)
def _softmax_of_one(x, axis=-1):
    weights = np.exp(_below_peak(x, axis))
    return weights / (weights.sum(axis=axis, keepdims=True) if weights.ndim > 1 else weights.sum())


@source(log_softmax, of=(1, 2, 3), sums=True)
def _log_softmax_of_one(x, axis=-1):
    y = _below_peak(x, axis)
    if y.ndim > 1:
        return y - np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y - np.log(np.exp(y).sum()) if len(y) else y


@hiding_frames
def logsumexp(x: ArrayLike, axis: int | tuple[int, ...] | None = -1, keepdims: bool = False) -> NDArray[Any]:
    """log(sum(exp(x))) over axes; -inf for an empty sum, as `torch.logsumexp`.

    Args:
        x: an array of any shape; integers become float64.
        axis: one dimension, several, or None for all.
        keepdims: keep these dimensions, with size 1.

    Returns:
        An array without these dimensions, of x's floating dtype.

    Raises:
        AxisError: x has no such axis.

    >>> float(logsumexp(np.array([1000.0, 1000.0])).round(6))
    1000.693147
    """
    x = as_numbers(x)
    return logsumexp_p(x, axis=normal_axes(axis, ndim_of(x)), keepdims=bool(keepdims))


@source(logsumexp, of=(1, 2), sums=True)
def _logsumexp_of_one(x, axis=-1, keepdims=False):
    y = np.asarray(x)
    y = y if y.dtype.kind == "f" else y * 1.0
    peak = _peaks(y, axis)
    total = np.exp(y - peak).sum(axis=axis, keepdims=keepdims)
    return np.log(total) + (peak if keepdims else peak.ravel() if np.ndim(total) else peak.ravel()[0])


@hiding_frames
def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
) -> NDArray[Any]:
    """(x - mean) / sqrt(var + eps) over an axis or several, times `weight` plus `bias` (which broadcast against x).

    Args:
        x: an array of any shape; integers become float64.
        weight, bias: arrays that broadcast against x; None: 1 and 0.
        axis: one dimension or several.
        eps: added to the variance.

    Returns:
        An array of x's shape, of its floating dtype.

    Raises:
        AxisError: x has no such axis.

    >>> layer_norm(np.array([1.0, 3.0]), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    x = as_numbers(x)
    out = layer_norm_p(x, axis=normal_axes(axis, ndim_of(x)), eps=float(eps))
    out = out if weight is None else out * as_numbers(weight)
    return out if bias is None else out + as_numbers(bias)


@source(layer_norm, of=(1, 2, 3), sums=True)
def _layer_norm_of_one(x, weight=None, bias=None, axis=-1, eps=1e-5):
    y = np.asarray(x)
    y = y if y.dtype.kind == "f" else y * 1.0
    centred = y - y.mean(axis=axis, keepdims=True)
    out = centred / np.sqrt((centred * centred).mean(axis=axis, keepdims=True) + float(eps))
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias
