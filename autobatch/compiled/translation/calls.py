"""Calls: what is called, with which arguments, and the tables of functions and methods that compiled code knows."""

import copy
import dataclasses
import functools
import inspect
import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import BOOL, INT, NONE
from autobatch.compiled.translation.local_functions import (
    LocalFunction,
    holds_local,
    memoised,
    outer_values,
    rebind,
)
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import NO_CONSTANT, Value, code, parts_of
from autobatch.core.diagnostics import is_library
from autobatch.core.op import Op
from autobatch.errors import MAKE_A_LIST, Unsupported
from autobatch.facts.types import is_plain
from autobatch.ops.rules.dispatch import SOURCES, UFUNCS
from autobatch.program import normal_form as nf

_PYTHON_SOURCES = "autobatch.compiled.functions.python_sources"

Handler = Callable[..., Value]

CALLS: dict[Any, Handler] = {}
ITERATORS: dict[Any, Handler] = {}
"""Functions that return an iterator, with handlers that return a list instead: only a loop may read it."""
METHODS: dict[tuple[type, str], Handler] = {}
_MOST_REFUSALS = 40  # each has a part of the program read twice


def calls(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler for calls of these functions: `handler(reader, node, *args, **keywords)`."""

    def register(handler: Handler) -> Handler:
        CALLS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def methods(kind: type, *names: str) -> Callable[[Handler], Handler]:
    """Register a handler for a method of values of a type: `handler(reader, node, self, *args, **keywords)`."""

    def register(handler: Handler) -> Handler:
        METHODS.update({(kind, name): handler for name in names})
        return handler

    return register


def handler_of(function: Any) -> Handler | None:
    """The handler for calls of a function; of NumPy's, by what its op or its source declares."""
    try:
        found = CALLS.get(function)
        if found is None and function in SOURCES:
            found = functools.partial(read_source, SOURCES[function])
    except TypeError:  # unhashable
        return None
    ufunc = function.__self__ if getattr(function, "__name__", "") in ("accumulate", "at") else function
    if found is None and isinstance(ufunc, np.ufunc) and ufunc.nin < 3:
        op = UFUNCS.get(ufunc)
        if isinstance(op, Op) and op.kind == "elementwise":
            found = functools.partial(CALLS[np.ufunc], ufunc=ufunc, function=function)
    return found


def read_source(source: tuple[Any, ...], reader: Reader, node: nf.Node, *args: Value, **named: Value) -> Value:
    """A call of what is written as plain Python."""
    function, ranks, sums = source
    parameters = inspect.signature(function).parameters
    if len(args) > len(parameters) or not set(named) <= set(parameters):
        raise reader.refuse("with these arguments it is not compiled", node)
    if ranks and _rank(args[0].kind if args else None) not in ranks:
        raise reader.refuse("with arguments of these types it is not compiled", node)
    reader.program.approximate |= sums
    try:
        values = bound_arguments(reader, node, function, list(args), named)
        for place, (value, parameter) in enumerate(zip(values, parameters.values(), strict=True)):
            if type(value.constant) in _OPTIONS and type(parameter.default) in (*_OPTIONS, type(None)):
                values[place] = Value(_option(type(value.constant).__name__, value.constant), "0", value.constant)
        return _instance_call(reader, node, function, values, reader.instance.jitted)
    except Unsupported as error:
        raise reader.refuse(f"with these arguments it is not compiled ({error})", node) from None


_OPTIONS = (int, bool, str, tuple)  # such as an axis: given as constants, they are known inside, too


@functools.cache
def _option(kind: str, value: Any) -> types.Static:
    """The type of an argument that is known; one object for equal values of a type."""
    return types.Static(value)


def _rank(kind: types.Type) -> int:
    """The rank of an array; 1 for a list of numbers, -1 for anything else."""
    if isinstance(kind, types.Array):
        return kind.ndim
    nested = types.List | types.Array | types.Tuple
    return 1 if isinstance(kind, types.List) and not isinstance(kind.elem, nested) else -1


def implements(*functions: Any, into: dict[Any, Any] = CALLS) -> Callable[[Any], Any]:
    """Register the decorated function to be read for calls of these functions, or of methods given as (type, name)."""

    def register(written: Any) -> Any:
        into.update(dict.fromkeys(functions, functools.partial(read_source, (written, (), False))))
        return written

    return register


def call_function(reader: Any, node: nf.Call) -> Value:
    """Read a call expression."""
    if any(not name for name, _ in node.keywords):
        raise reader.refuse("arguments with **", node)
    keywords = dict(node.keywords)
    match node.function:
        case nf.Read(base=base, key=str(name)):
            holder = reader.some(reader.expr(base))
            if isinstance(holder.kind, types.Object):
                args = reader.exprs(node.args)
                return reader.call_attribute(reader.once(holder), name, args, _named(reader, keywords), node)
            if not isinstance(holder.kind, types.Static):
                return _method(reader, node, holder, name, keywords)
            function = reader.attribute(node.function, name)
        case _:
            function = reader.expr(node.function)
    if isinstance(function.kind, types.Object):
        return reader.special("__call__", [reader.once(function), *reader.exprs(node.args)], node)
    if isinstance(function.kind, types.Struct) and "__call__" in vars(function.kind.cls):
        return _method(reader, node, function, "__call__", keywords)
    if not isinstance(function.kind, types.Static):
        raise reader.refuse(f"a call of a {function.kind}", node)
    return call_object(reader, node, function.kind.value, keywords)


def _method(reader: Reader, node: nf.Call, holder: Value, name: str, keywords: dict[str, nf.Value]) -> Value:
    kind: Any = types.Scalar if isinstance(holder.kind, types.Union) else type(holder.kind)
    if kind is types.Scalar and any(not hasattr(types.class_of(each), name) for each in types.members(holder.kind)):
        reader.stop(AttributeError)
    handler = METHODS.get((kind, name)) or (METHODS.get((types.Dict, name)) if issubclass(kind, types.Dict) else None)
    if handler is None and kind in (types.Array, types.Scalar) and hasattr(np.ndarray, name):
        function = getattr(np, name, None)  # of NumPy's, of which ufuncs may give the array itself as a method
        handler = None if isinstance(function, np.ufunc) else handler_of(function)
    classes = getattr(holder.kind, "classes", (getattr(holder.kind, "cls", dict),))
    own = {next((each for each in cls.__mro__ if name in vars(each)), dict) for cls in classes}
    if isinstance(holder.kind, types.Struct | types.ObjectTree) and len(own) == 1 and dict not in own:
        read = functools.partial(vars(own.pop()).get, name)
        function = read()
        if isinstance(function, python_types.FunctionType) and not is_library(function.__code__.co_filename):
            reader.known_object(function, read, name, node)
            return user_function(
                reader, node, function, [reader.once(holder), *reader.exprs(node.args)], _named(reader, keywords)
            )
    if handler is None:

        def handler(reader: Reader, node: nf.Node, *args: Value, **named: Value) -> Value:
            raise reader.refuse(f"the method {name} of a {holder.kind} is not compiled", node)

    return _handled(
        reader, node, handler, [reader.once(holder)], keywords, getattr(types.class_of(holder.kind), name, None)
    )


def call_object(reader: Any, node: nf.Call, function: Any, keywords: dict[str, nf.Value]) -> Value:
    """A call of an object that is known while compiling."""
    handler = handler_of(function)
    if handler is not None:
        return _handled(reader, node, handler, [], keywords, function)
    if isinstance(function, nf.Closure):
        raise reader.refuse("a generator that is not read at once", node, instead=MAKE_A_LIST)
    args, named = reader.exprs(node.args), _named(reader, keywords)
    if isinstance(function, LocalFunction):
        return _local_call(reader, node, function, args, named)
    if isinstance(function, type) and is_plain(function):
        return _new_object(reader, node, function, args, named)
    if isinstance(function, type) and reader.is_simple(function):
        return reader.new_object(node, function, args, named)
    return _plain_call(reader, node, function, args, named)


def _new_object(reader: Any, node: nf.Node, cls: Any, args: list[Value], named: dict[str, Value]) -> Value:
    """A new object of a dataclass or a named tuple."""
    for name in ("__init__", "__new__"):
        reader.known_object(getattr(cls, name), functools.partial(getattr, cls, name), name, node)
    values = fields_of(reader, node, cls, args, named)
    return reader.struct_of(cls, list(values), list(values.values()), node)


def fields_of(reader: Any, node: Any, cls: Any, args: Sequence[Value], named: dict[str, Value]) -> dict[str, Value]:
    """The value of each field of a new object of a dataclass or a named tuple, in order."""
    parameters = inspect.signature(cls).parameters
    try:
        values = inspect.signature(cls).bind(*args, **named).arguments
    except TypeError:
        reader.stop(TypeError)
    fields = getattr(cls, "__dataclass_fields__", {})
    for name in [name for name in parameters if name not in values]:
        factory = fields[name].default_factory if name in fields else dataclasses.MISSING
        if factory not in (list, dataclasses.MISSING):
            raise reader.refuse(f"a {cls.__name__} without {name}", node)
        default = parameters[name].default
        values[name] = reader.new_list(node) if factory is list else reader.constant(default, node)
    return {name: values[name] for name in (*fields, *parameters) if name in values}


@calls(dataclasses.replace)
def replace(reader: Any, node: nf.Node, value: Value, **changes: Value) -> Value:
    """`dataclasses.replace` of an object that is held as named parts."""
    kind, value = value.kind, reader.once(value)
    if isinstance(kind, types.Object) and dataclasses.is_dataclass(kind.site.find().cls):
        cls: Any = kind.site.find().cls
        own = {each.name: reader.attribute_of(value, each.name, node) for each in dataclasses.fields(cls)}
        return reader.new_object(node, cls, [], own | changes)
    if not isinstance(kind, types.Struct) or not dataclasses.is_dataclass(kind.cls):
        raise reader.refuse(f"a replaced field of a {kind}", node)
    own = dict(zip(kind.names, parts_of(value), strict=True))
    return _new_object(reader, node, kind.cls, [], own | changes)


@methods(types.Struct, "_replace")
def replaced(reader: Any, node: nf.Node, value: Value, **changes: Value) -> Value:
    """`_replace` of a named tuple."""
    kind = value.kind
    if not issubclass(kind.cls, tuple) or not set(changes) <= set(kind.names):
        reader.stop()
    own = dict(zip(kind.names, parts_of(value), strict=True)) | changes
    return reader.struct_of(kind.cls, kind.names, list(own.values()), node)


def _named(reader: Reader, keywords: dict[str, nf.Value]) -> dict[str, Value]:
    return {name: reader.expr(value) for name, value in keywords.items()}


def call_values(reader: Reader, node: nf.Node, function: Any, args: list[Value]) -> Value:
    """A call of an object that is known while compiling, with arguments that have been read."""
    if isinstance(function, LocalFunction):
        return _local_call(reader, node, function, args, {})
    handler = handler_of(function)
    if handler is None:
        return _plain_call(reader, node, function, args, {})
    if getattr(handler, "takes_nodes", False):
        raise reader.refuse(f"{function.__name__} is called by something else", node)
    return _or_in_python(reader, node, function, args, {}, lambda: handler(reader, node, *args))


def _plain_call(reader: Reader, node: nf.Node, function: Any, args: list[Value], named: dict[str, Value]) -> Value:
    """A call of one of the user's functions, plain or compiled by Numba; of any other in Python."""
    read = functools.partial(_users_call, reader, node, function, args, named)
    return _or_in_python(reader, node, function, args, named, read)


def _or_in_python(
    reader: Reader, node: nf.Node, function: Any, args: list[Value], named: dict[str, Value], read: Callable[[], Value]
) -> Value:
    """What `read` makes of a call; if that has no compiled form and the function only computes, the call in Python."""
    return first_of(reader, read, lambda: reader.program.in_python(reader, node, function, args, named))


def first_of(reader: Reader, read: Callable[[], Any], otherwise: Callable[[], Any], node: Any = None) -> Any:
    """What `read` makes of a part of the program; if that has no compiled form, what `otherwise` makes of it.

    Args:
        node: if given, `read` is not tried again after `otherwise` has been of use.
    """
    key, found = (id(node), reader.instance.name), reader.program.otherwise
    if key in found:
        return otherwise()
    lines, count, before = reader.lines, len(reader.lines), {**vars(reader)}
    before |= {
        name: copy.copy(each) for name, each in before.items() if isinstance(each, list | dict) and each is not lines
    }
    try:
        return read()
    except Unsupported as error:
        del lines[count:]
        vars(reader).update(before)
        reader.program.refusals += 1
        if reader.program.refusals > _MOST_REFUSALS:
            raise
        try:
            out = otherwise()
        except Unsupported as other:
            raise (other if other.reason.where else error) from None
        if node is not None:
            found.add(key)
        return out


def _users_call(reader: Reader, node: nf.Node, function: Any, args: list[Value], named: dict[str, Value]) -> Value:
    jitted, plain = False, function
    if hasattr(plain, "py_func") and hasattr(plain, "targetoptions"):  # Numba's dispatcher
        options = {name for name, value in plain.targetoptions.items() if value and name in ("fastmath", "parallel")}
        if options:
            raise reader.refuse(f"a function compiled with {', '.join(sorted(options))}", node)
        plain, jitted = plain.py_func, True
    if hasattr(type(plain), "_ab_batch"):  # a decorated function, which gets no batch here
        plain = plain.__wrapped__
        reader.known_object(plain, functools.partial(getattr, function, "__wrapped__"), "", node)
    if not isinstance(plain, python_types.FunctionType):
        name = getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__)
        raise reader.refuse(f"{name} is not compiled", node)
    if is_library(plain.__code__.co_filename) and not jitted and plain.__module__ != _PYTHON_SOURCES:
        raise reader.refuse(f"{plain.__qualname__} of {plain.__module__} is not compiled", node)
    return user_function(reader, node, plain, args, named, jitted)


