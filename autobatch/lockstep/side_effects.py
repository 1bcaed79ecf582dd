"""Effects: `x.n += v`, `d[key] += v`, `log.append(v)` on what was there before the call, made when the call ends.

The loop over the examples makes them one example after the other, so an example sees what those before it have changed.
Here they are noted while the call runs, and made example by example at its end. That comes to the same as long as the
call reads nothing that it changes; where it does, and for every other change of what is outside, the call is not for
lock-step (`NeedsLoop`), and nothing has happened yet.

A call is not watched at first. A change of what it did not make raises `OutsideError`, and the call runs again with the
names of `WATCHING`: the runtime's functions, which also say what they read.
"""

import dataclasses
import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, lane, narrow_tree
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.core.current import current_region, set_region
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop
from autobatch.lockstep.calls.call import call, create
from autobatch.lockstep.regions.region import is_made
from autobatch.lockstep.runtime import NAMES
from autobatch.lockstep.values.items import getitem, setattribute, setitem, update
from autobatch.lockstep.values.lane_operators import PLAIN, convertible, found, getattribute, refuse_hooks
from autobatch.lockstep.values.lists import LaneList

_DICTS = (dict, Counter, defaultdict)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_NUMBERS = (int, float, complex, bool, str, bytes, np.generic, type(None))
_SHALLOW = frozenset({zip, enumerate, reversed, list, tuple, len, isinstance, issubclass, type, callable, range})
"""Functions that read containers, but no object in them."""
_IN_PLACE = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv, "//": operator.ifloordiv,
    "%": operator.imod, "**": operator.ipow, "@": operator.imatmul, "&": operator.iand, "|": operator.ior,
    "^": operator.ixor, "<<": operator.ilshift, ">>": operator.irshift,
}  # fmt: skip
_ATTRIBUTE, _ITEM, _APPEND = "an attribute", "an item", "a list"


class SideEffect:
    """One effect, of the lanes of a region.

    Attributes:
        kind: what is changed; target: the object, dict or list; key: the attribute's name, or the item's key.
        symbol: the operator; value: its operand, or what is appended.
    """

    __slots__ = ("key", "kind", "region", "symbol", "target", "value")

    def __init__(self, kind: str, target: Any, key: Any, symbol: str = "", value: Any = None) -> None:
        self.kind = kind
        self.target = target
        self.key = key
        self.symbol = symbol
        self.value = value
        self.region: Any = current_region()

    @property
    def named(self) -> str:
        what = f"a {type(self.target).__name__}"
        if self.kind is _APPEND:
            return what
        return f"attribute {self.key!r} of {what}" if self.kind is _ATTRIBUTE else f"an item of {what}"

    def with_operand(self, symbol: str, value: Any) -> "SideEffect":
        return SideEffect(self.kind, self.target, self.key, symbol, value)


