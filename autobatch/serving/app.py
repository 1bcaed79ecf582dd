"""`serve`: an ASGI application that answers requests of one example each, and batches those that arrive together."""

import asyncio
import contextlib
import gc
import inspect
import logging
import math
import time
import traceback
import typing
from collections.abc import AsyncIterator, Callable
from typing import Any

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from autobatch.serving.bodies import JSON, NPY, SAFETENSORS, UnsuitedResultError, decode, encode
    from autobatch.serving.typed_values import BadValueError, Reading, check_levels, record_of, schema_of, shortened
except ImportError as error:
    missing = f"pip install starlette msgspec safetensors ({error})"
    raise ImportError(f"ab.serve needs more packages: {missing}") from error

from autobatch.checkpoint.checkpoints import Checkpoints
from autobatch.checkpoint.files import OF_VALUES
from autobatch.core.current_region import check_time, with_deadline
from autobatch.core.diagnostics import hiding_frames
from autobatch.errors import ClosedError, OptionError, OverloadedError, OverTime
from autobatch.serving.batcher import Batcher
from autobatch.serving.request_rounds import Answer

_KINDS = {
    JSON: JSON, "": JSON, "text/json": JSON, NPY: NPY, "application/npy": NPY, SAFETENSORS: SAFETENSORS,
    "application/x-safetensors": SAFETENSORS,
}  # fmt: skip
_ANY = ("*/*", "application/*", "")
_AT_ONCE = 1 << 10  # bytes: longer bodies are read in a thread, since the event loop would wait for them
_TEXT = 1000  # the most characters of an exception's text in an answer
_CLOSE, _LATER = {"connection": "close"}, {"retry-after": "1"}
_log = logging.getLogger("autobatch.serving")


@hiding_frames
def serve(
    f: Callable[..., Any],
    *,
    max_batch: int = 256,
    max_wait: float = 0.002,
    max_queue: int = 1024,
    max_body: int = 1 << 20,
    max_depth: int = 100,
    max_read: float = 1.0,
    timeout: float = 30.0,
    checkpoints: object = None,
    poll: float = 1.0,
    **shared: object,
) -> "App":
    """An ASGI application: `POST /` with one example answers what `f(example, **shared)` returns.

    Any ASGI server runs it: `uvicorn.run(ab.serve(f, params=params))` listens on 127.0.0.1:8000. Requests are grouped
    by an `ab.Batcher`. docs/serving.md describes the formats of requests and answers; nothing is ever unpickled. It
    needs Starlette, msgspec and safetensors, which the extra `serve` installs.

    `GET /health` says that the process is alive, `GET /ready` whether it takes requests, `GET /metrics` gives its
    metrics for Prometheus. The header `autobatch-version` of an answer names the parameters that computed it.

    Args:
        f: a function of one example. A request is read as the types with which the parameters of `f` are annotated
            (arrays, dataclasses, ...); a mismatch is answered 422, with its place. Without an annotation the JSON value
            is passed as it is. If several parameters are not shared, a request is an object of their values by name.
        max_batch, max_wait, max_queue: as for `ab.Batcher`; a request beyond `max_queue` is answered 429.
        max_body: the maximum size of a request in bytes; a longer one is answered 413.
        max_depth: the maximum nesting of lists and objects in a request; a deeper one is answered 422.
        max_read: the maximum CPU seconds for reading a request; one that takes longer is answered 422.
        timeout: the seconds within which a request must have arrived, else 408, and be answered, else 503.
        checkpoints: a folder that `ab.Checkpoints` writes: the newest checkpoint's parameters are served, as the shared
            value `params` (or the only one), and must have its structure. None: the given values are served.
        poll: seconds between checks for a newer checkpoint.
        shared: keyword arguments that are the same for all examples.

    Returns:
        An `App`, which is a `starlette.applications.Starlette`; its `batcher` also takes requests of this process, and
        has `swap`.

    Raises:
        OptionError, UnsupportedError, TypeError: as for `ab.Batcher`. ImportError: Starlette or msgspec is missing.

    Source: the ASGI specification 3.0 with its lifespan protocol; Prometheus's text format 0.0.4.

    >>> def total(words: list[int], scale):
    ...     return sum(words) * scale
    >>> app = ab.serve(total, scale=2)
    >>> app.batcher.submit([1, 2, 3]).result()
    12
    """
    batcher = Batcher(f, max_batch=max_batch, max_wait=max_wait, max_queue=max_queue, **shared)
    return App(batcher, max_body, max_depth, max_read, timeout, checkpoints, poll)


