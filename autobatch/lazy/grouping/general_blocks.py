"""Merges blocks that differ only in which shared arrays they read, or in how many terms they add, into one block.

Examples: a matrix per relation, a bias per kind, nodes with two or three parents. Such blocks have different signatures
and would be launched separately. `find_merges` finds a general block that can stand for each set of them. A term
that a call lacks becomes the identity of the addition, which changes no bit; the shared value that a call reads is
selected by a number, its last operand (`ops.rules.selected_operands`).
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.program import Program, Step, interned, renumbered
from autobatch.core.abstract_eval import Aval, Weak, aval_of, freeze, freeze_params
from autobatch.ops.numpy.contractions import matmul_p
from autobatch.ops.numpy.elementwise import UFUNCS, add_p
from autobatch.ops.rules.selected_operands import chosen_matmul_p, chosen_p

_NUMBER = aval_of((), np.dtype(np.int64), True)
_MULTIPLY = UFUNCS[np.multiply]
_IDENTITY = {add_p: -0.0, _MULTIPLY: 1.0}  # the operand that changes no number, not even the sign of a zero


@dataclasses.dataclass(slots=True, frozen=True)
class _MissingOperand:
    """An operand that a call lacks, replaced by the identity of the op that reads it."""

    op: Any
    aval: Aval

    def value(self) -> np.ndarray:
        return np.full(self.aval.shape, _IDENTITY[self.op], self.aval.dtype)


@dataclasses.dataclass(slots=True)
class Merged:
    """How calls of a signature become calls of the general block.

    Attributes:
        sig: the general block's signature.
        operands: for each operand of the general block, the position of the call's operand; or a constant: the
            identity for a missing term, or the number of the shared value that the call reads.
    """

    sig: Any
    operands: "list[int | np.ndarray | np.int64]"


class _SlotMap(dict[int, Any]):
    """Maps slots of the general program to slots of another program, or to a `_MissingOperand`.

    Attributes:
        same: {result of an addition that the other program lacks: the operand that it then equals}.
    """

    __slots__ = ("same",)

    def __init__(self) -> None:
        self.same: dict[int, int] = {}

    def root(self, slot: int) -> int:
        """Follow `same`: the slot that this one equals in a program that lacks some additions."""
        while slot in self.same:
            slot = self.same[slot]
        return slot


class _Candidate:
    """A block and its shared values; `own`: for each input, True if it differs between examples."""

    __slots__ = ("own", "positions", "program", "shared", "sig")

    def __init__(self, sig: Any) -> None:
        self.sig = sig
        self.program: Program = sig.block.program
        self.shared: Sequence[Any] = sig.block.shared
        self.own = tuple([value is None for value in self.shared])
        own = [slot for slot, is_own in enumerate(self.own) if is_own]
        self.positions = {slot: at for at, slot in enumerate(own)}


def find_merges(used: Iterable[int], table: list[Any]) -> dict[int, Merged]:
    """{signature number: how its calls become calls of a general block}, for each block that has one.

    Args:
        used: the numbers of the signatures that have calls; table: the signatures; new ones are appended.
    """
    kinds: dict[Any, list[int]] = {}
    for index in used:
        sig = table[index]
        is_known = sig.block is not None and sig.any_length is None and not sig.block.program.views
        if is_known and len(sig.avals) <= 8:
            kinds.setdefault(_merge_key(sig), []).append(index)
    out: dict[int, Merged] = {}
    for numbers in kinds.values():
        if len(numbers) > 1:
            key = "merged", *numbers
            first = table[numbers[0]]
            if key not in first.groups:
                first.groups[key] = _merges_of(numbers, table)
            out.update(first.groups[key])
    return out


def _merge_key(sig: Any) -> Any:
    """Key of a block: only blocks with equal keys can be merged."""
    program = sig.block.program
    steps = tuple([step.op for step in program.steps if step.op not in _IDENTITY])
    results = tuple([aval.key for aval in program.results])
    return steps, results, tuple(sig.errors.values())


def _merges_of(numbers: Sequence[int], table: list[Any]) -> dict[int, Merged]:
    programs = {index: table[index].block.program for index in numbers}
    left = sorted(numbers, key=lambda at: (-len(programs[at].steps), -len(programs[at].inputs)))
    out: dict[int, Merged] = {}
    while len(left) > 1:
        general = _Candidate(table[left[0]])
        found = {left[0]: _slot_map(general, general)}
        for index in left[1:]:
            fit = _slot_map(general, _Candidate(table[index]))
            if fit is not None:
                found[index] = fit
        left = [index for index in left if index not in found]
        if len(found) > 1:
            out.update(_generalised(general, {index: fit for index, fit in found.items() if fit is not None}, table))
    return out


def _slot_map(general: _Candidate, other: _Candidate) -> _SlotMap | None:
    """Map the slots of the general block to those of the other; None if it cannot stand for the other. Cached."""
    known, key = general.program.groups, ("fit", other.program, general.own, other.own)
    if key not in known:
        known[key] = _match_blocks(general, other)
    return known[key]


def _match_blocks(general: _Candidate, other: _Candidate) -> _SlotMap | None:
    fit = _SlotMap()
    steps = iter(other.program.steps)
    step = next(steps, None)
    lacking = 0
    for each in general.program.steps:
        if step is not None and each.op is step.op and _match_step(general, other, fit, each, step):
            fit[each.out] = step.out
            step = next(steps, None)
            continue
        found = _optional_term(general, fit, each)
        lacking += 1
        if found is None or lacking > 3:
            return None
        term, kept = found
        fit[term] = _MissingOperand(each.op, general.program.avals[each.out])
        fit.same[each.out] = kept
    pairs = zip(general.program.outputs, other.program.outputs, strict=True)
    return None if step is not None or any(fit.get(fit.root(a)) != b for a, b in pairs) else fit


def _match_step(general: _Candidate, other: _Candidate, fit: _SlotMap, each: Step, step: Step) -> bool:
    """True if two steps match, given the slots mapped so far; if so, their operands are added to the map."""
    if len(each.args) != len(step.args) or general.program.avals[each.out] is not other.program.avals[step.out]:
        return False
    if each.params is not step.params and freeze_params(each.params) != freeze_params(step.params):
        return False
    new: dict[int, int] = {}
    for slot, b in zip(each.args, step.args, strict=True):
        a = fit.root(slot)
        known = fit.get(a, new.get(a))
        if known is None and _same_input(general, other, a, b):
            new[a] = b
        elif known != b:
            return False
    fit.update(new)
    return True


def _same_input(general: _Candidate, other: _Candidate, a: int, b: int) -> bool:
    """True if two slots are inputs with the same `Aval`, both shared or both not; or equal constants."""
    count, others = len(general.own), len(other.own)
    if a >= count:
        if not (a < count + len(general.program.constants) and others <= b < others + len(other.program.constants)):
            return False
        x, y = general.program.constants[a - count], other.program.constants[b - others]
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            return (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        return freeze(x) == freeze(y)
    if b >= others or general.own[a] != other.own[b]:
        return False
    return general.program.avals[a] is other.program.avals[b]


def _optional_term(general: _Candidate, fit: _SlotMap, step: Step) -> tuple[int, int] | None:
    """(operand that a call may lack, operand that is then the result) of an addition; None if there is none."""
    program = general.program
    aval = program.avals[step.out]
    if step.op not in _IDENTITY or step.params or type(aval) is Weak or aval.dtype.kind != "f":
        return None
    for term, kept in (step.args[::-1], step.args):
        is_own = term < len(general.own) and general.own[term]
        is_there = type(fit.get(fit.root(kept))) is not _MissingOperand
        if is_own and is_there and term not in fit and program.avals[term] is program.avals[kept] is aval:
            return term, kept
    return None


def _generalised(general: _Candidate, fits: dict[int, _SlotMap], table: list[Any]) -> dict[int, Merged]:
    """Append the signature of a general block, and map each member to it; {} if there is no such block."""
    read = [slot for slot in range(len(general.own)) if slot in next(iter(fits.values()))]
    shared = [slot for slot in read if not general.own[slot]]
    values = {slot: [table[index].block.shared[fit[slot]] for index, fit in fits.items()] for slot in shared}
    varied = {slot: each for slot, each in values.items() if any(value is not each[0] for value in each)}
    found = _with_selectors(general, read, varied)
    if found is None:
        return {}
    program, given, numbers = found
    sig = general.sig.copied()
    sig.index = len(table)
    sig.block = type(general.sig.block)(program, given, sig.index)
    sig.avals = tuple([program.inputs[slot] for slot in sig.block.own])
    table.append(sig)
    out = {}
    for number, (index, fit) in enumerate(fits.items()):
        positions = _Candidate(table[index]).positions
        own = [fit[slot] for slot in read if general.own[slot]]
        operands: list[Any] = [positions[slot] if type(slot) is int else slot.value() for slot in own]
        out[index] = Merged(sig, operands + [np.int64(which[number]) for which in numbers])
    return out


def _with_selectors(
    general: _Candidate, read: Sequence[int], varied: dict[int, list[Any]]
) -> tuple[Program, list[Any], list[tuple[int, ...]]] | None:
    """The general program, in which an operand selects each shared value that differs between the members.

    Args:
        read: the inputs that it keeps; varied: {input: the value that each member reads}, for those that differ.

    Returns:
        The program, the shared value of each input, and for each selector its value in each member; or None.
    """
    program = general.program
    avals = list(program.avals)
    inputs = [slot for slot in read if slot not in varied]
    given = [general.shared[slot] for slot in inputs]
    number: dict[tuple[int, ...], int] = {}  # {selector values of the members: its slot}
    values: dict[int, tuple[int, list[int]]] = {}
    for slot, each in varied.items():
        distinct = list({id(value): value for value in each}.values())
        is_table = any(getattr(value, "_ab_lookup", None) is not None for value in distinct)
        if is_table or type(avals[slot]) is Weak or avals[slot].scalar:
            return None
        places = {id(value): place for place, value in enumerate(distinct)}
        which = tuple([places[id(value)] for value in each])
        if which not in number:
            number[which] = len(avals)
            inputs.append(len(avals))
            avals.append(_NUMBER)
            given.append(None)
        slots = list(range(len(avals), len(avals) + len(distinct)))
        avals += [avals[slot]] * len(distinct)
        inputs += slots
        given += distinct
        values[slot] = number[which], slots
    steps: list[Step] = []
    rows: dict[int, int] = {}
    for step in program.steps:
        args = list(step.args)
        is_product = step.op is matmul_p and not step.params and avals[args[1]].ndim == 2
        if is_product and args[1] in values and args[0] not in values:
            at, slots = values[args[1]]
            steps.append(Step(chosen_matmul_p, (args[0], at, *slots), {}, step.out))
            continue
        for place, slot in enumerate(args):
            if slot in values and slot not in rows:
                if avals[slot].nbytes > 4096:  # bytes; copying larger values for each call costs more than a launch
                    return None
                at, slots = values[slot]
                rows[slot] = len(avals)
                avals.append(avals[slot])
                steps.append(Step(chosen_p, (at, *slots), {}, rows[slot]))
            args[place] = rows.get(slot, slot)
        steps.append(Step(step.op, args, step.params, step.out))
    count = len(general.own)
    constants = {count + place: value for place, value in enumerate(program.constants)}
    return interned(renumbered(avals, constants, inputs, steps, program.outputs)), given, list(number)
