"""Items of dicts, lists, sets and arrays from outside a call that changes something there: one place for each key."""

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.examples import weak_lanes
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.effects import keep, put_item, update_item
from autobatch.lockstep.items import delitem, getitem, setitem
from autobatch.lockstep.lists import differs
from autobatch.lockstep.outside import Outside
from autobatch.lockstep.places import MISSING, Several
from autobatch.lockstep.plain import separated
from autobatch.lockstep.row import Row
from autobatch.lockstep.rows import gathered, scattered
from autobatch.lockstep.runtime import is_in
from autobatch.lockstep.watched_values import (
    Old,
    Updated,
    is_outside,
    known_with,
    old_at,
    outside_of_call,
    require_storable,
)
from autobatch.ops.rules.aliasing import is_scalar

__all__ = ["METHODS", "contains", "delete_item", "item", "old_item", "set_item"]

_DICTS = (dict, OrderedDict, defaultdict)
_KEYS = (str, int, float, bytes, tuple, np.generic, type(None))


def _has_places(x: Any, index: Any) -> bool:
    """Whether items of an object are looked up one by one: those of a dict or a list from outside."""
    if not is_outside(x):
        return False
    if type(x) in _DICTS:
        return True
    if isinstance(index, MaskedBatch):
        return type(x) is list and is_scalar(index) and index.dtype.kind in "iu"
    return type(x) is list and isinstance(index, int | np.integer)


def _keys_of(x: Any, index: Any) -> list[Any]:
    """The key of each lane as Python hashes it; of a list, counted from its start.

    Raises:
        IndexError: a list has no such item.
    """
    keys = [key.value() if type(key) is Row else key for key in scattered(index)]
    return [_key_of(x, key) for key in keys]


def _key_of(x: Any, key: Any) -> Any:
    if not isinstance(key, _KEYS):
        raise NeedsLoop(f"a {type(key).__name__} is a key, beside a change of what is outside the call")
    hash(key)
    if type(x) is not list:
        return key
    number: Any = key
    if not 0 <= number < len(x):
        outside_of_call().look_up(x, current_region().lanes().tolist())  # type: ignore[union-attr]
    place = number.__index__() + (len(x) if number < 0 else 0)
    if not 0 <= place < len(x):
        raise IndexError("list index out of range")
    return place


def _before(x: Any, key: Any) -> Any:
    if isinstance(x, dict):
        return x.get(key, MISSING)
    if isinstance(x, set):
        return True if key in x else MISSING
    return x[key]


def _read(x: Any, index: Any) -> Any:
    """The items of the lanes at their keys, MISSING where there is none: one value, or several."""
    outside = outside_of_call()
    if not differs(index):
        key = _key_of(x, index)
        return outside.read(outside.place(x, key), lambda: outside.know(_before(x, key)))
    region: Any = current_region()
    found = Several()
    for lane, key in zip(region.lanes().tolist(), _keys_of(x, index), strict=True):
        found.append(outside.read_lane(outside.place(x, key), lane, functools.partial(_before, x, key)))
    return found


def item(x: Any, index: Any) -> Any:
    """`x[index]`."""
    outside = outside_of_call()
    if not _has_places(x, index):
        outside.note(index)
        if not isinstance(x, tuple):
            outside.note(x, deep=False)
        return known_with(getitem(x, index), x)
    found = _read(x, index)
    if found is MISSING or (type(found) is Several and any(value is MISSING for value in found)):
        if type(x) is defaultdict:
            raise NeedsLoop("an item of a defaultdict from outside the call is made where it is read")
        raise NameError(f"name {index!r} is not defined") if "__builtins__" in x else KeyError(index)
    return gathered(found) if type(found) is Several else found


def contains(a: Any, b: Any) -> Any:
    """`a in b`."""
    if not (is_outside(b) and type(b) in (*_DICTS, set)):
        outside_of_call().note((a, b))
        return is_in(a, b)
    found = _read(b, a)
    if type(found) is not Several:
        return found is not MISSING
    return weak_lanes(np.array([value is not MISSING for value in found], np.bool_), bool)


def set_item(value: Any, x: Any, index: Any) -> None:
    """`x[index] = value`."""
    outside = outside_of_call()
    if isinstance(value, Updated):
        value.put()
    elif _has_places(x, index):
        require_storable(value)
        if differs(index):
            _set_lanes(x, _keys_of(x, index), value, functools.partial(put_item, x))
        else:
            key = _key_of(x, index)
            outside.write(outside.place(x, key), value, functools.partial(put_item, x, key))
    elif type(x) is np.ndarray and is_outside(x):
        outside.note((index, value))
        outside.change_whole(x)
        outside.will(functools.partial(put_item, x), (_plain(index), _plain(value)))
    else:
        outside.note(index)
        setitem(value, x, index)


