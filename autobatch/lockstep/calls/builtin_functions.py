"""Builtins, and NumPy functions of lists, have lock-step forms for arguments that differ by lane (`HANDLERS`)."""

import copy
import dataclasses
import functools
import gc
import math
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, narrowed
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.scalars import LANE_FUNCTIONS, lane_len, lane_sum
from autobatch.batches.stacking import map_lanes, weak_lanes
from autobatch.core.abstract_eval import type_of
from autobatch.core.batched import Packed
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import warn_fallback
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import BUILD_ARRAYS, OWN_LENGTHS, SHOW_AFTER, NeedsLoop
from autobatch.facts import operators
from autobatch.facts.types import IMMUTABLE, keeps_fields
from autobatch.lockstep.lanes.region import is_changeable, lanes_within, register_made
from autobatch.lockstep.regions.branches import truth_value
from autobatch.lockstep.regions.loops import UniformLoop, check_iterable, for_each, loop, loop_over
from autobatch.lockstep.values.lane_operators import (
    BINARY,
    class_of_lanes,
    getattribute,
    is_plain,
    refuse_hooks,
    refuse_items,
)
from autobatch.lockstep.values.lists import LaneList, plain_lists, to_lists
from autobatch.lockstep.values.sequences import Enumerated, LaneSequence, Ranges, Zipped, in_reverse, lane_sequence
from autobatch.ops.numpy.creation import CREATION
from autobatch.ops.rules.dispatch import top_box
from autobatch.ops.rules.op_kinds import check_numbers
from autobatch.program import normal_form as nf


def unwrap(value: Any) -> Any:
    """An argument for unconverted code: each `LaneList` becomes a Python list, or one list per lane if it is spread."""
    refuse_items(value)
    cls = type(value)
    return cls(unwrap(item) for item in value) if cls is tuple or cls is list else to_lists(value)


def is_batched_tree(value: Any) -> bool:
    """True if a value differs between lanes, at any depth."""
    if isinstance(value, LaneList):
        return value.is_spread or any(map(is_batched_tree, value.items))
    if isinstance(value, Batch | LaneSequence):
        return True
    if not is_node(value):
        return False
    return any(is_batched_tree(leaf) for leaf in leaves(value) if isinstance(leaf, Batch | LaneSequence | LaneList))


def require_shared(value: Any) -> Any:
    """The value as one Python object for all lanes; raises NeedsLoop if it differs between lanes."""
    if is_batched_tree(value):
        raise NeedsLoop("a value that differs by example is used where Python needs one object", instead=OWN_LENGTHS)
    return unwrap(value)


def as_list(iterable: Any = ()) -> Any:
    """`list(iterable)`: in lock-step a `LaneList`, since items may differ by lane and lanes may append."""
    sequence = lane_sequence(iterable)
    if sequence is None and (current_region() is None or not check_iterable(iterable)):
        return list(iterable)
    out = LaneList()
    for_each(sequence if sequence is not None else iterable, out.append)
    return out


def captures_lanes(f: Any) -> bool:
    """True if a per-lane value, or a mutable object made in the call, is reachable from a callable."""
    seen: dict[int, Any] = {}
    waiting = [f]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (*IMMUTABLE, ModuleType)) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Batch | LaneSequence | LaneList) or is_changeable(value):
            return True
        if isinstance(value, FunctionType):  # not its module's globals
            waiting += [value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__]
        else:
            waiting += gc.get_referents(value)
    return False


def _stack(arrays: Any, axis: int = 0, **kwargs: Any) -> Any:
    if kwargs or not is_spread(arrays):
        return np.stack(unwrap(arrays), axis=axis, **kwargs)
    if _some_empty(arrays):
        raise ValueError("need at least one array to stack")
    out = _narrowed_array(arrays.stacked())
    return out if axis == 0 else np.moveaxis(out, 0, axis)


def _some_empty(arrays: LaneList) -> bool:
    """True if the list is empty in some lane of the current region."""
    here = lanes_within(current_region(), arrays.region)
    return bool((arrays.counts[... if here is None else here] == 0).any())


def _narrowed_array(batch: Any) -> Any:
    if not isinstance(batch, Batch):
        raise NeedsLoop("an array of a list of structures", instead=BUILD_ARRAYS)
    return narrowed(batch)


def _concatenate(arrays: Any, *args: Any, **kwargs: Any) -> Any:
    if is_spread(arrays):
        raise NeedsLoop("arrays of a list that differs by example are stacked", instead=OWN_LENGTHS)
    return np.concatenate(unwrap(arrays), *args, **kwargs)


