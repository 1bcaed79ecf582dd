"""`call`: what a call in converted code does, by what is called.

A user's own function is converted too; NumPy and this library take batches as they are; what else has no form for
lanes runs once per lane; and what could change something outside the call, or draws random numbers, asks for the loop
before it has done anything.
"""

import dataclasses
import functools
import inspect
import operator
import random
import sys
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, narrowed, per_lane
from autobatch.batches.examples import stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.lanes import current_region, set_region
from autobatch.core.op import Op, is_boxed
from autobatch.errors import NeedsLoop
from autobatch.facts.calls import READS_ONLY, SEQUENCE_FUNCTIONS, effect_of, method_effect
from autobatch.facts.source import is_library
from autobatch.lockstep.alone import run_alone
from autobatch.lockstep.boxes import BoxMethod, LaneBox
from autobatch.lockstep.choosing import each_object
from autobatch.lockstep.classes import class_of, convertible, getattribute
from autobatch.lockstep.foreign import IMMUTABLE, library, plain_arguments
from autobatch.lockstep.functions import is_batched_tree, shared, unwrapped
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.items import getitem, own, update
from autobatch.lockstep.iterating import HANDLERS
from autobatch.lockstep.joins import meet
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.ownership import remember, require_own, require_whole
from autobatch.lockstep.regions import Subset, current_root
from autobatch.lockstep.rows import Choice
from autobatch.lockstep.sequences import LaneSequence
from autobatch.ops.rules.aliasing import zero_d
from autobatch.ops.rules.dispatch import UFUNCS, top_box

__all__ = ["call", "create"]

_DISPATCHER = type(np.sum)
_RANDOM = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
_FRESH = {
    np.zeros, np.ones, np.empty, np.full, np.zeros_like, np.ones_like, np.empty_like, np.full_like, np.array, np.arange,
    np.eye, np.identity, np.linspace, np.copy,
}  # fmt: skip
_FIXED = (*IMMUTABLE, tuple, ModuleType)
_READS = {
    "get", "keys", "values", "items", "index", "count", "copy", "union", "intersection", "difference", "issubset",
    "issuperset", "isdisjoint", "symmetric_difference", "tolist", "item", "sum", "mean", "max", "min", "astype",
}  # fmt: skip
_KNOWN = (*IMMUTABLE, np.ndarray, list, dict, set, tuple)


def call(f: Any, *args: Any, **kwargs: Any) -> Any:
    """`f(*args, **kwargs)`."""
    kind = type(f)
    if kind is np.ufunc or kind is _DISPATCHER:
        for place, arg in enumerate(args):
            if type(arg) is Choice:
                return each_object(arg, lambda own: call(f, *args[:place], own, *args[place + 1 :], **kwargs))  # noqa: B023
    if kind is np.ufunc:
        args = _array_arguments(args)
        if kwargs or len(args) > f.nin:
            _check_written(f, args, kwargs)
            return f(*args, **kwargs)
        op = UFUNCS.get(f)
        return f(*args) if op is None or len(args) != f.nin else op(*args)
    if kind is MethodType:
        return _method(f, args, kwargs)
    if f is dataclasses.replace and current_region() is not None:
        return _replaced(*args, **kwargs)
    if kind is FunctionType or kind is _DISPATCHER or kind is BuiltinFunctionType or kind is type:
        handler = HANDLERS.get(f)
        if args and type(args[0]) is Choice and handler is not None:
            return each_object(args[0], lambda each: call(f, each, *args[1:], **kwargs))
        root = current_root()
        if handler is not None or (kind is FunctionType and root is not None):
            region, journal = current_region(), root and root.journal
            try:
                return handler(*args, **kwargs) if handler is not None else _own(f, args, kwargs)
            except NeedsLoop as error:
                if root is None:
                    raise
                set_region(region)
                root.journal = journal
                return run_alone(f, args, kwargs, error)
        if root is None:
            return f(*args, **kwargs)
        if kind is _DISPATCHER:
            return _numpy(f, args, kwargs)
        if kind is BuiltinFunctionType:
            return _builtin(f, args, kwargs)
        return _instance(f, args, kwargs)
    if current_region() is None or kind is BoxMethod:
        return f(*args, **kwargs)
    if kind is Choice:
        return each_object(f, lambda each: call(each, *args, **kwargs))
    if isinstance(f, Batch):
        return _each_function(f, args, kwargs)
    return _object(f, args, kwargs)


