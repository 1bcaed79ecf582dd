"""What compiled code leaves of a gradient for later: the factors of a product, the rows of a table that were read.

A weight that many launches read so gets the rows of all of them in one tall product, and a table its rows only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.cotangent import Product
from autobatch.fusion.code import Code
from autobatch.fusion.polymorphic import Affine
from autobatch.fusion.program import Step
from autobatch.ops.numpy.contractions import matmul_p
from autobatch.ops.numpy.elementwise import UFUNCS
from autobatch.ops.numpy.indexing import scatter_p
from autobatch.ops.numpy.shaping import transpose_p
from autobatch.ops.rules.indexing import FULL
from autobatch.ops.rules.rows import RowScatter

__all__ = ["Part", "contributions", "take_parts"]

_FEW_ROWS = 512  # products of fewer rows are joined with others of the same matrix
_add: Any = UFUNCS[np.add]


class Part:
    """One summand of a gradient, and how many outputs of the code it is made of.

    Attributes:
        kind: "dense", one output; "product" of two, `left.T @ right`; "rows" of two, ids and what is added there.
        shape: of the whole array, for "rows".
    """

    __slots__ = ("kind", "shape")

    def __init__(self, kind: str, shape: tuple[int, ...] = ()) -> None:
        self.kind = kind
        self.shape = shape


def take_parts(code: Code) -> list[list[Part]]:
    """Let the outputs of backward code be the parts of each gradient, one after the other; those parts."""
    made = {step.out: step for step in code.steps}
    outputs: list[int | None] = []
    out = []
    for slot in code.outputs:
        parts: list[Part] = []
        if slot is not None:
            for part, slots in _parts(code, made, slot):
                parts.append(part)
                outputs += slots
        out.append(parts)
    code.outputs = outputs
    code.drop_dead()
    return out


def _parts(code: Code, made: dict[int, Step], slot: int) -> list[tuple[Part, list[int]]]:
    step = made.get(slot)
    whole = [(Part("dense"), [slot])]
    if step is None:
        return whole
    if (
        step.op is _add
        and not step.params
        and all(code.kinds[arg].shape == code.kinds[slot].shape for arg in step.args)
    ):
        left, right = (_parts(code, made, arg) for arg in step.args)
        return whole if all(part.kind == "dense" for part, _ in (*left, *right)) else [*left, *right]
    if step.op is matmul_p and not step.params:
        left_step = made.get(step.args[0])
        if left_step is None or left_step.op is not transpose_p or left_step.params["axes"] != (1, 0):
            return whole
        x, y = left_step.args[0], step.args[1]
        if len(code.kinds[y].shape) == 2 and code.kinds[x].dtype == code.kinds[y].dtype:
            return [(Part("product"), [x, y])] if isinstance(code.kinds[x].shape[0], Affine) else whole
    if step.op is scatter_p and len(step.args) == 2:
        first, *rest = step.params["spec"]
        shape = code.kinds[slot].shape
        if first == ("a",) and all(entry == FULL for entry in rest) and all(type(n) is int for n in shape):
            return [(Part("rows", shape), [step.args[1], step.args[0]])]
    return whole


def contributions(parts: Sequence[Sequence[Part]], values: Sequence[Any]) -> list[Any]:
    """What is added to the cotangent of each operand: None, one contribution, or a list of several."""
    found = iter(values)
    out: list[Any] = []
    for own in parts:
        made = [_contribution(part, found) for part in own]
        out.append(made[0] if len(made) == 1 else made or None)
    return out


def _contribution(part: Part, values: Any) -> Any:
    if part.kind == "dense":
        return next(values)
    if part.kind == "product":
        left, right = next(values), next(values)
        return Product(left, right) if left.shape[0] < _FEW_ROWS else np.matmul(left.T, right)
    ids, rows = next(values), next(values)
    ids = np.asarray(ids).reshape(-1).astype(np.int64)
    if ids.size and ids.min() < 0:
        ids = np.where(ids < 0, ids + part.shape[0], ids)
    return RowScatter(ids, rows.reshape((ids.size, *part.shape[1:])), part.shape, rows.dtype, False)
