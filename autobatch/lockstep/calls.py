"""`call`: what a call in converted code does, by what is called.

A user's own function is converted too; NumPy and this library take batches as they are; what else has no form for
lanes runs once per lane; and what could change something outside the call, or draws random numbers, asks for the loop
before it has done anything.
"""

import dataclasses
import functools
import operator
import random
import sys
import sysconfig
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.forms import Batch
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.packed import PackedBatch
from autobatch.batches.results import per_lane, stack_results
from autobatch.core.fallback import fell_back
from autobatch.core.lanes import current_region, set_region
from autobatch.core.op import Op, is_boxed
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import NeedsLoop
from autobatch.lockstep.alone import run_alone
from autobatch.lockstep.functions import HANDLERS, captures_lanes, converted, is_batched_tree, unwrapped
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.items import own
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import each
from autobatch.lockstep.ownership import remember, require_own, require_whole
from autobatch.lockstep.regions import current_root
from autobatch.lockstep.sequences import LaneSequence
from autobatch.ops.inplace import zero_d
from autobatch.ops.table import UFUNCS

__all__ = ["call", "create", "is_library"]

_DISPATCHER = type(np.sum)
_RANDOM = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
_DRAWING = ("random", "secrets", "uuid", "numpy.random")
_OUTSIDE = (
    "os",
    "io",
    "_io",
    "posix",
    "sys",
    "logging",
    "warnings",
    "subprocess",
    "threading",
    "socket",
    "shutil",
    "tempfile",
)
_FRESH = {
    np.zeros, np.ones, np.empty, np.full, np.zeros_like, np.ones_like, np.empty_like, np.full_like, np.array, np.arange,
    np.eye, np.identity, np.linspace, np.copy,
}  # fmt: skip
_CHANGES = {
    list: {"append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "__setitem__", "__delitem__"},
    dict: {"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__", "move_to_end"},
    set: {"add", "discard", "remove", "pop", "clear", "update", "difference_update", "intersection_update",
          "symmetric_difference_update"},
    np.ndarray: {"fill", "sort", "put", "resize", "partition", "itemset", "setflags", "byteswap", "setfield"},
}  # fmt: skip
_WRITERS = {np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis}
_IMMUTABLE = (str, bytes, int, float, complex, type(None), np.generic, np.dtype, type, range, slice, frozenset)
_HARMLESS = (*_IMMUTABLE, np.ndarray, Batch)
_KNOWN = (*_IMMUTABLE, np.ndarray, list, dict, set, tuple)
_HOME = tuple({p for key in ("stdlib", "platstdlib", "purelib", "platlib") if (p := sysconfig.get_path(key))})
_PACKAGE = __file__[: __file__.rindex("lockstep")]
_library_files: dict[str, bool] = {}


def is_library(filename: str) -> bool:
    """Whether code of this file is not the user's: the standard library, an installed package, or this one."""
    known = _library_files.get(filename)
    if known is None:
        known = filename.startswith((_PACKAGE, *_HOME)) or "site-packages" in filename or filename.startswith("<frozen")
        _library_files[filename] = known
    return known


def call(f: Any, *args: Any, **kwargs: Any) -> Any:
    """`f(*args, **kwargs)`."""
    kind = type(f)
    if kind is np.ufunc:
        args = _plain_arguments(args)
        if kwargs:
            _check_out(kwargs)
            return f(*args, **kwargs)
        op = UFUNCS.get(f)
        return f(*args) if op is None or len(args) != f.nin else op(*args)
    if kind is MethodType:
        return _method(f, args, kwargs)
    if kind is FunctionType or kind is _DISPATCHER or kind is BuiltinFunctionType or kind is type:
        handler = HANDLERS.get(f)
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
    if current_region() is None or isinstance(f, Batch):
        return f(*args, **kwargs)
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


def _plain_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    for arg in args:
        kind = type(arg)
        if kind is MaskedBatch or kind is np.ndarray:
            continue
        if kind is LaneList or kind is tuple or kind is list or isinstance(arg, LaneSequence):
            return tuple(map(unwrapped, args))
    return args


def _check_out(kwargs: dict[str, Any]) -> None:
    out = kwargs.get("out")
    for target in out if isinstance(out, tuple) else (out,):
        if isinstance(target, Batch):
            require_whole(target)
        elif target is not None:
            require_own(target, "writing (out=)")


def _method(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    holder = f.__self__
    if type(holder) is LaneList:
        return _list_method(holder, f.__name__, args, kwargs)
    if isinstance(holder, Batch) or is_boxed(holder):
        if f.__name__ in _CHANGES[np.ndarray] and isinstance(holder, Batch):
            require_whole(holder)
        return f(*_plain_arguments(args), **kwargs)
    function = f.__func__
    root = current_root()
    if root is None:
        return f(*args, **kwargs)
    if isinstance(holder, _RANDOM):
        raise NeedsLoop("a random generator is drawn from")
    wrapped = getattr(function, "__wrapped__", None) if hasattr(type(function), "_ab_batch") else None
    ours = root.convert(wrapped if wrapped is not None else function)
    return _converted(ours, f, (holder, *args), kwargs) if ours is not None else _library(f, args, kwargs)


def _own(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _converted(current_root().convert(f), f, args, kwargs)  # type: ignore[union-attr]


def _converted(ours: Any, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of the user's own function, in its lock-step form."""
    if ours is None:
        return _library(f, args, kwargs)
    out = ours(*args, **kwargs)
    if type(out) is GeneratorType and out.gi_code is getattr(ours, "__code__", None):
        return LaneGenerator(out)
    return out


def _list_method(holder: LaneList, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "extend":
        each(args[0], holder.append)
        return None
    return getattr(holder, name)(*args, **kwargs)


def _numpy(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs:
        _check_out(kwargs)
        kwargs = {key: unwrapped(value) for key, value in kwargs.items()}
    if f in _WRITERS:
        if isinstance(args[0], Batch):
            require_whole(args[0])
        else:
            require_own(args[0], f"np.{f.__name__}")
    out = f(*_plain_arguments(args), **kwargs)
    return zero_d(out) if f is np.where or f is np.copy else out


def _builtin(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    holder = f.__self__
    if holder is None or isinstance(holder, ModuleType):
        module = f.__module__ or ""
        if module == "numpy" or module.startswith("numpy._core"):
            return _numpy(f, args, kwargs)
        if module in ("math", "builtins", "_operator") and not is_batched_tree((args, kwargs)):
            return f(*_plain_arguments(args), **kwargs)
        return _library(f, args, kwargs)
    if isinstance(holder, _RANDOM):
        raise NeedsLoop("a random generator is drawn from")
    for base, names in _CHANGES.items():
        if isinstance(holder, base) and f.__name__ in names:
            require_own(holder, f".{f.__name__}()")
            if base is np.ndarray and is_batched_tree(args):
                raise NeedsLoop("an array of the call takes a value per example")
            return f(*args, **kwargs)
    if not isinstance(holder, _KNOWN):  # a deque, an iterator …: any method may change it
        require_own(holder, f".{f.__name__}()")
        return f(*_plain_arguments(args), **kwargs)
    if not is_batched_tree((args, kwargs)):
        return f(*_plain_arguments(args), **kwargs)
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
        return _library(cls, args, kwargs) if is_batched_tree((args, kwargs)) else cls(*map(unwrapped, args), **kwargs)
    if issubclass(cls, np.generic):
        if args and isinstance(args[0], Batch) and not args[0].ndim:  # type: ignore[attr-defined]
            return _cast(args[0], cls)
        return _library(cls, args, kwargs)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return cls(*args, **kwargs)
    start = cls.__init__
    generated = getattr(getattr(start, "__code__", None), "co_filename", "") == "<string>"
    if dataclasses.is_dataclass(cls) and generated and not hasattr(cls, "__post_init__"):
        return remember(cls(*args, **kwargs))
    module = sys.modules.get(cls.__module__)
    if is_library(getattr(module, "__file__", None) or "") or cls.__module__ == "collections":
        if cls.__module__ == "collections" and not any(isinstance(a, Batch | LaneSequence) for a in args):
            return remember(cls(*map(unwrapped, args), **kwargs))
        return _library(cls, args, kwargs)
    if cls.__new__ is not object.__new__ or not isinstance(start, FunctionType | type(object.__init__)):
        raise NeedsLoop(f"an object of {cls.__name__} is made, which has its own __new__")
    out = remember(object.__new__(cls))
    if isinstance(start, FunctionType):
        call(start, out, *args, **kwargs)
    return out


def _cast(x: Any, cls: Any) -> Any:
    if x.scalar is not None:
        return stack_results(per_lane(cls, (x,), {}))
    return x.astype(cls)


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
    function = getattr(type(f), "__call__", None)  # noqa: B004  (not whether: which)
    if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
        return call(MethodType(function, f), *args, **kwargs)
    name = getattr(f, "__name__", "")
    for base, changing in _CHANGES.items():  # slot wrappers: x.__setitem__
        if isinstance(getattr(f, "__self__", None), base) and name in changing:
            require_own(f.__self__, f".{name}()")
    return _library(f, args, kwargs)


def _library(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of code that is not converted."""
    module = getattr(f, "__module__", None) or ""
    name = getattr(f, "__qualname__", None) or type(f).__name__
    if module.split(".")[0] == "autobatch" and not hasattr(f, "__wrapped__"):
        return f(*_plain_arguments(args), **{key: unwrapped(value) for key, value in kwargs.items()})
    if module in _DRAWING or module.startswith("numpy.random"):
        raise NeedsLoop(f"{module}.{name} draws random numbers")
    if module.split(".")[0] in _OUTSIDE:
        raise NeedsLoop(f"{module}.{name} acts outside the call")
    given, args = args, tuple(map(unwrapped, args))
    kwargs = {key: unwrapped(value) for key, value in kwargs.items()}
    batched = is_batched_tree((args, kwargs))
    for leaf in leaves((args, kwargs)):
        if isinstance(leaf, FunctionType | MethodType) and batched:
            raise NeedsLoop(f"{name} calls a function on values that differ by example")
        if not (isinstance(leaf, _HARMLESS) or is_boxed(leaf) or callable(leaf)):
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
    if captures_lanes(f):
        raise NeedsLoop(f"{name} has captured values that differ by example")
    fell_back(f"{name} has no form for values that differ by example")
    results = per_lane(f, args, kwargs)
    if changeable and all(result is None for result in results):
        raise NeedsLoop(f"{name}() returns nothing, so it may have changed its argument")
    return stack_results(results)


def _may_change(f: Any) -> bool:
    module = (getattr(f, "__module__", None) or "").split(".")[0]
    return module in ("heapq", "_heapq", "bisect", "_bisect", "random", "operator", "_operator")
