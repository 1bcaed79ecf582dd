"""What a lock-step call does outside of itself, done when it ends: example by example, in the order of the loop.

Each effect is a function of a lane's plain values; it returns what takes it back. If one of them raises, all are taken
back and the loop over the examples does them, and raises where it should.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.lanes import set_region
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop
from autobatch.facts.operators import ARITHMETIC
from autobatch.facts.types import VALUES
from autobatch.lockstep.outside import Outside
from autobatch.lockstep.places import MISSING, Place
from autobatch.lockstep.plain import plain, refill
from autobatch.lockstep.rows import scattered

__all__ = [
    "IN_PLACE",
    "commit",
    "keep",
    "put_attribute",
    "put_item",
    "update_attribute",
    "update_item",
    "update_object",
]

Undo = Callable[[], Any]

IN_PLACE = {each.symbol: each.inplace for each in ARITHMETIC}


def put_attribute(target: Any, name: str, value: Any) -> Undo:
    """`target.name = value`."""
    own = getattr(target, "__dict__", {})
    slot = not isinstance(target, type) and hasattr(type(target), name) and name not in own
    old = own[name] if name in own else getattr(target, name, MISSING) if slot else MISSING
    setattr(target, name, value)
    if old is MISSING or (slot and name in own):
        return lambda: delattr(target, name)
    return lambda: setattr(target, name, old)


def put_item(target: Any, key: Any, value: Any) -> Undo:
    """`target[key] = value`."""
    if isinstance(target, np.ndarray):
        before: Any = np.array(target[key])
        target[key] = value
        return lambda: target.__setitem__(key, before)
    if isinstance(target, dict) and key not in target:
        target[key] = value
        return lambda: target.pop(key)
    old = target[key]
    target[key] = value
    return lambda: operator.setitem(target, key, old)


def update_object(symbol: str, old: Any, value: Any) -> tuple[Any, Undo]:
    """`old += value` and its like: the new value, and what takes back a change of the old one."""
    if isinstance(old, np.ndarray):
        copied = old.copy()
        return IN_PLACE[symbol](old, value), lambda: np.copyto(old, copied)
    if type(old) is list and symbol == "+":
        count = len(old)
        return IN_PLACE[symbol](old, value), lambda: old.__delitem__(slice(count, None))
    if isinstance(old, VALUES) or is_boxed(old):
        return IN_PLACE[symbol](old, value), lambda: None
    raise NeedsLoop(f"an update in place of a {type(old).__name__}")


def update_attribute(symbol: str, target: Any, name: str, value: Any) -> Undo:
    """`target.name += value` and its like."""
    new, first = update_object(symbol, getattr(target, name), value)
    then = put_attribute(target, name, new)
    return lambda: (then(), first())


def update_item(symbol: str, target: Any, key: Any, value: Any) -> Undo:
    """`target[key] += value` and its like."""
    missing = isinstance(target, dict) and key not in target
    new, first = update_object(symbol, target[key], value)
    then = put_item(target, key, new)
    return lambda: (then(), first(), missing and target.pop(key, None))


def keep(method: str) -> Callable[..., Any]:
    """A method of a container that adds values at one of its ends, or that adds one to a set."""

    def act(target: Any, value: Any) -> Undo:
        if method == "add":
            known = value in target
            target.add(value)
            return lambda: known or target.discard(value)
        count = len(target)
        getattr(target, method)(value)
        added = len(target) - count
        take = target.popleft if method.endswith("left") else target.pop
        return lambda: [take() for _ in range(added)]

    return act


def commit(outside: Outside) -> None:
    """Do what the lanes have done outside, in the order of the examples.

    Raises:
        NeedsLoop: some of it raises; nothing is done.
    """
    columns: dict[int, tuple[list[Any], ...]] = {}
    memos: list[dict[Any, Any]] = [{} for _ in range(outside.size)]
    undo: list[Undo] = []
    order = _in_order(outside)
    try:
        for lane, number, at in order:
            effect = outside.effects[number]
            set_region(effect.region)
            if number not in columns:
                columns[number] = tuple(map(scattered, effect.values))
            undo.append(effect.act(*[_own(column[at], memos[lane], at, outside) for column in columns[number]]))
    except Exception as error:
        for each in reversed(undo):
            each()
        raise NeedsLoop(f"a change of what is outside the call raises {type(error).__name__}") from error


def _in_order(outside: Outside) -> list[tuple[int, int, int]]:
    """(lane, effect, place of the lane in the effect's region), without what is overwritten before anyone sees it."""
    effects = outside.effects
    updated = {id(place) for each in effects for place in each.updates}
    out: list[tuple[int, int, int]] = []
    last: dict[int, tuple[int, int, int]] = {}
    for number, effect in enumerate(effects):
        lanes = effect.region.lanes()
        if effect.sets is None or id(effect.sets) in updated or not _is_there(effect.sets):
            out += [(lane, number, at) for at, lane in enumerate(lanes.tolist())]
        elif len(lanes):
            at = int(lanes.argmax())
            entry = int(lanes[at]), number, at
            last[id(effect.sets)] = max(entry, last.get(id(effect.sets), entry))
    return sorted([*out, *last.values()])


def _is_there(place: Place) -> bool:
    """Whether a place had a value before the call, so that setting it twice is setting it once."""
    if isinstance(place.target, dict | set):
        return place.key in place.target
    return isinstance(place.target, list) or place.key[0] in getattr(place.target, "__dict__", ())


def _own(kept: Any, memo: dict[Any, Any], lane: int, outside: Outside) -> Any:
    """A value as one lane has it: plain, and its own, but for what was there before the call."""
    return kept if outside.is_known(kept) else _copied(plain(kept, memo, lane), memo, outside)


def _copied(value: Any, memo: dict[Any, Any], outside: Outside) -> Any:
    """A value whose arrays and containers no other lane has, but for those that were there before the call."""
    if not isinstance(value, np.ndarray | list | dict | tuple) or outside.is_known(value):
        return value
    key = ("copy", id(value))
    if key in memo:
        return memo[key][0]
    if isinstance(value, tuple):
        parts = [_copied(each, memo, outside) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    out = value.copy()
    memo[key] = out, value
    if not isinstance(out, np.ndarray):
        refill(out, lambda each: _copied(each, memo, outside))
    return out
