"""softmax, log_softmax and logsumexp: stable, one op each."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.op import Op, is_boxed
from autobatch.ops.broadcasting import has_lengths, quietly, select, unbroadcast
from autobatch.ops.kinds import fill
from autobatch.ops.reductions import expand, reduced_sizes, shifted

__all__ = ["as_floating", "log_softmax_p", "logsumexp_p", "softmax_p"]


def as_floating(x: Any) -> Any:
    """Integers and bools as float64, as NumPy's own functions of real numbers take them."""
    x = x if hasattr(x, "dtype") else np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind in "iub" else x


def _softmax(x: Any, *, axis: int) -> Any:
    x = as_floating(x)
    if not x.shape[axis]:
        return x.copy()
    out = np.exp(x - x.max(axis=axis, keepdims=True))
    out /= out.sum(axis=axis, keepdims=True)
    return out


def _softmax_vjp(ct: Any, out: Any, axis: int) -> Any:
    return out * (ct - np.sum(ct * out, axis=axis, keepdims=True))


def _log_softmax(x: Any, *, axis: int) -> Any:
    x = as_floating(x)
    if not x.shape[axis]:
        return x.copy()
    out = x - x.max(axis=axis, keepdims=True)
    out -= np.log(np.exp(out).sum(axis=axis, keepdims=True))
    return out


def _log_softmax_vjp(ct: Any, out: Any, axis: int) -> Any:
    return ct - np.exp(out) * np.sum(ct, axis=axis, keepdims=True)


def _along(impl: Callable[..., Any], vjp: Callable[..., Any], name: str) -> Op:
    """A normalisation along one axis: padding weighs exp(-inf), and lanes that are all padding are left finite."""

    def rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        x, axis = operands[0], params["axis"]
        if not has_lengths(x.sizes):
            return Batched(op(x.data, axis=axis + 1), x.sizes)
        size = x.sizes[axis]
        if not isinstance(size, Lengths):
            out = quietly(lambda: op(x.data, axis=axis + 1), lambda: op(fill(x, 0), axis=axis + 1))
            return Batched(out, x.sizes)
        x = Batched(as_floating(x.data), x.sizes)
        dtype = dtype_of(x.data)
        lead = (-1,) + (1,) * x.rank
        padding = np.where(size.values > 0, -np.inf, 0.0).astype(dtype).reshape(lead)
        extents = x.data.shape[1:]
        along: Any = padding_mask(x.sizes, extents, (axis,))

        def rerun() -> Any:
            inside: Any = padding_mask(x.sizes, extents)
            others = [a for a in range(x.rank) if a != axis]
            rest = padding_mask(x.sizes, extents, others)
            value = padding if rest is None else np.where(rest, padding, np.zeros((), dtype))
            return op(np.where(inside, x.data, value), axis=axis + 1)

        out = quietly(lambda: op(np.where(along, x.data, padding), axis=axis + 1), rerun)
        return Batched(select(out, x.sizes) if is_boxed(out) else out, x.sizes)

    def backward(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return unbroadcast(vjp(ct, out, params["axis"]), args[0])

    return Op(name, impl, rule=rule, vjp=backward, kind="normalisation")


# Param: axis (non-negative).
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
