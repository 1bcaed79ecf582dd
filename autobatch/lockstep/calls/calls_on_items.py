"""Builtins that call a function on items, as plain Python: in lock-step they are converted like a user's helper."""

import operator
from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from typing import Any

_NONE = object()


def _reduced(function, items, first=_NONE):
    out, count = first, 0
    for item in items:
        out = item if count == 0 and first is _NONE else function(out, item)
        count += 1
    if count == 0 and first is _NONE:
        raise TypeError("reduce() of no items")
    return out


def _extreme(is_better, items, key, default=_NONE):
    out, best, count = default, default, 0
    for item in items:
        value = key(item)
        if count == 0 or is_better(value, best):
            out, best = item, value
        count += 1
    if count == 0 and default is _NONE:
        raise ValueError("max() or min() of no items")
    return out


def _mapped(function, *columns):
    return [function(*items) for items in zip(*columns, strict=False)]


def _filtered(function, items):
    return [item for item in items if function(item)]


def _accumulated(items, function=operator.add):
    out: list[Any] = []
    total = _NONE
    for item in items:
        total = item if not out else function(total, item)
        out.append(total)
    return out


OF_ITEMS = frozenset({max, min, reduce})
LAZY = frozenset({"map", "filter", "accumulate"})
_LISTS: dict[type, Callable[..., Any]] = {map: _mapped, filter: _filtered, accumulate: _accumulated}


def source_of(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """The source of a call of one of `OF_ITEMS`, and its arguments; None if no function is called on the items."""
    if f is reduce:
        return _reduced, args
    if kwargs.get("key") is None:
        return None
    default = (kwargs["default"],) if "default" in kwargs else ()
    is_better = operator.gt if f is max else operator.lt
    return _extreme, (is_better, args[0] if len(args) == 1 else args, kwargs["key"], *default)


def eager(f: Any) -> Any:
    """For a call whose items are all read at once: what makes a list of the items, if `f` is one of `LAZY`."""
    return _LISTS[f] if type(f) is type and f in _LISTS else f
