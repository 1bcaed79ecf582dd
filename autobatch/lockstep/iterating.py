"""Builtins, `functools` and `itertools` that call a function for each item, or make sequences of sequences."""

import bisect
import copy
import functools
import heapq
import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.base import Batch
from autobatch.batches.examples import stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.facts.types import SCALARS
from autobatch.lockstep import functions, lazily
from autobatch.lockstep.boxes import LaneBox
from autobatch.lockstep.branches import truth_value
from autobatch.lockstep.functions import as_list, is_batched_tree, unwrapped
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import each, loop
from autobatch.lockstep.ownership import is_made, remember
from autobatch.lockstep.plain import plain
from autobatch.lockstep.regions import current_root
from autobatch.lockstep.rows import CONTAINERS, Held, each_lane, gathered, owned, scattered, unified
from autobatch.lockstep.sequences import LaneSequence
from autobatch.lockstep.walks import until

__all__ = ["HANDLERS"]

_MISSING = object()
_UNCHANGING = (*SCALARS, np.generic)


def _keys(items: LaneList, key: Any) -> LaneList:
    """`key(item)` of every item."""
    root = current_root()
    keys = LaneList()
    if root is None:
        keys.items = [key(item) for item in items.items]
    else:
        each(items, lambda item: keys.append(root.call(key, item)))
    return keys


def _sorted(iterable: Any, *, key: Any = None, reverse: Any = False) -> Any:
    if current_region() is None:
        return sorted(iterable, key=key, reverse=reverse)
    items = _fresh(iterable)
    if key is None:
        items.sort(reverse=reverse)
        return items
    keys = _keys(items, key)
    keys.require_comparable()

    def ordered(own: list[Any], by: list[Any], falls: Any) -> list[Any]:
        return [own[i] for i in sorted(range(len(own)), key=by.__getitem__, reverse=falls)]

    if not is_batched_tree((items, keys, reverse)):
        return LaneList(ordered(items.items, list(map(unwrapped, keys.items)), reverse))
    return unified(list, each_lane(ordered, items.here(), keys.here(), scattered(reverse)))


