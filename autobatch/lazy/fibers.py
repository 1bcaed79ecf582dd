"""One function, many examples, grouped as they go.

Every example runs in a fiber, a greenlet of its own; one that needs a value parks while the others run on.
"""

import contextvars
import functools
import gc
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol

import greenlet
import numpy as np

from autobatch.core.current import Example, check_time, current_region, example, reset_example, set_example
from autobatch.core.diagnostics import fell_back, raised_at, users_filters
from autobatch.core.memory import collector_paused, write_all
from autobatch.core.op import BATCH_RANK, rank_of
from autobatch.core.pytree import leaves
from autobatch.core.snapshot import Snapshot
from autobatch.errors import NeedsLoop, OverTime, ShapeError, UnsupportedError, note_example
from autobatch.facts.types import SCALARS
from autobatch.lazy.array import LazyArray
from autobatch.lazy.example_recorder import NO_ROOM, NOT_RECORDED, WAITS, ExampleRecorder, Recorders
from autobatch.lazy.example_state import ExampleState, shows_order
from autobatch.lazy.launching import Stats
from autobatch.lazy.trace import Trace, finish, settled, wrap_example, wrap_shared
from autobatch.syntax.source import is_rewritten

Arguments = Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]

_active: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("autobatch_trace", default=None)
active_trace = _active.get

_PARK, _URGENT = object(), object()
_PLAIN = (np.generic, *SCALARS)


def _none(shared: dict[str, Any]) -> None:
    """No recorders."""


class LaunchError(Exception):
    """A batched call raised: which example is at fault is not known."""


class Joining(Protocol):
    """Who gives examples to a map that runs, and takes results from it, if its function changes nothing.

    Each example then stands for itself, as a request to a server does: one that raises ends alone.
    """

    def arrivals(self) -> Sequence[Sequence[Any]]:
        """Examples that join now, each one value for each of the map's sequences; asked before each launch."""

    def left(self, index: int) -> bool:
        """Whether nobody wants the result of an example any more."""

    def settled(self, index: int, result: Any) -> None:
        """The result of an example is there; told of each as soon as it can be, and of some of them twice."""

    def raised(self, index: int) -> None:
        """An example raised while it was recorded; run by itself it may not."""


