"""`Program`: a straight-line run of ops on one example's arrays, as flat steps; and how to split one into parts."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.core.abstract_eval import Aval, Weak, freeze_params, unknown_lengths
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


@dataclasses.dataclass(eq=False, repr=False)
class Program:
    """Steps over numbered slots: the inputs first, then the constants, then the result of each step.

    Equal steps are merged, and every step leads to an output. A program is immutable; programs are equal only if they
    are the same object.

    Attributes:
        inputs: for each input its `Aval`, or `Weak` for a Python number.
        constants: the values of the slots after the inputs: arrays owned by the program, NumPy scalars, Python numbers.
        steps: in execution order.
        outputs: the slot of each output.
        avals: for each slot, the abstract value (shape, dtype) in one example.
        views: {output: (output that it is a view of, derive, restore, args, contiguous)}, as `aliasing` has them.
        forms: the forms compiled by `blocks.launch`, by the kinds of operands.
        groups: cached results of `lazy.grouping`, by which inputs differ between examples.
    """

    inputs: tuple[Aval | Weak, ...]
    constants: tuple[Any, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    avals: tuple[Aval | Weak, ...]
    views: dict[int, tuple[Any, ...]]
    forms: dict[Any, Any] = dataclasses.field(default_factory=dict)
    groups: dict[tuple[Any, ...], Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def skeleton(self) -> Any:
        """Cache key shared by programs that differ only in sizes; None if a step has no rule for different sizes."""
        if not all(has_ragged_rule(step.op) for step in self.steps):
            return None
        kinds = tuple([(aval.ndim, aval.dtype, aval.scalar, aval.non_c_order, aval.weak) for aval in self.avals])
        if len(_skeletons) >= 1 << 12:
            _skeletons.clear()
        return _skeletons.setdefault((len(self.inputs), kinds, *_steps_key(self, without_sizes)), object())

    @functools.cached_property
    def lengths(self) -> tuple[str, ...]:
        """The names of the lengths that it does not know, sorted."""
        return tuple(sorted(unknown_lengths(tuple([aval.shape for aval in self.avals]))))

    @functools.cached_property
    def split(self) -> "tuple[list[tuple[int, ...]], list[int], Program] | None":
        """Its look-ups, (table, ids) of each, and the program of the other steps, after the inputs that this reads.

        Its own inputs are these, then the rows of each look-up. None if no step looks up inputs, or nothing else is
        left.
        """
        count = len(self.inputs)
        lookups = [step for step in self.steps if step.op is lookup_p and max(step.args) < count]
        others = [step for step in self.steps if not any(step is each for each in lookups)]
        if not lookups or not others:
            return None
        read = {slot for step in others for slot in step.args} | set(self.outputs)
        kept = [slot for slot in range(count) if slot in read]
        rest = self.part((*kept, *(step.out for step in lookups)), others, self.outputs)
        return [step.args for step in lookups], kept, rest

    @property
    def results(self) -> tuple[Any, ...]:
        """The `Aval` of each output."""
        return tuple(self.avals[slot] for slot in self.outputs)

    def varying(self, batched: Sequence[bool]) -> list[bool]:
        """For each output, True if it differs between the examples, given which inputs do."""
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
            avals: the program's abstract values, extended for additional slots.
        """
        count = len(self.inputs)
        constants = {count + place: value for place, value in enumerate(self.constants) if count + place not in inputs}
        return renumbered(avals or self.avals, constants, inputs, steps, outputs)

    def __repr__(self) -> str:
        lines = [f"{slot}: {aval!r}" for slot, aval in enumerate(self.inputs)]
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
    """The program of steps over arbitrarily numbered slots.

    Args:
        avals: the abstract value of each slot; constants: {slot: value}, of which only the used ones are kept.
    """
    used = {slot for step in steps for slot in step.args}.union(outputs)
    kept = [slot for slot in constants if slot in used]
    order = [*inputs, *kept, *(step.out for step in steps)]
    number = {slot: place for place, slot in enumerate(order)}
    return Program(
        tuple([avals[slot] for slot in inputs]),
        tuple([constants[slot] for slot in kept]),
        tuple([Step(step.op, [number[slot] for slot in step.args], step.params, number[step.out]) for step in steps]),
        tuple([number[slot] for slot in outputs]),
        tuple([avals[slot] for slot in order]),
        views or {},
    )


_interned: weakref.WeakValueDictionary[Any, Program] = weakref.WeakValueDictionary()
_skeletons: dict[Any, object] = {}


def interned(program: Program) -> Program:
    """The canonical program among all that do the same, so that calls from several places share launches."""
    constants = tuple([(aval, repr(value) if isinstance(aval, Weak) else value.tobytes()) for aval, value in zip(
        program.avals[len(program.inputs) :], program.constants, strict=False)])  # fmt: skip
    key = (program.inputs, constants, *_steps_key(program, lambda op, params: freeze_params(params)))
    return _interned.setdefault(key, program)


def _steps_key(program: Program, frozen: Callable[[Op, dict[str, Any]], Any]) -> tuple[Any, ...]:
    steps = tuple([(step.op, step.args, step.out, frozen(step.op, step.params)) for step in program.steps])
    return steps, program.outputs, tuple([(at, *how) for at, how in program.views.items()])


_ALONE = frozenset(("lanewise", "linalg", "random"))  # kinds of ops that run lane by lane
_SHAPED = frozenset(("broadcast_to", "reshape"))  # ops whose attribute `shape` may leave sizes to operands


def has_ragged_rule(op: Op) -> bool:
    """True if calls of this op with different sizes may be merged into one; the op's rule decides finally."""
    return op.rule is not None and not op.ragged and not op.data_dependent and op.kind not in _ALONE


def without_sizes(op: Op, params: dict[str, Any]) -> Any:
    """The attributes of a call as a key that is equal for calls which differ only in sizes."""
    if op.name in _SHAPED:
        return tuple([size if size is None or size < 0 else 0 for size in params["shape"]]), len(params)
    return freeze_params(params)
