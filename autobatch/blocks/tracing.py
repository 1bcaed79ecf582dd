"""Tracing: runs a straight-line body once on abstract arrays, of which only shape and dtype are known.

Every operation on a traced array is recorded, in order. A body that needs a value, calls a function that is no op of
ours, or writes into an input is no block: `trace` returns None, and the body runs op by op.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from autobatch.blocks.program import Program, Step, renumbered
from autobatch.core.abstract_eval import (
    WEAK,
    Affine,
    Aval,
    Weak,
    abstract_eval,
    freeze_params,
    known_aval,
    unknown_lengths,
    with_order,
)
from autobatch.core.current_region import Example, example
from autobatch.core.diagnostics import silence
from autobatch.core.op import Op, next_level
from autobatch.core.recorded_array import AbstractArray
from autobatch.errors import Unsupported
from autobatch.ops.array_protocols import ArrayMixin
from autobatch.ops.rules.aliasing import is_contiguous, is_read_only, is_unclear, root_of, view_record


class Tracer:
    """Records a trace, with a numbered slot for each input, constant and result.

    Attributes:
        avals: the abstract value of each slot.
        constants: {slot: value}.
        steps: the recorded calls, without duplicates.
        failed: why the body is no block, kept in case the body catches the exception.
    """

    __slots__ = ("_known", "avals", "constants", "failed", "inputs", "level", "steps")

    def __init__(self) -> None:
        self.level = next_level()
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.steps: list[Step] = []
        self.failed: str | None = None
        self.inputs = 0
        self._known: dict[Any, int] = {}

    def input(self, kind: Aval | Weak) -> "Traced":
        """Add an input, and return the array that stands in for it."""
        self.inputs += 1
        return Traced(self, self._slot(kind), kind)

    def _slot(self, kind: Any) -> int:
        self.avals.append(kind)
        return len(self.avals) - 1

    def fail(self, why: str) -> NoReturn:
        self.failed = self.failed or why
        raise Unsupported(why)

    def constant(self, value: Any) -> int:
        """The slot of a value that is the same in every call."""
        kind = type(value)
        key: Any
        if kind in WEAK or kind is Affine:
            known: Any = WEAK[int if kind is Affine else kind]
            key = (kind, repr(value))
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            if value.nbytes > 1 << 16:  # bytes; a larger constant should be an operand
                self.fail("a large array that is not an operand")
            known = known_aval(value)
            value = np.array(value)[()] if isinstance(value, np.generic) else np.array(value, order="C")
            key = (known, value.tobytes())
        else:
            self.fail(f"an operand of type {kind.__name__}")
        slot = self._known.get(key)
        if slot is None:
            slot = self._known[key] = self._slot(known)
            self.constants[slot] = value
        return slot

    def apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> "Traced":
        """Record one call of an op."""
        if op.data_dependent or op.ragged or op.kind == "random":
            self.fail(f"{op.name} depends on values")
        slots, kinds = [], []
        for arg in args:
            if type(arg) is Traced:
                if arg.tracer is not self:
                    self.fail("an array of another trace")
                slots.append(arg.slot)
                kinds.append(arg.aval)  # set_order may have changed its memory order since it was recorded
            else:
                slots.append(self.constant(arg))
                kinds.append(self.avals[slots[-1]])
        if all(type(kind) is Weak for kind in kinds):
            self.fail("Python numbers only")
        try:
            token = freeze_params(params)
            hash(token)
        except TypeError:
            self.fail(f"{op.name}: an attribute that cannot be compared")
        key = (op, token, *slots, *kinds)
        slot = self._known.get(key)
        if slot is None:
            out = abstract_eval(op, params, token, kinds)
            if out is None:
                self.fail(f"{op.name}: its result is not known without its operands")
            # A body that iterates over the rows of an array has steps for each row.
            if len(self.steps) >= 512:
                self.fail("too many steps")
            slot = self._known[key] = self._slot(out)
            self.steps.append(Step(op, slots, dict(params), slot))
        return Traced(self, slot, self.avals[slot])

    def program(self, outputs: Sequence[int], views: dict[int, Any]) -> Program | None:
        """The program that computes these slots, renumbered; None if an unneeded step may raise."""
        needed = set(outputs)
        kept = []
        for step in reversed(self.steps):
            if step.out in needed:
                needed.update(step.args)
                kept.append(step)
            elif step.op.kind == "linalg" or any(
                type(self.avals[slot]) is not Weak and self.avals[slot].dtype.kind in "iu" for slot in step.args
            ):
                return None  # may raise depending on values: an index out of range, a singular matrix, a negative power
        kept.reverse()
        return renumbered(self.avals, self.constants, range(self.inputs), kept, outputs, views)


class Traced(AbstractArray, ArrayMixin):
    """An abstract array, of which only shape and dtype are known."""

    __slots__ = ("slot", "tracer")

    def __init__(self, tracer: Tracer, slot: int, aval: Any) -> None:
        self.tracer = tracer
        self.slot = slot
        self.aval = aval

    @property
    def _ab_rank(self) -> int:
        return self.tracer.level

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.tracer.apply(op, args, params)

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> NoReturn:
        self.tracer.fail(f"{getattr(function, '__name__', function)} has no rule")

    def _ab_rebind(self, new: Any) -> None:
        """Become `new`, which is the target's value after an in-place write."""
        if self.slot < self.tracer.inputs:
            self.tracer.fail("a write into an input")
        non_c_order = self.aval.non_c_order
        if type(new) is Traced:
            self.slot, self.aval = new.slot, new.aval
        else:
            self.slot = self.tracer.constant(new)
            self.aval = self.tracer.avals[self.slot]
        self._ab_set_order(non_c_order)  # a write does not change the memory order

    def __getitem__(self, index: Any) -> Any:
        if type(index) is Traced and index.dtype == np.bool_ and index.ndim and index.shape == self.shape:
            return _Chosen(self, index)
        return super().__getitem__(index)

    def __copy__(self) -> "Traced":
        return Traced(self.tracer, self.slot, self.aval)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self.tracer.fail("a value is needed")

    _ab_read = __array__ = __contains__ = __reduce__ = _refuse
    __hash__ = _refuse  # type: ignore[assignment]
    flags = strides = property(_refuse)

    def __repr__(self) -> str:
        return f"Traced({self.slot}: {self.aval!r})"


