"""Scan: runs a loop whose step is one program as one op, without creating objects for each step.

Each step reads its state (results of the previous step), rows of its own, and operands that stay the same. Lanes may
leave: either the number of steps is known and each step has a prefix of the lanes of the previous one, or a test before
each step says which lanes go on. The result is the last state of every lane. On a tape all steps are one node; its
backward pass runs them in reverse, and a shared matrix gets its gradient from the rows of all steps in one product.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.blocks.launch import LaunchCode, block_p, form_of, is_plain
from autobatch.blocks.numpy_codegen import contributions
from autobatch.blocks.program import Program


@dataclasses.dataclass(slots=True, eq=False)
class Test:
    """The condition by which lanes go on: a program with one boolean result, and its operands.

    Attributes:
        operands: for each the number of the state that it is, or None for an item of `data`, which never changes.
    """

    program: Program
    operands: Sequence[int | None]
    data: Sequence[Any]
    run: Callable[..., Any] | None = None

    def is_ready(self) -> bool:
        """True if the compiled program is available; loads it for the calls."""
        form = form_of(self.program, tuple([place is not None for place in self.operands]), ())
        self.run = None if form is None else form.forward
        return form is not None and form.batched == [True]

    def __call__(self, states: Sequence[Any]) -> np.ndarray:
        assert self.run is not None
        return self.run([x if at is None else states[at] for at, x in zip(self.operands, self.data, strict=True)])[0]


@dataclasses.dataclass(slots=True, eq=False)
class Stepped:
    """The number of lanes of each step, and where its rows start in operands that are read step by step.

    Args:
        offsets: one entry more than there are steps.
    """

    counts: Sequence[int]
    offsets: Sequence[int]


@dataclasses.dataclass(slots=True, eq=False)
class Scan:
    """A loop of steps of one program.

    Attributes:
        program: one step.
        states: (output, operand) for each state: the program's output that becomes it, and the operand that reads it
            (None if none does).
        rows: which operands have a row for each lane.
        stepped: which of those have separate rows for each step.
        listed: the outputs whose values at all steps are wanted.
        steps: the number of lanes of each step, or the test for lanes that go on; with a test, none has separate rows.
        lengths: those that the program does not know, of each lane; data is padded to the longest.
    """

    program: Program
    states: Sequence[tuple[int, int | None]]
    rows: tuple[bool, ...]
    stepped: Sequence[int]
    listed: Sequence[int]
    steps: Stepped | Test
    lengths: Sequence[np.ndarray] = ()
    _form: LaunchCode | None = None
    _others: Sequence[int] = ()
    _taken: Sequence[Any] = ()

    def __post_init__(self) -> None:
        carried = {operand for _, operand in self.states}
        self._others = [i for i in range(len(self.rows)) if i not in carried]

    def is_ready(self, states: Sequence[Any], operands: Sequence[Any]) -> bool:
        """True if there is compiled code for such values: numbers and arrays, plain or on a tape."""
        others = [operands[i] for i in self._others]
        if not all(map(is_plain, [*states, *others])):
            return False
        wanted: set[int] = set()
        if any(type(x) is TapeArray for x in [*states, *others]):
            wanted = {i for i, x in zip(self._others, others, strict=True) if type(x) is TapeArray}
            wanted |= {i for out, i in self.states if i is not None and self.program.results[out].dtype.kind in "fc"}
        self._form = form_of(self.program, self.rows, tuple(sorted(wanted)))
        if self._form is None or False in self._form.batched:
            return False
        if any(each.min(initial=1 << 30) < self._form.least for each in self.lengths):
            return False
        return not isinstance(self.steps, Test) or self.steps.is_ready()

    def __call__(self, states: Sequence[Any], operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Run the steps.

        Args:
            states: the initial value of each state, (lanes, ...), plain or on a tape.
            operands: the program's operands, in order; entries that stand for states are ignored.

        Returns:
            the last value of each state, for all lanes; for each listed output, the rows of all steps.
        """
        found = block_p(*states, *[operands[i] for i in self._others], call=self)
        return list(found[: len(self.states)]), list(found[len(self.states) :])

    def run(self, *data: Any) -> tuple[Any, ...]:
        """Run the steps on plain arrays."""
        count = len(self.states)
        now: Sequence[Any] = data[:count]
        args: list[Any] = [*[None] * len(self.rows), *self.lengths]
        for i, x in zip(self._others, data[count:], strict=True):
            args[i] = x
        outputs = [output for output, _ in self.states]
        feeds = [(place, operand) for place, (_, operand) in enumerate(self.states) if operand is not None]
        staying = [i for i in self._others if self.rows[i] and i not in self.stepped]
        staying += range(len(self.rows), len(args))
        buffers = [(i, args[i]) for i in self.stepped]
        last = [np.empty_like(x) for x in now]
        assert self._form is not None
        steps = self.steps
        counts = steps.counts if isinstance(steps, Stepped) else ()
        run, again = self._form.steps.of_steps(len(counts) or 1)
        taken, results = [], []
        lanes: Any = slice(0, now[0].shape[0])
        width = -1
        for step in itertools.count() if isinstance(steps, Test) else range(len(counts)):
            before = lanes
            if isinstance(steps, Test):
                stay = steps(now)
                if not stay.any():
                    break
                keep: Any = None if stay.all() else stay.nonzero()[0]
            else:
                for i, buffer in buffers:
                    args[i] = buffer[steps.offsets[step] : steps.offsets[step + 1]]
                keep = None if counts[step] == width else slice(0, counts[step])
                width = counts[step]
            if keep is not None:
                for whole, x in zip(last, now, strict=True):
                    whole[lanes] = x
                now = [_part(x, keep) for x in now]
                for i in staying:
                    args[i] = _part(args[i], keep)
                lanes = keep if type(lanes) is slice else lanes[keep]
            for place, operand in feeds:
                args[operand] = now[place]
            out = run(*args)
            if out is None:
                out = again(*args)
            if self._form.wanted:
                taken.append((args.copy(), out, keep, before))
            if self.listed:
                results.append(out)
            now = [out[i] for i in outputs]
        for whole, x in zip(last, now, strict=True):
            whole[lanes] = x
        self._taken = taken
        return (*last, *[np.concatenate([out[i] for out in results]) for i in self.listed])

    def walk_back(
        self, wanted: Sequence[int], cts: Sequence[Any], outs: Sequence[Any], data: Sequence[Any]
    ) -> list[Any]:
        """The cotangents of states and other operands, given plain cotangents of the results."""
        form, count = self._form, len(self.states)
        assert form is not None
        ends = [
            np.zeros(out.shape, out.dtype) if ct is None else np.ascontiguousarray(ct)
            for ct, out in zip(cts[:count], outs[:count], strict=True)
        ]
        run, again = form.steps_back().of_steps(len(self._taken))
        parts = dict(zip(form.wanted, form.parts, strict=True))
        rows = dict(zip(self.listed, cts[count:], strict=True))
        buffers = [
            (i, np.zeros(x.shape, x.dtype), parts[i][0][0], i in self.stepped)
            for i, x in zip(self._others, data[count:], strict=True)
            if self.rows[i] and parts.get(i)
        ]
        numbers = itertools.count()
        fixed = {
            i: [tuple([next(numbers) for _ in each]) for each in parts[i]]
            for i in self._others
            if not self.rows[i] and parts.get(i)
        }
        places = [place for i in fixed for each in parts[i] for place in each]
        kept = itemgetter(*places, places[0]) if places else None  # of several, always a tuple
        carried = [parts[i][0][0] if i is not None and parts.get(i) else None for _, i in self.states]
        state_of = {output: place for place, (output, _) in enumerate(self.states)}
        read = [
            (i, state_of.get(i), rows.get(i)) for i, aval in enumerate(self.program.results) if aval.dtype.kind in "fc"
        ]
        now: list[Any] = []
        runs: list[Any] = []
        stop = self.steps.offsets[-1] if isinstance(self.steps, Stepped) else 0
        for args, out, keep, before in reversed(self._taken):
            lanes = before if keep is None else keep if type(before) is slice else before[keep]
            now = now or [end[lanes] for end in ends]
            start = stop - out[0].shape[0]
            given = []
            for i, place, own in read:
                ct = np.zeros(out[i].shape, out[i].dtype) if place is None else now[place]
                given.append(ct if own is None else ct + own[start:stop])
            found = run(*args, *given, *out[form.outputs :])
            if found is None:
                found = again(*args, *given, *out[form.outputs :])
            if kept is not None:
                runs.append(kept(found))
            for _, buffer, at, is_stepped in buffers:
                if is_stepped:
                    buffer[start:stop] = found[at]
                else:
                    buffer[lanes] += found[at]
            stop = start
            for place, own in enumerate(carried):
                part = None if own is None else found[own]
                if keep is None:
                    now[place] = np.zeros_like(now[place]) if part is None else part
                    continue
                wide = ends[place][before].copy() if type(before) is slice else ends[place].take(before, 0)
                wide[keep] = 0 if part is None else part
                now[place] = wide
        made = {i: buffer for i, buffer, _, _ in buffers} | {i: contributions(runs, own) for i, own in fixed.items()}
        out_of = [*(now or ends), *[made.get(i) for i in self._others]]
        return [out_of[position] for position in wanted]


def _part(x: np.ndarray, lanes: Any) -> np.ndarray:
    return x[lanes] if type(lanes) is slice else x.take(lanes, 0)
