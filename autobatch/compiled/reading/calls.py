"""Calls: what is called, with which arguments, and the tables of functions and methods that compiled code knows."""

import ast
import functools
import types as python_types
from collections.abc import Callable
from typing import Any

from autobatch.compiled.reading.exact_types import Array, Dict, List, Scalar, Set, Static, Struct, Text, Union
from autobatch.compiled.reading.machine import NO_CONSTANT, Value
from autobatch.syntax.source import is_library

__all__ = ["CALLS", "METHODS", "call_function", "calls", "methods"]

Handler = Callable[..., Value]

CALLS: dict[Any, Handler] = {}
METHODS: dict[tuple[type, str], Handler] = {}


def calls(*functions: Any) -> Callable[[Handler], Handler]:
    """Registers what compiled code does for calls of these functions: `handler(reader, node, *args, **keywords)`."""

    def register(handler: Handler) -> Handler:
        CALLS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def methods(kind: type, *names: str) -> Callable[[Handler], Handler]:
    """Registers a method of values of a type: `handler(reader, node, self, *args, **keywords)`."""

    def register(handler: Handler) -> Handler:
        METHODS.update({(kind, name): handler for name in names})
        return handler

    return register


def call_function(reader: Any, node: ast.Call) -> Value:
    """A call."""
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(word.arg is None for word in node.keywords):
        raise reader.refuse("arguments with *", node)
    keywords = {str(word.arg): word.value for word in node.keywords}
    if isinstance(node.func, ast.Attribute):
        holder = reader.expr(node.func.value)
        if not isinstance(holder.kind, Static):
            return _method(reader, node, holder, node.func.attr, keywords)
        function = reader.on_attribute(node.func)
    else:
        function = reader.expr(node.func)
    if not isinstance(function.kind, Static):
        raise reader.refuse(f"a call of a {function.kind}", node)
    return call_object(reader, node, function.kind.value, keywords)


def _method(reader: Any, node: ast.Call, holder: Value, name: str, keywords: dict[str, ast.expr]) -> Value:
    kind = Scalar if isinstance(holder.kind, Union) else type(holder.kind)
    handler = METHODS.get((kind, name))
    if handler is None:
        raise reader.refuse(f"the method {name} of a {holder.kind} is not compiled", node)
    holder = reader.once(holder) if kind in (Array, List, Dict, Set, Text, Struct) else holder
    return _handled(reader, node, handler, [holder], keywords)


def call_object(reader: Any, node: ast.Call, function: Any, keywords: dict[str, ast.expr]) -> Value:
    """A call of something that is known while compiling."""
    try:
        handler = CALLS.get(function)
    except TypeError:
        handler = None
    if handler is not None:
        return _handled(reader, node, handler, [], keywords)
    jitted = False
    plain = function
    if hasattr(plain, "py_func") and hasattr(plain, "targetoptions"):  # Numba's dispatcher
        options = {name for name, value in plain.targetoptions.items() if value and name in ("fastmath", "parallel")}
        if options:
            raise reader.refuse(f"a function compiled with {', '.join(sorted(options))}", node)
        plain, jitted = plain.py_func, True
    plain = getattr(plain, "_ab_function", plain)
    if isinstance(plain, functools._lru_cache_wrapper):
        raise reader.refuse("a function with a cache", node)
    if not isinstance(plain, python_types.FunctionType):
        name = getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__)
        raise reader.refuse(f"{name} is not compiled", node)
    if is_library(plain.__code__.co_filename) and not jitted:
        raise reader.refuse(f"{plain.__qualname__} of {plain.__module__} is not compiled", node)
    return user_function(reader, node, plain, keywords, jitted)


def _handled(reader: Any, node: ast.Call, handler: Handler, first: list[Value], keywords: dict[str, ast.expr]) -> Value:
    if getattr(handler, "takes_nodes", False):
        return handler(reader, node, *first, **keywords)
    args = reader.exprs(node.args)
    named = {name: reader.expr(value) for name, value in keywords.items()}
    try:
        return handler(reader, node, *first, *args, **named)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # its signature
            raise reader.refuse("with these arguments it is not compiled", node) from None
        raise


def user_function(
    reader: Any, node: ast.Call, function: python_types.FunctionType, keywords: dict[str, ast.expr], jitted: bool
) -> Value:
    """A call of a function of the user's."""
    args = reader.exprs(node.args)
    named = {name: reader.expr(value) for name, value in keywords.items()}
    values = bound_arguments(reader, node, function, args, named)
    kinds = tuple(value.kind for value in values)
    instance = reader.program.call(function, kinds, jitted or reader.instance.jitted)
    texts = [value.text for value in values if not isinstance(value.kind, Static)]
    out = reader.temp("0", instance.result)
    reader.lines.pop()
    ok = f"ok_{out.text}"
    reader.emit(f"{ok}, {out.text} = {instance.name}({', '.join(['table', 'depth', *texts])}@extra@)")
    reader.fail_if(f"not {ok}")
    if instance.result is None:  # it is not known yet that it ever returns
        reader.stop()
    return out


def bound_arguments(reader: Any, node: Any, function: Any, args: list[Value], named: dict[str, Value]) -> list[Value]:
    """The values of a function's parameters, in their order, defaults among them."""
    tree = reader.program.tree(function).args
    positional = [arg.arg for arg in (*tree.posonlyargs, *tree.args)]
    only_named = [arg.arg for arg in tree.kwonlyargs]
    if tree.vararg or tree.kwarg:
        raise reader.refuse("a function of any number of arguments", node)
    values = dict(zip(positional, args, strict=False))
    if len(args) > len(positional) or set(named) & set(values) or set(named) - set(positional) - set(only_named):
        reader.stop()
    values.update(named)
    defaults = dict(zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults.update(function.__kwdefaults__ or {})
    for name in (*positional, *only_named):
        if name in values:
            continue
        if name not in defaults:
            reader.stop()
        default = defaults[name]
        if isinstance(default, list | dict | set):
            raise reader.refuse(f"the default of {name} is a {type(default).__name__}, which calls share", node)
        values[name] = reader.known_object(default, lambda default=default: default, name, node)
    return [values[name] for name in (*positional, *only_named)]


def constant_of(reader: Any, value: Value | None, default: Any, node: Any, what: str) -> Any:
    """An argument that has to be known while compiling.

    Raises:
        Unreadable: it is not.
    """
    if value is None:
        return default
    if value.constant is NO_CONSTANT:
        raise reader.refuse(f"{what} that is not written as a constant", node)
    return value.constant


__all__ += ["bound_arguments", "call_object", "constant_of", "user_function"]
