"""`Program`: a straight-line run of ops on one example's arrays, as flat steps, and the parts that one falls into."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from autobatch.core.abstract_eval import Aval, Weak, freeze_params
from autobatch.core.op import Op
from autobatch.tables.lookup import lookup_p


class Step:
    """One call: `slots[out] = op(*[slots[i] for i in args], **params)`."""

    __slots__ = ("args", "op", "out", "params")

    def __init__(self, op: Op, args: Sequence[int], params: dict[str, Any], out: int) -> None:
        self.op = op
        self.args = tuple(args)
        self.params = params
        self.out = out

    def __repr__(self) -> str:
        attributes = "".join(f", {name}={value!r}" for name, value in self.params.items())
        return f"{self.out} = {self.op.name}({', '.join(map(str, self.args))}{attributes})"


class Program:
    """Steps over numbered slots: the inputs first, then the constants, then the result of each step.

    Equal steps are one, and every step leads to an output. A program never changes; two are equal if they are one
    object.

    Attributes:
        inputs: for each input its `Aval`, or `Weak` for a Python number.
        constants: the values of the slots that follow the inputs: arrays of its own, NumPy scalars, Python numbers.
        steps: in the order they run.
        outputs: the slot of each output.
        avals: for each slot what is known of its value in one example.
        views: {output: (output that it is a view of, derive, restore, args, contiguous)}, as `aliasing` has them.
        forms: what `blocks.launch` compiled, by the kinds of operands.
        apart: what `lookups_apart` made of it; False as long as nobody asked.
        parts: what `lazy.grouping.addition_chains.parts_of` made of it, by which inputs are each example's own.
    """

    __slots__ = ("_skeleton", "apart", "avals", "constants", "forms", "inputs", "outputs", "parts", "steps", "views")

    def __init__(
        self,
        inputs: Sequence[Aval | Weak],
        constants: Sequence[Any],
        steps: Sequence[Step],
        outputs: Sequence[int],
        avals: Sequence[Aval | Weak],
        views: dict[int, tuple[Any, ...]] | None = None,
    ) -> None:
        self.views = views or {}
        self.inputs = tuple(inputs)
        self.constants = tuple(constants)
        self.steps = tuple(steps)
        self.outputs = tuple(outputs)
        self.avals = tuple(avals)
        self.forms: dict[Any, Any] = {}
        self.apart: Any = False
        self.parts: dict[tuple[Any, ...], Any] = {}
        self._skeleton: Any = False

    def skeleton(self) -> Any:
        """A key of programs that differ in the sizes of their values only; None where a step has no rule for that."""
        if self._skeleton is False:
            self._skeleton = _skeleton(self)
        return self._skeleton

    @property
    def results(self) -> tuple[Any, ...]:
        """The `Aval` of each output."""
        return tuple(self.avals[slot] for slot in self.outputs)

    def varying(self, batched: Sequence[bool]) -> list[bool]:
        """Whether each output differs between the examples, given which inputs do."""
        known = [*batched, *(False for _ in self.constants)]
        for step in self.steps:
            known.append(any(known[slot] for slot in step.args))
        return [known[slot] for slot in self.outputs]

    def part(
        self, inputs: Sequence[int], steps: Sequence[Step], outputs: Sequence[int], avals: Sequence[Any] = ()
    ) -> "Program":
        """Some of the steps as a program of their own.

        Args:
            inputs: the slots that become its inputs.
            avals: those of the program, and of slots beyond them.
        """
        count = len(self.inputs)
        constants = {count + place: value for place, value in enumerate(self.constants) if count + place not in inputs}
        return renumbered(avals or self.avals, constants, inputs, steps, outputs)

    def __repr__(self) -> str:
        lines = [f"{slot}: {kind!r}" for slot, kind in enumerate(self.inputs)]
        lines += [f"{len(self.inputs) + i} = {value!r}" for i, value in enumerate(self.constants)]
        lines += [repr(step) for step in self.steps]
        return "\n".join([*lines, f"return {', '.join(map(str, self.outputs))}"])


def renumbered(
    avals: Sequence[Any],
    constants: dict[int, Any],
    inputs: Sequence[int],
    steps: Sequence[Step],
    outputs: Sequence[int],
    views: dict[int, tuple[Any, ...]] | None = None,
) -> Program:
    """The program of steps over slots that have any numbers.

    Args:
        avals: of each slot; constants: {slot: value}, of which it keeps those that are used.
    """
    used = {slot for step in steps for slot in step.args}.union(outputs)
    kept = [slot for slot in constants if slot in used]
    order = [*inputs, *kept, *(step.out for step in steps)]
    number = {slot: place for place, slot in enumerate(order)}
    return Program(
        [avals[slot] for slot in inputs],
        [constants[slot] for slot in kept],
        [Step(step.op, [number[slot] for slot in step.args], step.params, number[step.out]) for step in steps],
        [number[slot] for slot in outputs],
        [avals[slot] for slot in order],
        views,
    )


_LIMIT = 1 << 12
_interned: dict[Any, Program] = {}
_skeletons: dict[Any, object] = {}


def interned(program: Program) -> Program:
    """One program for all that do the same, so that calls from several places share launches."""
    constants = tuple([(kind, repr(value) if isinstance(kind, Weak) else value.tobytes()) for kind, value in zip(
        program.avals[len(program.inputs) :], program.constants, strict=False)])  # fmt: skip
    key = (program.inputs, constants, *_steps_key(program, lambda op, params: freeze_params(params)))
    if len(_interned) >= _LIMIT:
        _interned.clear()
    return _interned.setdefault(key, program)


def _steps_key(program: Program, frozen: Callable[[Op, dict[str, Any]], Any]) -> tuple[Any, ...]:
    steps = tuple([(step.op, step.args, step.out, frozen(step.op, step.params)) for step in program.steps])
    return steps, program.outputs, tuple([(at, *how) for at, how in program.views.items()])


_ALONE = frozenset(("lanewise", "linalg", "random"))  # kinds of ops that run lane by lane
_SHAPED = frozenset(("broadcast_to", "reshape"))  # ops whose attribute `shape` may leave sizes to operands


def is_served(op: Op) -> bool:
    """Whether calls of this op that differ in sizes may be one; its rule has the last word."""
    return op.rule is not None and not op.ragged and not op.data_dependent and op.kind not in _ALONE


def without_sizes(op: Op, params: dict[str, Any]) -> Any:
    """The attributes of a call, equal for calls that differ in sizes only."""
    if op.name in _SHAPED:
        return tuple([size if size is None or size < 0 else 0 for size in params["shape"]]), len(params)
    return freeze_params(params)


def _skeleton(program: Program) -> Any:
    if not all(is_served(step.op) for step in program.steps):
        return None
    kinds = tuple([(aval.ndim, aval.dtype, aval.scalar, aval.non_c_order, aval.weak) for aval in program.avals])
    if len(_skeletons) >= _LIMIT:
        _skeletons.clear()
    return _skeletons.setdefault((len(program.inputs), kinds, *_steps_key(program, without_sizes)), object())


class Hoisted:
    """The parts of a loop's body: what its items and fixed values give, and the rest of each step.

    Attributes:
        early: operands are the inputs `early_inputs`; every result has a row for each item.
        rest: operands are the inputs `rest_inputs`, then the results of `early`; its outputs are the body's.
    """

    __slots__ = ("early", "early_inputs", "rest", "rest_inputs")

    def __init__(self, body: Program, early: Sequence[Step], outputs: Sequence[int], rest: Sequence[Step]) -> None:
        inputs = range(len(body.inputs))
        self.early_inputs = _read(early, (), inputs)
        self.early = body.part(self.early_inputs, early, outputs)
        self.rest_inputs = _read(rest, body.outputs, inputs)
        self.rest = body.part((*self.rest_inputs, *outputs), rest, body.outputs)


def hoisted(body: Program, items: Collection[int], fixed: Collection[int]) -> Hoisted | None:
    """What of a loop's body can be computed for many items at once; None where that holds no product.

    Args:
        items: the inputs that are the loop's own items, known for all of its steps.
        fixed: the inputs that are one value for all examples and stay that value.
    """
    count = len(body.inputs)
    steady = {*fixed, *range(count, count + len(body.constants))}
    own = set(items)
    for step in body.steps:
        if steady.issuperset(step.args):
            steady.add(step.out)
        elif (steady | own).issuperset(step.args):
            own.add(step.out)
    if not any(step.op.kind == "contraction" and step.out in own for step in body.steps):
        return None
    rest = _needed([step for step in body.steps if step.out not in own], body.outputs)
    read = {slot for step in rest for slot in step.args}.union(body.outputs)
    outputs = [step.out for step in body.steps if step.out in own and step.out in read]
    early = _needed([step for step in body.steps if step.out in own or step.out in steady], outputs)
    return Hoisted(body, early, outputs, rest) if rest else None


def _needed(steps: Sequence[Step], outputs: Collection[int]) -> list[Step]:
    """The steps that the outputs are made from."""
    wanted = set(outputs)
    kept = []
    for step in reversed(steps):
        if step.out in wanted:
            kept.append(step)
            wanted.update(step.args)
    return kept[::-1]


def _read(steps: Sequence[Step], outputs: Sequence[int], slots: Sequence[int]) -> tuple[int, ...]:
    used = {slot for step in steps for slot in step.args}.union(outputs)
    return tuple(slot for slot in slots if slot in used)


@dataclasses.dataclass(slots=True, eq=False)
class Apart:
    """A program in two parts.

    Attributes:
        lookups: the steps that come first; they read inputs of the program only.
        rest: the other steps. Its inputs are those of the program that they read, then the rows of each look-up.
        kept: the slots of the former.
    """

    lookups: Sequence[Step]
    rest: Program
    kept: Sequence[int]


def lookups_apart(program: Program) -> Apart | None:
    """The two parts of a program; None if it has no look-ups of its inputs, or nothing else."""
    if program.apart is False:
        program.apart = _lookups_apart(program)
    apart: Apart | None = program.apart
    return apart


def _lookups_apart(program: Program) -> Apart | None:
    count = len(program.inputs)
    lookups = [step for step in program.steps if step.op is lookup_p and max(step.args) < count]
    others = [step for step in program.steps if not any(step is each for each in lookups)]
    if not lookups or not others:
        return None
    read = {slot for step in others for slot in step.args} | set(program.outputs)
    kept = [slot for slot in range(count) if slot in read]
    rest = program.part((*kept, *(step.out for step in lookups)), others, program.outputs)
    return Apart(lookups, rest, kept)
