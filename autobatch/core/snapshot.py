"""Snapshots of the mutable state reachable from some objects: detect changes since, and restore the state.

Used by every mode that may be abandoned, or that does things in another order than the loop
(`lazy.example_state`).
"""

import collections
import copyreg
import functools
import itertools
import math
import pickle
import random
import sys
from collections.abc import Callable, Collection, Iterable
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.recorded_array import is_recorded

_SMALL, _LARGE, MANY = 1 << 12, 1 << 20, 20_000  # bytes of an array; entries of a large state
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), ModuleType})
_MISSING = object()
_NUMPYS = (np.random.Generator, np.random.RandomState)
_OF_TAPE = ["_ab_tape", "_ab_index", "_ab_value", "_ab_rank"]
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "__call__"}  # not run implicitly by operations on an object


class SavedState(NamedTuple):
    """Part of the state of one object: functions to read and write it, and its value at the time of the snapshot."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    was: Any

    @property
    def changed(self) -> bool:
        """True if an entry is another object now, or an array or a generator's state has other contents."""
        return not _same(self.read(), self.was)


def save_state(value: object) -> list[SavedState]:
    """The `SavedState` of one object, not of its parts; empty for an object whose state cannot be restored.

    >>> items = [1, 2]
    >>> (kept,) = save_state(items)
    >>> items.append(3)
    >>> kept.changed
    True
    >>> kept.write(kept.was)
    >>> items
    [1, 2]
    """
    return [SavedState(read, write, read()) for read, write in _accesses(value)]


def _accesses(value: Any) -> Iterable[tuple[Callable[[], Any], Callable[[Any], None]]]:
    cls = type(value)
    if isinstance(value, type):
        yield lambda: _attributes(value), functools.partial(_set_attributes, value)
    elif isinstance(value, dict):
        yield lambda: list(value.items()), functools.partial(refill, value)
    elif isinstance(value, set):
        yield lambda: sorted(value, key=id), functools.partial(refill, value)
    elif isinstance(value, list | collections.deque | bytearray):
        yield lambda: list(value), functools.partial(refill, value)
    elif cls is np.ndarray:
        yield value.copy, functools.partial(np.copyto, value)
    elif cls is np.random.Generator:
        bits = value.bit_generator
        yield lambda: _State(bits.state), lambda was: setattr(bits, "state", was.state)
    elif isinstance(value, random.Random) and cls is not random.SystemRandom:
        yield lambda: _State(value.getstate()), lambda was: value.setstate(was.state)
    elif cls is np.random.RandomState:
        yield lambda: _State(value.get_state()), lambda was: value.set_state(was.state)
    elif cls is CellType:
        yield lambda: [cell_value(value, _MISSING)], functools.partial(_set_slots, value, ["cell_contents"])
    elif cls is FunctionType:
        yield lambda: [value.__defaults__], lambda was: setattr(value, "__defaults__", was[0])
    elif cls is functools.partial:
        yield lambda: [value.func, value.args], lambda was: value.__setstate__((*was, value.keywords, vars(value)))
    elif isinstance(value, BaseException):
        yield lambda: [value.args], lambda was: setattr(value, "args", was[0])
    elif hasattr(cls, "_ab_tape"):  # an array on a tape: a write gives it another value
        yield lambda: [getattr(value, name) for name in _OF_TAPE], functools.partial(_set_slots, value, _OF_TAPE)
        return
    if isinstance(value, type):
        return
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict:
        yield lambda: list(attributes.items()), functools.partial(refill, attributes)
    slots = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    if slots:
        yield lambda: [getattr(value, name, _MISSING) for name in slots], functools.partial(_set_slots, value, slots)


