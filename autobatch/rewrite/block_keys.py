"""Which indices are keys that a recorder can compute."""

import ast
from typing import Any

from autobatch.lazy.keys import Key, scalar
from autobatch.rewrite.paths import path_of

__all__ = ["key_of"]

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


class _NoKey(Exception):  # noqa: N818  (a signal inside of this file)
    """It may run code of the user's."""


def key_of(node: ast.expr) -> Key | None:
    """The key that an index is: of names, attributes, items and constants, by f-strings and arithmetic.

    >>> key_of(ast.parse("f'u_{node.kind}'", mode="eval").body).paths
    (('node', (('attr', 'kind'),)),)
    >>> key_of(ast.parse("names(i)", mode="eval").body)
    """
    made = _Made()
    try:
        body = made.build(node)
    except _NoKey:
        return None
    names = [ast.arg(name) for name in made.names()]
    function = ast.Lambda(ast.arguments([], names, None, [], [], None, []), body)
    text = ast.unparse(body)
    code = compile(ast.fix_missing_locations(ast.Expression(function)), "<key>", "eval")
    return Key(made.paths, made.items, eval(code, {"_scalar": scalar}), text)


class _Made:
    """A key in the making."""

    def __init__(self) -> None:
        self.paths: list[Any] = []
        self.items: list[bool] = []

    def names(self) -> list[str]:
        return [f"_k{i}" for i in range(len(self.paths))]

    def build(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Constant(value=str() | int()):
                return node
            case ast.BinOp() if isinstance(node.op, _OPERATORS):
                return ast.BinOp(self.build(node.left), node.op, self.build(node.right))
            case ast.UnaryOp(op=ast.USub()):
                return ast.UnaryOp(node.op, self.build(node.operand))
            case ast.JoinedStr():
                return ast.JoinedStr([self.build(part) for part in node.values])
            case ast.FormattedValue(format_spec=None):
                return ast.FormattedValue(self.build(node.value), node.conversion, None)
            case ast.Subscript(value=base, slice=index) if path_of(base) is not None and path_of(node) is None:
                read = ast.Subscript(self._leaf(base, True), self.build(index), ast.Load())
                return ast.Call(ast.Name("_scalar", ast.Load()), [read], [])
        return self._leaf(node, False)

    def _leaf(self, node: ast.expr, of_items: bool) -> ast.expr:
        path = path_of(node)
        if path is None:
            raise _NoKey
        self.paths.append(path)
        self.items.append(of_items)
        return ast.Name(self.names()[-1], ast.Load())
