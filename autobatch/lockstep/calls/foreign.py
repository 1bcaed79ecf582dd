"""Calls of code that is not converted: once for all lanes, or once for each.

A call of the user's own code that lanes cannot make together is made by each on its own, too, where it reads nothing
but its arguments and what all lanes share, and changes nothing: then its order among the other statements cannot be
told. With any other such call the whole function goes to the next way.
"""

import functools
import operator
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, lane, name_lane, narrow_tree, per_lane
from autobatch.batches.examples import following_views, stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.core.current import Example, current_region, example, set_region
from autobatch.core.diagnostics import fell_back
from autobatch.core.op import is_boxed
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import NeedsLoop
from autobatch.facts.python_functions import ACTING_MODULES
from autobatch.facts.types import IMMUTABLE
from autobatch.lockstep.calls.functions import captures_lanes, converted, is_batched_tree, listed, unwrapped
from autobatch.lockstep.regions.joins import narrowed_values
from autobatch.lockstep.regions.region import current_root, lanes_within
from autobatch.lockstep.values.items import made
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.own_objects import freeze, is_changeable, is_made, remember, require_own
from autobatch.lockstep.values.sequences import LaneSequence

__all__ = ["CACHED", "IMMUTABLE", "cached", "library", "plain_arguments", "require_local", "run_per_lane"]

_HARMLESS = (*IMMUTABLE, np.ndarray, Batch)
_DRAWING = ("random", "secrets", "uuid", "numpy.random")
_OF_LISTS = ("itertools", "heapq", "bisect")  # what changes lists, or calls functions on items later on


def plain_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments for NumPy and for code that is not converted: our containers as Python's."""
    for arg in args:
        kind = type(arg)
        if kind is MaskedBatch or kind is np.ndarray:
            continue
        if kind is LaneList or kind is tuple or kind is list or isinstance(arg, LaneSequence):
            return tuple(map(unwrapped, args))
    return args


