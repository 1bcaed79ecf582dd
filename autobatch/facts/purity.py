"""What running a function changes beside what it makes: nothing, or one cannot know.

A function that changes nothing may be called for each lane by code that is not converted: in whichever order that is,
nobody can tell. And a map of one needs no copy of what its examples were before.

What operators and attributes of users' classes do is not looked into, nor what an iterator does when it is read.
"""

import ast
import builtins
import copyreg
import dataclasses
import inspect
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from autobatch.core.snapshot import is_users
from autobatch.facts.call_effects import Effect, effect_of
from autobatch.facts.syntax_effects import UNKNOWN, Reader, unpacks
from autobatch.syntax.scopes import parameters, path_of, target_names
from autobatch.syntax.source import NoSourceError, find, is_library

_REFUSED = (
    ast.ClassDef, ast.AsyncFunctionDef, ast.Await, ast.Import, ast.ImportFrom, ast.AsyncFor, ast.AsyncWith, ast.Yield,
    ast.YieldFrom, ast.With,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class _Summary:
    """The changes and the calls of one function.

    Attributes:
        changes: it may change what it has not made, whatever it calls. acts: it does more than compute: it draws,
            prints, imports, has statements that are not looked into.
        calls: users' functions that it calls; methods: names of methods that it calls, of users' classes.
        given: its parameters that it calls. means: what each of its global names stood for.
    """

    changes: bool
    acts: bool
    calls: tuple[Any, ...] = ()
    methods: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    means: tuple[tuple[str, Any], ...] = ()


_GOES_THROUGH = ("enumerate", "zip", "reversed")
_UNREADABLE = _Summary(True, True)
_summaries: weakref.WeakKeyDictionary[FunctionType, dict[bool, _Summary]] = weakref.WeakKeyDictionary()


def is_local(function: Any) -> bool:
    """Whether running a function, a method or an object that is called does nothing but compute, for all that its
    syntax says.
    """
    if isinstance(function, MethodType):
        function = function.__func__
    if _is_decorated(function):
        function = function.__wrapped__
    elif not isinstance(function, FunctionType):
        function = _method(type(function), "__call__")
    return isinstance(function, FunctionType) and not _any_changes([function], [], True)


def only_computes(function: Any, given: Mapping[str, Any]) -> bool:
    """`is_local`, of a function that may call what it is given and reaches by its names: a model and its layers.

    Args:
        given: arguments by name; the others are no functions, and hold none.
    """
    if is_local(function):
        return True
    called = _called_of(function)
    classes, held = _called_parts([function, *given.values()])
    return isinstance(called, FunctionType) and not _any_changes([called], classes, True, held, given)


def _called_parts(roots: Iterable[Any]) -> tuple[list[type], dict[str, list[Any]]]:
    """The users' classes of what values lead to, and what can be called of it, as `may_change` takes them."""
    classes: dict[type, None] = {}
    held: dict[str, list[Any]] = {ANY: []}
    waiting, seen = list(roots), set()
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if callable(value):
            held[ANY].append(value)
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, MethodType):
            waiting += [value.__self__, value.__func__]
        elif _is_decorated(value):
            waiting.append(value.__wrapped__)
        elif isinstance(value, FunctionType):
            if not is_library(value.__code__.co_filename):
                code = value.__code__
                waiting += [meaning_of(value, name) for name in (*code.co_freevars, *code.co_names)]
        elif is_users(kind) and not isinstance(value, type):
            classes[kind] = None
            for name in {*getattr(value, "__dict__", ()), *copyreg._slotnames(kind)}:  # type: ignore[attr-defined]
                waiting.append(part := getattr(value, name, None))
                if callable(part):
                    held.setdefault(name, []).append(part)
    return list(classes), held


ANY = ""
"""What stands for each part of a container that is called: `for layer in self.layers: x = layer(x)`."""


def may_change(
    functions: Iterable[Any], classes: Iterable[type], held: Mapping[str, Sequence[Any]] = MappingProxyType({})
) -> bool:
    """Whether functions may change what they have not made; methods are looked for in these classes.

    Random numbers that they draw and what they print do not count.

    Args:
        held: what objects hold in an attribute and can be called, by its name; and all that can be, by `ANY`.
    """
    return _any_changes(functions, list(classes), False, held)


