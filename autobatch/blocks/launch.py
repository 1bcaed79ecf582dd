"""Launching a program: all its steps for a group of examples.

For plain arrays, and arrays on a tape, the program's compiled form runs: without dispatch, and on a tape as one node
whose cotangents are computed together. Everything else runs step by step through the ops' batching rules, and so does a
program with a rule that reads values. Look-ups run before the rest. A form is compiled for each combination of operands
that have a batch axis and operands that carry a gradient.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray, off_tape
from autobatch.batches.unpadded import padded
from autobatch.blocks.batched_program import Flat, flatten, rows_of, step_by_step
from autobatch.blocks.kernel_codegen import Fused, fuse
from autobatch.blocks.numpy_codegen import (
    Code,
    NumpyWriter,
    backward_code,
    contributions,
    executed,
    forward_code,
    take_parts,
)
from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import SHORTEST, Affine
from autobatch.core.batched import Batched, Lengths
from autobatch.core.config import config
from autobatch.core.current_region import check_time
from autobatch.core.diagnostics import at_users_line, underflow_is_ignored
from autobatch.core.memory import keep_freed_memory
from autobatch.core.op import Op, is_boxed
from autobatch.errors import NeedsLoop
from autobatch.ops.rules.padding import to_width
from autobatch.tables.lookup import lookup_p

_ndarray = np.ndarray
_PLAIN = frozenset((np.ndarray, int, float, bool, complex))
RUNS_BEFORE_A_FORM = 2  # step by step; compiling costs as much time as a dozen or so runs save
RUNS_BEFORE_KERNELS = 3  # a block that runs less often would not repay the compiling of its kernel


class _Block:
    """Code as a function: plain NumPy calls, replaced by kernels once these are available.

    Attributes:
        run: the current function.
    """

    __slots__ = ("_checked", "_code", "_fused", "_kernels", "_odd", "_plain", "_runs", "run")

    def __init__(self, code: Code, *, checked: bool) -> None:
        self._code = code
        self._checked = checked
        self._plain = executed(*NumpyWriter(code).write())
        self._fused: Fused | None = None
        self._kernels: Any = None
        self._runs = self._odd = 0
        self.run: Callable[..., Any] = self._waiting

    def _poll(self, runs: int) -> None:
        """Look for the kernels before so many runs."""
        self._runs += runs
        if self._runs > RUNS_BEFORE_KERNELS and config.kernels:
            fused = self._fused = self._fused or fuse(self._code, checked=self._checked)
            self._kernels = None if fused is None else fused.ready()
            if self._kernels is not None:
                self.run, self._runs = self._with_kernels, 0
            elif fused is None or any(kernel.failed for kernel in fused.kernels):
                self.run = self._plain

    def _waiting(self, *operands: Any) -> Any:
        self._poll(1)
        return self._plain(*operands) if self._kernels is None else self._with_kernels(*operands)

    def _with_kernels(self, *operands: Any) -> Any:
        """Run with kernels; if NumPy might have warned about a result, compute everything again with NumPy."""
        if not config.kernels or not underflow_is_ignored():
            return self._plain(*operands)
        self._runs += 1
        out = self._kernels(*operands)
        return self._again(*operands) if out is None else out

    def _again(self, *operands: Any) -> Any:
        self._odd += 1
        # Each non-finite result is computed twice.
        if self._odd > 8 and 2 * self._odd > self._runs:
            self.run, self._kernels = self._plain, None
        return self._plain(*operands)

    def of_steps(self, count: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What runs each of so many steps, and what computes a step for which that returns None."""
        if self.run == self._waiting:
            self._poll(count)
        if self._kernels is None or not config.kernels or not underflow_is_ignored():
            return self._plain, self._plain
        self._runs += count
        return self._kernels, self._again