@dataclasses.dataclass(slots=True, eq=False)
class _Chosen:
    """`x[mask]`: how many elements there are depends on values, so all that can be known of it is their sum."""

    x: Traced
    chosen: Traced

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        if axis not in (None, 0, -1) or dtype is not None or out is not None:
            self.x.tracer.fail("an unusual sum over chosen elements")
        return np.where(self.chosen, self.x, self.x.dtype.type(0)).sum()


class _NoExample(Example):
    """Refuses random numbers: they differ from call to call, so code that draws them is no block."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def next_key(self, seed: Any) -> Any:
        self._tracer.fail("random numbers")


def trace(body: Callable[..., Any], kinds: Sequence[Aval | Weak], *, views: bool = False) -> Program | None:
    """The program of a straight-line body; None if it has to run op by op.

    Args:
        body: takes one example's arrays, and returns the array or arrays that are read later.
        kinds: for each argument its `Aval`, or `Weak` for a Python number.
        views: allow an output to be a view of another; the program then records it.

    An output that is an input, a view of an input, or otherwise shares elements with another output is refused, because
    a write into it would have to change the other too.

    >>> from autobatch.core.abstract_eval import aval_of
    >>> vector = aval_of((3,), np.dtype(np.float32))
    >>> trace(lambda x, y: np.tanh(x * y) + x, [vector, vector])
    0: float32[3]
    1: float32[3]
    2 = multiply(0, 1)
    3 = tanh(2)
    4 = add(3, 0)
    return 4
    """
    tracer = Tracer()
    arguments = [tracer.input(kind) for kind in kinds]
    try:
        with example(_NoExample(tracer)), silence():
            results = body(*arguments)
    except Exception:  # NumPy's own errors too: op by op, they are raised at the right place with the right message
        return None
    if tracer.failed is not None:
        return None
    # a list or a 1-tuple is the value of a single variable, which the outputs of a call cannot represent
    outputs = list(results) if type(results) is tuple and len(results) > 1 else [results]
    if not outputs or any(type(out) is not Traced or out.tracer is not tracer for out in outputs):
        return None
    if any(out.aval.non_c_order and not tracer.avals[out.slot].non_c_order for out in outputs):
        return None  # written in place: it keeps its memory order, unlike the new value
    found = _views(outputs) if views else {}
    others = [out for at, out in enumerate(outputs) if at not in found]
    if any(map(is_read_only, others)) or not _share_no_memory(others, tracer):
        return None
    for out in others:
        if not is_contiguous(out):  # a part of an array that nobody sees: its strides are not C's
            tracer.avals[out.slot] = with_order(tracer.avals[out.slot], True)
    return tracer.program([out.slot for out in outputs], found)


def _views(outputs: Sequence[Any]) -> dict[int, tuple[Any, ...]]:
    """The outputs that are views of other outputs, and how to derive them."""
    out: dict[int, tuple[Any, ...]] = {}
    places = {id(each): at for at, each in enumerate(outputs)}
    if len(places) < len(outputs):
        return out
    for at, each in enumerate(outputs):
        record = view_record(each)
        base = None if record is None else places.get(id(record.base))
        if record is None or base is None or base in out or not each.ndim or not _is_known(record.args):
            continue
        out[at] = (base, record.derive, record.restore, record.args, record.contiguous)
    return out


def _is_known(x: Any) -> bool:
    """True if the attributes of a view are plain numbers or strings, not computed values."""
    return all(map(_is_known, x)) if type(x) is tuple else x is None or isinstance(x, int | str | np.integer)


def _share_no_memory(outputs: Sequence[Any], tracer: Tracer) -> bool:
    """True if no output is (part of) an input, and no two outputs share an element."""
    parts: dict[int, list[Any]] = {}
    for out in outputs:
        root = root_of(out)
        if type(root) is not Traced or root.slot < tracer.inputs or is_unclear(out):  # may be a view of a constant
            return False
        parts.setdefault(id(root), []).append(out)
    for own in parts.values():
        if len(own) > 1:
            if unknown_lengths(root_of(own[0]).shape):
                return False
            places = np.concatenate([_positions(out).ravel() for out in own])
            if len(np.unique(places)) < len(places):
                return False
    return len({id(out) for out in outputs}) == len(outputs)


def _positions(out: Any) -> np.ndarray:
    """The positions of an array's elements in its root, in C order."""
    record = view_record(out)
    if record is None:
        return np.arange(out.size).reshape(out.shape)
    return np.asarray(record.derive(_positions(record.base), *record.args))
