"""`ab.map`: trace the examples and run them together; if that fails, restore changed state and run them as a loop."""

import contextlib
import dataclasses
import functools
import gc
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import count_refusals, forget_refusals, keep_before
from autobatch.core.current_region import Arguments, Example, current_region, example, run_loop
from autobatch.core.diagnostics import raised_at, warn_fallback
from autobatch.core.memory import collector_paused, run_all, write_all
from autobatch.core.op import BATCH_RANK, rank_of
from autobatch.core.parameter_trees import is_array_like
from autobatch.core.pytree import leaves, leaves_of_kind
from autobatch.core.recorded_array import is_recorded
from autobatch.core.snapshot import MANY, Snapshot
from autobatch.errors import (
    COPY_FIRST,
    RETURN_VALUES,
    NeedsLoop,
    Reason,
    ShapeError,
    UnsupportedError,
    note_example,
    reason_of,
)
from autobatch.lazy.example_recorder import ExampleRecorder, Recorders
from autobatch.lazy.example_state import ExampleState, shows_classes, shows_identity, shows_order, without_source
from autobatch.lazy.fibers import Fibers, Joining, active_trace
from autobatch.lazy.launching import Stats
from autobatch.lazy.trace import Trace, finish, record_lookups, wrap_example, wrap_shared
from autobatch.program.source import is_rewritten


def map_with_stats(
    function: Callable[..., Any],
    form: Callable[..., Any],
    by_op: Callable[..., Any],
    example_sequences: Sequence[Any],
    shared: dict[str, Any],
    arguments_of: Arguments | None,
    forget: Callable[[], Any],
    first: int,
    joining: Joining | None,
    recorders_of: Callable[[dict[str, Any]], Recorders | None],
) -> tuple[list[Any], Stats]:
    """`[function(x, **shared) for x in examples]`, and the statistics of the launches.

    Args:
        form: the form of the function that is called while examples are recorded; by_op: that without blocks.
        arguments_of: maps (values of an example, shared arguments) to (args, kwargs) of its call; None: the values
            by position, the shared arguments by keyword.
        forget: releases the functions met during the run; called when the map has run.
        first: the place of the first example in its batch.
        joining: gives more examples while these run, if the function changes nothing; their results follow those of
            the examples. The result is None for an example for which `joining.raised` was called.
        recorders_of: maps the shared arguments, as the examples see them, to the function's generated recorders.

    Raises:
        OverTime: the deadline has passed; all state is restored.
        Exception: from a batched call, if `joining` is in use; which example is at fault is not known.
    """
    if current_region() is not None and any(rank_of(x) == BATCH_RANK for x in leaves([example_sequences, shared])):
        raise NeedsLoop("ab.map over values of each example")
    columns = [examples_in(sequence) for sequence in example_sequences]
    count = common_length(columns)
    outer = active_trace()
    if outer is not None and outer.park is not None:
        return [run_plain(form, columns, index, shared, arguments_of, first) for index in range(count)], outer.stats
    if count == 0:
        return [], Stats()
    run = _Map(function, form, by_op, columns, shared, arguments_of, forget, first)
    stats = run.trace.stats
    if visible := run.visible():
        return run.as_loop(visible, True), stats
    if run.state.may_change:
        joining = None
    try:
        results = run.run_together(recorders_of, joining)
    finally:
        run.trace.inputs.clear()
    if results is not None:
        return results, stats
    cause = run.cause
    if joining is not None:
        if cause is not None and not isinstance(cause, NeedsLoop):
            raise cause
        run.columns = [column[:count] for column in columns]
    if cause is not None and not isinstance(cause, Exception):
        run.raise_in_order(cause)
    return run.as_loop("a batched call failed" if cause is None else reason_of(cause)), stats


