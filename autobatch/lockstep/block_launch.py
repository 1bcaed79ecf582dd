"""Blocks: a straight-line run of array expressions as one launch for all lanes of the region.

The rewritten code calls a block's `Site` with the values that the block reads. Where they suit (arrays that have one
shape in all lanes, arrays and numbers that the lanes share) the site answers with the values that live on; else with
None, and the statements run as they stand. What of a block depends on nothing but the items of a loop and shared values
holds for all its steps: where that includes a product, it runs ahead, for many steps at once (`lockstep.ahead`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.examples import broadcast
from autobatch.batches.masked import MaskedBatch
from autobatch.blocks.inputs import Guard
from autobatch.blocks.launch import launch, launch_rows
from autobatch.blocks.program import Program, Split, split
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import WEAK, aval_of, is_non_c_order
from autobatch.core.batched import Batched
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.lockstep.lookahead import Ahead, Chunk, in_silence, rows_of
from autobatch.ops.rules.aliasing import is_contiguous, is_scalar, zero_d
from autobatch.ops.rules.row_gather import rows_between

_NUMERIC = frozenset("biufc")
_INDEX = (int, bool, str, float, type(None), tuple, type(Ellipsis), slice, type, np.dtype)


def is_new(out: Any) -> bool:
    """Whether an output lies as a new array does, so that whether a reshape of it is a view is known again."""
    return is_contiguous(out) or (is_non_c_order(out) and getattr(out, "_view", None) is None)


def kind_of(value: Any, static: bool) -> tuple[Any, Any] | None:
    """A hashable key for the kind of an input, and its aval for tracing (None: a constant); None without a kind."""
    kind: Any = type(value)
    if kind is MaskedBatch:
        data = value.data
        plain = type(data) is np.ndarray or (type(data) is TapeArray and type(data.value) is np.ndarray)
        if not plain or value.is_ragged or data.dtype.kind not in _NUMERIC or value.scalar is not None:
            return None
        scalar = is_scalar(value)
        non_c_order = is_non_c_order(value)
        return ("b", value.sizes, data.dtype, scalar, non_c_order), aval_of(
            value.sizes, data.dtype, scalar, non_c_order
        )
    if kind in WEAK and not static:
        return ("w", kind), WEAK[kind]
    if isinstance(value, np.generic) and not static:
        return (("w", kind), aval_of((), value.dtype, True)) if value.dtype.kind in _NUMERIC else None
    if kind is np.ndarray or (kind is TapeArray and type(value.value) is np.ndarray):
        if value.dtype.kind not in _NUMERIC:
            return None
        non_c_order = is_non_c_order(value)
        return ("s", value.shape, value.dtype, non_c_order), aval_of(value.shape, value.dtype, non_c_order=non_c_order)
    if kind is tuple and not all(type(part) is int for part in value):
        return None
    return (("c", kind, repr(value)), None) if static and isinstance(value, _INDEX) else None


def batch_of(rows: Any, kind: tuple[Any, bool, bool], region: Any) -> Any:
    """Rows that a block made as a batch.

    Args:
        kind: the sizes of an example's array; whether it is a 0-d array; whether it may not be in C order.
    """
    sizes, zero_dim, non_c_order = kind
    batch = MaskedBatch.of_data(rows, sizes, region)
    if non_c_order:
        batch._ab_set_order(True)
    return zero_d(batch) if zero_dim else batch


_MOST_PROGRAMS = 16  # of one site; beyond it the shapes change too often to be worth tracing
_CALLS = 4  # of a block in one call, after which what its shared operands make is kept
_MOST_FAILURES = 4  # in one call, after which the statements run as they stand


class Site:
    """One block in the code of one function.

    Args:
        body: the block as a function of its inputs, which returns the values that live on.
        static: for each input, whether a number there is part of the program (an index, an axis).
        guards: the global names that it relies on.

    Attributes:
        whole: it is the body of a loop that no lane leaves before its end.
    """

    __slots__ = ("body", "guards", "programs", "seen", "splits", "static", "whole")

    def __init__(self, body: Callable[..., Any], static: Sequence[bool], guards: Sequence[Guard] = ()) -> None:
        self.body = body
        self.guards = tuple(guards)
        self.static = tuple(static)
        self.programs: dict[Any, Program | None] = {}
        self.splits: dict[Any, Split | None] = {}
        self.seen: Any = None
        self.whole = False

    def __call__(self, *values: Any) -> tuple[Any, ...] | None:
        region: Any = current_region()
        if region is None:
            return None
        root = region.root
        run = root.blocks.get(self)
        if run is None:
            root.blocks[self] = run = BlockRun(self)
        elif run.suits(values):
            return run(values, region)
        return run.start(values, region, root)

    def promoted(self, key: Any) -> Any:
        """The key of a known program that takes batches where these operands have arrays of their shape, or None.

        So the first step of a loop, whose state is still the same in all lanes, is a step like the others.
        """
        for known, program in self.programs.items():
            if program is not None and all(map(_promotes, key, known)):
                return known
        return None

    def program(self, key: Any, kinds: Sequence[Any], values: Sequence[Any]) -> Program | None:
        """The program for operands of these kinds; None for inputs that are not operands but constants."""
        if key in self.programs:
            return self.programs[key]
        if self.seen != key:  # what runs once only is not worth tracing
            self.seen = key
            return None
        if len(self.programs) >= _MOST_PROGRAMS:
            return None
        places = [i for i, kind in enumerate(kinds) if kind is not None]

        def body(*operands: Any) -> Any:
            arguments = list(values)
            for i, operand in zip(places, operands, strict=True):
                arguments[i] = operand
            out = self.body(*arguments)
            out = out if type(out) is tuple else (out,)
            if not all(map(is_new, out)):
                raise ValueError
            return out if len(out) > 1 else out[0]  # as a call with one result gives it

        program = trace(body, [kinds[i] for i in places])
        if program is not None and not all(program.varying([key[at][0] == "b" for at in places])):
            program = None
        self.programs[key] = program
        return program


def _promotes(own: Any, known: Any) -> bool:
    return own == known or (own[0] == "s" and known == ("b", own[1], own[2], False, own[3]))


class BlockRun:
    """A block in one lock-step call: its last operands, and the results computed ahead for them."""

    __slots__ = (
        "ahead", "batches", "buffers", "calls", "constants", "failures", "fixed", "items", "numbers", "once",
        "operands", "outputs", "program", "rest", "rows", "site", "split",
    )  # fmt: skip

    def __init__(self, site: Site) -> None:
        self.site = site
        self.failures = 0
        self.program: Program | None = None
        self.ahead = Ahead(site.whole)
        self.split: Split | None = None
        self.once: list[Any] | None = None
        self.buffers: list[Any] = []

    def suits(self, values: Sequence[Any]) -> bool:
        """Whether the operands are what they were in the step before, as far as the program goes."""
        if self.program is None:
            return False
        for i, known, index in self.fixed:
            value = values[i]
            if value is not known or (index is not None and value.index != index):
                return False
        for i, kind in self.numbers:
            if type(values[i]) is not kind:
                return False
        for i, constant in self.constants:
            value = values[i]
            if value is not constant and (type(value) is not type(constant) or value != constant):
                return False
        rows = self.ahead.rows
        if rows is not None:
            for i, each in self.items:
                if values[i] is not each.last or each.step != rows.step:
                    return False
        for i, sizes, dtype, scalar, non_c_order in self.batches:
            value = values[i]
            if type(value) is not MaskedBatch or value.sizes != sizes or value.data.dtype is not dtype:
                return False
            if value.scalar is not None or (not sizes and is_scalar(value) is not scalar):
                return False
            if (value._view is not None and value._view.non_c_order) is not non_c_order:
                return False
        return True

    def start(self, values: Sequence[Any], region: Any, root: Any) -> tuple[Any, ...] | None:
        """Find the program for these operands, and run it; None if there is none."""
        self.program = None
        if self.failures >= _MOST_FAILURES or not config.blocks:
            return None
        if not all(guard.holds() for guard in self.site.guards):
            self.failures = _MOST_FAILURES
            return None
        kinds = [kind_of(value, static) for value, static in zip(values, self.site.static, strict=True)]
        if None in kinds or not any(kind[0][0] == "b" for kind in kinds):  # type: ignore[index]
            self.failures += 1
            return None
        key = tuple([kind[0] for kind in kinds])  # type: ignore[index]
        known = None if key in self.site.programs else self.site.promoted(key)
        if known is not None:
            values = [
                broadcast(value, region.count) if own != each else value
                for value, own, each in zip(values, key, known, strict=True)
            ]
            key = known
        program = self.site.program(key, [kind[1] for kind in kinds], values)  # type: ignore[index]
        if program is None:
            self.failures += key in self.site.programs
            return None
        self.failures = self.calls = 0
        self.program = program
        self.rows = tuple([each[0] == "b" for each, kind in zip(key, kinds, strict=True) if kind[1] is not None])  # type: ignore[index]
        self.operands = [i for i, kind in enumerate(kinds) if kind[1] is not None]  # type: ignore[index]
        self.batches = [(i, *each[1:]) for i, each in enumerate(key) if each[0] == "b"]
        self.fixed = [(i, values[i], getattr(values[i], "index", None)) for i, each in enumerate(key) if each[0] == "s"]
        self.numbers = [(i, each[1]) for i, each in enumerate(key) if each[0] == "w"]
        self.constants = [(i, values[i]) for i, each in enumerate(key) if each[0] == "c"]
        self.outputs = [(aval.shape, not aval.ndim and not aval.scalar, aval.non_c_order) for aval in program.results]
        self._look_ahead(values, key, root)
        return self(values, region)

    def _look_ahead(self, values: Sequence[Any], key: Any, root: Any) -> None:
        """Find what of the program the loop does not carry."""
        ahead = self.ahead
        ahead.drop()
        ahead.rows = self.split = None
        first: Any = None
        self.items: list[tuple[int, Any]] = []
        for i, *_ in self.batches:
            rows = rows_of(values[i], root)
            if rows is not None and (first is None or _together(rows, first)):
                self.items.append((i, rows))
                first = first or rows
        if first is not None:
            self._split()
            if self.split is not None and self.split.ahead is not None:
                ahead.rows = first

    def _split(self) -> None:
        """Split the program by its operands: parts computed once, ahead, and in each step."""
        place = {i: at for at, i in enumerate(self.operands)}
        items = tuple(place[i] for i, _ in self.items)
        key = (self.program, items)
        if key not in self.site.splits:
            assert self.program is not None
            self.site.splits[key] = split(self.program, items, [place[i] for i, _, _ in self.fixed])
        self.split = parts = self.site.splits[key]
        self.once = None
        if parts is not None:
            ahead = len(parts.ahead.outputs) if parts.ahead is not None else 0
            once = len(parts.rest.inputs) - len(parts.rest_inputs) - ahead
            self.rest = (*[self.rows[i] for i in parts.rest_inputs], *[False] * once, *[True] * ahead)

    def _data(self, values: Sequence[Any], region: Any) -> list[Any]:
        data = []
        for i in self.operands:
            value = values[i]
            if type(value) is MaskedBatch:
                value = value.data if value.region is region else region.narrow(value).data
            data.append(value)
        return data

    def next_steps(self, values: Sequence[Any], region: Any, chunk: Chunk | None) -> "NextSteps | None":
        """The `NextSteps` of a chunk that begins with the next step; None if they cannot be known.

        Args:
            values: the inputs as the last step left them.
            chunk: None for steps without items.
        """
        data = self._data(values, region)
        rows = dict(self.items)
        if self.split is None and not rows and self.calls < _CALLS:
            self._split()
            self.calls = _CALLS
        if any(each.last.region is not region for each in rows.values()) or self.program is None:
            return None
        parts = self.split
        out = NextSteps()
        inputs: Sequence[int] = range(len(self.operands))
        out.program, out.rows, early = self.program, self.rows, []
        if parts is not None:
            if self._from_fixed(data) is None or not parts.rest.steps:
                return None
            assert self.once is not None
            out.program, out.rows, inputs = parts.rest, self.rest, parts.rest_inputs
            if parts.ahead is not None:
                assert chunk is not None
                assert self.ahead.chunk is not None
                start = self.ahead.chunk.offsets[chunk.first - self.ahead.chunk.first]
                early = [rows_between(buffer, start, start + chunk.offsets[-1]) for buffer in self.buffers]
            early = [*self.once, *early]
        out.places = [*[self.operands[i] for i in inputs], *[None] * len(early)]
        out.data = [*[data[i] for i in inputs], *early]
        out.stepped = [
            i for i, at in enumerate(out.places) if (at is None and out.rows[i]) or (at is not None and at in rows)
        ]
        for i in out.stepped:
            at = out.places[i]
            if at is not None:
                out.data[i] = rows[at].packed(chunk)
        return out

    def __call__(self, values: Sequence[Any], region: Any) -> tuple[Any, ...]:
        data = self._data(values, region)
        self.calls += 1
        if self.calls == _CALLS and self.split is None:  # a loop, if not over rows
            self.items = []
            self._split()
        parts = self.split
        early: list[Any] | None = None
        if parts is not None:
            early = self._early(data, region) if parts.ahead is not None else self._from_fixed(data)
        if early is None:
            assert self.program is not None
            if parts is not None:
                self.split = None
                if parts.ahead is not None:
                    self.calls = 0
            results = launch_rows(self.program, data, self.rows)
        else:
            assert parts is not None
            assert self.once is not None
            data = [*[data[i] for i in parts.rest_inputs], *self.once, *early]
            if parts.rest.steps:
                results = launch_rows(parts.rest, data, self.rest)
            else:
                results = [data[slot] for slot in parts.rest.outputs]
        return tuple([batch_of(rows, kind, region) for rows, kind in zip(results, self.outputs, strict=True)])

    def _from_fixed(self, data: Sequence[Any]) -> list[Any] | None:
        """Compute, once, what depends on the fixed operands alone; None if NumPy would warn of it.

        Returns:
            what comes ahead of the step beside it: nothing.
        """
        if self.once is None:
            parts = self.split
            assert parts is not None

            def fill() -> None:
                self.once = launch(parts.once, [data[i] for i in parts.once_inputs]) if parts.once else []

            if not in_silence(fill):
                return None
        return []

    def _early(self, data: Sequence[Any], region: Any) -> list[Any] | None:
        """The result that was computed ahead for the current step; None if there is none."""
        chunk = self.ahead.reach(region, lambda chunk: self._fill(chunk, data))
        if chunk is None:
            return None
        rows = self.ahead.rows
        at = rows.last.region
        out = [chunk.step(buffer, rows.step) for buffer in self.buffers]
        return out if at is region else [region.narrow(MaskedBatch.of_data(x, x.shape[1:], at)).data for x in out]

    def _fill(self, chunk: Chunk, data: Sequence[Any]) -> bool:
        """Compute what a chunk of steps has of the program."""
        parts = self.split
        assert parts is not None
        rows = dict(self.items)
        known = {at: rows[i] for at, i in enumerate(self.operands) if i in rows}
        if self._from_fixed(data) is None:
            return False
        assert self.once is not None
        assert parts.ahead is not None
        given = []
        for i in parts.ahead_inputs:
            packed = known[i].packed(chunk) if i in known else None
            given.append(data[i] if packed is None else Batched(packed, packed.shape[1:]))
        self.buffers = launch(parts.ahead, [*given, *self.once])
        return True


class NextSteps:
    """The launches of a block for steps to come.

    Attributes:
        program: what is left of the block's.
        data: its operands; rows: which have a row for each lane; stepped: which have rows of their own in each step.
        places: for each operand the input of the block that it is, or None for what was computed before.
    """

    __slots__ = ("data", "places", "program", "rows", "stepped")

    program: Program
    data: list[Any]
    rows: tuple[bool, ...]
    stepped: list[int]
    places: list[int | None]


def _together(a: Any, b: Any) -> bool:
    """Whether two sequences of rows belong to one loop and are at one step of it."""
    return a.order is b.order and a.step == b.step and a.last.region is b.last.region
