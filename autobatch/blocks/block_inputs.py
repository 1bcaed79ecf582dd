"""The inputs of a block: how each is read, computed keys, and guards for the global names that the block relies on."""

import ast
import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.errors import Unsupported
from autobatch.program.scopes import path_of

_KNOWN = (types.ModuleType, types.FunctionType)
_MISSING = object()
Path = tuple[Any, tuple[tuple[str, Any], ...]]


KEYS = (int, str, np.int64)
CONTAINERS = (list, tuple, dict, np.ndarray)
FAULTS = (LookupError, AttributeError, NameError, TypeError, ValueError, ArithmeticError)
"""Errors that reading and computing may raise; the user's own code, run afterwards, raises them again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A computed key, and the inputs that it is computed from.

    Attributes:
        paths: (root, steps) of each part; items: for each part, True if it is a container of which an item is read.
        function: computes the key from the values at the paths.
        text: the source of the key; keys with equal paths and text are equal.
    """

    paths: tuple[tuple[Any, Any], ...]
    items: tuple[bool, ...] = dataclasses.field(compare=False)
    function: Callable[..., Any] = dataclasses.field(compare=False)
    text: str

    def suits(self, values: Sequence[Any]) -> bool:
        """True if the key can be computed from values of these types without running user code."""
        return all(
            type(value) in (CONTAINERS if of_items else KEYS)
            for value, of_items in zip(values, self.items, strict=True)
        )


def scalar(value: Any) -> Any:
    """Check an item that a key is computed from, and return it.

    Raises:
        LookupError: it is neither a string nor an integer.
    """
    if type(value) not in KEYS:
        raise LookupError(value)
    return value


@dataclasses.dataclass(slots=True, eq=False)
class Guard:
    """A global name that must still mean what it meant when the block was made, such as `np.tanh`.

    Attributes:
        scope: the globals; name, attributes: ("np", ("tanh",)); root: the object `np` then; value: `np.tanh` then.
    """

    scope: dict[str, Any]
    name: str
    attributes: Sequence[str]
    root: Any
    value: Any

    def holds(self) -> bool:
        """True if it still means the same; `ab` may be another module by now, as long as its `nn` is the same."""
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
        root: the argument that it is read from, by position, or the name of a global.
        steps: the reads from the root: ("key", constant) for an item, ("attr", name) for an attribute.
        index: the index that is applied last: its path (root, steps), or a computed `Key`; None without one.
        number: True if it is only an operand of operators, so that tracing need not know the value of a number.
        is_list: True if the block iterates over it: it must be a list or tuple of arrays, never one array.
    """

    root: Any
    steps: tuple[Any, ...]
    index: Path | Key | None
    number: bool
    is_list: bool = False


def _builtin(scope: dict[str, Any], name: str) -> Any:
    builtins = scope.get("__builtins__")
    space = builtins if type(builtins) is dict else getattr(builtins, "__dict__", {})
    return space.get(name, _MISSING)


@dataclasses.dataclass(slots=True, eq=False)
class BlockInput:
    """A slot under construction.

    Attributes:
        name: its name in the body; node: the expression evaluated for it; places: its nodes in the user's code.
        path: (root, steps, index) if the recorder reads it; temporary: the name it is bound to otherwise.
        part: True if it is passed only so that another input can be read from it.
        is_list: True if the block iterates over it.
        is_passed: True if a helper gets it, so that it may be a container.
    """

    name: str
    node: ast.expr
    path: Any
    places: list[ast.expr] = dataclasses.field(default_factory=list)
    number: bool = True
    temporary: str = ""
    part: bool = False
    is_list: bool = False
    is_passed: bool = False


def roots(index: Any) -> list[str]:
    """The names that an index is read from."""
    if index is None:
        return []
    return [name for name, _ in index.paths] if type(index) is Key else [index[0]]


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def key_of(node: ast.expr) -> Key | None:
    """The key computed by an index of names, attributes, items and constants, with f-strings and arithmetic; else None.

    >>> key_of(ast.parse("f'u_{node.kind}'", mode="eval").body).paths
    (('node', (('attr', 'kind'),)),)
    >>> key_of(ast.parse("names(i)", mode="eval").body)
    """
    made = _KeyBuilder()
    try:
        body = made.build(node)
    except Unsupported:
        return None
    names = [ast.arg(name) for name in made.names()]
    function = ast.Lambda(ast.arguments([], names, None, [], [], None, []), body)
    text = ast.unparse(body)
    code = compile(ast.fix_missing_locations(ast.Expression(function)), "<key>", "eval")
    return Key(tuple(made.paths), tuple(made.items), eval(code, {"_scalar": scalar}), text)


class _KeyBuilder:
    """A key under construction."""

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
            raise Unsupported
        self.paths.append(path)
        self.items.append(of_items)
        return ast.Name(self.names()[-1], ast.Load())
