"""What examples have in common and may change, as it was before the first of them ran.

While one example waits for a value the others run, so what it reads before and writes after (`model.total += float(y)`)
would be out of order. A map that finds such a change puts everything back and runs as the loop.
"""

import collections
import functools
from collections.abc import Callable, Iterable
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

__all__ = ["SharedState"]

_MOST = 20_000  # entries that are kept, so that a large structure costs no more than this
_LARGE = 1 << 20  # bytes of an array that is not kept
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), ModuleType})
_MISSING = object()


class SharedState:
    """Entries of containers, attributes of objects and classes, small arrays, generators, cells and globals.

    Reached are the values of the shared arguments, and what the function, and the functions it names, close over or
    name. Arrays among the shared arguments themselves are not: the trace sees writes into those.

    >>> log = []
    >>> before = SharedState([{"log": log}])
    >>> log.append(1)
    >>> before.changed()
    True
    >>> before.restore()
    >>> log
    []
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._seen: dict[int, Any] = {}
        self._room = _MOST
        self._kept: list[tuple[Callable[[], Any], Callable[[Any], None], Any]] = []  # read it, write it, as it was
        for root in roots:
            self._visit(root, held=False)

    def changed(self) -> bool:
        """Whether anything is another object now, or an array or a generator has other contents."""
        return any(not _same(read(), was) for read, _, was in self._kept)

    def restore(self) -> None:
        """Put everything back."""
        for read, write, was in self._kept:
            if not _same(read(), was):
                write(was)

    def _visit(self, value: Any, held: bool) -> None:
        kind = type(value)
        if kind in _ATOMS or self._room <= 0 or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, type):
            if _is_users(value):
                self._keep(lambda: _attributes(value), functools.partial(_set_attributes, value))
        elif isinstance(value, dict):
            self._keep(lambda: list(value.items()), lambda was: _refill(value, was))
            self._visit_all(value.values(), held)
        elif isinstance(value, list | collections.deque):
            self._keep(lambda: list(value), lambda was: _refill(value, was))
            self._visit_all(value, held)
        elif isinstance(value, set):
            self._keep(lambda: sorted(value, key=id), lambda was: _refill(value, was))
        elif isinstance(value, tuple):
            self._visit_all(value, held)
        elif kind is np.ndarray:
            if held and value.nbytes <= _LARGE and value.flags.writeable:
                self._keep(value.copy, lambda was: np.copyto(value, was))
        elif kind is np.random.Generator:
            bits = value.bit_generator
            self._keep(lambda: repr(bits.state), functools.partial(_set_state, bits, bits.state))
        elif kind is FunctionType:
            self._visit_function(value)
        elif kind is MethodType:
            self._visit_all((value.__self__, value.__func__), held=True)
        elif hasattr(kind, "_ab_batch"):
            self._visit(value.__wrapped__, held)
        elif _is_users(kind):
            self._visit(kind, held)
            attributes = getattr(value, "__dict__", None)
            if type(attributes) is dict:
                self._keep(lambda: list(attributes.items()), lambda was: _refill(attributes, was))
                self._visit_all(attributes.values(), held=True)

    def _visit_all(self, values: Iterable[Any], held: bool) -> None:
        for value in list(values) if self._room > 0 else ():
            if type(value) not in _ATOMS:
                self._visit(value, held)

    def _visit_function(self, function: FunctionType) -> None:
        if not _is_users(function):
            return
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable.startswith("_ab_"):  # of a rewritten function: what it calls of ours
                continue
            self._keep(functools.partial(_in_list, _contents, cell), functools.partial(_set_contents, cell))
            self._visit(_contents(cell), held=True)
        names = function.__globals__
        for name in _names(function.__code__):
            value = names.get(name, _MISSING)
            if not isinstance(value, ModuleType):
                self._keep(
                    functools.partial(_in_list, names.get, name, _MISSING), functools.partial(_set_global, names, name)
                )
                self._visit(value, held=True)

    def _keep(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        was = read()
        self._room -= 1 + (len(was) if isinstance(was, list) else 0)
        if self._room > 0:
            self._kept.append((read, write, was))


def _same(now: Any, was: Any) -> bool:
    if isinstance(was, np.ndarray):
        return now.tobytes() == was.tobytes()
    if isinstance(was, str):
        return now == was
    if len(now) != len(was):
        return False
    return all(map(_is, now, was))


def _is(now: Any, was: Any) -> bool:
    """The same object; or a tuple of the same ones, since the items of a dict are made anew each time."""
    return now is was or (type(now) is tuple and type(was) is tuple and _all_are(now, was))


def _all_are(now: Any, was: Any) -> bool:
    return len(now) == len(was) and all(a is b for a, b in zip(now, was, strict=True))


def _is_users(made: Any) -> bool:
    """Whether a class or a function is not one of the libraries that examples compute with."""
    return (made.__module__ or "").partition(".")[0] not in ("autobatch", "numpy", "numba", "builtins")


def _attributes(kind: type) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(kind).items() if not name.startswith("__")]


def _set_attributes(kind: type, was: list[tuple[str, Any]]) -> None:
    for name in dict(_attributes(kind)).keys() - dict(was).keys():
        delattr(kind, name)
    for name, value in was:
        if vars(kind).get(name, _MISSING) is not value:
            setattr(kind, name, value)


def _refill(container: Any, was: list[Any]) -> None:
    container.clear()
    (container.extend if isinstance(container, list | collections.deque) else container.update)(was)


def _names(code: CodeType) -> set[str]:
    """The names that a function and the functions in it may look up or bind among the globals."""
    found = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= _names(const)
    return found


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _in_list(read: Callable[..., Any], *args: Any) -> list[Any]:
    return [read(*args)]


def _set_state(bits: Any, state: Any, _: Any) -> None:
    bits.state = state


def _set_contents(cell: CellType, was: list[Any]) -> None:
    (value,) = was
    if value is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _set_global(names: dict[str, Any], name: str, was: list[Any]) -> None:
    (value,) = was
    if value is _MISSING:
        names.pop(name, None)
    else:
        names[name] = value
