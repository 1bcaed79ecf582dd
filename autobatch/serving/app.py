"""`serve`: an ASGI application that answers requests of one example each, and batches those that arrive together."""

import asyncio
import contextlib
import gc
import inspect
import json
import logging
import math
import typing
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from autobatch.errors import BadIdError, ClosedError, OptionError, OverloadedError
from autobatch.serving.batcher import Batcher
from autobatch.serving.bodies import JSON, NPY, SAFETENSORS, UnsuitedResultError, decode, encode
from autobatch.serving.checkpoint_watch import CheckpointWatch
from autobatch.serving.request_rounds import Answer
from autobatch.serving.typed_values import BadValueError, Read, object_of, reader

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_KINDS = {
    JSON: JSON, "": JSON, "text/json": JSON, NPY: NPY, "application/npy": NPY, SAFETENSORS: SAFETENSORS,
    "application/x-safetensors": SAFETENSORS,
}  # fmt: skip
_ANY = ("*/*", "application/*", "")
_LOOK = 0.05  # seconds after which a request begins to watch for its client's disconnection
_log = logging.getLogger("autobatch.serving")


def serve(
    f: Callable[..., Any],
    *,
    max_batch: int = 256,
    max_wait: float = 0.002,
    max_queue: int = 1024,
    max_body: int = 1 << 20,
    max_depth: int = 100,
    timeout: float = 30.0,
    checkpoints: Any = None,
    poll: float = 1.0,
    **shared: Any,
) -> "App":
    """An ASGI application: `POST /` with one example answers what `f(example, **shared)` returns.

    Any ASGI server runs it: `uvicorn.run(ab.serve(f, params=params))` listens on 127.0.0.1:8000. Requests are grouped
    by an `ab.Batcher`. docs/serving.md describes the formats of requests and answers; nothing is ever unpickled.

    `GET /health` says that the process is alive, `GET /ready` whether it takes requests, `GET /metrics` gives its
    metrics for Prometheus. The header `autobatch-version` of an answer names the parameters that computed it.

    Args:
        f: a function of one example. A request is read as the types with which the parameters of `f` are annotated
            (arrays, dataclasses, ...); a mismatch is answered 422, with its place. Without an annotation the JSON value
            is passed as it is. If several parameters are not shared, a request is an object of their values by name.
        max_batch, max_wait, max_queue: as for `ab.Batcher`; a request beyond `max_queue` is answered 429.
        max_body: the most bytes of a request; a longer one is answered 413.
        max_depth: the most levels of nested lists and objects in a request; a deeper one is answered 422.
        timeout: the seconds in which a request must have arrived, else 408, and must be answered, else 503.
        checkpoints: a folder that `ab.Checkpoints` writes: the newest checkpoint's parameters are served, as the shared
            value `params` (or the only one), and must have its structure. None: the given values are served.
        poll: seconds between checks for a newer checkpoint.
        shared: keyword arguments that are the same for all examples.

    Returns:
        An `App`; its `batcher` also takes requests of this process, and has `swap`.

    Raises:
        OptionError, UnsupportedError, TypeError: as for `ab.Batcher`.

    Source: the ASGI specification 3.0 with its lifespan protocol; Prometheus's text format 0.0.4.

    >>> def total(words: list[int], scale):
    ...     return sum(words) * scale
    >>> app = ab.serve(total, scale=2)
    >>> app.batcher.submit([1, 2, 3]).result()
    12
    """
    batcher = Batcher(f, max_batch=max_batch, max_wait=max_wait, max_queue=max_queue, **shared)
    return App(batcher, max_body, max_depth, timeout, checkpoints, poll)


