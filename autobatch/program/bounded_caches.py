"""Bounded caches: dicts that drop entries, so that memory does not grow in long sessions.

An interactive session keeps defining functions: a cell is run again, a loop makes lambdas. Results about code that
were dropped are computed again when needed.
"""

import contextlib
import weakref
from types import CodeType
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value]):
    """A dict that drops its oldest entry when a new key would make it hold more than `most`.

    >>> squares = BoundedDict(2)
    >>> for n in range(3):
    ...     squares[n] = n * n
    >>> squares
    {1: 1, 2: 4}
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        while len(self) >= self.most and key not in self:
            with contextlib.suppress(RuntimeError):  # another thread has changed it
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)


MOST_FUNCTIONS = 128
"""Maximum number of functions whose forms are cached, about 150 kB each. An entry keeps its function alive: a form has
the function's globals, where other functions of the same cell are, so weak references would not let go of it."""


class CodeCache(dict[int, tuple["weakref.ref[CodeType]", Value]]):
    """Weak cache {id of a code object: (weak reference to it, value)}; an entry is dropped with its code object.

    Keyed by identity, because code objects compiled from equal text compare equal.
    """

    __slots__ = ()

    def put(self, code: CodeType, value: Any = None) -> None:
        key = id(code)
        self[key] = weakref.ref(code, lambda _: self.pop(key, None)), value
