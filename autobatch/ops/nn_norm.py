"""layer_norm as one op of three operands: x, and weight and bias where they are given."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.op import Op
from autobatch.ops.elementwise import add_p, mul_p
from autobatch.ops.nn_norm_rows import layer_norm_gradient_of_rows, layer_norm_of_rows
from autobatch.ops.nn_softmax import as_floating
from autobatch.ops.reductions import counts, shifted
from autobatch.ops.rules.padding import fill, fill_p, quietly, unbroadcast
from autobatch.ops.rules.sizes import has_lengths

__all__ = ["layer_norm_p"]


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if dtype_of(x) == np.float16 else x


def _standardise(x: Any, axis: tuple[int, ...], eps: float) -> tuple[Any, Any]:
    """x less its mean over its deviation, and the deviation's inverse; float16 in float32."""
    x = _wide(x)
    n = max(int(np.prod([shape_of(x)[a] for a in axis], dtype=np.int64)), 1)
    centered = x - np.sum(x, axis=axis, keepdims=True) / n
    inverse = 1 / np.sqrt(np.sum(centered * centered, axis=axis, keepdims=True) / n + eps)
    return centered * inverse, inverse


def _layer_norm(x: Any, *affine: Any, axis: tuple[int, ...], eps: float, weight: bool, bias: bool) -> Any:
    x = as_floating(x)
    out = layer_norm_of_rows(x, axis, eps)
    out = _standardise(x, axis, eps)[0] if out is None else out
    out = out if out.dtype == x.dtype else out.astype(x.dtype)
    if weight:
        out = out * affine[0]
    return out + affine[-1] if bias else out


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, axis = args[0], params["axis"]
    if position and (position == 2 or not params["weight"]):
        return unbroadcast(ct, args[position])
    g = _wide(ct * args[1] if params["weight"] and not position else ct)
    found = None if position else layer_norm_gradient_of_rows(g, x, axis, params["eps"])
    if found is not None:
        return found
    standard, inverse = _standardise(x, axis, params["eps"])
    if position == 1:
        return unbroadcast(ct * standard, args[1])
    n = max(int(np.prod([shape_of(x)[a] for a in axis], dtype=np.int64)), 1)
    mean = np.sum(g, axis=axis, keepdims=True) / n
    along = np.sum(g * standard, axis=axis, keepdims=True) / n
    return unbroadcast(inverse * (g - mean - standard * along), x)


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, *affine = operands
    if not isinstance(x, Batched):
        batch_size = next(a.batch_size for a in affine if isinstance(a, Batched))
        x = Batched(np.broadcast_to(x, (batch_size, *shape_of(x))), shape_of(x))
    down = {**params, "axis": shifted(params["axis"])}
    shared = not any(isinstance(a, Batched) or ndim_of(a) > x.rank for a in affine)
    if shared and not has_lengths(x.sizes):
        return Batched(op(x.data, *affine, **down), x.sizes)
    out = _normalised(op, x, params["axis"], {**down, "weight": False, "bias": False})
    if params["weight"]:
        out = mul_p.rule(mul_p, [out, affine[0]], {})  # type: ignore[misc]
    return add_p.rule(add_p, [out, affine[-1]], {}) if params["bias"] else out  # type: ignore[misc]


def _normalised(op: Op, x: Batched, axes: tuple[int, ...], params: dict[str, Any]) -> Batched:
    if not any(isinstance(x.sizes[axis], Lengths) for axis in axes):
        if not has_lengths(x.sizes):
            return Batched(op(x.data, **params), x.sizes)
        return Batched(quietly(lambda: op(x.data, **params), lambda: op(fill(x, 0), **params)), x.sizes)
    data = as_floating(x.data)
    dtype = dtype_of(data)
    mask: Any = padding_mask(x.sizes, x.data.shape[1:])
    data = _wide(fill_p(data, mask, value=0))
    n = np.maximum(np.broadcast_to(counts(x.sizes, axes), (x.batch_size,)), 1).astype(dtype_of(data))
    n = n.reshape((-1,) + (1,) * x.rank)
    over = params["axis"]
    centered = fill_p(data - np.sum(data, axis=over, keepdims=True) / n, mask, value=0)
    inverse = 1 / np.sqrt(np.sum(centered * centered, axis=over, keepdims=True) / n + params["eps"])
    out = fill_p(centered * inverse, mask, value=0)
    return Batched(out if dtype_of(out) == dtype else out.astype(dtype), x.sizes)


# Operands: x, then weight and bias if the params say that they are given. Params: axis, eps, weight, bias.
layer_norm_p = Op("layer_norm", _layer_norm, rule=_rule, vjp=_vjp, kind="normalisation")
