"""What converted code calls where it changes something outside: the runtime's functions, which say what they read.

Attributes and items of outside objects are looked up place by place (`Outside`). What any other function is given, it
is taken to read whole.
"""

import functools
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, narrowed
from autobatch.batches.objects import ObjectBatch
from autobatch.core.lanes import current_region
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop
from autobatch.facts.source import is_library
from autobatch.lockstep.boxes import BoxMethod
from autobatch.lockstep.branches import negation
from autobatch.lockstep.calls import call, create
from autobatch.lockstep.classes import convertible, found, getattribute, hook
from autobatch.lockstep.effects import put_attribute, update_attribute, update_object
from autobatch.lockstep.items import element, setattribute, update
from autobatch.lockstep.ownership import is_changeable
from autobatch.lockstep.places import MISSING, Place, Several
from autobatch.lockstep.rows import Choice, Held, gathered
from autobatch.lockstep.runtime import NAMES
from autobatch.lockstep.watched_items import METHODS, contains, delete_item, item, old_item, set_item
from autobatch.lockstep.watched_values import (
    Old,
    Updated,
    is_outside,
    known_with,
    old_at,
    outside_of_call,
    require_storable,
)

__all__ = ["WATCHING", "noting"]

_SHALLOW = frozenset({
    zip, enumerate, reversed, list, tuple, len, iter, next, isinstance, issubclass, type, callable, range, filter, map,
})  # fmt: skip
"""Functions that read containers, but no object in them."""
_KEEPING = frozenset({"append", "appendleft", "insert", "add", "setdefault", "__setitem__"})
"""Methods that keep what they are given, and do not look into it."""
_PLAIN_GETTERS = (object.__getattribute__, FunctionType.__getattribute__, type.__getattribute__)
_PLAIN_SETTERS = (object.__setattr__, type.__setattr__)


def _place(x: Any, name: str) -> Place | None:
    """The place of an attribute of an object from outside; None if code of a class decides what it is."""
    if name.startswith("__") and name.endswith("__"):
        return None
    kind = type(x)
    if kind is CellType:
        return outside_of_call().place(x, (name,))
    attribute = found(x if isinstance(x, type) else kind, name)
    is_slot = type(attribute) is MemberDescriptorType
    if kind.__setattr__ not in _PLAIN_SETTERS or kind.__getattribute__ not in _PLAIN_GETTERS:
        return None
    if found(kind, "__getattr__") is not None or not (is_slot or hasattr(x, "__dict__")):
        return None
    if hasattr(type(attribute), "__get__") and not is_slot:
        return None
    return outside_of_call().place(x, (name,))


def _now(x: Any, name: str) -> Any:
    return getattr(x, name, MISSING)


def _getattribute(x: Any, name: str) -> Any:
    outside = outside_of_call()
    if isinstance(x, Choice | ObjectBatch):
        _note_each(x, name)
        return getattribute(x, name)
    if isinstance(x, Batch | Held | super | np.ndarray) or is_boxed(x) or is_changeable(x):
        return known_with(getattribute(x, name), x)
    if name == "__dict__":
        raise NeedsLoop("the __dict__ of an object, beside a change of what is outside the call")
    if isinstance(x, ModuleType):
        outside.read_before(outside.place(vars(x), name), _lanes())
        return outside.know(getattribute(x, name))
    if isinstance(x, dict | list | set):
        outside.require(x)
    place = _place(x, name)
    if place is None:
        return known_with(getattribute(x, name), x)
    for kind in (x if isinstance(x, type) else type(x)).__mro__:
        if kind is not x and name in vars(kind) and type(vars(kind)[name]) is not MemberDescriptorType:
            outside.read_before(outside.place(kind, (name,)), _lanes())
    value = outside.read(place, lambda: outside.know(_now(x, name)) if outside.is_known(x) else _now(x, name))
    if value is MISSING or (type(value) is Several and any(each is MISSING for each in value)):
        return getattribute(x, name) if value is MISSING else _raise_missing(x, name)
    return gathered(value) if type(value) is Several else value


def _note_each(x: Any, name: str) -> None:
    """Lanes read an attribute of an object each."""
    outside, region = outside_of_call(), current_region()
    objects = x.here(region) if type(x) is Choice else narrowed(x).values
    for lane, each in zip(_lanes(), objects, strict=True):
        place = outside.place(each, (name,))
        if outside.has_own(place, [lane]):
            raise NeedsLoop(f"an attribute {name!r} of objects that differ by example, which the call has set")
        outside.read_before(place, [lane])


def _raise_missing(x: Any, name: str) -> Any:
    raise AttributeError(f"{type(x).__name__!r} object has no attribute {name!r}")


def _lanes() -> list[int]:
    region: Any = current_region()
    return region.lanes().tolist()


def _setattribute(value: Any, x: Any, name: str) -> None:
    if isinstance(value, Updated):
        value.put()
        return
    place = _place(x, name) if is_outside(x) and hook(x, "__setattr__") is None else None
    if place is None:
        setattribute(value, x, name)
        return
    require_storable(value)
    outside_of_call().write(place, value, functools.partial(put_attribute, x, name))


def _old_attribute(x: Any, name: str) -> Any:
    place = _place(x, name) if is_outside(x) and not isinstance(x, ModuleType) else None
    if place is not None:
        old = old_at([place], [_now(x, name)], lambda symbol, value: update_attribute(symbol, x, name, value))
        if old is not None:
            return old
    return _getattribute(x, name)


