"""Quoting: generated code is a template of Python source with holes, located at the node that it replaces."""

import ast
import copy
import functools
import threading
from typing import Any, TypeVar

PREFIX = "_ab_"
Node = TypeVar("Node", bound=ast.AST)


_parsing = threading.RLock()


def parse(text: str) -> ast.Module:
    """`ast.parse`, one thread at a time: Python 3.11 counts all threads' depth together and raises SystemError."""
    with _parsing:
        return ast.parse(text)


@functools.cache
def _parsed(template: str) -> ast.Module:
    tree = parse(template)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.generated = True  # type: ignore[attr-defined]
    return tree


class _Fill(ast.NodeTransformer):
    def __init__(self, at: ast.AST, parts: dict[str, Any]) -> None:
        self.at = at
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> Any:
        part = self.parts.get(node.id)
        if part is None:
            return self.generic_visit(node)
        return ast.copy_location(ast.Name(part, node.ctx), self.at) if isinstance(part, str) else part

    def visit_Expr(self, node: ast.Expr) -> Any:
        part = self.parts.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return part if isinstance(part, list) else self.generic_visit(node)

    def generic_visit(self, node: Any) -> Any:
        if "lineno" in node._attributes:
            ast.copy_location(node, self.at)
        return super().generic_visit(node)


def statements(template: str, at: ast.AST, **parts: Any) -> list[ast.stmt]:
    """The statements of a template; each NAME given as a keyword is replaced by that node, name or statement list.

    Nodes of the template get the position of `at`, and its calls are marked as generated.

    >>> print(ast.unparse(statements("x = F(A)", ast.parse("f").body[0], F="g", A=ast.Constant(1))[0]))
    x = g(1)
    """
    module = _Fill(at, parts).visit(copy.deepcopy(_parsed(template)))
    return module.body


def expression(template: str, at: ast.AST, **parts: Any) -> Any:
    """The expression of a template that is a single expression; see `statements`."""
    (statement,) = statements(template, at, **parts)
    assert isinstance(statement, ast.Expr)
    return statement.value


def name(identifier: str, at: Node, ctx: ast.expr_context | None = None) -> ast.Name:
    """A name node, located at the node `at`."""
    return ast.copy_location(ast.Name(identifier, ctx or ast.Load()), at)


def is_generated(node: ast.AST) -> bool:
    """True for a call that a template generated, or a name that starts with `PREFIX`."""
    return getattr(node, "generated", False) or (isinstance(node, ast.Name) and node.id.startswith(PREFIX))


def located(tree: Node) -> Node:
    """Give each node without a location that of the syntax around it; returns the same tree."""
    stack: list[tuple[ast.AST, int, int]] = [(tree, 1, 0)]
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
    """Give new syntax the location of `at`; the user's nodes inside it, which have one, keep theirs."""
    ast.copy_location(node, at)
    for child in ast.iter_child_nodes(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            placed(child, at)
    return node


def substituted(node: Any, names: dict[int, str]) -> Any:
    """A copy of a piece of syntax with some nodes replaced by names. `names`: {id of a node: name}."""
    if id(node) in names:
        return ast.copy_location(ast.Name(names[id(node)], ast.Load()), node)
    out = copy.copy(node)
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            setattr(out, field, substituted(value, names))
        elif isinstance(value, list):
            setattr(out, field, [substituted(x, names) if isinstance(x, ast.AST) else x for x in value])
    return out