def _array(object: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_spread(object):
        return _creation_form(np.array)(object, *args, **kwargs)
    if _some_empty(object):
        return map_lanes(np.array, plain_lists(object), *args, **kwargs)
    out = _narrowed_array(object.stacked())
    dtype = args[0] if args else kwargs.get("dtype")
    if dtype is not None:
        check_numbers(out, np.dtype(dtype))
    return _creation_form(np.array)(out, *args, **kwargs) if args or kwargs else out


def _asarray(object: Any, *args: Any, **kwargs: Any) -> Any:
    return (_array if is_spread(object) else _creation_form(np.asarray))(object, *args, **kwargs)


def refuse_dicts(args: tuple[Any, ...]) -> None:
    """Raise NeedsLoop for dicts of values that differ by example, which NumPy would take for one object."""
    for arg in args:
        if type(arg) is dict and is_batched_tree(arg):
            raise NeedsLoop("an array of dicts of values that differ by example")
        if type(arg) is list or type(arg) is tuple:
            refuse_dicts(tuple(arg))


def _creation_form(function: Callable[..., Any]) -> Callable[..., Any]:
    lanes = CREATION[function]

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(unwrap(arg) for arg in args)
        refuse_dicts((args, tuple(kwargs.values())))
        if any(map(is_batched_tree, (*args, *kwargs.values()))) or top_box((args, kwargs)) is not None:
            return lanes(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def is_spread(value: Any) -> bool:
    """True for a `LaneList` in the spread form."""
    return type(value) is LaneList and value.is_spread


def _tuple(iterable: Any = ()) -> Any:
    sequence = lane_sequence(iterable)
    if sequence is None:
        return tuple(iterable) if check_iterable(iterable) else ()
    running = loop_over(sequence)
    if isinstance(running, UniformLoop):
        return tuple(running)
    if is_spread(iterable) and None not in iterable.scalar_kinds():
        return map_lanes(tuple, plain_lists(iterable))
    raise NeedsLoop("a tuple whose length differs by example", instead=OWN_LENGTHS)


def _len(x: Any) -> Any:
    if isinstance(x, LaneList):
        return x.count_here()
    if isinstance(x, Packed) and isinstance(x.values, Packed):
        return weak_lanes(narrowed(x).lengths, int)
    refuse_hooks(x, "__len__")
    return lane_len(x)


def _sum(iterable: Any, start: Any = 0) -> Any:
    if isinstance(iterable, Batch):
        return lane_sum(iterable, start)
    running = loop(iterable)
    total = start
    for item in running:
        if running.has_shrunk:
            (total,) = running.narrow((total,), ())
        total = BINARY["+"](total, item)
    (total,) = running.merge((total,))
    return total


def _over_items(function: Callable[..., Any]) -> Callable[..., Any]:
    """The lock-step form of min, max, any, all or sorted, of several values or of an iterable."""
    lanes = LANE_FUNCTIONS.get(function) or functools.partial(map_lanes, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("key") is not None and current_region() is not None:
            raise NeedsLoop(f"{function.__name__}() with key=")
        args = tuple(map(unwrap, args))
        if current_region() is not None and any(map(is_changeable, leaves(args))):
            raise NeedsLoop(f"{function.__name__}() of objects of the call")
        if function is sorted and config.strict and is_batched_tree(args):
            warn_fallback("sorted() of numbers that differ by example runs in Python for each example")
        out = lanes(*args, **kwargs) if is_batched_tree(args) else function(*args, **kwargs)
        return LaneList(out) if type(out) is list and current_region() is not None else out

    return call


def _lazy_iterable(make_lanes: Callable[..., Any], builtin: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, Batch | LaneSequence) or (type(arg) is LaneList and arg.is_spread) for arg in args):
            return make_lanes(*args, **kwargs)
        if current_region() is None:
            return builtin(*args, **kwargs)
        for arg in args:
            check_iterable(arg)
        args = tuple(arg.items if isinstance(arg, LaneList) else arg for arg in args)
        return register_made(builtin(*args, **kwargs))

    return call


def _range(*bounds: Any) -> Any:
    return Ranges(*bounds) if any(isinstance(bound, Batch) for bound in bounds) else range(*bounds)


def _specimen(x: Any) -> Any:
    """For values that differ by lane one of the class of each lane's value; anything else unchanged."""
    refuse_items(x)
    if isinstance(x, LaneList):
        return []
    if not isinstance(x, Batch) or isinstance(x, ObjectBatch):
        return x
    cls = class_of_lanes(x)
    return np.empty((0,) * x.ndim, x.dtype) if cls is np.ndarray else cls()  # type: ignore[attr-defined]


def is_instance(x: Any, classes: Any) -> Any:
    """`isinstance`, in each lane; of the library's classes what holds the lanes is an instance."""
    if isinstance(classes, type) and issubclass(classes, Batch):
        return isinstance(x, classes)
    return map_lanes(isinstance, x, classes) if isinstance(x, ObjectBatch) else isinstance(_specimen(x), classes)


def _parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """The lock-step form of what a pattern looks into."""

    def call(x: Any, *pattern: Any) -> Any:
        if is_batched_tree(x) and (not isinstance(x, tuple) or function is nf.class_parts):
            raise NeedsLoop("a pattern of what differs by example", instead="write the cases as if / elif")
        return function(x, *pattern)

    return call


def _type(x: Any, *rest: Any) -> Any:
    refuse_items(x)
    if isinstance(x, LaneList) and not rest:
        return list
    if not isinstance(x, Batch) or rest:
        return type_of(x, *rest)
    return map_lanes(type, x) if isinstance(x, ObjectBatch) else class_of_lanes(x)


_SPECIAL = {
    int: "__int__", float: "__float__", complex: "__complex__", str: "__str__", repr: "__repr__", round: "__round__",
    hash: "__hash__", format: "__format__", divmod: "__divmod__", math.floor: "__floor__", math.ceil: "__ceil__",
    math.trunc: "__trunc__", abs: "__abs__",
}  # fmt: skip


def _of_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """The lock-step form of a builtin of one value: unwraps `LaneList`s, refuses the user's special methods."""
    lanes, special = LANE_FUNCTIONS[function], _SPECIAL.get(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if not is_plain(arg) or isinstance(arg, LaneList | tuple | list | dict):
                break
        else:
            return lanes(*args, **kwargs)
        if special is not None:
            refuse_hooks(args[0], special)
        if current_region() is not None and is_changeable(args[0]):
            raise NeedsLoop(f"{function.__name__}() of an object of the call")
        return lanes(*map(unwrap, args), **kwargs)

    return call


def _getattr(x: Any, name: str, *default: Any) -> Any:
    if not isinstance(name, str):
        raise NeedsLoop("an attribute whose name differs by example", instead=OWN_LENGTHS)
    of_lanes = _specimen(x)
    if of_lanes is not x and not hasattr(of_lanes, name):
        return getattr(of_lanes, name, *default)
    try:
        return getattribute(x, name)
    except AttributeError:
        if of_lanes is not x:
            raise NeedsLoop(f"the attribute {name!r} of what differs by example", instead=OWN_LENGTHS) from None
        if default:
            return default[0]
        raise


def _hasattr(x: Any, name: str) -> Any:
    of_lanes = _specimen(x)
    if of_lanes is not x:
        return hasattr(of_lanes, name)
    value = _getattr(x, name, _MISSING)
    if isinstance(value, Batch):
        narrowed(value)  # raises if only other lanes have it
    return value is not _MISSING


_MISSING = object()


def _unsupported(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_region() is not None:
            raise NeedsLoop(f"a call of {function.__name__}", instead=SHOW_AFTER if function is print else "")
        return function(*args, **kwargs)

    return call


def _dict(*args: Any, **kwargs: Any) -> Any:
    """`dict(...)`, recorded as made in the call, so that it may be mutated."""
    if not all(isinstance(arg, dict) for arg in args) and current_region() is not None:
        raise NeedsLoop("a dict made from pairs")
    return register_made(dict(*args, **kwargs))


def _replaced(old: Any, /, **changes: Any) -> Any:
    """`dataclasses.replace`."""
    if current_region() is not None and not (dataclasses.is_dataclass(old) and keeps_fields(type(old))):
        raise NeedsLoop(
            "dataclasses.replace of an object that has more than its fields, or differs by example", instead=OWN_LENGTHS
        )
    return dataclasses.replace(old, **changes)


_UNSUPPORTED = (
    open, print, input, exec, eval, setattr, delattr, id, map, filter, iter, next, set, frozenset, copy.copy,
    copy.deepcopy,
)  # fmt: skip
HANDLERS: dict[Any, Callable[..., Any]] = {
    **{function: _of_value(function) for function in LANE_FUNCTIONS},
    **{function: _creation_form(function) for function in CREATION},
    np.array: _array,
    np.asarray: _asarray,
    np.stack: _stack,
    np.concatenate: _concatenate,
    len: _len,
    bool: lambda x=False: truth_value(x),
    sum: _sum,
    min: _over_items(min),
    max: _over_items(max),
    sorted: _over_items(sorted),
    any: _over_items(any),
    all: _over_items(all),
    list: as_list,
    tuple: _tuple,
    dict: _dict,
    dataclasses.replace: _replaced,
    range: _range,
    zip: _lazy_iterable(Zipped, zip),
    enumerate: _lazy_iterable(Enumerated, enumerate),
    reversed: _lazy_iterable(in_reverse, reversed),
    isinstance: is_instance,
    **{function: _parts(function) for function in nf.PARTS},
    type: _type,
    **{each.function: BINARY[each.symbol] for each in operators.BINARY},
    getattr: _getattr,
    hasattr: _hasattr,
    **{function: _unsupported(function) for function in _UNSUPPORTED},
}