def _update(symbol: str, x: Any, value: Any) -> Any:
    """`x += value` and its like: the new value of the name."""
    outside = outside_of_call()
    if isinstance(x, Old):
        return Updated(x, symbol, value)
    if isinstance(x, np.ndarray | list) and is_outside(x) and (symbol == "+" or isinstance(x, np.ndarray)):
        updated = Updated(Old((), (x,), lambda sign, new: update_object(sign, x, new)[1]), symbol, value)
        updated.put()
        return x
    outside.note((x, value))
    return update(symbol, x, value)


def _calling(run: Callable[..., Any]) -> Callable[..., Any]:
    """`call` or `create`, for a function that reads its arguments whole unless it is the user's own."""

    def call_it(f: Any, *args: Any, **kwargs: Any) -> Any:
        outside = outside_of_call()
        kind = type(f)
        if f is getattr or f is hasattr or f is setattr:
            return _attribute_function(f, *args)
        if kind is BuiltinFunctionType and is_outside(f.__self__) and not kwargs:
            method = METHODS.get((type(f.__self__).__name__, f.__name__))
            if method is not None and type(f.__self__).__module__ in ("builtins", "collections"):
                return method(f.__self__, *args)
        if _is_own(f):
            return run(f, *args, **kwargs)
        if not (kind in (MethodType, BoxMethod) and f.__name__ in _KEEPING):
            deep = not (kind in (type, FunctionType, BuiltinFunctionType) and f in _SHALLOW)
            outside.note((getattr(f, "__self__", None), args, tuple(kwargs.values())), deep)
            outside.note(f if kind not in (BuiltinFunctionType, MethodType, BoxMethod) else None, deep)
        out = run(f, *args, **kwargs)
        return outside.give(out)

    return call_it


def _is_own(f: Any) -> bool:
    """Whether a call runs converted code, which says itself what it reads."""
    if isinstance(f, MethodType):
        return convertible(f.__func__)
    if isinstance(f, ObjectBatch):
        return all(map(_is_own, f.values))
    if isinstance(f, functools.partial):
        return _is_own(f.func)
    if isinstance(f, type):
        return f.__module__ != "builtins" and not issubclass(f, np.generic) and not _is_of_library(f)
    return convertible(f) or convertible(getattr(type(f), "__call__", None))  # noqa: B004  (not whether: which)


def _is_of_library(kind: type) -> bool:
    return is_library(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _attribute_function(f: Any, x: Any, name: Any, *rest: Any) -> Any:
    """`getattr`, `hasattr` and `setattr`."""
    if not isinstance(name, str):
        outside_of_call().note(x)
        return call(f, x, name, *rest)
    if f is setattr:
        return _setattribute(rest[0], x, name)
    try:
        value = _getattribute(x, name)
    except AttributeError:
        if f is hasattr or rest:
            return False if f is hasattr else rest[0]
        raise
    return True if f is hasattr else value


def noting(function: Callable[..., Any], deep: bool = True) -> Callable[..., Any]:
    """A function that reads whole what it is given."""

    @functools.wraps(function, updated=())
    def call_it(*args: Any, **kwargs: Any) -> Any:
        outside = outside_of_call()
        outside.note(args, deep)
        return outside.give(function(*args, **kwargs))

    return call_it


def _first_noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that reads its first argument; the others are values of names."""

    def call_it(first: Any, *rest: Any) -> Any:
        outside_of_call().note(first, False)
        return function(first, *rest)

    return call_it


def _chain(left: Any, symbols: tuple[str, ...], *rest: Callable[[], Any]) -> Any:
    def noted(operand: Callable[[], Any]) -> Callable[[], Any]:
        def value() -> Any:
            out = operand()
            outside_of_call().note(out)
            return out

        return value

    outside_of_call().note(left)
    return NAMES["_ab_chain"](left, symbols, *map(noted, rest))


def _evaluated(f: Any, *_: Any) -> Any:
    raise NeedsLoop(f"a call of {f.__name__}")


_READING = {
    "all", "any", "bound", "check", "fstring", "has", "has_place", "is_instance", "is_mapping", "is_sequence",
    "middle", "mod", "place", "rest", "set", "shared", "tuple", "neg", "pos", "invert", "add", "sub", "mul", "truediv",
    "floordiv", "pow", "matmul", "bitand", "bitor", "bitxor", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne",
}  # fmt: skip
_READING_FIRST = {"for", "loop", "each", "spread", "unpack"}
WATCHING: dict[str, Any] = {
    **NAMES,
    **{f"_ab_{name}": noting(NAMES[f"_ab_{name}"]) for name in _READING},
    **{f"_ab_{name}": noting(NAMES[f"_ab_{name}"], False) for name in ("dict", "list", "first")},
    **{f"_ab_{name}": _first_noted(NAMES[f"_ab_{name}"]) for name in _READING_FIRST},
    "_ab_call": _calling(call),
    "_ab_chain": _chain,
    "_ab_create": _calling(create),
    "_ab_delitem": delete_item,
    "_ab_element": lambda x, index: element(x, index) if isinstance(x, Held) else item(x, index),
    "_ab_evaluated": _evaluated,
    "_ab_getattr": _getattribute,
    "_ab_getitem": item,
    "_ab_in": contains,
    "_ab_not_in": lambda a, b: negation(contains(a, b)),
    "_ab_old_attr": _old_attribute,
    "_ab_old_item": old_item,
    "_ab_setattr": _setattribute,
    "_ab_setitem": set_item,
    "_ab_update": _update,
}
