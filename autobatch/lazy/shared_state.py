"""What examples have in common and may change, as it was before the first of them ran.

While one example waits for a value the others run, so what it reads before and writes after (`model.total += float(y)`)
would be out of order. A map that finds such a change puts everything back and runs as the loop.
"""

import collections
import copyreg
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
_CODE = (FunctionType, MethodType)


class SharedState:
    """Entries of containers, attributes of objects and classes, small arrays, generators, cells and globals.

    Reached are the values of the shared arguments, and what the function, and the functions it names, close over or
    name. Arrays among the shared arguments themselves are not: the trace sees writes into those.

    Args:
        inside: the roots are parts of an example, and what is code or a class counts as shared.

    Attributes:
        roots: where it began.
        places: the ids of what was reached.
        codes, classes: of the functions and the classes among it.

    >>> log = []
    >>> before = SharedState([{"log": log}])
    >>> log.append(1)
    >>> before.changed()
    True
    >>> before.restore()
    >>> log
    []
    """

    def __init__(self, roots: Iterable[Any], inside: bool = False) -> None:
        self.roots = list(roots)
        self.places: dict[int, Any] = {}
        self.codes: list[CodeType] = []
        self.classes: list[type] = []
        self._inside = inside
        self._room = _MOST
        # whose it is, read it, write it, as it was
        self._kept: list[tuple[int, Callable[[], Any], Callable[[Any], None], Any]] = []
        for root in self.roots:
            self._visit(root, held=False)

    def changed(self, places: Any = None) -> bool:
        """Whether anything is another object now, or an array or a generator has other contents.

        Args:
            places: the ids of what to look at; all of it by default.
        """
        return any(not _same(read(), was) for place, read, _, was in self._kept if places is None or place in places)

    def restore(self) -> None:
        """Put everything back."""
        for _, read, write, was in self._kept:
            if not _same(read(), was):
                write(was)

    def settle(self, finished: Callable[[Any], Any]) -> None:
        """Store `finished(value)` in the place of each value."""
        for _, _, write, was in self._kept:
            if type(was) is list:
                now = [_settled(each, finished) for each in was]
                if not all(map(_is, now, was)):
                    write(now)

    def _visit(self, value: Any, held: bool) -> None:
        kind = type(value)
        if kind in _ATOMS or self._room <= 0 or id(value) in self.places:
            return
        self.places[id(value)] = value
        if self._inside and (isinstance(value, type) or kind in _CODE or hasattr(kind, "_ab_batch")):
            return
        if isinstance(value, type):
            if _is_users(value):
                self.classes.append(value)
                self._keep(value, lambda: _attributes(value), functools.partial(_set_attributes, value))
        elif isinstance(value, dict):
            self._keep(value, lambda: list(value.items()), lambda was: _refill(value, was))
            self._visit_all(value.values(), held)
        elif isinstance(value, list | collections.deque):
            self._keep(value, lambda: list(value), lambda was: _refill(value, was))
            self._visit_all(value, held)
        elif isinstance(value, set):
            self._keep(value, lambda: sorted(value, key=id), lambda was: _refill(value, was))
        elif isinstance(value, tuple):
            self._visit_all(value, held)
        elif kind is np.ndarray:
            unseen = held or (self._inside and value.dtype.kind not in "fc")  # by the trace
            if unseen and value.nbytes <= _LARGE and value.flags.writeable:
                self._keep(value, value.copy, lambda was: np.copyto(value, was))
        elif kind is np.random.Generator:
            bits = value.bit_generator
            self._keep(value, lambda: repr(bits.state), functools.partial(_set_state, bits, bits.state))
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
                self._keep(value, lambda: list(attributes.items()), lambda was: _refill(attributes, was))
                self._visit_all(attributes.values(), held=True)
            slots = copyreg._slotnames(kind)  # type: ignore[attr-defined]
            if slots:
                self._keep(value, lambda: _in_slots(value, slots), lambda was: _set_slots(value, slots, was))
                self._visit_all(_in_slots(value, slots), held=True)

    def _visit_all(self, values: Iterable[Any], held: bool) -> None:
        for value in list(values) if self._room > 0 else ():
            if type(value) not in _ATOMS:
                self._visit(value, held)

    def _visit_function(self, function: FunctionType) -> None:
        if not _is_users(function):
            return
        self.codes.append(function.__code__)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable.startswith("_ab_"):  # of a rewritten function: what it calls of ours
                continue
            self._keep(cell, functools.partial(_in_list, _contents, cell), functools.partial(_set_contents, cell))
            self._visit(_contents(cell), held=True)
        names = function.__globals__
        for name in _names(function.__code__):
            value = names.get(name, _MISSING)
            if not isinstance(value, ModuleType):
                self._keep(
                    names,
                    functools.partial(_in_list, names.get, name, _MISSING),
                    functools.partial(_set_global, names, name),
                )
                self._visit(value, held=True)

    def _keep(self, of: Any, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        was = read()
        self._room -= 1 + (len(was) if isinstance(was, list) else 0)
        if self._room > 0:
            self._kept.append((id(of), read, write, was))


def _settled(value: Any, finished: Callable[[Any], Any]) -> Any:
    if type(value) is not tuple:
        return finished(value)
    now = tuple([_settled(each, finished) for each in value])
    return value if _all_are(now, value) else now


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


def _in_slots(value: Any, slots: list[str]) -> list[Any]:
    return [getattr(value, name, _MISSING) for name in slots]


def _set_slots(value: Any, slots: list[str], was: list[Any]) -> None:
    for name, each in zip(slots, was, strict=True):
        if each is not _MISSING:
            object.__setattr__(value, name, each)
        elif hasattr(value, name):
            object.__delattr__(value, name)


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