class _State:
    """The state of a random generator, compared by pickled bytes (the `repr` of a long array omits elements)."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _State) and pickle.dumps(other.state) == pickle.dumps(self.state)

    __hash__ = None  # type: ignore[assignment]


class Snapshot:
    """Saved entries of containers, attributes of objects and classes, arrays, generators, cells and globals.

    Walks from the roots through all values, and from functions to what they close over or name. Number arrays that a
    map wraps are not saved, since its trace sees the writes into them.

    Args:
        inside: the roots are parts of an example: save arrays that the trace does not wrap; do not walk into functions
            and classes, which count as shared.
        most: stop saving at so many entries (for functions not known to change anything, to limit the cost).
        raw: the arrays in the roots are not wrapped, so save them.

    Attributes:
        roots: the objects where the walk began.
        complete: True if everything reached was saved; `most` may have prevented that.
        reached: {id: object} of every object reached.
        places: {id: object} of the objects reached; for an array, of the array that owns its memory.
        functions, classes: the user's functions and classes that were reached.
        held: callables by the name of the attribute that holds them; all callables under "".
        named: names used by the functions; methods: those of the classes with such a name, or called by Python itself.

    >>> log = []
    >>> before = Snapshot([{"log": log}])
    >>> log.append(1)
    >>> before.changed()
    True
    >>> before.restore()
    >>> log
    []
    """

    def __init__(self, roots: Iterable[Any], inside: bool = False, most: float = math.inf, raw: bool = False) -> None:
        self.roots = list(roots)
        self.places: dict[int, Any] = {}
        self.functions: list[FunctionType] = []
        self.classes: list[type] = []
        self.methods: list[FunctionType] = []
        self.named: set[str] = set()
        self.held: dict[str, list[Any]] = {"": []}
        self._of_modules: dict[int, set[str]] = {}
        self._makes_like = False  # some code may construct objects by `type(self)(...)`
        self._inside = inside
        self._room = most
        self.reached: dict[int, Any] = {}
        self._kept: list[tuple[int, SavedState]] = []
        self._waiting: list[tuple[Any, bool]] = [(root, raw) for root in self.roots[::-1]]
        self.complete = True
        self._visit_waiting()
        if self._makes_like:
            self._visit_methods(self.classes, _CONSTRUCTORS)
            self._visit_waiting()
        self.complete = self.complete and not self._waiting

    def changed(self, places: Any = None, entries: bool = False) -> bool:
        """True if any entry is another object now, or an array or a generator has other contents.

        Args:
            places: ids of the objects to check; all by default.
            entries: check only entries, attributes, variables and small arrays, which is fast.
        """
        return any(kept.changed for kept in self.saved(places, entries))

    def saved(
        self, places: Any = None, entries: bool = False, is_wanted: Callable[[Any], bool] = lambda value: True
    ) -> list[SavedState]:
        """What `changed` checks, of the objects that `is_wanted` (of a global or a cell: None)."""
        of = {**self.reached, **self.places}.get
        found = [kept for place, kept in self._kept if (places is None or place in places) and is_wanted(of(place))]
        return [x for x in found if not entries or type(x.was) is list or getattr(x.was, "nbytes", _SMALL) < _SMALL]

    def restore(self) -> None:
        """Restore everything that has changed."""
        for _, kept in self._kept:
            if kept.changed:
                kept.write(kept.was)

    def settle(self, finished: Callable[[Any], Any]) -> None:
        """Replace each saved entry by `finished(entry)`."""
        for _, kept in self._kept:
            if type(kept.was) is list:
                now = [_replaced(each, finished) for each in kept.was]
                if not all(map(_identical, now, kept.was)):
                    kept.write(now)

    def _visit_waiting(self) -> None:
        while self._waiting and self._room > 0:
            self._visit(*self._waiting.pop())

    def _visit(self, value: Any, held: bool) -> None:
        """Save one value and queue its parts; `held`: an object holds it, so its arrays are not wrapped."""
        cls = type(value)
        if cls in _ATOMS or id(value) in self.reached:
            return
        self.reached[id(value)] = value
        if cls is not np.ndarray:
            self.places[id(value)] = value
            if callable(value):
                self.held[""].append(value)
        if self._inside and (isinstance(value, type) or cls in (FunctionType, MethodType) or hasattr(cls, "_ab_batch")):
            return
        if isinstance(value, type):
            if is_user_code(value):
                self._visit_class(value)
                self._visit_methods(value.__mro__, _CONSTRUCTORS)
        elif cls is np.ndarray:
            self._visit_array(value, held)
        elif hasattr(cls, "_ab_tape") or cls in _NUMPYS or isinstance(value, random.Random):
            self._keep(value)
        elif cls is FunctionType:
            self._visit_function(value)
        elif cls is MethodType:
            self._wait((value.__self__, value.__func__), held=True)
        elif cls is BuiltinMethodType or cls is MethodWrapperType:  # as `log.append`
            self._wait((value.__self__,), held=True)
        elif hasattr(cls, "_ab_batch"):
            self._wait((value.__wrapped__,), held)
        elif isinstance(value, dict):
            self._keep(value)
            self._wait_for_keys(value, held)
            self._wait(value.values(), held)
        elif isinstance(value, list | collections.deque):
            self._keep(value)
            self._wait(value, held)
        elif isinstance(value, tuple | frozenset):
            self._wait(value, held)
        elif isinstance(value, set | bytearray):
            self._keep(value)
            self._wait_for_keys(value, held)
        elif cls is functools.partial:
            self._keep(value)
            self._wait((value.func, value.args, value.keywords), held)
        elif isinstance(value, BaseException):
            self._keep(value)
            self._wait((*value.args, *vars(value).values()), held)
        elif is_user_code(cls):
            self._visit_class(cls)
            self._wait((getattr(cls, "__call__", None),), held)  # noqa: B004  (not whether: which)
            for kept in self._keep(value):
                self._wait(_values(kept.was), held=True)
            for name in {*getattr(value, "__dict__", ()), *copyreg._slotnames(cls)}:  # type: ignore[attr-defined]
                if callable(each := getattr(value, name, None)):
                    self.held.setdefault(name, []).append(each)

    def _wait(self, values: Collection[Any], held: bool) -> None:
        if not _ATOMS.issuperset(map(type, values)):  # there may be many numbers
            self._waiting += [(value, held) for value in values if type(value) not in _ATOMS]

    def _wait_for_keys(self, keys: Collection[Any], held: bool) -> None:
        """Queue the keys of a container only if the first one may have parts: there may be many strings or numbers."""
        if any(type(key) not in _ATOMS for key in itertools.islice(keys, 1)):
            self._wait(keys, held)

    def _visit_array(self, value: np.ndarray, held: bool) -> None:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self.places[id(owner)] = owner
        unseen = held or (self._inside and not is_recorded(value))  # by the trace
        if unseen and value.flags.writeable:
            if self._room < math.inf and value.nbytes > _LARGE:
                self.complete = False
            else:
                self._keep(value, owner)
        if value.dtype.hasobject:
            self._wait(value.ravel().tolist(), held=True)

    def _visit_class(self, cls: type) -> None:
        """Visit a class and its bases, except the methods that construct and call its objects."""
        if self._inside or cls in self.classes or not is_user_code(cls):
            return
        self.places[id(cls)] = cls
        self.classes.append(cls)
        self._keep(cls)
        if cls.__module__.partition(".")[0] not in sys.stdlib_module_names:
            for base in cls.__bases__:
                self._visit_class(base)
            called = {name for name in vars(cls) if name.startswith("__")} - _CONSTRUCTORS
            self._visit_methods([cls], self.named | called)

    def _visit_methods(self, kinds: Iterable[type], names: set[str]) -> None:
        for cls in kinds:
            for name in names & vars(cls).keys():
                for method in functions_of(vars(cls)[name]):
                    if id(method) not in self.reached and is_user_code(method):
                        self.reached[id(method)] = method
                        self.methods.append(method)
                        self._visit_surroundings(method)

    def _visit_function(self, function: FunctionType) -> None:
        if is_user_code(function):
            self.functions.append(function)
            self._visit_surroundings(function)
        else:  # a library function may wrap a user's one, such as `ab.grad(f)`
            self._wait((getattr(function, "__wrapped__", None),), held=True)

    def _visit_surroundings(self, function: FunctionType) -> None:
        """Visit a function's globals, closure and attributes."""
        for kept in self._keep(function):
            self._wait(_values(kept.was), held=True)
        self._wait((function.__defaults__, function.__kwdefaults__), held=True)
        names, used = function.__globals__, global_names(function.__code__)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            # skip library helpers that rewritten functions call, and `__annotate__`'s cell, which holds a whole class
            if not variable.startswith("_ab_") and variable != "__classdict__":
                (kept,) = self._keep(cell)
                self._wait([each for each in kept.was if each is not _MISSING], held=True)
                for each in kept.was:
                    self._visit_module(each, used)
        if function.__code__.co_filename != "<string>":  # not for the generated methods of a dataclass
            self._makes_like = self._makes_like or not used.isdisjoint(("type", "__class__"))
        new = used - self.named
        self.named |= new
        self._visit_methods(self.classes, new)
        self._visit_globals(names, used)

    def _visit_globals(self, names: dict[str, Any], used: set[str]) -> None:
        for name in used:
            value = names.get(name, _MISSING)
            if isinstance(value, ModuleType):
                self._visit_module(value, used)
            else:
                read = lambda names=names, name=name: [names.get(name, _MISSING)]
                write = lambda was, names=names, name=name: (
                    names.pop(name, None) if was[0] is _MISSING else names.update({name: was[0]})
                )
                self._add(names, [SavedState(read, write, [value])])
                self._wait(() if value is _MISSING else (value,), held=True)

    def _visit_module(self, module: object, used: set[str]) -> None:
        """Visit the globals of a user's own module that a function may name, such as `helpers.counts`."""
        package, file = getattr(module, "__name__", "").partition(".")[0], getattr(module, "__file__", None) or ""
        is_library = package in sys.stdlib_module_names or package == "autobatch" or "site-packages" in file
        if isinstance(module, ModuleType) and not is_library:
            known = self._of_modules.setdefault(id(module), set())
            new = (used & vars(module).keys()) - known
            known |= new
            self._visit_globals(vars(module), new)

    def _keep(self, value: object, place: object = None) -> list[SavedState]:
        return self._add(value if place is None else place, save_state(value))

    def _add(self, place: object, found: list[SavedState]) -> list[SavedState]:
        self._room -= sum(1 + (len(kept.was) if isinstance(kept.was, list) else 0) for kept in found)
        if self._room > 0:
            self._kept += [(id(place), kept) for kept in found]
        return found


