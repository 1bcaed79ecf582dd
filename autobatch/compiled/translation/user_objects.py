"""Objects of the user's classes: made, read, changed and called while their class is known and does nothing unusual.

An object is a list of one tuple: a word whose bits say which attributes are set, and the attributes. So all names of an
object see what is written through one of them. Which attributes there are is found as assignments are read.
"""

import dataclasses
import functools
import inspect
import types as python_types
from collections.abc import Sequence
from typing import Any

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import call_values, fields_of, user_function
from autobatch.compiled.translation.exact_types import BOOL, FLOAT, INT
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import Value, code, convert, item_text, rep
from autobatch.core.diagnostics import is_library
from autobatch.program import normal_form as nf

_RESULTS = {"__bool__": BOOL, "__len__": INT, "__int__": INT, "__float__": FLOAT}
_HOOKS = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__new__", "__del__")


def is_simple(cls: Any) -> bool:
    """True if objects of a class are their attributes alone: classes of the user's, without a metaclass or hooks."""
    bases = cls.__mro__[:-1]
    return all(type(each) is type and each.__flags__ & 1 << 9 for each in bases) and all(
        inspect.getattr_static(cls, name, None) is getattr(object, name, None) for name in _HOOKS
    )


def _constant(reader: Reader, cls: type, name: str, found: Any, node: nf.Node) -> Any:
    return reader.known_object(found, functools.partial(inspect.getattr_static, cls, name), name, node)


def _member(reader: Reader, cls: type, name: str, node: nf.Node) -> Any:
    """What a class says of a name, None if nothing; the program is valid as long as it says that."""
    found = inspect.getattr_static(cls, name, None)
    if name.startswith("__") and not name.endswith("__"):
        raise reader.refuse("an attribute that has another name in each class", node)
    if inspect.ismemberdescriptor(found) or found is None:
        return None
    _constant(reader, cls, name, found, node)
    own = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    if is_library(own.__code__.co_filename) if isinstance(own, python_types.FunctionType) else own is not found:
        raise reader.refuse(f"{name} of {cls.__qualname__} is not compiled", node)
    return found


def new_object(reader: Reader, node: nf.Node, cls: type, args: Sequence[Value], named: dict[str, Value]) -> Value:
    """A new object, after its `__init__`."""
    site = reader.program.site((reader.instance.name, id(node), cls), 0)
    site.container, site.cls = types.Object, cls
    kind = types.Object(site)
    out = reader.temp(code(f"new_{rep(kind)}"), kind)
    init = _member(reader, cls, "__init__", node)
    is_generated = isinstance(init, python_types.FunctionType) and init.__code__.co_filename == "<string>"
    if is_generated and dataclasses.is_dataclass(cls):
        values = fields_of(reader, node, cls, args, named)
        given = {each.name for each in dataclasses.fields(cls) if each.init}
        if not set(values) == set(cls.__dataclass_fields__) == given:
            raise reader.refuse("a dataclass with fields that its __init__ does not just store", node)
        for name, value in values.items():
            set_attribute(reader, out, name, reader.held(value), node)
        method(reader, out, "__post_init__", [], {}, node)
    elif isinstance(init, python_types.FunctionType):
        user_function(reader, node, init, [out, *args], named)
    elif args or named:
        reader.stop(TypeError)
    return out


def attribute(reader: Reader, holder: Value, name: str, node: nf.Node) -> Value:
    """`object.name`: of the object, or of its class."""
    site = holder.kind.site.find()
    found = _member(reader, site.cls, name, node)
    if isinstance(found, property):
        return user_function(reader, node, found.fget, [holder], {})
    if hasattr(type(found), "__get__"):
        raise reader.refuse("a method that is not called at once, or an attribute that its class computes", node)
    place = site.names.index(name) if name in site.names else None
    constant = None if found is None else _constant(reader, site.cls, name, found, node)
    kind = None if place is None else site.items[place]
    if kind is None:
        if constant is None:
            reader.stop(AttributeError)
        return constant
    assert place is not None

    def own() -> Value:
        return reader.temp(item_text(code("list_item", holder.text, "0"), place + 1), kind)

    if constant is not None:
        return reader.choice(_is_set(holder, place), own, lambda: constant, node)
    reader.fail_if(f"not ({_is_set(holder, place)})", AttributeError)
    return own()


