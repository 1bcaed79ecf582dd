"""Decides which calls may reach user functions, which of those a block may call, and the form to call instead."""

import collections
import dataclasses
import functools
import importlib
import sys
import types
from collections.abc import Callable, Hashable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import type_of
from autobatch.core.diagnostics import is_library
from autobatch.facts.call_effects import effect_of, reads_values
from autobatch.facts.python_functions import FRAME_READERS
from autobatch.lazy.fibers import get_attribute, has_attribute, is_instance, with_values
from autobatch.ops.numpy.creation import CREATION
from autobatch.ops.numpy.python_math import OF_NUMBERS
from autobatch.program import normal_form as nf
from autobatch.program.python_text import Writer
from autobatch.program.quote import expression
from autobatch.program.scopes import Scope
from autobatch.program.source import PARSING

FORM, KNOWN, ID = "_ab_form", "_ab_known", "_ab_id"  # makes the form of a function; {id of function: form}
_OF_CONTAINERS = frozenset({"append", "extend", "pop", "get", "items", "keys", "values"})  # called in every loop
_MISSING = object()
CHECKS: dict[Any, Any] = {type: type_of, isinstance: is_instance, hasattr: has_attribute, getattr: get_attribute}
CHECKS[np.fromiter] = functools.partial(with_values, np.fromiter)  # which asks its numbers for Python's
"""Functions that ask what an array is, with the forms in which a recorded array is what it stands for."""
_READS: dict[type, bool] = {dict: False, list: False, set: False, tuple: False, collections.deque: False, str: True}
_KEEPING = (functools.partial, collections.defaultdict)  # these call what they are given later
_KEYED = (max, min, sorted)  # these call what they get by keyword only
_FUNCTIONS = frozenset((FunctionType, MethodType, BuiltinFunctionType, type(str.upper), functools.partial, type))
_ARRAY_FUNCTIONS = (np.ufunc, type(np.sum))


@dataclasses.dataclass(slots=True)
class Marks:
    """What `taped_forms.mark` has found out about the values of a function, by their places, and what was written.

    Attributes:
        made: new arrays that will be written into; maker: calls that make such an array; total: those of which the
            array is only added to as a whole (`+=`). listed: calls that may get a list.
        is_changed: True if anything was written that is not the user's.
    """

    made: set[nf.Place] = dataclasses.field(default_factory=set)
    maker: set[nf.Place] = dataclasses.field(default_factory=set)
    total: set[nf.Place] = dataclasses.field(default_factory=set)
    listed: set[nf.Place] = dataclasses.field(default_factory=set)
    is_changed: bool = False


class Calls(Writer):
    """Writes a function with its calls sent through forms.

    Args:
        scope: the meaning of its names; marks: of its values.
    """

    def __init__(self, scope: Scope, marks: Marks) -> None:
        self.scope = scope
        self.marks = marks

    def syntax_of(self, node: nf.Value) -> Any:
        """A value, marked as made if it is."""
        made = super().syntax_of(node)
        if node.at in self.marks.made:
            return self.changed("_ab_made(VALUE)", node, VALUE=self.placed(made, node))
        return made

    def callee(self, call: nf.Call) -> Any:
        """The expression to call instead: the form of a function or class that may be the user's, or has one here."""
        made = self.value(call.function)
        form = through_form(call, self.scope, self.marks)
        return made if form == "F" else self.changed(form, call, F=made)

    def changed(self, template: str, at: nf.Node, **parts: Any) -> Any:
        """An expression of ours."""
        self.marks.is_changed = True
        return expression(template, self.target("_", at), **parts)


def through_form(call: nf.Call, scope: Scope, marks: Marks) -> str:
    """What to call instead of the function F, as a template."""
    function = call.function
    found = nf.path_of(function)
    if found is not None and found[0] not in scope.local:
        value = scope.binding(found[0])
        for how, name in found[1]:
            of_module = how == "attr" and isinstance(value, types.ModuleType)
            value = vars(value).get(str(name), _MISSING) if of_module else None
        if isinstance(value, Hashable) and value in OF_NUMBERS:
            return "_ab_number(F)"
        has_form = _has_form(value) and (bool(call.keywords) or all(value is not each for each in _KEYED))
        if value is not None and not is_users(value) and not has_form:
            return _of_numpy(call, value, marks)
    elif isinstance(function, nf.Read) and function.key in _OF_CONTAINERS:
        return "F"
    if isinstance(function, nf.Name):  # faster, and reading a name twice does no harm
        return f"{KNOWN}.get({ID}(F)) or {FORM}(F)"
    return f"{FORM}(F)"


def _of_numpy(call: nf.Call, value: Any, marks: Marks) -> str:
    """The callee for a library function: wrapped if NumPy's and marked by `taped_forms.mark`, else unchanged."""
    if not is_numpy(value):
        return "F"
    if call.at in marks.maker:
        return "_ab_total(F)" if call.at in marks.total else "_ab_maker(F)"
    return "_ab_listed(F)" if call.at in marks.listed else "F"


def is_numpy(value: Any) -> bool:
    """True for a function of NumPy's that `taped_forms.mark` may have marked."""
    return type(value) in _ARRAY_FUNCTIONS or (isinstance(value, Hashable) and value in CREATION)


