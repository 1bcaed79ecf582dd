"""Fibers: each example that runs as Python runs in its own greenlet, which parks (suspends) where it needs a value."""

import abc
import collections
import contextvars
import itertools
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import greenlet
import numpy as np

from autobatch.core.current_region import Example, active_trace_variable, check_time, set_example
from autobatch.core.diagnostics import came_from_outside, user_filters
from autobatch.core.pytree import PLAIN, leaves, leaves_of_kind, replace_leaves
from autobatch.errors import WARNINGS_OUTSIDE, NeedsLoop
from autobatch.facts.types import SCALARS
from autobatch.lazy.array import LazyArray
from autobatch.lazy.example_recorder import NO_ROOM, NOT_RECORDED, WAITS, ExampleRecorder
from autobatch.lazy.example_state import store_changes
from autobatch.lazy.trace import Trace

active_trace: Callable[[], Trace | None] = active_trace_variable.get

_PARK, _URGENT = object(), object()
_OWN = frozenset((LazyArray, list, tuple, dict, str))
_ROWS = (int, np.int64, np.ndarray)
_PLAIN = (np.generic, *SCALARS)
_READ = PLAIN | {np.ndarray, type}
_ITERATORS = frozenset((types.GeneratorType, map, filter, zip, itertools.chain, itertools.islice, type(iter([]))))
_GATHERED = frozenset((set, frozenset, collections.deque))
_BY_CLASS = frozenset(
    metaclass.__instancecheck__ for metaclass in (type, abc.ABCMeta, type(typing.SupportsInt), type(typing.Sized))
)


# Containers given to a map by keyword are wrapped for its examples. Objects, closures and globals are not: their
# arrays are wrapped where they are read, as operands of ops or where rows are indexed (`shared_handle`, `shared_item`).


def shared_handle(value: Any, least: int = 1) -> Any:
    """The lazy handle of an array that all examples share, if it has `least` dimensions; else the value unchanged."""
    trace = active_trace()
    return value if trace is None or id(value) not in trace.reached or value.ndim < least else trace.shared(value)


def shared_item(base: Any, index: Any) -> Any:
    """`base[index]`; recorded if it reads rows of an array that all examples share."""
    return (shared_handle(base, 2) if type(index) in _ROWS and type(base) not in _OWN else base)[index]


def _value(x: Any) -> Any:
    return x._ab_value_outside if type(x) is LazyArray else x


def _leaf_value(x: Any) -> Any:
    cls = type(x)
    if cls in _ITERATORS:
        return map(_value, x)
    is_gathered = cls in _GATHERED and any(type(each) is LazyArray for each in x)
    return cls(map(_value, x)) if is_gathered else _value(x)


