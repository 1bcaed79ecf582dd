"""How decorated functions go to other processes: by name where they can be imported there, else by value.

`pickle` sends functions by name, and so is what is in a module. `cloudpickle`, with which joblib, Dask and Ray send
functions, sends those of `__main__`, of notebooks and within functions by value, but asks a decorated one how it is
made from others. It is made of the function itself, which `pickle` in turn looks up by a name: so that of `__main__`
has one, `f._ab_itself`. Code that is in no file takes its source along, without which it would not run in lock-step.
"""

import linecache
import os
import sys
import types
import weakref
from typing import Any

_NAME = "_ab_itself"
_owners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def made_of(decorated: Any) -> tuple[Any, ...]:
    """The value of `__reduce__` of a decorated function."""
    function = decorated.__wrapped__
    module, name = decorated.__module__, getattr(function, "__qualname__", "")
    found = _looked_up(module, name)
    if found is decorated and module != "__main__":
        return by_name, (module, name)
    if type(function) is not types.FunctionType:
        return (by_name, (module, name)) if found is decorated else (type(decorated), (function, decorated.strict))
    own = getattr(decorated, _NAME) if found is decorated else function
    return revived, (type(decorated), own, decorated.strict, _sources(function))


def by_name(module: str, name: str) -> Any:
    """The object that a module holds under this name."""
    out: Any = sys.modules.get(module) or __import__(module, fromlist=["_"])
    for part in name.split("."):
        out = getattr(out, part)
    return out


def _looked_up(module: str, name: str) -> Any:
    try:
        return by_name(module, name)
    except (AttributeError, ImportError):
        return None


def itself(decorated: Any) -> Any:
    """The undecorated function, which knows the name it is found by; the same object each time."""
    kept = decorated.__dict__.get("_ab_kept")
    if kept is not None:
        return kept
    f = decorated.__wrapped__
    out = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    out.__kwdefaults__, out.__annotations__, out.__doc__ = f.__kwdefaults__, f.__annotations__, f.__doc__
    out.__module__, out.__qualname__ = f.__module__, f"{f.__qualname__}.{_NAME}"
    out.__dict__.update(f.__dict__)
    decorated.__dict__["_ab_kept"] = out
    _owners[out] = weakref.ref(decorated)
    return out


def revived(kind: type, function: Any, strict: bool, sources: dict[str, list[str]]) -> Any:
    """The decorated function: the one of this name here, or one made anew."""
    owner = _owners.get(function)
    if owner is not None and owner() is not None:
        return owner()
    function.__qualname__ = function.__qualname__.removesuffix(f".{_NAME}")
    for filename, lines in sources.items():
        linecache.cache.setdefault(filename, (sum(map(len, lines)), None, lines, filename))
    return kind(function, strict)


def _sources(function: Any) -> dict[str, list[str]]:
    """The source lines of a function, and of those that it names, that are in no file."""
    out: dict[str, list[str]] = {}
    functions, seen = [function], {id(function)}
    for each in functions:  # which grows on the way
        filename = each.__code__.co_filename
        if filename not in out and not os.path.exists(filename) and (lines := linecache.getlines(filename)):
            out[filename] = lines
        cells = [_content(cell) for cell in each.__closure__ or ()]
        for value in (*map(each.__globals__.get, each.__code__.co_names), *cells):
            value = getattr(value, "__wrapped__", value)
            if type(value) is types.FunctionType and id(value) not in seen:
                seen.add(id(value))
                functions.append(value)
    return out


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a name that has no value yet
        return None