def _any_changes(
    functions: Iterable[Any],
    classes: list[type],
    acting: bool,
    held: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    given: Mapping[str, Any] = MappingProxyType({}),
) -> bool:
    functions = list(functions)
    waiting, seen = [(each, False) for each in functions], set()
    while waiting:
        function, of_new = waiting.pop()
        if (id(function), of_new) in seen:
            continue
        seen.add((id(function), of_new))
        if isinstance(function, type):
            if acting or not _is_simple(function):
                return True
            waiting += [(each, True) for each in map(vars(function).get, ("__init__", "__post_init__")) if each]
            continue
        summary = _summary(function, of_new)
        if summary.changes or (acting and summary.acts):
            return True
        if summary.given and not (function in functions and summary.given <= given.keys()):
            return True
        waiting += [(_called_of(given[name]), False) for name in summary.given]
        waiting += [(each, False) for each in summary.calls]
        for name in summary.methods:
            found = [method for kind in classes if (method := _method(kind, name)) is not None]
            found += [_called_of(each) for each in held.get(name, ())]
            if not found:
                return True
            waiting += [(each, False) for each in found]
    return False


def _called_of(value: Any) -> Any:
    """The function, or the class, that runs where this is called; itself if that is not written in Python."""
    if isinstance(value, partial):
        return _called_of(value.func)
    function = getattr(value, "__func__", value)
    function = function.__wrapped__ if _is_decorated(function) else function
    if isinstance(function, FunctionType | type):
        return function
    return _method(type(function), "__call__") or function


def _method(kind: type, name: str) -> FunctionType | None:
    found = inspect.getattr_static(kind, name, None)
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    found = getattr(found, "__wrapped__", found) if hasattr(type(found), "_ab_batch") else found
    return found if isinstance(found, FunctionType) else None


def _is_simple(kind: type) -> bool:
    """Whether making an object of a class runs its `__init__` and `__post_init__` only."""
    return type(kind) is type and (kind.__new__ is object.__new__ or issubclass(kind, tuple | BaseException))


def _summary(function: Any, of_new: bool) -> _Summary:
    """What a function changes. Args: of_new: its first parameter is an object that its caller has just made."""
    if not isinstance(function, FunctionType):
        effect = effect_of(function)
        reads = effect is not None and not effect.writes and not effect.calls and effect.changes_nothing_outside
        return _Summary(False, False) if reads else _UNREADABLE
    if function.__code__.co_filename == "<string>" and function.__name__ == "__init__":  # of a dataclass
        return _Summary(False, False)
    known = _summaries.setdefault(function, {})
    summary = known.get(of_new)
    if summary is None or any(meaning_of(function, name) is not value for name, value in summary.means):
        summary = known[of_new] = _read_function(function, of_new)
    return summary


def _read_function(function: FunctionType, of_new: bool) -> _Summary:
    if is_library(function.__code__.co_filename):
        return _UNREADABLE
    try:
        node, _ = find(function)
    except NoSourceError:
        return _UNREADABLE
    given = parameters(node)
    if of_new:
        given -= {each.arg for each in (*node.args.posonlyargs, *node.args.args)[:1]}
    body: list[Any] = node.body if isinstance(node.body, list) else [node.body]
    if of_new and node.args.args:
        new = ast.Assign([ast.Name(node.args.args[0].arg, ast.Store())], ast.List([], ast.Load()))
        body = [new, *body]
    return _read(body, given, lambda name: meaning_of(function, name))


def meaning_of(function: FunctionType, name: str) -> Any:
    """The object that a free name of a function stands for."""
    if name in function.__code__.co_freevars:
        try:
            return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents
        except ValueError:
            return UNKNOWN
    return function.__globals__.get(name, vars(builtins).get(name, UNKNOWN))


