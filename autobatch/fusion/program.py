"""`Program`: a straight-line run of ops on one example's arrays, as flat steps."""

from collections.abc import Sequence
from typing import Any

from autobatch.core.abstract_eval import Aval, Weak, freeze_params
from autobatch.core.op import Op

__all__ = ["Program", "Step", "interned"]


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
        views: {output: (output that it is a view of, derive, restore, args, contiguous)}, as `ops.inplace` has them.
        forms: what `fusion.launch` compiled, by the kinds of operands.
        apart: what `fusion.lookups` made of it; False as long as nobody asked.
    """

    __slots__ = ("apart", "avals", "constants", "forms", "inputs", "outputs", "steps", "views")

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

    @property
    def results(self) -> tuple[Any, ...]:
        """The `Aval` of each output."""
        return tuple(self.avals[slot] for slot in self.outputs)

    def varying(self, batched: Sequence[bool]) -> list[bool]:
        """Which outputs differ between the examples, given which inputs do."""
        known = [*batched, *(False for _ in self.constants)]
        for step in self.steps:
            known.append(any(known[slot] for slot in step.args))
        return [known[slot] for slot in self.outputs]

    def __repr__(self) -> str:
        lines = [f"{slot}: {kind!r}" for slot, kind in enumerate(self.inputs)]
        lines += [f"{len(self.inputs) + i} = {value!r}" for i, value in enumerate(self.constants)]
        lines += [repr(step) for step in self.steps]
        return "\n".join([*lines, f"return {', '.join(map(str, self.outputs))}"])


_LIMIT = 1 << 12
_interned: dict[Any, Program] = {}


def interned(program: Program) -> Program:
    """The program that stands for all that do the same, so that calls from several places go together."""
    constants = tuple([(kind, repr(value) if isinstance(kind, Weak) else value.tobytes()) for kind, value in zip(
        program.avals[len(program.inputs) :], program.constants, strict=False)])  # fmt: skip
    steps = tuple([(step.op, step.args, step.out, freeze_params(step.params)) for step in program.steps])
    key = (program.inputs, constants, steps, program.outputs, tuple([(at, *how) for at, how in program.views.items()]))
    if len(_interned) >= _LIMIT:
        _interned.clear()
    return _interned.setdefault(key, program)
