"""A program run over many examples: step by step with batching rules, or as flat steps for any number of examples.

For flat steps, the ops' batching rules are traced on arrays of B examples, for three values of B. Whatever differs
between the traces (a shape, a bound, a count) must be affine in B: two traces determine it, the third confirms it.
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
from autobatch.core.abstract_eval import Weak, aval_of, freeze
from autobatch.core.batched import Batched, Packed
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.op import Op, is_boxed
from autobatch.errors import Unsupported, UnsupportedError, reason_of


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Affine:
    """a * B + b, where B is the number of examples."""

    a: int
    b: int

    def __repr__(self) -> str:
        return f"{self.a} * B + {self.b}" if self.b else f"{self.a} * B"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Kind:
    """Shape and dtype of a slot of a batched program; entries of the shape may be `Affine`.

    Attributes:
        weak: the type of a Python number, else None.
        scalar: True for a NumPy scalar.
    """

    shape: tuple[Any, ...]
    dtype: Any
    scalar: bool
    weak: type | None

    def __repr__(self) -> str:
        return self.weak.__name__ if self.weak else f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Flat:
    """The steps of a program on arrays with a leading batch axis, followed by the steps of its gradient.

    Slots: the operands, the cotangents of the outputs, the constants, then one for each step.

    Attributes:
        operands, cotangents: the number of each.
        constants: {slot: value}.
        steps: forward in `steps[:forward]`, the rest backward; attributes that vary are `Affine` in B.
        outputs: the slot of each output; gradients: the slot of each wanted operand's gradient, None if it has none.
        kinds: the `Kind` of each slot.
        batched: which outputs have the batch axis.
    """

    operands: int
    cotangents: int
    constants: dict[int, Any]
    steps: list[Step]
    forward: int
    outputs: list[int]
    gradients: list[int | None]
    kinds: list[Kind]
    batched: list[bool]


def flatten(program: Program, batched: Sequence[bool], wanted: Sequence[int], given: Sequence[bool]) -> Flat | None:
    """The batched form of a program; None if there is none that is valid for every B.

    Args:
        batched: which operands have a row for each example.
        wanted: the positions of the operands whose cotangents are asked for.
        given: which outputs have a cotangent; if none has, only the forward steps are made.
    """
    avals: Sequence[Any] = program.avals
    widths = {n for aval in avals if type(aval) is not Weak for n in aval.shape}
    sizes = [n for n in range(5, 9 + 3 * len(widths) + 9, 3) if n not in widths][:3]
    try:
        traces = [_trace(program, batched, wanted, given, n) for n in sizes]
        return _unify(traces, sizes)
    except Unsupported:
        return None


class _Traced:
    """One trace at one B."""

    __slots__ = ("batched", "cotangents", "forward", "gradients", "outputs", "tracer")

    batched: list[bool]
    outputs: list[int]
    forward: int

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.cotangents = 0
        self.gradients: list[int | None] = []


def _trace(program: Program, batched: Sequence[bool], wanted: Sequence[int], given: Sequence[bool], n: int) -> _Traced:
    tracer = Tracer()
    out = _Traced(tracer)
    kinds: Sequence[Any] = program.inputs
    inputs = [
        tracer.input(aval_of((n, *kind.shape), kind.dtype) if own else kind)
        for kind, own in zip(kinds, batched, strict=True)
    ]
    cts = []
    out.batched = program.varying(batched)
    for result, own, use in zip(program.results, out.batched, given, strict=True):
        shape = (n, *result.shape) if own else result.shape
        cts.append(tracer.input(aval_of(shape, result.dtype)) if use else None)
    out.cotangents = sum(given)
    tape = Tape()
    leaves = {position: tape.leaf(inputs[position]) for position in wanted} if any(given) else {}
    slots: list[Any] = []
    for position, (kind, own) in enumerate(zip(kinds, batched, strict=True)):
        box: Any = leaves.get(position, inputs[position])
        slots.append(Batched(box, kind.shape) if own else box)
    slots += program.constants
    try:
        for step in program.steps:
            slots.append(_apply(tracer, step, [slots[i] for i in step.args], program.avals[step.out], n))
        results = [slots[slot] for slot in program.outputs]
        data = [result.data if isinstance(result, Batched) else result for result in results]
        out.outputs = [_slot(tracer, _value(x)) for x in data]
        out.forward = len(tracer.steps)
        if leaves:
            _walk_back(out, tape, data, cts, list(leaves.values()))
    except Exception as error:  # any error of a rule that reads values
        raise Unsupported(reason_of(error)) from error
    finally:
        tape.close()
    if tracer.failed is not None:
        raise Unsupported(tracer.failed)
    return out


def _walk_back(out: _Traced, tape: Tape, data: Sequence[Any], cts: Sequence[Any], leaves: Sequence[Any]) -> None:
    tracer = out.tracer
    heads = [
        (x, ct) for x, ct in zip(data, cts, strict=True) if ct is not None and getattr(x, "_ab_tape", None) is tape
    ]
    if not heads:
        out.gradients = [None] * len(leaves)
        return
    for ct in tape.backward_from([x for x, _ in heads], [ct for _, ct in heads], leaves):
        if isinstance(ct, SparseCotangent):
            ct = ct.to_dense()
        out.gradients.append(None if ct is None else _slot(tracer, ct))


def _apply(tracer: Tracer, step: Step, operands: Sequence[Any], aval: Any, n: int) -> Any:
    """One step by its batching rule, traced.

    Raises:
        Unsupported: the result has another shape or dtype, or the rule made a constant that depends on B.
    """
    op: Op = step.op
    if not any(isinstance(x, Batched) for x in operands):
        return op(*operands, **step.params)
    if op.rule is None:
        tracer.fail(f"{op.name} has no rule")
    before = len(tracer.avals)
    out = op.rule(op, operands, step.params)
    if tuple(out.data.shape) != (n, *aval.shape) or out.data.dtype != aval.dtype:
        tracer.fail(f"{op.name} by its rule is another array")
    if any(n in np.shape(tracer.constants.get(slot, 0)) for slot in range(before, len(tracer.avals))):
        tracer.fail(f"{op.name} by its rule has a constant for each example")
    return Batched(out.data, aval.shape)


def _value(x: Any) -> Any:
    return x._ab_value if hasattr(x, "_ab_tape") else x


def _slot(tracer: Tracer, x: Any) -> int:
    return x.slot if type(x) is Traced else tracer.constant(x)


def _unify(traces: Sequence[_Traced], sizes: Sequence[int]) -> Flat:
    first = traces[0]
    tracers = [trace.tracer for trace in traces]
    for name in ("outputs", "gradients", "batched", "forward", "cotangents"):
        if any(getattr(trace, name) != getattr(first, name) for trace in traces):
            raise Unsupported(f"{name} differ with the number of examples")
    constants = tracers[0].constants
    for slot, value in constants.items():
        for tracer in tracers:
            if slot not in tracer.constants or not same_constant(tracer.constants[slot], value):
                raise Unsupported("a constant differs with the number of examples")
    if len({len(tracer.avals) for tracer in tracers}) > 1 or len({len(tracer.steps) for tracer in tracers}) > 1:
        raise Unsupported("the steps differ with the number of examples")
    out = Flat(
        tracers[0].inputs - first.cotangents,
        first.cotangents,
        constants,
        [],
        first.forward,
        first.outputs,
        first.gradients,
        [_kind(avals, sizes) for avals in zip(*(tracer.avals for tracer in tracers), strict=True)],
        first.batched,
    )
    for steps in zip(*(tracer.steps for tracer in tracers), strict=True):
        one = steps[0]
        if any((step.op, step.args, step.out) != (one.op, one.args, one.out) for step in steps):
            raise Unsupported("the steps differ with the number of examples")
        if any(step.params.keys() != one.params.keys() for step in steps):
            raise Unsupported(f"{one.op.name} differs with the number of examples")
        params = {name: _template([step.params[name] for step in steps], sizes) for name in one.params}
        out.steps.append(Step(one.op, one.args, params, one.out))
    return out


def same_constant(a: Any, b: Any) -> bool:
    """True if two constants of programs have the same type and are equal, arrays to the byte."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(freeze(a) == freeze(b))


