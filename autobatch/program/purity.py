"""Purity analysis: a function either changes nothing but objects that it makes, or may change anything.

A function that changes nothing may be called per lane by unconverted code, in any order. A map of such a function
needs no snapshot of its examples.

Operators and attributes of users' classes, and the reading of iterators, are not analyzed.
"""

import builtins
import copyreg
import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from autobatch.core.diagnostics import is_library
from autobatch.core.snapshot import cell_value, is_user_code
from autobatch.errors import Unsupported
from autobatch.facts.call_effects import Effect, effect_of
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict
from autobatch.program.effects import UNKNOWN, EffectReader, keywords, unpacks
from autobatch.program.liveness import binds, own_binds
from autobatch.program.source import normal_form

_NOT_ANALYSED = (nf.OpaqueStatement, nf.Opaque, nf.Yield, nf.With)


@dataclasses.dataclass(frozen=True, slots=True)
class _Summary:
    """The effects and calls of one function's own code.

    Attributes:
        changes: True if it may change objects that it has not made. acts: True if it does more than compute: it draws
            random numbers, prints, imports, or has statements that are not analyzed.
        calls: users' functions that it calls; methods: names of methods that it calls on objects of users' classes.
        given: names of its parameters that it calls. means: (name, object) for each global name when it was analyzed.
    """

    changes: bool
    acts: bool
    calls: tuple[Any, ...] = ()
    methods: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    means: tuple[tuple[str, Any], ...] = ()


_ITERATORS = ("enumerate", "zip", "reversed")
_UNREADABLE = _Summary(True, True)
_summaries: BoundedDict[tuple[int, bool], tuple[CodeType, list[_Summary]]] = BoundedDict(2 * MOST_FUNCTIONS)


def is_pure(function: Any) -> bool:
    """True if calling a function, method or callable object only computes, by an analysis of its syntax."""
    if isinstance(function, MethodType):
        function = function.__func__
    if _is_decorated(function):
        function = function.__wrapped__
    elif not isinstance(function, FunctionType):
        function = _method(type(function), "__call__")
    return isinstance(function, FunctionType) and not _any_changes([function], [], True)


def only_computes(function: Any, given: Mapping[str, Any]) -> bool:
    """`is_pure` for a function that may also call its arguments and what its names reach: a model and its layers.

    Args:
        given: arguments by name; arguments left out must neither be nor contain callables.
    """
    if is_pure(function):
        return True
    called = _callee(function)
    classes, held = _reachable_callables([function, *given.values()])
    return isinstance(called, FunctionType) and not _any_changes([called], classes, True, held, given)


def _reachable_callables(roots: Iterable[Any]) -> tuple[list[type], dict[str, list[Any]]]:
    """(users' classes, callables by attribute name) of all objects reachable from the roots, for `may_change`."""
    classes: dict[type, None] = {}
    held: dict[str, list[Any]] = {ANY: []}
    waiting, seen = list(roots), set()
    while waiting:
        value = waiting.pop()
        cls = type(value)
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
        elif is_user_code(cls) and not isinstance(value, type):
            classes[cls] = None
            for name in {*getattr(value, "__dict__", ()), *copyreg._slotnames(cls)}:  # type: ignore[attr-defined]
                waiting.append(part := getattr(value, name, None))
                if callable(part):
                    held.setdefault(name, []).append(part)
    return list(classes), held


ANY = ""
"""The key in `held` of all callables, for calls of a container's items: `for layer in self.layers: x = layer(x)`."""


