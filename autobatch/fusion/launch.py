"""Launching a program: all its steps for a group of examples.

On plain arrays, and on those of a tape, the program's compiled form runs: without dispatch, and on the tape as one
node whose cotangents are computed together. Everything else runs step by step through the ops' batching rules; look-ups
in tables of other representations go before the rest, which then is plain.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import Tape, TapeArray
from autobatch.core.batched import Batched
from autobatch.core.op import Op, is_boxed
from autobatch.fusion.forms import Form, form_of
from autobatch.fusion.lookups import lookups_apart
from autobatch.fusion.program import Program
from autobatch.fusion.stepping import rows_of, run_op, step_by_step

__all__ = ["launch", "launch_rows"]

_ndarray = np.ndarray
_PLAIN = frozenset((np.ndarray, int, float, bool, complex))


def launch(program: Program, operands: Sequence[Any], fallbacks: Counter[str] | None = None) -> list[Any]:
    """Run a program for B examples.

    Args:
        operands: for each input `Batched` with static sizes, or one value for all examples; data plain or of an
            interpreter below (a tape).
        fallbacks: counts the steps that ran as a loop over the examples, by their reason.

    Returns:
        For each output its rows (B, ...); one value without a batch axis if no operand is `Batched`.

    >>> from autobatch.core.abstract_eval import aval_of
    >>> from autobatch.fusion.tracing import trace
    >>> vector = aval_of((2,), np.dtype(np.float64))
    >>> program = trace(lambda x, y: x * y + 1.0, [vector, vector])
    >>> launch(program, [Batched(np.array([[1.0, 2.0], [3.0, 4.0]]), (2,)), np.array([1.0, 10.0])])
    [array([[ 2., 21.],
           [ 4., 41.]])]
    """
    rows = tuple([type(operand) is Batched for operand in operands])
    weak = any(own and operand.scalar is not None for operand, own in zip(operands, rows, strict=True))
    data = [operand.data if own else operand for operand, own in zip(operands, rows, strict=True)]
    results = None if weak else _compiled(program, data, rows)
    return _by_steps(program, operands, weak, fallbacks) if results is None else results


def launch_rows(
    program: Program, data: Sequence[Any], rows: tuple[bool, ...], fallbacks: Counter[str] | None = None
) -> list[Any]:
    """`launch`, without an object for each operand.

    Args:
        data: for each input its rows, one for each example, or one value for all examples; no Python numbers by row.
        rows: which are rows.
    """
    results = _compiled(program, data, rows)
    if results is None:
        operands = [Batched(x, x.shape[1:]) if own else x for x, own in zip(data, rows, strict=True)]
        results = _by_steps(program, operands, False, fallbacks)
    return results


def _compiled(program: Program, data: Sequence[Any], rows: tuple[bool, ...]) -> list[Any] | None:
    """Run the compiled form of a program; None if there is none yet, or none for such operands."""
    wanted = []
    for position, x in enumerate(data):
        kind = type(x)
        if kind is not _ndarray:
            if not _is_plain(x):
                return None
            if kind is TapeArray:
                wanted.append(position)
    if True not in rows:
        return None
    if wanted and not any(aval.dtype.kind in "fc" for aval in program.results):  # a test: no gradient comes back
        data = [_off_tape(x) for x in data]
        wanted = []
    form = form_of(program, rows, tuple(wanted))
    if form is None:
        return None
    results = block_p(*data, call=_Call(program, form)) if wanted else form.forward(data)
    if False not in form.batched:
        return list(results)
    batch = data[rows.index(True)].shape[0]
    return [x if own else rows_of(x, batch) for x, own in zip(results, form.batched, strict=True)]


def _off_tape(x: Any) -> Any:
    while type(x) is TapeArray:
        x = x.value
    return x


def _by_steps(program: Program, operands: Sequence[Any], weak: bool, fallbacks: Counter[str] | None) -> list[Any]:
    """Run a program step by step; look-ups of operands that no compiled form takes go before the rest."""
    data = (x.data if isinstance(x, Batched) else x for x in operands)
    apart = lookups_apart(program) if weak or not all(map(_is_plain, data)) else None
    if apart is None:
        return step_by_step(program, operands, fallbacks)
    rows = [
        run_op(step.op, [operands[slot] for slot in step.args], step.params, program.avals[step.out], fallbacks)
        for step in apart.lookups
    ]
    return launch(apart.rest, [*(operands[slot] for slot in apart.kept), *rows], fallbacks)


def _is_plain(x: Any) -> bool:
    """Whether a value is a plain array or number, or an array on one tape or several."""
    if type(x) is TapeArray:
        return type(_off_tape(x)) is np.ndarray
    return type(x) in _PLAIN or isinstance(x, np.generic)


class _Call:
    """One launch on a tape: the program, its compiled form, and what forward left for backward."""

    __slots__ = ("form", "program", "saved")

    def __init__(self, program: Program, form: Form) -> None:
        self.program = program
        self.form = form
        self.saved: Sequence[Any] = ()


def _run(*data: Any, call: _Call) -> tuple[Any, ...]:
    form = call.form
    results = form.forward(data)
    call.saved = results[form.outputs :]
    return tuple([np.asarray(out) for out in results[: form.outputs]])


def _joint(
    wanted: Sequence[int], cts: Sequence[Any], outs: Sequence[Any], args: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """The cotangents of a launch, together; on an interpreter below by the ordinary walk over its steps."""
    call: _Call = params["call"]
    form = call.form
    if any(map(is_boxed, args)) or any(map(is_boxed, cts)):
        return _joint_by_steps(wanted, cts, args, call)
    given = [
        np.zeros(out.shape, out.dtype) if ct is None else ct
        for ct, out in zip(cts, outs, strict=True)
        if out.dtype.kind in "fc"
    ]
    found = dict(zip(form.wanted, form.backward(args, given, call.saved), strict=True))
    return [found[position] for position in wanted]


def _joint_by_steps(wanted: Sequence[int], cts: Sequence[Any], args: Sequence[Any], call: _Call) -> list[Any]:
    tape = Tape()
    boxes = list(args)
    for position in wanted:
        boxes[position] = tape.leaf(args[position])
    kinds: Sequence[Any] = call.program.inputs
    operands = [Batched(x, k.shape) if own else x for x, k, own in zip(boxes, kinds, call.form.flags, strict=True)]
    results = step_by_step(call.program, operands, None)
    heads = [(x, ct) for x, ct in zip(results, cts, strict=True) if ct is not None and type(x) is TapeArray]
    heads = [(x, ct) for x, ct in heads if x.tape is tape]
    if not heads:
        return [None] * len(wanted)
    leaves = [boxes[position] for position in wanted]
    return tape.backward_from([x for x, _ in heads], [ct for _, ct in heads], leaves)


# A launch on a tape: `block(*data, call=)`, one array for each output.
block_p = Op("block", _run, joint=_joint, kind="block")
