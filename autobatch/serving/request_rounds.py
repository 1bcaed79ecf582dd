"""A round: requests that run together, as one map, each of which ends as its single call would.

If the function changes nothing, it is mapped over the examples, by the mode that has cost least; while they are traced
more examples join between the map's launches. If a run raises, the requests without an answer run again in halves, so
that in the end the one at fault runs by itself, as a plain call. A function that may change something is mapped too,
but runs just once for each request: its exceptions are turned into results.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import time
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import greenlet

from autobatch.api.call_ways import run_map
from autobatch.api.transforms import undecorated
from autobatch.core.current_region import as_example
from autobatch.errors import OverTime


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request.

    Attributes:
        value: the function's result. version: of the shared values with which all of it was computed.
    """

    value: Any
    version: int


class Request:
    """An example that waits, and later its answer.

    Args:
        example: the function's positional arguments.
        loop: the event loop in which the answer is awaited; None: a thread waits for it.

    Attributes:
        arrived: the time of its arrival, by `time.monotonic`.
        answer, error: one of them is set once it has run.
    """

    __slots__ = ("answer", "arrived", "error", "example", "future", "loop")

    def __init__(self, example: tuple[Any, ...], loop: asyncio.AbstractEventLoop | None) -> None:
        self.example = example
        self.arrived = time.monotonic()
        self.loop = loop
        self.future: Any = concurrent.futures.Future() if loop is None else loop.create_future()
        self.answer: Answer | None = None
        self.error: BaseException | None = None

    @property
    def wanted(self) -> bool:
        """True unless the caller has cancelled the request."""
        return not self.future.cancelled()

    @property
    def ended(self) -> bool:
        """True once it has run."""
        return self.answer is not None or self.error is not None


def deliver(requests: Iterable[Request]) -> None:
    """Wake the callers of these requests, each in its own thread or event loop, with one message to each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in requests:
        if request.loop is not None:
            by_loop.setdefault(request.loop, []).append(request)
        elif request.future.set_running_or_notify_cancel():
            if request.error is not None:
                request.future.set_exception(request.error)
            else:
                assert request.answer is not None
                request.future.set_result(request.answer.value)
    for loop, own in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits in it
            loop.call_soon_threadsafe(_wake, own)


def _wake(requests: list[Request]) -> None:
    for request in requests:
        if not request.future.done():
            request.future.set_result(None)  # whoever awaits it takes the answer from the request


class Model:
    """A function of one example with its shared values; it never changes, `swap` makes a new one.

    Attributes:
        given: the function as it was given; function: without the decorator. shared, version: the shared values.
        guarded: the function with its exceptions as results: (True, result) or (False, exception).
    """

    def __init__(self, given: Callable[..., Any], shared: dict[str, Any], version: int) -> None:
        self.given, self.shared, self.version = given, shared, version
        self.function = undecorated(given)
        self.guarded = _guarded(self.function)

    def call(self, request: Request) -> None:
        """Run one request as a plain call; its exception becomes the request's error."""
        try:
            self.answer(request, as_example(self.function, request.example, self.shared))
        except BaseException as error:  # of any kind: it is the request's, and must not end the thread
            request.error = error

    def answer(self, request: Request, value: object) -> None:
        request.answer = Answer(value, self.version)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*example: object, **shared: object) -> tuple[bool, Any]:
        try:
            return True, as_example(function, example, shared)
        except (greenlet.GreenletExit, OverTime):
            raise
        except BaseException as error:
            return False, error

    # Measured costs are kept by code object, so each guarded function needs a code object of its own.
    code = guarded.__code__.replace(co_name=f"guarded_{getattr(function, '__name__', 'call')}")
    out = types.FunctionType(code, guarded.__globals__, code.co_name, None, guarded.__closure__)
    out.__wrapped__ = function  # type: ignore[attr-defined]  # analyses of the function look there
    return out


class Round:
    """Requests that run together with one model; it is the `Joining` of the map that runs them.

    Args:
        model: the function and its shared values; requests: those that it begins with, at least one.
        pure: the function changes nothing.
        more: `more(room)` gives at most `room` requests that join; None: none join.
        done: called with requests that have ended, a few at a time.

    Attributes:
        requests: all of them, those that joined at the end. looped: why they ran in a loop, if they did.
    """

    def __init__(
        self,
        model: Model,
        requests: Sequence[Request],
        pure: bool,
        more: Callable[[int], Sequence[Request]] | None = None,
        done: Callable[[Sequence[Request]], Any] = deliver,
    ) -> None:
        self.requests = list(requests)
        self._model = model
        self._pure = pure
        self._more = more
        self._done = done
        self.looped: str | None = None
        self._rerun_alone: set[int] = set()
        self._cancelled: set[int] = set()
        self._ended: list[Request] = []
        self._at_once = len(requests)

    def run(self, most: int) -> None:
        """Run all requests and those that join, at most `most` at once; each has ended when this returns."""
        self._most = most
        if not self._pure and len(self.requests) == 1:
            self._call(self.requests[0])
            return
        if not self._pure:
            self._run_guarded()
            return
        self._run_together()
        for index in self._rerun_alone:
            self._call(self.requests[index])
        left = [each for each in self.requests if each.wanted and not each.ended]
        if len(left) <= 4:  # after a run that raised, so many requests or fewer run one by one
            for each in left:
                self._call(each)
            return
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            Round(self._model, half, True, None, self._done).run(most)

    def _run_together(self) -> None:
        columns = list(zip(*[each.example for each in self.requests], strict=True))
        with contextlib.suppress(BaseException):  # some request's error: running parts of them will show whose
            results, stats = run_map(self._model.function, columns, self._model.shared, None, self)
            self.looped = stats.looped
            for index, result in enumerate(results):
                self.on_result(index, result)
        self._report_ended()

    def _run_guarded(self) -> None:
        columns = list(zip(*[each.example for each in self.requests], strict=True))
        try:
            outcomes, stats = run_map(self._model.guarded, columns, self._model.shared)
            self.looped = stats.looped
        except BaseException as error:
            outcomes = [(False, error)] * len(self.requests)
        for request, (succeeded, result) in zip(self.requests, outcomes, strict=True):
            if succeeded:
                self._model.answer(request, result)
            else:
                request.error = result
        self._done(self.requests)

    def _call(self, request: Request) -> None:
        if request.wanted and not request.ended:
            self._model.call(request)
            self._done([request])

    def _report_ended(self) -> None:
        if self._ended:
            ended, self._ended = self._ended, []
            self._done(ended)

    # The protocol `Joining`, which the map calls.

    def arrivals(self) -> Sequence[tuple[Any, ...]]:
        """The examples of the requests that join now."""
        self._report_ended()
        if self._more is None:
            return ()
        joined = self._more(self._most - self._at_once)
        self._at_once += len(joined)
        self.requests += joined
        return [each.example for each in joined]

    def is_cancelled(self, index: int) -> bool:
        """True if the request at this index was cancelled."""
        if self.requests[index].wanted:
            return False
        self._cancelled.add(index)
        self._at_once -= 1
        return True

    def on_result(self, index: int, result: object) -> None:
        """Accept the result of the request at this index."""
        request = self.requests[index]
        if not (request.ended or index in self._rerun_alone or index in self._cancelled):
            self._model.answer(request, result)
            self._ended.append(request)
            self._at_once -= 1

    def on_error(self, index: int) -> None:
        """Note that the request at this index raised, and must run again by itself."""
        self._rerun_alone.add(index)
        self._at_once -= 1
