"""Context of the running code: the current lock-step region, the current example, and the deadline of the run.

A region is a set of lanes that run the same statements. A `MaskedBatch` remembers the region it was made in; an op in
a narrower region narrows it first (`Region.narrow`). Outside lock-step there is no region: batches must agree in size.

Deadline: long-running code calls `check_time` between its steps, which raises `OverTime`. This is no `Exception`, so
that no handler catches it. Work that a step has cached (such as rewritten code) is reused by the next attempt.
"""

import contextlib
import contextvars
import functools
import inspect
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, Protocol

import numpy as np

from autobatch.core.op import is_boxed
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop, OverTime, note_example

_ALL_BITS = (1 << 64) - 1  # of a word: a seed may be a larger or a negative number


class Region(Protocol):
    """A set of lanes that run together."""

    def narrow(self, batch: object) -> Any:
        """Restrict a batch of an enclosing region to the lanes of this one."""


class Example:
    """The identity of the running example(s); random numbers are keyed by (seed, example, call).

    Attributes:
        index: the example's place in its batch; in lock-step an array, one per lane.
        calls: how many random calls it has made; in lock-step an array, one per lane.
        taken: how many examples its own maps and batched calls have run.
    """

    __slots__ = ("_own_seed", "calls", "index", "taken")

    def __init__(self, index: Any = 0, calls: Any = 0) -> None:
        self.index = index
        self.calls = calls
        self.taken = 0
        self._own_seed: int | None = None

    def next_key(self, seed: Any) -> Any:
        """The key of the next random call: a uint64 (subclasses in lock-step: one per lane)."""
        self._find_place()
        key = random_key(self.seed_of(seed), self.index + _numbers.get()[1], self.calls)
        self.calls += 1
        return key

    def seed_of(self, seed: Any) -> Any:
        """The given seed (that of this run, if it runs inside an example); if None, a number unique to this run, and
        again the same if the call of its tape runs again."""
        if _unseeded.get() == _OF_LANES:
            raise NeedsLoop("a map or batched call inside an example, whose random numbers are its own")
        if seed is not None:
            salt = _numbers.get()[0]
            for part in (*(seed if isinstance(seed, tuple) else ()), *(() if salt is None else (salt,))):
                seed = random_key(len(seed) if isinstance(seed, tuple) else seed, part, 0)
            return seed
        if self._own_seed is None:
            first, *places = _unseeded.get() or (next(_fresh_seeds),)
            self._own_seed = functools.reduce(lambda seed, place: random_key(seed, place, 0), places, first)
        return self._own_seed

    def take(self, count: int) -> tuple[Any, int]:
        """Number the examples of a run inside this example: what to mix into their seed, and the first one's number."""
        salt, first = _numbers.get()
        begin = self.place(count)[1]
        return random_key(0 if salt is None else salt, self.index + first, 0), begin

    def place(self, count: int) -> tuple[Any, int]:
        """Begin a run of `count` examples inside this one: the example's place, and the first one's number in it."""
        self._find_place()
        self.taken += count
        return self.index, self.taken - count

    def _find_place(self) -> None:
        """Set `index`; a loop's example does so only where it is asked for."""


class Numbering:
    """Numbers the examples that run in one block `with ab.options(seed=...)`, so that random numbers go on from call to
    call: a batched call or map takes as many numbers as it has examples, and each plain call one.

    The library does not see where the plain call of an undecorated function begins. It takes for one the outermost call
    below the block that is given an example: anything but a batch, a list of examples, a function, a whole number or a
    text. Lambdas that are written in the block, and functions that are given only what `ab.grad` differentiates, count
    as part of the block unless the random call is in them.
    """

    __slots__ = ("_block", "_code", "_example", "_frame", "_line", "taken")

    def __init__(self, block: FrameType) -> None:
        self._block, self._code, self._line = id(block), block.f_code, block.f_lineno
        self._frame: FrameType | None = None  # of the last undecorated call that was found, and its example
        self._example = Example()
        self.taken = 0

    def take(self, count: int) -> tuple[None, int]:
        """As `Example.take`."""
        self.taken += count
        return None, self.taken - count

    def next(self) -> Example:
        """The next example: a plain call, or a random call of the block itself."""
        return Example(self.take(1)[1])

    def undecorated(self, drawing: bool) -> Example | None:
        """The running plain call of an undecorated function; None if the block's own code runs.

        Args:
            drawing: it makes a random call.
        """
        found = second = None  # the outermost one, and the outermost of what is part of the block unless it draws
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame) != self._block:
            frames.append(frame)
            frame = frame.f_back
        if frame is None:  # a fixture's block, say, or that of another thread
            frames = [each for each in frames if "site-packages" not in each.f_code.co_filename]
        for frame in frames:
            given = _given(frame) if _is_users(frame) else ()
            if given and self._is_written_in_block(frame.f_code):
                second = second or frame
            elif given and all(any(map(is_boxed, leaves(each))) for each in given):
                second = frame
            elif given:
                found = frame
        found = found or (second if drawing else None)
        if found is not None and self._frame is not found:
            self._frame, self._example = found, self.next()  # the frame is kept, so that no later one is at its address
        return None if found is None else self._example

    def _is_written_in_block(self, code: CodeType) -> bool:
        if code.co_name != "<lambda>" or code.co_firstlineno < self._line or code.co_filename != self._code.co_filename:
            return False
        inner = [self._code]
        for each in inner:  # the list grows meanwhile
            inner += [const for const in each.co_consts if isinstance(const, CodeType)]
        # by name and line, since the code that runs may be a rewritten form
        return any((each.co_name, each.co_firstlineno) == (code.co_name, code.co_firstlineno) for each in inner)

    def end(self) -> None:
        """Release the last call's variables."""
        self._frame = None


