"""The effects of a function in normal form: which values it newly makes, and which objects its statements change.

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
from autobatch.program import normal_form as nf
from autobatch.program.liveness import own_binds

UNKNOWN = object()
_MODULES = {"np": np, "numpy": np, "math": math}
_ALL = 1 << 10  # new at all depths
ARRAY_METHODS = method_names(np.ndarray) - method_names(list, dict, set, tuple, str, collections.deque)
"""Names of methods that arrays have but Python's containers do not."""
_ITEMS_ARE_KEPT = frozenset({"extend", "update", "extendleft", "__iadd__", "__ior__"})
_DISPLAYS = frozenset({"list", "tuple", "set"})
_NEW_VALUES = nf.SINGLE | nf.COMPARED | nf.OF_OBJECTS | {"not", "truth", "format", "slice"}
_Binding = tuple[nf.Value | None, int]  # (value, level): 0 is the value itself, 1 an item of it


def literal(node: Any) -> Any:
    """A constant's value, else the node itself; the `literal` argument of `Effect.written`."""
    return node.value if isinstance(node, nf.Constant) else node


def keywords(call: nf.Call) -> dict[str, nf.Value]:
    """The keyword arguments of a call by name; a mapping unpacked by `**` is under the name "**"."""
    return {name or "**": value for name, value in call.keywords}


def unpacks(call: nf.Call) -> bool:
    """True if a call unpacks arguments by `*` or `**`, so that syntax does not show which arguments it passes."""
    return any(isinstance(arg, nf.Spread) for arg in call.args) or any(not name for name, _ in call.keywords)


def usual_meaning(name: str) -> Any:
    """The usual object of a name (numpy, math, builtins), for a program without a function to look it up in."""
    return _MODULES.get(name, vars(builtins).get(name, UNKNOWN))


def updated(node: nf.Node) -> nf.Value | None:
    """The value that is added in `x += value`, `x[i] -= value` and the like; None for any other statement."""
    if isinstance(node, nf.Bind | nf.Write) and isinstance(node.value, nf.Call):
        symbol = node.value.symbol
        return node.value.args[1] if symbol.endswith("=") and symbol not in _NEW_VALUES else None
    return None


