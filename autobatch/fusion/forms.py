"""The compiled forms of a program: for the operands that have a batch axis and those that carry a gradient."""

from collections.abc import Callable, Sequence
from typing import Any

from autobatch.core.config import config
from autobatch.core.diagnostics import underflow_is_ignored
from autobatch.core.memory import keep_freed_memory
from autobatch.fusion.code import Code, backward_code, forward_code
from autobatch.fusion.emit import emit
from autobatch.fusion.fuse import Fused, fuse
from autobatch.fusion.gradients import Part, contributions, take_parts
from autobatch.fusion.polymorphic import Flat, flatten
from autobatch.fusion.program import Program

__all__ = ["Form", "form_of"]

RUNS_BEFORE_A_FORM = 2  # step by step: to compile takes as long as some dozen runs save
RUNS_BEFORE_KERNELS = 3
_PATIENCE = 8  # results with infinities or NaN, computed twice, until that is what to expect


class _Block:
    """Code as a function: plain NumPy calls, and with kernels once they are there.

    Attributes:
        run: the function as it is now.
    """

    __slots__ = ("_checked", "_code", "_fused", "_kernels", "_odd", "_plain", "_runs", "run")

    def __init__(self, code: Code, *, checked: bool) -> None:
        self._code = code
        self._checked = checked
        self._plain = emit(code)
        self._fused: Fused | None = None
        self._kernels: Any = None
        self._runs = self._odd = 0
        self.run: Callable[..., Any] = self._waiting

    def _waiting(self, *operands: Any) -> Any:
        self._runs += 1
        if self._runs > RUNS_BEFORE_KERNELS and config.kernels:
            if self._fused is None:
                self._fused = fuse(self._code, checked=self._checked)
            fused = self._fused
            self._kernels = None if fused is None else fused.ready()
            if self._kernels is not None:
                self.run, self._runs = self._with_kernels, 0
                return self.run(*operands)
            if fused is None or fused.failed:
                self.run = self._plain
        return self._plain(*operands)

    def _with_kernels(self, *operands: Any) -> Any:
        """With kernels, unless something in the result may be what NumPy complains of: then as NumPy does it."""
        if not config.kernels or not underflow_is_ignored():
            return self._plain(*operands)
        self._runs += 1
        out = self._kernels(*operands)
        if out is not None:
            return out
        self._odd += 1
        if self._odd > _PATIENCE and 2 * self._odd > self._runs:
            self.run = self._plain
        return self._plain(*operands)


class Form:
    """A program compiled for one kind of call.

    Attributes:
        outputs: how many results the program has; the rest of what `forward` returns is saved for `backward`.
        batched: which outputs have the batch axis.
        flags: which operands have it; wanted: the positions of those that carry a gradient.
    """

    __slots__ = ("_backward", "_flat", "_forward", "_parts", "_saved", "batched", "flags", "outputs", "wanted")

    def __init__(self, flat: Flat, flags: tuple[bool, ...], wanted: tuple[int, ...]) -> None:
        code, self._saved = forward_code(flat)
        keep_freed_memory()
        self._flat = flat
        self._forward = _Block(code, checked=True)
        self._backward: _Block | None = None
        self._parts: list[list[Part]] = []
        self.flags = flags
        self.wanted = wanted
        self.batched = flat.batched
        self.outputs = len(flat.outputs)

    def forward(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, and what is saved, from the operands' data."""
        result: tuple[Any, ...] = self._forward.run(*operands)
        return result

    def backward(self, operands: Sequence[Any], cts: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """What is added to the cotangent of each wanted operand: None, one contribution, or a list."""
        if self._backward is None:
            code = backward_code(self._flat, self._saved)
            self._parts = take_parts(code)
            self._backward = _Block(code, checked=False)
        return contributions(self._parts, self._backward.run(*operands, *cts, *saved))


def form_of(program: Program, batched: tuple[bool, ...], wanted: tuple[int, ...]) -> Form | None:
    """The compiled form for a kind of call, after some of them; None: the program runs step by step."""
    key = (batched, wanted)
    found = program.forms.get(key, 0)
    if type(found) is not int:
        form: Form | None = found
        return form
    if found < RUNS_BEFORE_A_FORM:
        program.forms[key] = found + 1
        return None
    given = [bool(wanted) and aval.dtype.kind in "fc" for aval in program.results]
    flat = flatten(program, batched, wanted, given)
    form = program.forms[key] = None if flat is None else Form(flat, batched, wanted)
    return form