def _local_call(reader: Any, node: nf.Node, local: LocalFunction, args: list[Value], named: dict[str, Value]) -> Value:
    """A call of a function that was made in this function or in one around it."""
    function = local.function
    values = bound_arguments(reader, node, function, args, named, local)
    outer, binds = outer_values(reader, local, node)

    def call() -> Value:
        known = tuple((name, kind) for name, kind, _ in outer)
        texts = [f"int64({text})" if kind == INT else text for _, kind, text in outer if text]
        return _instance_call(reader, node, function, values, reader.instance.jitted, local, known, binds, texts)

    if not local.memo:
        return call()
    values = [reader.once(value) for value in values]
    return memoised(reader, node, reader.read(local.memo, node), values, call)


_SPECIAL = (len, abs, int, float)
"""Functions that call a method of the user's objects."""


def _handled(
    reader: Any, node: nf.Call, handler: Handler, first: list[Value], keywords: dict[str, nf.Value], function: Any
) -> Value:
    args: list[Value] = []
    named: dict[str, Any] = keywords
    takes_nodes = getattr(handler, "takes_nodes", False)
    if not takes_nodes:
        args, named = reader.exprs(node.args), _named(reader, keywords)
    elif any(isinstance(arg, nf.Spread) for arg in node.args):
        raise reader.refuse("arguments with *", node)
    if args and isinstance(args[0].kind, types.Object) and function in _SPECIAL:
        return reader.special(f"__{function.__name__}__", [reader.once(args[0])], node)

    def read() -> Value:
        try:
            return handler(reader, node, *first, *args, **named)
        except TypeError as error:
            if (
                error.__traceback__ is not None and error.__traceback__.tb_next is None
            ):  # the call itself: its signature
                raise reader.refuse("with these arguments it is not compiled", node) from None
            raise

    return read() if takes_nodes else _or_in_python(reader, node, function, [*first, *args], named, read)


