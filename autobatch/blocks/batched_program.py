"""A program run over many examples: step by step with batching rules, or as flat steps for any number of examples.

For flat steps, the ops' batching rules are traced on arrays of `B` examples, an unknown size.
The backward pass is traced too, as the ordinary reverse walk over a tape of traced values, so the gradient of a shared
matrix is one product over all examples.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import Tape
from autobatch.blocks.program import Program, Step
from autobatch.blocks.tracing import Traced, Tracer
from autobatch.core.abstract_eval import EXAMPLES, SHORTEST, Affine, aval_of
from autobatch.core.batched import Batched, Lengths, Packed, recorded_lengths
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.op import Op, is_boxed
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.op_kinds import words_of
from autobatch.ops.rules.sizes import padded_width

B = Affine({EXAMPLES: 1})


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Flat:
    """The steps of a program on arrays with a leading batch axis, followed by the steps of its gradient.

    Slots: the operands, the cotangents of the outputs, the constants, then one for each step.

    Attributes:
        operands, cotangents: the number of each; the last operands are the lengths (B,) that the program does not know,
            int64, in the order of `Program.lengths`.
        constants: {slot: value}.
        steps: forward in `steps[:forward]`, the rest backward; an attribute may be `Affine` in `B`.
        outputs: the slot of each output; gradients: the slot of each wanted operand's gradient, None if it has none.
        kinds: the `Aval` of each slot.
        batched: which outputs have the batch axis.
        least: of every length that the program does not know; 0 if it knows all.
    """

    operands: int
    cotangents: int
    constants: dict[int, Any]
    steps: list[Step]
    forward: int
    outputs: list[int]
    gradients: list[int | None]
    kinds: list[Any]
    batched: list[bool]
    least: int


def flatten(program: Program, batched: Sequence[bool], wanted: Sequence[int], given: Sequence[bool]) -> Flat | None:
    """The batched form of a program; None if there is none that is valid for every B.

    Where a size of the program is an unknown length, each example has its own, at least 1, and data is padded to the
    longest, at least `SHORTEST`.

    Args:
        batched: which operands have a row for each example.
        wanted: the positions of the operands whose cotangents are asked for.
        given: which outputs have a cotangent; if none has, only the forward steps are made.
    """
    tracer = Tracer()
    kinds: Sequence[Any] = program.inputs
    inputs = [
        tracer.input(aval_of((B, *aval.shape), aval.dtype) if own else aval)
        for aval, own in zip(kinds, batched, strict=True)
    ]
    lengths: dict[Any, Lengths] = {}
    for name in program.lengths:
        longest = Affine({name: 1})
        recorded_lengths(tracer.input(aval_of((B,), np.dtype(np.int64))), longest, lengths)
    own_results = program.varying(batched)
    cts = [
        tracer.input(aval_of((B, *result.shape) if own else result.shape, result.dtype)) if use else None
        for result, own, use in zip(program.results, own_results, given, strict=True)
    ]
    tape = Tape()
    leaves = {position: tape.leaf(inputs[position]) for position in wanted} if any(given) else {}
    slots: list[Any] = []
    for position, (aval, own) in enumerate(zip(kinds, batched, strict=True)):
        box: Any = leaves.get(position, inputs[position])
        slots.append(Batched(box, [lengths.get(size, size) for size in aval.shape]) if own else box)
    slots += program.constants
    try:
        for step in program.steps:
            slots.append(_apply(tracer, step, [slots[i] for i in step.args], program.avals[step.out]))
        data = [x.data if isinstance(x, Batched) else x for x in [slots[slot] for slot in program.outputs]]
        outputs = [_slot(tracer, x) for x in data]
        forward = len(tracer.steps)
        gradients = _walk_back(tracer, tape, data, cts, list(leaves.values())) if leaves else []
    except Exception:  # any error of a rule that reads values, or needs the number of examples
        return None
    finally:
        tape.close()
    if tracer.failed is not None or any(type(value) is Affine for value in tracer.constants.values()):
        return None
    return Flat(
        len(inputs) + len(program.lengths),
        sum(given),
        tracer.constants,
        tracer.steps,
        forward,
        outputs,
        gradients,
        tracer.avals,
        own_results,
        max([SHORTEST, *[1 - size.number for size in lengths]]) if lengths else 0,
    )


def _walk_back(
    tracer: Tracer, tape: Tape, data: Sequence[Any], cts: Sequence[Any], leaves: Sequence[Any]
) -> list[int | None]:
    """Trace the backward pass: the slot of each leaf's cotangent."""
    heads = [
        (x, ct) for x, ct in zip(data, cts, strict=True) if ct is not None and getattr(x, "_ab_tape", None) is tape
    ]
    if not heads:
        return [None] * len(leaves)
    found = tape.backward([x for x, _ in heads], [ct for _, ct in heads], [leaf._ab_index for leaf in leaves])
    dense = [ct.to_dense() if isinstance(ct, SparseCotangent) else ct for ct in found]
    return [None if ct is None else _slot(tracer, ct) for ct in dense]


