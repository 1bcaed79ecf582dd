"""`ab.map`: one function, many examples, grouped as they go."""

from collections.abc import Callable
from typing import Any

from autobatch.core.config import config
from autobatch.lazy import fibers
from autobatch.lazy.fibers import active_trace
from autobatch.lazy.launching import Stats
from autobatch.rewrite.block_forms import block_form, forget_forms
from autobatch.rewrite.structural import memory_of
from autobatch.rewrite.taped_forms import alone

__all__ = ["map", "map_with_stats"]


def map(f: Callable[..., Any], *example_sequences: Any, **shared: Any) -> list[Any]:
    """`[f(x, **shared) for x in examples]`, with equal operations of different examples launched together.

    The examples may differ in every way: shapes, control flow, recursion over Python objects. NumPy operations on float
    arrays of an example and on shared arrays are recorded; where a value is needed (`if`, `int()`, printing), that
    example waits and the others run on.

    Args:
        f: a function of one example; a function decorated with `ab.batch` serves as the function it decorates.
        example_sequences: one or more sequences (or iterables) of equal length; `f` gets one element of each.
        shared: keyword arguments that are the same for all examples: parameters, tables.

    Returns:
        A list of the results, one per example, with plain arrays (under `ab.grad`: values that carry the gradient).

    Raises:
        ShapeError: the sequences differ in length. UnsupportedError: no sequence, or one that is none, as a dict.
        Exception: whatever `f` raises for the first example that fails, with a note that names its index.

    >>> import numpy as np
    >>> xs = [np.arange(2.0), np.arange(3.0), np.ones(2)]
    >>> map(lambda x, scale: (x * scale).sum(), xs, scale=2.0)
    [np.float64(2.0), np.float64(6.0), np.float64(4.0)]
    """
    return map_with_stats(f, *example_sequences, **shared)[0]


def map_with_stats(f: Callable[..., Any], *example_sequences: Any, **shared: Any) -> tuple[list[Any], Stats]:
    """As `map`, and what was launched."""
    function = _undecorated(f)
    plain = alone(function)
    try:
        form = block_form(function) if config.blocks else plain
        return fibers.map_with_stats(plain, form, example_sequences, shared, memory_of(function))
    finally:
        if active_trace() is None:  # a map inside of an example goes on with what that has found
            forget_forms()


def _undecorated(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `ab.batch` decorated; any other function as it is."""
    return f.__wrapped__ if hasattr(type(f), "_ab_batch") else f  # type: ignore[attr-defined]
