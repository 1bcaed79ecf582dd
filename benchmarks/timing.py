"""Measuring one callable: samples that are long enough for the clock, in short turns."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Sample = tuple[float, float]  # seconds of wall clock and of processor time, for one run

_LEAST = 1e-3  # seconds that one sample takes at least
_SLOW = 0.1  # a run that takes longer is not run once more only to warm up


def _sample(run: Callable[[], Any], number: int) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(number):
        run()
    return (time.perf_counter() - wall) / number, (time.process_time() - cpu) / number


def estimate(run: Callable[[], Any]) -> float:
    """Roughly how many seconds a run takes, once it is warm."""
    first = _sample(run, 1)[0]
    if first > _SLOW:
        return first
    return min(first, *(_sample(run, 1)[0] for _ in range(3)))


def turn(run: Callable[[], Any], each: float, seconds: float) -> list[Sample]:
    """Samples that fill a turn of `seconds`, at least one, of a run that takes about `each`."""
    if each < _SLOW:
        run()  # the others have used the caches since
    number = max(1, round(_LEAST / max(each, 1e-9)))
    samples = [_sample(run, number)]
    while sum(wall for wall, _ in samples) * number < seconds:
        samples.append(_sample(run, number))
    return samples


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and the quartiles.

    >>> spread([3.0, 1.0, 2.0])
    (2.0, 1.0, 3.0)
    """
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, max(low, min(values)), min(high, max(values))
