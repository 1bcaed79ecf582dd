"""One function, many examples, grouped as they go."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autobatch.core.collector import collector_paused
from autobatch.core.fallback import fell_back
from autobatch.core.lanes import Example, current_region, example
from autobatch.core.op import BATCH_RANK, rank_of
from autobatch.core.pytree import leaves
from autobatch.core.snapshot import Snapshot
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.lazy.example_state import ExampleState
from autobatch.lazy.fibers import LaunchError, active_trace, run_examples
from autobatch.lazy.replay import Memory
from autobatch.lazy.stats import Stats
from autobatch.lazy.trace import Trace
from autobatch.lazy.values import finish, settled, wrap_example, wrap_shared

__all__ = ["examples_in", "map_with_stats"]


def map_with_stats(
    function: Callable[..., Any],
    form: Callable[..., Any],
    example_sequences: Sequence[Any],
    shared: dict[str, Any],
    memory: Memory | None = None,
) -> tuple[list[Any], Stats]:
    """`[function(x, **shared) for x in examples]`, and what was launched.

    Args:
        form: what is called while examples are recorded: `function`, or its block form.
        memory: where recordings of it are kept, if they may be.
    """
    if current_region() is not None and any(rank_of(x) == BATCH_RANK for x in leaves([example_sequences, shared])):
        raise NeedsLoop("ab.map over values of each example")
    columns = [examples_in(sequence) for sequence in example_sequences]
    count = _common_length(columns)
    outer = active_trace()
    if outer is not None and outer.park is not None:
        return _map_inside(form, columns, count, shared), outer.stats
    if count == 0:
        return [], Stats()
    trace = Trace()
    copies: list[Any] = []
    arguments = {name: wrap_shared(trace, value, copies) for name, value in shared.items()}
    replay = None if memory is None or outer is not None else memory.opened(trace, columns, arguments)
    known = {} if replay is None else replay.play(columns)
    stores = replay is None or not replay.sees_all  # else nothing that the Python changes is there afterwards
    own = ExampleState(columns if stores else [], Snapshot([function, shared] if stores else [], bounded=True), copies)
    before = own.shared

    def call(index: int) -> Any:
        given = [column[index] for column in columns]
        before = None if replay is None else replay.before(index)
        values = wrap_example(trace, given, own.copies)
        result = settled(trace, (form if trace.inputs.in_order else function)(*values, **arguments))
        if replay is not None and before is not None:
            replay.after(index, given, result, before)
        return result

    def plain(index: int) -> Any:
        with example(Example(index)):
            try:
                return function(*[column[index] for column in columns], **shared)
            except Exception as error:
                raise note_example(error, index)  # noqa: B904 - the same error, with its note

    try:
        with collector_paused():
            try:
                results, failed, error = run_examples(trace, call, count, lambda result: finish(trace, result), known)
                if error is not None:
                    changed = before.changed() or own.changed()
                else:
                    waited = bool(trace.stats.forced)
                    changed = (waited and before.changed()) or own.changed_in_common(waited)
                if error is None and not changed and not trace.inputs.give_back(leaves(shared)):
                    raise LaunchError from NeedsLoop(
                        "an example writes into memory that it shares with other arguments"
                    )
            finally:
                trace.close()
    except LaunchError as launch:
        cause: BaseException | None = launch.__cause__
    else:
        if error is None and not changed:
            own.finish(functools.partial(finish, trace))
            trace.inputs.end_loans(results)
            return results, trace.stats
        if error is None:
            cause = NeedsLoop("an example changes what the examples share, and one waits for a value")
        else:
            quiet = not (own.may_change or trace.inputs.written or trace.inputs.lent or changed)
            if trace.failed is None and quiet:
                plain(failed)  # raises, unless only the lazy run could not do it
            cause = trace.failed or error
    finally:
        trace.inputs.clear()
    before.restore()
    own.restore()
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