class EffectReader:
    """Analyzes statements, the functions that they make included, given the meaning of their free names.

    Args:
        body: the statements; given: names bound to objects that others know too, such as parameters.
        meaning: returns the object that a free name refers to, or `UNKNOWN`.

    Attributes:
        nodes: all nodes; own: names bound in the statements; functions: names of functions made in them.
        meanings: {free name: result of `meaning`}. generators: {name: function of a generator expression}.

    >>> from autobatch.program.lowering import lowered
    >>> function = lowered(ast.parse("def f(x):\\n y = np.zeros(3)\\n z = x\\n y[0] = 1\\n z[0] = 2").body[0])
    >>> reader = EffectReader(function.body, {"x"}, usual_meaning)
    >>> [reader.depth(nf.Name(function.at, name)) > 0 for name in "xyz"]
    [False, True, False]
    """

    def __init__(self, body: Iterable[nf.Statement], given: Iterable[str], meaning: Callable[[str], Any]) -> None:
        self.nodes = list(_everywhere(list(body)))
        self.functions: set[str] = set()
        self.generators: dict[str, nf.Closure] = {}
        self.meanings: dict[str, Any] = {}
        self._meaning = meaning
        self._iterables: set[str] = set()
        self._bindings: dict[str, list[_Binding]] = {name: [(None, 0)] for name in given}
        self._puts: dict[str, list[tuple[int, _Binding]]] = {}
        self._depths: dict[str, int] | None = None
        for node in self.nodes:
            self._note_bindings(node)
        self.own = frozenset(self._bindings)
        for node in self.nodes:
            self._note_puts(node)

    # names

    def value_of(self, node: nf.Node) -> Any:
        """The object that a free dotted name such as `np.linalg.norm` refers to; `UNKNOWN` for anything else."""
        if isinstance(node, nf.Name):
            if node.id in self.own:
                return UNKNOWN
            if node.id not in self.meanings:
                self.meanings[node.id] = self._meaning(node.id)
            return self.meanings[node.id]
        if isinstance(node, nf.Read) and isinstance(node.key, str):
            holder = self.value_of(node.base)
            if isinstance(holder, ModuleType | type | np.ufunc):
                return getattr(holder, node.key, UNKNOWN)
        return node.value if isinstance(node, nf.Constant) and callable(node.value) else UNKNOWN

    def values(self, name: str) -> list[nf.Value | None]:
        """The values that a name is bound to; None for each binding to part of a value or to no value."""
        return [None if level else value for value, level in self._bindings.get(name, [])]

    def iterated(self, over: nf.Value) -> nf.Value:
        """What a loop goes over: in a generator expression, the iterable that it is made with."""
        values = self.values(over.id) if isinstance(over, nf.Name) else []
        found = values[0] if len(values) == 1 and over.id in self._iterables else None  # type: ignore[attr-defined]
        return over if found is None else found

    def effects(self, call: nf.Call) -> list[tuple[Effect, list[nf.Value]]]:
        """The possible effects of a call, each with its arguments; several if several classes have the method.

        An empty list means that the effect is unknown, or that an operator is called.
        """
        function = self.value_of(call.function)
        if function is not UNKNOWN:
            effect = effect_of(function)
            return [] if effect is None else [(effect, call.args)]
        if isinstance(call.function, nf.Read) and isinstance(call.function.key, str):
            args = [call.function.base, *call.args]
            return [(effect, args) for effect in effects_of_method(call.function.key)]
        return []

    def _note_bindings(self, node: nf.Node) -> None:
        match node:
            case nf.Bind(target=str() as name, value=nf.Closure() as function):
                self._bind(name, (None, 0))
                self.functions.add(name)
                if function.name == "<genexpr>":
                    self.generators[name] = function
            case nf.Bind(target=target, value=nf.Value() as value) if updated(node) is None:
                self._bind(target, (value, 0))
            case nf.Loop(target=str() | nf.Unpack() as target, over=over):
                self._bind_items(target, over)
            case nf.Closure():
                if node.name != "<genexpr>":  # its parameter is bound where it is called
                    for name in node.parameters.names:
                        self._bind(name, (None, 0))
                for name in node.shared | node.outer:
                    self._bind(name, (None, 0))
            case nf.Call(function=nf.Name(id=name), args=[first]) if name in self.generators:
                (iterable,) = self.generators[name].parameters.positional
                self._iterables.add(iterable)
                self._bind(iterable, (first, 0))
            case nf.With() | nf.Try() | nf.OpaqueStatement():
                for name in own_binds(node):
                    self._bind(name, (None, 0))

    def _bind(self, target: nf.Target | None, binding: _Binding) -> None:
        value, level = binding
        match target, value:
            case str(name), _:
                self._bindings.setdefault(name, []).append(binding)
            case nf.Unpack(targets=targets, starred=-1), nf.Call(args=values) if (
                not level
                and value.symbol in ("tuple", "list")
                and len(targets) == len(values)
                and not any(isinstance(each, nf.Spread) for each in values)
            ):
                for each, part in zip(targets, values, strict=True):
                    self._bind(each, (part, 0))
            case nf.Unpack(targets=targets), _:
                for each in targets:
                    self._bind(each, (value, level + 1))

    def _bind_items(self, target: nf.Target, iterable: nf.Value) -> None:
        """Bind a loop's target to its items, also through `zip` and `enumerate`."""
        match target, iterable:
            case nf.Unpack(targets=[number, each]), nf.Call(function=nf.Name(id="enumerate"), args=[items, *_]):
                self._bind(number, (nf.Constant(iterable.at, 0), 0))
                self._bind_items(each, items)
            case nf.Unpack(targets=targets), nf.Call(function=nf.Name(id="zip"), args=args) if len(targets) == len(
                args
            ):
                for each, items in zip(targets, args, strict=True):
                    self._bind_items(each, items)
            case _:
                self._bind(target, (iterable, 1))

    def _put(self, at: nf.Value, level: int, binding: _Binding) -> None:
        """Record that a value is stored inside the object of a path's name, and at which depth."""
        while isinstance(at, nf.Read):
            at, level = at.base, level + 1
        if isinstance(at, nf.Name):
            self._puts.setdefault(at.id, []).append((level, binding))

    def _note_puts(self, node: nf.Node) -> None:
        added = updated(node)
        if added is not None:
            read = node.value.args[0]  # type: ignore[attr-defined]
            self._put(read, *((1, (added, 1)) if isinstance(node, nf.Bind) else (0, (added, 0))))
        elif isinstance(node, nf.Write) and node.value is not None:
            self._put(node.base, 1, (node.value, 0))
        if not isinstance(node, nf.Call):
            return
        function = self.value_of(node.function)
        if isinstance(node.function, nf.Read):
            of_items = 1 if node.function.key in _ITEMS_ARE_KEPT else 0
            for effect, args in self.effects(node):
                if "self" in effect.writes:
                    for arg in (*args[1:], *keywords(node).values()):
                        self._put(node.function.base, 1, (arg, of_items))
        if function is not UNKNOWN:
            for effect, args in self.effects(node):
                if effect.always_writes and args and not _is_numpys(function):
                    for arg in args[1:]:
                        self._put(args[0], 1, (arg, 0))

    # new values

    def depth(self, node: nf.Value) -> int:
        """The depth to which a value is new: 0 if anything else may refer to it."""
        if self._depths is None:
            self._find_depths()
        return self._of(node)

    def _find_depths(self) -> None:
        """Compute each name's depth: the greatest fixed point over its bindings and the values stored in it."""
        self._depths = dict.fromkeys(self._bindings, _ALL)
        for _ in range(20):
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

    def _of(self, node: nf.Value) -> int:
        match node:
            case nf.Name(id=name):
                return (self._depths or {}).get(name, 0)
            case nf.Constant():
                return _ALL
            case nf.Spread(value=value):
                return self._of(value)
            case nf.Read(base=base):
                return _less(self._of(base), 1)
            case nf.Call():
                return self._of_operation(node) if node.symbol else self._of_call(node)
        return 0

    def _of_operation(self, node: nf.Call) -> int:
        symbol = node.symbol
        if symbol in _NEW_VALUES:
            return _ALL
        if symbol in _DISPLAYS:
            return 1 + self._least(node.args)
        if symbol == "dict":
            return 1 + self._least(each.args[1] if isinstance(each, nf.Call) else each for each in node.args)
        if symbol == "+":
            return max(1, self._least(node.args))
        if symbol == "*":
            return max([1, *(self._of(each) for each in node.args if self._is_list(each))])
        return 0 if symbol.endswith("=") else _ALL

    def _is_list(self, node: nf.Value) -> bool:
        """True for a list display, and for the name of the list that a comprehension fills."""
        if isinstance(node, nf.Name) and node.id.startswith(nf.TEMPORARY):
            return all(isinstance(each, nf.Call) and each.symbol == "list" for each in self.values(node.id))
        return isinstance(node, nf.Call) and node.symbol == "list"

    def _least(self, nodes: Iterable[nf.Value]) -> int:
        return min((self._of(node) for node in nodes), default=_ALL)

    def _of_call(self, call: nf.Call) -> int:
        if isinstance(call.function, nf.Name) and call.function.id in self.generators:
            body = self.generators[call.function.id].body
            return 1 + self._least(each.value for each in nf.walk(body) if isinstance(each, nf.Yield))
        if unpacks(call):
            return 0
        function = self.value_of(call.function)
        found = self.effects(call)
        if not found:
            return 0
        return min(self._of_result(effect, args, call, function) for effect, args in found)

    def _of_result(self, effect: Effect, args: list[nf.Value], call: nf.Call, function: Any) -> int:
        shared = effect.shared(args, keywords(call), literal)
        if shared:
            return min(_less(self._of(each), int(function is UNKNOWN)) for each in shared)
        if function is UNKNOWN:  # a method; a container's copy shares its items
            return _ALL if effect.name in ARRAY_METHODS else max(1, self._least(args))
        return max(1, self._least(args)) if _makes_container(function) else _ALL

    def _is_array(self, value: nf.Value) -> bool:
        """True if a value is a new NumPy array; values stored in an array are copied."""
        return isinstance(value, nf.Call) and _is_numpys(self.value_of(value.function)) and self._of(value) == _ALL

    # changes

    def changed(self, node: nf.Node) -> Iterator[nf.Value | None]:
        """The values whose objects this node itself, without its parts, changes; None for unknown objects."""
        match node:
            case nf.Bind() if updated(node) is not None:
                yield node.value.args[0]  # type: ignore[union-attr]
            case nf.Write():
                yield node.base
                if updated(node) is not None:
                    yield node.value.args[0]  # type: ignore[union-attr]
            case nf.Closure(shared=shared, outer=outer) if shared or outer:
                yield None
            case nf.Opaque() | nf.OpaqueStatement():
                if any(_may_change(part) for part in ast.walk(node.syntax)):
                    yield None
            case nf.Call():
                for effect, args in self.effects(node):
                    if unpacks(node) and (effect.writes or effect.switches):
                        yield None
                    for written in effect.written(args, keywords(node), literal):
                        yield from self._targets(written)

    def _targets(self, written: nf.Value) -> Iterator[nf.Value | None]:
        """The values behind a written argument: `out` may be a tuple of arrays. None if unknown."""
        if isinstance(written, nf.Call) and written.symbol == "tuple":
            yield from written.args
        elif isinstance(written, nf.Name) and any(
            isinstance(each, nf.Call) and each.symbol == "tuple" for each in self.values(written.id)
        ):
            yield None
        else:
            yield written


def _everywhere(body: list[nf.Statement]) -> Iterator[nf.Node]:
    """All nodes of statements, and of the functions that they make."""
    for node in nf.walk(body):
        yield node
        if isinstance(node, nf.Closure):
            yield from (each for function in nf.closures(node) for each in nf.walk(function.body))


def _may_change(part: ast.AST) -> bool:
    """True if a piece of syntax may change an object itself, without its parts."""
    if isinstance(part, ast.Subscript | ast.Attribute):
        return not isinstance(part.ctx, ast.Load)
    return isinstance(part, ast.Call | ast.AugAssign | ast.Global | ast.Nonlocal)


def _less(depth: int, level: int) -> int:
    return depth if depth >= _ALL else max(0, depth - level)


def _is_numpys(function: Any) -> bool:
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return isinstance(function, np.ufunc) or (package == "numpy" and not isinstance(function, type))


def _makes_container(function: Any) -> bool:
    return any(function is each for each in NEW_CONTAINERS) and function.__name__ != "deepcopy"
