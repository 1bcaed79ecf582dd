"""Bounded caches: dicts that drop entries, so that memory does not grow in long sessions.

An interactive session keeps defining functions: a cell is run again, a loop makes lambdas. Results about code that
were dropped are computed again when needed.
"""

import weakref
from types import CodeType
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value]):
    """A dict that is cleared when a new key would make it hold more than `most` entries.

    >>> squares = BoundedDict(2)
    >>> for n in range(3):
    ...     squares[n] = n * n
    >>> squares
    {2: 4}
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)


MOST_FUNCTIONS = 512
"""Maximum number of functions whose rewritten form is cached, about 90 kB each."""


class CodeCache(dict[int, tuple["weakref.ref[CodeType]", Value]]):
    """Weak cache {id of a code object: (weak reference to it, value)}; an entry is dropped with its code object.

    Keyed by identity, because code objects compiled from equal text compare equal.
    """

    __slots__ = ()

    def put(self, code: CodeType, value: Any = None) -> None:
        key = id(code)
        self[key] = weakref.ref(code, lambda _: self.pop(key, None)), value