def _is_users(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__") or ""
    root = name.partition(".")[0]
    outside = root != "numpy" and root not in sys.stdlib_module_names
    return bool(name.startswith("autobatch.nn.")) if root == "autobatch" else outside


def _given(frame: FrameType) -> list[Any]:
    """The arguments of a call that may be an example's; none if it is given a batch, or a list of examples first."""
    code = frame.f_code
    if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
        return []
    named, args, kwargs, values = inspect.getargvalues(frame)
    given = [values[name] for name in named if name in values and name not in ("self", "cls")]
    given += [*values.get(args or "", ()), *values.get(kwargs or "", {}).values()]
    if any(hasattr(type(value), "batch_size") for value in given):
        return []
    given = [value for value in given if not (callable(value) or isinstance(value, _NO_EXAMPLE))]
    if given and isinstance(given[0], list) and not all(isinstance(part, _NUMBER_OR_TEXT) for part in given[0]):
        return []
    return [value for value in given if type(value) not in (float, complex)] or given


_NUMBER_OR_TEXT = (int, float, complex, str)
_NO_EXAMPLE = (int, str, bytes, ModuleType, type(None))
_fresh_seeds = itertools.count(1 << 63)  # far from the seeds that users choose


def random_key(seed: Any, index: Any, call: Any) -> np.ndarray:
    """Mix (seed, example, call) into uint64 keys, elementwise (the finaliser of SplitMix64, Steele et al. 2014).

    Each part is mixed before the next one is combined with it. If small numbers were combined unmixed, seed 3 of
    example 5 would give the key of seed 5 of example 3.
    """
    z: Any = np.uint64(0)
    with np.errstate(over="ignore"):
        for part in (seed, index, call):
            part = part & _ALL_BITS if isinstance(part, int) else part
            z = (z ^ np.asarray(part).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
    return z


_region: contextvars.ContextVar[Region | None] = contextvars.ContextVar("autobatch_region", default=None)
_example: contextvars.ContextVar[Example | None] = contextvars.ContextVar("autobatch_example", default=None)
# What is mixed into the seed of the running examples, and added to their places
_numbers: contextvars.ContextVar[Any] = contextvars.ContextVar("autobatch_numbers", default=(None, 0))
# What the seed of the running examples follows from, if they draw without one: a number unique to the call on a tape
# that may run again, then for each call inside an example the example's place and the call's
_unseeded: contextvars.ContextVar[Any] = contextvars.ContextVar("autobatch_unseeded", default=None)
_OF_LANES = (None,)  # as `_unseeded`: in a run that a lock-step call makes once for all its examples
# True while a library's own code runs on batches, which asks them for a number that all examples have
asks_batches: contextvars.ContextVar[bool] = contextvars.ContextVar("autobatch_asks_batches", default=False)

# The recorder of tracing (`lazy.fibers`), and what observes how calls run (`api.run_record`).
active_trace_variable: contextvars.ContextVar[Any] = contextvars.ContextVar("autobatch_trace", default=None)
watched: contextvars.ContextVar[Any] = contextvars.ContextVar("autobatch_ran", default=None)

current_region = _region.get
numbers = _numbers.get
set_example = _example.set
set_region = _region.set


def freeze_dicts(tree: object) -> None:
    """In lock-step, forbid further in-place writes to the dicts in a tree that this run made, since it was copied."""
    here: Any = _region.get()
    if here is None:
        return
    if isinstance(tree, dict):
        here.root.made.pop(id(tree), None)
        tree = tuple(tree.values())
    for part in tree if isinstance(tree, list | tuple) else ():
        if isinstance(part, dict | list | tuple):
            freeze_dicts(part)


def current_example(numbering: Numbering | None = None) -> Example:
    """The running example, whose random number is drawn; in plain code the next one of the block with a seed
    (`numbering`), and outside of such a block a fresh example 0."""
    running = _example.get()
    if running is None and numbering is not None:
        running = numbering.undecorated(drawing=True) or numbering.next()
    return running or Example()


def number_examples(numbering: Numbering | None, count: int) -> contextvars.Token[Any]:
    """Give the next `count` examples the next numbers: of the running example, or of the block with a seed.

    Without a seed (`numbering` is None), other numbers each time, but the same if a copy of the context runs again.
    Returns the token that resets its variable.
    """
    running: Any = _example.get()
    outer, variable = _unseeded.get(), _unseeded
    if outer == _OF_LANES or (running is not None and type(running.index) is not int):  # an index for each lane
        value: Any = _OF_LANES
    elif numbering is not None:
        variable, value = _numbers, (running or numbering.undecorated(drawing=False) or numbering).take(count)
    else:
        value = (*outer, *running.place(count)) if outer and running else (next(_fresh_seeds),)
    return variable.set(value)


def is_unobserved() -> bool:
    """True if no lock-step call, recorder or observer is at work around this call."""
    return _region.get() is None and active_trace_variable.get() is None and watched.get() is None


def in_example() -> bool:
    """True if an example is running."""
    return _example.get() is not None


def as_example(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], numbering: Numbering | None = None
) -> Any:
    """Call a function as an example, so that its random calls are counted: as the next of `numbering`, else as example
    0; inside the plain call of an undecorated function it is part of that example."""
    running = Example() if numbering is None else numbering.undecorated(drawing=False) or numbering.next()
    before = _example.get()
    try:  # `with example(...)` would cost more than a small function
        _example.set(running)  # in here: an interrupt comes behind a call, before the next line begins
        return function(*args, **kwargs)
    finally:
        _example.set(before)


Arguments = Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]


