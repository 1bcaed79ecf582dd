"""Syntax analysis of a function: which values it newly makes, and which objects its statements change.

A value is new to some depth: a list that a function makes from its arguments is itself new (depth 1), but its items are
not; `[[0] * n for _ in range(m)]` is new at all depths. A write is local only if the written object is new: in
`rows[0][1] = 2` that object is `rows[0]`, so `rows` must be new to depth 2.
"""

import ast
import builtins
import collections
import math
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from autobatch.facts.call_effects import Effect, effect_of, effects_of_method, method_names
from autobatch.facts.python_functions import NEW_CONTAINERS
from autobatch.program.scopes import parameters

UNKNOWN = object()
_MODULES = {"np": np, "numpy": np, "math": math}
_ALL = 1 << 10  # new at all depths
_MOST_ROUNDS = 20
ARRAY_METHODS = method_names(np.ndarray) - method_names(list, dict, set, tuple, str, collections.deque)
"""Names of methods that arrays have but Python's containers do not."""
_ITEMS_ARE_KEPT = frozenset({"extend", "update", "extendleft", "__iadd__", "__ior__"})
_Binding = tuple[ast.expr | None, int]  # (expression, level): 0 is its value, 1 an item of it


def literal(node: Any) -> Any:
    """A constant node's value, else the node itself; the `literal` argument of `Effect.written`."""
    return node.value if isinstance(node, ast.Constant) else node


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    """The keyword arguments of a call by name; a mapping unpacked by `**` is under the name "**"."""
    return {keyword.arg or "**": keyword.value for keyword in call.keywords}


def unpacks(call: ast.Call) -> bool:
    """True if a call unpacks arguments by `*` or `**`, so that syntax does not show which arguments it passes."""
    return any(isinstance(arg, ast.Starred) for arg in call.args) or any(each.arg is None for each in call.keywords)


def usual_meaning(name: str) -> Any:
    """The usual object of a name (numpy, math, builtins), for syntax without a function to look it up in."""
    return _MODULES.get(name, vars(builtins).get(name, UNKNOWN))


