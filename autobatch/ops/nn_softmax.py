"""softmax, log_softmax and logsumexp: stable, one op each."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.op import Op
from autobatch.ops.nn_softmax_rows import softmax_gradient_of_rows, softmax_of_rows
from autobatch.ops.reductions import expand, reduced_sizes, shifted
from autobatch.ops.rules.padding import fill, fill_p, kept, quietly, unbroadcast
from autobatch.ops.rules.sizes import has_lengths

__all__ = ["as_floating", "log_softmax_p", "logsumexp_p", "softmax_p"]


def as_floating(x: Any) -> Any:
    """Integers and bools as float64, as NumPy's own functions of real numbers take them."""
    x = x if hasattr(x, "dtype") else np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind in "iub" else x


def _softmax(x: Any, counts: Any = None, *, axis: int) -> Any:
    x = as_floating(x)
    if not x.shape[axis]:
        return x.copy()
    if axis == x.ndim - 1 and (out := softmax_of_rows(x, counts)) is not None:
        return out
    x = _without_the_rest(x, counts)
    out = np.exp(x - x.max(axis=axis, keepdims=True))
    out /= out.sum(axis=axis, keepdims=True)
    return out if counts is None else kept(_inside(counts, x.shape[axis]), out)


def _softmax_vjp(ct: Any, out: Any, axis: int, counts: Any) -> Any:
    if axis == ndim_of(out) - 1 and (found := softmax_gradient_of_rows(out, ct, counts)) is not None:
        return found
    ct = _zero_behind(ct, counts)
    return _zero_behind(out * (ct - np.sum(ct * out, axis=axis, keepdims=True)), counts)


def _log_softmax(x: Any, counts: Any = None, *, axis: int) -> Any:
    x = as_floating(x)
    if not x.shape[axis]:
        return x.copy()
    x = _without_the_rest(x, counts)
    out = x - x.max(axis=axis, keepdims=True)
    out -= np.log(np.exp(out).sum(axis=axis, keepdims=True))
    return out if counts is None else kept(_inside(counts, x.shape[axis]), out)


def _log_softmax_vjp(ct: Any, out: Any, axis: int, counts: Any) -> Any:
    ct = _zero_behind(ct, counts)
    return _zero_behind(ct - np.exp(out) * np.sum(ct, axis=axis, keepdims=True), counts)


def _zero_behind(ct: Any, counts: Any) -> Any:
    return ct if counts is None else fill_p(ct, _inside(counts, shape_of(ct)[-1]), value=0)


def _inside(counts: Any, width: int) -> Any:
    return np.arange(width) < np.expand_dims(counts, -1)


def _without_the_rest(x: Any, counts: Any) -> Any:
    """x with what weighs nothing behind the first elements of each row; all finite in a row of none."""
    if counts is None:
        return x
    behind = np.where(counts > 0, -np.inf, 0).astype(x.dtype)
    return np.where(_inside(counts, x.shape[-1]), x, np.expand_dims(behind, -1))


def _along(impl: Callable[..., Any], vjp: Callable[..., Any], name: str) -> Op:
    """A normalisation along one axis; of a varying one, moved to the end, `counts` elements, and 0 behind them."""

    def rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        x, axis = operands[0], params["axis"]
        if not has_lengths(x.sizes):
            return Batched(op(x.data, axis=axis + 1), x.sizes)
        size = x.sizes[axis]
        if not isinstance(size, Lengths):
            out = quietly(lambda: op(x.data, axis=axis + 1), lambda: op(fill(x, 0), axis=axis + 1))
            return Batched(out, x.sizes)
        data = np.moveaxis(x.data, axis + 1, -1)
        others = [n for at, n in enumerate(x.sizes) if at != axis]
        counts = np.broadcast_to(size.values.reshape((-1,) + (1,) * len(others)), data.shape[:-1])
        mask = padding_mask(others, data.shape[1:-1])
        out = op(data, counts if mask is None else np.where(mask, counts, 0), axis=x.rank)
        return Batched(np.moveaxis(out, -1, axis + 1), x.sizes)

    def backward(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if position:
            return None
        counts = args[1] if len(args) > 1 else None
        return unbroadcast(vjp(ct, out, params["axis"], counts), args[0])

    return Op(name, impl, rule=rule, vjp=backward, kind="normalisation")


# Operands: x, and where its rows are not of one length `counts`, the length of each. Param: axis (non-negative).
softmax_p = _along(_softmax, _softmax_vjp, "softmax")
log_softmax_p = _along(_log_softmax, _log_softmax_vjp, "log_softmax")


def _logsumexp(x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    x = as_floating(x)
    peak = x.max(axis=axis, keepdims=True, initial=-np.inf)
    peak = np.where(np.isfinite(peak), peak, np.zeros((), x.dtype))
    with np.errstate(divide="ignore"):  # log(0) = -inf is the sum of nothing
        out = np.log(np.exp(x - peak).sum(axis=axis, keepdims=True)) + peak
    return out if keepdims else out.reshape([n for at, n in enumerate(x.shape) if at not in axis])[()]


def _logsumexp_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, axes = operands[0], params["axis"]
    down = {**params, "axis": shifted(axes)}
    sizes = reduced_sizes(x.sizes, axes, params.get("keepdims", False))
    if not has_lengths(x.sizes):
        return Batched(op(x.data, **down), sizes)
    x = Batched(as_floating(x.data), x.sizes)
    return Batched(quietly(lambda: op(fill(x, -np.inf, axes), **down), lambda: op(fill(x, -np.inf), **down)), sizes)


def _logsumexp_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, axes, keepdims = args[0], params["axis"], params.get("keepdims", False)
    ct, out = expand(ct, axes, keepdims), expand(out, axes, keepdims)
    out = np.where(out == -np.inf, np.zeros((), dtype_of(out)), out)
    return unbroadcast(np.broadcast_to(ct * np.exp(x - out), shape_of(x)), x)


# Params: axis (sorted, non-negative), keepdims.
logsumexp_p = Op("logsumexp", _logsumexp, rule=_logsumexp_rule, vjp=_logsumexp_vjp, kind="reduction")
