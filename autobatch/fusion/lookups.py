"""A program whose first steps are look-ups, as those look-ups and the rest, which takes their rows as inputs."""

from collections.abc import Sequence

from autobatch.fusion.program import Program, Step
from autobatch.tables.lookup import lookup_p

__all__ = ["Apart", "lookups_apart"]


class Apart:
    """A program in two parts.

    Attributes:
        lookups: the steps that come first; they read inputs of the program only.
        rest: the other steps. Its inputs are those of the program that they read, then the rows of each look-up.
        kept: the slots of the former.
    """

    __slots__ = ("kept", "lookups", "rest")

    def __init__(self, lookups: Sequence[Step], rest: Program, kept: Sequence[int]) -> None:
        self.lookups = tuple(lookups)
        self.rest = rest
        self.kept = tuple(kept)


def lookups_apart(program: Program) -> Apart | None:
    """The two parts of a program; None if it has no look-ups of its inputs, or nothing else."""
    if program.apart is False:
        program.apart = _split(program)
    apart: Apart | None = program.apart
    return apart


def _split(program: Program) -> Apart | None:
    count = len(program.inputs)
    lookups = [step for step in program.steps if step.op is lookup_p and max(step.args) < count]
    others = [step for step in program.steps if not any(step is each for each in lookups)]
    if not lookups or not others:
        return None
    read = {slot for step in others for slot in step.args} | set(program.outputs)
    kept = [slot for slot in range(count) if slot in read]
    constants = range(count, count + len(program.constants))
    order = [*kept, *(step.out for step in lookups), *constants, *(step.out for step in others)]
    new = {slot: place for place, slot in enumerate(order)}
    steps = [Step(step.op, [new[slot] for slot in step.args], step.params, new[step.out]) for step in others]
    avals = [program.avals[slot] for slot in order]
    inputs = avals[: len(kept) + len(lookups)]
    rest = Program(inputs, program.constants, steps, [new[slot] for slot in program.outputs], avals)
    return Apart(lookups, rest, kept)