class Fibers:
    """The greenlet that starts, resumes and ends a fiber for each example, launching together what they record.

    Args:
        call: runs example i.
        settle: turns the result of a finished example, all of whose values are there, into what is kept.
        is_changing: whether what the examples share is not as it was, when one of them stops: what it puts back later
            others may have seen.
        first: the place of the first example in its batch.
        joining: who is told of each example, if they stand for themselves; admit: takes in one that joins.
        recorder: records examples without running them.

    Attributes:
        results: those of the examples, then of those that joined; where one raised, of those before it.
        failed: the index of an example that raised, their count if none did; error: what it raised. Those before it
            ran to their end, those after it were ended.
        changed: what the examples share was changed when one of them stopped.
    """

    def __init__(
        self,
        trace: Trace,
        call: Callable[[int], Any],
        count: int,
        settle: Callable[[Any], Any],
        is_changing: Callable[[int], bool],
        first: int = 0,
        joining: Joining | None = None,
        admit: Callable[[Sequence[Any]], None] | None = None,
        recorder: ExampleRecorder | None = None,
    ) -> None:
        self.results: list[Any] = [None] * count
        self.failed = count
        self.error: BaseException | None = None
        self.changed = False
        self._trace = trace
        self._call = call
        self._is_changing = is_changing
        self._first = first
        self._joining = joining
        self._admit = admit
        self._recorder = recorder
        self._settle = settle
        self._fibers: dict[int, Any] = {}
        self._waiting = list(range(count))
        self._finished: list[int] = []
        self._me = greenlet.getcurrent()
        self._closing = False

    def run(self) -> None:
        """Run the examples.

        Raises:
            LaunchError: from the error of a batched call.
            OverTime: the deadline has passed.
        """
        self._trace.park = self._park
        try:
            self._run()
        finally:  # the `finally` blocks of every fiber run, nothing stays behind
            self._closing = True
            for index, fiber in list(self._fibers.items()):
                self._end(index, fiber)
            self._trace.park = None
            self._trace.example = -1

    def _run(self) -> None:
        for index in self._waiting:
            if self._recorder is None or not self._is_recorded(self._recorder, index):
                self._start(index)
            if index >= self.failed:
                break
        while self._join() or self._fibers or (self._recorder is not None and self._recorder.is_waiting):
            self._launch()
            for index, fiber in list(self._fibers.items()):
                if index < self.failed and not (self._joining is not None and self._joining.left(index)):
                    self._step(index, fiber)
                else:
                    self._end(index, fiber)
            if self._recorder is not None and self._recorder.is_waiting:
                self._resume(self._recorder)  # after the fibers: it may start others, which wait for another launch
        self._launch()

    def _start(self, index: int) -> None:
        fiber = greenlet.greenlet(self._body)
        fiber.gr_context = contextvars.copy_context()
        self._fibers[index] = fiber
        self._step(index, fiber)

    def _join(self) -> bool:
        """Take in the examples that join now, if any do, and run each until it is done or needs a value."""
        if self._joining is None or self._admit is None:
            return False
        arrivals = self._joining.arrivals()
        for values in arrivals:
            index = len(self.results)
            self._admit(values)
            self.results.append(None)
            self.failed = index + 1
            self._start(index)
        return bool(arrivals)

    def _is_recorded(self, recorder: ExampleRecorder, index: int) -> bool:
        """Whether an example is recorded without running."""
        check_time()
        result = recorder.record(index)
        if result is NO_ROOM:
            self._launch()
            result = recorder.record(index)
        if result is NOT_RECORDED:
            return False
        if result is not WAITS:
            self.results[index] = result
            self._finished.append(index)
        if self._trace.is_full or recorder.is_full:
            self._launch()
        return True

    def _resume(self, recorder: ExampleRecorder) -> None:
        """Let the examples go on that are recorded and wait for values."""
        check_time()
        ended, misfits = recorder.resume(self.failed, self._launch)
        for index, result in ended:
            self.results[index] = result
            self._finished.append(index)
        for index in misfits:
            if index < self.failed:
                self._start(index)

    def _body(self, index: int) -> Any:
        _active.set(self._trace)  # in the context of this fiber alone, so nothing has to be set back
        set_example(Example(self._first + index))
        return self._call(index)

    def _step(self, index: int, fiber: Any) -> None:
        """Run one fiber until it is done, parks or raises."""
        check_time()
        self._trace.example = index
        filters = users_filters()
        try:
            outcome = fiber.switch(index)
            while outcome is _URGENT:
                self._launch()
                self._trace.example = index
                outcome = fiber.switch()
        except LaunchError:
            raise
        except Exception as error:
            del self._fibers[index]
            if self._joining is not None:
                self._joining.raised(index)
            else:
                self.failed, self.error = index, error
            return
        self.changed = self.changed or self._is_changing(index)
        if outcome is _PARK:
            if users_filters() is not filters:  # parked inside `catch_warnings`: the others must not run under it
                self._trace.failed = NeedsLoop("an example catches warnings where it needs a value")
        else:
            del self._fibers[index]
            self.results[index] = outcome
            self._finished.append(index)
        if self._trace.failed is not None:  # an example may have handled the error
            raise LaunchError from self._trace.failed

    def _launch(self) -> None:
        """Launch what was recorded, and let go of the segments that finished examples hold."""
        try:
            self._trace.launch()
            if self._recorder is not None:
                self._recorder.launch()
        except Exception as error:
            raise LaunchError from error
        for index in self._finished:
            self.results[index] = self._settle(self.results[index])
            if self._joining is not None and not self._trace.inputs.lent and _is_plain(self.results[index]):
                self._joining.settled(index, self.results[index])
        self._finished = []

    def _park(self, urgent: bool) -> None:
        """Called in a fiber: wait until everything recorded has been launched (`urgent`: before the others run on)."""
        if self._closing:
            raise greenlet.GreenletExit
        if greenlet.getcurrent().parent is not self._me:
            self._trace.launch()
            return
        self._me.switch(_URGENT if urgent else _PARK)

    def _end(self, index: int, fiber: Any) -> None:
        closing, self._closing = self._closing, True
        try:
            while not fiber.dead:
                try:
                    fiber.throw(greenlet.GreenletExit)
                except Exception:  # raised by a `finally` block of an example that is not needed any more
                    continue
        finally:
            self._closing = closing
            self._fibers.pop(index, None)


def _is_plain(result: Any) -> bool:
    """Whether all of a result is seen: nothing recorded can hide in an object of some class."""
    return all(type(x) is np.ndarray or isinstance(x, _PLAIN) for x in leaves(result))


