"""Which types have values that nobody can change, which hold other values, and which draw random numbers."""

import collections
import random
import types

import numpy as np

__all__ = ["CONTAINERS", "GENERATORS", "IMMUTABLE", "NUMBERS", "PLAIN_CONTAINERS", "SCALARS", "TEXT", "is_immutable"]

NUMBERS = (int, float, bool, complex)
"""Python's numbers."""
TEXT = (str, bytes)
SCALARS = (*NUMBERS, *TEXT, type(None), type(Ellipsis), type(NotImplemented))
"""Python's values without parts."""
IMMUTABLE = (*SCALARS, np.generic, np.dtype, type, range, slice, frozenset)
"""Values that cannot be changed; what a slice or a frozenset holds cannot be either, for all that matters here."""
_CODE = (types.ModuleType, types.BuiltinFunctionType, np.ufunc, type(np.sum))
PLAIN_CONTAINERS = (list, dict, set)
CONTAINERS = (*PLAIN_CONTAINERS, collections.deque, bytearray)
"""Built-in containers that can be changed; subclasses (defaultdict, Counter, OrderedDict) are among them."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
"""What draws random numbers, and so is changed by every call."""


def is_immutable(value: object) -> bool:
    """Whether nothing can change a value, nor what it holds.

    >>> is_immutable((1, "a", np.float32(2)))
    True
    >>> is_immutable(([],))
    False
    """
    if isinstance(value, tuple):
        return all(map(is_immutable, value))
    return isinstance(value, IMMUTABLE + _CODE)
