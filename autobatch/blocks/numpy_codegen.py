"""Turns the flat steps of a `Flat` into one Python function of NumPy calls, for the forward or the backward pass.

Backward code does not multiply the factors of some matrix products yet: if many launches read one weight, the rows of
all of them go into a single tall product.
"""

import dataclasses
import itertools
import linecache
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from autobatch.blocks.batched_program import Flat
from autobatch.blocks.program import Step
from autobatch.core.abstract_eval import EXAMPLES, Affine, Aval, aval_of, unknown_lengths
from autobatch.core.cotangent import Product
from autobatch.core.diagnostics import of_scalars
from autobatch.core.op import Op
from autobatch.ops.numpy.contractions import einsum_p, matmul_p
from autobatch.ops.numpy.elementwise import UFUNCS
from autobatch.ops.numpy.indexing import getitem_p, scatter_p
from autobatch.ops.numpy.shaping import broadcast_to_p, transpose_p
from autobatch.ops.rules.index_rule import FULL, build
from autobatch.ops.rules.op_kinds import words_of
from autobatch.ops.rules.sizes import reshape_p

_add: Any = UFUNCS[np.add]


@dataclasses.dataclass(slots=True, eq=False)
class Code:
    """Straight-line code over slots that include the batch axis.

    Attributes:
        inputs: the slots of the arguments.
        constants: {slot: value}.
        steps: in execution order; no step writes into another step's result.
        outputs: the slots of the results; None for a missing result.
        kinds: {slot: Aval}.
    """

    inputs: Sequence[int]
    constants: dict[int, Any]
    steps: list[Step]
    outputs: Sequence[int | None]
    kinds: dict[int, Aval]

    def new_slot(self, kind: Aval) -> int:
        slot = len(self.kinds)
        self.kinds[slot] = kind
        return slot

    def uses(self) -> Counter[int | None]:
        """The number of reads of each slot, outputs included."""
        return Counter(itertools.chain(*(step.args for step in self.steps), self.outputs))

    def drop_dead(self) -> None:
        """Remove steps that no output depends on."""
        needed = {slot for slot in self.outputs if slot is not None}
        kept = []
        for step in reversed(self.steps):
            if step.out in needed:
                needed.update(step.args)
                kept.append(step)
        self.steps = kept[::-1]

    def rename(self, names: dict[int, int]) -> None:
        """Replace slots by others wherever they are read."""
        if not names:
            return

        def final(slot: int) -> int:
            while slot in names:
                slot = names[slot]
            return slot

        self.steps = [Step(s.op, [final(slot) for slot in s.args], s.params, s.out) for s in self.steps]
        self.outputs = [None if slot is None else final(slot) for slot in self.outputs]


def forward_code(flat: Flat) -> tuple[Code, list[int]]:
    """The code of the outputs, followed by the intermediate values that backward reads; and the slots of the latter."""
    steps = flat.steps[: flat.forward]
    made = {step.out for step in steps}
    back = Code([], {}, flat.steps[flat.forward :], flat.gradients, dict(enumerate(flat.kinds)))
    back.drop_dead()
    read = {slot for step in back.steps for slot in step.args} | {slot for slot in flat.gradients if slot is not None}
    saved = sorted(read & made)
    code = Code(range(flat.operands), flat.constants, steps, [*flat.outputs, *saved], dict(enumerate(flat.kinds)))
    return _simplified(code), saved


def backward_code(flat: Flat, saved: Sequence[int]) -> Code:
    """The code of the gradients, whose inputs are the operands, the outputs' cotangents and the saved values."""
    inputs = [*range(flat.operands + flat.cotangents), *saved]
    kinds = dict(enumerate(flat.kinds))
    return _simplified(Code(inputs, flat.constants, flat.steps[flat.forward :], flat.gradients, kinds))


def _simplified(code: Code) -> Code:
    names = {}
    for step in code.steps:
        is_shape = step.op in (reshape_p, broadcast_to_p)
        is_same = is_shape and code.kinds[step.args[0]].shape == code.kinds[step.out].shape
        if is_same or (step.op is transpose_p and list(step.params["axes"]) == sorted(step.params["axes"])):
            names[step.out] = step.args[0]
    code.rename(names)
    code.drop_dead()
    _multiply(code)
    _assemble(code)
    code.drop_dead()
    return code


def _multiply(code: Code) -> None:
    """Rewrite contractions of two matrices as products: their result is C-ordered whatever the operands' order."""
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
                view = code.new_slot(aval_of(kind.shape[::-1], kind.dtype))
                steps.append(Step(transpose_p, [slot], {"axes": (1, 0)}, view))
                slot = view
            slots.append(slot)
        steps.append(Step(matmul_p, slots, {}, step.out))
    code.steps = steps


