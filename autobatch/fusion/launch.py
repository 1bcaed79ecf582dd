"""Launching a program: all its steps for a group of examples."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched
from autobatch.core.op import Op, is_boxed
from autobatch.errors import UnsupportedError
from autobatch.fusion.program import Program

__all__ = ["launch", "run_op"]


def launch(program: Program, operands: Sequence[Any], fallbacks: Counter[str] | None = None) -> list[Any]:
    """Run a program for B examples.

    Args:
        operands: for each input `Batched` with static sizes, or one value for all examples; data plain or of an
            interpreter below (a tape).
        fallbacks: counts the steps that ran as a loop over the examples, by their reason.

    Returns:
        For each output its rows (B, ...); one value without a batch axis if no operand is `Batched`.
    """
    slots: list[Any] = [*operands, *program.constants]
    batch = next((x.batch_size for x in operands if isinstance(x, Batched)), None)
    for step in program.steps:
        slots.append(run_op(step.op, [slots[i] for i in step.args], step.params, program.avals[step.out], fallbacks))
    return [_rows(slots[slot], batch) for slot in program.outputs]


def run_op(
    op: Op, operands: Sequence[Any], params: dict[str, Any], aval: Any, fallbacks: Counter[str] | None = None
) -> Any:
    """One op for a group: by its batching rule, or where that declines one example after the other.

    Returns:
        `Batched` rows; a plain value if no operand is `Batched`.
    """
    batch = next((x.batch_size for x in operands if isinstance(x, Batched)), None)
    if batch is None:
        return op(*operands, **params)
    if op.rule is None:
        why = "no batching rule"
    else:
        try:
            out = op.rule(op, operands, params)
        except UnsupportedError as error:
            why = str(error)
        else:
            if tuple(out.data.shape) == (batch, *aval.shape) and out.data.dtype == aval.dtype:
                return Batched(out.data, aval.shape)
            why = f"{out.data.shape} {out.data.dtype}, expected {aval!r}"
    if fallbacks is not None:
        fallbacks[f"{op.name}: {why}"] += 1
    if not batch:
        return Batched(np.zeros((0, *aval.shape), aval.dtype), aval.shape)
    return Batched(np.stack([op(*[_lane(x, i) for x in operands], **params) for i in range(batch)]), aval.shape)


def _lane(operand: Any, index: int) -> Any:
    if not isinstance(operand, Batched):
        return operand
    value = operand.data[index]
    return value.item() if operand.scalar is not None and hasattr(value, "item") else value


def _rows(value: Any, batch: int | None) -> Any:
    """An output with its batch axis, also where it turned out the same for all examples."""
    if isinstance(value, Batched):
        return value.data
    if batch is None:
        return value
    value = value if is_boxed(value) else np.asarray(value)
    return np.broadcast_to(value, (batch, *value.shape))
