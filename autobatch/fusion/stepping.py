"""Steps run by their batching rules: one after the other, or one of them inside of compiled code."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import Tape, TapeArray
from autobatch.core.batched import Batched
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.op import Op, is_boxed
from autobatch.errors import UnsupportedError
from autobatch.fusion.program import Program, Step
from autobatch.ops.numpy.indexing import getitem_p, scatter_p
from autobatch.ops.rules.indexing import FULL

__all__ = ["by_rule_p", "rows_of", "run_op", "step_by_step"]


def step_by_step(program: Program, operands: Sequence[Any], fallbacks: Counter[str] | None = None) -> list[Any]:
    """Run a program, each step by its op's rule; see `fusion.launch.launch`."""
    slots: list[Any] = [*operands, *program.constants]
    batch = next((x.batch_size for x in operands if isinstance(x, Batched)), None)
    for step in program.steps:
        slots.append(run_op(step.op, [slots[i] for i in step.args], step.params, program.avals[step.out], fallbacks))
    return [rows_of(slots[slot], batch) for slot in program.outputs]


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


def rows_of(value: Any, batch: int | None) -> Any:
    """An output with its batch axis, also where it turned out the same for all examples."""
    if isinstance(value, Batched):
        return value.data
    if batch is None:
        return value
    value = value if is_boxed(value) else np.asarray(value)
    return np.broadcast_to(value, (batch, *value.shape))


# A step whose rule reads values cannot be traced through; in compiled code it stays what it is.


def _run_rule(*data: Any, step: Step, aval: Any, batched: tuple[bool, ...]) -> Any:
    operands = [Batched(x, x.shape[1:]) if own else x for x, own in zip(data, batched, strict=True)]
    return run_op(step.op, operands, step.params, aval).data


def _rule_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    step, batched = params["step"], params["batched"]
    if step.op is getitem_p and position == 0 and not batched[0] and len(args) == 2:
        first, *rest = step.params["spec"]
        if first[0] in "ia" and all(entry == FULL for entry in rest):
            return scatter_p(ct, args[1], spec=(("a",), *rest), shape=tuple(args[0].shape))
    return rule_vjp_p(ct, *args, position=position, **params)


def _run_rule_vjp(ct: Any, *data: Any, position: int, step: Step, aval: Any, batched: tuple[bool, ...]) -> Any:
    tape = Tape()
    values = list(data)
    values[position] = leaf = tape.leaf(data[position])
    out = _run_rule(*values, step=step, aval=aval, batched=batched)
    found = tape.backward(out, ct, [leaf])[0] if type(out) is TapeArray else None
    if isinstance(found, SparseCotangent):
        found = found.to_dense()
    return np.zeros(data[position].shape, data[position].dtype) if found is None else found


# by_rule(*data, step=, aval=, batched=): a step of a program on the data of its operands; `aval` is that of its result
# for one example, `batched` says which operands have a row for each.
by_rule_p = Op("by_rule", _run_rule, vjp=_rule_vjp, kind="by rule")
rule_vjp_p = Op("by_rule_vjp", _run_rule_vjp, kind="by rule")
