"""Fibers: every example runs in a greenlet of its own; one that needs a value parks while the others run on."""

import contextvars
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import greenlet

from autobatch.core.error_state import users_filters
from autobatch.core.fallback import fell_back
from autobatch.core.lanes import Example, current_region, example, set_example
from autobatch.core.memory import collector_paused
from autobatch.core.op import BATCH_RANK, rank_of
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.lazy.example_state import ExampleState
from autobatch.lazy.launching import Stats
from autobatch.lazy.replay import Memory
from autobatch.lazy.shared_state import SharedState
from autobatch.lazy.trace import Trace, finish, settled, wrap_example, wrap_shared

__all__ = ["LaunchError", "active_trace", "examples_in", "map_with_stats", "run_examples"]

_active: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("autobatch_trace", default=None)
active_trace = _active.get

_PARK, _URGENT = object(), object()


class LaunchError(Exception):
    """A batched call raised: which example is at fault is not known."""


def run_examples(
    trace: Trace,
    call: Callable[[int], Any],
    count: int,
    settle: Callable[[Any], Any],
    known: Mapping[int, Any] | None = None,
) -> tuple[list[Any], int, BaseException | None]:
    """Run `call(i)` for each example, launching together what they record.

    Args:
        settle: turns the result of a finished example, all of whose values are there, into what is kept.
        known: the results of examples that need not run, by their number.

    Returns:
        The results; and, if an example raised, its index and its error: those before it ran to their end, those
        after it were ended.

    Raises:
        LaunchError: from the error of a batched call.
    """
    hub = _Hub(trace, call, count, settle, known or {})
    try:
        hub.run()
    finally:
        hub.end()
    return hub.results, hub.failed, hub.error


class _Hub:
    """The greenlet that starts, resumes and ends the fibers."""

    __slots__ = (
        "call",
        "closing",
        "count",
        "error",
        "failed",
        "fibers",
        "finished",
        "known",
        "me",
        "results",
        "settle",
        "trace",
    )

    def __init__(
        self,
        trace: Trace,
        call: Callable[[int], Any],
        count: int,
        settle: Callable[[Any], Any],
        known: Mapping[int, Any],
    ) -> None:
        self.trace = trace
        self.call = call
        self.count = count
        self.settle = settle
        self.results: list[Any] = [known.get(index) for index in range(count)]
        self.failed = count
        self.error: BaseException | None = None
        self.fibers: dict[int, Any] = {}
        self.finished: list[int] = list(known)
        self.known = known
        self.me = greenlet.getcurrent()
        self.closing = False

    def run(self) -> None:
        trace = self.trace
        trace.park = self.park
        for index in range(self.count):
            if index in self.known:
                continue
            fiber = greenlet.greenlet(self._body)
            fiber.gr_context = contextvars.copy_context()
            self.fibers[index] = fiber
            self._step(index, fiber)
            if index >= self.failed:
                break
        while self.fibers:
            self._launch()
            self._settle_finished()
            for index, fiber in list(self.fibers.items()):
                if index < self.failed:
                    self._step(index, fiber)
                else:
                    self._end(index, fiber)
        self._launch()
        self._settle_finished()

    def _body(self, index: int) -> Any:
        _active.set(self.trace)  # in the context of this fiber alone, so nothing has to be set back
        set_example(Example(index))
        return self.call(index)

    def _step(self, index: int, fiber: Any) -> None:
        """Run one fiber until it is done, parks or raises."""
        self.trace.example = index
        filters = users_filters()
        try:
            outcome = fiber.switch(index)
            while outcome is _URGENT:
                self._launch()
                self._settle_finished()
                self.trace.example = index
                outcome = fiber.switch()
        except LaunchError:
            raise
        except Exception as error:
            self.failed, self.error = index, error
            del self.fibers[index]
            return
        if outcome is _PARK:
            if users_filters() is not filters:  # parked inside `catch_warnings`: the others must not run under it
                self.trace.failed = NeedsLoop("an example catches warnings where it needs a value")
        else:
            del self.fibers[index]
            self.results[index] = outcome
            self.finished.append(index)
        if self.trace.failed is not None:  # an example may have handled the error
            raise LaunchError from self.trace.failed

    def _launch(self) -> None:
        try:
            self.trace.launch()
        except Exception as error:
            raise LaunchError from error

    def _settle_finished(self) -> None:
        """Let go of the segments that finished examples hold."""
        for index in self.finished:
            self.results[index] = self.settle(self.results[index])
        self.finished = []

    def park(self, urgent: bool) -> None:
        """Called in a fiber: wait until everything recorded has been launched (`urgent`: before the others run on)."""
        if self.closing:
            raise greenlet.GreenletExit
        if greenlet.getcurrent().parent is not self.me:
            self.trace.launch()
            return
        self.me.switch(_URGENT if urgent else _PARK)

    def end(self) -> None:
        """End every fiber: its `finally` blocks run, nothing stays behind."""
        self.closing = True
        for index, fiber in list(self.fibers.items()):
            self._end(index, fiber)
        self.trace.park = None
        self.trace.example = -1

    def _end(self, index: int, fiber: Any) -> None:
        closing, self.closing = self.closing, True
        try:
            while not fiber.dead:
                try:
                    fiber.throw(greenlet.GreenletExit)
                except Exception:  # raised by a `finally` block of an example that is not needed any more
                    continue
        finally:
            self.closing = closing
            self.fibers.pop(index, None)


