"""What certain builtins and NumPy functions do in converted code, where an argument may differ between lanes."""

import builtins
import functools
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.batches.builtins import LANE_FUNCTIONS, call_per_lane, lane_len, lane_sum
from autobatch.batches.forms import Batch, narrowed
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.results import weak_lanes
from autobatch.core.lanes import current_region
from autobatch.core.pytree import is_node, leaves, map_tree
from autobatch.errors import NeedsLoop
from autobatch.lockstep.cells import Cell
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.items import setattribute, update
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import SharedLoop, UniformLoop, each, loop, loop_over
from autobatch.lockstep.ownership import is_made, remember, require_own
from autobatch.lockstep.regions import current_root, lanes_within
from autobatch.lockstep.sequences import Enumerated, LaneSequence, Ranges, Zipped, in_reverse, lane_sequence
from autobatch.ops.creation import CREATION

__all__ = ["HANDLERS", "captures_lanes", "is_batched_tree", "shared", "unwrapped"]


def unwrapped(value: Any) -> Any:
    """An argument for code that is not converted: our lists as plain lists, or as one list per lane."""
    if type(value) is LaneList:
        return value.per_lane() if value.is_spread else [unwrapped(item) for item in value.items]
    if isinstance(value, LaneSequence | LaneGenerator):
        return unwrapped(as_list(value))
    if type(value) is tuple or type(value) is list:
        return type(value)(unwrapped(item) for item in value)
    return value


def is_batched_tree(value: Any) -> bool:
    """Whether a value, at any depth, differs between lanes."""
    if isinstance(value, LaneList):
        return value.is_spread or any(map(is_batched_tree, value.items))
    if isinstance(value, Batch | LaneSequence):
        return True
    return is_node(value) and any(isinstance(leaf, Batch | LaneSequence) or is_spread(leaf) for leaf in leaves(value))


def is_spread(value: Any) -> bool:
    return isinstance(value, LaneList) and value.is_spread


def captures_lanes(f: Any) -> bool:
    """Whether a function, or one that it wraps, has a per-lane value in its closure."""
    while f is not None:
        for cell in getattr(f, "__closure__", None) or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            if isinstance(held, Cell | LaneGenerator) or is_batched_tree(held):
                return True
            if isinstance(held, FunctionType) and held is not f and captures_lanes(held):
                return True
        f = getattr(f, "__wrapped__", None)
    return False


def shared(value: Any) -> Any:
    """A value that must be one and the same for all lanes."""
    if is_batched_tree(value):
        raise NeedsLoop("a value that differs by example is used where Python needs one object")
    return list(value.items) if isinstance(value, LaneList) else value


def as_list(iterable: Any = ()) -> Any:
    sequence = None if isinstance(iterable, LaneGenerator) else lane_sequence(iterable)
    if sequence is None and (current_region() is None or not is_readable(iterable)):
        return list(iterable)
    out = LaneList()
    each(sequence if sequence is not None else iterable, out.append)
    return out


def read(value: Any) -> Any:
    """A generator as the list of its items."""
    return as_list(value) if isinstance(value, LaneGenerator) else value


def is_readable(iterable: Any) -> bool:
    if hasattr(iterable, "__next__") and not is_made(iterable):
        raise NeedsLoop("an iterator made outside the call is used up by the first example")
    return True


def _tuple(iterable: Any = ()) -> Any:
    iterable = read(iterable)
    sequence = lane_sequence(iterable)
    if sequence is None:
        return tuple(iterable) if is_readable(iterable) else ()
    running = loop_over(sequence)
    if isinstance(running, UniformLoop):
        return tuple(running)
    if isinstance(iterable, LaneSequence):
        raise NeedsLoop("a tuple whose length differs by example")
    return call_per_lane(tuple, unwrapped(iterable))


def _len(x: Any) -> Any:
    if isinstance(x, LaneList):
        return len(x.items) if x.counts is None else narrowed(_lanes_of_counts(x))
    if isinstance(x, Ranges):
        x.require_here()
        return weak_lanes(x.lengths(), int)
    return lane_len(x)


def _lanes_of_counts(x: LaneList) -> Any:
    out = weak_lanes(x.counts.copy(), int)
    out.region = x.region
    return out


