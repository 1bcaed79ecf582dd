"""What is remembered between calls, so that it does not grow without end: dicts that forget.

A session defines functions for as long as it lasts: a cell is run again, a loop makes lambdas. What has been found out
about code is found out again where it was forgotten.
"""

import weakref
from types import CodeType
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Bounded(dict[Key, Value]):
    """A dict that begins anew where it would hold more than `most` entries.

    >>> squares = Bounded(2)
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
"""Of so many functions it is remembered how they are rewritten, about 90 kB each."""


class OfCodes(dict[int, tuple["weakref.ref[CodeType]", Value]]):
    """Values by the `id` of code objects, each for as long as its code lives.

    By identity, since two code objects of one text are equal, wherever they come from.
    """

    __slots__ = ()

    def put(self, code: CodeType, value: Any = None) -> None:
        key = id(code)
        self[key] = weakref.ref(code, lambda _: self.pop(key, None)), value
