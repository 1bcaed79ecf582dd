"""Reading by index, as ops: `getitem_p`, and its transpose `scatter_p`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.batched import Batched
from autobatch.core.cotangent import Scatter
from autobatch.core.op import Op, is_boxed
from autobatch.ops.rules.indexing import FULL, Spec, build, getitem_rule, is_static, scatter_rule
from autobatch.ops.rules.rows import RowScatter

__all__ = ["getitem_op", "getitem_p", "scatter_p", "zero_d_p"]


def _getitem(x: Any, *operands: Any, spec: Spec) -> Any:
    return np.asarray(x)[build(spec, operands)] if not isinstance(x, np.ndarray) else x[build(spec, operands)]


def _getitem_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position != 0:
        return None
    x, *operands = args
    spec, shape = params["spec"], tuple(shape_of(x))
    if is_boxed(ct) or any(is_boxed(operand) for operand in operands):
        return scatter_p(ct, *operands, spec=spec, shape=shape)
    kinds = {entry[0] for entry in spec}
    if spec and spec[0][0] == "a" and all(entry == FULL for entry in spec[1:]):
        ids = np.asarray(operands[0]).reshape(-1).astype(np.int64)
        ids = np.where(ids < 0, ids + shape[0], ids) if ids.size and ids.min() < 0 else ids
        return RowScatter(ids, ct.reshape((ids.size, *shape[1:])), shape, dtype_of(x), False)
    return Scatter(build(spec, operands), ct, shape, dtype_of(x), unique="a" not in kinds)


def _scatter(values: Any, *operands: Any, spec: Spec, shape: tuple[int, ...]) -> Any:
    out = np.zeros(shape, dtype_of(values))
    np.add.at(out, build(spec, operands), values)
    return out


def _scatter_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    spec = params["spec"]
    return getitem_op(spec)(ct, *args[1:], spec=spec) if position == 0 else None


def _getitem_layout(params: dict[str, Any], crooked: bool, rank: int) -> bool:
    """Index arrays after whole axes, with none between them: NumPy writes what they pick first, and turns it round."""
    spec = params["spec"]
    return crooked or (any(entry[0] in "ab" for entry in spec) and spec[0][0] in "snd")


getitem_p = Op("getitem", _getitem, rule=getitem_rule, vjp=_getitem_vjp, layout=_getitem_layout, kind="index")
getitem_dynamic_p = Op(
    "getitem_dynamic", _getitem, rule=getitem_rule, vjp=_getitem_vjp, layout=_getitem_layout, data_dependent=True,
    kind="index",
)  # fmt: skip
scatter_p = Op("scatter", _scatter, rule=scatter_rule, vjp=_scatter_vjp, kind="index")


# What NumPy leaves a 0-d array where it would give a scalar: `x[..., 0]` of a vector.
zero_d_p = Op(
    "zero_d",
    np.asarray,
    rule=lambda op, operands, params: Batched(operands[0].data, operands[0].sizes),
    vjp=lambda position, ct, out, args, params: ct,
)


def getitem_op(spec: Spec) -> Op:
    """The op of a read: one of its own where operand values decide the result's shape."""
    return getitem_p if is_static(spec) else getitem_dynamic_p