class App:
    """The ASGI application that `serve` gives.

    Attributes:
        batcher: runs the requests; watch: takes the parameters from checkpoints, or None.
    """

    def __init__(
        self, batcher: Batcher, max_body: int, max_depth: int, timeout: float, checkpoints: Any, poll: float
    ) -> None:
        for name, value in (("max_body", max_body), ("max_depth", max_depth), ("timeout", timeout), ("poll", poll)):
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise OptionError(f"{name}={value!r}; expected a number above 0")
        self.batcher = batcher
        self.watch = None if checkpoints is None else CheckpointWatch(batcher, checkpoints, poll)
        self._max_body, self._max_depth, self._timeout = max_body, int(max_depth), timeout
        self._reads = _parameter_readers(batcher)
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False
        self._routes = {
            "/": ("POST", self._answer),
            "/health": ("GET", self._health),
            "/ready": ("GET", self._ready),
            "/metrics": ("GET", self._metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise ValueError(f"ab.serve answers HTTP; got a connection of type {scope['type']!r}")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._begin()
                gc.freeze()  # objects made so far live on: a collection over them would delay answers by 0.1 s
                await send({"type": "lifespan.startup.complete"})
            else:
                self._stopping = True
                if self._watching is not None:
                    self._watching.cancel()
                await asyncio.to_thread(self.batcher.close)
                gc.unfreeze()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _begin(self) -> None:
        """Take the newest checkpoint and watch for newer ones; without lifespan, at the first request."""
        if self.watch is not None and (self._watching is None or self._watching.done()) and not self._stopping:
            self._watching = asyncio.get_running_loop().create_task(self.watch.watch())
            await self.watch.look()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.watch is not None:
            await self._begin()
        path, root = scope["path"], scope.get("root_path", "").rstrip("/")
        if root and path.startswith(root):
            path = path[len(root) :]
        method, route = self._routes.get(path or "/", ("", None))
        if route is None:
            reply = _error(404, "NotFound", f"nothing is at {path}; there are {', '.join(self._routes)}")
        elif scope["method"] != method and not (method == "GET" and scope["method"] == "HEAD"):
            reply = _error(405, "MethodNotAllowed", f"{path} takes {method}, not {scope['method']}", {"allow": method})
        else:
            try:
                reply = await route(_headers(scope), receive)
            except _Disconnected:
                return
            except _ErrorReply as refusal:
                reply = refusal.reply
        status, kind, body, headers = reply
        headers = {"content-type": kind, "content-length": str(len(body)), **headers}
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _health(self, headers: dict[str, str], receive: Receive) -> "Reply":
        return _json(200, {"status": "ok"})

    async def _ready(self, headers: dict[str, str], receive: Receive) -> "Reply":
        ready = not self._stopping
        return _json(200 if ready else 503, {"ready": ready, "version": self.batcher.version})

    async def _metrics(self, headers: dict[str, str], receive: Receive) -> "Reply":
        text = self.batcher.metrics.text(self.batcher.queue_length, self.batcher.version)
        return 200, "text/plain; version=0.0.4; charset=utf-8", text.encode(), {}

    async def _answer(self, headers: dict[str, str], receive: Receive) -> "Reply":
        kind = _body_type(headers)
        example: tuple[Any, ...] | None = None
        try:
            async with asyncio.timeout(self._timeout):
                example = self._example(decode(kind, await _body(headers, receive, self._max_body)))
                answer = await self._await_answer(example, receive)
        except TimeoutError:
            late = example is None
            text = "the request did not arrive in time" if late else f"no answer within {self._timeout} seconds"
            return _error(408 if late else 503, "Timeout", text, _CLOSE if late else _LATER)
        except BadValueError as error:
            place, expected, given = error.path, error.expected, error.given
            return _error(422, "BadValueError", str(error), path=place, expected=expected, given=given)
        form = _answer_type(headers, kind, answer.value)
        try:
            out = encode(form, answer.value)
        except UnsuitedResultError as error:
            return _error(500 if form == JSON else 406, "UnsuitedResultError", str(error))
        return 200, form, out, {"autobatch-version": str(answer.version)}

    def _example(self, value: Any) -> tuple[Any, ...]:
        """The positional arguments of the function, read from a request's decoded body."""
        if len(self._reads) == 1:
            (read,) = self._reads.values()
            return (read(value, self._max_depth),)
        if type(value) is not dict:
            raise BadValueError((), f"an object with {', '.join(self._reads)}", f"a {type(value).__name__}")
        parts = object_of(self._reads, set())(value, self._max_depth)
        return tuple(parts[name] for name in self._reads)

    async def _await_answer(self, example: tuple[Any, ...], receive: Receive) -> Answer:
        """The answer; if the client disconnects or the awaiting task is cancelled, the request is cancelled.

        An exception of the function becomes a reply and is not raised: a `SystemExit` would end the event loop.
        """
        loop = asyncio.get_running_loop()
        try:
            if self._stopping:  # the batcher is about to be closed
                raise ClosedError("the server shuts down, and takes no requests any more")
            request = self.batcher._enqueue(example, loop)
        except OverloadedError as error:
            raise _ErrorReply(_error(429, "OverloadedError", str(error), _LATER)) from None
        except ClosedError as error:
            raise _ErrorReply(_error(503, "ClosedError", str(error), _LATER)) from None
        leaving: list[asyncio.Task[None]] = []

        def look() -> None:
            leaving.append(loop.create_task(_wait_for_disconnect(receive)))
            leaving[0].add_done_callback(lambda _: request.future.cancel())

        looking = loop.call_later(_LOOK, look)
        try:
            await request.future
        except asyncio.CancelledError:
            self.batcher._cancel(request)
            if any(each.done() for each in leaving):
                raise _Disconnected from None
            raise
        finally:
            looking.cancel()
            for task in leaving:
                task.cancel()
        if request.error is not None:
            raise _ErrorReply(_failure(request.error))
        assert request.answer is not None
        return request.answer


Reply = tuple[int, str, bytes, dict[str, str]]


class _Disconnected(Exception):  # noqa: N818 - a signal
    """The client has disconnected."""


class _ErrorReply(Exception):  # noqa: N818 - a signal
    """Raised to answer with a reply other than a result."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply[0])
        self.reply = reply


_CLOSE, _LATER = {"connection": "close"}, {"retry-after": "1"}


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Reply:
    return status, JSON, json.dumps(value).encode(), headers or {}


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None, **more: str) -> Reply:
    return _json(status, {"error": {"type": kind, "message": message, **more}}, headers)


def _failure(error: BaseException) -> Reply:
    """The reply to a request for which the function raised."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be made"
    if not isinstance(error, BadIdError):
        _log.error("a request raised", exc_info=error)
    return _error(422 if isinstance(error, BadIdError) else 500, type(error).__name__, text)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _body_type(headers: dict[str, str]) -> str:
    """The media type of a request's body."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise _ErrorReply(_error(415, "UnsupportedMediaType", "bodies are not decompressed; send it as it is"))
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in _KINDS:
        text = f"content-type {given!r}; expected {JSON}, {NPY} or {SAFETENSORS}"
        raise _ErrorReply(_error(415, "UnsupportedMediaType", text))
    return _KINDS[given]


def _answer_type(headers: dict[str, str], kind: str, value: Any) -> str:
    """The media type of an answer: the accepted one, else that of the request if it suits the result, else JSON."""
    for wanted in headers.get("accept", "").split(","):
        name = wanted.partition(";")[0].strip().lower()
        if name in _KINDS and name:
            return _KINDS[name]
        if name in _ANY:
            break
    if kind == NPY and not hasattr(value, "dtype"):
        return JSON
    parts = value.values() if isinstance(value, dict) else [value]
    if kind == SAFETENSORS and not all(hasattr(each, "dtype") for each in parts):
        return JSON
    return kind


async def _body(headers: dict[str, str], receive: Receive, most: int) -> bytes:
    """The body of a request; one of more than `most` bytes is answered 413."""
    said = headers.get("content-length", "0")
    if said.isdecimal() and len(said) < 20 and int(said) > most:
        raise _ErrorReply(_too_large(most))
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _ErrorReply(_too_large(most))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(most: int) -> Reply:
    return _error(413, "ContentTooLarge", f"a request has at most {most} bytes", _CLOSE)


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    with contextlib.suppress(Exception):  # some servers raise then
        while (await receive())["type"] != "http.disconnect":
            pass


def _parameter_readers(batcher: Batcher) -> dict[str, Read]:
    """By parameter, the reader of its value in a request: all without a default, or the first if all have one."""
    try:
        parameters = inspect.signature(batcher.function).parameters
    except (TypeError, ValueError):  # a built-in function without a signature
        return {"example": reader(Any)}
    try:
        hints = typing.get_type_hints(batcher.function)
    except Exception:  # annotations with names that do not exist at run time
        hints = {}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [each for each in parameters.values() if each.kind in by_position and each.name not in batcher.shared]
    needed = [each for each in own if each.default is each.empty] or own[:1]
    if not needed:
        return {"example": reader(Any)}
    return {each.name: reader(hints.get(each.name, Any)) for each in needed}