def may_change(
    functions: Iterable[Any], classes: Iterable[type], held: Mapping[str, Sequence[Any]] = MappingProxyType({})
) -> bool:
    """True if functions may change objects that they have not made; methods are looked up in `classes`.

    Random draws and prints do not count as changes.

    Args:
        held: {attribute name: callables that objects hold under it}; under `ANY`, all callables.
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
        waiting += [(_callee(given[name]), False) for name in summary.given]
        waiting += [(each, False) for each in summary.calls]
        for name in summary.methods:
            found = [method for cls in classes if (method := _method(cls, name)) is not None]
            found += [_callee(each) for each in held.get(name, ())]
            if not found:
                return True
            waiting += [(each, False) for each in found]
    return False


def _callee(value: Any) -> Any:
    """The Python function or class that runs when this is called; the value itself if there is none."""
    if isinstance(value, partial):
        return _callee(value.func)
    function = getattr(value, "__func__", value)
    function = function.__wrapped__ if _is_decorated(function) else function
    if isinstance(function, FunctionType | type):
        return function
    return _method(type(function), "__call__") or function


def _method(cls: type, name: str) -> FunctionType | None:
    found = inspect.getattr_static(cls, name, None)
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    found = getattr(found, "__wrapped__", found) if hasattr(type(found), "_ab_batch") else found
    return found if isinstance(found, FunctionType) else None


def _is_simple(cls: type) -> bool:
    """True if making an object of the class runs only its `__init__` and `__post_init__`."""
    return type(cls) is type and (cls.__new__ is object.__new__ or issubclass(cls, tuple | BaseException))


def _summary(function: Any, of_new: bool) -> _Summary:
    """A function's `_Summary`, cached. `of_new`: True if its first argument is an object that the caller just made."""
    if not isinstance(function, FunctionType):
        effect = effect_of(function)
        reads = effect is not None and not effect.writes and not effect.calls and effect.changes_nothing_outside
        return _Summary(False, False) if reads else _UNREADABLE
    if function.__code__.co_filename == "<string>" and function.__name__ == "__init__":  # made by dataclass
        return _Summary(False, False)
    key = id(function.__code__), of_new
    found = _summaries.get(key)
    if found is None:
        found = _summaries[key] = function.__code__, []
    known = found[1]
    for summary in known:
        if all(meaning_of(function, name) is value for name, value in summary.means):
            return summary
    known[3:] = []  # its globals and what it captures may mean several things
    known.insert(0, _read_function(function, of_new))
    return known[0]


def _read_function(function: FunctionType, of_new: bool) -> _Summary:
    if is_library(function.__code__.co_filename):
        return _UNREADABLE
    try:
        form = normal_form(function)
    except Unsupported:
        return _UNREADABLE
    given = form.parameters.names
    body = form.body
    first = [*form.parameters.positional_only, *form.parameters.positional][:1]
    if of_new and first:
        given = [name for name in given if name not in first]
        body = [nf.Bind(form.at, first[0], nf.Call(form.at, nf.Operator(form.at, "list"), [])), *body]
    return _summarise(body, given, lambda name: meaning_of(function, name))


def meaning_of(function: FunctionType, name: str) -> Any:
    """The object that a function's closure, global or builtin name refers to; `UNKNOWN` if unbound."""
    if name in function.__code__.co_freevars:
        return cell_value((function.__closure__ or ())[function.__code__.co_freevars.index(name)], UNKNOWN)
    return function.__globals__.get(name, vars(builtins).get(name, UNKNOWN))


def _summarise(body: list[nf.Statement], given: Iterable[str], meaning: Callable[[str], Any]) -> _Summary:
    reader = EffectReader(body, given, meaning)
    parts = _parts_of_containers(reader) - set(given)
    functions = [node for node in reader.nodes if isinstance(node, nf.Closure)]
    stored = binds(body).union(*[{*binds(each.body), *each.parameters.names} for each in functions])
    own, called = set(given) - stored, set()
    of_generators = {id(node) for each in reader.generators.values() for node in nf.walk(each.body)}
    acts = any(isinstance(node, _NOT_ANALYSED) and id(node) not in of_generators for node in reader.nodes)
    changes = False
    calls: list[Any] = []
    methods: set[str] = set()
    for node in reader.nodes:
        changes = changes or any(each is None or not reader.depth(each) for each in reader.changed(node))
        if not isinstance(node, nf.Call) or node.symbol:
            continue
        effects = [effect for effect, _ in reader.effects(node)]
        function = reader.value_of(node.function)
        acts = acts or (_is_library_function(function) and not _computes(function))
        if isinstance(node.function, nf.Name) and node.function.id in parts:
            methods.add(ANY)
        elif isinstance(node.function, nf.Name) and node.function.id in own:
            called.add(node.function.id)
        elif not effects and not _is_known(node, function, reader, calls, methods):
            return _Summary(True, True, means=tuple(reader.meanings.items()))
        acts = acts or not all(effect.changes_nothing_outside for effect in effects)
        for effect in effects:
            if not all(_is_known_function(each, reader, calls) for each in _called_arguments(effect, node)):
                return _Summary(True, True, means=tuple(reader.meanings.items()))
    means = tuple(reader.meanings.items())
    return _Summary(changes, acts, tuple(calls), frozenset(methods), frozenset(called), means)


