"""Where a batch stands: the region of the lock-step run that is current, and the example that is current elsewhere.

A region is a set of lanes that run the same statements. A `MaskedBatch` remembers the region it was made in; an op in
a narrower region narrows it first (`Region.narrow`). Outside lock-step there is no region: batches must agree in size.

And when what runs is to be given up: what takes long asks `check_time` between its steps. `OverTime` is no `Exception`,
so no handler holds it up; what a step has made and keeps (code that is rewritten) serves the next try.
"""

import contextlib
import contextvars
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from autobatch.errors import OverTime

_ALL_BITS = (1 << 64) - 1


class Region(Protocol):
    """A set of lanes that run together."""

    def narrow(self, batch: Any) -> Any:
        """A batch of an enclosing region, restricted to the lanes of this one."""


class Example:
    """The identity of the running example(s), which keys its random numbers: (seed, example, call).

    Attributes:
        index: the example's place in its batch; an array of them in lock-step.
        calls: how many random calls it has made; an array of them in lock-step.
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
        """A seed; without one a number that no other run has."""
        if seed is not None:
            return seed
        if self._own_seed is None:
            self._own_seed = next(_own_seeds)
        return self._own_seed


_own_seeds = itertools.count(1 << 63)  # far from the seeds that people write


def random_key(seed: Any, index: Any, call: Any) -> np.ndarray:
    """Mix (seed, example, call) into uint64 keys, elementwise (the finaliser of SplitMix64, Steele et al. 2014).

    Each part is mixed in by itself, the seed too, before the next one joins: small numbers must not meet unmixed, or
    seed 3 of example 5 would be seed 5 of example 3.
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


def let_go(tree: Any) -> None:
    """Forbid further writes into the dicts of a tree that a lock-step run has made, since it is copied."""
    here: Any = _region.get()
    if here is None:
        return
    if isinstance(tree, dict):
        here.root.made.pop(id(tree), None)
        tree = tuple(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            if isinstance(part, dict | list | tuple):
                let_go(part)


def current_example() -> Example:
    """The running example; outside every run a fresh example 0, so that a plain call repeats itself."""
    return _example.get() or Example()


def in_example() -> bool:
    """Whether an example is running."""
    return _example.get() is not None


def as_first_example(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function as the first example of a batch, so that its random calls are counted."""
    token = _example.set(Example())  # `with example(...)` takes longer than a small function
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


# Seconds that this thread has computed. Other processes, and what is compiled meanwhile (`kernels.jit`), are not in it;
# where the system counts in large ticks, they are.
clock: Callable[[], float] = (
    time.thread_time if time.get_clock_info("thread_time").resolution < 1e-5 else time.perf_counter
)
_deadline: contextvars.ContextVar[Any] = contextvars.ContextVar("autobatch_deadline", default=None)


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Give up what runs inside when it has computed for so long; never, if that is None."""
    token = _deadline.set(None if seconds is None else (time.perf_counter() + seconds, clock() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def has_deadline() -> bool:
    """Whether what runs may be given up."""
    return _deadline.get() is not None


def check_time() -> None:
    """Go on, if there is time left.

    Raises:
        OverTime: there is none.

    >>> with within(60.0):
    ...     check_time()
    """
    deadline = _deadline.get()
    if deadline is not None and time.perf_counter() > deadline[0] and clock() > deadline[1]:  # quick to ask first
        raise OverTime