def map_with_stats(
    function: Callable[..., Any],
    form: Callable[..., Any],
    example_sequences: Sequence[Any],
    shared: dict[str, Any],
    memory: Memory | None = None,
) -> tuple[list[Any], Stats]:
    """`[function(x, **shared) for x in examples]`, and what was launched.

    Args:
        form: what is called while examples are recorded: `function`, or its block form.
        memory: where recordings of it are kept, if they may be.
    """
    if current_region() is not None and any(rank_of(x) == BATCH_RANK for x in leaves([example_sequences, shared])):
        raise NeedsLoop("ab.map over values of each example")
    columns = [examples_in(sequence) for sequence in example_sequences]
    count = _common_length(columns)
    outer = active_trace()
    if outer is not None and outer.park is not None:
        return _map_inside(form, columns, count, shared), outer.stats
    if count == 0:
        return [], Stats()
    trace = Trace()
    copies: list[Any] = []
    arguments = {name: wrap_shared(trace, value, copies) for name, value in shared.items()}
    replay = None if memory is None or outer is not None else memory.opened(trace, columns, arguments)
    known = {} if replay is None else replay.play(columns)
    stores = replay is None or not replay.sees_all  # else nothing that the Python changes is there afterwards
    before = SharedState([shared, function] if stores else [])
    own = ExampleState(columns if stores else [], before, copies)

    def call(index: int) -> Any:
        given = [column[index] for column in columns]
        before = None if replay is None else replay.before(index)
        values = wrap_example(trace, given, own.copies)
        result = settled(trace, (form if trace.inputs.in_order else function)(*values, **arguments))
        if replay is not None and before is not None:
            replay.after(index, given, result, before)
        return result

    def plain(index: int) -> Any:
        with example(Example(index)):
            try:
                return function(*[column[index] for column in columns], **shared)
            except Exception as error:
                raise note_example(error, index)  # noqa: B904 - the same error, with its note

    try:
        with collector_paused():
            try:
                results, failed, error = run_examples(trace, call, count, lambda result: finish(trace, result), known)
                if error is not None:
                    changed = before.changed() or own.changed()
                else:
                    waited = bool(trace.stats.forced)
                    changed = (waited and before.changed()) or own.changed_in_common(waited)
                if error is None and not changed and not trace.inputs.give_back(leaves(shared)):
                    raise LaunchError from NeedsLoop(
                        "an example writes into memory that it shares with other arguments"
                    )
            finally:
                trace.close()
    except LaunchError as launch:
        cause: BaseException | None = launch.__cause__
    else:
        if error is None and not changed:
            own.finish(functools.partial(finish, trace))
            trace.inputs.end_loans(results)
            return results, trace.stats
        if error is None:
            cause = NeedsLoop("an example changes what the examples share, and one waits for a value")
        else:
            if trace.failed is None and not trace.inputs.written and not trace.inputs.lent and not changed:
                plain(failed)  # raises, unless only the lazy run could not do it
            cause = trace.failed or error
    finally:
        trace.inputs.clear()
    before.restore()
    own.restore()
    results = [plain(index) for index in range(count)]
    reason = f"{type(cause).__name__}: {cause}" if cause is not None else "a batched call failed"
    trace.stats.fallbacks[reason] += 1
    fell_back(f"ab.map could not run these examples together ({reason})")
    return results, trace.stats


def _map_inside(
    function: Callable[..., Any], columns: Sequence[list[Any]], count: int, shared: dict[str, Any]
) -> list[Any]:
    """A map inside an example: a plain loop, whose lazy values are recorded in the one trace.

    Plain arrays stay plain: the example goes on with them, and may write into them, right after.
    """
    results = []
    for index in range(count):
        with example(Example(index)):
            try:
                results.append(function(*[column[index] for column in columns], **shared))
            except Exception as error:
                raise note_example(error, index)  # noqa: B904 - the same error, with its note
    return results


def examples_in(sequence: Any, taker: str = "ab.map") -> list[Any]:
    """The examples of a sequence, an iterable or a batch; `taker` is what the message says was called.

    Raises:
        UnsupportedError: not iterable, or a dict, whose keys are never the examples.
    """
    if rank_of(sequence) == BATCH_RANK:
        return sequence.examples()
    if not isinstance(sequence, Mapping):
        try:
            return list(sequence)
        except TypeError:
            pass
    raise UnsupportedError(
        f"{taker} takes sequences of examples by position; got {type(sequence).__name__}: "
        f"give what all examples share by keyword, {taker}(f, examples, params=params)"
    )


def _common_length(columns: Sequence[list[Any]]) -> int:
    if not columns:
        raise UnsupportedError("ab.map got no sequence of examples; expected ab.map(f, examples, name=shared)")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ShapeError(
            f"the sequences of examples have lengths {lengths}; expected one length, and what all examples share by "
            "keyword: ab.map(f, examples, params=params)"
        )
    return lengths[0]
