"""Attributes that can be read without running any of the user's code."""

import collections
import types

__all__ = ["forget_classes", "is_stored", "stored_in"]

_known: dict[str, dict[type, bool]] = {}


def stored_in(name: str) -> dict[type, bool]:
    """What is known so far of classes: whether reading this attribute of their objects runs no code."""
    return _known.setdefault(name, {})


def forget_classes() -> None:
    """Look at all classes afresh: they may have changed since the last run."""
    for known in _known.values():
        known.clear()


def is_stored(kind: type, name: str) -> bool:
    """Whether this attribute of an object is in the object's dict, in its slots, or a plain value of its class.

    >>> is_stored(types.SimpleNamespace, "word")
    True
    >>> is_stored(type("Node", (), {"word": property(print)}), "word")
    False
    """
    known = stored_in(name)
    if kind not in known:
        known[kind] = _find(kind, name)
    return known[kind]


# How these find attributes runs no Python code; tuples are here for the named ones.
_PLAIN = [kind.__getattribute__ for kind in (object, tuple, types.SimpleNamespace)]
_FIELDS = (types.MemberDescriptorType, type(vars(collections.namedtuple("_Pair", "left right"))["left"]))


def _find(kind: type, name: str) -> bool:
    if hasattr(kind, "_ab_rank") or kind.__getattribute__ not in _PLAIN or hasattr(kind, "__getattr__"):
        return False
    for each in kind.__mro__:
        if name in vars(each):
            found = vars(each)[name]
            return isinstance(found, _FIELDS) or not hasattr(type(found), "__get__")
    return True
