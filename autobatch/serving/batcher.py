"""`Batcher`: runs concurrent calls of a function of one example together, in groups that form as they arrive.

Its `metrics` are counters and histograms, with their text for Prometheus.
"""

import asyncio
import bisect
import concurrent.futures
import contextvars
import inspect
import itertools
import operator
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from autobatch.api.transforms import undecorated
from autobatch.core.config import config, options
from autobatch.core.diagnostics import hiding_frames
from autobatch.errors import ClosedError, OptionError, OverloadedError, UnsupportedError
from autobatch.facts.other_libraries import Spelled
from autobatch.lazy.example_state import changes_nothing
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.serving.request_rounds import Answer, Model, Request, Round, deliver

_TURN = 0.01  # seconds (or `max_wait` if longer) to wait for more calls from the same turn of an event loop
_ROUNDS = 16  # times `max_batch` requests may join one round; then it runs to its end and the next one begins
_UNNAMED = object()
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # upper bounds
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # the same for the number of requests


class Histogram:
    """Cumulative counts of values up to each of a few bounds, with the values' sum and number.

    >>> sizes = Histogram((1, 2, 4))
    >>> for size in (1, 3, 9):
    ...     sizes.observe(size)
    >>> sizes.cumulative(), sizes.total, sizes.count
    ([1, 1, 2, 3], 13.0, 3)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.total, self.count = 0.0, 0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value
        self.count += 1

    def cumulative(self) -> list[int]:
        """The number of values up to each bound, and last up to infinity."""
        return list(itertools.accumulate(self._counts))

    def text(self, name: str) -> list[str]:
        """Its lines in Prometheus's text format."""
        counts = dict(zip([*self.bounds, "+Inf"], self.cumulative(), strict=True))
        lines = [f'autobatch_{name}_bucket{{le="{bound}"}} {count}' for bound, count in counts.items()]
        return [*lines, f"autobatch_{name}_sum {self.total}", f"autobatch_{name}_count {counts['+Inf']}"]


class Metrics:
    """The metrics of one batcher. Each is written by one thread; a reader may see one change before another.

    Attributes:
        answered, failed: requests that ended with a result, or with an exception of the function.
        cancelled: requests whose caller left. rejected: requests refused because the queue was full.
        swaps: how often the shared values were replaced; swap_errors: how often that failed.
        latency: seconds from request to answer. batches: requests in each batch. seconds: run time of each batch.
            looped: batches that ran one request after the other, since the function cannot run together.
        running: the requests of the current batch, ended ones included.
    """

    def __init__(self) -> None:
        self.answered = self.failed = self.cancelled = self.rejected = self.swaps = self.swap_errors = 0
        self.looped = 0
        self.latency, self.batches, self.seconds = Histogram(_SECONDS), Histogram(_SIZES), Histogram(_SECONDS)
        self.running: Sequence[Any] = ()

    def text(self, queued: int, version: int) -> str:
        """All metrics in Prometheus's text format, with the queue's length and the version as gauges."""
        outcomes = {
            "answered": self.answered, "failed": self.failed, "cancelled": self.cancelled, "rejected": self.rejected,
        }  # fmt: skip
        lines = ["# HELP autobatch_requests_total Requests by what became of them."]
        lines.append("# TYPE autobatch_requests_total counter")
        lines += [f'autobatch_requests_total{{outcome="{name}"}} {count}' for name, count in outcomes.items()]
        running = sum(not each.ended for each in list(self.running))
        for name, metric_type, says, value in (
            ("queue_length", "gauge", "Requests that wait.", queued),
            ("running", "gauge", "Requests that run.", running),
            ("version", "gauge", "Version of the shared values.", version),
            ("swaps_total", "counter", "Times that the shared values were replaced.", self.swaps),
            ("swap_errors_total", "counter", "Checkpoints that could not be taken.", self.swap_errors),
            ("looped_batches_total", "counter", "Batches that ran one request after the other.", self.looped),
            ("request_seconds", "histogram", "Seconds from request to answer.", self.latency),
            ("batch_size", "histogram", "Requests that ran together.", self.batches),
            ("batch_seconds", "histogram", "Seconds that a batch ran.", self.seconds),
        ):
            lines += [f"# HELP autobatch_{name} {says}", f"# TYPE autobatch_{name} {metric_type}"]
            lines += value.text(name) if isinstance(value, Histogram) else [f"autobatch_{name} {value}"]
        return "\n".join(lines) + "\n"


