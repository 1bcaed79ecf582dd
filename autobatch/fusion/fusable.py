"""Which steps of batched code a kernel can do, and with which function of `kernels.vector_math`."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.op import Op
from autobatch.ops.nn.activations import gelu_p, normal_cdf_p, relu_p, sigmoid_p
from autobatch.ops.numpy.elementwise import UFUNCS
from autobatch.ops.numpy.selecting import where_p

__all__ = ["Rule", "rule_of"]


class Rule:
    """How one op is written in a kernel.

    Attributes:
        text: from the names of the operands, and that of the lanes, an expression.
        masks: the positions of operands that are masks.
        to_mask: the result is a mask.
        exact: it is cheap, and equal to NumPy's to the bit.
        keeps: an operand that is not finite makes the result not finite.
        bound: from bounds of the operands' absolute values, one of the result's.
        quiet: NumPy never complains of it, whatever the operands.
    """

    __slots__ = ("bound", "exact", "keeps", "masks", "quiet", "text", "to_mask")

    def __init__(
        self,
        text: Callable[..., str],
        *,
        masks: tuple[int, ...] = (),
        to_mask: bool = False,
        exact: bool = True,
        keeps: bool = True,
        quiet: bool = False,
        bound: Callable[..., float] = lambda *_: math.inf,
    ) -> None:
        self.text = text
        self.masks = masks
        self.to_mask = to_mask
        self.exact = exact
        self.keeps = keeps
        self.quiet = quiet
        self.bound = bound


def _call(name: str, **more: Any) -> Rule:
    return Rule(lambda lanes, *args: f"{name}({', '.join(args)})", **more)


def _flipped(name: str, **more: Any) -> Rule:
    return Rule(lambda lanes, x, y: f"{name}({y}, {x})", **more)


_MASK = {"to_mask": True, "keeps": False, "quiet": True}
_BOTH: dict[str, Any] = {"to_mask": True, "keeps": False, "quiet": True, "masks": (0, 1)}

_RULES: dict[Any, Rule] = {
    np.add: _call("add", bound=lambda x, y: x + y),
    np.subtract: _call("subtract", bound=lambda x, y: x + y),
    np.multiply: _call("multiply", bound=lambda x, y: x * y if x < math.inf and y < math.inf else math.inf),
    np.divide: _call("divide", keeps=False),
    np.negative: _call("negative", quiet=True, bound=lambda x: x),
    np.positive: Rule(lambda lanes, x: x, quiet=True, bound=lambda x: x),
    np.absolute: _call("absolute", quiet=True, bound=lambda x: x),
    np.square: Rule(lambda lanes, x: f"multiply({x}, {x})", bound=lambda x: x * x),
    np.reciprocal: Rule(lambda lanes, x: f"divide(fill({lanes}, 1.0), {x})", keeps=False),
    np.sqrt: _call("sqrt", bound=lambda x: math.inf),
    np.maximum: _call("greater", keeps=False, quiet=True, bound=max),
    np.minimum: _call("lesser", keeps=False, quiet=True, bound=max),
    np.less: _call("less", **_MASK),
    np.less_equal: _call("less_equal", **_MASK),
    np.greater: _flipped("less", **_MASK),
    np.greater_equal: _flipped("less_equal", **_MASK),
    np.equal: _call("equal", **_MASK),
    np.not_equal: _call("not_equal", **_MASK),
    np.logical_and: _call("logical_and", **_BOTH),
    np.logical_or: _call("logical_or", **_BOTH),
    np.bitwise_and: _call("logical_and", **_BOTH),
    np.bitwise_or: _call("logical_or", **_BOTH),
    np.logical_not: _call("inverse", to_mask=True, keeps=False, quiet=True, masks=(0,)),
    np.invert: _call("inverse", to_mask=True, keeps=False, quiet=True, masks=(0,)),
    np.exp: _call("exp", exact=False, keeps=False),
    np.tanh: _call("tanh", exact=False, keeps=False, quiet=True, bound=lambda x: 1.0),
}
_OPS: dict[Op, Rule] = {
    **{op: _RULES[ufunc] for ufunc, op in UFUNCS.items() if ufunc in _RULES},  # type: ignore[misc]
    where_p: _call("choose", masks=(0,), keeps=False, quiet=True, bound=lambda mask, x, y: max(x, y)),
    sigmoid_p: _call("sigmoid", exact=False, keeps=False, quiet=True, bound=lambda x: 1.0),
    normal_cdf_p: _call("normal_cdf", exact=False, keeps=False, quiet=True, bound=lambda x: 1.0),
    gelu_p: Rule(lambda lanes, x: f"multiply({x}, normal_cdf({x}))", exact=False, bound=lambda x: x),
    relu_p: Rule(lambda lanes, x: f"greater({x}, fill({lanes}, 0.0))", keeps=False, quiet=True, bound=lambda x: x),
}


def rule_of(op: Op, params: dict[str, Any], dtype: np.dtype) -> Rule | None:
    """The rule of an op computed in `dtype`; None if a kernel cannot do it."""
    rule = _OPS.get(op)
    if rule is None or params or (not rule.exact and dtype != np.float32):
        return None
    return rule