def _sum(iterable: Any, start: Any = 0) -> Any:
    if isinstance(iterable, Batch):
        return lane_sum(iterable, start)
    running = loop(iterable)
    total = start
    for item in running:
        if running.fewer:
            (total,) = running.narrow((total,), ())
        total = total + item
    (total,) = running.merge((total,))
    return total


def _of_items(function: Callable[..., Any]) -> Callable[..., Any]:
    """min, max, sorted, any, all: of several values, or of an iterable."""
    lanes = LANE_FUNCTIONS.get(function) or functools.partial(call_per_lane, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(unwrapped(arg) for arg in args)
        if kwargs.get("key") is not None:
            if is_batched_tree(args):
                raise NeedsLoop(f"{function.__name__}() with key= over values that differ by example")
            kwargs["key"] = converted(kwargs["key"])
            return function(*args, **kwargs)
        if not is_batched_tree(args):
            return function(*args, **kwargs)
        return lanes(*args, **kwargs)

    return call


def _sorted(*args: Any, **kwargs: Any) -> Any:
    out = _of_items(sorted)(*args, **kwargs)
    return LaneList(out) if type(out) is list and current_region() is not None else out


def converted(function: Any) -> Any:
    root = current_root()
    if root is None or not hasattr(function, "__code__"):
        return function
    return root.convert(function) or function


def _lazily(make_lanes: Callable[..., Any], builtin: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, Batch | LaneSequence) or is_spread(arg) for arg in args):
            return make_lanes(*args, **kwargs)
        if current_region() is None:
            return builtin(*args, **kwargs)
        for arg in args:
            is_readable(arg)
        args = tuple(arg.items if isinstance(arg, LaneList) else arg for arg in args)
        return remember(builtin(*args, **kwargs))

    return call


def _range(*bounds: Any) -> Any:
    return Ranges(*bounds) if any(isinstance(bound, Batch) for bound in bounds) else range(*bounds)


def _map(function: Any, *iterables: Any) -> Any:
    root = current_root()
    if root is None:
        return map(function, *iterables)
    out = LaneList()
    if len(iterables) == 1:
        each(iterables[0], lambda item: out.append(root.call(function, item)))
    else:
        each(HANDLERS[zip](*iterables), lambda items: out.append(root.call(function, *items)))
    return out if out.is_spread else remember(iter(out.items))


def _isinstance(x: Any, classes: Any) -> Any:
    if isinstance(x, LaneList):
        return issubclass(list, classes)
    if not isinstance(x, Batch) or isinstance(x, classes):
        return isinstance(x, classes)
    if isinstance(x, ObjectBatch):
        return call_per_lane(isinstance, x, classes)
    return issubclass(_type(x), classes)


def _type(x: Any, *rest: Any) -> Any:
    if isinstance(x, LaneList):
        return list
    if not isinstance(x, Batch) or rest:
        return type(x, *rest)
    if isinstance(x, ObjectBatch):
        return call_per_lane(type, x)
    scalar = getattr(x, "scalar", None)
    return scalar if scalar is not None else np.ndarray if x.ndim else x.dtype.type  # type: ignore[attr-defined]


def _print(*args: Any, **kwargs: Any) -> None:
    root, region = current_root(), current_region()
    if root is None:
        print(*args, **kwargs)
        return
    if kwargs.get("file") is not None:
        raise NeedsLoop("print to a file")
    frozen = map_tree(lambda leaf: leaf.__copy__() if type(leaf) is MaskedBatch else leaf, unwrapped(list(args)))
    root.note_change()
    root.prints.append((region, map_tree(narrowed, frozen), kwargs))


def _next(iterator: Any, *default: Any) -> Any:
    if isinstance(iterator, LaneGenerator):
        return iterator.following(*default)
    if current_region() is not None:
        require_own(iterator, "next()")
    return next(iterator, *default)


def _iter(x: Any, *sentinel: Any) -> Any:
    if isinstance(x, LaneGenerator):
        return x
    if isinstance(x, LaneSequence) or is_spread(x) or isinstance(x, ObjectBatch):
        raise NeedsLoop("iter() of items per example")
    return remember(iter(x.items if isinstance(x, LaneList) else x, *sentinel))


def _setattr(x: Any, name: Any, value: Any) -> None:
    setattribute(value, x, name)


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_region() is not None:
            raise NeedsLoop(f"a call of {function.__name__}")
        return function(*args, **kwargs)

    return call


