"""Fibers: every example runs in a greenlet of its own; one that needs a value parks while the others run on."""

import contextvars
from collections.abc import Callable, Mapping
from typing import Any

import greenlet

from autobatch.core.lanes import Example, set_example
from autobatch.core.silence import users_filters
from autobatch.errors import NeedsLoop
from autobatch.lazy.trace import Trace

__all__ = ["LaunchError", "active_trace", "run_examples"]

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
        """Let go of the waves that finished examples hold."""
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
