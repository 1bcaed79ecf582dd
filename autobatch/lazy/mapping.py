"""`ab.map`: one function, many examples, grouped as they go."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autobatch.core.collector import collector_paused
from autobatch.core.fallback import fell_back
from autobatch.core.lanes import Example, current_region, example
from autobatch.core.op import BATCH_RANK, rank_of
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.lazy.fibers import LaunchError, active_trace, run_examples
from autobatch.lazy.stats import Stats
from autobatch.lazy.trace import Trace
from autobatch.lazy.values import finish, settled, wrap_example, wrap_shared

__all__ = ["examples_in", "map", "map_with_stats"]


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
    if current_region() is not None and any(rank_of(x) == BATCH_RANK for x in leaves([example_sequences, shared])):
        raise NeedsLoop("ab.map over values of each example")
    columns = [examples_in(sequence) for sequence in example_sequences]
    count = _common_length(columns)
    outer = active_trace()
    if outer is not None and outer.park is not None:
        return _map_inside(function, columns, count, shared), outer.stats
    if count == 0:
        return [], Stats()
    trace = Trace()
    arguments = {name: wrap_shared(trace, value) for name, value in shared.items()}

    def call(index: int) -> Any:
        return settled(trace, function(*wrap_example(trace, [column[index] for column in columns]), **arguments))

    def plain(index: int) -> Any:
        with example(Example(index)):
            try:
                return function(*[column[index] for column in columns], **shared)
            except Exception as error:
                raise note_example(error, index)  # noqa: B904 - the same error, with its note

    try:
        with collector_paused():
            try:
                results, failed, error = run_examples(trace, call, count, lambda result: finish(trace, result))
                if error is None and not trace.inputs.give_back(leaves(shared)):
                    raise LaunchError from NeedsLoop(
                        "an example writes into memory that it shares with other arguments"
                    )
            finally:
                trace.close()
    except LaunchError as launch:
        cause: BaseException | None = launch.__cause__
    else:
        if error is None:
            return results, trace.stats
        if trace.failed is None and not trace.inputs.written:
            plain(failed)  # raises, unless only the lazy run could not do it
        cause = trace.failed or error
    finally:
        trace.inputs.clear()
    results = [plain(index) for index in range(count)]
    reason = f"{type(cause).__name__}: {cause}" if cause is not None else "a batched call failed"
    trace.stats.fallbacks[reason] += 1
    fell_back(f"ab.map could not run these examples together ({reason})")
    return results, trace.stats


def _map_inside(
    function: Callable[..., Any], columns: Sequence[list[Any]], count: int, shared: dict[str, Any]
) -> list[Any]:
    """A map inside an example: a plain loop, whose lazy values are recorded in the one trace.

    Plain arrays stay plain: the example goes on with them, and may write into them, right after.
    """
    results = []
    for index in range(count):
        with example(Example(index)):
            try:
                results.append(function(*[column[index] for column in columns], **shared))
            except Exception as error:
                raise note_example(error, index)  # noqa: B904 - the same error, with its note
    return results


def _undecorated(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `ab.batch` decorated; any other function as it is."""
    return f.__wrapped__ if hasattr(type(f), "_ab_batch") else f  # type: ignore[attr-defined]


def examples_in(sequence: Any, taker: str = "ab.map") -> list[Any]:
    """The examples of a sequence, an iterable or a batch; `taker` is what the message says was called.

    Raises:
        UnsupportedError: not iterable, or a dict, whose keys are never the examples.
    """
    if rank_of(sequence) == BATCH_RANK:
        return sequence.examples()
    if not isinstance(sequence, Mapping):
        try:
            return list(sequence)
        except TypeError:
            pass
    raise UnsupportedError(
        f"{taker} takes sequences of examples by position; got {type(sequence).__name__}: "
        f"give what all examples share by keyword, {taker}(f, examples, params=params)"
    )


def _common_length(columns: Sequence[list[Any]]) -> int:
    if not columns:
        raise UnsupportedError("ab.map got no sequence of examples; expected ab.map(f, examples, name=shared)")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ShapeError(
            f"the sequences of examples have lengths {lengths}; expected one length, and what all examples share by "
            "keyword: ab.map(f, examples, params=params)"
        )
    return lengths[0]
