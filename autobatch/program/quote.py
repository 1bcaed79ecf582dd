"""Quoting: generated code is a template of Python source with holes, located at the node that it replaces."""

import ast
import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)


_parsing = threading.RLock()


def parse(text: str) -> ast.Module:
    """`ast.parse`, one thread at a time: Python 3.11 counts all threads' depth together and raises SystemError."""
    with _parsing:
        return ast.parse(text)


def copied(node: Any, part: Callable[[Any], Any]) -> Any:
    """A node with `part(child)`, a node or a list of them, for each child; one without fields (an operator) stays."""
    if not (node._fields or node._attributes):
        return node
    made = ast.AST.__new__(type(node))  # fields are set below; Python 3.13 warns if `__init__` lacks them
    for name, value in vars(node).items():
        if isinstance(value, ast.AST):
            value = part(value)
        elif type(value) is list:
            new = [part(each) if isinstance(each, ast.AST) else each for each in value]
            value = [one for each in new for one in (each if isinstance(each, list) else [each])]
        setattr(made, name, value)
    return made


@functools.cache
def _parsed(template: str) -> ast.Module:
    return parse(template)


def _filled(node: Any, at: ast.AST, parts: dict[str, Any]) -> Any:
    """A copy of a template with its holes filled."""
    if isinstance(node, ast.Name) and (part := parts.get(node.id)) is not None:
        return ast.copy_location(ast.Name(part, node.ctx), at) if isinstance(part, str) else part
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Name):
        part = parts.get(node.value.id)
        if isinstance(part, list):
            return part
    made = copied(node, lambda child: _filled(child, at, parts))
    return ast.copy_location(made, at) if "lineno" in node._attributes else made


def statements(template: str, at: ast.AST, **parts: Any) -> list[ast.stmt]:
    """The statements of a template; each NAME given as a keyword is replaced by that node, name or statement list.

    Nodes of the template get the position of `at`.

    >>> print(ast.unparse(statements("x = F(A)", ast.parse("f").body[0], F="g", A=ast.Constant(1))[0]))
    x = g(1)
    """
    return _filled(_parsed(template), at, parts).body


def expression(template: str, at: ast.AST, **parts: Any) -> Any:
    """The expression of a template that is a single expression; see `statements`."""
    (statement,) = statements(template, at, **parts)
    assert isinstance(statement, ast.Expr)
    return statement.value


def name(identifier: str, at: Node, ctx: ast.expr_context | None = None) -> ast.Name:
    """A name node, located at the node `at`."""
    return ast.copy_location(ast.Name(identifier, ctx or ast.Load()), at)


def definition(name: str, args: ast.arguments, body: list[ast.stmt], at: ast.AST) -> ast.FunctionDef:
    """A function definition with this name, arguments and body, located at the node `at`."""
    (out,) = ast.parse("def f(): pass").body  # with every field that this version of Python has
    assert isinstance(out, ast.FunctionDef)
    out.name, out.args, out.body = name, args, body
    return ast.copy_location(out, at)


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