def library(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of code that is not converted."""
    module = getattr(f, "__module__", None) or ""
    name = getattr(f, "__qualname__", None) or type(f).__name__
    if module.split(".")[0] == "autobatch" and not hasattr(f, "__wrapped__"):
        return f(*plain_arguments(args), **{key: unwrapped(value) for key, value in kwargs.items()})
    if module in _DRAWING or module.startswith("numpy.random"):
        raise NeedsLoop(f"{module}.{name} draws random numbers")
    if module.strip("_") in _OF_LISTS or f is functools.reduce:
        raise NeedsLoop(f"a call of {name}")
    if module.strip("_").split(".")[0] in ACTING_MODULES:
        raise NeedsLoop(f"{module}.{name} acts outside the call")
    if captures_lanes(f):  # what it keeps, or compares, is not one and the same for all lanes
        raise NeedsLoop(f"{name} has captured values that differ by example")
    given, args = args, tuple(map(unwrapped, args))
    kwargs = {key: unwrapped(value) for key, value in kwargs.items()}
    batched = is_batched_tree((args, kwargs))
    for leaf in leaves((args, kwargs)):
        if (
            callable(leaf)
            and (batched or module != "functools")
            and ((isinstance(leaf, FunctionType | MethodType) and batched) or captures_lanes(leaf))
        ):
            raise NeedsLoop(f"{name} calls a function on values that differ by example")
        if is_changeable(leaf) and not hasattr(leaf, "__next__"):
            raise NeedsLoop(f"{name}() of an object of the call")
        if not (isinstance(leaf, _HARMLESS) or is_boxed(leaf) or callable(leaf)):
            if not is_made(leaf):
                raise NeedsLoop(f"{name}() of a {type(leaf).__name__} that the call did not make")
            require_own(leaf, f"{name}()")
    changeable = [arg for arg in (*args, *kwargs.values()) if is_node(arg) and not isinstance(arg, tuple)]
    if changeable and _may_change(f):
        raise NeedsLoop(f"{name}() changes its argument")
    if not batched:
        out = f(*map(converted, args), **{key: converted(value) for key, value in kwargs.items()})
        for old, new in zip(given, args, strict=True):  # a list of ours went in as a copy
            if type(old) is LaneList and (len(old) != len(new) or any(map(operator.is_not, old, new))):
                raise NeedsLoop(f"{name}() changes its argument")
        return remember(out) if hasattr(out, "__next__") else out
    require_local(f, getattr(f, "__wrapped__", None), f.pyfunc if isinstance(f, np.vectorize) else None)  # a cache, say
    fell_back(f"{name} has no form for values that differ by example")
    call, linked = following_views(f, args, kwargs)
    results = per_lane(call, args, kwargs)
    if changeable and all(result is None for result in results):
        raise NeedsLoop(f"{name}() returns nothing, so it may have changed its argument")
    out = linked(stack_results(results))
    if isinstance(out, ObjectBatch) and isinstance(f, type) and any(map(_is_array, leaves((args, kwargs)))):
        raise NeedsLoop(f"a {name} that holds arrays which differ by example")  # and a write has to reach them
    return out


def require_local(f: Any, *functions: Any) -> None:
    """Raise NeedsLoop if functions that `f` calls may change something: not in the order of the loop, or twice."""
    root = current_root()
    for each in functions if root is not None else ():
        if isinstance(each, FunctionType | MethodType) and not root.is_local(each):  # type: ignore[union-attr]
            raise NeedsLoop(f"{getattr(f, '__name__', type(f).__name__)} calls a function that may change something")


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Batch) and bool(getattr(leaf, "ndim", 0))


def _may_change(f: Any) -> bool:
    module = (getattr(f, "__module__", None) or "").split(".")[0]
    return module in ("random", "operator", "_operator")


_PLAIN_LEAVES = (
    str, bytes, int, float, complex, type(None), np.generic, np.dtype, type, range, slice, frozenset, Batch, np.ndarray,
    BuiltinFunctionType,
)  # fmt: skip
_PURE = frozenset({
    tuple, set, dict, frozenset, list, sorted, min, max, sum, any, all, len, zip, enumerate, reversed,
    np.stack, np.concatenate, np.array, np.asarray,
})  # fmt: skip
_LAZY = frozenset({zip, enumerate, reversed})


def run_per_lane(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: NeedsLoop) -> Any:
    """The call, lane by lane.

    Args:
        error: why it cannot be made for all lanes at once.

    Raises:
        NeedsLoop: it may change something, or read what differs by lane otherwise than by its arguments.
    """
    root, region = current_root(), current_region()
    if root is None or region is None or root.outside is not None or not _may(f, root, error):
        raise error
    if any(map(_is_used_up, args)):
        raise error
    if isinstance(f, BuiltinFunctionType | type):
        args = tuple(map(listed, args))
    args, kwargs = _plain(args, error), {key: _plain(value, error) for key, value in kwargs.items()}
    fell_back(str(error))
    call, linked = following_views(lambda *a, **named: _listed(f, f(*a, **named)), args, kwargs)
    return made_of(linked(stack_results(_each_lane(call, args, kwargs))))


def _listed(f: Any, out: Any) -> Any:
    return list(out) if f in _LAZY else out


def made_of(value: Any) -> Any:
    """A result that the function may change, as if it had made it."""
    return made(value) if type(value) in (list, dict, set) else value


def _may(f: Any, root: Any, error: NeedsLoop) -> bool:
    if isinstance(f, FunctionType):
        return root.is_local(f) and not captures_lanes(f)
    return isinstance(f, BuiltinFunctionType | type | type(np.sum)) and f in _PURE


def _plain(value: Any, error: NeedsLoop) -> Any:
    """Arguments whose lanes can be told apart, and that no plain call could change for others to see."""
    if any(hasattr(leaf, "__next__") or _is_used_up(leaf) for leaf in leaves(value)):
        raise error
    value = unwrapped(value)
    for leaf in leaves(value):
        if isinstance(leaf, FunctionType):
            if captures_lanes(leaf):
                raise error
        elif not (isinstance(leaf, _PLAIN_LEAVES) or is_boxed(leaf)):
            raise error
    return narrow_tree(value)


def _is_used_up(value: Any) -> bool:
    """Whether reading the items of a value leaves none for the next reader."""
    return isinstance(value, LaneSequence) and value.once


def _each_lane(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    region: Any = current_region()
    lanes = region.lanes().tolist()
    out: list[Any] = []
    for place, index in enumerate(lanes):
        values = tuple(lane(arg, place) for arg in args), {key: lane(arg, place) for key, arg in kwargs.items()}
        set_region(None)
        try:
            with example(Example(index)):
                out.append(function(*values[0], **values[1]))
        except Exception as error:
            set_region(region)
            name_lane(error, place)
            raise
        finally:
            set_region(region)
    return out


CACHED: Any = type(functools.cache(len))


def cached(f: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call of what `functools.cache` made of a function that may see lanes.

    What it gave is kept with the region that made it: lanes of that region read it, lanes that have nothing yet make
    their own, and where some have it and others do not the function goes to the next way.

    Args:
        call: a call in converted code.

    Raises:
        NeedsLoop: the result, or what it is known by, is not one and the same for all lanes of the region.
    """
    root: Any = current_root()
    function = f.__wrapped__
    if root.convert(function) is not function and not captures_lanes(f):  # made outside: it sees its arguments only
        return library(f, args, kwargs)
    if is_batched_tree((args, kwargs)):
        return library(f, args, kwargs)
    if not all(map(_is_key, (*args, *kwargs.values()))):
        raise NeedsLoop("a cached function is called with an object that says itself what it is equal to")
    limits = f.cache_parameters()
    known = root.caches.get(id(f))
    if known is None:  # a cache of our own makes the same keys of arguments
        known = f, functools.lru_cache(None, limits["typed"])(lambda *args, **kwargs: [])
        root.caches[id(f)] = known
    results = known[1](*args, **kwargs)
    if limits["maxsize"] is not None and known[1].cache_info().currsize > limits["maxsize"]:
        raise NeedsLoop("a cache is full, so it forgets results")
    region: Any = current_region()
    lanes = region.lanes()
    for home, value in results:
        if home is region:
            return value
        if lanes_within(region, home) is not None:
            if not all(isinstance(leaf, (*IMMUTABLE, Batch, np.ndarray)) for leaf in _parts_of(value)):
                raise NeedsLoop("a cached object is read by some of the examples that it was made for")
            return narrowed_values((value,), region)[0]
        if np.isin(lanes, home.lanes()).any():
            raise NeedsLoop("a cached result that only some of these examples have")
    value = call(function, *args, **kwargs)
    for leaf in _parts_of(value):
        if isinstance(leaf, Batch):
            freeze(leaf)  # a write would have to be seen by all who read it here
    results.append((region, value))
    return value


def _parts_of(value: Any) -> list[Any]:
    """The leaves of a result; a container that may change is one."""
    return [part for each in value for part in _parts_of(each)] if type(value) is tuple else [value]


def _is_key(value: Any) -> bool:
    """Whether Python itself says what is equal to the value."""
    if type(value) is tuple:
        return all(map(_is_key, value))
    return isinstance(value, IMMUTABLE) or type(value).__hash__ is object.__hash__
