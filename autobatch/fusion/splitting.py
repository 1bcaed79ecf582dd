"""Splitting a program by what its values depend on, so that a loop computes less in each step."""

from collections.abc import Collection, Sequence
from typing import Any

from autobatch.core.abstract_eval import abstract_eval
from autobatch.fusion.program import Program, Step
from autobatch.ops.numpy.contractions import blocked_matmul_p, column_blocks_p, has_blocks, matmul_p

__all__ = ["Split", "split"]


class Split:
    """The parts of a program: what runs once, what runs for the items of many steps at once, and the rest.

    Attributes:
        once: from fixed inputs alone, or None. Its operands are the inputs `once_inputs`.
        ahead: from items and fixed values, or None where that holds no product. Its operands are the inputs
            `ahead_inputs`, then the results of `once`.
        rest: what is left of each step. Its operands are the inputs `rest_inputs`, the results of `once`, then those of
            `ahead`; its outputs are the program's.
    """

    __slots__ = ("ahead", "ahead_inputs", "once", "once_inputs", "rest", "rest_inputs")

    once: Program | None
    ahead: Program | None
    rest: Program
    once_inputs: tuple[int, ...]
    ahead_inputs: tuple[int, ...]
    rest_inputs: tuple[int, ...]


def split(program: Program, items: Collection[int], fixed: Collection[int]) -> Split | None:
    """What of a program can be computed before a loop, or None where that is nothing.

    Args:
        items: the inputs that are the loop's own items, known for all of its steps.
        fixed: the inputs that are one value for all examples and stay that value.
    """
    count = len(program.inputs)
    first_step = count + len(program.constants)
    fixed_slots = {*fixed, *range(count, first_step)}
    known = {*fixed_slots, *items}
    early: list[Step] = []
    once: list[Step] = []
    late: list[Step] = []
    for step in program.steps:
        if fixed_slots.issuperset(step.args):
            once.append(step)
            fixed_slots.add(step.out)
            known.add(step.out)
        elif known.issuperset(step.args):
            early.append(step)
            known.add(step.out)
        else:
            late.append(step)
    avals = list(program.avals)
    if not any(step.op.kind == "contraction" for step in early):
        early.clear()  # what is left of the step does it on the way
        known = fixed_slots
        late = [step for step in program.steps if step.out not in fixed_slots]
    late = _with_blocks(late, once, fixed_slots, avals)
    if not (early or once):
        return None
    wanted = {slot for step in late for slot in step.args} | set(program.outputs)
    from_early = [step.out for step in early if step.out in wanted]
    read_early = {slot for step in early for slot in step.args}
    from_once = [step.out for step in once if step.out in wanted | read_early]
    out = Split()
    out.once_inputs = _read(once, range(count))
    out.once = _part(program, avals, out.once_inputs, once, from_once) if from_once else None
    out.ahead_inputs = _read(early, range(count))
    out.ahead = _part(program, avals, (*out.ahead_inputs, *from_once), early, from_early) if early else None
    out.rest_inputs = tuple(slot for slot in range(count) if slot in wanted)
    out.rest = _part(program, avals, (*out.rest_inputs, *from_once, *from_early), late, program.outputs)
    return out


def _read(steps: Sequence[Step], slots: Collection[int]) -> tuple[int, ...]:
    used = {slot for step in steps for slot in step.args}
    return tuple(slot for slot in slots if slot in used)


def _with_blocks(late: Sequence[Step], once: list[Step], fixed: set[int], avals: list[Any]) -> list[Step]:
    """The steps, their products with matrices that stay the same by blocks of columns, which are made once."""
    blocks: dict[int, int] = {}
    out = []
    for step in late:
        if step.op is matmul_p and not step.params and step.args[1] in fixed and avals[step.args[0]].ndim == 1:
            x, y = step.args
            matrix = avals[y]
            if avals[x].dtype == matrix.dtype and has_blocks(matrix.shape, matrix.dtype):
                if y not in blocks:
                    aval = abstract_eval(column_blocks_p, {}, (), [matrix])
                    assert aval is not None
                    blocks[y] = len(avals)
                    once.append(Step(column_blocks_p, (y,), {}, len(avals)))
                    fixed.add(len(avals))
                    avals.append(aval)
                step = Step(blocked_matmul_p, (x, y, blocks[y]), {}, step.out)
        out.append(step)
    return out


def _part(
    program: Program, avals: Sequence[Any], inputs: Sequence[int], steps: Sequence[Step], outputs: Sequence[int]
) -> Program:
    """Steps of a program as one of their own."""
    count = len(program.inputs)
    constants = [slot for slot in _read(steps, range(count, count + len(program.constants))) if slot not in inputs]
    order = [*inputs, *constants, *(step.out for step in steps)]
    number = {slot: place for place, slot in enumerate(order)}
    return Program(
        [avals[slot] for slot in inputs],
        [program.constants[slot - count] for slot in constants],
        [Step(step.op, [number[slot] for slot in step.args], step.params, number[step.out]) for step in steps],
        [number[slot] for slot in outputs],
        [avals[slot] for slot in order],
    )
