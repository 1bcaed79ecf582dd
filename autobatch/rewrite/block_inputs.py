"""The inputs of a block in the making."""

import ast
from typing import Any

from autobatch.lazy.keys import Key

__all__ = ["Input", "roots"]


class Input:
    """A slot in the making.

    Attributes:
        name: its name in the body; node: what is evaluated for it; places: where in the user's code it stands.
        path: (root, steps, index) if the recorder reads it; temporary: the name it is bound to if it does not.
        part: it is passed, and only what another input reads is an operand.
        several: the block goes through it item by item.
    """

    __slots__ = ("name", "node", "number", "part", "path", "places", "several", "temporary")

    def __init__(self, name: str, node: ast.expr, path: Any) -> None:
        self.name = name
        self.node = node
        self.path = path
        self.places: list[ast.expr] = []
        self.number = True
        self.temporary = ""
        self.part = False
        self.several = False


def roots(index: Any) -> list[str]:
    """The names that an index is read from."""
    if index is None:
        return []
    return [name for name, _ in index.paths] if type(index) is Key else [index[0]]
