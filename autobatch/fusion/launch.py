"""Launching a program: all its steps for a group of examples.

On plain arrays, and on those of a tape, the program's compiled form runs: without dispatch, and on the tape as one
node whose cotangents are computed together. Everything else runs step by step through the ops' batching rules.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import Tape, TapeArray
from autobatch.core.batched import Batched
from autobatch.core.op import Op, is_boxed
from autobatch.errors import UnsupportedError
from autobatch.fusion.forms import Form, form_of
from autobatch.fusion.program import Program

__all__ = ["launch", "run_op"]

_PLAIN = frozenset((np.ndarray, int, float, bool, complex))


def launch(program: Program, operands: Sequence[Any], fallbacks: Counter[str] | None = None) -> list[Any]:
    """Run a program for B examples.

    Args:
        operands: for each input `Batched` with static sizes, or one value for all examples; data plain or of an
            interpreter below (a tape).
        fallbacks: counts the steps that ran as a loop over the examples, by their reason.

    Returns:
        For each output its rows (B, ...); one value without a batch axis if no operand is `Batched`.

    >>> from autobatch.core.foresee import aval_of
    >>> from autobatch.fusion.tracing import trace
    >>> vector = aval_of((2,), np.dtype(np.float64))
    >>> program = trace(lambda x, y: x * y + 1.0, [vector, vector])
    >>> launch(program, [Batched(np.array([[1.0, 2.0], [3.0, 4.0]]), (2,)), np.array([1.0, 10.0])])
    [array([[ 2., 21.],
           [ 4., 41.]])]
    """
    data, batched, wanted = [], [], []
    simple = True
    for position, operand in enumerate(operands):
        own = type(operand) is Batched
        if own:
            if operand.scalar is not None:
                simple = False
            operand = operand.data
        if type(operand) is TapeArray:
            wanted.append(position)
            simple = simple and _on_tape(operand)
        elif type(operand) not in _PLAIN and not isinstance(operand, np.generic):
            simple = False
        data.append(operand)
        batched.append(own)
    if simple and True in batched:
        form = form_of(program, tuple(batched), tuple(wanted))
        if form is not None:
            results = block_p(*data, call=_Call(program, form)) if wanted else form.forward(data)
            if False not in form.batched:
                return list(results)
            batch = operands[batched.index(True)].batch_size
            return [x if own else _rows(x, batch) for x, own in zip(results, form.batched, strict=True)]
    return _step_by_step(program, operands, fallbacks)


def _on_tape(x: TapeArray) -> bool:
    """Whether a value is a plain array on one tape or several."""
    while type(x) is TapeArray:
        x = x.value
    return type(x) is np.ndarray


def _step_by_step(program: Program, operands: Sequence[Any], fallbacks: Counter[str] | None) -> list[Any]:
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


class _Call:
    """One launch on a tape: the program, its compiled form, and what forward left for backward."""

    __slots__ = ("form", "program", "saved")

    def __init__(self, program: Program, form: Form) -> None:
        self.program = program
        self.form = form
        self.saved: Sequence[Any] = ()


def _run(*data: Any, call: _Call) -> tuple[Any, ...]:
    form = call.form
    results = form.forward(data)
    call.saved = results[form.outputs :]
    return tuple([np.asarray(out) for out in results[: form.outputs]])


def _joint(
    wanted: Sequence[int], cts: Sequence[Any], outs: Sequence[Any], args: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """The cotangents of a launch, together; on an interpreter below by the ordinary walk over its steps."""
    call: _Call = params["call"]
    form = call.form
    if any(map(is_boxed, args)) or any(map(is_boxed, cts)):
        return _joint_by_steps(wanted, cts, args, call)
    given = [
        np.zeros(out.shape, out.dtype) if ct is None else ct
        for ct, out in zip(cts, outs, strict=True)
        if out.dtype.kind in "fc"
    ]
    found = dict(zip(form.wanted, form.backward(args, given, call.saved), strict=True))
    return [found[position] for position in wanted]


def _joint_by_steps(wanted: Sequence[int], cts: Sequence[Any], args: Sequence[Any], call: _Call) -> list[Any]:
    tape = Tape()
    boxes = list(args)
    for position in wanted:
        boxes[position] = tape.leaf(args[position])
    kinds: Sequence[Any] = call.program.inputs
    operands = [Batched(x, k.shape) if own else x for x, k, own in zip(boxes, kinds, call.form.flags, strict=True)]
    results = _step_by_step(call.program, operands, None)
    heads = [(x, ct) for x, ct in zip(results, cts, strict=True) if ct is not None and type(x) is TapeArray]
    heads = [(x, ct) for x, ct in heads if x.tape is tape]
    if not heads:
        return [None] * len(wanted)
    leaves = [boxes[position] for position in wanted]
    return tape.backward_from([x for x, _ in heads], [ct for _, ct in heads], leaves)


# A launch on a tape: `block(*data, call=)`, one array for each output.
block_p = Op("block", _run, joint=_joint, kind="block")