@dataclasses.dataclass(eq=False)
class _Map:
    """One run of a map; the arguments are those of `map_with_stats`.

    Attributes:
        columns: the sequences of examples; examples that join are appended.
        trace: the recorder.
        state: snapshots of the state that examples may change.
        cause: the error because of which the examples have to run as a loop.
    """

    _function: Callable[..., Any]
    _form: Callable[..., Any]
    _by_op: Callable[..., Any]
    columns: list[list[Any]]
    _shared: dict[str, Any]
    _arguments_of: Arguments | None
    _forget: Callable[[], Any]
    _first: int
    cause: BaseException | None = None
    _failed: int = 0  # the first example that raised
    _line: tuple[str, int] | None = None  # the first line that waited for a value, if waiting was the problem
    _writes: Sequence[Any] = ()  # writes into the caller's arrays
    _written: Iterator[Any] | None = None  # iterator over the writes still to be made

    def __post_init__(self) -> None:
        self.trace = Trace()
        self._refusals = count_refusals()
        self._alone = self.trace.references()
        self._copies: list[Any] = []
        self._arguments = {name: wrap_shared(self.trace, value, self._copies) for name, value in self._shared.items()}
        self.trace.inputs.add_copies(self._copies)
        self.state = ExampleState(self.columns, Snapshot([self._function, self._shared], most=MANY), self._copies)
        self._before = self.state.shared
        if not self.state.may_change:
            reached = self._before.reached.items()
            self.trace.reached.update({at: x for at, x in reached if is_array_like(x) and is_recorded(x)})

    def visible(self) -> str:
        """How examples may see that they run together: by order, an identity (`is`) or a class; "" if they cannot."""
        before, kinds = self._before, self.state.kinds
        if shows_order(before, kinds, batches=self._arguments_of is not None):
            if unread := without_source(before, kinds):
                return f"{unread} has no source that says what it does"
            order = "the order of the examples shows in what they print, draw or read"
            return Reason(order, None, "print after the call, and draw or read before it")
        if shows_identity(before, kinds, self.columns, (self._function, *self._shared.values())):
            return "it is asked whether an array that has two names is one object"
        return "an operator's method, or code without source, asks for a class" if shows_classes(before, kinds) else ""

    def as_loop(self, reason: str, early: bool = False) -> list[Any]:
        """Run the loop and return its results; warns before it (`early`, before the examples print), or after it."""
        says = self._arguments_of is None  # else the user did not call `ab.map`: the caller warns
        why = Reason(f"ab.map could not run these examples together ({reason})", None, getattr(reason, "instead", ""))
        if early:  # nothing has been traced
            self.trace.close()
            self._forget()
            if says:
                warn_fallback(why)  # it may raise
        results = run_loop(self._function, self.columns, self._shared, self._arguments_of, self._first)
        self.trace.stats.fallbacks[reason] += 1
        self.trace.stats.looped = reason
        if says and not early:
            warn_fallback(why, self._line or (None if self.cause is None else raised_at(self.cause)))
        return results

    def raise_in_order(self, error: BaseException) -> None:
        """Raise what the function raises that is no `Exception`, with the changes that the loop makes until then."""
        columns = [column[: self._failed + 1] for column in self.columns]
        run_loop(self._function, columns, self._shared, self._arguments_of, self._first)
        raise error

    def restore(self) -> None:
        """Restore all state to what it was before the run."""
        forget_refusals(self._refusals)
        self._before.restore()
        self.state.restore()

    def run_together(
        self, recorders_of: Callable[[dict[str, Any]], Recorders | None], joining: Joining | None
    ) -> list[Any] | None:
        """Run the examples together; returns None, and sets `cause`, if they have to run as a loop."""
        try:
            fibers = None
            try:
                fibers, changed = self._run(recorders_of, joining)
                if fibers.error is None and not changed:
                    results = fibers.results
                    fibers = None  # it refers to the trace
                    return self._finish_map(results)
            except NeedsLoop as lost:
                self.cause = lost.__cause__ or lost
            self.restore()
        except BaseException:  # an interrupt, or the deadline: either all writes were made (by one C call) or none
            if self._written is None or operator.length_hint(self._written):
                run_all([self.restore])
            raise
        if fibers is not None:
            self.cause = self._reason(fibers, changed)
        return None

    def _run(
        self, recorders_of: Callable[[dict[str, Any]], Recorders | None], joining: Joining | None
    ) -> tuple[Fibers, bool]:
        """Run the examples; returns (fibers, True if they changed state such that the results cannot be used)."""
        trace, settle = self.trace, functools.partial(finish, self.trace)
        recorders, count = recorders_of(self._arguments), len(self.columns[0])
        recorder = None if recorders is None else ExampleRecorder(trace, recorders, self.columns)
        changing = self.state.is_changing
        fibers = Fibers(trace, self._call, count, settle, changing, self._first, joining, self._admit, recorder)
        with collector_paused():
            try:
                fibers.run()
                changed = self._changed(fibers)
                if fibers.error is None and not changed:
                    writes = trace.inputs.pending_writes(leaves_of_kind(self._shared, np.ndarray))
                    if writes is None:
                        why = "an example writes into memory that it shares with other arguments"
                        raise NeedsLoop(why, instead=COPY_FIRST)
                    self._writes = writes
            finally:
                if recorder is not None:
                    trace.stats.recorded = recorder.count
                    recorder.close()
                trace.close()
                self._forget()
        return fibers, changed

    def _call(self, index: int) -> Any:
        trace, arguments = self.trace, self._arguments
        copies: list[Any] = []
        values = wrap_example(trace, [column[index] for column in self.columns], copies)
        trace.inputs.add_copies(copies)
        if self.state.copies is not None:
            self.state.copies += copies
        positional, named = (values, arguments) if self._arguments_of is None else self._arguments_of(values, arguments)
        return record_lookups(trace, (self._form if trace.inputs.in_order else self._by_op)(*positional, **named))

    def _admit(self, values: Sequence[Any]) -> None:
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def _changed(self, fibers: Fibers) -> bool:
        """True if state changed in a way that examples may have seen otherwise than in the loop."""
        if fibers.error is not None:
            return self._before.changed() or self.state.changed()
        waited = bool(self.trace.stats.forced)
        if waited and (fibers.changed or self._before.changed()):
            return True
        return self.state.shared_state_changed(waited)

    def _finish_map(self, results: list[Any]) -> list[Any]:
        """Finish the map: replace all recorded arrays left anywhere by values, write to arguments, return the results.

        Raises:
            NeedsLoop: recorded arrays, or a rewritten function, are left where they cannot be replaced.
        """
        finished = functools.partial(finish, self.trace)
        self.state.finish(finished)
        self._arguments.clear()
        self._copies.clear()
        self.trace.inputs.drop_handles()
        del finished
        if self._is_referred_to():
            gc.collect(0)  # most often cyclic garbage, such as an inner function that calls itself
        made: Sequence[Any]
        if self._is_referred_to():
            made = self._replace_left_over(results)
        else:
            made = [each for each in results if type(each) is FunctionType]
        left = "arrays where they cannot be replaced by values" if self._is_referred_to() else ""
        left = left or ("a function that it makes" if any(map(is_rewritten, made)) else "")
        if left:
            instead = "return what is needed instead of keeping it elsewhere"
            raise NeedsLoop(f"an example leaves {left}", instead=instead)
        keep_before(self._writes)
        self._written = iter(self._writes)
        write_all(self._written)
        self.trace.inputs.end_loans(results)
        return results

    def _is_referred_to(self) -> bool:
        """True if recorded arrays are left anywhere (each refers to the trace)."""
        return self.trace.references() > self._alone

    def _replace_left_over(self, results: list[Any]) -> Sequence[Any]:
        """Replace recorded arrays that examples left in reachable state; returns the functions found there."""
        left = Snapshot([results, self._function, self._shared, self.columns])
        left.settle(functools.partial(finish, self.trace))
        return left.functions

    def _reason(self, fibers: Fibers, changed: bool) -> BaseException:
        """The reason why the examples have to run again, as a loop.

        Raises:
            Exception: the error of the first failing example, as the loop raises it, if nothing was changed.
        """
        trace, self._failed = self.trace, fibers.failed
        if fibers.error is None:
            self._line = next(iter(trace.stats.forced), None)
            why = "an example changes what the examples share, and one waits for a value"
            return NeedsLoop(why, instead=RETURN_VALUES)
        quiet = not (self.state.may_change or trace.inputs.written or trace.inputs.lent or changed)
        if trace.failed is None and quiet:  # raises the user's error, unless only the lazy run failed
            run_plain(self._function, self.columns, fibers.failed, self._shared, self._arguments_of, self._first)
        return trace.failed or fibers.error


