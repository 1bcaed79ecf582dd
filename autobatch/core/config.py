"""Options, and the context manager that changes them for a block of code.

Options live in a context variable, so each thread and each fiber sees its own.
"""

import contextlib
import contextvars
import dataclasses
import dis
import numbers
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, Unpack, cast, get_args

from autobatch.core.current_region import Numbering
from autobatch.errors import UnsupportedError

Scheduler = Literal["depth", "agenda", "frontier", "auto"]
Traceback = Literal["user", "full"]
Result = TypeVar("Result")
WayName = Literal["auto", "loop", "lockstep", "fly", "compiled"]


@dataclasses.dataclass(frozen=True)
class Config:
    """The options and their defaults.

    Attributes:
        blocks: straight-line runs of array expressions are recorded or launched as one; False: each op on its own.
        kernels: blocks, and softmax over many rows, may use compiled kernels.
        memory_budget: bytes of recorded results after which a lazy graph is launched as one segment; also the limit for
            the tape of an example's compiled gradient.
        scheduler: how recorded ops are grouped: "depth", "agenda", "frontier" or "auto".
        seed: key of the per-example random streams (`ab.nn.dropout`), an integer or a tuple of integers such as
            (step, part); calls in one `with` block continue the streams. None: each run draws different numbers.
        strict: a fallback to the loop is an error instead of a warning.
        threads: how many threads a look-up or bag over a large batch may use; 0 means one for each core.
        traceback: "user" leaves the library's frames out of tracebacks; "full" shows all. The
            environment variable AUTOBATCH_TRACEBACK sets the default.
        warn: warn once per source line when something falls back to the loop.
        way: how examples run: "auto" is the mode that has cost least; "loop", "lockstep", "fly" (tracing) or
            "compiled" pins one. A call that does not support it runs in lock-step (on a batch) or traced (`ab.map`).
            Modes differ only in the rounding of floating-point sums; with one pinned, runs repeat to the bit.
    """

    blocks: bool = True
    kernels: bool = True
    memory_budget: int = 1 << 30
    scheduler: Scheduler = "auto"
    seed: int | tuple[int, ...] | None = None
    strict: bool = False
    threads: int = 0
    traceback: Traceback = "full" if os.environ.get("AUTOBATCH_TRACEBACK") == "full" else "user"
    warn: bool = True
    way: WayName = "auto"
    numbering: ClassVar[Numbering | None] = None  # of the examples in the block that set the seed; see `options`


class OptionValues(TypedDict, total=False):
    """The keyword arguments of `options`, for type checkers; a test keeps it equal to `Config`."""

    blocks: bool
    kernels: bool
    memory_budget: int
    scheduler: Scheduler
    seed: int | tuple[int, ...] | None
    strict: bool
    threads: int
    traceback: Traceback
    warn: bool
    way: WayName


_current: contextvars.ContextVar[Config] = contextvars.ContextVar("autobatch_config", default=Config())  # noqa: B039
_NAMES = tuple(field.name for field in dataclasses.fields(Config))
_CHOICES = {"scheduler": get_args(Scheduler), "traceback": get_args(Traceback), "way": get_args(WayName)}


class _ConfigView:
    """The current options: read them as `config.seed`, change them with `options(...)`.

    >>> config.strict, config.scheduler
    (False, 'auto')
    >>> config.strict = True
    Traceback (most recent call last):
      ...
    AttributeError: config.strict cannot be assigned; write `with ab.options(strict=True): ...`
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(_current.get(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"config.{name} cannot be assigned; write `with ab.options({name}={value!r}): ...`")

    def __repr__(self) -> str:
        return repr(_current.get())


config = cast(Config, _ConfigView())


current: Callable[[], Config] = _current.get
"""Returns the current options as an immutable `Config`."""


def options(**changes: Unpack[OptionValues]) -> contextlib._GeneratorContextManager[Config]:
    """Change options for a `with` block, in this thread only; `python -m autobatch` lists them.

    Args:
        changes: options by name, with their values in the block.

    Returns:
        A context manager that gives the `config` as it is inside.

    Raises:
        UnsupportedError: an option that does not exist, or a value that it does not take.

    >>> with options(seed=7):
    ...     config.seed
    7
    >>> config.seed is None
    True
    """
    check_options(changes)
    at: Any = sys._getframe(1)
    while os.path.dirname(at.f_code.co_filename) == os.path.dirname(__file__):  # in `hiding_frames`
        at = at.f_back
    after = at.f_code.co_code[at.f_lasti + 2 :: 2]  # each instruction is followed by its caches, which are 0
    if next(filter(None, after), 0) == dis.opmap["POP_TOP"]:  # the call is a statement
        call, file = f"ab.options({', '.join(f'{k}={v!r}' for k, v in changes.items())})", at.f_code.co_filename
        warnings.warn_explicit(f"{call} has no effect; write `with {call}: ...`", UserWarning, file, at.f_lineno)
    return _changed(changes)


@contextlib.contextmanager
def _changed(changes: Mapping[str, Any]) -> Iterator[Config]:
    before = _current.get()
    made, numbering = dataclasses.replace(before, **changes), before.numbering
    if "seed" in changes:
        block = sys._getframe(1)  # of contextlib, which the user's block has called
        while block.f_back is not None and block.f_code.co_filename in (contextlib.__file__, __file__):
            block = block.f_back
        numbering = None if made.seed is None else Numbering(block)
    object.__setattr__(made, "numbering", numbering)
    try:
        try:
            _current.set(made)
            yield made
        finally:
            _current.set(before)
            if numbering is not None and numbering is not before.numbering:
                numbering.end()
    except BaseException:  # an interrupt may have come inside the `finally` block
        _current.set(before)
        raise


def check_options(changes: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for an option that does not exist, or a value that it does not take."""
    if unknown := sorted(set(changes) - set(_NAMES)):
        raise UnsupportedError(f"unknown option {', '.join(unknown)}; the options are {', '.join(_NAMES)}")
    for name, value in changes.items():
        if expected := _expected(name, value):
            raise UnsupportedError(f"{name}={value!r}; expected {expected}")


def with_options(call: Callable[[], Result], **changes: Unpack[OptionValues]) -> Result:
    """Call `call` under other options (for library code); restores the options even after an interrupt at any point."""
    before = _current.get()
    try:
        if not changes:
            return call()
        check_options(changes)
        with _changed(changes):
            return call()
    except BaseException:  # an interrupt may have come between the block and the code of `options`
        _current.set(before)
        raise


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Run a block with some fixed seed, so that code run in two such blocks draws the same numbers."""
    with options(seed=0 if config.seed is None else config.seed):
        yield


def _expected(name: str, value: Any) -> str:
    """The values that an option accepts, for an error message; "" if `value` is one of them."""
    if name in _CHOICES:
        written = {"lock-step": "lockstep", "tracing": "fly", "compile": "compiled", "the loop": "loop"}.get(str(value))
        own = f"; write {name}={written!r}" if written else ""
        return "" if value in _CHOICES[name] else f"one of {', '.join(_CHOICES[name])}{own}"
    if isinstance(getattr(Config, name), bool):
        return "" if isinstance(value, bool) else "True or False"
    parts = value if name == "seed" and isinstance(value, tuple) and value else [value]
    whole = all(isinstance(part, numbers.Integral) and not isinstance(part, bool) for part in parts)
    if name == "seed":
        return "" if whole or value is None else "an integer, a tuple of integers, or None"
    return "" if whole and value >= 0 else "a number, or 0 for one per core" if name == "threads" else "bytes"
