"""What a function may change beside its own variables, as far as its syntax says: nothing, or one cannot know.

A function that changes nothing may run on its own for each lane, as a plain call, where its lock-step form cannot: in
whichever order that is, nobody can tell.
"""

import ast
import builtins
import weakref
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from autobatch.facts.scopes import bound_names, parameters
from autobatch.facts.source import NoSourceError, find
from autobatch.lockstep.calls import is_library

__all__ = ["is_local"]

_BUILTINS = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "chr", "complex", "dict", "divmod", "enumerate", "filter",
    "float", "format", "frozenset", "getattr", "hasattr", "hash", "hex", "int", "isinstance", "issubclass", "iter",
    "len", "list", "map", "max", "min", "next", "oct", "ord", "pow", "range", "repr", "reversed", "round", "set",
    "slice", "sorted", "str", "sum", "tuple", "type", "zip", "super", "locals", "vars", "dir",
})  # fmt: skip
_MAKING = frozenset({"list", "dict", "set", "bytearray", "sorted"})
_METHODS = frozenset({
    "all", "any", "argmax", "argmin", "argsort", "astype", "capitalize", "clip", "conj", "copy", "count", "cumprod",
    "cumsum", "decode", "diagonal", "difference", "dot", "encode", "endswith", "find", "flatten", "format", "get",
    "index", "intersection", "is_integer", "isalpha", "isdigit", "isspace", "item", "items", "join", "keys", "lower",
    "lstrip", "max", "mean", "min", "nonzero", "partition", "prod", "ravel", "repeat", "replace", "reshape", "rfind",
    "round", "rsplit", "rstrip", "split", "splitlines", "squeeze", "startswith", "std", "strip", "sum", "swapaxes",
    "take", "title", "tolist", "trace", "transpose", "union", "upper", "values", "var", "zfill", "bit_length",
})  # fmt: skip
_CHANGING = frozenset({
    "add", "append", "appendleft", "clear", "discard", "extend", "fill", "insert", "pop", "popitem", "popleft",
    "remove", "reverse", "setdefault", "sort", "update",
})  # fmt: skip
_WRITERS = frozenset(
    {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "random", "seterr", "save"}
)
_LIBRARIES = frozenset({"numpy", "math", "cmath", "itertools", "operator", "functools", "statistics", "string", "re"})
_REFUSED = (
    ast.Global, ast.Nonlocal, ast.ClassDef, ast.AsyncFunctionDef, ast.Await, ast.Import, ast.ImportFrom, ast.AsyncFor,
    ast.AsyncWith, ast.Yield, ast.YieldFrom, ast.With,
)  # fmt: skip
_known: weakref.WeakKeyDictionary[FunctionType, bool] = weakref.WeakKeyDictionary()


def is_local(code: Any, names: dict[str, Any] | None = None) -> bool:
    """Whether running this changes nothing but its own variables, for all that its syntax says.

    Args:
        code: a function, or source text.
        names: for text, what its global names mean.
    """
    if isinstance(code, str):
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            return True  # it raises, and that is all
        return _Effects(set(), names or {}).none_in(tree.body)
    if not isinstance(code, FunctionType):
        return False
    known = _known.get(code)
    if known is None:
        _known[code] = True  # while it is being looked at: recursion adds nothing
        known = _known[code] = _looked_at(code)
    return known


def _looked_at(function: FunctionType) -> bool:
    if is_library(function.__code__.co_filename):
        return False
    try:
        node, _ = find(function)
    except NoSourceError:
        return False
    outer = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            outer[name] = cell.cell_contents
        except ValueError:
            return False
    body: list[Any] = node.body if isinstance(node.body, list) else [node.body]
    return _Effects(parameters(node), outer).none_in(body)


class _Effects:
    def __init__(self, given: set[str], outer: dict[str, Any]) -> None:
        self.given = given
        self.outer = outer
        self.own: set[str] = set()
        self.fresh: set[str] = set()
        self.functions: set[str] = set()

    def none_in(self, body: Sequence[ast.AST]) -> bool:
        nodes = [node for statement in body for node in ast.walk(statement)]
        if any(isinstance(node, _REFUSED) for node in nodes):
            return False
        nested = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.Lambda)]
        self.given = self.given.union(*(parameters(node) for node in nested))
        self.functions = {node.name for node in nested if isinstance(node, ast.FunctionDef)}
        self.own = self.given | set(bound_names(body)).union(*(bound_names(node.body) for node in nested))
        comprehended = [node for node in nodes if isinstance(node, ast.comprehension)]
        self.own |= {part.id for node in comprehended for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        self.fresh = self._fresh_names(nodes)
        return all(map(self._harmless, nodes))

    def _fresh_names(self, nodes: list[ast.AST]) -> set[str]:
        """Names that hold only what was made here."""
        made: set[str] = set()
        stores = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        plain: set[int] = set()
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                if self._makes(node.value):
                    made.add(node.targets[0].id)
                    plain.add(id(node.targets[0]))
            elif isinstance(node, ast.AugAssign):
                plain.add(id(node.target))
        return made - self.given - {node.id for node in stores if id(node) not in plain}

    def _makes(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Name):
                return value.func.id in _MAKING
            if not isinstance(value.func, ast.Attribute):
                return False
            if isinstance(value.func.value, ast.Name) and self.outer.get(value.func.value.id) is np:
                return value.func.attr.split("_")[0] in ("zeros", "ones", "full", "empty", "array", "arange", "eye")
            return value.func.attr in ("copy", "astype")
        kinds = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.Constant
        return isinstance(value, kinds | ast.BinOp | ast.UnaryOp | ast.Compare)

    def _harmless(self, node: ast.AST) -> bool:
        if isinstance(node, ast.AugAssign):
            return self._is_fresh(node.target)
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return self._is_fresh(node.value)
        return not isinstance(node, ast.Call) or self._call(node)

    def _is_fresh(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            return self._is_fresh(node.value)
        return isinstance(node, ast.Name) and node.id in self.fresh

    def _call(self, node: ast.Call) -> bool:
        if any(keyword.arg in ("out", "file") for keyword in node.keywords):
            return False
        called = node.func
        if isinstance(called, ast.Attribute):
            if isinstance(called.value, ast.Name) and called.value.id not in self.own:
                holder = self.outer.get(called.value.id)
                if isinstance(holder, ModuleType):
                    return holder.__name__.split(".")[0] in _LIBRARIES and not self._writes(called)
            if self._is_of_library(called.value):
                return not self._writes(called)
            return called.attr in _METHODS or (called.attr in _CHANGING and self._is_fresh(called.value))
        if not isinstance(called, ast.Name):
            return isinstance(called, ast.Lambda)
        if called.id in self.functions:
            return True
        if called.id in self.own:
            return False
        value = self.outer.get(called.id, getattr(builtins, called.id, None))
        if isinstance(value, type) and issubclass(value, BaseException):
            return True
        if isinstance(value, FunctionType):
            return is_local(value)
        return called.id in _BUILTINS and value is getattr(builtins, called.id)

    def _is_of_library(self, node: ast.AST) -> bool:
        """`np.linalg` and its like."""
        while isinstance(node, ast.Attribute):
            if node.attr in _WRITERS:
                return False
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.own:
            return False
        holder = self.outer.get(node.id)
        return isinstance(holder, ModuleType) and holder.__name__.split(".")[0] in _LIBRARIES

    @staticmethod
    def _writes(called: ast.Attribute) -> bool:
        return called.attr in _WRITERS or (isinstance(called.value, ast.Attribute) and called.value.attr in _WRITERS)