class LaunchCode:
    """A program compiled for one kind of call.

    Attributes:
        steps: the code of `forward`.
        outputs: the number of the program's results; `forward` returns them and then the values saved for `backward`.
        batched: which outputs have the batch axis.
        wanted: the positions of the operands that carry a gradient; parts: for each the places of its summands.
        least: of every length that the program does not know.
    """

    __slots__ = ("_backward", "_flat", "_saved", "batched", "least", "outputs", "parts", "steps", "wanted")

    def __init__(self, flat: Flat, wanted: tuple[int, ...]) -> None:
        code, self._saved = forward_code(flat)
        keep_freed_memory()
        self._flat = flat
        self.steps = _Block(code, checked=True)
        self._backward: _Block | None = None
        self.parts: list[list[tuple[int, ...]]] = []
        self.wanted = wanted
        self.batched = flat.batched
        self.least = flat.least
        self.outputs = len(flat.outputs)

    def forward(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, then the saved values, computed from the operands' data."""
        return self.steps.run(*operands)

    def steps_back(self) -> _Block:
        """The code of `backward`, of operands, cotangents and saved values; `parts` says what its results are."""
        if self._backward is None:
            code = backward_code(self._flat, self._saved)
            self.parts = take_parts(code)
            self._backward = _Block(code, checked=False)
        return self._backward

    def backward(self, operands: Sequence[Any], cts: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """The contributions to the cotangent of each wanted operand: None, one, or a list."""
        found = self.steps_back().run(*operands, *cts, *saved)
        return [contributions([found], own) for own in self.parts]


def form_of(program: Program, batched: tuple[bool, ...], wanted: tuple[int, ...]) -> LaunchCode | None:
    """The compiled form for a kind of call; None if it is not compiled yet (the first few runs) or cannot be."""
    key = (batched, wanted)
    found = program.forms.get(key, 0)
    if type(found) is not int:
        form: LaunchCode | None = found
        return form
    if found < RUNS_BEFORE_A_FORM:
        program.forms[key] = found + 1
        return None
    check_time()
    given = [bool(wanted) and aval.dtype.kind in "fc" for aval in program.results]
    flat = flatten(program, batched, wanted, given)
    form = program.forms[key] = None if flat is None else LaunchCode(flat, wanted)
    return form


def launch(program: Program, operands: Sequence[Any], fallbacks: Counter[str] | None = None) -> list[Any]:
    """Run a program for B examples.

    Args:
        operands: for each input `Batched` with static sizes, or one value for all examples; data plain or of an
            interpreter below (a tape).
        fallbacks: counts the steps that ran as a loop over the examples, by op and reason.

    Returns:
        For each output its rows (B, ...); a value without batch axis if no operand is `Batched`.

    >>> from autobatch.core.abstract_eval import aval_of
    >>> from autobatch.blocks.tracing import trace
    >>> vector = aval_of((2,), np.dtype(np.float64))
    >>> program = trace(lambda x, y: x * y + 1.0, [vector, vector])
    >>> launch(program, [Batched(np.array([[1.0, 2.0], [3.0, 4.0]]), (2,)), np.array([1.0, 10.0])])
    [array([[ 2., 21.],
           [ 4., 41.]])]
    """
    rows = tuple([isinstance(operand, Batched) for operand in operands])
    if True not in [own and x.scalar is not None for own, x in zip(rows, operands, strict=True)]:
        split = program.split
        if split is not None and False not in [rows[ids] and not rows[table] for table, ids in split[0]]:
            lookups, read, rest = split
            found = [lookup_p(operands[table], operands[ids].data) for table, ids in lookups]
            given = [operands[slot] for slot in read] + [Batched(x, x.shape[1:]) for x in found]
            return launch(rest, given, fallbacks)
        data = [x.data if own else x for own, x in zip(rows, operands, strict=True)]
        if (results := at_users_line(_compiled, program, data, rows)) is not None:
            return results
    operands = [Batched(x.data, x.sizes, x.scalar) if own else x for own, x in zip(rows, operands, strict=True)]
    return at_users_line(step_by_step, program, operands, fallbacks)


def launch_ragged(program: Program, operands: Sequence[Any]) -> tuple[list[Any], dict[str, Lengths]] | None:
    """`launch` of a program that does not know all lengths, by its compiled form.

    Args:
        operands: as for `launch`, with `Lengths` where the program does not know a size.

    Returns:
        The results and the lengths, as in `padded_operands`. None if it is not compiled yet or cannot be, gains
        nothing, an example is too short for it, or NumPy would warn, perhaps about padding. Then each op has to run by
        itself.
    """
    found = padded_operands(program, operands)
    if found is None:
        return None
    data, lengths = found
    own = [lengths[name].values for name in program.lengths]
    rows = tuple([isinstance(operand, Batched) for operand in operands])
    results = without_complaints(
        lambda: _compiled(program, [*data, *own], rows, min([int(each.min(initial=1 << 30)) for each in own]))
    )
    return None if results is None else (results, lengths)


def without_complaints(call: Callable[[], Any]) -> Any:
    """What a call on padded arrays returns; None if NumPy would warn, perhaps about padding."""
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            return call()
    except FloatingPointError:
        return None


def padded_operands(program: Program, operands: Sequence[Any]) -> tuple[list[Any], dict[str, Lengths]] | None:
    """The operands' data, that of equal lengths padded to one width, at least `SHORTEST`; and the lengths by name.

    None if a block of such operands gains nothing: it is for small arrays with little padding.
    """
    data: list[Any] = []
    lengths: dict[str, Lengths] = {}
    widths: dict[str, int] = {}
    for operand, aval in zip(operands, program.inputs, strict=True):
        value = operand
        if isinstance(operand, Batched):
            value = padded(operand.data)
            for axis, (size, own) in enumerate(zip(aval.shape, operand.sizes, strict=True)):
                if type(size) is Affine:
                    (name,) = size.factors
                    lengths.setdefault(name, own)
                    value = to_width(value, axis + 1, widths.setdefault(name, value.shape[axis + 1]))
        data.append(value)
    if not lengths:
        return data, lengths
    for name, known in lengths.items():
        if widths[name] < SHORTEST or known.values.sum() < 0.25 * len(known) * widths[name]:  # of padded data
            return None
    # In larger arrays, Python's time between the ops does not count.
    return None if max([getattr(off_tape(x), "nbytes", 0) for x in data]) > 1 << 19 else (data, lengths)


def _compiled(program: Program, data: Sequence[Any], rows: tuple[bool, ...], shortest: int = 0) -> list[Any] | None:
    """Run the compiled form of a program; None if there is none (yet), or none for such operands.

    Args:
        data: with the lengths that the program does not know, if any; shortest: of these.
    """
    wanted = []
    for position, x in enumerate(data):
        cls = type(x)
        if cls is not _ndarray:
            if not is_plain(x):
                return None
            if cls is TapeArray:
                wanted.append(position)
    if True not in rows:
        return None
    if wanted and not any(aval.dtype.kind in "fc" for aval in program.results):  # a test: no gradient flows back
        data = [off_tape(x) for x in data]
        wanted = []
    form = form_of(program, rows, tuple(wanted))
    if form is None or shortest < form.least:
        return None
    results = block_p(*data, call=_TapedLaunch(form)) if wanted else form.forward(data)
    if False not in form.batched:
        return list(results)
    batch = data[rows.index(True)].shape[0]
    return [x if own else rows_of(x, batch) for x, own in zip(results, form.batched, strict=True)]


def is_plain(x: Any) -> bool:
    """True for a plain array or number, and for an array on one tape with no other tape below it."""
    if type(x) is TapeArray:
        return type(x._ab_value) is np.ndarray and x._ab_tape.outer is None
    return type(x) in _PLAIN or isinstance(x, np.generic)


@dataclasses.dataclass(slots=True, eq=False)
class _TapedLaunch:
    """One launch on a tape: the compiled form, and the values saved for backward."""

    form: LaunchCode
    saved: Sequence[Any] = ()

    def run(self, *data: Any) -> tuple[Any, ...]:
        form = self.form
        results = form.forward(data)
        self.saved = results[form.outputs :]
        return tuple([np.asarray(out) for out in results[: form.outputs]])

    def walk_back(
        self, wanted: Sequence[int], cts: Sequence[Any], outs: Sequence[Any], data: Sequence[Any]
    ) -> list[Any]:
        """The cotangents of the operands, computed together."""
        form = self.form
        given = [
            np.zeros(out.shape, out.dtype) if ct is None else ct
            for ct, out in zip(cts, outs, strict=True)
            if out.dtype.kind in "fc"
        ]
        found = dict(zip(form.wanted, form.backward(data, given, self.saved), strict=True))
        return [found[position] for position in wanted]


def _walk_back(
    wanted: Sequence[int], cts: Sequence[Any], outs: Sequence[Any], args: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """The cotangents of a launch's operands.

    Raises:
        NeedsLoop: cotangents are recorded by an interpreter (a tape or trace) that was not active when the code ran.
    """
    if any(map(is_boxed, cts)):
        raise NeedsLoop("a gradient of compiled code by recorded cotangents")
    call: Any = params["call"]
    return call.walk_back(wanted, cts, outs, args)


# A launch, or a scan, on a tape: `block(*data, call=)` returns one array for each output.
block_p = Op("block", lambda *data, call: call.run(*data), joint=_walk_back, kind="block")
