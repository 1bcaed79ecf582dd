"""Keys that a recorder computes: `params[f"u_{node.kind}"]`, `params[names[i]]`.

What they are computed of are strings and integers, so that computing one runs no code of the user's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["CONTAINERS", "FAULTS", "KEYS", "Key", "scalar"]

KEYS = (int, str, np.int64)
CONTAINERS = (list, tuple, dict, np.ndarray)
FAULTS = (LookupError, AttributeError, NameError, TypeError, ValueError, ArithmeticError)
"""What reading and computing may raise; it is raised again where the user's own code does the same."""


class Key:
    """A key and what it is computed of.

    Attributes:
        paths: (root, steps) of each part; items: for each whether it is a container of which an item is read.
        function: gives the key, of the values that the paths lead to.
        text: the source of it; two are equal that have the same paths and text.
    """

    __slots__ = ("function", "items", "paths", "text")

    def __init__(
        self, paths: Sequence[tuple[Any, Any]], items: Sequence[bool], function: Callable[..., Any], text: str
    ) -> None:
        self.paths = tuple(paths)
        self.items = tuple(items)
        self.function = function
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and (self.paths, self.text) == (other.paths, other.text)

    def __hash__(self) -> int:
        return hash((self.paths, self.text))

    def suits(self, values: Sequence[Any]) -> bool:
        """Whether values are of types of which a key can be computed without running code of the user's."""
        return all(
            type(value) in (CONTAINERS if of_items else KEYS)
            for value, of_items in zip(values, self.items, strict=True)
        )


def scalar(value: Any) -> Any:
    """An item that a key is computed of.

    Raises:
        LookupError: it is neither a string nor an integer.
    """
    if type(value) not in KEYS:
        raise LookupError(value)
    return value