def _values(entries: Any) -> list[Any]:
    """The values among entries that are (name, value) pairs or plain values."""
    return [each[1] if type(each) is tuple and len(each) == 2 else each for each in entries]


def _replaced(value: object, finished: Callable[[Any], Any]) -> Any:
    """`finished(value)`; applied to the parts of a tuple or frozenset, which is then rebuilt if any part changed."""
    if not isinstance(value, tuple | frozenset):
        return finished(value)
    now = [_replaced(each, finished) for each in value]
    if _all_are(now, value):
        return value
    cls: Any = type(value)
    out = (tuple if isinstance(value, tuple) else frozenset).__new__(cls, now)
    if hasattr(value, "__dict__"):
        vars(out).update(vars(value))
    return out


def _same(now: Any, was: Any) -> bool:
    if isinstance(was, np.ndarray):
        return bool(now.tobytes() == was.tobytes())
    return bool(now == was) if isinstance(was, _State) else len(now) == len(was) and all(map(_identical, now, was))


def _identical(now: Any, was: Any) -> bool:
    """True for the same object, or tuples of the same objects (`dict.items()` makes new tuples each time)."""
    return now is was or (type(now) is tuple and type(was) is tuple and _all_are(now, was))


def _all_are(now: Any, was: Any) -> bool:
    return len(now) == len(was) and all(a is b for a, b in zip(now, was, strict=True))


