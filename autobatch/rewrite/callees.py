"""Decides which calls may reach user functions, which of those a block may call, and the form to call instead."""

import ast
import functools
import importlib
import sys
import types
from collections.abc import Callable, Hashable, Mapping
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any

import numpy as np

from autobatch.blocks.block_expressions import Names, Scope
from autobatch.blocks.block_inputs import Guard
from autobatch.blocks.finder import guards_of_helper
from autobatch.facts.python_functions import FRAME_READERS
from autobatch.ops.numpy.creation import CREATION
from autobatch.ops.numpy.python_math import OF_NUMBERS
from autobatch.syntax.bounded_caches import MOST_FUNCTIONS, BoundedDict
from autobatch.syntax.liveness import annotate
from autobatch.syntax.quote import expression
from autobatch.syntax.scopes import path_of
from autobatch.syntax.source import PARSING, NoSourceError, as_function, find, is_library

FORM, KNOWN, ID = "_ab_form", "_ab_known", "_ab_id"  # makes the form of a function; {id of function: form}
_OF_CONTAINERS = frozenset({"append", "extend", "pop", "get", "items", "keys", "values"})  # called in every loop
_MISSING = object()
_NO_PLAIN_CODE = 0x20 | 0x80 | 0x100 | 0x200  # generator, coroutine, iterable coroutine, asynchronous generator
_NUMBERS = (int, float, bool, type(None), str)
_relied: BoundedDict[tuple[int, int], tuple[types.CodeType, Any, list[Guard] | None]] = BoundedDict(MOST_FUNCTIONS)
_ARRAY_FUNCTIONS = (np.ufunc, type(np.sum))


def through_form(function: ast.expr, scope: Scope, classes: bool = False) -> ast.expr:
    """The expression to call instead: the form of a function that may be the user's, or with `classes` of a class."""
    found = path_of(function)
    if found is not None and found[0] not in scope.local:
        value = scope.binding(found[0])
        for how, name in found[1]:
            value = vars(value).get(name, _MISSING) if how == "attr" and isinstance(value, types.ModuleType) else None
        if value is type:
            return expression("_ab_class", function)
        if isinstance(value, Hashable) and value in OF_NUMBERS:
            return expression("_ab_number(F)", function, F=function)
        if value is not None and not is_users(value) and not (classes and isinstance(value, type)):
            return _of_numpy(function, value)
    elif isinstance(function, ast.Attribute) and function.attr in _OF_CONTAINERS:
        return function
    if isinstance(function, ast.Name):  # faster, and reading a name twice does no harm
        return expression(f"{KNOWN}.get({ID}(F)) or {FORM}(F)", function, F=function.id)
    return expression(f"{FORM}(F)", function, F=function)


def _of_numpy(function: ast.expr, value: Any) -> ast.expr:
    """The callee for a library function: wrapped if NumPy's and marked by `taped_forms.mark`, else unchanged."""
    if type(value) not in _ARRAY_FUNCTIONS and not (isinstance(value, Hashable) and value in CREATION):
        return function
    if hasattr(function, "maker"):
        return expression("_ab_total(F)" if hasattr(function, "total") else "_ab_maker(F)", function, F=function)
    return expression("_ab_listed(F)", function, F=function) if hasattr(function, "listed") else function


def is_users(value: Any) -> bool:
    """True if calling the value runs Python code that belongs to no library."""
    kind = type(value)
    if kind is types.FunctionType:
        return not is_library(value.__code__.co_filename)
    if kind is types.MethodType:
        return is_users(value.__func__)
    if hasattr(kind, "_ab_batch"):
        return is_users(value.__wrapped__)
    if kind is functools.partial or isinstance(value, type):
        return False
    call: Any = getattr(kind, "__call__", None)  # noqa: B004  (reads the method; a callable() test is not enough)
    call = call.__wrapped__ if hasattr(type(call), "_ab_batch") else call
    return type(call) is types.FunctionType and is_users(call)


