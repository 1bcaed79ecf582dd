"""The metrics of a batcher: counters and histograms, and their text for Prometheus."""

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

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