def is_user_code(made: object) -> bool:
    """True unless a class or function belongs to NumPy, Numba, builtins or this library (outside of `autobatch.nn`)."""
    module = (made.__globals__.get("__name__") if isinstance(made, FunctionType) else made.__module__) or ""
    if module.partition(".")[0] == "autobatch":  # a layer is treated like a user's class
        return module.startswith("autobatch.nn.")
    return module.partition(".")[0] not in ("numpy", "numba", "builtins")


def _attributes(cls: type) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(cls).items() if not name.startswith("__")]


def _set_attributes(cls: type, was: list[tuple[str, Any]]) -> None:
    for name in dict(_attributes(cls)).keys() - dict(was).keys():
        delattr(cls, name)
    for name, value in was:
        if vars(cls).get(name, _MISSING) is not value:
            setattr(cls, name, value)


def _set_slots(value: object, slots: list[str], was: list[Any]) -> None:
    for name, each in zip(slots, was, strict=True):
        if each is not _MISSING:
            object.__setattr__(value, name, each)
        elif hasattr(value, name):
            object.__delattr__(value, name)


_CONTAINERS = (collections.OrderedDict, dict, set, list, collections.deque, bytearray)


def refill(container: Any, was: list[Any]) -> None:
    """Restore a container's entries by methods of its built-in base class (a Counter's own `update` would count)."""
    cls: Any = next(cls for cls in _CONTAINERS if isinstance(container, cls))
    cls.clear(container)
    if issubclass(cls, dict):
        for key, value in was:
            cls.__setitem__(container, key, value)
    else:
        (cls.update if cls is set else cls.extend)(container, was)


def global_names(code: CodeType) -> set[str]:
    """The global names that a function and its inner functions may look up or bind."""
    found = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= global_names(const)
    return found


def functions_of(attribute: object) -> list[FunctionType]:
    """The functions behind a class attribute: itself, a property's accessors, or a wrapped function."""
    names = "fget", "fset", "fdel", "__func__", "__wrapped__"
    found = [attribute, *(getattr(attribute, name, None) for name in names)]
    return [each for each in found if type(each) is FunctionType]


def cell_value(cell: CellType, unbound: Any = None) -> Any:
    """The value of a closure variable; `unbound` if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return unbound