def user_function(
    reader: Reader, node: nf.Node, function: Any, args: list[Value], named: dict[str, Value], jitted: bool = False
) -> Value:
    """A call of one of the user's functions, or of one that is written in its stead."""
    values = bound_arguments(reader, node, function, args, named)
    return _instance_call(reader, node, function, values, jitted or reader.instance.jitted)


def _instance_call(
    reader: Reader, node: nf.Node, function: python_types.FunctionType, values: list[Value], jitted: bool,
    local: Any = None, outer: tuple[Any, ...] = (), binds: Sequence[str] = (), outer_texts: Sequence[str] = (),
) -> Value:  # fmt: skip
    """Write the call of a function's instance, if need be of one for the constants given; returns its result."""
    if any(isinstance(value.kind, types.Static) and holds_local(value.kind.value) for value in values):
        raise reader.refuse("a function made in another is given to a function", node)
    known = [
        Value(_option(type(value.constant).__name__, value.constant), "0", value.constant)
        if type(value.constant) in (int, bool, str)
        else value
        for value in values
    ]
    call = functools.partial(_call_of_types, reader, function, jitted, local, outer, binds, outer_texts)
    if [value.kind for value in known] == [value.kind for value in values]:
        return call(values)
    return first_of(reader, functools.partial(call, values), functools.partial(call, known), node)


