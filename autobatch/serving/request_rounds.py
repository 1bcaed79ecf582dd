"""A round: requests that run together, as one map or one batch, each of which ends as its single call would.

Of a function that changes nothing, a map is told nothing but the examples, and takes more of them in between its
launches. Arrays that make a batch may run as one call of a function decorated with `ab.batch`: `Costs` says which.
Where it raises, the requests that have no answer yet run again in halves, so that the one at fault comes to run by
itself, as a plain call. A function that may change something runs once for each request: its exceptions are made
results.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import math
import time
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import greenlet
import numpy as np

from autobatch.api.call_ways import run_map
from autobatch.api.transforms import undecorated
from autobatch.batches.any_batch import Batch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import examples
from autobatch.core.config import options
from autobatch.core.current_region import as_first_example
from autobatch.core.pytree import leaves
from autobatch.errors import OverTime


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request.

    Attributes:
        value: what the function returned. version: of the shared values that all of it was computed with.
    """

    value: Any
    version: int


class Request:
    """An example that waits, and then its answer.

    Args:
        example: the function's positional arguments.
        loop: the event loop in which the answer is awaited; None: a thread waits for it.

    Attributes:
        arrived: when it came, by `time.monotonic`.
        answer, error: of these one, once it has run.
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
        """Whether someone still waits for the answer."""
        return not self.future.cancelled()

    @property
    def ended(self) -> bool:
        """Whether it has run."""
        return self.answer is not None or self.error is not None


def deliver(requests: Iterable[Request]) -> None:
    """Wake those who wait for these requests, each in its own thread, with one message to each event loop."""
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


_TRIES, _AGAIN = 3, 200  # rounds: a way of k times the cheapest one's cost is tried again after 200 k, so costs 0.5 %
_SMALL, _PADDING = 1 << 16, 4  # elements of a batch that is made in any case; times its examples' own
_FEW = 4  # requests that run by themselves, after those that ran together have raised


class Model:
    """A function of one example with its shared values, which do not change while it is used.

    Attributes:
        given: the function as it was given; function: without the decorator. shared, version: of the shared values.
        guarded: the function with its exceptions as results: (True, result) or (False, exception).
    """

    def __init__(self, given: Callable[..., Any], shared: dict[str, Any], version: int) -> None:
        self.given, self.shared, self.version = given, shared, version
        self.function = undecorated(given)
        self.guarded = _guarded(self.function)
        self._takes_batches = given is not self.function and not any(isinstance(x, Batch) for x in leaves(shared))

    def may_batch(self, requests: Sequence[Request]) -> bool:
        """Whether these requests have arrays that make one batch, and the function takes batches."""
        if not self._takes_batches or len(requests) < 2:
            return False
        examples = [each.example for each in requests]
        kinds = {(type(x), x.dtype, x.ndim) if type(x) is np.ndarray else None for (x, *_) in examples}
        if len(kinds) > 1 or None in kinds or len(examples[0]) > 1:
            return False
        arrays = [x for (x,) in examples]
        if not arrays[0].ndim or arrays[0].dtype.kind not in "biufc":
            return False
        padded = len(arrays) * math.prod(max(sizes) for sizes in zip(*[x.shape for x in arrays], strict=True))
        return padded <= _SMALL + _PADDING * sum(x.size for x in arrays)  # one long example must not fill the memory

    def call(self, request: Request) -> None:
        """Run one request as a plain call, with its own exception."""
        try:
            self.answer(request, as_first_example(self.function, request.example, self.shared))
        except BaseException as error:  # whatever it is, it is this request's: the thread is not to end of it
            request.error = error

    def answer(self, request: Request, value: Any) -> None:
        request.answer = Answer(value, self.version)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*example: Any, **shared: Any) -> tuple[bool, Any]:
        try:
            return True, as_first_example(function, example, shared)
        except (greenlet.GreenletExit, OverTime):
            raise
        except BaseException as error:
            return False, error

    # What a function has cost is known by its code, so each function needs one of its own.
    code = guarded.__code__.replace(co_name=f"guarded_{getattr(function, '__name__', 'call')}")
    out = types.FunctionType(code, guarded.__globals__, code.co_name, None, guarded.__closure__)
    out.__wrapped__ = function  # type: ignore[attr-defined]  # whose surroundings are looked at
    return out


class RoundWay(NamedTuple):
    """How a round runs: as one batch or as a map, and by which way of the library.

    Attributes:
        way: as in `ab.options`; None: the options in force say.
    """

    as_batch: bool
    way: Literal["fly", "lockstep"] | None


AS_MAP = RoundWay(False, None)
MAP_WAYS = (AS_MAP, RoundWay(False, "fly"))
BATCH_WAYS = (RoundWay(True, None), RoundWay(True, "lockstep"))


class Costs:
    """Which way rounds cost least, by what each has cost.

    A server runs for long, so all ways are tried, each three times for rounds of a size, and dearer ones again, the
    more seldom the dearer, since the requests may change: fewer than one answer in a hundred waits for such a try. A
    single call of the library may not: it never costs much more than the loop.
    """

    def __init__(self) -> None:
        self._seconds: collections.defaultdict[tuple[int, RoundWay], collections.deque[float]] = (
            collections.defaultdict(lambda: collections.deque(maxlen=_TRIES))
        )
        self._since: collections.Counter[tuple[int, RoundWay]] = collections.Counter()  # rounds since its last

    def choose(self, count: int, ways: Sequence[RoundWay]) -> RoundWay:
        """The way of a round that begins with so many requests.

        >>> costs = Costs()
        >>> for _ in range(6):
        ...     way = costs.choose(8, MAP_WAYS)
        ...     costs.took(8, way, 1.0 if way.way == "fly" else 3.0)
        >>> costs.choose(8, MAP_WAYS)
        RoundWay(as_batch=False, way='fly')
        """
        size = count.bit_length()
        known = {way: self._seconds[size, way] for way in ways}
        untried = min(ways, key=lambda way: len(known[way]))
        if len(known[untried]) < _TRIES or len(ways) == 1:
            return untried
        cost = {way: min(known[way]) for way in ways}
        best = min(ways, key=cost.__getitem__)
        due = [way for way in ways if self._since[size, way] * cost[best] >= _AGAIN * cost[way]]
        return due[0] if due else best

    def took(self, count: int, way: RoundWay, seconds: float) -> None:
        """A round that began with so many requests took so long for each that it answered."""
        size = count.bit_length()
        self._seconds[size, way].append(seconds)
        self._since.update((size, other) for other in BATCH_WAYS + MAP_WAYS)
        self._since[size, way] = 0


class Round:
    """Requests that run together with one model; the `Joining` of the map that runs them.

    Args:
        model: what runs; requests: on what, at least one.
        pure: the function changes nothing. way: how to run what is pure; as a batch, where that can be.
        more: gives requests that join, at most so many; None: none do.
        done: told of requests that have ended, a few at a time.

    Attributes:
        requests: all of them, those that joined last. looped: why they ran in a loop, if they did.
        as_batch: they ran as one batch.
    """

    def __init__(
        self,
        model: Model,
        requests: Sequence[Request],
        pure: bool,
        more: Callable[[int], Sequence[Request]] | None = None,
        done: Callable[[Sequence[Request]], Any] = deliver,
        way: RoundWay = AS_MAP,
    ) -> None:
        self.requests = list(requests)
        self._model = model
        self._pure = pure
        self._more = more
        self._done = done
        self.as_batch, self._way = way.as_batch, way.way
        self.looped: str | None = None
        self._alone: set[int] = set()
        self._gone: set[int] = set()
        self._ended: list[Request] = []
        self._at_once = len(requests)

    def run(self, most: int) -> None:
        """Run all requests and those that join, at most so many at once; each has ended when this returns."""
        self._most = most
        if not self._pure and len(self.requests) == 1:
            self._call(self.requests[0])
            return
        if not self._pure:
            self._run_guarded()
            return
        self.as_batch = self.as_batch and self._run_as_batch()
        if not self.as_batch:
            self._run_together(self.requests)
        for index in self._alone:
            self._call(self.requests[index])
        parts = [[each for each in self.requests if each.wanted and not each.ended]]
        self._more = None
        while parts:
            part = parts.pop()
            if len(part) <= _FEW:
                for each in part:
                    self._call(each)
                continue
            for half in (part[: len(part) // 2], part[len(part) // 2 :]):
                again = Round(self._model, half, True, None, self._done)
                again._run_together(half)
                for index in again._alone:
                    again._call(half[index])
                again._tell()
                parts.append([each for each in half if each.wanted and not each.ended])
        self._tell()

    def _run_together(self, requests: Sequence[Request]) -> None:
        columns = list(zip(*[each.example for each in requests], strict=True))
        try:
            with self._pinned():
                results, stats = run_map(self._model.function, columns, self._model.shared, None, self)
        except BaseException:  # of some request: which one, running them in parts shows
            return
        self.looped = stats.looped
        for index, result in enumerate(results):
            self.settled(index, result)
        self._tell()

    def _run_as_batch(self) -> bool:
        """One call of the function on a batch; returns whether that could be."""
        try:
            batch = MaskedBatch.from_examples([x for (x,) in (each.example for each in self.requests)])
            with self._pinned():
                results = examples(self._model.given(batch, **self._model.shared))
        except BaseException:  # of some request, or of what no batch can be made of: a map says
            return False
        if len(results) != len(self.requests):  # they are the same for all
            return False
        for index, result in enumerate(results):
            self.settled(index, result)
        self._tell()
        return True

    def _pinned(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._way is None else options(way=self._way)

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
            self._ended.append(request)
            self._tell()

    def _tell(self) -> None:
        if self._ended:
            ended, self._ended = self._ended, []
            self._done(ended)

    # As the map sees it.

    def arrivals(self) -> Sequence[tuple[Any, ...]]:
        """The examples of the requests that join."""
        self._tell()
        if self._more is None:
            return ()
        joined = self._more(self._most - self._at_once)
        self._at_once += len(joined)
        self.requests += joined
        return [each.example for each in joined]

    def left(self, index: int) -> bool:
        """Whether the request was cancelled."""
        if self.requests[index].wanted:
            return False
        self._gone.add(index)
        self._at_once -= 1
        return True

    def settled(self, index: int, result: Any) -> None:
        """The result of a request is there."""
        request = self.requests[index]
        if not (request.ended or index in self._alone or index in self._gone):
            self._model.answer(request, result)
            self._ended.append(request)
            self._at_once -= 1

    def raised(self, index: int) -> None:
        """Note that the request at this index raised, and is to run by itself."""
        self._alone.add(index)
        self._at_once -= 1