def _set_lanes(x: Any, keys: list[Any], value: Any, act: Callable[..., Any]) -> None:
    """Each lane sets an item at its own key."""
    outside, region = outside_of_call(), current_region()
    for lane, key, kept in zip(region.lanes().tolist(), keys, scattered(value), strict=True):  # type: ignore[union-attr]
        outside.write_lane(outside.place(x, key), lane, kept)
    outside.will(act, (_here(keys), value))


def _here(values: list[Any]) -> ObjectBatch:
    out = ObjectBatch(values)
    out.region = current_region()
    return out


def delete_item(x: Any, index: Any) -> None:
    """`del x[index]`."""
    outside_of_call().note(index)
    delitem(x, index)


def old_item(x: Any, index: Any) -> Any:
    """`x[index]`, to be updated."""
    outside = outside_of_call()
    if type(x) is np.ndarray and is_outside(x):
        outside.note(index)
        return Old((), (x,), lambda symbol, key, value: update_item(symbol, x, key, value), (_plain(index),))
    if not _has_places(x, index):
        return item(x, index)
    keys = _keys_of(x, index) if differs(index) else [_key_of(x, index)]
    before = [_before(x, key) for key in keys]
    if type(x) is defaultdict:
        before = [0 if value is MISSING else value for value in before]
    places = [outside.place(x, key) for key in keys]
    if differs(index):
        old = old_at(places, before, lambda symbol, key, value: update_item(symbol, x, key, value), _here(keys))
    else:
        old = old_at(places, before, lambda symbol, value: update_item(symbol, x, keys[0], value))
    return item(x, index) if old is None else old


def _plain(value: Any) -> ObjectBatch:
    """A value as it is now, for each lane of the current region."""
    return _here(separated(value).values)


def _get(x: Any, index: Any, default: Any = None) -> Any:
    found = _read(x, index)
    if type(found) is not Several:
        return default if found is MISSING else found
    return gathered(
        [other if value is MISSING else value for value, other in zip(found, scattered(default), strict=True)]
    )


def _setdefault(x: Any, index: Any, default: Any = None) -> Any:
    if type(x) is defaultdict:
        raise NeedsLoop("an item of a defaultdict from outside the call is made where it is read")
    there = contains(index, x)
    if there is False:
        set_item(default, x, index)
    elif there is not True:
        raise NeedsLoop("setdefault of what is outside the call, where some examples have the key")
    return item(x, index)


def _add(x: Any, value: Any) -> None:
    outside = outside_of_call()
    act = functools.partial(keep("add"), x)
    if differs(value):
        keys = _keys_of(x, value)
        region: Any = current_region()
        for lane, key in zip(region.lanes().tolist(), keys, strict=True):
            outside.write_lane(outside.place(x, key), lane, True)
        outside.will(act, (_here(keys),))
        return
    key = _key_of(x, value)
    outside.write(outside.place(x, key), True, lambda _: act(key))


def _appended(name: str) -> Callable[[Any, Any], None]:
    """A method that adds to an end of a list or deque, read as it is when the lane's turn comes."""
    act = keep(name)

    def method(x: Any, value: Any) -> None:
        outside: Outside = outside_of_call()
        require_storable(value)
        if name.startswith("extend"):
            outside.note(value, deep=False)
            value = _plain(value)
        outside.change_whole(x)
        outside.will(functools.partial(act, x), (value,))

    return method


METHODS: dict[tuple[str, str], Callable[..., Any]] = {
    **{
        (kind.__name__, name): method
        for kind in _DICTS
        for name, method in (("get", _get), ("setdefault", _setdefault))
    },
    **{(kind.__name__, "__contains__"): lambda x, key: contains(key, x) for kind in (*_DICTS, set)},
    **{(kind.__name__, "__getitem__"): item for kind in (*_DICTS, list)},
    ("set", "add"): _add,
    ("list", "append"): _appended("append"),
    ("list", "extend"): _appended("extend"),
    ("deque", "append"): _appended("append"),
    ("deque", "appendleft"): _appended("appendleft"),
    ("deque", "extend"): _appended("extend"),
}
"""Methods of what is outside, by class and name."""
