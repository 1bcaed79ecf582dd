"""Fibers: each example that has to run runs in a greenlet of its own, and parks where it needs a value."""

import contextvars
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import greenlet
import numpy as np

from autobatch.core.current_region import Example, check_time, set_example
from autobatch.core.diagnostics import users_filters
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop
from autobatch.facts.types import SCALARS
from autobatch.lazy.example_recorder import NO_ROOM, NOT_RECORDED, WAITS, ExampleRecorder
from autobatch.lazy.trace import Trace

_active: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("autobatch_trace", default=None)
active_trace = _active.get

_PARK, _URGENT = object(), object()
_ROWS = (int, np.int64, np.ndarray)
_PLAIN = (np.generic, *SCALARS)


# What a map is given by keyword in a container, its examples see wrapped. An object, a closure and a global stay what
# they are: their arrays are wrapped where they are read, as operands and where rows of them are asked for.


def taken(value: Any, least: int = 1) -> Any:
    """The handle of an array that all examples reach, if it has at least so many dimensions; anything else as it is."""
    trace = active_trace()
    if trace is None or id(value) not in trace.reached or value.ndim < least:
        return value
    return trace.shared(value)


def item(base: Any, index: Any) -> Any:
    """`base[index]`; rows of an array that all examples reach are recorded."""
    return (taken(base, 2) if type(index) in _ROWS else base)[index]


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