def create(f: Any, *args: Any, **kwargs: Any) -> Any:
    """A call whose result the function is going to write into: a fresh array becomes one per lane."""
    out = call(f, *args, **kwargs)
    if isinstance(out, np.ndarray | PackedBatch) and (type(f) is np.ufunc or _is_fresh(f)):
        known = (getattr(f, "__self__", None), *args)
        return own(out) if all(out is not value for value in known) else out
    return out


def _is_fresh(f: Any) -> bool:
    holder = getattr(f, "__self__", None)
    if isinstance(holder, np.ndarray | PackedBatch):
        return f.__name__ in ("copy", "astype")
    return f.__hash__ is not None and f in _FRESH


def _array_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a ufunc: lists of per-example values as arrays."""
    for arg in args:
        kind = type(arg)
        if kind is not MaskedBatch and kind is not np.ndarray and _is_list_of_lanes(arg):
            args = tuple(HANDLERS[np.array](each) if _is_list_of_lanes(each) else each for each in args)
            break
    return plain_arguments(args)


def _check_written(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise NeedsLoop if what a function of NumPy's is going to write may not be written now."""
    effect = effect_of(f)
    for given in () if effect is None else effect.written(args, kwargs):
        for target in given if isinstance(given, tuple) else (given,):
            if isinstance(target, Batch):
                require_whole(target)
            elif isinstance(target, np.ndarray):
                require_own(target, f"np.{f.__name__}" if effect.always_writes else "writing (out=)")  # type: ignore[union-attr]


