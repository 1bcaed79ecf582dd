"""softmax, log_softmax and logsumexp: stable, one op each."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.batched import Batched, Lengths
from autobatch.core.op import Op, is_boxed
from autobatch.ops.broadcasting import fill, fill_p, has_lengths, quietly, select, unbroadcast
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
        others = [a for a in range(x.rank) if a != axis]

        def run(data: Any) -> Any:
            data = fill(Batched(data, x.sizes), -np.inf, (axis,))
            if not size.values.all():  # a row of padding only: any finite values
                some = (size.values > 0).reshape((-1,) + (1,) * x.rank)
                data = fill_p(data, some, value=0)
            return op(data, axis=axis + 1)

        out = quietly(lambda: run(x.data), lambda: run(fill(x, 0, others)))
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
