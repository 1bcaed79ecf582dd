"""Where new syntax stands: positions of generated nodes, and copies in which some nodes are names."""

import ast
import copy
from typing import Any, TypeVar

__all__ = ["located", "placed", "substituted"]

Node = TypeVar("Node", bound=ast.AST)


def located(tree: Node, line: int = 1, column: int = 0) -> Node:
    """The tree, in which whatever has no place yet is where the syntax around it is."""
    stack: list[tuple[ast.AST, int, int]] = [(tree, line, column)]
    while stack:
        node, line, column = stack.pop()
        if "lineno" in node._attributes:
            line = node.lineno = getattr(node, "lineno", line)  # type: ignore[attr-defined]
            column = node.col_offset = getattr(node, "col_offset", column)  # type: ignore[attr-defined]
            for name, value in (("end_lineno", line), ("end_col_offset", column)):
                if getattr(node, name, None) is None:
                    setattr(node, name, value)
        stack += [(child, line, column) for child in ast.iter_child_nodes(node)]
    return tree


def placed(node: Any, at: ast.AST) -> Any:
    """A new piece of syntax at the place of an old one; what it holds of the user's stays where it is."""
    ast.copy_location(node, at)
    for child in ast.iter_child_nodes(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            placed(child, at)
    return node


def substituted(node: Any, names: dict[int, str]) -> Any:
    """A copy of a piece of syntax in which some nodes, by their id, are names."""
    if id(node) in names:
        return ast.copy_location(ast.Name(names[id(node)], ast.Load()), node)
    out = copy.copy(node)
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            setattr(out, field, substituted(value, names))
        elif isinstance(value, list):
            setattr(out, field, [substituted(x, names) if isinstance(x, ast.AST) else x for x in value])
    return out
