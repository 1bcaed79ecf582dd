"""The inputs of a block: how each is read, and computed keys."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.errors import Unsupported
from autobatch.program import normal_form as nf
from autobatch.program.python_text import text_of

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


@dataclasses.dataclass(slots=True, eq=False)
class BlockInput:
    """A slot under construction.

    Attributes:
        name: its name in the body; node: the value evaluated for it; places: its nodes in the user's code.
        path: (root, steps, index) if the recorder reads it; temporary: the name it is bound to otherwise.
        part: True if it is passed only so that another input can be read from it.
        is_list: True if the block iterates over it.
        is_passed: True if a helper gets it, so that it may be a container.
    """

    name: str
    node: nf.Value
    path: Any
    places: list[nf.Value] = dataclasses.field(default_factory=list)
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


_OPERATORS = ("+", "-", "*", "//", "%", "neg", "format")


def key_of(node: nf.Value) -> Key | None:
    """The key computed by an index of names, attributes, items and constants, with f-strings and arithmetic; else None.

    >>> import ast
    >>> from autobatch.program.lowering import lowered
    >>> function = lowered(ast.parse("def f(node, i): return f'u_{node.kind}', names(i)").body[0])
    >>> print(*[key and key.paths for key in map(key_of, function.body[-1].value.args)])
    (('node', (('attr', 'kind'),)),) None
    """
    made = _KeyBuilder()
    try:
        body = text_of(made.build(node))
    except Unsupported:
        return None
    function = eval(f"lambda {', '.join(made.names())}: {body}", {"_scalar": scalar})
    return Key(tuple(made.paths), tuple(made.items), function, body)


class _KeyBuilder:
    """A key under construction."""

    def __init__(self) -> None:
        self.paths: list[Any] = []
        self.items: list[bool] = []

    def names(self) -> list[str]:
        return [f"_k{i}" for i in range(len(self.paths))]

    def build(self, node: nf.Value) -> nf.Value:
        match node:
            case nf.Constant(value=str() | int()):
                return node
            case nf.Call(
                function=nf.Operator(symbol="formatted"), args=[value, conversion, nf.Constant(value="") as form]
            ):
                return nf.Call(node.at, node.function, [self.build(value), conversion, form])
            case nf.Call() if node.symbol in _OPERATORS:
                return nf.Call(node.at, node.function, [self.build(each) for each in node.args])
            case nf.Read(base=base, key=nf.Value() as index) if (
                nf.path_of(base) is not None and nf.path_of(node) is None
            ):
                read = nf.Read(node.at, self._leaf(base, True), self.build(index))
                return nf.Call(node.at, nf.Name(node.at, "_scalar"), [read])
        return self._leaf(node, False)

    def _leaf(self, node: nf.Value, of_items: bool) -> nf.Value:
        path = nf.path_of(node)
        if path is None:
            raise Unsupported
        self.paths.append(path)
        self.items.append(of_items)
        return nf.Name(node.at, self.names()[-1])