class CheckpointWatch:
    """Keeps one shared value of a batcher equal to that in the newest checkpoint of a folder.

    A checkpoint is taken whole or not at all: each of its blocks is verified, and its tree must have the structure of
    the served value. A checkpoint that cannot be taken is counted and logged; the batcher keeps its value, and the
    checkpoint is tried again.

    Args:
        batcher: its shared value "params", or its only shared value, is replaced.
        folder: a folder that `ab.Checkpoints` writes, in this process or another one.
        every: seconds between two checks.

    Attributes:
        step: of the served checkpoint; None before the first.

    Raises:
        OptionError: several values are shared, and none is named "params".
    """

    def __init__(self, batcher: Batcher, folder: object, every: float) -> None:
        names = list(batcher.shared)
        if "params" not in names and len(names) != 1:
            raise OptionError(f"checkpoints go into the shared value params; shared is {', '.join(names) or 'nothing'}")
        self._name = "params" if "params" in names else names[0]
        self._batcher = batcher
        self._checkpoints = Checkpoints(folder)
        self._every = every
        self.step: int | None = None
        self._complaint = ""

    async def look(self) -> bool:
        """Take the newest checkpoint if it is not served yet; returns whether a checkpoint is served."""
        try:
            restored = await asyncio.to_thread(self._newer)
            if restored is not None:
                self._batcher.swap(version=restored.step, **{self._name: restored.params})
                self.step, self._complaint = restored.step, ""
                _log.info("serving the checkpoint of step %d of %s", restored.step, self._checkpoints.folder)
        except Exception as error:
            self._batcher.metrics.swap_errors += 1
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("no checkpoint taken from %s: %s", self._checkpoints.folder, error)
        return self.step is not None

    def _newer(self) -> Any:
        steps = self._checkpoints.steps()
        if steps[-1:] in ([], [self.step]):
            return None
        return self._checkpoints.restore(self._batcher.shared[self._name])

    async def watch(self) -> None:
        """Call `look` every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            await self.look()


class App(Starlette):
    """The ASGI application that `serve` gives.

    Attributes:
        batcher: runs the requests; watch: takes the parameters from checkpoints, or None.
    """

    def __init__(
        self,
        batcher: Batcher,
        max_body: int,
        max_depth: int,
        max_read: float,
        timeout: float,
        checkpoints: object,
        poll: float,
    ) -> None:
        limits = {"max_body": max_body, "max_depth": max_depth, "max_read": max_read, "timeout": timeout, "poll": poll}
        for name, value in limits.items():
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise OptionError(f"{name}={value!r}; expected a number above 0")
        self.batcher = batcher
        self.watch = None if checkpoints is None else CheckpointWatch(batcher, checkpoints, poll)
        self._max_body, self._max_depth, self._max_read = max_body, int(max_depth), max_read
        self._timeout = timeout
        self._names, self._schema = _parameters(batcher)
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False
        self._logged: dict[Any, float] = {}  # when an exception of a type and place in the code was logged
        super().__init__(
            routes=[
                Route("/", self._answer, methods=["POST"]),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={HTTPException: _refusal},
            lifespan=_lifespan,
        )
        self.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._begin()
        await super().__call__(scope, receive, send)

    async def _begin(self) -> None:
        """Take the newest checkpoint and watch for newer ones; without lifespan, at the first request."""
        if self.watch is not None and (self._watching is None or self._watching.done()) and not self._stopping:
            self._watching = asyncio.get_running_loop().create_task(self.watch.watch())
            await self.watch.look()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        ready = not self._stopping
        return JSONResponse({"ready": ready, "version": self.batcher.version}, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        text = self.batcher.metrics.text(self.batcher.queue_length, self.batcher.version)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _answer(self, request: Request) -> Response:
        media_type = _body_type(request)
        example: tuple[Any, ...] | None = None
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._body(request)
                if len(body) <= _AT_ONCE:
                    example = self._example(media_type, body)
                else:
                    example = await run_in_threadpool(self._example, media_type, body)
                answer = await self._await_answer(example, request)
        except TimeoutError:
            if example is None:
                raise _error(408, "Timeout", "the request did not arrive in time", _CLOSE) from None
            raise _error(503, "Timeout", f"no answer within {self._timeout} seconds", _LATER) from None
        except BadValueError as error:
            place, expected, given = error.path, error.expected, error.given
            raise _error(422, "BadValueError", str(error), path=place, expected=expected, given=given) from None
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        form = _answer_type(request, media_type, answer.value)
        try:
            out = encode(form, answer.value)
        except UnsuitedResultError as error:
            chosen = form != JSON or JSON in request.headers.get("accept", "")
            raise _error(406 if chosen else 500, "UnsuitedResultError", shortened(str(error), _TEXT)) from None
        return Response(out, media_type=form, headers={"autobatch-version": str(answer.version)})

    async def _body(self, request: Request) -> bytes:
        """The body of a request; one of more than `max_body` bytes is answered 413."""
        too_large = _error(413, "ContentTooLarge", f"a request has at most {self._max_body} bytes", _CLOSE)
        body, said = bytearray(), request.headers.get("content-length", "0")
        if said.isdecimal() and (len(said) > 20 or int(said) > self._max_body):
            raise too_large
        async for part in request.stream():
            body += part
            if len(body) > self._max_body:
                raise too_large
        return bytes(body)

    def _example(self, media_type: str, body: bytes) -> tuple[Any, ...]:
        """The positional arguments of the function, read from a request's body."""
        try:
            with with_deadline(self._max_read):
                value = decode(media_type, body)
                check_levels(value, self._max_depth)
                check_time()
                out = Reading().read(value, self._schema)
        except OverTime:
            expected = f"a request that is read within {self._max_read} s"
            raise BadValueError("$", expected, f"{len(body)} bytes that take longer") from None
        except RecursionError:
            raise BadValueError("$", "fewer levels", "more than Python has room for") from None
        return (out,) if self._names is None else tuple(out[name] for name in self._names)

    async def _await_answer(self, example: tuple[Any, ...], request: Request) -> Answer:
        """The answer; if the client disconnects or the awaiting task is cancelled, the request is cancelled.

        An exception of the function becomes a reply and is not raised: a `SystemExit` would end the event loop.
        """
        try:
            if self._stopping:  # the batcher is about to be closed
                raise ClosedError("the server is shutting down, and accepts no more requests")
            waiting = self.batcher._enqueue(example, asyncio.get_running_loop())
        except OverloadedError as error:
            raise _error(429, "OverloadedError", str(error), _LATER) from None
        except ClosedError as error:
            raise _error(503, "ClosedError", str(error), _LATER) from None
        try:
            # Look every so many seconds whether a client that waits has disconnected.
            while not (await asyncio.wait([waiting.future], timeout=0.05))[0]:
                if await request.is_disconnected():
                    raise ClientDisconnect
        finally:
            if not waiting.future.done():
                waiting.future.cancel()
                self.batcher._cancel(waiting)
        if waiting.error is not None:
            raise self._failure(waiting.error)
        assert waiting.answer is not None
        return waiting.answer

    def _failure(self, error: BaseException) -> HTTPException:
        """The reply to a request for which the function raised; 422 if values cause exceptions of this kind."""
        try:
            text = shortened(str(error), _TEXT)
        except Exception:
            text = "its text cannot be made"
        places = traceback.extract_tb(error.__traceback__)
        place = (type(error), *((places[-1].filename, places[-1].lineno) if places else ()))
        now = time.monotonic()
        # An exception of the same place in the code is logged again after a minute.
        if now - self._logged.get(place, -math.inf) >= 60.0:  # so that no client can fill the log
            self._logged[place] = now
            lines = "".join(traceback.format_list(places))
            _log.error("a request raised %s: %a\n%s", type(error).__name__, shortened(text), lines)
        return _error(422 if isinstance(error, OF_VALUES) else 500, type(error).__name__, text)