def _apply(tracer: Tracer, step: Step, operands: Sequence[Any], aval: Any) -> Any:
    """One step by its batching rule, traced.

    Raises:
        Unsupported: the result has another shape or dtype.
    """
    op: Op = step.op
    if not any(isinstance(x, Batched) for x in operands):
        return op(*operands, **step.params)
    if op.rule is None:
        tracer.fail(f"{op.name} has no rule")
    out = op.rule(op, operands, step.params)
    if tuple(out.data.shape) != (B, *aval.shape) or out.data.dtype != aval.dtype:
        tracer.fail(f"{op.name} by its rule is another array")
    if tuple(map(padded_width, out.sizes)) != aval.shape:
        tracer.fail(f"{op.name} by its rule is of other lengths")
    return Batched(out.data, out.sizes)


def _slot(tracer: Tracer, x: Any) -> int:
    x = x._ab_value if hasattr(x, "_ab_tape") else x
    return x.slot if type(x) is Traced else tracer.constant(x)


def step_by_step(program: Program, operands: Sequence[Any], fallbacks: Counter[str] | None = None) -> list[Any]:
    """Run a program, each step by its op's rule; see `blocks.launch.launch`."""
    slots: list[Any] = [*operands, *program.constants]
    batch = next((x.batch_size for x in operands if isinstance(x, Batched)), None)
    for step in program.steps:
        slots.append(run_op(step.op, [slots[i] for i in step.args], step.params, program.avals[step.out], fallbacks))
    return [rows_of(slots[slot], batch) for slot in program.outputs]


def run_op(
    op: Op, operands: Sequence[Any], params: dict[str, Any], aval: Any, fallbacks: Counter[str] | None = None
) -> Any:
    """Run one op for a group: by its batching rule, or example by example if the rule declines.

    Returns:
        `Batched` rows; a plain value if no operand is `Batched` or `Packed`.
    """
    batch = next((x.batch_size for x in operands if isinstance(x, Batched | Packed)), None)
    run = words_of(op, operands)
    if batch is None:
        return run(op, *operands, **params)
    if op.rule is None:
        why = "no batching rule"
    else:
        try:
            out = run(op.rule, op, operands, params)
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
    if isinstance(operand, Packed):
        return operand.values[operand.offsets[index] : operand.offsets[index + 1]]
    if not isinstance(operand, Batched):
        return operand
    value = operand.data[index]
    return value.item() if operand.scalar is not None and hasattr(value, "item") else value


def rows_of(value: Any, batch: int | None) -> Any:
    """An output with its batch axis; a value that is the same for all examples is broadcast."""
    if isinstance(value, Batched):
        return value.data
    if batch is None:
        return value
    value = value if is_boxed(value) else np.asarray(value)
    return np.broadcast_to(value, (batch, *value.shape))
