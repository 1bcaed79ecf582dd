"""`autobatch bench`: times a user's function over examples in each execution mode."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from autobatch.api.batch import BatchFunction, batch
from autobatch.api.run_record import NAMES, ran_ways
from autobatch.api.transforms import map as map_examples
from autobatch.batches.data.collate import collate
from autobatch.batches.stacking import examples
from autobatch.blocks.kernel_cache import wait_for_kernels
from autobatch.core.config import WayName, options
from autobatch.core.diagnostics import noted_fallbacks
from autobatch.errors import DTypeError, Reason, ShapeError, StructureError, UnsupportedError
from autobatch.testing.compare import compare

_WAYS: tuple[WayName, ...] = ("lockstep", "fly", "compiled")


@dataclasses.dataclass(frozen=True)
class Timing:
    """The timing of one mode.

    Attributes:
        way: the mode's name; why: why it was not timed, or fell back to another mode; else "".
        first: seconds of the first call, set-up included; warm: seconds of the fastest later call.
    """

    way: str
    why: str = ""
    first: float = 0.0
    warm: float = 0.0


def timings(
    function: Callable[..., Any], columns: list[Any], shared: dict[str, Any], seconds: float
) -> Iterator[Timing]:
    """Time the loop, then each other mode, after comparing its results with the loop's.

    Args:
        columns: a sequence of examples for each positional argument. seconds: how long each mode is repeated.

    Raises:
        Exception: the function's own, for one of the examples.
    """
    plain = function.__wrapped__ if isinstance(function, BatchFunction) else function

    def loop() -> Any:
        return [plain(*values, **shared) for values in zip(*columns, strict=True)]

    first = _seconds_of(loop)
    expected = loop()
    yield Timing(NAMES["loop"], "", first, _fastest(loop, seconds))
    for way in _WAYS:
        yield _timing(way, _caller(way, function, columns, shared), expected, seconds)


def _caller(way: WayName, function: Any, columns: list[Any], shared: dict[str, Any]) -> Callable[[], Any] | str:
    """A call that runs the work in this way; or a text: why there is none."""
    if way == "fly":
        return lambda: map_examples(function, *columns, **shared)
    try:
        batches = [collate(column) for column in columns]
    except (DTypeError, ShapeError, StructureError, UnsupportedError) as error:
        return f"the examples are not a batch: {str(error).splitlines()[0]}"
    decorated = function if isinstance(function, BatchFunction) else batch(function)
    return lambda: examples(decorated(*batches, **shared))


def _timing(way: WayName, call: Callable[[], Any] | str, expected: object, seconds: float) -> Timing:
    if isinstance(call, str):
        return Timing(NAMES[way], call)
    with options(way=way), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = _seconds_of(call)
        for _ in range(4):  # calls after which a mode has requested all its kernels
            call()
            wait_for_kernels()
        with ran_ways() as ran, noted_fallbacks() as fallbacks:
            result = call()
        if ran and ran[-1].way != way:
            return Timing(NAMES[way], Reason(ran[-1].why).placed or "it does not run in this mode")
        if wrong := compare(expected, result):
            return Timing(NAMES[way], f"DIFFERS from the loop: {wrong[0]}")
        why = f"fell back: {fallbacks[0].placed}" if fallbacks else ""
        return Timing(NAMES[way], why, first, _fastest(call, seconds))


def _seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _fastest(call: Callable[[], Any], seconds: float) -> float:
    end = time.perf_counter() + seconds
    best = _seconds_of(call)
    while time.perf_counter() < end:
        best = min(best, _seconds_of(call))
    return best


def least_seconds(call: Callable[[], Any], times: int = 5) -> float:
    """The time of the fastest of so many calls, in seconds."""
    return min(_seconds_of(call) for _ in range(times))