def _read(body: list[Any], given: Iterable[str], meaning: Callable[[str], Any]) -> _Summary:
    reader = Reader(body, given, meaning)
    parts = _parts_of_containers(reader) - set(given)
    stored = {node.id for node in reader.nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    inner = [parameters(node) for node in reader.nodes if isinstance(node, ast.FunctionDef | ast.Lambda)]
    own, called = set(given).difference(stored, *inner), set()
    acts = any(isinstance(node, _REFUSED) for node in reader.nodes)
    calls: list[Any] = []
    methods: set[str] = set()
    for node in reader.nodes:
        if any(each is None or not reader.depth(each) for each in reader.changed(node)):
            return _Summary(True, True, means=tuple(reader.meanings.items()))
        if not isinstance(node, ast.Call):
            continue
        effects = [effect for effect, _ in reader.effects(node)]
        function = reader.value_of(node.func)
        acts = acts or (_is_ours(function) and not _computes(function))
        if isinstance(node.func, ast.Name) and node.func.id in parts:
            methods.add(ANY)
        elif isinstance(node.func, ast.Name) and node.func.id in own:
            called.add(node.func.id)
        elif not effects and not _is_known(node, function, reader, calls, methods):
            return _Summary(True, True, means=tuple(reader.meanings.items()))
        acts = acts or not all(effect.changes_nothing_outside for effect in effects)
        for effect in effects:
            if not all(_is_known_function(each, reader, calls) for each in _called(effect, node)):
                return _Summary(True, True, means=tuple(reader.meanings.items()))
    means = tuple(reader.meanings.items())
    return _Summary(False, acts, tuple(calls), frozenset(methods), frozenset(called), means)


def _parts_of_containers(reader: Reader) -> set[str]:
    """The names that only stand for parts of containers that a path leads to: `for layer in self.layers`."""
    found: set[str] = set()
    others: set[str] = set()
    bound = [node for node in reader.nodes if isinstance(node, ast.For | ast.comprehension)]
    for node in bound:
        over = node.iter
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id in _GOES_THROUGH:
            paths = [path_of(arg) for arg in over.args]
        else:
            paths = [path_of(over)]
        (found if all(path is not None and path[1] for path in paths) else others).update(target_names(node.target))
    inside = {id(name) for node in bound for name in ast.walk(node.target)}
    others |= {
        node.id
        for node in reader.nodes
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in inside
    }
    return found - others


def _is_known(node: ast.Call, function: Any, reader: Reader, calls: list[Any], methods: set[str]) -> bool:
    """Whether what is called can be looked into, which then is noted."""
    if function is UNKNOWN and isinstance(node.func, ast.Attribute):
        methods.add(node.func.attr)
        return True
    if _is_ours(function):
        return not unpacks(node) and not any(keyword.arg == "out" for keyword in node.keywords)
    return _is_known_function(node.func, reader, calls)


def _is_ours(function: Any) -> bool:
    """Whether it is a function of this library: one that may draw, and that writes `out` only."""
    return (getattr(function, "__module__", None) or "").partition(".")[0] == "autobatch" and not _is_decorated(
        function
    )


def _computes(function: Any) -> bool:
    """Whether it is a function of `ab.nn` that draws no random numbers."""
    return function.__module__ in _COMPUTING and function.__name__ != "dropout"


_COMPUTING = frozenset(
    [
        f"autobatch.ops.nn.{each}"
        for each in ("activations", "dimensions", "losses", "dropout_and_masks", "softmax_and_norms")
    ]
)


def _is_decorated(function: Any) -> bool:
    return hasattr(type(function), "_ab_batch")


def _called(effect: Effect, node: ast.Call) -> list[ast.expr]:
    """The arguments of a call that are called."""
    if not effect.calls:
        return []
    bound = effect.bind(node.args, {keyword.arg or "": keyword.value for keyword in node.keywords})
    return [arg for name, arg in bound if name in effect.calls]


def _is_known_function(node: ast.expr, reader: Reader, calls: list[Any]) -> bool:
    if isinstance(node, ast.Lambda) or (isinstance(node, ast.Constant) and node.value is None):
        return True
    if isinstance(node, ast.Name) and node.id in reader.functions:
        return True
    if isinstance(node, ast.Call):
        return any(reader.value_of(node.func) is each for each in (operator.itemgetter, operator.attrgetter))
    function = reader.value_of(node)
    if _is_decorated(function):
        function = function.__wrapped__
    if isinstance(function, FunctionType) or (isinstance(function, type) and not effect_of(function)):
        calls.append(function)
        return True
    called = _method(type(function), "__call__")
    if called is not None:  # an object of the user's
        calls.append(called)
        return True
    effect = effect_of(function) if not isinstance(function, ModuleType | MethodType) else None
    return effect is not None and not effect.writes and effect.changes_nothing_outside
