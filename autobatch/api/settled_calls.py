"""Calls that are settled to run as the loop: one straight way through the library, of as few steps as can be.

It is what `api.call_ways` does with such a call, for the commonest of them: of a plain function, on batches
whose examples are views, or on lists. Small batches end here after their first calls, and whatever the library
does then is time that the loop would not have taken.
"""

import itertools
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.api.chooser import LOOP
from autobatch.api.measured_costs import WAYS, costs_of, map_key, read_call
from autobatch.api.run_record import LOCKSTEP, watched
from autobatch.autodiff.tape import active_tape
from autobatch.batches.any_batch import Batch
from autobatch.batches.examples import stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.packed import PackedBatch
from autobatch.batches.result_form import in_form
from autobatch.core.config import current
from autobatch.core.current import clock, current_region
from autobatch.lazy.fibers import active_trace, run_loop

NOT_SETTLED: Any = object()


def settled_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call on batches that is to run as the loop; else NOT_SETTLED, and nothing has happened."""
    if type(function) is not FunctionType or not _is_plain_call():
        return NOT_SETTLED
    key: list[Any] = [LOCKSTEP, False]
    batches = read_call(args, kwargs, key)
    count = batches[0].batch_size
    kind = costs_of(function, tuple(key), WAYS) if count else None
    if kind is None or kind.usual(count) is None:
        return NOT_SETTLED
    columns: list[Any] = []
    begun, found = clock(), 0
    for arg in args:
        if not isinstance(arg, Batch):
            columns.append(itertools.repeat(arg, count))
        elif _is_simple(arg) and arg.batch_size == count:
            columns.append(arg.examples())
            found += 1
        else:
            return NOT_SETTLED
    if found < len(batches) or (found > 1 and len(set(map(id, batches))) < found):
        return NOT_SETTLED
    results = run_loop(function, columns, kwargs)
    kind.took(LOOP, count, clock() - begun)
    return in_form(stack_results(results), count, batches)


def _is_simple(batch: Any) -> bool:
    """Whether its examples are views of its data without gaps."""
    if type(batch) is MaskedBatch:
        return len(batch.sizes) < 2 or (not batch.is_ragged and batch.data.flags.c_contiguous)
    return type(batch) is PackedBatch and type(batch.values) is np.ndarray and batch.values.flags.c_contiguous


def _is_plain_call() -> bool:
    """Whether a call is of no other run of the library's, nobody looks at it, and the way is left to the library."""
    options = current()
    if options.way != "auto" or options.strict:
        return False
    return active_tape() is current_region() is active_trace() is watched.get() is None


def settled_map(
    function: Any, columns: Sequence[Any], fixed: dict[int, Any], shared: dict[str, Any]
) -> list[Any] | None:
    """The results of a map of lists that is to run as the loop; else None, and nothing has happened.

    Args:
        columns: the arguments that differ by example; fixed: the others, by their place; shared: those by keyword.
    """
    if type(function) is not FunctionType or not columns or not _is_plain_call():
        return None
    count = len(columns[0]) if type(columns[0]) is list else 0
    for each in columns:
        if type(each) is not list or len(each) != count:
            return None
    if not count:
        return None
    kind = costs_of(function, map_key(columns, count, (*shared.values(), *fixed.values())), WAYS)
    if kind is None or kind.usual(count) is None:
        return None
    begun = clock()
    given: list[Any] = [each.copy() for each in columns]
    for at in fixed:
        given.insert(at, itertools.repeat(fixed[at], count))
    results = run_loop(function, given, shared)
    kind.took(LOOP, count, clock() - begun)
    return results