def _fresh(iterable: Any) -> LaneList:
    """A new list of the items."""
    out = as_list(iterable)
    return out if isinstance(out, LaneList) else LaneList(out)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    """min and max with `key` or `default`; without, as of any items."""
    simple = functions.HANDLERS[function]

    def call(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
        if current_region() is None or (key is None and default is _MISSING):
            named = {} if default is _MISSING else {"default": default}
            return simple(*args, **named) if key is None else function(*args, key=key, **named)
        items = _fresh(args[0]) if len(args) == 1 else LaneList(args)
        keys = items if key is None else _keys(items, key)
        keys.require_comparable()

        def best(own: list[Any], by: list[Any], otherwise: Any) -> Any:
            if not own and otherwise is not _MISSING:
                return otherwise
            return own[function(range(len(own)), key=by.__getitem__)]

        if not is_batched_tree((items, keys, default)):
            return best(items.items, list(map(unwrapped, keys.items)), default)
        return gathered(each_lane(best, items.here(), keys.here(), scattered(default)))

    return call


def _lazily(builtin: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """What Python makes lazily.

    Args:
        builtin: what Python has.
        ours: of the same arguments, the generator function of `lazily` to call, and its arguments.
    """

    def make(*args: Any, **named: Any) -> Any:
        root = current_root()
        return builtin(*args, **named) if root is None else root.call(*ours(*args, **named))

    return make


def _mapped(function: Any, *iterables: Any) -> Any:
    if len(iterables) == 1:
        return lazily.mapped, function, iterables[0]
    return lazily.starmapped, function, functions.HANDLERS[zip](*iterables)


def _filtered(function: Any, iterable: Any) -> Any:
    return lazily.filtered, bool if function is None else function, iterable


def _filtered_out(function: Any, iterable: Any) -> Any:
    return lazily.filtered_out, bool if function is None else function, iterable


def _accumulated(iterable: Any, func: Any = None, *, initial: Any = None) -> Any:
    return lazily.accumulated, iterable, operator.add if func is None else func, initial


def _sliced(iterable: Any, *bounds: Any) -> Any:
    start, stop, step = (None, *bounds, None) if len(bounds) == 1 else (*bounds, None, None)[:3]
    return lazily.sliced, iterable, 0 if start is None else start, stop, 1 if step is None else step


def _reduce(function: Any, iterable: Any, *initial: Any) -> Any:
    root = current_root()
    if root is None:
        return functools.reduce(function, iterable, *initial)
    running = loop(_fresh(iterable))
    total = initial[0] if initial else _MISSING
    region = current_region()
    for item in running:
        if total is _MISSING:
            if len(current_region().lanes()) < region.count:  # type: ignore
                raise TypeError("reduce() of empty iterable with no initial value")
            total = item
            continue
        if running.fewer:
            (total,) = running.narrow((total,), ())
        total = root.call(function, total, item)
    if total is _MISSING:
        raise TypeError("reduce() of empty iterable with no initial value")
    (total,) = running.merge((total,))
    return total


def _groupby(iterable: Any, key: Any = None) -> Any:
    """Groups as lists, which in Python are iterators that the next group ends."""
    if current_region() is None:
        return itertools.groupby(iterable, key)
    items = _fresh(iterable)
    keys = items if key is None else _keys(items, key)
    keys.require_comparable()

    def groups(own: list[Any], by: list[Any]) -> list[Any]:
        found = itertools.groupby(range(len(own)), by.__getitem__)
        return [(value, owned([own[i] for i in places])) for value, places in found]

    return unified(list, each_lane(groups, items.here(), keys.here()))


def _rearranged(function: Callable[..., Any]) -> Callable[..., Any]:
    """What moves items about without looking at them."""

    def call(*args: Any, **named: Any) -> Any:
        if current_region() is None:
            return function(*args, **named)
        given = [_fresh(arg) if _is_iterable(arg) else arg for arg in args]
        parts = [*given, *named.values()]
        if not any(isinstance(part, Batch | LaneSequence) or _is_spread(part) for part in parts):
            args = tuple(part.items if isinstance(part, LaneList) else part for part in given)
            return LaneList(function(*args, **named))
        columns = [scattered(part) for part in given]
        keys, values = list(named), [scattered(value) for value in named.values()]
        rows = zip(*values, strict=True) if values else [()] * current_region().count  # type: ignore
        rest = [dict(zip(keys, row, strict=True)) for row in rows]
        return unified(list, each_lane(lambda extra, *row: list(function(*row, **extra)), rest, *columns))

    return call


def _is_spread(part: Any) -> bool:
    return isinstance(part, Held) and part.is_spread


def _is_iterable(value: Any) -> bool:
    if isinstance(value, MaskedBatch):
        return bool(value.sizes)
    return isinstance(value, Held | LaneSequence) or hasattr(value, "__iter__")


def _on_list(function: Callable[..., Any]) -> Callable[..., Any]:
    """heapq and bisect, which compare the items of a list and may change it."""

    def call(held: Any, *args: Any, **named: Any) -> Any:
        if current_region() is None:
            return function(held, *args, **named)
        if named or not isinstance(held, LaneList):
            if not isinstance(held, LaneList) and not is_batched_tree((held, args, named)) and not named:
                return function(held, *args)
            raise NeedsLoop(f"{function.__name__}() of these arguments")
        held.count_change()
        held.require_comparable(*args)
        return gathered(each_lane(function, held.here(), *map(scattered, args)))

    return call


def _count_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """heapq.nlargest and nsmallest."""

    def call(n: Any, iterable: Any, key: Any = None) -> Any:
        if current_region() is None:
            return function(n, iterable, key)
        return _sorted(iterable, key=key, reverse=function is heapq.nlargest).part(slice(None, n))

    return call


def _any_all(stop: bool) -> Callable[..., Any]:
    """any and all: of the items of a list of ours, the truth of each."""
    function = any if stop else all
    simple = functions.HANDLERS[function]

    def call(iterable: Any) -> Any:
        if current_region() is not None and isinstance(iterable, LaneGenerator):
            return until(iterable, truth_value, stop)
        if current_region() is None or not isinstance(iterable, Held | LaneSequence):
            return simple(iterable)
        flags = _keys(_fresh(iterable), lambda item: truth_value(item))
        if not is_batched_tree(flags):
            return function(flags.items)
        return stack_results(each_lane(lambda own: function(map(bool, own)), flags.here()))

    return call


def _copy(x: Any) -> Any:
    """`copy.copy`."""
    region = current_region()
    if region is None or not (isinstance(x, Held) or is_made(x)):
        return x.copy() if isinstance(x, MaskedBatch) and x.sizes else copy.copy(x)
    if isinstance(x, LaneList):
        return x.copy()
    if isinstance(x, LaneBox):
        return x.method("copy")
    if hasattr(type(x), "__copy__"):
        raise NeedsLoop("copy.copy of an object with its own __copy__")
    return remember(copy.copy(x))


def _deepcopy(x: Any) -> Any:
    if current_region() is None or not isinstance(x, Held | MaskedBatch):
        if is_batched_tree(x):
            raise NeedsLoop("copy.deepcopy of values that differ by example")
        return copy.deepcopy(x)
    if isinstance(x, MaskedBatch):
        return x.copy() if x.sizes else x
    return unified(x.kind, [_own(plain(container)) for container in x.here()])


def _own(container: Any) -> Any:
    """A copy for one lane, with all that is in it."""
    for inner in container.values() if isinstance(container, dict) else container:
        if type(inner) in CONTAINERS:
            owned(_own(inner))
        elif not isinstance(inner, _UNCHANGING):
            raise NeedsLoop("copy.deepcopy of a container with arrays or objects in it")
    return container


HANDLERS: dict[Any, Callable[..., Any]] = {
    **functions.HANDLERS,
    sorted: _sorted,
    min: _extreme(min),
    max: _extreme(max),
    any: _any_all(True),
    all: _any_all(False),
    map: _lazily(map, _mapped),
    filter: _lazily(filter, _filtered),
    functools.reduce: _reduce,
    itertools.filterfalse: _lazily(itertools.filterfalse, _filtered_out),
    itertools.takewhile: _lazily(itertools.takewhile, lambda function, items: (lazily.take_while, function, items)),
    itertools.dropwhile: _lazily(itertools.dropwhile, lambda function, items: (lazily.drop_while, function, items)),
    itertools.starmap: _lazily(itertools.starmap, lambda function, rows: (lazily.starmapped, function, rows)),
    itertools.accumulate: _lazily(itertools.accumulate, _accumulated),
    itertools.chain: _lazily(itertools.chain, lambda *iterables: (lazily.chained, iterables)),
    itertools.chain.from_iterable: _lazily(itertools.chain.from_iterable, lambda items: (lazily.chained, items)),
    itertools.islice: _lazily(itertools.islice, _sliced),
    itertools.pairwise: _lazily(itertools.pairwise, lambda items: (lazily.paired, items)),
    itertools.count: _lazily(itertools.count, lambda start=0, step=1: (lazily.counted, start, step)),
    itertools.cycle: _lazily(itertools.cycle, lambda items: (lazily.cycled, items)),
    itertools.repeat: _lazily(itertools.repeat, lambda value, times=None: (lazily.repeated, value, times)),
    itertools.groupby: _groupby,
    **{
        function: _rearranged(function)
        for function in (
            itertools.product, itertools.zip_longest, itertools.combinations, itertools.permutations,
            itertools.combinations_with_replacement, itertools.compress,
        )
    },
    **{
        function: _on_list(function)
        for function in (
            heapq.heappush, heapq.heappop, heapq.heapify, heapq.heappushpop, heapq.heapreplace, bisect.bisect_left,
            bisect.bisect_right, bisect.insort_left, bisect.insort_right,
        )
    },
    heapq.nlargest: _count_of(heapq.nlargest),
    heapq.nsmallest: _count_of(heapq.nsmallest),
    copy.copy: _copy,
    copy.deepcopy: _deepcopy,
}  # fmt: skip
