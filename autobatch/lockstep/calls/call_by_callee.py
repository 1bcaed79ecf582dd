"""Function calls in converted code: `call` decides from the callee how lanes run it.

A user's own function is converted too; NumPy and this library accept batches directly; other library functions run
once per lane. A callee that could change something outside the call, or draw random numbers, is not run: `call`
raises NeedsLoop first.
"""

import dataclasses
import functools
import operator
import sys
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, per_lane, unwrap_shared
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import stack_results, tracking_views
from autobatch.core.current_region import check_time, current_region
from autobatch.core.diagnostics import is_library, warn_fallback
from autobatch.core.op import Op, is_boxed
from autobatch.core.pytree import leaves
from autobatch.errors import CALL_AFTER, DRAW_BEFORE, LOOK_UP, OWN_LENGTHS, RETURN_ARRAYS, SHOW_AFTER, NeedsLoop, Reason
from autobatch.facts.call_effects import Effect, effect_of, functions_of, may_act, method_effect
from autobatch.facts.numpy_functions import INSTEAD
from autobatch.facts.python_functions import ACTING_MODULES
from autobatch.facts.types import GENERATORS, IMMUTABLE, keeps_fields
from autobatch.lockstep.calls.builtin_functions import (
    HANDLERS,
    captures_lanes,
    is_batched_tree,
    is_instance,
    refuse_dicts,
    unwrap,
)
from autobatch.lockstep.calls.calls_on_items import OF_ITEMS, source_of
from autobatch.lockstep.lanes.region import current_root, register_made, require_made_here, require_unaliased
from autobatch.lockstep.regions.items import as_lane_arrays, inplace_update, is_per_lane
from autobatch.lockstep.values.lane_operators import convertible
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.sequences import LaneSequence
from autobatch.ops.rules.aliasing import zero_d
from autobatch.ops.rules.dispatch import UFUNCS, top_box
from autobatch.ops.rules.op_kinds import as_called
from autobatch.program.purity import only_computes

_DISPATCHER = type(np.sum)
_CACHED: Any = type(functools.cache(len))
_effect_of = functools.cache(effect_of)  # a look-up in three tables, saved in each call of a function of NumPy
_JOINING = functions_of("joins")
_NEW_ARRAY_FUNCTIONS = functions_of("creates") | {np.array, np.copy}
_KNOWN = (*IMMUTABLE, np.ndarray, list, dict, set, tuple)
_OF_ITEMS = (LaneList, LaneSequence, list, tuple)


def call(f: Any, *args: Any, **kwargs: Any) -> Any:
    """`f(*args, **kwargs)`, on values that may differ by lane."""
    kind = type(f)
    if kind is np.ufunc:
        if kwargs or len(args) != f.nin or any(isinstance(arg, _OF_ITEMS) for arg in args):
            return _call_numpy(f, args, kwargs)
        op = UFUNCS.get(f)
        return f(*args) if op is None else as_called(op, args)(*args)
    if kind is MethodType:
        return _call_method(f, args, kwargs)
    if kind is FunctionType or kind is _DISPATCHER or kind is BuiltinFunctionType or kind is type:
        handler = HANDLERS.get(f)
        root = current_root()
        if kind is BuiltinFunctionType and root is not None and f in OF_ITEMS:
            found = source_of(f, args, kwargs)
            if found is not None:
                return call(found[0], *found[1])
        if handler is not None:
            if kind is _DISPATCHER and root is not None:
                _check_written(_effect_of(f), f, args, kwargs, False)
            return handler(*args, **kwargs)
        if root is None:
            return f(*args, **kwargs)
        if kind is FunctionType:
            check_time()
            return _call_converted(root.convert(f), f, args, kwargs)
        if kind is _DISPATCHER:
            return _call_numpy(f, args, kwargs)
        return _call_builtin(f, args, kwargs) if kind is BuiltinFunctionType else _make_instance(f, args, kwargs)
    if current_region() is None:
        return f(*args, **kwargs)
    if isinstance(f, Batch):
        raise NeedsLoop("functions that differ by example")
    return _call_object(f, args, kwargs)


