"""Straight-line batched code on its way from a `Flat` to a Python function: forward, or backward."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from autobatch.core.op import Op
from autobatch.fusion.polymorphic import Flat, Kind
from autobatch.fusion.program import Step
from autobatch.ops.numpy.contractions import einsum_p, matmul_p
from autobatch.ops.numpy.elementwise import UFUNCS
from autobatch.ops.numpy.indexing import scatter_p
from autobatch.ops.numpy.shaping import reshape_p, transpose_p
from autobatch.ops.rules.indexing import FULL

__all__ = ["Code", "assemble_p", "backward_code", "forward_code", "is_covered"]

_add: Any = UFUNCS[np.add]


class Code:
    """Steps over slots that carry the batch axis themselves.

    Attributes:
        inputs: the slots of its arguments.
        constants: {slot: value}.
        steps: in the order they run; no step writes into what another made.
        outputs: the slots of its results; None where there is none.
        kinds: {slot: Kind}.
    """

    __slots__ = ("constants", "inputs", "kinds", "outputs", "steps")

    def __init__(
        self,
        inputs: Sequence[int],
        constants: dict[int, Any],
        steps: Sequence[Step],
        outputs: Sequence[int | None],
        kinds: dict[int, Kind],
    ) -> None:
        self.inputs = list(inputs)
        self.constants = constants
        self.steps = list(steps)
        self.outputs = list(outputs)
        self.kinds = kinds

    def new_slot(self, kind: Kind) -> int:
        slot = len(self.kinds)
        self.kinds[slot] = kind
        return slot

    def uses(self) -> dict[int, int]:
        """How often each slot is read, outputs included."""
        out: dict[int, int] = dict.fromkeys(self.kinds, 0)
        for step in self.steps:
            for slot in step.args:
                out[slot] += 1
        for result in self.outputs:
            if result is not None:
                out[result] += 1
        return out

    def drop_dead(self) -> None:
        """Remove the steps that lead to no output."""
        needed = {slot for slot in self.outputs if slot is not None}
        kept = []
        for step in reversed(self.steps):
            if step.out in needed:
                needed.update(step.args)
                kept.append(step)
        self.steps = kept[::-1]

    def rename(self, names: dict[int, int]) -> None:
        """Read other slots in the place of these."""
        if not names:
            return

        def final(slot: int) -> int:
            while slot in names:
                slot = names[slot]
            return slot

        self.steps = [Step(s.op, [final(slot) for slot in s.args], s.params, s.out) for s in self.steps]
        self.outputs = [None if slot is None else final(slot) for slot in self.outputs]


def forward_code(flat: Flat) -> tuple[Code, list[int]]:
    """The code of the outputs, followed by what backward reads of the way there; and the slots of the latter."""
    steps = flat.steps[: flat.forward]
    made = {step.out for step in steps}
    back = Code([], {}, flat.steps[flat.forward :], flat.gradients, dict(enumerate(flat.kinds)))
    back.drop_dead()
    read = {slot for step in back.steps for slot in step.args} | {slot for slot in flat.gradients if slot is not None}
    saved = sorted(read & made)
    code = Code(range(flat.operands), flat.constants, steps, [*flat.outputs, *saved], dict(enumerate(flat.kinds)))
    return _simplified(code), saved


def backward_code(flat: Flat, saved: Sequence[int]) -> Code:
    """The code of the gradients, from the operands, the cotangents of the outputs and what was saved."""
    inputs = [*range(flat.operands + flat.cotangents), *saved]
    kinds = dict(enumerate(flat.kinds))
    return _simplified(Code(inputs, flat.constants, flat.steps[flat.forward :], flat.gradients, kinds))


def _simplified(code: Code) -> Code:
    code.drop_dead()
    names = {}
    for step in code.steps:
        if step.op is reshape_p and code.kinds[step.args[0]].shape == code.kinds[step.out].shape:
            names[step.out] = step.args[0]
    code.rename(names)
    code.drop_dead()
    _multiply(code)
    _assemble(code)
    code.drop_dead()
    return code


def _multiply(code: Code) -> None:
    """Contractions of two matrices are products, whose result lies row by row however its operands lie."""
    steps = []
    for step in code.steps:
        pair = _factors(code, step) if step.op is einsum_p else None
        if pair is None:
            steps.append(step)
            continue
        slots = []
        for slot, turned in pair:
            if turned:
                kind = code.kinds[slot]
                view = code.new_slot(Kind(kind.shape[::-1], kind.dtype, False, None))
                steps.append(Step(transpose_p, [slot], {"axes": (1, 0)}, view))
                slot = view
            slots.append(slot)
        steps.append(Step(matmul_p, slots, {}, step.out))
    code.steps = steps


def _factors(code: Code, step: Step) -> list[tuple[int, bool]] | None:
    """The factors of a contraction, and whether each is to be transposed; None if it is no product."""
    inputs, out = step.params["spec"].split("->")
    letters = inputs.split(",")
    kinds = [code.kinds[slot] for slot in step.args]
    if len(letters) != 2 or len(out) != 2 or any(len(set(own)) != 2 for own in (*letters, out)):
        return None
    if kinds[0].dtype != kinds[1].dtype or kinds[0].dtype.kind != "f" or any(len(kind.shape) != 2 for kind in kinds):
        return None
    common = set(letters[0]) & set(letters[1])
    if len(common) != 1 or common & set(out):
        return None
    summed = common.pop()
    sizes = {kind.shape[own.index(summed)] for kind, own in zip(kinds, letters, strict=True)}
    left = 0 if out[0] in letters[0] else 1
    pair = [(left, letters[left][0] == summed), (1 - left, letters[1 - left][1] == summed)]
    return [(step.args[which], turned) for which, turned in pair] if len(sizes) == 1 else None


def _place(step: Step, kinds: dict[int, Kind]) -> tuple[int, int, int] | None:
    """(axis, start, stop) of a scatter into one range of one axis behind the batch axis."""
    spec, shape = step.params["spec"], step.params["shape"]
    partial = [axis for axis, entry in enumerate(spec) if entry != FULL]
    if len(step.args) != 1 or len(partial) != 1 or partial[0] == 0 or len(spec) != len(shape):
        return None
    axis = partial[0]
    entry = spec[axis]
    if entry[0] != "s" or type(shape[axis]) is not int or kinds[step.args[0]].dtype != kinds[step.out].dtype:
        return None
    start, stop, stride = slice(*entry[1:]).indices(shape[axis])
    return (axis, start, max(start, stop)) if stride == 1 else None


def _assemble(code: Code) -> None:
    """Sums of arrays that are each zero but for one range of one axis become one array, written range by range."""
    uses = code.uses()
    parts: dict[int, list[tuple[int, int, int, int]]] = {}  # slot of a sum: (axis, start, stop, values) of its parts
    steps = []
    for step in code.steps:
        found = None
        if step.op is scatter_p:
            place = _place(step, code.kinds)
            found = None if place is None else [(*place, step.args[0])]
        elif step.op is _add and not step.params and all(slot in parts and uses[slot] == 1 for slot in step.args):
            found = _disjoint([*parts[step.args[0]], *parts[step.args[1]]])
        if found is not None:
            parts[step.out] = found
            places = tuple(part[:3] for part in found)
            params = {"places": places, "shape": code.kinds[step.out].shape}
            step = Step(assemble_p, [part[3] for part in found], params, step.out)
        steps.append(step)
    code.steps = steps


def _disjoint(parts: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]] | None:
    parts = sorted(parts)
    if len({part[0] for part in parts}) > 1:
        return None
    return None if any(left[2] > right[1] for left, right in pairwise(parts)) else parts


def is_covered(places: Sequence[tuple[int, int, int]], shape: Sequence[Any]) -> bool:
    """Whether ranges, in order and disjoint, leave nothing of their axis out."""
    at = 0
    for _, start, stop in places:
        if start != at:
            return False
        at = stop
    return bool(at == shape[places[0][0]])


def _assembled(*values: Any, places: Any, shape: Any) -> Any:
    out = (np.empty if is_covered(places, shape) else np.zeros)(shape, values[0].dtype)
    for value, (axis, start, stop) in zip(values, places, strict=True):
        out[(slice(None),) * axis + (slice(start, stop),)] = value
    return out


# assemble(*values, places=, shape=): `values[i]` at range `places[i]` = (axis, start, stop) of an array of zeros. Only
# the batched code of a program has it, so no array of ours ever meets it.
assemble_p = Op("assemble", _assembled, kind="join")