class Outside:
    """The reads and changes that a call makes outside of it.

    Attributes:
        effects: what is to be done at the end.
        reads: the ids of containers that were read, and pairs (id of an object, name of an attribute).
        changed: as `reads`, what effects change; each is an effect on it.
        reads_objects: whether an object was given to code that may read any attribute of it.
    """

    def __init__(self) -> None:
        self.effects: list[SideEffect] = []
        self.reads: dict[Any, Any] = {}  # the values keep the objects, so that their ids stay theirs
        self.changed: dict[Any, SideEffect] = {}
        self.reads_objects = False

    def read_attribute(self, x: Any, name: str) -> None:
        """Note that an attribute was read."""
        self.reads[id(x), name] = x
        self._check((id(x), name))

    def read(self, value: Any, deep: bool = True) -> None:
        """Note that code which says nothing itself reads a value.

        Args:
            deep: whether it reads what is in the value as well.
        """
        if type(value) is LaneList:
            value = value.items
        elif isinstance(value, _CONTAINERS):
            if id(value) in self.reads and not deep:
                return
            self.reads[id(value)] = value
            self._check(id(value))
        else:
            if not (type(value) in PLAIN or isinstance(value, Batch | FunctionType | type) or is_boxed(value)):
                self.reads_objects = self.reads_objects or not is_made(value)
                self._check()
            return
        if deep:
            for each in [*value, *value.values()] if isinstance(value, dict) else value:
                self.read(each)

    def will(self, effect: SideEffect) -> None:
        """Note an effect."""
        leaves = effect.value if isinstance(effect.value, tuple) else (effect.value,)
        for leaf in leaves:
            if not (isinstance(leaf, (*_NUMBERS, np.ndarray, MaskedBatch)) or is_boxed(leaf)):
                raise NeedsLoop(f"{effect.kind} from outside the call gets a {type(leaf).__name__}")
        if id(effect.target) in effect.region.root.picked:
            raise NeedsLoop(f"a change of a {type(effect.target).__name__} that differs by example")
        self.effects.append(effect)
        place = (id(effect.target), effect.key) if effect.kind is _ATTRIBUTE else id(effect.target)
        self.changed[place] = effect
        self._check(place)

    def _check(self, place: Any = None) -> None:
        """Raise NeedsLoop at once for what is read and changed: a loop may wait for the change."""
        effect = self.changed.get(place)
        if effect is None or place not in self.reads:
            if not self.reads_objects:
                return
            effect = next((each for each in self.effects if each.kind is _ATTRIBUTE), None)
        if effect is not None:
            raise NeedsLoop(f"{effect.named} from outside the call is changed by an example and read by it or another")

    def commit(self, size: int) -> None:
        """Make the effects, example by example.

        Raises:
            NeedsLoop: one of them raises; nothing was changed.
        """
        turns = self._turns(size)
        new: dict[Any, tuple[SideEffect, Any]] = {}
        try:
            for turn in turns:
                for effect, key, value in turn:
                    place = effect.kind, id(effect.target), key
                    before = new[place][1] if place in new else _now(effect, key)
                    after = [*before, value] if effect.kind is _APPEND else _IN_PLACE[effect.symbol](before, value)
                    new[place] = SideEffect(effect.kind, effect.target, key), after
        except NeedsLoop:
            raise
        except Exception as error:
            raise NeedsLoop(f"a change of what is outside the call ({type(error).__name__}: {error})") from error
        for effect, value in new.values():
            if effect.kind is _ATTRIBUTE:
                setattr(effect.target, effect.key, value)
            elif effect.kind is _ITEM:
                effect.target[effect.key] = value
            else:
                effect.target.extend(value)

    def _turns(self, size: int) -> list[list[tuple[SideEffect, Any, Any]]]:
        """The effects of each example, in order, with their keys and values."""
        here = current_region()
        turns: list[list[tuple[SideEffect, Any, Any]]] = [[] for _ in range(size)]
        copies: dict[tuple[int, int], Any] = {}
        try:
            for effect in self.effects:
                set_region(effect.region)
                key, value = narrow_tree(effect.key), narrow_tree(effect.value)
                for place, index in enumerate(effect.region.lanes().tolist()):
                    own = _own(lane(value, place), effect.value, index, copies)
                    turns[index].append((effect, lane(key, place), own))
        finally:
            set_region(here)
        return turns


def _own(value: Any, source: Any, index: int, copies: dict[tuple[int, int], Any]) -> Any:
    """What an example leaves outside: arrays of its own, and one array where the same one is left twice.

    Args:
        value: of the example; source: of all of them. copies: what was left so far, by the source and the example.
    """
    if type(value) is tuple:
        return tuple([_own(*each, index, copies) for each in zip(value, source, strict=True)])
    if type(value) is not np.ndarray:
        return value
    known = copies.get((id(source), index))
    if known is None:
        known = copies[id(source), index] = value.copy()
    return known


def _now(effect: SideEffect, key: Any) -> Any:
    """The target of an effect, as it was before the call."""
    target = effect.target
    if effect.kind is _APPEND:
        return []
    if effect.kind is _ATTRIBUTE:
        value = getattr(target, key)
    elif isinstance(target, defaultdict) and key not in target:
        if target.default_factory not in (int, float):
            raise NeedsLoop("a dict that makes its own values")
        value = target.default_factory()
    else:
        value = target[key]
    if not isinstance(value, _NUMBERS):
        raise NeedsLoop(f"a {type(value).__name__} from outside the call is changed")
    return value


def _watch() -> Outside:
    region: Any = current_region()
    return region.root.outside


def _is_outside(x: Any) -> bool:
    return not is_made(x)