def map_with_stats(
    function: Callable[..., Any],
    form: Callable[..., Any],
    example_sequences: Sequence[Any],
    shared: dict[str, Any],
    arguments_of: Arguments | None = None,
    forget: Callable[[], Any] = bool,
    first: int = 0,
    joining: Joining | None = None,
    recorders_of: Callable[[dict[str, Any]], Recorders | None] = _none,
) -> tuple[list[Any], Stats]:
    """`[function(x, **shared) for x in examples]`, and what was launched.

    Args:
        form: what is called while examples are recorded: `function`, or its block form.
        arguments_of: from the values of an example and what is shared to the arguments of its call; by default the
            values by position, what is shared by keyword.
        forget: lets go of the functions that were met on the way; called when the outermost map has run.
        first: the place of the first example in its batch.
        joining: gives more examples while these run, if the function changes nothing; their results follow those of
            the examples. None stands where it was told that one `raised`.
        recorders_of: the generated recorders of the function, given what is shared as the examples see it.

    Raises:
        OverTime: the deadline has passed; everything is as it was.
        Exception: of a batched call, where examples stand for themselves: of which example is not known.
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
    trace = Trace()
    alone = trace.references()
    copies: list[Any] = []
    arguments = {name: wrap_shared(trace, value, copies) for name, value in shared.items()}
    own = ExampleState(columns, Snapshot([function, shared], bounded=True), copies)
    before = own.shared
    if own.may_change:
        joining = None

    def looped(reason: str, where: tuple[str, int] | None = None, early: bool = False) -> tuple[list[Any], Stats]:
        says = arguments_of is None  # else it was no map that the user called: the caller says it
        why = f"ab.map could not run these examples together ({reason})"
        if says and early:
            fell_back(why)  # before anything is printed: it may raise
        results = run_loop(function, columns, shared, arguments_of, first)
        trace.stats.fallbacks[reason] += 1
        trace.stats.looped = reason
        if says and not early:
            fell_back(why, where)
        return results, trace.stats

    if shows_order(before, own.kinds, batches=arguments_of is not None):
        trace.close()
        return looped("NeedsLoop: the order of the examples shows in what they print, draw or read", early=True)

    recorders = recorders_of(arguments)
    recorder = None if recorders is None else ExampleRecorder(trace, recorders, columns)

    def call(index: int) -> Any:
        given = [column[index] for column in columns]
        values = wrap_example(trace, given, own.copies)
        positional, named = (values, arguments) if arguments_of is None else arguments_of(values, arguments)
        return settled(trace, (form if trace.inputs.in_order else function)(*positional, **named))

    def admit(values: Sequence[Any]) -> None:
        for column, value in zip(columns, values, strict=True):
            column.append(value)

    finished = functools.partial(finish, trace)
    fibers = Fibers(trace, call, count, finished, own.is_changing, first, joining, admit, recorder)
    waits: tuple[str, int] | None = None  # the line at which the first one does
    waiting: Any = None
    ended = False  # all examples have
    try:
        with collector_paused():
            try:
                fibers.run()
                error = fibers.error
                if error is not None:
                    changed = before.changed() or own.changed()
                else:
                    waited = bool(trace.stats.forced)
                    changed = (waited and (fibers.changed or before.changed())) or own.changed_in_common(waited)
                writes = [] if error is not None or changed else trace.inputs.given_back(leaves(shared))
                if writes is None:
                    raise LaunchError from NeedsLoop(
                        "an example writes into memory that it shares with other arguments"
                    )
                ended = error is None
            finally:
                if recorder is not None:
                    trace.stats.recorded = recorder.count
                    recorder.close()
                trace.close()
                forget()
        if error is None and not changed:
            results = fibers.results
            own.finish(functools.partial(finish, trace))
            arguments.clear()
            copies.clear()
            trace.inputs.forget_writes()
            del fibers, call, finished, recorder, recorders
            if trace.references() > alone:  # by recorded arrays
                gc.collect(0)  # most often garbage: a function that calls itself by a name it closes over, say
            if trace.references() > alone:
                left = Snapshot([results, function, shared, columns])
                left.settle(functools.partial(finish, trace))
                made = left.functions
                del left  # which holds what it has replaced
            else:
                made = [each for each in results if type(each) is FunctionType]
            if trace.references() > alone:
                raise LaunchError from NeedsLoop("an example leaves arrays where they cannot be replaced by values")
            if any(map(is_rewritten, made)):
                raise LaunchError from NeedsLoop("an example leaves a function that it makes")
            waiting = iter(writes)
            write_all(waiting)
            trace.inputs.end_loans(results)
            return results, trace.stats
    except LaunchError as launch:
        cause: BaseException | None = launch.__cause__
    except BaseException as stop:  # an interrupt: it came before the writes or after them, which are one call of C
        if waiting is None or operator.length_hint(waiting):
            found: list[Any] = []
            if type(stop) is not OverTime:  # what examples have changed stays, as after a loop; recorded arrays do not
                Snapshot([function, shared, columns]).settle(functools.partial(_found, trace, found))
            if found or ended or type(stop) is OverTime:
                before.restore()
                own.restore()
        raise
    else:
        if error is None:
            cause = NeedsLoop("an example changes what the examples share, and one waits for a value")
            waits = next(iter(trace.stats.forced), None)
        else:
            quiet = not (own.may_change or trace.inputs.written or trace.inputs.lent or changed)
            if trace.failed is None and quiet:
                # raises, unless only the lazy run could not do it
                run_plain(function, columns, fibers.failed, shared, arguments_of, first)
            cause = trace.failed or error
    finally:
        trace.inputs.clear()
    before.restore()
    own.restore()
    if joining is not None and cause is not None and not isinstance(cause, NeedsLoop):
        raise cause
    if joining is not None:
        columns = [column[:count] for column in columns]
    where = waits or (None if cause is None else raised_at(cause))
    return looped(f"{type(cause).__name__}: {cause}" if cause is not None else "a batched call failed", where)


def _found(trace: Trace, found: list[Any], value: Any) -> Any:
    """The value itself; one that is recorded is noted."""
    if type(value) is LazyArray and value.trace is trace:
        found.append(value)
    return value


class _Running(Example):
    """The example that a loop has come to: as many results as there are say which one it is."""

    __slots__ = ("_at", "_first", "results")

    def __init__(self, first: int) -> None:
        self.index = self._first = self._at = first  # what `Example` sets, without calling it: most loops are short
        self.calls, self._own_seed = 0, None
        self.results: list[Any] = []

    def next_key(self, seed: int | None) -> Any:
        self.index = self._first + len(self.results)
        if self.index != self._at:
            self._at, self.calls = self.index, 0
        return super().next_key(seed)


def run_loop(
    function: Callable[..., Any],
    columns: Iterable[Iterable[Any]],
    shared: dict[str, Any],
    arguments_of: Arguments | None = None,
    first: int = 0,
) -> list[Any]:
    """One example after the other; `first` is the place of the first one in its batch."""
    running = _Running(first)
    results = running.results
    token = set_example(running)  # `with example(...)` takes longer than a small function
    try:
        if arguments_of is not None:
            for values in zip(*columns, strict=True):
                positional, named = arguments_of(values, shared)
                results.append(function(*positional, **named))
        else:  # no `map`: a StopIteration of the function's would end it
            call = functools.partial(function, **shared) if shared else function
            for values in zip(*columns, strict=False):
                results.append(call(*values))
    except Exception as error:
        raise note_example(error, first + len(results))  # noqa: B904 - the same error, with its note
    finally:
        reset_example(token)
    return results


def run_plain(
    function: Callable[..., Any],
    columns: Sequence[list[Any]],
    index: int,
    shared: dict[str, Any],
    arguments_of: Arguments | None = None,
    first: int = 0,
) -> Any:
    """One example as the loop runs it; so does a map inside an example, whose lazy values go to the one trace.

    There, plain arrays stay plain: the example goes on with them, and may write into them, right after.
    """
    with example(Example(first + index)):
        try:
            values = [column[index] for column in columns]
            positional, named = (values, shared) if arguments_of is None else arguments_of(values, shared)
            return function(*positional, **named)
        except Exception as error:
            raise note_example(error, first + index)  # noqa: B904 - the same error, with its note


def examples_in(sequence: Any, taker: str = "ab.map") -> list[Any]:
    """The examples of a sequence, an iterable or a batch; `taker` is what the message says was called.

    Raises:
        UnsupportedError: not iterable, or a dict, whose keys are never the examples.
    """
    if type(sequence) is list:
        return sequence.copy()
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


def common_length(columns: Sequence[list[Any]]) -> int:
    """The number of examples, of which every sequence has one.

    Raises:
        UnsupportedError: no sequence. ShapeError: their lengths differ.
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