def _method(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    holder = f.__self__
    if type(holder) is LaneList:
        return _list_method(holder, f.__name__, args, kwargs)
    if (isinstance(holder, Batch) or is_boxed(holder)) and not convertible(f.__func__):
        effect = method_effect(np.ndarray, f.__name__)
        for target in () if effect is None else effect.written((holder, *args), kwargs):
            if isinstance(target, Batch):
                require_whole(target)
        return f(*plain_arguments(args), **kwargs)
    function = f.__func__
    if isinstance(holder, tuple) and f.__name__ in ("_replace", "_asdict"):
        out = f(*args, **kwargs)
        return LaneBox(out) if type(out) is dict and current_region() is not None else out
    root = current_root()
    if root is None:
        return f(*args, **kwargs)
    if isinstance(holder, _RANDOM):
        raise NeedsLoop("a random generator is drawn from")
    wrapped = getattr(function, "__wrapped__", None) if hasattr(type(function), "_ab_batch") else None
    ours = root.convert(wrapped if wrapped is not None else function)
    return _converted(ours, f, (holder, *args), kwargs) if ours is not None else library(f, args, kwargs)


def _own(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _converted(current_root().convert(f), f, args, kwargs)  # type: ignore[union-attr]


def _converted(ours: Any, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of the user's own function, in its lock-step form."""
    if ours is None:
        return library(f, args, kwargs)
    out = ours(*args, **kwargs)
    if type(out) is GeneratorType and out.gi_code is getattr(ours, "__code__", None):
        return LaneGenerator(out)
    return out


def _list_method(holder: LaneList, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "extend":
        update("+", holder, args[0])
        return None
    if name == "sort" and kwargs.get("key") is not None:
        holder.set(slice(None), HANDLERS[sorted](holder, **kwargs))
        return None
    return getattr(holder, name)(*args, **kwargs)


def _numpy(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) > READS_ONLY.get(f, 0):
        _check_written(f, args, kwargs)
        kwargs = {key: unwrapped(value) for key, value in kwargs.items()}
    if f not in SEQUENCE_FUNCTIONS and any(map(_is_list_of_lanes, args)):
        args = tuple(
            HANDLERS[np.array](arg) if _is_list_of_lanes(arg) and not (place and type(arg) is tuple) else arg
            for place, arg in enumerate(args)
        )
    out = f(*plain_arguments(args), **kwargs)
    return zero_d(out) if f is np.where or f is np.copy else out


def _is_list_of_lanes(value: Any) -> bool:
    """Whether an argument is a list or tuple that NumPy would make an array of, but for the arrays of ours in it."""
    if not isinstance(value, LaneList | list | tuple):
        return False
    return is_batched_tree(value) or top_box(value.items if isinstance(value, LaneList) else value) is not None


def _builtin(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    holder = f.__self__
    if holder is None or isinstance(holder, ModuleType):
        module = f.__module__ or ""
        if module == "numpy" or module.startswith("numpy._core"):
            return _numpy(f, args, kwargs)
        if module in ("math", "builtins", "_operator") and not is_batched_tree((args, kwargs)):
            return f(*plain_arguments(args), **kwargs)
        return library(f, args, kwargs)
    if isinstance(holder, _RANDOM):
        raise NeedsLoop("a random generator is drawn from")
    if isinstance(holder, type) and f.__name__ == "fromkeys" and issubclass(holder, dict):
        keys, *value = args
        pairs = [(key, value[0] if value else None) for key in shared(keys)]
        return call(holder, pairs) if holder is not dict else LaneBox(dict(pairs))
    if isinstance(holder, np.ufunc):
        return _numpy(f, args, kwargs)
    effect = method_effect(type(holder), f.__name__)
    written = [] if effect is None else effect.written((holder, *args), kwargs)
    for target in written:
        if isinstance(target, Batch):
            require_whole(target)
        else:
            require_own(target, f".{f.__name__}()")
    if effect is not None and "self" in effect.writes:
        if isinstance(holder, np.ndarray) and is_batched_tree(args):
            raise NeedsLoop("an array of the call takes a value per example")
        return f(*args, **kwargs)
    if not isinstance(holder, _KNOWN):  # a deque, an iterator …: any method may change it
        require_own(holder, f".{f.__name__}()")
        return f(*plain_arguments(args), **kwargs)
    if not is_batched_tree((args, kwargs)):
        return f(*plain_arguments(args), **kwargs)
    if isinstance(holder, np.ndarray):
        function = getattr(np, f.__name__, None)
        if function is not None:
            return call(function, holder, *args, **kwargs)
    name = f.__name__
    args = tuple(map(unwrapped, args))
    return stack_results(per_lane(lambda x, rest, named: getattr(x, name)(*rest, **named), (holder, args, kwargs), {}))


def _instance(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if issubclass(cls, BaseException):
        args, named = tuple(map(unwrapped, args)), {key: unwrapped(value) for key, value in kwargs.items()}
        return stack_results(per_lane(cls, args, named)) if is_batched_tree((args, named)) else cls(*args, **named)
    if cls.__module__ == "builtins":
        return library(cls, args, kwargs) if is_batched_tree((args, kwargs)) else cls(*map(unwrapped, args), **kwargs)
    if issubclass(cls, np.generic):
        if args and isinstance(args[0], Batch) and not args[0].ndim:  # type: ignore[attr-defined]
            return _cast(args[0], cls)
        return library(cls, args, kwargs)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return cls(*args, **kwargs)
    start = cls.__init__
    generated = getattr(getattr(start, "__code__", None), "co_filename", "") == "<string>"
    if dataclasses.is_dataclass(cls) and generated:
        return _dataclass(cls, args, kwargs)
    module = sys.modules.get(cls.__module__)
    if is_library(getattr(module, "__file__", None) or "") or cls.__module__ == "collections":
        if cls.__module__ == "collections" and not any(isinstance(a, Batch | LaneSequence) for a in args):
            return remember(cls(*map(unwrapped, args), **kwargs))
        return library(cls, args, kwargs)
    if cls.__new__ is not object.__new__ or not isinstance(start, FunctionType | type(object.__init__)):
        raise NeedsLoop(f"an object of {cls.__name__} is made, which has its own __new__")
    out = remember(object.__new__(cls))
    if isinstance(start, FunctionType):
        call(start, out, *args, **kwargs)
    return out


def _dataclass(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An object of a dataclass: what its fields' factories and `__post_init__` do is converted."""
    fields = dataclasses.fields(cls)
    finish = getattr(cls, "__post_init__", None)
    if finish is None and all(field.default_factory is dataclasses.MISSING for field in fields):
        out = cls(*args, **kwargs)
        return out if cls.__dataclass_params__.frozen else remember(out)
    if len(cls.__dataclass_fields__) > len(fields) or "__setattr__" in vars(cls):
        raise NeedsLoop(f"an object of {cls.__name__} is made, a dataclass with InitVar, ClassVar or frozen")
    given = inspect.signature(cls.__init__).bind(None, *args, **kwargs).arguments
    out = remember(object.__new__(cls))
    for field in fields:
        if field.init and field.name in given:
            setattr(out, field.name, given[field.name])
        elif field.default is not dataclasses.MISSING:
            setattr(out, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            setattr(out, field.name, call(field.default_factory))
    if finish is not None:
        call(finish, out)
    return out


def _replaced(old: Any, /, **changes: Any) -> Any:
    """`dataclasses.replace`."""
    kind = class_of(old)
    if kind is None and type(old) is Choice:
        return each_object(old, lambda each: _replaced(each, **changes))
    if kind is None:
        raise NeedsLoop("dataclasses.replace of objects of different classes")
    fields = dataclasses.fields(kind)
    for field in fields:
        if not field.init and field.name in changes:
            raise ValueError(f"field {field.name} is declared with init=False, it cannot be specified with replace()")
    kept = {field.name: getattribute(old, field.name) for field in fields if field.init and field.name not in changes}
    return call(kind, **kept, **changes)


def _cast(x: Any, cls: Any) -> Any:
    if x.scalar is not None:
        return stack_results(per_lane(cls, (x,), {}))
    return x.astype(cls)


def _each_function(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a function, or of an object's method, that differs by example: each in a region of its lanes."""
    f = narrowed(f)
    region: Any = current_region()
    groups: dict[Any, list[int]] = {}
    functions = [_bound(each) for each in getattr(f, "values", ())]
    for lane, function in enumerate(functions):
        inner = getattr(function, "__func__", function)
        holder = getattr(function, "__self__", None)
        if isinstance(inner, BuiltinFunctionType) and holder is not None and not isinstance(holder, _FIXED):
            if function.__name__ not in _READS:
                raise NeedsLoop(f".{function.__name__}() of objects that differ by example")
            return f(*map(unwrapped, args), **{key: unwrapped(value) for key, value in kwargs.items()})
        groups.setdefault((id(inner), type(inner)), []).append(lane)
    if not any(issubclass(kind, FunctionType | type) or hasattr(kind, "_ab_batch") for _, kind in groups):
        return f(*map(unwrapped, args), **{key: unwrapped(value) for key, value in kwargs.items()})
    pieces = []
    for lanes in groups.values():
        part = Subset(region, region.lanes()[lanes])
        first = functions[lanes[0]]
        holders = [getattr(functions[lane], "__self__", None) for lane in lanes]
        set_region(part)
        if isinstance(first, MethodType) and any(holder is not holders[0] for holder in holders):
            first = MethodType(first.__func__, ObjectBatch(holders))
        pieces.append((part, (call(first, *args, **kwargs),)))
    out = meet(pieces, region)[1][0]
    set_region(region)
    return out


def _bound(f: Any) -> Any:
    """An object that is called, as the method that its class has for that."""
    function: Any = getattr(type(f), "__call__", None)  # noqa: B004  (not whether: which)
    return MethodType(function, f) if convertible(function) else f


def _object(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    root = current_root()
    assert root is not None
    if hasattr(type(f), "_ab_batch"):
        return _converted(root.convert(f.__wrapped__), f.__wrapped__, args, kwargs)
    if isinstance(f, functools.partial):
        return call(f.func, *f.args, *args, **{**f.keywords, **kwargs})
    if isinstance(f, type):
        return _instance(f, args, kwargs)
    if isinstance(f, MethodDescriptorType) and args:
        return call(getattr(args[0], f.__name__), *args[1:], **kwargs)
    if isinstance(f, Op):
        return f(*args, **kwargs)
    if isinstance(f, operator.itemgetter):
        keys = f.__reduce__()[1]
        found = [getitem(args[0], key) for key in keys]
        return found[0] if len(keys) == 1 else tuple(found)
    if isinstance(f, operator.attrgetter):
        found = [functools.reduce(getattribute, path.split("."), args[0]) for path in f.__reduce__()[1]]
        return found[0] if len(found) == 1 else tuple(found)
    function = getattr(type(f), "__call__", None)  # noqa: B004  (not whether: which)
    if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
        return call(MethodType(function, f), *args, **kwargs)
    name = getattr(f, "__name__", "")
    holder = getattr(f, "__self__", None)  # slot wrappers: x.__setitem__
    effect = method_effect(type(holder), name)
    if effect is not None and "self" in effect.writes:
        require_own(holder, f".{name}()")
    return library(f, args, kwargs)