def _kind(avals: Sequence[Any], sizes: Sequence[int]) -> Kind:
    one = avals[0]
    if any(type(aval) is not type(one) for aval in avals):
        raise Unsupported("operands differ with the number of examples")
    if type(one) is Weak:
        return Kind((), np.dtype(one.kind), True, one.kind)
    if any((aval.dtype, aval.scalar, aval.ndim) != (one.dtype, one.scalar, one.ndim) for aval in avals):
        raise Unsupported("dtypes differ with the number of examples")
    return Kind(_template([aval.shape for aval in avals], sizes), one.dtype, one.scalar, None)


def _template(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """One value for all B: integers that differ become `Affine`."""
    one = values[0]
    if any(type(value) is not type(one) for value in values):
        raise Unsupported("attributes differ with the number of examples")
    if type(one) is tuple:
        if len({len(value) for value in values}) > 1:
            raise Unsupported("attributes differ with the number of examples")
        return tuple(_template(parts, sizes) for parts in zip(*values, strict=True))
    if type(one) is int and len(set(values)) > 1:
        a, rest = divmod(values[1] - values[0], sizes[1] - sizes[0])
        b = values[0] - a * sizes[0]
        if rest or any(value != a * n + b for value, n in zip(values, sizes, strict=True)):
            raise Unsupported("attributes that are not affine in the number of examples")
        return Affine(a, b)
    if any(freeze(value) != freeze(one) for value in values):
        raise Unsupported("attributes differ with the number of examples")
    return one


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