class _LoopExample(Example):
    """The current example of a loop; its index is the number of results so far."""

    __slots__ = ("_at", "_first", "results")

    def __init__(self, first: int) -> None:
        self.index = self._first = self._at = first  # as `Example.__init__`, inlined since most loops are short
        self.calls, self.taken, self._own_seed = 0, 0, None
        self.results: list[Any] = []

    def _find_place(self) -> None:
        self.index = self._first + len(self.results)
        if self.index != self._at:
            self._at, self.calls, self.taken = self.index, 0, 0


def run_loop(
    function: Callable[..., Any],
    columns: Iterable[Iterable[Any]],
    shared: dict[str, Any],
    arguments_of: Arguments | None = None,
    first: int = 0,
) -> list[Any]:
    """Run one example after the other; `first` is the place of the first one in its batch."""
    running = _LoopExample(first)
    results = running.results
    before = _example.get()
    try:  # `with example(...)` would cost more than a small function
        set_example(running)
        if arguments_of is not None:
            for values in zip(*columns, strict=True):
                positional, named = arguments_of(values, shared)
                results.append(function(*positional, **named))
        else:  # not `map(...)`: a StopIteration raised by the function would end it
            call = functools.partial(function, **shared) if shared else function
            match columns:  # a call with explicit arguments is faster than `*values`
                case [first_column]:
                    for value in first_column:
                        results.append(call(value))
                case [first_column, second_column]:
                    for value, other in zip(first_column, second_column, strict=False):
                        results.append(call(value, other))
                case _:
                    for values in zip(*columns, strict=False):
                        results.append(call(*values))
    except Exception as error:
        raise note_example(error, first + len(results))  # noqa: B904 - the same error, with its note
    finally:
        set_example(before)
    return results


@contextlib.contextmanager
def holding(variable: contextvars.ContextVar[Any], value: Any) -> Iterator[Any]:
    """Run a block in which a context variable has this value."""
    before = variable.get()
    try:
        variable.set(value)
        yield value
    finally:
        variable.set(before)


def region(entered: Region | None) -> contextlib.AbstractContextManager[Any]:
    """Run a block in a region."""
    return holding(_region, entered)


def example(entered: Example) -> contextlib.AbstractContextManager[Any]:
    """Run a block as an example (or, in lock-step, as all of them)."""
    return holding(_example, entered)


# CPU seconds of one thread, which exclude other processes and kernels compiled meanwhile (`kernels.jit`). If the
# system counts CPU time in coarse ticks, wall-clock time is used, which includes both.
_counts_cpu = time.get_clock_info("thread_time").resolution < 1e-5
thread_clock: Callable[[], float] = time.thread_time if _counts_cpu else time.perf_counter


_waited = threading.local()  # .seconds: how long this thread has waited for its share of work in other threads


def clock() -> float:
    """Seconds that this thread has computed, or waited for threads that computed longer on a part of its work."""
    return thread_clock() + getattr(_waited, "seconds", 0.0)


def count_waiting(seconds: float) -> None:
    """Add the CPU seconds of another thread, for which this one waited, to its `clock`."""
    if _counts_cpu:
        _waited.seconds = getattr(_waited, "seconds", 0.0) + seconds


_deadline: contextvars.ContextVar[Any] = contextvars.ContextVar("autobatch_deadline", default=None)


def set_deadline(seconds: float | None) -> Any:
    """Set the deadline of `with_deadline`, for good; returns the token that resets it."""
    return _deadline.set(None if seconds is None else (time.perf_counter() + seconds, clock() + seconds))


@contextlib.contextmanager
def with_deadline(seconds: float | None) -> Iterator[None]:
    """Set a deadline for the block: `check_time` raises once it has computed for so many seconds; None: no deadline."""
    token = set_deadline(seconds)
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
