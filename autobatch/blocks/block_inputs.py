"""The inputs of a block: how each is read, keys that are computed, and the global names that a block relies on."""

import ast
import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.syntax.scopes import path_of

_KNOWN = (types.ModuleType, types.FunctionType)
_MISSING = object()
Path = tuple[Any, tuple[tuple[str, Any], ...]]


KEYS = (int, str, np.int64)
CONTAINERS = (list, tuple, dict, np.ndarray)
FAULTS = (LookupError, AttributeError, NameError, TypeError, ValueError, ArithmeticError)
"""What reading and computing may raise; it is raised again where the user's own code does the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A key, and the inputs that it is computed from.

    Attributes:
        paths: (root, steps) of each part; items: for each whether it is a container of which an item is read.
        function: gives the key, of the values that the paths lead to.
        text: the source of it; two are equal that have the same paths and text.
    """

    paths: tuple[tuple[Any, Any], ...]
    items: tuple[bool, ...] = dataclasses.field(compare=False)
    function: Callable[..., Any] = dataclasses.field(compare=False)
    text: str

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


@dataclasses.dataclass(slots=True, eq=False)
class Guard:
    """A global name that must keep its meaning from when the block was made: `np.tanh`, say.

    Attributes:
        scope: the globals; name, attributes: ("np", ("tanh",)); root: what `np` meant; value: what `np.tanh` meant.
    """

    scope: dict[str, Any]
    name: str
    attributes: Sequence[str]
    root: Any
    value: Any

    def holds(self) -> bool:
        """Whether it does: `ab` may be another module now, with the same `nn`."""
        value = self.scope.get(self.name, _MISSING)
        if value is _MISSING:
            value = _builtin(self.scope, self.name)
        for name in self.attributes:
            value = getattr(value, name, _MISSING) if type(value) in _KNOWN else _MISSING
        return value is self.value


@dataclasses.dataclass(slots=True, eq=False)
class Slot:
    """One input of a block, and how it is read.

    Attributes:
        root: the argument that it is read from, by its number, or a name of the function's globals.
        steps: what is read of that: ("key", constant) for an item, ("attr", name) for an attribute.
        index: an index that is applied last: its path, (root, steps), or how it is computed; None without one.
        number: it is only an operand of operators, so that its value need not be known when the block is traced.
        several: the block goes through it item by item: a list or tuple of arrays, never one array.
    """

    root: Any
    steps: tuple[Any, ...]
    index: Path | Key | None
    number: bool
    several: bool = False


def _builtin(scope: dict[str, Any], name: str) -> Any:
    builtins = scope.get("__builtins__")
    space = builtins if type(builtins) is dict else getattr(builtins, "__dict__", {})
    return space.get(name, _MISSING)


@dataclasses.dataclass(slots=True, eq=False)
class BlockInput:
    """A slot in the making.

    Attributes:
        name: its name in the body; node: what is evaluated for it; places: where in the user's code it stands.
        path: (root, steps, index) if the recorder reads it; temporary: the name it is bound to if it does not.
        part: it is passed, and only what another input reads is an operand.
        several: the block goes through it item by item.
    """

    name: str
    node: ast.expr
    path: Any
    places: list[ast.expr] = dataclasses.field(default_factory=list)
    number: bool = True
    temporary: str = ""
    part: bool = False
    several: bool = False


def roots(index: Any) -> list[str]:
    """The names that an index is read from."""
    if index is None:
        return []
    return [name for name, _ in index.paths] if type(index) is Key else [index[0]]


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


class _NoKey(Exception):  # noqa: N818  (a signal inside of this file)
    """A key whose evaluation may run code of the user's."""


def key_of(node: ast.expr) -> Key | None:
    """The key that an index is: of names, attributes, items and constants, by f-strings and arithmetic.

    >>> key_of(ast.parse("f'u_{node.kind}'", mode="eval").body).paths
    (('node', (('attr', 'kind'),)),)
    >>> key_of(ast.parse("names(i)", mode="eval").body)
    """
    made = _KeyBuilder()
    try:
        body = made.build(node)
    except _NoKey:
        return None
    names = [ast.arg(name) for name in made.names()]
    function = ast.Lambda(ast.arguments([], names, None, [], [], None, []), body)
    text = ast.unparse(body)
    code = compile(ast.fix_missing_locations(ast.Expression(function)), "<key>", "eval")
    return Key(tuple(made.paths), tuple(made.items), eval(code, {"_scalar": scalar}), text)


class _KeyBuilder:
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