def helper(function: Any) -> list[Guard] | None:
    """The guards of a function that a block may call like an operation; None if a block may not call it."""
    if hasattr(type(function), "_ab_batch"):
        function = function.__wrapped__
    if type(function) is not types.FunctionType or is_library(function.__code__.co_filename):
        return None
    code = function.__code__
    key = id(code), id(function.__globals__)
    found = _relied.get(key)
    if found is None:
        _relied[key] = code, function.__globals__, None  # while this is found, so that a recursive function is refused
        found = _relied[key] = code, function.__globals__, _relied_on(function)
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return found[2] if all(type(value) in _NUMBERS for value in given) else None


def _relied_on(function: types.FunctionType) -> list[Guard] | None:
    code = function.__code__
    if code.co_freevars or code.co_flags & _NO_PLAIN_CODE:
        return None
    try:
        node, owner = find(function)
        if owner is not None:
            return None
        tree = as_function(node, code.co_name)
    except NoSourceError:
        return None
    annotate(tree)
    none = Names()
    return guards_of_helper(tree, Scope(function.__globals__, none, none, none, helper))


FRAME_NAME_READERS = FRAME_READERS - {"globals"} | {"_getframe", "currentframe"}
_LIMIT = 1 << 12


class Forms:
    """Maps functions to their forms, which are cached while a run lasts.

    Args:
        of_function: makes the form of a function written in Python; returns the function itself if it has none.
        of_decorated: makes the form of a function with the decorator.
        of_class: makes what is called instead of a class; None: classes are called as they are.
        given: forms of Python's own functions, which are never dropped.

    Attributes:
        known: {id of function: form}.
    """

    def __init__(
        self,
        of_function: Callable[[FunctionType], Any],
        of_decorated: Callable[[Any], Any],
        of_class: Callable[[Any], Any] | None = None,
        given: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:
        self._given = {id(function): form for function, form in given.items()}
        self.known: dict[int, Any] = dict(self._given)
        self._kept: dict[Any, Any] = {}
        self._of_function = of_function
        self._of_decorated = of_decorated
        self._of_class = of_class

    def __reduce__(self) -> Any:
        """Pickle by module and name; the other process has its own forms."""
        module = self._of_function.__module__
        return _forms_of, (module, next(name for name, value in vars(sys.modules[module]).items() if value is self))

    def __call__(self, function: Any) -> Any:
        """The form of `function` to call; `function` itself if it is not the user's own code."""
        found = self.known.get(id(function))
        if found is not None:
            return found
        kind = type(function)
        if kind is FunctionType:
            return self._keep(function, self._of_function)
        if kind is MethodType:
            inner = self(function.__func__)
            return function if inner is function.__func__ else MethodType(inner, function.__self__)
        if isinstance(function, type):
            return function if self._of_class is None else self._keep(function, self._of_class)
        if hasattr(kind, "_ab_batch"):
            return self._keep(function, self._of_decorated)
        if kind is functools.partial:
            inner = self(function.func)
            return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
        call: Any = getattr(kind, "__call__", None)  # noqa: B004  (reads the method; a callable() test is not enough)
        if (type(call) is FunctionType or hasattr(type(call), "_ab_batch")) and is_users(call):
            return MethodType(self(call), function)
        return function

    def _keep(self, function: Any, make: Callable[[Any], Any]) -> Any:
        with PARSING:  # no thread may cache the id of a function that another thread has just released
            form = make(function)
            if len(self._kept) >= _LIMIT:
                self.forget()
            self._kept[function] = self.known[id(function)] = form
        return form

    def forget(self) -> None:
        """Drop the cached forms of functions that were called; their rewritten code stays cached."""
        with PARSING:
            self.known.clear()
            self.known.update(self._given)
            self._kept.clear()


def function_of(function: FunctionType, code: CodeType, given: dict[str, CellType]) -> FunctionType:
    """A copy of a function with other code, whose closure also has the cells in `given`."""
    cells = {**dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)), **given}
    closure = tuple([cells[name] for name in code.co_freevars])
    out = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    out.__kwdefaults__ = function.__kwdefaults__
    out.__dict__.update(function.__dict__)
    out.__qualname__, out.__module__, out.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return out


def _forms_of(module: str, name: str) -> Forms:
    return getattr(importlib.import_module(module), name)