def call_for_writing(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Like `call`, for a result that is written to later: a newly made shared array becomes one array per lane."""
    out = call(f, *args, **kwargs)
    if isinstance(out, np.ndarray | PackedBatch) and (type(f) is np.ufunc or _returns_new_array(f)):
        known = (getattr(f, "__self__", None), *args)
        return as_lane_arrays(out) if all(out is not value for value in known) else out
    return out


def _returns_new_array(f: Any) -> bool:
    holder = getattr(f, "__self__", None)
    if isinstance(holder, np.ndarray | PackedBatch):
        return f.__name__ in ("copy", "astype")
    return f.__hash__ is not None and f in _NEW_ARRAY_FUNCTIONS


def _check_written(
    effect: Effect | None, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_method: bool = True
) -> None:
    """Raise NeedsLoop if a call would write to an argument that the current lanes may not write.

    Args:
        args: of a method its object is the first.
    """
    if effect is None or not (kwargs or len(args) > effect.reads_only):
        return
    what = f".{f.__name__}()" if is_method else f"np.{f.__name__}" if effect.always_writes else "writing (out=)"
    for given in effect.written(args, kwargs):
        for target in given if isinstance(given, tuple) else (given,):
            if isinstance(target, Batch):
                require_unaliased(target)
            elif is_method or isinstance(target, np.ndarray):
                require_made_here(target, what)


def _call_method(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    holder = f.__self__
    if type(holder) is LaneList:
        return _list_method(holder, f.__name__, args, kwargs)
    if (isinstance(holder, Batch) or is_boxed(holder)) and not convertible(f.__func__):
        _check_written(method_effect(np.ndarray, f.__name__), f, (holder, *args), kwargs)
        return f(*plain_arguments(args), **kwargs)
    function = f.__func__
    if isinstance(holder, tuple) and f.__name__ in ("_replace", "_asdict"):
        out = f(*args, **kwargs)
        return register_made(out) if type(out) is dict else out
    root = current_root()
    if root is None:
        return f(*args, **kwargs)
    if isinstance(holder, GENERATORS):
        raise NeedsLoop("a random generator is drawn from", instead=DRAW_BEFORE)
    if not isinstance(function, FunctionType) and not hasattr(type(function), "_ab_batch"):
        return call(function, holder, *args, **kwargs)  # a decorator's object, which Python calls with the holder
    wrapped = getattr(function, "__wrapped__", None) if hasattr(type(function), "_ab_batch") else None
    if wrapped is not None:
        args, kwargs = unwrap_shared(args, kwargs)
    ours = root.convert(wrapped if wrapped is not None else function)
    return _call_converted(ours, f, (holder, *args), kwargs) if ours is not None else call_plain(f, args, kwargs)


def _call_converted(ours: Any, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the lock-step form `ours` of a function; call `f` as a library function if `ours` is None."""
    return call_plain(f, args, kwargs) if ours is None else ours(*args, **kwargs)


def _list_method(holder: LaneList, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "extend":
        inplace_update("+", holder, args[0])
        return None
    return getattr(holder, name)(*args, **kwargs)


def _call_numpy(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if any(isinstance(arg, FunctionType | MethodType) for arg in (*args, *kwargs.values())):
        require_local(f, *args, *kwargs.values())
    refuse_dicts(args)
    effect = _effect_of(f)
    if (effect is not None and len(args) > effect.reads_only) or kwargs:
        _check_written(effect, f, args, kwargs, False)
        kwargs = {key: unwrap(value) for key, value in kwargs.items()}
    if f not in _JOINING and any(map(_is_list_of_lanes, (*args, *kwargs.values()))):
        args = tuple(
            HANDLERS[np.array](arg) if _is_list_of_lanes(arg) and not (place and type(arg) is tuple) else arg
            for place, arg in enumerate(args)
        )
        kwargs = {
            key: HANDLERS[np.array](arg) if _is_list_of_lanes(arg) and type(arg) is not tuple else arg
            for key, arg in kwargs.items()
        }
    out = f(*plain_arguments(args), **kwargs)
    return zero_d(out) if f is np.where or f is np.copy else out


def _is_list_of_lanes(value: Any) -> bool:
    """True for a list or tuple that holds batches or recorded arrays, which NumPy alone cannot turn into an array."""
    if not isinstance(value, _OF_ITEMS):
        return False
    return is_batched_tree(value) or top_box(value.items if isinstance(value, LaneList) else value) is not None


def _call_builtin(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    holder = f.__self__
    if holder is None or isinstance(holder, ModuleType):
        module = f.__module__ or ""
        if module == "numpy" or module.startswith("numpy._core"):
            return _call_numpy(f, args, kwargs)
        if module in ("math", "builtins") and not is_batched_tree((args, kwargs)):
            return f(*plain_arguments(args), **kwargs)
        return call_plain(f, args, kwargs)
    if isinstance(holder, GENERATORS):
        raise NeedsLoop("a random generator is drawn from", instead=DRAW_BEFORE)
    if isinstance(holder, np.ufunc):
        return _call_numpy(f, args, kwargs)
    effect = method_effect(type(holder), f.__name__)  # type: ignore[arg-type]
    _check_written(effect, f, (holder, *args), kwargs)
    if effect is not None and "self" in effect.writes:
        if isinstance(holder, np.ndarray | set) and is_batched_tree(args):
            raise NeedsLoop(f".{f.__name__}() of a value that differs by example")
        if isinstance(holder, dict) and args and (is_per_lane(args[0]) or type(args[0]) is LaneList):
            raise NeedsLoop("a key that differs by example", instead=OWN_LENGTHS)
        return f(*args, **kwargs)
    if not isinstance(holder, _KNOWN):  # a deque, an iterator …: any method may change it
        require_made_here(holder, f".{f.__name__}()")
        return f(*args, **kwargs)
    if not is_batched_tree((args, kwargs)):
        return f(*plain_arguments(args), **kwargs)
    function = getattr(np, f.__name__, None) if isinstance(holder, np.ndarray) else None
    if function is None:
        raise NeedsLoop(f".{f.__name__}() of a value that differs by example", instead=LOOK_UP)
    return call(function, holder, *args, **kwargs)


def _make_instance(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if cls.__module__ == "builtins":
        return call_plain(cls, args, kwargs) if is_batched_tree((args, kwargs)) else cls(*map(unwrap, args), **kwargs)
    if issubclass(cls, np.generic):
        if args and isinstance(args[0], Batch) and not args[0].ndim:  # type: ignore[attr-defined]
            return _cast(args[0], cls)
        return call_plain(cls, args, kwargs)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return cls(*args, **kwargs)
    if dataclasses.is_dataclass(cls) and keeps_fields(cls):
        if any(field.default_factory is not dataclasses.MISSING for field in dataclasses.fields(cls)):
            raise NeedsLoop(
                f"an object of {cls.__name__} is created, a dataclass with a default_factory", instead=RETURN_ARRAYS
            )
        return cls(*args, **kwargs)
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "collections":  # mutable, unlike those above
        raise NeedsLoop(f"a {cls.__name__} is made", instead=RETURN_ARRAYS)
    if is_library(getattr(module, "__file__", None) or ""):
        return call_plain(cls, args, kwargs)
    raise NeedsLoop(f"an object of {cls.__name__} is made", instead=RETURN_ARRAYS)


def _cast(x: Any, cls: Any) -> Any:
    return stack_results(per_lane(cls, (x,), {})) if x.scalar is not None else x.astype(cls)


def _call_object(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    root = current_root()
    assert root is not None
    if hasattr(type(f), "_ab_batch"):
        return _call_converted(root.convert(f.__wrapped__), f.__wrapped__, *unwrap_shared(args, kwargs))
    if isinstance(f, _CACHED) and root.convert(f.__wrapped__) is f.__wrapped__:
        raise NeedsLoop("a function of the call keeps its results")
    if isinstance(f, operator.methodcaller | operator.itemgetter | operator.attrgetter):
        raise NeedsLoop(f"a call of an operator.{type(f).__name__}")
    if isinstance(f, functools.partial):
        return call(f.func, *f.args, *args, **{**f.keywords, **kwargs})
    if isinstance(f, type):
        return _make_instance(f, args, kwargs)
    if isinstance(f, MethodDescriptorType) and args and is_instance(args[0], f.__objclass__) is True:
        return call(getattr(args[0], f.__name__), *args[1:], **kwargs)
    if isinstance(f, Op):
        return f(*args, **kwargs)
    function: Any = getattr(type(f), "__call__", None)  # noqa: B004  (not whether: which)
    function = function.__wrapped__ if hasattr(type(function), "_ab_batch") else function
    if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
        return call(MethodType(function, f), *args, **kwargs)
    name = getattr(f, "__name__", "")
    holder = getattr(f, "__self__", None)  # slot wrappers: x.__setitem__
    effect = method_effect(type(holder), name)  # type: ignore[arg-type]
    unknown = isinstance(f, MethodWrapperType) and not isinstance(holder, (*_KNOWN, type, ModuleType))
    if unknown or (effect is not None and "self" in effect.writes):  # unknown: e.g. an iterator
        require_made_here(holder, f".{name}()")
    return call_plain(f, args, kwargs)


_DATA = (*IMMUTABLE, np.ndarray, Batch)
_DRAWING = ("random", "secrets", "uuid", "numpy.random")
_CALLING = ("map", "jvp")  # those of ours that call what they are given, once for all examples
_OF_LISTS = ("itertools", "heapq", "bisect", "operator")  # these change lists, or call functions on items later


def plain_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments for NumPy and unconverted code, with `LaneList`s replaced by Python lists."""
    for arg in args:
        kind = type(arg)
        if kind is MaskedBatch or kind is np.ndarray:
            continue
        if kind is LaneList or kind is tuple or kind is list or isinstance(arg, LaneSequence):
            return tuple(map(unwrap, args))
    return args


def call_plain(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call unconverted code, once or once per lane; raises NeedsLoop if it might act outside the call."""
    module = getattr(f, "__module__", None) or ""
    name = getattr(f, "__qualname__", None) or type(f).__name__
    if module.split(".")[0] == "autobatch" and (isinstance(f, FunctionType) or not hasattr(f, "__wrapped__")):
        called = filter(callable, (*args, *kwargs.values())) if name in _CALLING else ()
        if not all(only_computes(each, {**kwargs, "": args}) for each in called):
            raise NeedsLoop(f"{name}() of a function that may change something")
        return f(*plain_arguments(args), **{key: unwrap(value) for key, value in kwargs.items()})
    if module in _DRAWING or module.startswith("numpy.random"):
        raise NeedsLoop(f"{module}.{name} draws random numbers", instead=DRAW_BEFORE)
    if module.strip("_") in _OF_LISTS:
        raise NeedsLoop(f"a call of {name}")
    if module.strip("_").split(".")[0] in ACTING_MODULES:
        raise NeedsLoop(f"{module}.{name} has effects outside the call", instead=SHOW_AFTER)
    if may_act(f):
        raise NeedsLoop(f"{name} of {module or 'a library'} may have unknown effects outside the call")
    if captures_lanes(f):  # what it keeps or compares differs between lanes
        raise NeedsLoop(f"{name} has captured values that differ by example")
    for value in (*args, *kwargs.values()):
        if not _is_data(value):
            raise NeedsLoop(f"{name}() of a {type(value).__name__}, which it may change or keep")
    if not is_batched_tree((args, kwargs)):
        return f(*args, **kwargs)
    require_local(f, getattr(f, "__wrapped__", None), f.pyfunc if isinstance(f, np.vectorize) else None)  # e.g. a cache
    instead = INSTEAD.get(f) or INSTEAD.get(type(f)) or CALL_AFTER
    warn_fallback(Reason(f"{name} cannot run batched on values that differ by example", instead=instead))
    call, linked = tracking_views(f, args, kwargs)
    out = linked(stack_results(per_lane(call, args, kwargs)))
    if isinstance(out, ObjectBatch) and isinstance(f, type) and any(map(_is_array, leaves((args, kwargs)))):
        raise NeedsLoop(f"a {name} that holds arrays which differ by example")  # copies would miss writes to them
    return out


def _is_data(value: Any) -> bool:
    """True if a value is an array or immutable."""
    return all(map(_is_data, value)) if type(value) is tuple else isinstance(value, _DATA) or is_boxed(value)


def require_local(f: Any, *functions: Any) -> None:
    """Raise NeedsLoop if a function that `f` calls may change something: `f` may call it out of order, or twice."""
    root = current_root()
    for each in functions if root is not None else ():
        if isinstance(each, FunctionType | MethodType) and not root.is_pure(each):  # type: ignore[union-attr]
            raise NeedsLoop(f"{getattr(f, '__name__', type(f).__name__)} calls a function that may change something")


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Batch) and bool(getattr(leaf, "ndim", 0))
