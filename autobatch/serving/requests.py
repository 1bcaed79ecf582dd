"""One request: an example, who waits for its answer, and handing answers over to the threads where they are awaited."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Iterable
from typing import Any


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