def _call_of_types(
    reader: Reader, function: Any, jitted: bool, local: Any, outer: tuple[Any, ...], binds: Sequence[str],
    outer_texts: Sequence[str], values: list[Value],
) -> Value:  # fmt: skip
    """Like `_instance_call`, for these types of the arguments only."""
    kinds = tuple(value.kind for value in values)
    instance = reader.program.call(function, kinds, jitted, local, outer, tuple(binds))
    # A literal has a type of its own in Numba, which would compile the function once more for it.
    texts = [
        f"boolean({value.text})" if value.kind == BOOL else f"int64({value.text})" if value.kind == INT else value.text
        for value in values
        if not isinstance(value.kind, types.Static)
    ]
    out = Value(instance.result, reader.declared(instance.result))
    status = f"code_{out.text}"
    reader.emit(code("call", status, out.text, instance.name, "table", "depth", *texts, *outer_texts))
    reader.propagate_error(status, instance.raised)
    if instance.result is None:  # it is not known yet whether it ever returns
        reader.stop()
    return rebind(reader, out, binds) if binds else out


def bound_arguments(
    reader: Reader, node: nf.Node, function: Any, args: list[Value], named: dict[str, Value],
    local: LocalFunction | None = None,
) -> list[Value]:  # fmt: skip
    """The values of a function's parameters, in their order, with defaults filled in."""
    form = reader.program.form(function).parameters
    positional = [*form.positional_only, *form.positional]
    only_named = form.keyword_only
    if form.named_rest:
        raise reader.refuse("a function with *args or **kwargs", node)
    values = dict(zip(positional, args, strict=False))
    unknown = set(named) - set(positional) - set(only_named)
    if unknown or (len(args) > len(positional) and not form.rest) or set(named) & set(values):
        reader.stop()
    values.update(named)
    defaults = dict(zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults.update(function.__kwdefaults__ or {})
    for name in (*positional, *only_named):
        if name in values:
            continue
        if local is not None and (reader.env or {}).get(local.defaults[name]) is not None:
            values[name] = reader.read(local.defaults[name], node, whole=True)
            continue
        if name not in defaults:
            reader.stop(TypeError)
        default, given = defaults[name], function.__kwdefaults__ or {}
        if isinstance(default, list | dict | set):
            raise reader.refuse(f"the default of {name} is a {type(default).__name__}, which calls share", node)
        read = functools.partial(given.get if name in given else defaults.get, name)
        values[name] = reader.known_object(default, read, name, node)
    more = [reader.tuple_of(args[len(positional) :])] if form.rest else []
    return [*(values[name] for name in (*positional, *only_named)), *more]


def constant_of(reader: Reader, value: Value | None, default: Any, node: nf.Node, what: str) -> Any:
    """The value of an argument that has to be known while compiling.

    Raises:
        Unsupported: it is not known.
    """
    if value is None:
        return default
    if value.kind == NONE:
        return None
    if value.constant is NO_CONSTANT:
        raise reader.refuse(f"{what} that is not written as a constant", node)
    return value.constant
