"""`batch`: the decorator."""

import functools
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, overload

from autobatch.batches.forms import Batch
from autobatch.core.config import options
from autobatch.core.lanes import as_first_example, current_region, in_example
from autobatch.errors import UnsupportedError
from autobatch.facts.changes import is_local
from autobatch.lockstep.calls import call
from autobatch.lockstep.run import has_batch, run
from autobatch.rewrite.convert import convert
from autobatch.rewrite.taped_forms import alone

__all__ = ["BatchFunction", "batch"]


class BatchFunction:
    """A function of one example that also takes batches. Made by `batch`.

    Attributes:
        __wrapped__: the function itself, which runs when no argument is a batch.
        strict: whether what cannot run in lock-step is an error instead of a loop over the examples.

    >>> BatchFunction(np.mean)
    <batch function mean>
    """

    _ab_batch = True

    def __init__(self, function: Callable[..., Any], strict: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.strict = strict
        self.__wrapped__: Any = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.__wrapped__
        if not has_batch(args, kwargs):
            return function(*args, **kwargs) if in_example() else as_first_example(function, args, kwargs)
        region = current_region()
        if region is not None and not _outside(args, kwargs):
            return call(function, *args, **kwargs)
        if self.strict:
            with options(strict=True):
                return run(function, args, kwargs, _convert, is_local, alone)
        return run(function, args, kwargs, _convert, is_local, alone)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind as a function does; over a staticmethod or classmethod, bind what that gives."""
        bind = getattr(self.__wrapped__, "__get__", None)
        if isinstance(self.__wrapped__, staticmethod | classmethod):
            return BatchFunction(self.__wrapped__.__get__(instance, owner), self.strict)
        return self if instance is None or bind is None else MethodType(self, instance)

    def __reduce__(self) -> Any:
        return _by_name, (self.__module__, self.__wrapped__.__qualname__)

    def __repr__(self) -> str:
        return f"<batch function {getattr(self.__wrapped__, '__qualname__', repr(self.__wrapped__))}>"


def _convert(function: Any, watched: bool = False) -> Any:
    """The lock-step form of anything callable; None if it is not the user's own code."""
    while not isinstance(function, FunctionType):
        if hasattr(type(function), "_ab_batch") or isinstance(function, staticmethod | classmethod):
            function = function.__wrapped__
        elif isinstance(function, MethodType):
            inner = _convert(function.__func__, watched)
            return None if inner is None else MethodType(inner, function.__self__)
        elif isinstance(function, functools.partial):
            inner = _convert(function.func, watched)
            return None if inner is None else functools.partial(inner, *function.args, **function.keywords)
        elif isinstance(getattr(type(function), "__call__", None), FunctionType):  # noqa: B004  (not whether: which)
            function = MethodType(type(function).__call__, function)
        else:
            return None
    return convert(function, watched)


def _outside(args: Any, kwargs: Any) -> bool:
    """Whether a batch among the arguments belongs to no lock-step run."""
    return any(isinstance(arg, Batch) and arg.region is None for arg in (*args, *kwargs.values()))


def _by_name(module: str, name: str) -> Any:
    out: Any = sys.modules.get(module) or __import__(module, fromlist=["_"])
    for part in name.split("."):
        out = getattr(out, part)
    return out


@overload
def batch(f: Callable[..., Any], *, strict: bool = False) -> BatchFunction: ...
@overload
def batch(f: None = None, *, strict: bool = False) -> Callable[[Callable[..., Any]], BatchFunction]: ...
def batch(f: Callable[..., Any] | None = None, *, strict: bool = False) -> Any:
    """Let a function of one example take batches.

    Args:
        f: the function, in plain NumPy, of one example.
        strict: raise `UnsupportedError` where the examples cannot run together, instead of looping over them.

    Called with a `MaskedBatch` or `PackedBatch` among its arguments, or anywhere inside them, the function runs once
    for all examples, each batch standing for one example's value and everything else shared. `ab.examples(result)`
    lists the results. Called with plain values it is the function itself. Nothing is rewritten before the first
    batched call.

    Raises:
        ShapeError: batches of different sizes. An example's own error carries a note with its index.

    >>> import numpy as np
    >>> from autobatch.batches.masked import MaskedBatch
    >>> @batch
    ... def total(xs):
    ...     h = np.float64(0)
    ...     for x in xs:
    ...         h = h + x
    ...     return h
    >>> total(MaskedBatch.from_examples([[1.0, 2.0], [3.0]])).examples()
    [np.float64(3.0), np.float64(3.0)]
    """
    if f is None:
        return functools.partial(BatchFunction, strict=strict)
    if not (callable(f) or hasattr(f, "__get__")):  # a classmethod is not callable, but what it is bound to is
        raise UnsupportedError(
            f"ab.batch takes a function; got {type(f).__name__}: write ab.batch(f)(x), not ab.batch(f(x))"
        )
    return BatchFunction(f, strict)