def _factors(code: Code, step: Step) -> list[tuple[int, bool]] | None:
    """The factors of a contraction, and whether each must be transposed; None if it is no matrix product."""
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


def _place(step: Step, kinds: dict[int, Aval]) -> tuple[int, int, int] | None:
    """(axis, start, stop) of a scatter into one range of one axis after the batch axis; None for any other."""
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
    """Merge sums of arrays that are zero outside one range of one axis into one array, written range by range."""
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
    """True if ranges, ordered and disjoint, cover their axis completely."""
    ends = [0, *[stop for _, _, stop in places]]
    return [*[start for _, start, _ in places], shape[places[0][0]]] == ends


def _assembled(*values: Any, places: Any, shape: Any) -> Any:
    out = (np.empty if is_covered(places, shape) else np.zeros)(shape, values[0].dtype)
    for value, (axis, start, stop) in zip(values, places, strict=True):
        out[(slice(None),) * axis + (slice(start, stop),)] = value
    return out


# assemble(*values, places=, shape=): `values[i]` at range `places[i]` = (axis, start, stop) of an array of zeros. Only
# the batched code of a program has it, so no array of ours ever meets it.
assemble_p = Op("assemble", _assembled, kind="join")


def executed(text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that a source defines; tracebacks and profilers can show its lines."""
    filename = f"{__file__}: block {zlib.crc32(text.encode()):08x}"
    linecache.cache[filename] = len(text), None, text.splitlines(True), filename
    exec(compile(text, filename, "exec"), names)
    block: Callable[..., Any] = names["block"]
    weakref.finalize(block, linecache.cache.pop, filename, None).atexit = False
    return block


class NumpyWriter:
    """The lines written so far, the last line that uses each slot, and the values of other names."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.lines: list[str] = []
        self.last: dict[int, int] = {}
        self.names = dict[str, Any](matmul=np.matmul, empty=np.empty, zeros=np.zeros, contiguous=np.ascontiguousarray)

    def write(self) -> tuple[str, dict[str, Any]]:
        """Write all steps in order: the source, and the values of the names used in it."""
        self.start()
        for step in self.code.steps:
            self.emit_step(step)
        return self.finish(), self.names

    def emit(self, line: str, slots: Iterable[int]) -> None:
        """Add a line that uses these slots."""
        self.last.update(dict.fromkeys(slots, len(self.lines)))
        self.lines.append(line)

    def emit_step(self, step: Step) -> None:
        """Add the line of one step."""
        self.emit(self.line(step), [*step.args, step.out])

    def start(self) -> None:
        """Write the lines before the steps."""
        for slot, value in self.code.constants.items():
            self.names[f"v{slot}"] = value
        known: set[str] = set()
        for slot in self.code.inputs:
            for axis, size in enumerate(self.code.kinds[slot].shape):
                name = next(iter(size.factors)) if type(size) is Affine else ""
                if name and name not in known and size == Affine({name: 1}):
                    known.add(name)
                    self.emit(f"{_variable(name)} = v{slot}.shape[{axis}]", [slot])

    def finish(self) -> str:
        """Write the lines after the steps, and return the whole source."""
        self._free_dead_slots()
        results = "".join("None, " if slot is None else f"v{slot}, " for slot in self.code.outputs)
        self.lines.append(f"return ({results})")
        head = f"def block({', '.join(f'v{slot}' for slot in self.code.inputs)}):"
        return "\n    ".join([head, *self.lines]) + "\n"

    def _free_dead_slots(self) -> None:
        """Delete each result after the last line that reads it, so that its memory is reused."""
        dying: dict[int, list[str]] = {}
        for slot, at in self.last.items():
            if slot not in self.code.outputs and slot not in self.code.constants:
                dying.setdefault(at, []).append(f"v{slot}")
        self.lines = [
            line for at, each in enumerate(self.lines) for line in (each, f"del {', '.join(dying.get(at, []))}")
            if line != "del "
        ]  # fmt: skip

    def line(self, step: Step) -> str:
        """The source of one step."""
        args = [f"v{slot}" for slot in step.args]
        out = f"v{step.out}"
        op, params = step.op, step.params
        if isinstance(op.impl, np.ufunc) and op.kind == "elementwise" and not params:
            call = self.name(op.impl.__name__, op.impl)
            kinds = [self.code.kinds[slot] for slot in step.args]
            scalars = [kind.dtype.type(0) for kind in kinds if kind.scalar or kind.shape == (Affine({EXAMPLES: 1}),)]
            if len(scalars) == len(kinds) and words_of(op, scalars) is of_scalars:
                call, args = self.name("of_scalars", of_scalars), [call, *args]
            return f"{out} = {call}({', '.join(args)})"
        if op is matmul_p and not params and all(len(self.code.kinds[slot].shape) == 2 for slot in step.args):
            return f"{out} = matmul({args[0]}, {args[1]})"
        if op is getitem_p and all(slot in self.code.constants for slot in step.args[1:]):
            index = build(params["spec"], [self.code.constants[slot] for slot in step.args[1:]])
            return f"{out} = {args[0]}[{self.name('index', index)}]"
        if op is scatter_p and len(step.args) == 1 and all(entry[0] in "sin" for entry in params["spec"]):
            place = self.name("index", build(params["spec"], []))  # which names no element twice
            return f"{self.allocation(step.out, 'zeros')}; {out}[{place}] += {args[0]}"
        if op is transpose_p and len(step.args) == 1:
            return f"{out} = {args[0]}.transpose({params['axes']!r})"
        if op is reshape_p and len(step.args) == 1:
            return f"{out} = {args[0]}.reshape({shape_text(params['shape'])})"
        call = self.name(op.name, op.impl)
        given = [f"{name}={self._value(value)}" for name, value in params.items()]
        return f"{out} = {call}({', '.join([*args, *given])})"

    def allocation(self, slot: int, make: str) -> str:
        """The source that allocates a new array for a slot."""
        kind = self.code.kinds[slot]
        return f"v{slot} = {make}({shape_text(kind.shape)}, {self.name('dtype', kind.dtype)})"

    def name(self, wish: str, value: Any) -> str:
        """A name for a value that no other value has."""
        name = "".join(c if c.isalnum() else "_" for c in wish)
        count = 0
        while (free := f"{name}_{count}") in self.names and self.names[free] is not value:
            count += 1
        self.names[free] = value
        return free

    def _value(self, value: Any) -> str:
        if unknown_lengths(value):
            return shape_text(value)
        return self.name("value", value)


def shape_text(value: Any) -> str:
    """A value as Python source in which `n` is the number of examples, `size_x` the longest of lengths `x`."""
    if type(value) is tuple:
        return f"({''.join(shape_text(part) + ', ' for part in value)})"
    if isinstance(value, Affine):
        return " + ".join(
            [*(f"{factor} * {_variable(name)}" for name, factor in value.factors.items()), str(value.number)]
        )
    return repr(value)


def _variable(length: str) -> str:
    return "n" if length == EXAMPLES else f"size_{length}"


def take_parts(code: Code) -> list[list[tuple[int, ...]]]:
    """Replace the outputs of backward code by the summands of each gradient, one after the other.

    Returns:
        For each gradient, the places of each summand among the outputs: two if it is the product `left.T @ right`.
    """
    made = {step.out: step for step in code.steps}
    found = [[] if slot is None else _summands(code, made, slot) for slot in code.outputs]
    code.outputs = [slot for own in found for slots in own for slot in slots]
    code.drop_dead()
    places = itertools.count()
    return [[tuple([next(places) for _ in slots]) for slots in own] for own in found]


def _summands(code: Code, made: dict[int, Step], slot: int) -> list[tuple[int, ...]]:
    """The slots of each summand."""
    step = made.get(slot)
    whole: list[tuple[int, ...]] = [(slot,)]
    if step is None or step.params or isinstance((*code.kinds[slot].shape, 0)[0], Affine):  # rows are no products
        return whole
    if step.op is _add and all(code.kinds[arg].shape == code.kinds[slot].shape for arg in step.args):
        left, right = (_summands(code, made, arg) for arg in step.args)
        return [*left, *right] if any(len(slots) > 1 for slots in (*left, *right)) else whole
    if step.op is matmul_p:
        left_step = made.get(step.args[0])
        if left_step is None or left_step.op is not transpose_p or left_step.params["axes"] != (1, 0):
            return whole
        x, y = left_step.args[0], step.args[1]
        if len(code.kinds[y].shape) == 2 and code.kinds[x].dtype == code.kinds[y].dtype:
            return [(x, y)] if isinstance(code.kinds[x].shape[0], Affine) else whole
    return whole


def contributions(runs: Sequence[Sequence[Any]], parts: Sequence[tuple[int, ...]]) -> Any:
    """The contributions to one operand's cotangent: None, one, or a list of several.

    Args:
        runs: the results of backward code, of each of its runs; parts: what `take_parts` says of the operand.
    """
    out: list[Any] = []
    for place, *second in parts:
        lefts, rights, total = [], [], None
        for run in runs:  # no calls: there is a run for each step of a scan
            part = run[place]
            # Products of fewer rows are joined with others of the same matrix.
            if second and part.shape[0] < 512:
                lefts.append(part)
                rights.append(run[second[0]])
                continue
            part = np.matmul(part.T, run[second[0]]) if second else part
            total = part if total is None else total + part
        if lefts:
            out.append(Product(*map(np.concatenate, (lefts, rights))) if lefts[1:] else Product(lefts[0], rights[0]))
        if total is not None:
            out.append(total)
    return out[0] if len(out) == 1 else out or None
