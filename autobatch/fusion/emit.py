"""Batched code as one Python function: NumPy calls in a row, without dispatch, reusing the arrays they make."""

import linecache
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.memory import transposed
from autobatch.fusion.code import Code, assemble_p, is_covered
from autobatch.fusion.polymorphic import Affine, Kind
from autobatch.fusion.program import Step
from autobatch.ops.numpy.contractions import matmul_p
from autobatch.ops.numpy.indexing import getitem_p
from autobatch.ops.numpy.shaping import reshape_p, transpose_p
from autobatch.ops.rules.indexing import build

__all__ = ["Writer", "emit", "executed", "shape_text", "source_of"]


def emit(code: Code) -> Callable[..., tuple[Any, ...]]:
    """A function of the code's inputs that returns its outputs, None where there is none."""
    return executed(*Writer(code).write())


def executed(text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that a source defines; tracebacks and profilers find its lines."""
    filename = f"{__file__}: block {zlib.crc32(text.encode()):08x}"
    linecache.cache[filename] = len(text), None, text.splitlines(True), filename
    exec(compile(text, filename, "exec"), names)
    block: Callable[..., Any] = names["block"]
    return block


def source_of(code: Code) -> str:
    """What `emit` compiles."""
    return Writer(code).write()[0]


class Writer:
    """The lines written so far, and what is known of the memory behind each slot.

    Attributes:
        roots: the slots that a slot may share memory with, itself included.
        owned: slots whose whole memory was made by a step and is theirs alone.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "matmul": np.matmul,
            "transposed": transposed,
            "empty": np.empty,
            "zeros": np.zeros,
            "contiguous": np.ascontiguousarray,
        }
        self.roots: dict[int, frozenset[int]] = {slot: frozenset((slot,)) for slot in code.kinds}
        self.owned: set[int] = set()
        self.last: dict[int, int] = {}
        self.kept: set[int] = set()

    def write(self) -> tuple[str, dict[str, Any]]:
        """All steps in a row: the source, and the values of the names in it."""
        self.start()
        self._follow_memory()
        dying = self._dying()
        for at, step in enumerate(self.code.steps):
            self.lines.append(self.line(at, step))
            if dying[at]:
                self.lines.append(f"del {', '.join(f'v{slot}' for slot in dying[at])}")
        return self.finish(), self.names

    def start(self) -> None:
        """What comes before the steps."""
        for slot, value in self.code.constants.items():
            self.names[f"v{slot}"] = value
        counted = next((slot for slot in self.code.inputs if _leads(self.code.kinds[slot])), None)
        if counted is not None:
            self.lines.append(f"n = v{counted}.shape[0]")

    def finish(self) -> str:
        """What comes after them; the whole source."""
        results = "".join("None, " if slot is None else f"v{slot}, " for slot in self.code.outputs)
        self.lines.append(f"return ({results})")
        head = f"def block({', '.join(f'v{slot}' for slot in self.code.inputs)}):"
        return "\n    ".join([head, *self.lines]) + "\n"

    def _follow_memory(self) -> None:
        """Which slots may share memory, and when each was last read, under any name."""
        for at, step in enumerate(self.code.steps):
            if _makes_new(step):
                self.owned.add(step.out)
            else:
                self.roots[step.out] = frozenset((step.out,)).union(*(self.roots[slot] for slot in step.args))
            for slot in step.args:
                for root in self.roots[slot]:
                    self.last[root] = at
        for result in self.code.outputs:
            if result is not None:
                self.kept |= self.roots[result]

    def _dying(self) -> list[list[int]]:
        """For each step the results that nothing reads after it, so that their memory goes early."""
        out: list[list[int]] = [[] for _ in self.code.steps]
        made = {step.out for step in self.code.steps}
        returned = set(self.code.outputs)
        last: dict[int, int] = {}
        for at, step in enumerate(self.code.steps):
            for slot in step.args:
                last[slot] = at
        for slot, at in last.items():
            if slot in made and slot not in returned:
                out[at].append(slot)
        return out

    def line(self, at: int | None, step: Step) -> str:
        """One step; `at` is its place if memory of operands may be reused."""
        args = [f"v{slot}" for slot in step.args]
        out = f"v{step.out}"
        op, params = step.op, step.params
        if op is assemble_p:
            return self._assemble(step)
        if isinstance(op.impl, np.ufunc) and op.kind == "elementwise" and not params:
            call = self.name(op.impl.__name__, op.impl)
            reused = None if at is None else self._reusable(at, step)
            return f"{out} = {call}({', '.join([*args, *([] if reused is None else [f'out=v{reused}'])])})"
        if op is matmul_p and not params and all(len(self.code.kinds[slot].shape) == 2 for slot in step.args):
            return f"{out} = matmul({args[0]}, {args[1]})"
        if op is getitem_p and all(slot in self.code.constants for slot in step.args[1:]):
            index = build(params["spec"], [self.code.constants[slot] for slot in step.args[1:]])
            return f"{out} = {args[0]}[{self.name('index', index)}]"
        if op is transpose_p and len(step.args) == 1:
            if step.args[0] in self.code.inputs and params["axes"] == (1, 0) and not _leads(self._kind(step.args[0])):
                return f"{out} = transposed({args[0]})"
            return f"{out} = {args[0]}.transpose({params['axes']!r})"
        if op is reshape_p and len(step.args) == 1:
            return f"{out} = {args[0]}.reshape({shape_text(params['shape'])})"
        call = self.name(op.name, op.impl)
        given = [f"{name}={self._value(value)}" for name, value in params.items()]
        return f"{out} = {call}({', '.join([*args, *given])})"

    def _kind(self, slot: int) -> Kind:
        return self.code.kinds[slot]

    def _assemble(self, step: Step) -> str:
        shape, places = step.params["shape"], step.params["places"]
        lines = [self.allocation(step.out, "empty" if is_covered(places, shape) else "zeros")]
        for slot, (axis, start, stop) in zip(step.args, places, strict=True):
            lines.append(f"v{step.out}[{':, ' * axis}{start}:{stop}] = v{slot}")
        return "; ".join(lines)

    def allocation(self, slot: int, make: str) -> str:
        """A new array for a slot."""
        kind = self._kind(slot)
        return f"v{slot} = {make}({shape_text(kind.shape)}, {self.name('dtype', kind.dtype)})"

    def _reusable(self, at: int, step: Step) -> int | None:
        """An operand that is read for the last time here, and whose memory fits the result."""
        kind = self._kind(step.out)
        if not kind.shape or kind.scalar:
            return None
        for slot in step.args:
            own = self._kind(slot)
            if slot not in self.owned or own.dtype != kind.dtype or own.shape != kind.shape:
                continue
            if self.last[slot] == at and slot not in self.kept:
                self.owned.discard(slot)
                return slot
        return None

    def name(self, wish: str, value: Any) -> str:
        """A name for a value, one that nothing else has."""
        name = "".join(c if c.isalnum() else "_" for c in wish)
        count = 0
        while (free := f"{name}_{count}") in self.names and self.names[free] is not value:
            count += 1
        self.names[free] = value
        return free

    def _value(self, value: Any) -> str:
        if _varies(value):
            return shape_text(value)
        return self.name("value", value)


def _makes_new(step: Step) -> bool:
    op = step.op
    if isinstance(op.impl, np.ufunc) and op.kind == "elementwise":
        return True
    return op is assemble_p or op is matmul_p


def _leads(kind: Kind) -> bool:
    """Whether the first dimension is the batch's."""
    return bool(kind.shape) and isinstance(kind.shape[0], Affine) and (kind.shape[0].a, kind.shape[0].b) == (1, 0)


def _varies(value: Any) -> bool:
    if type(value) is tuple:
        return any(map(_varies, value))
    return isinstance(value, Affine)


def shape_text(value: Any) -> str:
    """A value as Python source in which `n` is the number of examples."""
    if type(value) is tuple:
        return f"({''.join(shape_text(part) + ', ' for part in value)})"
    if isinstance(value, Affine):
        return f"{value.a} * n + {value.b}"
    return repr(value)
