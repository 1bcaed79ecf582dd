"""Types are classified as immutable, container or random generator, and attributes by whether reading runs code."""

import collections
import dataclasses
import random
import types
from typing import Any

import numpy as np

NUMBERS = (int, float, bool, complex)
"""Python's number types."""
SCALARS = (*NUMBERS, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
"""Python's immutable types without parts."""
IMMUTABLE = (*SCALARS, np.generic, np.dtype, type, range, slice, frozenset)
"""Immutable types. The parts of a slice or a frozenset are assumed to be immutable too."""
VALUES = (*SCALARS, np.generic, frozenset, tuple)
"""Types for which `x += y` never mutates `x` but makes a new value."""
CONTAINERS = (list, dict, set, collections.deque, bytearray)
"""Built-in mutable containers; includes their subclasses (defaultdict, Counter, OrderedDict)."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
"""Random generators, which every draw mutates."""


_known: dict[str, dict[type, bool]] = {}


def stored_in(name: str) -> dict[type, bool]:
    """Cache {class: True if reading this attribute of its objects runs no code}, filled by `is_stored`."""
    return _known.setdefault(name, {})


def forget_classes() -> None:
    """Clear the cache, since classes may have changed since the last run."""
    for known in _known.values():
        known.clear()


SILENT_ATTRIBUTES = frozenset((
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__slots__", "__match_args__",
    "__slotnames__", "__init__", "__post_init__", "__new__", "__init_subclass__", "__class_getitem__", "__setattr__",
    "__delattr__", "__replace__", "__parameters__", "__orig_bases__", "__type_params__", "__dataclass_fields__",
    "__dataclass_params__",
))  # fmt: skip
"""Class attributes that do not run when objects are only read, compared or written."""
COMPARISON_METHODS = ("__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__")
"""Methods that define comparison; dataclasses generate them."""


def is_stored(kind: type, name: str) -> bool:
    """True if an attribute is stored in the object's dict or slots, or is a plain value of its class.

    >>> is_stored(types.SimpleNamespace, "word")
    True
    >>> is_stored(type("Node", (), {"word": property(print)}), "word")
    False
    """
    known = stored_in(name)
    if kind not in known:
        known[kind] = _find(kind, name)
    return known[kind]


# Classes whose attribute look-up runs no Python code; `tuple` is listed for named tuples.
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


def keeps_fields(kind: Any) -> bool:
    """True if a dataclass's object is exactly its fields: no user code runs when they are set or read.

    >>> keeps_fields(dataclasses.make_dataclass("Pair", ["left", "right"], frozen=True))
    True
    >>> keeps_fields(dataclasses.make_dataclass("Deaf", ["word"], namespace={"__setattr__": lambda *args: None}))
    False
    """
    written = [getattr(each, "__code__", None) for each in (kind.__init__, kind.__setattr__)]
    if written[0] is None or any(code is not None and code.co_filename != "<string>" for code in written):
        return False
    if kind.__new__ is not object.__new__ or hasattr(kind, "__post_init__"):
        return False
    return all(is_stored(kind, each.name) for each in dataclasses.fields(kind))


def is_plain(cls: Any) -> bool:
    """True if making an object of the class only stores its parts: plain dataclasses, named tuples, dict."""
    if dataclasses.is_dataclass(cls):
        return keeps_fields(cls) and all(field.init for field in dataclasses.fields(cls))
    named = issubclass(cls, tuple) and {"_fields", "__new__"} <= vars(cls).keys()
    return cls is dict or (named and cls.__new__.__code__.co_filename.startswith("<string"))