class Reader:
    """Analyzes a piece of syntax, nested functions included, given the meaning of its free names.

    Args:
        body: the syntax; given: names bound to objects that others know too, such as parameters.
        meaning: returns the object that a free name refers to, or `UNKNOWN`.

    Attributes:
        nodes: all nodes; own: names bound in the syntax; functions: names of functions defined in it.
        meanings: {free name: result of `meaning`}.

    >>> tree = ast.parse("y = np.zeros(3)\\nz = x\\ny[0] = 1\\nz[0] = 2")
    >>> reader = Reader(tree.body, {"x"}, usual_meaning)
    >>> [reader.depth(ast.Name(name)) > 0 for name in "xyz"]
    [False, True, False]
    """

    def __init__(self, body: Iterable[ast.AST], given: Iterable[str], meaning: Callable[[str], Any]) -> None:
        self.nodes = [node for each in body for node in ast.walk(each)]
        self.functions = {node.name for node in self.nodes if isinstance(node, ast.FunctionDef)}
        self.meanings: dict[str, Any] = {}
        self._meaning = meaning
        self._bindings: dict[str, list[_Binding]] = {name: [(None, 0)] for name in given}
        self._puts: dict[str, list[tuple[int, _Binding]]] = {}
        self._depths: dict[str, int] | None = None
        for node in self.nodes:
            self._note_bindings(node)
        self.own = frozenset(self._bindings)
        for node in self.nodes:
            self._note_puts(node)

    # names

    def value_of(self, node: ast.AST) -> Any:
        """The object that a free dotted name such as `np.linalg.norm` refers to; `UNKNOWN` for anything else."""
        if isinstance(node, ast.Name):
            if node.id in self.own:
                return UNKNOWN
            if node.id not in self.meanings:
                self.meanings[node.id] = self._meaning(node.id)
            return self.meanings[node.id]
        if isinstance(node, ast.Attribute):
            holder = self.value_of(node.value)
            if isinstance(holder, ModuleType | type | np.ufunc):
                return getattr(holder, node.attr, UNKNOWN)
        return UNKNOWN

    def values(self, name: str) -> list[ast.expr | None]:
        """The expressions that a name is bound to; None for each binding to part of a value or to no expression."""
        return [None if level else value for value, level in self._bindings.get(name, [])]

    def effects(self, call: ast.Call) -> list[tuple[Effect, list[ast.expr]]]:
        """The possible effects of a call, each with its arguments; several if several classes have the method.

        An empty list means that the effect is unknown.
        """
        function = self.value_of(call.func)
        if function is not UNKNOWN:
            effect = effect_of(function)
            return [] if effect is None else [(effect, call.args)]
        if isinstance(call.func, ast.Attribute):
            args = [call.func.value, *call.args]
            return [(effect, args) for effect in effects_of_method(call.func.attr)]
        return []

    def _note_bindings(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, (value, 0))
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                self._bind(target, (value, 0))
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind_items(target, value)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                for name in parameters(node):
                    self._bindings.setdefault(name, []).append((None, 0))
                if not isinstance(node, ast.Lambda):
                    self._bindings.setdefault(node.name, []).append((None, 0))
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                for name in names:
                    self._bindings.setdefault(name, []).append((None, 0))
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                self._bindings.setdefault(name, []).append((None, 0))
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                self._bindings.setdefault(name, []).append((None, 0))
            case ast.withitem(optional_vars=ast.expr() as target):
                self._bind(target, (None, 0))
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    self._bindings.setdefault((alias.asname or alias.name).split(".")[0], []).append((None, 0))

    def _bind(self, target: ast.expr, binding: _Binding) -> None:
        value, level = binding
        match target, value:
            case ast.Name(id=name), _:
                self._bindings.setdefault(name, []).append(binding)
            case ast.Starred(value=inner), _:
                self._bind(inner, binding)
            case (
                (ast.Tuple(elts=targets) | ast.List(elts=targets)),
                (ast.Tuple(elts=values) | ast.List(elts=values)),
            ) if (
                not level
                and len(targets) == len(values)
                and not any(isinstance(each, ast.Starred) for each in (*targets, *values))
            ):
                for each, part in zip(targets, values, strict=True):
                    self._bind(each, (part, 0))
            case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
                for each in targets:
                    self._bind(each, (value, level + 1))
            case ((ast.Subscript() | ast.Attribute()), _):
                self._put(target, binding)

    def _bind_items(self, target: ast.expr, iterable: ast.expr) -> None:
        """Bind a loop's target to its items, also through `zip` and `enumerate`."""
        match target, iterable:
            case ast.Tuple(elts=[number, each]), ast.Call(func=ast.Name(id="enumerate"), args=[items, *_]):
                self._bind(number, (ast.Constant(0), 0))
                self._bind_items(each, items)
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=args) if len(targets) == len(args):
                for each, items in zip(targets, args, strict=True):
                    self._bind_items(each, items)
            case _:
                self._bind(target, (iterable, 1))

    def _put(self, target: ast.expr, binding: _Binding) -> None:
        """Record that a value is stored inside a name's object, and at which depth."""
        level = 0
        while isinstance(target, ast.Subscript | ast.Attribute):
            target, level = target.value, level + 1
        if isinstance(target, ast.Name):
            self._puts.setdefault(target.id, []).append((level, binding))

    def _note_puts(self, node: ast.AST) -> None:
        if isinstance(node, ast.AugAssign):
            at = node.target
            whole = isinstance(at, ast.Name)
            self._put(ast.Subscript(at, at) if whole else at, (node.value, 1 if whole else 0))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_items = 1 if node.func.attr in _ITEMS_ARE_KEPT else 0
            for effect, args in self.effects(node):
                if "self" in effect.writes:
                    for arg in (*args[1:], *keywords(node).values()):
                        self._put(ast.Subscript(node.func.value, arg), (arg, of_items))
        if isinstance(node, ast.Call) and self.value_of(node.func) is not UNKNOWN:
            for effect, args in self.effects(node):
                if effect.always_writes and args and not _is_numpys(self.value_of(node.func)):
                    for arg in args[1:]:
                        self._put(ast.Subscript(args[0], arg), (arg, 0))

    # new values

    def depth(self, node: ast.expr) -> int:
        """The depth to which an expression's value is new: 0 if anything else may refer to it."""
        if self._depths is None:
            self._find_depths()
        return self._of(node)

    def _find_depths(self) -> None:
        """Compute each name's depth: the greatest fixed point over its bindings and the values stored in it."""
        self._depths = dict.fromkeys(self._bindings, _ALL)
        for _ in range(_MOST_ROUNDS):
            found = {name: self._of_name(name) for name in self._bindings}
            if found == self._depths:
                return
            self._depths = found
        self._depths = dict.fromkeys(self._bindings, 0)

    def _of_name(self, name: str) -> int:
        bindings = self._bindings[name]
        out = min(self._of_binding(each) for each in bindings)
        if out and not all(value is not None and not level and self._is_array(value) for value, level in bindings):
            out = min([out, *(level + self._of_binding(each) for level, each in self._puts.get(name, ()))])
        return out

    def _of_binding(self, binding: _Binding) -> int:
        value, level = binding
        return 0 if value is None else _less(self._of(value), level)

    def _of(self, node: ast.expr) -> int:
        match node:
            case ast.Name(id=name):
                return (self._depths or {}).get(name, 0)
            case ast.Constant() | ast.Compare() | ast.JoinedStr() | ast.UnaryOp():
                return _ALL
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return 1 + self._least(parts)
            case ast.Dict(values=parts):
                return 1 + self._least(parts)
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
                return 1 + self._of(part)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return max(1, min(self._of(left), self._of(right)))
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                displays = [each for each in (left, right) if isinstance(each, ast.List | ast.ListComp)]
                return max([1, *map(self._of, displays)])
            case ast.BinOp():
                return _ALL
            case ast.IfExp(body=left, orelse=right):
                return self._least([left, right])
            case ast.BoolOp(values=parts):
                return self._least(parts)
            case ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self._of(value)
            case ast.Subscript(value=value) | ast.Attribute(value=value):
                return _less(self._of(value), 1)
            case ast.Call():
                return self._of_call(node)
        return 0

    def _least(self, nodes: Iterable[ast.expr]) -> int:
        return min((self._of(node) for node in nodes), default=_ALL)

    def _of_call(self, call: ast.Call) -> int:
        if unpacks(call):
            return 0
        function = self.value_of(call.func)
        found = self.effects(call)
        if not found:
            return 0
        return min(self._of_result(effect, args, call, function) for effect, args in found)

    def _of_result(self, effect: Effect, args: list[ast.expr], call: ast.Call, function: Any) -> int:
        shared = effect.shared(args, keywords(call), literal)
        if shared:
            return min(_less(self._of(each), int(function is UNKNOWN)) for each in shared)
        if function is UNKNOWN:  # a method; a container's copy shares its items
            return _ALL if effect.name in ARRAY_METHODS else max(1, self._least(args))
        return max(1, self._least(args)) if _makes_container(function) else _ALL

    def _is_array(self, value: ast.expr) -> bool:
        """True if an expression makes a new NumPy array; values stored in an array are copied."""
        return isinstance(value, ast.Call) and _is_numpys(self.value_of(value.func)) and self._of(value) == _ALL

    # changes

    def changed(self, node: ast.AST) -> Iterator[ast.expr | None]:
        """The expressions whose objects this node itself, without its children, changes; None for unknown objects."""
        match node:
            case ast.AugAssign(target=target):
                yield target
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
                yield value
            case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()):
                yield value
            case ast.Global() | ast.Nonlocal():
                yield None
            case ast.Call():
                for effect, args in self.effects(node):
                    if unpacks(node) and (effect.writes or effect.switches):
                        yield None
                    for written in effect.written(args, keywords(node), literal):
                        yield from self._targets(written)

    def _targets(self, written: ast.expr) -> Iterator[ast.expr | None]:
        """The array expressions behind a written argument: `out` may be a tuple of arrays. None if unknown."""
        if isinstance(written, ast.Tuple):
            yield from written.elts
        elif isinstance(written, ast.Name) and any(isinstance(each, ast.Tuple) for each in self.values(written.id)):
            yield None
        else:
            yield written


def _less(depth: int, level: int) -> int:
    return depth if depth >= _ALL else max(0, depth - level)


def _is_numpys(function: Any) -> bool:
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return (isinstance(function, np.ufunc) or package == "numpy") and not isinstance(function, type)


def _makes_container(function: Any) -> bool:
    return any(function is each for each in NEW_CONTAINERS) and function.__name__ != "deepcopy"
