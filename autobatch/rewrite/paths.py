"""What a piece of syntax shows of how it is read: a path from a name, an index of an array, a name that it binds."""

import ast
from typing import Any

__all__ = ["binds", "is_dotted", "is_slicing", "path_of"]


def path_of(node: ast.expr) -> tuple[str, tuple[tuple[str, Any], ...]] | None:
    """A name followed by attributes and constant keys; None for anything else."""
    steps: list[tuple[str, Any]] = []
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=base, attr=name):
                steps.append(("attr", name))
                node = base
            case ast.Subscript(value=base, slice=ast.Constant(value=key)) if type(key) in (str, int):
                steps.append(("key", key))
                node = base
            case _:
                return None
    return node.id, tuple(reversed(steps))


def is_dotted(steps: Any) -> bool:
    """Whether a path has attributes only: `np.linalg.norm`."""
    return all(how == "attr" for how, _ in steps)


def is_slicing(index: ast.expr) -> bool:
    """Whether an index can only be an array's: it has a slice, an ellipsis or a new axis."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(
        isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value in (None, ...)) for part in parts
    )


def binds(node: ast.AST) -> bool:
    """Whether an expression cannot be moved into a call's arguments: it binds names, or leaves the function."""
    return any(isinstance(part, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await) for part in ast.walk(node))
