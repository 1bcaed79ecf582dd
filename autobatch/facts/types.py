"""Which types have values that nobody can change, which hold other values, and which draw random numbers."""

import collections
import random

import numpy as np

__all__ = [
    "CONTAINERS",
    "GENERATORS",
    "IMMUTABLE",
    "NUMBERS",
    "SCALARS",
    "VALUES",
]

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