@contextlib.asynccontextmanager
async def _lifespan(app: App) -> AsyncIterator[None]:
    await app._begin()
    gc.freeze()  # objects made so far live on: a collection over them would delay answers by 0.1 s
    yield
    app._stopping = True
    if app._watching is not None:
        app._watching.cancel()
    await asyncio.to_thread(app.batcher.close)
    gc.unfreeze()


def _error(status: int, name: str, message: str, headers: dict[str, str] | None = None, **more: str) -> HTTPException:
    error = HTTPException(status, message, headers)
    error.said = {"type": name, "message": message, **more}  # type: ignore[attr-defined]
    return error


async def _refusal(request: Request, error: Exception) -> Response:
    """The reply of an exception by `_error`, or by Starlette for another path or method."""
    assert isinstance(error, HTTPException)
    said = getattr(error, "said", {"type": error.detail.replace(" ", ""), "message": error.detail})
    return JSONResponse({"error": said}, error.status_code, error.headers)


def _body_type(request: Request) -> str:
    """The media type of a request's body."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise _error(415, "UnsupportedMediaType", "compressed bodies are not supported; send it uncompressed")
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in _KINDS:
        text = f"content-type {shortened(given, 60)!r}; expected {JSON}, {NPY} or {SAFETENSORS}"
        raise _error(415, "UnsupportedMediaType", text)
    return _KINDS[given]


def _answer_type(request: Request, media_type: str, value: object) -> str:
    """The media type of an answer: the accepted one, else that of the request if it suits the result, else JSON."""
    for wanted in request.headers.get("accept", "").split(","):
        name = wanted.partition(";")[0].strip().lower()
        if name in _KINDS and name:
            return _KINDS[name]
        if name in _ANY:
            break
    if media_type == NPY and not hasattr(value, "dtype"):
        return JSON
    parts = value.values() if isinstance(value, dict) else [value]
    if media_type == SAFETENSORS and not all(hasattr(each, "dtype") for each in parts):
        return JSON
    return media_type


def _parameters(batcher: Batcher) -> tuple[list[str] | None, Any]:
    """The names and the type of a request: of a function's parameters without a default, or the first if all have one.

    The names are None if there is one parameter: then a request is its value.
    """
    try:
        parameters = inspect.signature(batcher.function).parameters
    except (TypeError, ValueError):  # a built-in function without a signature
        return None, Any
    try:
        hints = typing.get_type_hints(batcher.function)
    except Exception:  # annotations with names that do not exist at run time
        hints = {}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [each for each in parameters.values() if each.kind in by_position and each.name not in batcher.shared]
    needed = [each.name for each in own if each.default is each.empty] or [each.name for each in own[:1]]
    if len(needed) < 2:
        return None, schema_of(hints.get(needed[0], Any)) if needed else Any
    example = record_of("a request", dict, dict.fromkeys(needed, False))
    example.complete({name: schema_of(hints.get(name, Any)) for name in needed})
    return needed, example
