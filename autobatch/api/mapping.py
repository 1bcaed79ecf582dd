"""`ab.map`: one function, many examples, grouped as they go."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autobatch.core.config import config
from autobatch.lazy import mapping
from autobatch.lazy.fibers import active_trace
from autobatch.lazy.ordering import shows_order
from autobatch.lazy.stats import Stats
from autobatch.rewrite.block_forms import block_form, forget_forms
from autobatch.rewrite.structural import memory_of
from autobatch.rewrite.taped_forms import per_example_form

__all__ = ["collected_ways", "map", "map_columns", "map_with_stats"]

_collected: contextvars.ContextVar[list[tuple[str, Stats]] | None] = contextvars.ContextVar(
    "autobatch_ways", default=None
)


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
    return _mapped(_undecorated(f), example_sequences, shared)


def map_columns(
    function: Callable[..., Any], columns: Sequence[list[Any]], shared: dict[str, Any], arguments_of: mapping.Arguments
) -> tuple[list[Any] | None, bool]:
    """The results of the examples of a lock-step call, on the fly, and whether they really ran so.

    Args:
        function: the user's own function.
        columns: the values of the examples; shared: what is the same for all of them, by any name.
        arguments_of: from the values of an example and what is shared to the arguments of its call.

    Returns:
        None for the results where nothing ran, since the examples must run in their order.
    """
    kinds = {type(value) for column in columns for value in column}
    if shows_order([function, shared, *kinds]):
        _note_way("the loop over the examples", Stats())
        return None, False
    results, stats = _mapped(function, columns, shared, arguments_of)
    together = stats.looped is None
    _note_way("on the fly" if together else "the loop over the examples", stats)
    return results, together


def _note_way(way: str, stats: Stats) -> None:
    collected = _collected.get()
    if collected is not None:
        collected.append((way, stats))


@contextlib.contextmanager
def collected_ways() -> Iterator[list[tuple[str, Stats]]]:
    """Collect how the lock-step calls in this block ran that did not run in lock-step, and what they launched."""
    found: list[tuple[str, Stats]] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def _mapped(
    function: Callable[..., Any], columns: Sequence[Any], shared: dict[str, Any], *arguments_of: mapping.Arguments
) -> tuple[list[Any], Stats]:
    plain = per_example_form(function)
    try:
        form = block_form(function) if config.blocks else plain
        return mapping.map_with_stats(plain, form, columns, shared, memory_of(function), *arguments_of)
    finally:
        if active_trace() is None:  # a map inside of an example goes on with what that has found
            forget_forms()


def _undecorated(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `ab.batch` decorated; any other function as it is."""
    return f.__wrapped__ if hasattr(type(f), "_ab_batch") else f  # type: ignore[attr-defined]
