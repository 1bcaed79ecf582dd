"""Context of the running code: the current lock-step region, the current example, and the deadline of the run.

A region is a set of lanes that run the same statements. A `MaskedBatch` remembers the region it was made in; an op in
a narrower region narrows it first (`Region.narrow`). Outside lock-step there is no region: batches must agree in size.

Deadline: long-running code calls `check_time` between its steps, which raises `OverTime`. This is no `Exception`, so
that no handler catches it. Work that a step has cached (such as rewritten code) is reused by the next attempt.
"""

import contextlib
import contextvars
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from autobatch.errors import OverTime

_ALL_BITS = (1 << 64) - 1


class Region(Protocol):
    """A set of lanes that run together."""

    def narrow(self, batch: Any) -> Any:
        """Restrict a batch of an enclosing region to the lanes of this one."""


class Example:
    """The identity of the running example(s); random numbers are keyed by (seed, example, call).

    Attributes:
        index: the example's place in its batch; in lock-step an array, one per lane.
        calls: how many random calls it has made; in lock-step an array, one per lane.
    """

    __slots__ = ("_own_seed", "calls", "index")

    def __init__(self, index: Any = 0, calls: Any = 0) -> None:
        self.index = index
        self.calls = calls
        self._own_seed: int | None = None

    def next_key(self, seed: int | None) -> Any:
        """The key of the next random call: a uint64 (subclasses in lock-step: one per lane)."""
        key = random_key(self.seed_of(seed), self.index, self.calls)
        self.calls += 1
        return key

    def seed_of(self, seed: int | None) -> Any:
        """The given seed; if None, a number unique to this run."""
        if seed is not None:
            return seed
        if self._own_seed is None:
            self._own_seed = next(_fresh_seeds)
        return self._own_seed


_fresh_seeds = itertools.count(1 << 63)  # far from the seeds that users choose


def random_key(seed: Any, index: Any, call: Any) -> np.ndarray:
    """Mix (seed, example, call) into uint64 keys, elementwise (the finaliser of SplitMix64, Steele et al. 2014).

    Each part is mixed before the next one is combined with it. If small numbers were combined unmixed, seed 3 of
    example 5 would give the key of seed 5 of example 3.
    """
    z: Any = np.uint64(0)
    with np.errstate(over="ignore"):
        for part in (seed & _ALL_BITS if isinstance(seed, int) else seed, index, call):
            z = (z ^ np.asarray(part).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
    return z


_region: contextvars.ContextVar[Region | None] = contextvars.ContextVar("autobatch_region", default=None)
_example: contextvars.ContextVar[Example | None] = contextvars.ContextVar("autobatch_example", default=None)

current_region = _region.get
set_example, reset_example = _example.set, _example.reset
set_region = _region.set


def freeze_dicts(tree: Any) -> None:
    """In lock-step, forbid further in-place writes to the dicts in a tree that this run made, since it was copied."""
    here: Any = _region.get()
    if here is None:
        return
    if isinstance(tree, dict):
        here.root.made.pop(id(tree), None)
        tree = tuple(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            if isinstance(part, dict | list | tuple):
                freeze_dicts(part)


def current_example() -> Example:
    """The running example; outside of every run a fresh example 0, so that repeated plain calls draw the same."""
    return _example.get() or Example()


def in_example() -> bool:
    """True if an example is running."""
    return _example.get() is not None


def as_first_example(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function as example 0, so that its random calls are counted."""
    token = _example.set(Example())  # `with example(...)` would cost more than a small function
    try:
        return function(*args, **kwargs)
    finally:
        _example.reset(token)


@contextlib.contextmanager
def region(entered: Region | None) -> Iterator[None]:
    """Run a block in a region."""
    token = _region.set(entered)
    try:
        yield
    finally:
        _region.reset(token)


@contextlib.contextmanager
def example(entered: Example) -> Iterator[None]:
    """Run a block as an example (or, in lock-step, as all of them)."""
    token = _example.set(entered)
    try:
        yield
    finally:
        _example.reset(token)


# CPU seconds of one thread, which exclude other processes and kernels compiled meanwhile (`kernels.jit`). If the
# system counts CPU time in coarse ticks, wall-clock time is used, which includes both.
_counts_cpu = time.get_clock_info("thread_time").resolution < 1e-5
thread_clock: Callable[[], float] = time.thread_time if _counts_cpu else time.perf_counter


class _Waited(threading.local):
    """Seconds that this thread has waited for its share of work in other threads."""

    seconds = 0.0


_waited = _Waited()


def clock() -> float:
    """Seconds that this thread has computed, or waited for threads that computed longer on a part of its work."""
    return thread_clock() + _waited.seconds


def count_waiting(seconds: float) -> None:
    """Add the CPU seconds of another thread, for which this one waited, to its `clock`."""
    if _counts_cpu:
        _waited.seconds += seconds


_deadline: contextvars.ContextVar[Any] = contextvars.ContextVar("autobatch_deadline", default=None)


@contextlib.contextmanager
def with_deadline(seconds: float | None) -> Iterator[None]:
    """Set a deadline for the block: `check_time` raises once it has computed for so many seconds; None: no deadline."""
    token = _deadline.set(None if seconds is None else (time.perf_counter() + seconds, clock() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def has_deadline() -> bool:
    """True if a deadline is set."""
    return _deadline.get() is not None


def check_time(needed: float = 0.0) -> None:
    """Return if there is time left before the deadline for a step that takes at least `needed` seconds.

    Raises:
        OverTime: the deadline has passed, or the step would pass it.

    >>> with with_deadline(60.0):
    ...     check_time()
    """
    deadline = _deadline.get()
    if deadline is None or time.perf_counter() + needed <= deadline[0]:  # the cheap test first
        return
    if clock() + needed > deadline[1]:
        raise OverTime