def _is_set(holder: Value, place: int) -> str:
    return f"{code('list_item', holder.text, '0')}[0] & {1 << place} != 0"


def has_attribute(reader: Reader, holder: Value, name: str, node: nf.Node) -> Value:
    """`hasattr` of an object."""
    site = holder.kind.site.find()
    found = _member(reader, site.cls, name, node)
    if isinstance(found, property):
        raise reader.refuse("hasattr of what its class computes", node)
    if found is None and name in site.names:
        return reader.temp(_is_set(holder, site.names.index(name)), BOOL)
    return reader.constant(found is not None, node)


def set_attribute(reader: Reader, holder: Value, name: str, value: Value, node: nf.Node) -> None:
    """`object.name = value`."""
    site = holder.kind.site.find()
    found = _member(reader, site.cls, name, node)
    if isinstance(found, property):
        if found.fset is None:
            reader.stop(AttributeError)
        user_function(reader, node, found.fset, [holder, value], {})
        return
    if hasattr(type(found), "__set__") or isinstance(value.kind, types.Static):
        raise reader.refuse(f"an attribute that is set to a {value.kind}", node)
    if any(each == holder.kind for each in types.within(value.kind)):
        raise reader.refuse("an object that contains itself", node)
    place = site.place(name)
    if place > 60:  # there is a bit for each
        raise reader.refuse("an object of so many attributes", node)
    reader.join(site.items[place], value.kind, node)
    site.widen(place, value.kind)
    site = site.find()
    old = reader.temp(code("list_item", holder.text, "0"), types.Tuple((INT, *site.items)))
    parts: list[str] = [item_text(old.text, k + 1) for k in range(len(site.items))]
    parts[place] = convert(value.text, value.kind, site.items[place])
    reader.emit(
        code("list_put", holder.text, "0", code("()", code("|", item_text(old.text, 0), str(1 << place)), *parts))
    )


def method(reader: Reader, holder: Value, name: str, args: Sequence[Value], named: Any, node: nf.Node) -> Value | None:
    """A call of a method; None if the class has none of this name."""
    cls = holder.kind.site.find().cls
    found = _member(reader, cls, name, node)
    if isinstance(found, classmethod):
        args = [reader.constant(cls, node), *args]
    elif isinstance(found, python_types.FunctionType):
        args = [holder, *args]
    elif not isinstance(found, staticmethod):
        return None
    return user_function(reader, node, getattr(found, "__func__", found), list(args), named)


def called(reader: Reader, holder: Value, name: str, args: Sequence[Value], named: Any, node: nf.Node) -> Value:
    """`object.name(…)`: a method, or what an attribute holds."""
    out = method(reader, holder, name, args, named, node)
    if out is not None:
        return out
    function = attribute(reader, holder, name, node)
    if isinstance(function.kind, types.Object):
        return special(reader, "__call__", [reader.once(function), *args], node)
    if isinstance(function.kind, types.Static) and not named:
        return call_values(reader, node, function.kind.value, list(args))
    raise reader.refuse(f"a call of a {function.kind}", node)


def updated(reader: Reader, holder: Value, name: str, value: Value, node: nf.Node) -> Value:
    """`object op= value`: what the name is bound to afterwards; `name` is that of the method of `op`."""
    own = method(reader, holder, f"__i{name[2:]}", [value], {}, node)
    return special(reader, name, [holder, value], node) if own is None else own


def special(reader: Reader, name: str, values: Sequence[Value], node: nf.Node) -> Value:
    """What an operator or a function of Python's does by a method of the first value's class."""
    classes = {each.kind.site.find().cls for each in values if isinstance(each.kind, types.Object)}
    of_object = isinstance(values[0].kind, types.Object) and len(classes) == 1  # else another's may go first
    out = method(reader, values[0], name, values[1:], {}, node) if of_object else None
    if out is None or out.kind != _RESULTS.get(name, out.kind):
        raise reader.refuse(f"{name} of a {values[0].kind}", node)
    if name == "__len__":
        reader.fail_if(f"{out.text} < 0")
    return out


def truth(reader: Reader, holder: Value, node: nf.Node) -> str:
    """Whether an object is true, as text."""
    for name in ("__bool__", "__len__"):
        if inspect.getattr_static(holder.kind.site.find().cls, name, None) is not None:
            return str(reader.truth(special(reader, name, [holder], node), node))
    return "True"
