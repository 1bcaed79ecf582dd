"""Which types have values that nobody can change, hold others or draw, and which attributes run no code."""

import collections
import dataclasses
import random
import types
from typing import Any

import numpy as np

NUMBERS = (int, float, bool, complex)
"""Python's numbers."""
SCALARS = (*NUMBERS, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
"""Python's values without parts."""
IMMUTABLE = (*SCALARS, np.generic, np.dtype, type, range, slice, frozenset)
"""Values that cannot be changed; what a slice or a frozenset holds cannot be either, for all that matters here."""
VALUES = (*SCALARS, np.generic, frozenset, tuple)
"""What `x += y` never changes: it gives another value."""
CONTAINERS = (list, dict, set, collections.deque, bytearray)
"""Built-in containers that can be changed; subclasses (defaultdict, Counter, OrderedDict) are among them."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
"""What draws random numbers, and so is changed by every call."""


_known: dict[str, dict[type, bool]] = {}


def stored_in(name: str) -> dict[type, bool]:
    """For the classes seen so far, whether reading this attribute of their objects runs no code."""
    return _known.setdefault(name, {})


def forget_classes() -> None:
    """Look at all classes afresh: they may have changed since the last run."""
    for known in _known.values():
        known.clear()


SILENT_ATTRIBUTES = frozenset((
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__slots__", "__match_args__",
    "__slotnames__", "__init__", "__post_init__", "__new__", "__init_subclass__", "__class_getitem__", "__setattr__",
    "__delattr__", "__replace__", "__parameters__", "__orig_bases__", "__type_params__", "__dataclass_fields__",
    "__dataclass_params__",
))  # fmt: skip
"""What a class may have that does not run where its objects are only read, compared or written."""
COMPARISON_METHODS = ("__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__")
"""What decides how objects are compared; a dataclass has them generated."""


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


def keeps_fields(kind: Any) -> bool:
    """Whether a dataclass's object is the values it is made from: no code of the user's sets or reads its fields.

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
    """Whether objects of a class are made of their parts, and nothing else happens."""
    if dataclasses.is_dataclass(cls):
        return keeps_fields(cls) and all(field.init for field in dataclasses.fields(cls))
    named = issubclass(cls, tuple) and "__new__" in vars(cls)
    return cls is dict or (named and cls.__new__.__code__.co_filename.startswith("<string"))
