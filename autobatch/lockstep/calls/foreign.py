"""Calls of code that is not converted: once for all lanes, or once for each."""

import functools
import operator
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, per_lane
from autobatch.batches.examples import following_views, stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.core.diagnostics import fell_back
from autobatch.core.op import is_boxed
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import NeedsLoop
from autobatch.facts.python_functions import ACTING_MODULES
from autobatch.facts.types import IMMUTABLE
from autobatch.lockstep.calls.functions import captures_lanes, converted, is_batched_tree, unwrapped
from autobatch.lockstep.regions.region import current_root, is_changeable, is_made, remember, require_own
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.sequences import LaneSequence

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
