"""`Batcher`: concurrent calls of a function of one example, run together as they come."""

import asyncio
import concurrent.futures
import contextvars
import inspect
import operator
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from autobatch.api.transforms import undecorated
from autobatch.core.config import config, options
from autobatch.errors import ClosedError, OptionError, OverloadedError, UnsupportedError
from autobatch.lazy.example_state import changes_nothing
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.serving.metrics import Metrics
from autobatch.serving.request_rounds import (
    AS_MAP,
    BATCH_WAYS,
    MAP_WAYS,
    Answer,
    Costs,
    Model,
    Request,
    Round,
    RoundWay,
    deliver,
)

_IDLE = 1.0  # seconds without a request after which the thread ends; the next request starts one
_TURN = 0.01  # seconds that a turn of an event loop may take until its requests are waited for no longer
_ROUNDS = 16  # times `max_batch` requests that may join one round, after which it runs out and the next one begins
_UNNAMED = object()


class Batcher:
    """Groups concurrent calls of one example each and runs each group as one batch, in a thread of its own.

    `await batcher(example)` gives what `f(example, **shared)` gives: value, dtype, shape, structure, or its exception.
    Requests may differ in length and structure. One that raises or is cancelled does not touch the others.

    Requests that came together run together. When the thread is free, it waits for as many as there were a moment ago,
    at most `max_wait` and at most as long as the last batch took; where nobody else is expected, it begins at once.
    Where `f` needs values on its way (a decoding loop, say) and changes nothing but what it makes, further requests
    join between its steps, and each answer leaves when it is there.

    Calls may come from any event loop and any thread. The options of `ab.options` are those in force where the batcher
    was made. `f` and the shared values must not be changed while it is used; `swap` gives it new ones.

    Args:
        f: a function of one example; one decorated with `ab.batch` serves as the function it decorates.
        max_batch: how many examples run at once, at most.
        max_wait: seconds that a request waits for others while nothing runs, at most.
        max_queue: how many requests may wait; None: any number.
        shared: keyword arguments that are the same for all examples: parameters, tables.

    Raises:
        OptionError: a limit that is none. UnsupportedError: `f` is no function, or one that has to be awaited.
        TypeError: `f` takes no keyword of such a name.

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
        self._costs = Costs()
        self._context = contextvars.copy_context()
        self._pure: dict[tuple[int, frozenset[type]], bool] = {}
        self._changed = threading.Condition(threading.Lock())
        self._queue: dict[Request, None] = {}  # in the order in which they came
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waking: set[asyncio.AbstractEventLoop] = set()
        self._expected = 1  # requests: so many there were when the last round ended
        self._took = 0.0  # seconds, of the last round
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

    async def answer(self, *example: Any) -> Answer:
        """As calling it, with the version of the shared values that the result was computed with.

        Args:
            example: the positional arguments of `f`.

        Returns:
            `.value` and `.version`: as `version` says, of one moment for all of the computation.
        """
        loop = asyncio.get_running_loop()
        request = self._enter(example, loop)
        try:
            await request.future
        except asyncio.CancelledError:
            self._leave(request)
            raise
        if request.error is not None:
            raise request.error
        assert request.answer is not None
        return request.answer

    def submit(self, *example: Any) -> "concurrent.futures.Future[Any]":
        """A future of the result, for threads; it may be cancelled.

        Args:
            example: the positional arguments of `f`.

        Returns:
            A `concurrent.futures.Future`.

        >>> with Batcher(lambda x: x + 1) as batcher:
        ...     futures = [batcher.submit(x) for x in (1, 2.5)]
        ...     [future.result() for future in futures]
        [2, 3.5]
        """
        request = self._enter(example, None)
        request.future.add_done_callback(lambda future: self._leave(request) if future.cancelled() else None)
        with self._changed:
            self._changed.notify()
        return request.future

    def _enter(self, example: tuple[Any, ...], loop: asyncio.AbstractEventLoop | None) -> Request:
        if not example:
            raise UnsupportedError("a batcher takes one example by position: await batcher(example)")
        with self._changed:
            if self._closed:
                raise ClosedError("the batcher is closed, and takes no requests any more")
            if self.max_queue is not None and len(self._queue) >= self.max_queue:
                self.metrics.rejected += 1
                raise OverloadedError(
                    f"{len(self._queue)} requests wait, and max_queue={self.max_queue}; try again later"
                )
            request = Request(example, loop)
            self._queue[request] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="autobatch batcher", daemon=True)
                self._thread.start()
            if loop is not None and loop not in self._waking:  # after those who call in this turn of the loop
                self._waking.add(loop)
                loop.call_soon(self._wake, loop)
        return request

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._changed:
            self._waking.discard(loop)
            self._changed.notify()

    def _leave(self, request: Request) -> None:
        """A request is cancelled; one that runs ends between two steps, or is not answered."""
        with self._changed:
            self._queue.pop(request, None)
            self.metrics.cancelled += 1

    # The shared values.

    @property
    def version(self) -> int:
        """The version of the shared values that requests begin with now: 1 at first."""
        return self._model.version

    @property
    def shared(self) -> dict[str, Any]:
        """The shared values by name, as they are for requests that begin now."""
        return dict(self._model.shared)

    @property
    def function(self) -> Callable[..., Any]:
        """The function that runs, without the decorator."""
        return self._model.function

    @property
    def queue_length(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    def swap(self, value: Any = _UNNAMED, /, *, version: int | None = None, **shared: Any) -> int:
        """Replace shared values between requests: each answer is computed with the old or the new ones throughout.

        Requests that run go on with the old ones; no request is lost, and none waits for more than that.

        Args:
            value: the new one, where one value only is shared.
            version: of the new ones, as answers say it; by default one more than now.
            shared: the new ones by name; others stay.

        Returns:
            The version.

        Raises:
            TypeError: a name that is not shared, or no name where several are.

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
                    raise TypeError(f"swap got a value without a name; shared is {names}: write swap(name=value)")
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
        """Take no more requests, and return when all that were taken have been answered."""
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
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # The thread.

    def _work(self) -> None:
        while (taken := self._next_round()) is not None:
            requests, model = taken
            self._context.run(self._run, requests, model)
            del taken, requests, model  # or the last examples would live as long as the thread

    def _next_round(self) -> tuple[list[Request], Model] | None:
        """The requests that run now, once there are some; None: the thread ends."""
        with self._changed:
            self._free_since = time.monotonic()
            while True:
                wait = self._patience()
                if wait is None:
                    if not self._closed and self._changed.wait(_IDLE):
                        continue
                    if self._queue:
                        continue
                    self._thread = None
                    return None
                if wait <= 0.0:
                    return self._take(self.max_batch, None), self._model
                self._changed.wait(wait)

    def _patience(self) -> float | None:
        """The seconds to wait for more requests; None: until there is one."""
        if not self._queue:
            return None
        if self._closed or len(self._queue) >= self.max_batch:
            return 0.0
        first, now = next(iter(self._queue)).arrived, time.monotonic()
        self._waking = {loop for loop in self._waking if not loop.is_closed()}
        if self._waking:  # others call in the same turn of their loop
            return first + max(self.max_wait, _TURN) - now
        if len(self._queue) >= self._expected:
            return 0.0
        return max(self._free_since, first) + min(self.max_wait, self._took) - now

    def _take(self, most: int, like: frozenset[type] | None) -> list[Request]:
        """The first requests of the queue that may run together: their examples have as many parts.

        Args:
            like: types, of which their examples have to be.
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
        quiet = options(warn=False)  # that requests run as a loop is counted: a single call would not warn
        pure = self._changes_nothing(model, kinds)
        ways = self._ways(model, requests) if pure else [AS_MAP]
        way = ways[0] if len(ways) == 1 else self._costs.choose(len(requests), ways)
        running = Round(model, requests, pure, more, self._deliver, way)
        self.metrics.running = running.requests
        try:
            with quiet:
                running.run(self.max_batch)
        except BaseException as error:  # the thread is to go on, and nobody to wait for ever
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
        if len(ways) > 1:
            self._costs.took(len(requests), way, self._took / len(running.requests))
        self._expected = len(running.requests) + len(self._queue)

    def _ways(self, model: Model, requests: Sequence[Request]) -> list[RoundWay]:
        """How requests of a function that changes nothing may run."""
        may_batch = config.way in ("auto", "lockstep") and model.may_batch(requests)
        if config.way != "auto" or config.strict or len(requests) < 2:
            return [BATCH_WAYS[0] if may_batch else AS_MAP]
        return [*MAP_WAYS, *(BATCH_WAYS if may_batch else ())]

    def _changes_nothing(self, model: Model, kinds: frozenset[type]) -> bool:
        key = model.version, kinds
        found = self._pure.get(key)
        if found is None:
            # With a seed, requests draw as single calls do: each as the first example.
            found = config.seed is None and changes_nothing(model.function, model.shared, kinds)
            self._pure[key] = found
        return found

    def _deliver(self, requests: Sequence[Request]) -> None:
        now = time.monotonic()
        for each in requests:
            if each.wanted:
                self.metrics.latency.observe(now - each.arrived)
                if each.error is None:
                    self.metrics.answered += 1
                else:
                    self.metrics.failed += 1
        deliver(requests)

    def __repr__(self) -> str:
        name = getattr(self._model.function, "__qualname__", repr(self._model.function))
        return f"Batcher({name}, max_batch={self.max_batch}, max_wait={self.max_wait}, version={self.version})"


def _seconds(name: str, value: float) -> float:
    if not (isinstance(value, int | float) and 0.0 <= value <= threading.TIMEOUT_MAX):
        raise OptionError(f"{name}={value!r:.60}; expected seconds, 0 or more, and what a thread can wait")
    return float(value)


def _check_names(function: Callable[..., Any], shared: dict[str, Any]) -> None:
    """Raise TypeError where a function takes no keyword of a name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in function, which says nothing of itself
        return
    try:
        signature.bind_partial(**shared)
    except TypeError as error:
        raise TypeError(f"{error}: what is shared goes to the function by keyword; it takes {signature}") from None