def _old_attribute(x: Any, name: str) -> Any:
    kind = type(x)
    attribute = found(kind, name)
    if kind in PLAIN or kind is ObjectBatch or is_boxed(x) or isinstance(x, type | super) or not _is_outside(x):
        return getattribute(x, name)
    refuse_hooks(x, "__setattr__", "__getattr__", "__getattribute__")
    if hasattr(type(attribute), "__set__") and type(attribute) is not MemberDescriptorType:
        return getattribute(x, name)
    return SideEffect(_ATTRIBUTE, x, name)


def _old_item(x: Any, index: Any) -> Any:
    if type(x) in _DICTS and _is_outside(x):
        return SideEffect(_ITEM, x, index)
    return _getitem(x, index)


def _getitem(x: Any, index: Any) -> Any:
    _watch().read(x, False)
    return getitem(x, index)


def _update(symbol: str, x: Any, value: Any) -> Any:
    if isinstance(x, SideEffect):
        return x.with_operand(symbol, value)
    _watch().read((x, value))
    return update(symbol, x, value)


def _setattribute(value: Any, x: Any, name: str) -> None:
    if isinstance(value, SideEffect):
        _watch().will(value)
    else:
        setattribute(value, x, name)


def _setitem(value: Any, x: Any, index: Any) -> None:
    if isinstance(value, SideEffect):
        _watch().will(value)
    else:
        setitem(value, x, index)


def _calling(run: Callable[..., Any]) -> Callable[..., Any]:
    """`call` or `create`, for a function that reads its arguments whole unless it is the user's own."""

    def call_it(f: Any, *args: Any, **kwargs: Any) -> Any:
        kind = type(f)
        holder = getattr(f, "__self__", None) if kind is BuiltinFunctionType else None
        if type(holder) is list and f.__name__ == "append" and len(args) == 1 and _is_outside(holder):
            return _watch().will(SideEffect(_APPEND, holder, None, "", args[0]))
        if (f is getattr or f is hasattr) and isinstance(args[1], str):
            _watch().read_attribute(args[0], args[1])
        elif not _is_own(f):
            deep = not (kind in (type, FunctionType, BuiltinFunctionType) and f in _SHALLOW)
            holder = getattr(f, "__self__", None)
            _watch().read((holder if not isinstance(holder, ModuleType) else None, args, tuple(kwargs.values())), deep)
            if not deep:
                for arg in args:
                    _watch().read(arg, False)
        return run(f, *args, **kwargs)

    return call_it


def _is_own(f: Any) -> bool:
    """Whether a call runs converted code, which says itself what it reads."""
    if isinstance(f, MethodType):
        return convertible(f.__func__)
    if isinstance(f, functools.partial):
        return _is_own(f.func)
    if isinstance(f, type):
        return dataclasses.is_dataclass(f) or convertible(found(f, "__init__"))
    return convertible(f) or convertible(getattr(type(f), "__call__", None))  # noqa: B004  (not whether: which)


def noting(function: Callable[..., Any], deep: bool = True, count: int | None = None) -> Callable[..., Any]:
    """A wrapper of a function that reads all of its arguments.

    Args:
        deep: whether it reads what is in that as well; count: how many of its arguments it reads.
    """

    @functools.wraps(function, updated=())
    def call_it(*args: Any, **kwargs: Any) -> Any:
        for arg in args[:count]:
            _watch().read(arg, deep)
        return function(*args, **kwargs)

    return call_it


_READING = {
    "all", "any", "check", "fstring", "mod", "shared", "tuple", "neg", "pos", "invert", "add", "sub", "mul", "truediv",
    "floordiv", "pow", "matmul", "bitand", "bitor", "bitxor", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne",
    "in", "not_in",
}  # fmt: skip
_READING_FIRST = {"for", "loop", "each", "spread", "unpack"}
WATCHING: dict[str, Any] = {
    **NAMES,
    **{f"_ab_{name}": noting(NAMES[f"_ab_{name}"]) for name in _READING},
    **{f"_ab_{name}": noting(NAMES[f"_ab_{name}"], False, 1) for name in _READING_FIRST},
    **{f"_ab_{name}": noting(NAMES[f"_ab_{name}"]) for name in ("dict", "list")},
    "_ab_call": _calling(call),
    "_ab_create": _calling(create),
    "_ab_getitem": _getitem,
    "_ab_old_attr": _old_attribute,
    "_ab_old_item": _old_item,
    "_ab_setattr": _setattribute,
    "_ab_setitem": _setitem,
    "_ab_update": _update,
}