def run_plain(
    function: Callable[..., Any],
    columns: Sequence[list[Any]],
    index: int,
    shared: dict[str, Any],
    arguments_of: Arguments | None = None,
    first: int = 0,
) -> Any:
    """Run one example as the loop does. Also used for a map inside an example: its lazy values stay in the outer trace.

    In such an inner map plain arrays stay plain, since the outer example may write into them right after.
    """
    with example(Example(first + index)):
        try:
            values = [column[index] for column in columns]
            positional, named = (values, shared) if arguments_of is None else arguments_of(values, shared)
            return function(*positional, **named)
        except Exception as error:
            raise note_example(error, first + index)  # noqa: B904 - the same error, with its note


def examples_in(sequence: Any, taker: str = "ab.map") -> list[Any]:
    """A sequence, an iterable or a batch as a list of examples; `taker` is the function named in the message.

    Raises:
        UnsupportedError: not iterable, or a dict, whose keys are never the examples.
    """
    if type(sequence) is list:
        return sequence.copy()
    if rank_of(sequence) == BATCH_RANK:
        return sequence.examples()
    if hasattr(type(sequence), "iterrows") or hasattr(type(sequence), "iter_rows"):  # of pandas, of polars
        rows = 'df.to_dict("records")' if hasattr(type(sequence), "iterrows") else "df.to_dicts()"
        raise UnsupportedError(
            f"{taker} takes sequences of examples by position; a {type(sequence).__name__} is one of columns: write "
            f"{taker}(f, {rows}) for an example from each row, or call a decorated function on ab.collate(df)"
        )
    with contextlib.suppress(TypeError):
        if not isinstance(sequence, Mapping):
            return list(sequence)
    better = f"give what all examples share by keyword, {taker}(f, examples, params=params)"
    if any(rank_of(each) == BATCH_RANK for each in leaves(sequence)):
        better = f"for a tree of batches write {taker}(f, ab.Examples(batch)), or f(batch) if f is decorated"
    raise UnsupportedError(f"{taker} takes sequences of examples by position; got {type(sequence).__name__}: {better}")


def common_length(columns: Sequence[list[Any]]) -> int:
    """The number of examples: the common length of all sequences.

    Raises:
        UnsupportedError: there is no sequence. ShapeError: the lengths differ.
    """
    if len(columns) == 1:
        return len(columns[0])
    if not columns:
        raise UnsupportedError("ab.map got no sequence of examples; expected ab.map(f, examples, name=shared)")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ShapeError(
            f"the sequences of examples have lengths {lengths}; expected one length, and what all examples share by "
            "keyword: ab.map(f, examples, params=params)"
        )
    return lengths[0]