def _copied(container: type) -> Callable[..., Any]:
    """dict() and set(): new containers, which may be changed."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(read, args))
        if any(isinstance(arg, Batch | LaneSequence) or is_spread(arg) for arg in args):
            raise NeedsLoop(f"{container.__name__}() of items per example")
        args = tuple(arg.items if isinstance(arg, LaneList) else arg for arg in args if is_readable(arg))
        return remember(container(*args, **kwargs))

    return call


def _stack(arrays: Any, axis: int = 0, **kwargs: Any) -> Any:
    if kwargs or not is_spread(arrays):
        return np.stack(unwrapped(arrays), axis=axis, **kwargs)
    if _some_empty(arrays):
        raise ValueError("need at least one array to stack")
    out = _strong(arrays.stacked())
    return out if axis == 0 else np.moveaxis(out, 0, axis)


def _some_empty(arrays: LaneList) -> bool:
    """Whether the list is empty in some lane that is here; what it is elsewhere is of no matter."""
    here = lanes_within(current_region(), arrays.region)
    return bool((arrays.counts[... if here is None else here] == 0).any())


def _strong(batch: Any) -> Any:
    if not isinstance(batch, Batch):
        raise NeedsLoop("an array of a list of structures")
    return narrowed(batch)


def _concatenate(arrays: Any, axis: Any = 0, **kwargs: Any) -> Any:
    if kwargs or axis != 0 or not is_spread(arrays):
        return np.concatenate(unwrapped(arrays), axis=axis, **kwargs)
    if _some_empty(arrays):
        raise ValueError("need at least one array to concatenate")
    return narrowed(arrays.joined())


def _array(object: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_spread(object):
        return _create(np.array)(object, *args, **kwargs)
    if _some_empty(object):
        return call_per_lane(np.array, object.per_lane(), *args, **kwargs)
    out = _strong(object.stacked())
    return _create(np.array)(out, *args, **kwargs) if args or kwargs else out


def _asarray(object: Any, *args: Any, **kwargs: Any) -> Any:
    return (_array if is_spread(object) else _create(np.asarray))(object, *args, **kwargs)


def _create(function: Callable[..., Any]) -> Callable[..., Any]:
    lanes = CREATION[function]

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(unwrapped(arg) for arg in args)
        if any(is_batched_tree(arg) for arg in args) or any(map(is_batched_tree, kwargs.values())):
            return lanes(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def _reduce(function: Any, iterable: Any, *initial: Any) -> Any:
    root = current_root()
    if root is None or lane_sequence(iterable) is not None:
        raise NeedsLoop("functools.reduce over items per example")
    items = list(SharedLoop(iterable))
    total = initial[0] if initial else items.pop(0)
    for item in items:
        total = root.call(function, total, item)
    return total


def _operator(name: str) -> Callable[..., Any]:
    symbol = {"iadd": "+", "isub": "-", "imul": "*", "itruediv": "/"}[name]
    return lambda x, y: update(symbol, x, y)


HANDLERS: dict[Any, Callable[..., Any]] = {
    **LANE_FUNCTIONS,
    **{function: _create(function) for function in CREATION},
    np.array: _array,
    np.asarray: _asarray,
    np.stack: _stack,
    np.concatenate: _concatenate,
    len: _len,
    sum: _sum,
    min: _of_items(min),
    max: _of_items(max),
    any: _of_items(any),
    all: _of_items(all),
    sorted: _sorted,
    list: as_list,
    tuple: _tuple,
    dict: _copied(dict),
    set: _copied(set),
    range: _range,
    zip: _lazily(Zipped, zip),
    enumerate: _lazily(Enumerated, enumerate),
    reversed: _lazily(in_reverse, reversed),
    map: _map,
    isinstance: _isinstance,
    type: _type,
    print: _print,
    next: _next,
    iter: _iter,
    setattr: _setattr,
    functools.reduce: _reduce,
    **{getattr(operator, name): _operator(name) for name in ("iadd", "isub", "imul", "itruediv")},
    **{
        getattr(builtins, name): _refused(getattr(builtins, name))
        for name in ("open", "input", "exec", "eval", "delattr", "id")
    },
    operator.setitem: _refused(operator.setitem),
    operator.delitem: _refused(operator.delitem),
    filter: _refused(filter),
}