def _has_form(value: Any) -> bool:
    """True if a function or class that is not the user's, or a class of the user's, may have a form."""
    if isinstance(value, type) and type(getattr(value, "__init__", None)) is FunctionType:
        return True
    return (isinstance(value, Hashable) and value in CHECKS) or reads_values(value) or _calls_others(value)


def _calls_others(function: Any) -> bool:
    """True for functions of Python's that call one of their arguments before they, or what they return, are used up."""
    effect = effect_of(function)
    return (effect is not None and bool(effect.calls) and function not in _KEEPING) or (
        type(function) is BuiltinFunctionType and function.__name__ == "sort"
    )


def is_users(value: Any) -> bool:
    """True if calling the value runs Python code that belongs to no library."""
    cls = type(value)
    if cls is types.FunctionType:
        return not is_library(value.__code__.co_filename)
    if cls is types.MethodType:
        return is_users(value.__func__)
    if hasattr(cls, "_ab_batch"):
        return is_users(value.__wrapped__)
    if cls is functools.partial or isinstance(value, type):
        return False
    call: Any = getattr(cls, "__call__", None)  # noqa: B004  (reads the method; a callable() test is not enough)
    call = call.__wrapped__ if hasattr(type(call), "_ab_batch") else call
    return type(call) is types.FunctionType and is_users(call)


FRAME_NAME_READERS = FRAME_READERS - {"globals"} | {"_getframe", "currentframe"}


class Forms:
    """Maps functions to their forms, which are cached while a run lasts.

    Args:
        of_function: given these forms, makes that of a function of the user's; the function itself if it has none.
        of_decorated: given these forms, makes that of a function with the decorator.
        given: forms of Python's own functions, which are never dropped.

    Attributes:
        known: {id of function: form}. cells: the closure cells by which rewritten code finds the forms.
    """

    def __init__(
        self,
        of_function: Callable[["Forms", FunctionType], Any],
        of_decorated: Callable[["Forms", Any], Any],
        given: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:
        self._given = {id(function): form for function, form in (CHECKS | dict(given)).items()}
        self.known: dict[int, Any] = dict(self._given)
        self.cells = {FORM: CellType(self), KNOWN: CellType(self.known), ID: CellType(id)}
        self._kept: dict[Any, Any] = {}
        self._of_function = of_function
        self._of_decorated = of_decorated

    def __reduce__(self) -> Any:
        """Pickle by module and name; the other process has its own forms."""
        module = self._of_function.__module__
        return _forms_of, (module, next(name for name, value in vars(sys.modules[module]).items() if value is self))

    def __call__(self, function: Any) -> Any:
        """The form of `function` to call; `function` itself if it is not the user's own code."""
        found = self.known.get(id(function))
        if found is not None:
            return found
        cls = type(function)
        if cls is BuiltinFunctionType:  # a method: decided at once, since it is a new object at each call
            reads = function.__name__ == "fill" or _READS.get(type(function.__self__))
            if reads is not None and function.__name__ != "sort":
                return functools.partial(with_values, function) if reads else function
        if cls is FunctionType:
            is_own = not is_library(function.__code__.co_filename)
            return self._keep(function, functools.partial(self._of_function, self) if is_own else self._library)
        if cls is MethodType:
            inner = self(function.__func__)
            return function if inner is function.__func__ else MethodType(inner, function.__self__)
        if isinstance(function, type):
            return self._keep(function, self._class)
        if hasattr(cls, "_ab_batch"):
            return self._keep(function, functools.partial(self._of_decorated, self))
        if cls is functools.partial:
            inner = self(function.func)
            return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
        call: Any = getattr(cls, "__call__", None)  # noqa: B004  (reads the method; a callable() test is not enough)
        if (type(call) is FunctionType or hasattr(type(call), "_ab_batch")) and is_users(call):
            return MethodType(self(call), function)
        return self._library(function)

    def _class(self, cls: Any) -> Any:
        """What to call instead of a class, so that `__init__` runs in its form; the class if nothing changes."""
        start = cls.__init__
        plain = type(cls) is not type or cls.__new__ is not object.__new__ or type(start) is not FunctionType
        if plain or reads_values(cls):
            return self._library(cls)
        inner = self(start)
        if inner is start:
            return cls

        def make(*args: Any, **kwargs: Any) -> Any:
            out: Any = object.__new__(cls)
            inner(out, *args, **kwargs)
            return out

        return make

    def _library(self, function: Any) -> Any:
        """The form of what is not the user's: it gets values if it reads them, or calls functions in their forms."""
        if reads_values(function):
            return functools.partial(with_values, function)
        return functools.partial(self._calling, function) if _calls_others(function) else function

    def _calling(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of Python's with the forms of the functions among its arguments."""
        args = tuple([self(each) if type(each) in _FUNCTIONS else each for each in args])
        return function(*args, **{key: self(each) if callable(each) else each for key, each in kwargs.items()})

    def _keep(self, function: Any, make: Callable[[Any], Any]) -> Any:
        with PARSING:  # no thread may cache the id of a function that another thread has just released
            form = make(function)
            if len(self._kept) >= 1 << 12:
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
    closure = tuple(map(cells.__getitem__, code.co_freevars))
    out = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    out.__kwdefaults__ = function.__kwdefaults__
    out.__dict__.update(function.__dict__)
    out.__qualname__, out.__module__, out.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return out


def _forms_of(module: str, name: str) -> Forms:
    return getattr(importlib.import_module(module), name)