def with_values(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that may read what it gets (`facts.call_effects.reads_values`): it gets the examples' values.

    Containers of recorded arrays are copied for the call; what it changes in them is stored back.
    """
    if not kwargs and _READ.issuperset(map(type, args)):
        return function(*args)
    found = leaves_of_kind([args, kwargs], LazyArray)
    for trace in {each.trace for each in found}:
        trace.place(*[each for each in found if each.trace is trace])  # all waiting is done before anything is copied
    copies: list[Any] = []
    given, named = replace_leaves((args, kwargs), _leaf_value, copies=copies)
    if not found:
        return function(*given, **named)
    mutable = [each for each in copies if not isinstance(each[1], tuple)]
    before = [sys.getrefcount(each[1]) for each in mutable]
    try:
        result = function(*given, **named)
    except (BufferError, TypeError, ValueError) as error:
        if any(word in str(error) for word in ("read-only", "readonly", "read-write", "writable")):
            found[0]._ab_refuse(NeedsLoop("a function that may have to write into an array of an example"))
        raise
    finally:
        original, _ = store_changes(copies, lambda value: value)
    result = original(result)
    if before != [sys.getrefcount(each[1]) for each in mutable]:
        found[0]._ab_refuse(NeedsLoop("a function keeps a container of arrays"))
    return result


def _specimen(x: Any) -> Any:
    """For a recorded array a value of its class, without waiting for its own; anything else unchanged."""
    return (x.source if x.aval.shared else x.aval.dummy()) if type(x) is LazyArray else x


def is_instance(x: Any, classes: Any) -> bool:
    """`isinstance`, for which a recorded array is of the class of its value only."""
    if type(x) is not LazyArray:
        return isinstance(x, classes)
    each = classes if type(classes) is tuple else typing.get_args(classes)
    by_class = all(type(one).__instancecheck__ in _BY_CLASS for one in each or [classes])
    return isinstance(_specimen(x) if by_class else _value(x), classes)


def has_attribute(x: Any, name: str) -> bool:
    """`hasattr`, for which a recorded array has the attributes of its value only."""
    return hasattr(_specimen(x), name)


def get_attribute(x: Any, name: str, *default: Any) -> Any:
    """`getattr`, likewise."""
    if type(x) is LazyArray and not (has_attribute(x, name) and hasattr(LazyArray, name)):
        return getattr(_value(x), name, *default)
    return getattr(x, name, *default)


class Joining(Protocol):
    """Source of examples that join a running map, and receiver of results; only for a function that changes nothing.

    Each example is then independent, like a request to a server: one that raises does not end the others.
    """

    def arrivals(self) -> Sequence[Sequence[Any]]:
        """Examples that join now, each with one value per sequence of the map; called before each launch."""

    def is_cancelled(self, index: int) -> bool:
        """True if nobody wants the result of an example any more."""

    def on_result(self, index: int, result: Any) -> None:
        """Receive the result of an example, as soon as it is known; may be called twice for an example."""

    def on_error(self, index: int) -> None:
        """Called for an example that raised while it was recorded; run on its own, it may not raise."""


class Fibers:
    """The scheduler of one map: starts, resumes and ends a fiber per example, and launches their recorded calls.

    Args:
        call: runs example i.
        settle: converts the result of a finished example, once all its values are computed, to its final form.
        is_changing: called when example i parks or ends; True if shared state differs from its initial state, since
            other examples may then see a change that this one undoes later.
        first: the place of the first example in its batch.
        joining: is told of each example, if examples are independent; admit: adds one that joins to the map.
        recorder: records examples without running their Python.

    Attributes:
        results: one per example, then those of joined examples; after an error only those before `failed` count.
        failed: index of the first example that raised, or the number of examples; error: what it raised. The examples
            before it ran to their end, those after it were ended.
        changed: True if `is_changing` ever was.
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
            NeedsLoop: from the error of a batched call, of which example is not known.
            OverTime: the deadline has passed.
        """
        self._trace.park = self._park
        try:
            try:
                self._run()
            finally:
                self._close()
        finally:  # again, where an interrupt came in between
            self._close()

    def _close(self) -> None:
        """End all fibers, so that their `finally` blocks run now."""
        self._closing = True
        for index, fiber in list(self._fibers.items()):
            self._end(index, fiber)
        self._trace.park = None
        self._trace.example = -1

    def _run(self) -> None:
        for index in self._waiting:
            self._begin(index)
            if index >= self.failed:
                break
        while self._join() or self._is_open():
            self._launch()
            for index, fiber in list(self._fibers.items()):
                if self._goes_on(index):
                    self._step(index, fiber)
                else:
                    self._end(index, fiber)
            if self._recorder is not None and self._recorder.is_waiting:
                self._resume(self._recorder)  # after the fibers: it may start new ones, which wait for the next launch
            if self._joining is not None and self._finished and self._is_open():
                self._launch()  # others may join in their place
        self._launch()

    def _is_open(self) -> bool:
        """True if an example waits for a value."""
        return bool(self._fibers) or (self._recorder is not None and self._recorder.is_waiting)

    def _goes_on(self, index: int) -> bool:
        """False for an example that the loop would not reach, or that is not wanted any more."""
        return index < self.failed and not (self._joining is not None and self._joining.is_cancelled(index))

    def _begin(self, index: int) -> None:
        """Record an example, or run its Python until it ends or needs a value."""
        if self._recorder is None or not self._is_recorded(self._recorder, index):
            self._start(index)

    def _start(self, index: int) -> None:
        fiber = greenlet.greenlet(self._body)
        fiber.gr_context = contextvars.copy_context()
        self._fibers[index] = fiber
        self._step(index, fiber)

    def _join(self) -> bool:
        """Admit the examples that join now, and run each until it ends or needs a value. True if any joined."""
        if self._joining is None or self._admit is None:
            return False
        arrivals = self._joining.arrivals()
        for values in arrivals:
            index = len(self.results)
            self._admit(values)
            self.results.append(None)
            self.failed = index + 1
            self._begin(index)
        return bool(arrivals)

    def _is_recorded(self, recorder: ExampleRecorder, index: int) -> bool:
        """Try to record an example without running its Python; False if it has to run."""
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
        """Continue the recorded examples that wait for values; start a fiber for those that no longer fit."""
        check_time()
        ended, misfits = recorder.resume(self._goes_on, self._launch)
        for index, result in ended:
            self.results[index] = result
            self._finished.append(index)
        for index in misfits:
            if index < self.failed:
                self._start(index)

    def _body(self, index: int) -> Any:
        active_trace_variable.set(self._trace)  # in this fiber's own context, so no reset is needed
        set_example(Example(self._first + index))
        return self._call(index)

    def _step(self, index: int, fiber: Any) -> None:
        """Run one fiber until it ends, parks or raises."""
        check_time()
        self._trace.example = index
        filters = user_filters()
        outcome = _URGENT
        while outcome is _URGENT:
            try:
                outcome = fiber.switch(index)
            except BaseException as error:
                if came_from_outside(error):
                    raise
                del self._fibers[index]
                if self._joining is not None:
                    self._joining.on_error(index)
                else:
                    self.failed, self.error = index, error
                return
            if outcome is _URGENT:
                self._launch()
                self._trace.example = index
        self.changed = self.changed or self._is_changing(index)
        if outcome is _PARK:
            if user_filters() is not filters:  # parked inside `catch_warnings`: the others must not run under it
                self._trace.failed = NeedsLoop(
                    "an example catches warnings where it needs a value", instead=WARNINGS_OUTSIDE
                )
        else:
            del self._fibers[index]
            self.results[index] = outcome
            self._finished.append(index)
        if self._trace.failed is not None:  # the example may have caught the error
            raise NeedsLoop from self._trace.failed

    def _launch(self) -> None:
        """Launch everything recorded, then settle the results of finished examples, which frees their segments."""
        everything = self._joining is not None  # an example that has ended does not wait for the others
        try:
            self._trace.launch(everything)
            if self._recorder is not None:
                self._recorder.launch(everything)
        except Exception as error:
            raise NeedsLoop from error
        if self._trace.segment.is_pending:
            return
        for index in self._finished:
            self.results[index] = self._settle(self.results[index])
            if self._joining is not None and not self._trace.inputs.lent and _is_plain(self.results[index]):
                self._joining.on_result(index, self.results[index])
        self._finished = []

    def _park(self, urgent: bool) -> None:
        """Called in a fiber: suspend it until the next launch (`urgent`: launch now, before other fibers continue)."""
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
                except BaseException as error:
                    if came_from_outside(error):
                        raise
                    continue  # raised by a `finally` block of an example whose result is not needed any more
        finally:
            self._closing = closing
            self._fibers.pop(index, None)


def _is_plain(result: Any) -> bool:
    """True if a result consists of plain arrays and scalars only, so that it cannot hide recorded arrays."""
    return all(type(x) is np.ndarray or isinstance(x, _PLAIN) for x in leaves(result))