class Batcher(metaclass=Spelled):
    """Groups concurrent calls of one example each and runs each group as one batch, in a thread of its own.

    `await batcher(example)` gives what `f(example, **shared)` gives: value, dtype, shape, structure, or its exception.
    Examples may differ in length and structure. One that raises or is cancelled does not affect the others.

    Requests that arrive together run together. When the thread is free, it waits for as many requests as there were a
    moment ago, at most `max_wait` and at most as long as the last batch took; if no others are expected, it starts at
    once. If `f` needs values along the way (in a decoding loop, say) and changes only objects that it makes itself,
    further requests join between its steps, and each answer is sent as soon as it is ready.

    Calls may come from any event loop and any thread. The options of `ab.options` are those in force where the batcher
    was made. Do not change `f` and the shared values while the batcher is used; `swap` replaces shared values.

    Args:
        f: a function of one example; one decorated with `ab.batch` answers as the function that it decorates.
        max_batch: the maximum number of examples that run at once.
        max_wait: the maximum seconds that a request waits for others while nothing runs.
        max_queue: the maximum number of waiting requests; None: no limit.
        shared: keyword arguments that are the same for all examples: parameters, tables.

    Raises:
        OptionError: an invalid limit. UnsupportedError: `f` is not a function, or has to be awaited.
        TypeError: `f` does not take one of the shared keywords.

    Source: adaptive batching as in Clipper (Crankshaw et al., 2017), continuous batching as in Orca (Yu et al., 2022).

    >>> import asyncio
    >>> def total(words, scale):
    ...     return (words * scale).sum()
    >>> async def main():
    ...     async with Batcher(total, scale=2.0) as batcher:
    ...         return await asyncio.gather(*[batcher(np.arange(n)) for n in (1, 3, 2)])
    >>> asyncio.run(main())
    [np.float64(0.0), np.float64(6.0), np.float64(2.0)]
    """

    def __init__(
        self,
        f: Callable[..., Any],
        *,
        max_batch: int = 256,
        max_wait: float = 0.002,
        max_queue: int | None = None,
        **shared: Any,
    ) -> None:
        self.max_batch = whole_option(max_batch, "max_batch")
        self.max_queue = None if max_queue is None else whole_option(max_queue, "max_queue")
        self.max_wait = _seconds("max_wait", max_wait)
        function = undecorated(f)
        if not callable(function) or inspect.iscoroutinefunction(function):
            given = "one that has to be awaited" if callable(function) else type(f).__name__
            raise UnsupportedError(f"ab.Batcher takes a plain function of one example; got {given}")
        _check_names(function, shared)
        self.metrics = Metrics()
        self._model = Model(f, dict(shared), 1)
        self._context = contextvars.copy_context()
        self._pure: dict[tuple[int, frozenset[type]], bool] = {}
        self._changed = threading.Condition(threading.Lock())
        self._queue: dict[Request, None] = {}  # in the order of arrival
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waking: set[asyncio.AbstractEventLoop] = set()
        self._expected = 1  # requests: those of the last round, and those that waited when it ended
        self._took = 0.0  # seconds that the last round took
        self._free_since = 0.0

    # Calls.

    async def __call__(self, *example: Any) -> Any:
        """The result for one example.

        Args:
            example: the positional arguments of `f`.

        Returns:
            What `f(*example, **shared)` returns.

        Raises:
            OverloadedError: `max_queue` requests wait already. ClosedError: the batcher is closed.
            Exception: whatever `f` raises for this example.
        """
        return (await self.answer(*example)).value

    async def answer(self, *example: object) -> Answer:
        """Like a call, but also gives the version of the shared values with which the result was computed.

        Args:
            example: the positional arguments of `f`.

        Returns:
            `.value` and `.version`: the whole result was computed with the shared values of that version.
        """
        loop = asyncio.get_running_loop()
        request = self._enqueue(example, loop)
        try:
            await request.future
        except asyncio.CancelledError:
            self._cancel(request)
            raise
        if request.error is not None:
            raise request.error
        assert request.answer is not None
        return request.answer

    @hiding_frames
    def submit(self, *example: object) -> "concurrent.futures.Future[Any]":
        """A future of the result, for callers without an event loop; it may be cancelled.

        Args:
            example: the positional arguments of `f`.

        Returns:
            A `concurrent.futures.Future`.

        >>> with Batcher(lambda x: x + 1) as batcher:
        ...     futures = [batcher.submit(x) for x in (1, 2.5)]
        ...     [future.result() for future in futures]
        [2, 3.5]
        """
        request = self._enqueue(example, None)
        request.future.add_done_callback(lambda future: self._cancel(request) if future.cancelled() else None)
        with self._changed:
            self._changed.notify()
        return request.future

    def _enqueue(self, example: tuple[Any, ...], loop: asyncio.AbstractEventLoop | None) -> Request:
        if not example:
            raise UnsupportedError("a batcher takes one example by position: await batcher(example)")
        with self._changed:
            if self._closed:
                raise ClosedError("the batcher is closed, and accepts no more requests")
            if self.max_queue is not None and len(self._queue) >= self.max_queue:
                self.metrics.rejected += 1
                waiting = len(self._queue)
                raise OverloadedError(f"{waiting} requests wait, and max_queue={self.max_queue}; try again later")
            request = Request(example, loop)
            self._queue[request] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="autobatch batcher", daemon=True)
                self._thread.start()
            if loop is not None and loop not in self._waking:  # wake it after all calls of this turn
                self._waking.add(loop)
                loop.call_soon(self._wake, loop)
        return request

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._changed:
            self._waking.discard(loop)
            self._changed.notify()

    def _cancel(self, request: Request) -> None:
        """Remove a cancelled request; if it runs already, it ends between two steps, or its answer is dropped."""
        with self._changed:
            self._queue.pop(request, None)
            self.metrics.cancelled += 1

    # The shared values.

    @property
    def version(self) -> int:
        """The version of the shared values for requests that begin now; 1 at first."""
        return self._model.version

    @property
    def shared(self) -> dict[str, Any]:
        """The shared values by name, for requests that begin now."""
        return dict(self._model.shared)

    @property
    def function(self) -> Callable[..., Any]:
        """The function that runs, without the decorator."""
        return self._model.function

    @property
    def queue_length(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    @hiding_frames
    def swap(self, value: object = _UNNAMED, /, *, version: int | None = None, **shared: object) -> int:
        """Replace shared values between requests: each answer is computed with only old or only new values.

        Running requests continue with the old values; no request is lost, and none waits longer than for those.

        Args:
            value: the new value, if only one value is shared.
            version: the version of the new values, which answers report; by default one more than now.
            shared: the new values by name; other values stay.

        Returns:
            The new version.

        Raises:
            TypeError: a name that is not shared, or no name although several values are shared.

        >>> with Batcher(lambda x, w: x * w, w=2) as batcher:
        ...     before = batcher.submit(3).result()
        ...     version = batcher.swap(5)
        ...     before, version, batcher.submit(3).result()
        (6, 2, 15)
        """
        with self._changed:
            old = self._model
            names = ", ".join(old.shared) or "nothing"
            if value is not _UNNAMED:
                if len(old.shared) != 1 or shared:
                    raise TypeError(f"swap takes values by name; shared is {names}: write swap(name=value)")
                shared = dict.fromkeys(old.shared, value)
            unknown = sorted(shared.keys() - old.shared.keys())
            if unknown:
                raise TypeError(f"swap got {', '.join(unknown)}; shared is {names}")
            new = old.version + 1 if version is None else operator.index(version)
            self._model = Model(old.given, old.shared | shared, new)
            self._pure = {}
            self.metrics.swaps += 1
            return new

    # Ending.

    def close(self) -> None:
        """Take no more requests, and return when all requests taken before have been answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> "Batcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Batcher":
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # The thread.

    def _work(self) -> None:
        while (taken := self._next_round()) is not None:
            requests, model = taken
            self._context.run(self._run, requests, model)
            del taken, requests, model  # else the last examples stay alive while the thread waits

    def _next_round(self) -> tuple[list[Request], Model] | None:
        """The requests to run now, once there are some, and their model; None: the thread must end."""
        with self._changed:
            self._free_since = time.monotonic()
            while True:
                wait = self._wait_seconds()
                if wait is None:
                    # After a second without a request the thread ends; the next request starts one.
                    if not self._closed and self._changed.wait(1.0):
                        continue
                    if self._queue:
                        continue
                    self._thread = None
                    return None
                if wait <= 0.0:
                    return self._take(self.max_batch, None), self._model
                self._changed.wait(wait)

    def _wait_seconds(self) -> float | None:
        """The seconds to wait for more requests before a round begins; None: until there is a first one."""
        if not self._queue:
            return None
        if self._closed or len(self._queue) >= self.max_batch:
            return 0.0
        first, now = next(iter(self._queue)).arrived, time.monotonic()
        self._waking = {loop for loop in self._waking if not loop.is_closed()}
        if self._waking:  # more calls may come in this turn of their loop
            return first + max(self.max_wait, _TURN) - now
        if len(self._queue) >= self._expected:
            return 0.0
        return max(self._free_since, first) + min(self.max_wait, self._took) - now

    def _take(self, most: int, like: frozenset[type] | None) -> list[Request]:
        """Take the first requests of the queue that may run together: all pass equally many arguments.

        Args:
            like: the types that their arguments may have; None: any.
        """
        taken: list[Request] = []
        for request in self._queue:
            if len(taken) >= most or (taken and len(request.example) != len(taken[0].example)):
                break
            if like is not None and not like.issuperset(map(type, request.example)):
                break
            taken.append(request)
        for request in taken:
            del self._queue[request]
        return taken

    def _run(self, requests: list[Request], model: Model) -> None:
        kinds = frozenset(type(value) for each in requests for value in each.example)
        parts, most = len(requests[0].example), _ROUNDS * self.max_batch

        def more(room: int) -> list[Request]:
            nonlocal most
            if room <= 0 or most <= 0 or not self._queue:
                return []
            with self._changed:
                if self._model is not model or (self._queue and len(next(iter(self._queue)).example) != parts):
                    return []
                joined = self._take(room, kinds)
            most -= len(joined)
            return joined

        begun = time.monotonic()
        quiet = options(warn=False)  # a round that becomes a loop is counted, not warned of, as for a single call
        running = Round(model, requests, self._is_pure(model, kinds), more, self._deliver)
        self.metrics.running = running.requests
        try:
            with quiet:
                running.run(self.max_batch)
        except BaseException as error:  # the thread must go on, and no caller wait for ever
            left = [each for each in running.requests if not each.ended]
            for each in left:
                each.error = error
            self._deliver(left)
        finally:
            self.metrics.running = ()
        self.metrics.batches.observe(len(running.requests))
        self.metrics.looped += running.looped is not None
        self._took = time.monotonic() - begun
        self.metrics.seconds.observe(self._took)
        self._expected = len(running.requests) + len(self._queue)

    def _is_pure(self, model: Model, kinds: frozenset[type]) -> bool:
        key = model.version, kinds
        found = self._pure.get(key)
        if found is None:
            # With a seed, each request must draw as a single call does, that is, as the first example.
            found = config.seed is None and changes_nothing(model.function, model.shared, kinds)
            self._pure[key] = found
        return found

    def _deliver(self, requests: Sequence[Request]) -> None:
        now = time.monotonic()
        for each in requests:
            if each.wanted:
                self.metrics.latency.observe(now - each.arrived)
                self.metrics.answered += each.error is None
                self.metrics.failed += each.error is not None
        deliver(requests)

    def __repr__(self) -> str:
        name = getattr(self._model.function, "__qualname__", repr(self._model.function))
        return f"Batcher({name}, max_batch={self.max_batch}, max_wait={self.max_wait}, version={self.version})"


def _seconds(name: str, value: float) -> float:
    if not (isinstance(value, int | float) and 0.0 <= value <= threading.TIMEOUT_MAX):
        raise OptionError(f"{name}={value!r:.60}; expected seconds, from 0 to what a thread can wait")
    return float(value)


def _check_names(function: Callable[..., Any], shared: dict[str, Any]) -> None:
    """Raise TypeError if a function does not take one of the shared keywords."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    try:
        signature.bind_partial(**shared)
    except TypeError as error:
        raise TypeError(f"{error}: shared arguments go to the function by keyword; it takes {signature}") from None
