"""Whether code may change the objects that it is given: what it stores into, and the methods that it calls."""

import ast
import dis
import functools
import inspect
import math
import textwrap
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from autobatch.ops import nn

__all__ = ["may_store"]

_STORES = frozenset(("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL"))
_CHANGING = frozenset(
    """
    __delattr__ __delitem__ __dict__ __setattr__ __setitem__ add append appendleft at clear copyto delattr
    difference_update discard extend extendleft fill fill_diagonal heapify heappop heappush heappushpop heapreplace
    insert intersection_update itemset move_to_end partition place pop popitem popleft put putmask remove resize reverse
    rotate setattr setdefault setflags shuffle sort subtract symmetric_difference_update update vars
    """.split()  # noqa: SIM905 - as one reads names
)
_OF_ITSELF = _CHANGING - {"at", "copyto", "delattr", "setattr", "vars"}  # methods that change the object they are of
_KNOWN = (np, np.linalg, np.random, np.random.Generator, np.ndarray, str, dict, list, set, tuple, math, nn)
_HARMLESS = frozenset(name for each in _KNOWN for name in dir(each)) - _CHANGING
_NEW = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.BinOp, ast.UnaryOp, ast.Constant)
_NEW_ARRAYS = frozenset(("arange", "array", "empty", "eye", "full", "identity", "linspace", "ones", "zeros"))
_MAKERS = frozenset(("list", "dict", "set", "deque", "defaultdict", "Counter", "OrderedDict", "sorted"))


def may_store(codes: Iterable[CodeType], classes: Iterable[type]) -> bool:
    """Whether code stores into what it has not made, or calls what may; methods are looked for in these classes."""
    classes = list(classes)
    waiting, seen = [*codes, *_called_without_a_name(classes)], set()
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        stores, methods = _facts(code)
        if stores:
            return True
        for name in methods:
            found = [function.__code__ for kind in classes if (function := _method(kind, name)) is not None]
            if not found:
                return True
            waiting += found
    return False


def _called_without_a_name(classes: Iterable[type]) -> list[CodeType]:
    """What Python calls of these classes without a name: calls of objects, operators, properties."""
    found = []
    for each in (each for kind in classes for name, each in vars(kind).items() if name != "__init__"):
        functions = (each.fget, each.fset) if isinstance(each, property) else (each,)
        special = isinstance(each, property) or getattr(each, "__name__", "").startswith("__")
        found += [function.__code__ for function in functions if special and isinstance(function, FunctionType)]
    return found


def _method(kind: type, name: str) -> Any:
    found = getattr(kind, name, None)
    return found if isinstance(found, FunctionType) else None


@functools.lru_cache(maxsize=4096)
def _facts(code: CodeType) -> tuple[bool, frozenset[str]]:
    """Whether code, or a function in it, may store into what it has not made; and the methods it calls that may."""
    stores, methods = _named(code)
    return stores and not _stores_into_new_only(code), frozenset(methods - _HARMLESS - _CHANGING)


def _named(code: CodeType) -> tuple[bool, set[str]]:
    """Whether code stores or names what does, and the methods it calls."""
    stores = not _CHANGING.isdisjoint(code.co_names)
    methods: set[str] = set()
    for each in dis.get_instructions(code):
        if each.opname in _STORES:
            stores = True
        elif each.opname == "LOAD_METHOD" or (each.opname == "LOAD_ATTR" and "NULL|self" in each.argrepr):
            methods.add(each.argval)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            more, called = _named(const)
            stores, methods = stores or more, methods | called
    return stores, methods


def _stores_into_new_only(code: CodeType) -> bool:
    """Whether all that a function stores into are lists, dicts and arrays that it makes itself."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError, ValueError, TypeError):
        return False
    if not isinstance(function, ast.FunctionDef):
        return False
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    arguments = {each.arg for node in (function, *nodes) for each in ast.walk(node) if isinstance(each, ast.arg)}
    bound = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    made: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_new(node.value):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    made[target.id] = made.get(target.id, 0) + 1
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            made[node.target.id] = made.get(node.target.id, 0) + 1
    times: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            times[node.id] = times.get(node.id, 0) + 1
    new = {name for name in bound - arguments if times[name] == made.get(name)}
    if any(isinstance(node, ast.Global | ast.Nonlocal) for node in nodes):
        return False
    return all(isinstance(each, ast.Name) and each.id in new for node in nodes for each in _changed(node))


def _is_new(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        function = value.func
        if isinstance(function, ast.Attribute):
            name, of = function.attr, function.value
            return name == "copy" or (
                isinstance(of, ast.Name) and of.id == "np" and (name in _NEW_ARRAYS or name.endswith("_like"))
            )
        return isinstance(function, ast.Name) and function.id in _MAKERS
    return isinstance(value, _NEW)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """What a node stores into."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.value
    elif isinstance(node, ast.Attribute) and node.attr in _CHANGING:
        yield node.value if node.attr in _OF_ITSELF else node
    elif isinstance(node, ast.Name) and node.id in _CHANGING:
        yield node