def _parts_of_containers(reader: EffectReader) -> set[str]:
    """Names bound only as loop targets over items at a path with attributes or keys: `for layer in self.layers`."""
    found: set[str] = set()
    others: set[str] = set()
    for node in reader.nodes:
        if isinstance(node, nf.Loop) and node.target is not None:
            over = reader.iterated(node.over)
            if isinstance(over, nf.Call) and isinstance(over.function, nf.Name) and over.function.id in _ITERATORS:
                paths = [nf.path_of(arg) for arg in over.args]
            else:
                paths = [nf.path_of(over)]
            of_parts = all(path is not None and path[1] for path in paths)
            (found if of_parts else others).update(nf.target_names(node.target))
        elif isinstance(node, nf.Statement):
            others.update(own_binds(node))
    return found - others


def _is_known(node: nf.Call, function: Any, reader: EffectReader, calls: list[Any], methods: set[str]) -> bool:
    """True if the callee can be analyzed; adds it to `calls` or `methods` if it has to be."""
    if function is UNKNOWN and isinstance(node.function, nf.Read) and isinstance(node.function.key, str):
        methods.add(node.function.key)
        return True
    if _is_library_function(function):
        return not unpacks(node) and not any(name == "out" for name, _ in node.keywords)
    return _is_known_function(node.function, reader, calls)


def _is_library_function(function: Any) -> bool:
    """True for a function of this library: it may draw random numbers, and writes only `out`."""
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return package == "autobatch" and not _is_decorated(function)


def _computes(function: Any) -> bool:
    """True for a function of `ab.nn` that draws no random numbers."""
    return function.__module__ in _COMPUTING and function.__name__ != "dropout"


_NN = "activations dimensions losses dropout_and_masks softmax_and_norms"
_COMPUTING = frozenset([nf.__name__, *(f"autobatch.ops.nn.{each}" for each in _NN.split())])


def _is_decorated(function: Any) -> bool:
    return hasattr(type(function), "_ab_batch")


def _called_arguments(effect: Effect, node: nf.Call) -> list[nf.Value]:
    """The arguments that the callee calls."""
    return [arg for name, arg in effect.bind(node.args, keywords(node)) if name in effect.calls]


def _is_known_function(node: nf.Value, reader: EffectReader, calls: list[Any]) -> bool:
    if isinstance(node, nf.Closure) or (isinstance(node, nf.Constant) and node.value is None):
        return True
    if isinstance(node, nf.Name) and node.id in reader.functions:
        return True
    if isinstance(node, nf.Name) and node.id.startswith(nf.TEMPORARY):  # a choice of functions, or a function kept
        return all(each is not None and _is_known_function(each, reader, calls) for each in reader.values(node.id))
    if isinstance(node, nf.Call):
        return any(reader.value_of(node.function) is each for each in (operator.itemgetter, operator.attrgetter))
    function = reader.value_of(node)
    if _is_decorated(function):
        function = function.__wrapped__
    if isinstance(function, FunctionType) or (isinstance(function, type) and not effect_of(function)):
        calls.append(function)
        return True
    called = _method(type(function), "__call__")
    if called is not None:  # a callable object of the user's
        calls.append(called)
        return True
    effect = effect_of(function) if not isinstance(function, ModuleType | MethodType) else None
    return effect is not None and not effect.writes and effect.changes_nothing_outside
