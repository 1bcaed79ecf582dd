"""The values that a generated recorder takes to be shared by all examples: how each is read, and what it must be.

A recorder is written once, and serves every map in which all reads made while it was written give matching values:
shared arguments with the same structure, shapes and dtypes, global names with the same meaning. `Constants` is the list
of these reads; it is replayed at the start of a map, and after any other Python code has run, to get current values.
"""

import builtins
import enum
import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import freeze
from autobatch.errors import NeedsLoop
from autobatch.facts.types import SCALARS, is_stored
from autobatch.lazy.array import LazyArray
from autobatch.program.scopes import Guard

FUNCTION = "function"
TRACE = "trace"
"""The keys of the map's function and of its trace in `roots`."""
MISSING = object()
"""Marks a value that does not exist."""
_IDENTICAL = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc, np.dtype, type(np.sum), types.CellType)


class Constants:
    """The reads of shared values, in the order in which they were made.

    Attributes:
        values: the value of each read.
    """

    def __init__(self, roots: Mapping[Any, Any]) -> None:
        self.values: list[Any] = []
        self._roots = roots
        self._reads: list[tuple[Callable[[list[Any], Mapping[Any, Any]], Any], Any]] = []
        self._known: dict[Any, int] = {}
        self._guards: dict[int, Guard] = {}
        self._alive: list[Any] = []  # keeps the objects alive whose ids are keys of `_known`

    def _add(self, key: Any, read: Callable[[list[Any], Mapping[Any, Any]], Any]) -> int:
        """Add a read, and return its number.

        Raises:
            NeedsLoop: it cannot be read.
        """
        found = self._known.get(key)
        if found is None:
            value = self._read(read, self.values, self._roots)
            found = self._known[key] = len(self.values)
            self.values.append(value)
            self._reads.append((read, expected(value)))
        return found

    @staticmethod
    def _read(read: Any, values: list[Any], roots: Mapping[Any, Any]) -> Any:
        try:
            value = read(values, roots)
        except Exception as error:
            raise NeedsLoop from error
        if value is MISSING or (type(value) is LazyArray and not value.aval.shared):  # recorded for one example
            raise NeedsLoop
        return roots[TRACE].shared(value) if id(value) in roots[TRACE].reached and value.ndim > 1 else value

    def close(self) -> None:
        """Drop the values and roots: from now on the reads are only replayed."""
        self.values = []
        self._roots = {}
        self._known = {}

    def rely(self, guards: Any) -> None:
        """Add guards of blocks."""
        self._guards.update({id(guard): guard for guard in guards})

    def replay(self, roots: Mapping[Any, Any]) -> list[Any]:
        """Replay all reads and return the current values.

        Raises:
            NeedsLoop: a read no longer gives a matching value, or a guard fails.
        """
        values: list[Any] = []
        for read, was in self._reads:
            value = self._read(read, values, roots)
            if expected(value) != was:
                raise NeedsLoop
            values.append(value)
        if not all(guard.holds() for guard in self._guards.values()):
            raise NeedsLoop
        return values

    def root(self, key: Any) -> int:
        """Read a shared argument."""
        return self._add(("root", key), lambda values, roots: roots[key])

    def literal(self, value: Any) -> int:
        """Add a value that is part of the code."""
        self._alive.append(value)
        key = ("literal", freeze(value), type(value)) if type(value) in SCALARS else ("object", id(value))
        return self._add(key, lambda values, roots: value)

    def global_(self, scope: dict[str, Any], name: str) -> int:
        """Read a global name, or a builtin."""

        def read(values: list[Any], roots: Any) -> Any:
            found = scope.get(name, MISSING)
            return getattr(builtins, name, MISSING) if found is MISSING else found

        self._alive.append(scope)
        return self._add(("global", id(scope), name), read)

    def attribute(self, base: int, name: str) -> int:
        """Read an attribute of a module, or of an object if that runs no code."""

        def read(values: list[Any], roots: Any) -> Any:
            value = values[base]
            if type(value) is types.ModuleType:
                return vars(value).get(name, MISSING)
            if isinstance(value, np.ufunc):
                return _method_of_ufunc(value, name)
            if not isinstance(value, type) and is_stored(type(value), name):
                return getattr(value, name)
            if isinstance(value, enum.EnumMeta):
                return value._member_map_.get(name, MISSING)
            if isinstance(value, type) and type(value) is type:
                found = vars(value).get(name, MISSING)
                return MISSING if hasattr(type(found), "__get__") else found
            return MISSING

        return self._add(("attribute", base, name), read)

    def method(self, base: int, name: str) -> int:
        """Read the function behind a method of an object."""

        def read(values: list[Any], roots: Any) -> Any:
            value = values[base]
            if name in getattr(value, "__dict__", ()) or not isinstance(value, object):
                return MISSING
            return method_of(type(value), name)

        return self._add(("method", base, name), read)

    def method_of(self, kind: type, name: str) -> int:
        """Read the function behind a method of a class."""
        self._alive.append(kind)
        return self._add(("method of", id(kind), name), lambda values, roots: method_of(kind, name))

    def item(self, base: int, key: Any) -> int:
        """Read an item of a container, by a constant key."""

        def read(values: list[Any], roots: Any) -> Any:
            value = values[base]
            if type(value) not in (dict, list, tuple) and not (isinstance(value, tuple) and hasattr(value, "_fields")):
                return MISSING
            return value[key]

        return self._add(("item", base, type(key), key), read)

    def compute(self, key: Any, function: Callable[..., Any], *parts: int) -> int:
        """Call a side-effect-free function on constants."""
        self._alive.append(function)
        return self._add(
            ("compute", key, *parts),
            lambda values, roots: function(*[values[part] for part in parts]),
        )

    def cell(self, base: int | None, at: int) -> int:
        """Read a closure variable of a function; base None: the map's function, which may be a new object per map."""
        return self._add(
            ("cell", base, at),
            lambda values, roots: (roots[FUNCTION] if base is None else values[base]).__closure__[at].cell_contents,
        )

    def default(self, base: int | None, at: int | str) -> int:
        """Read a parameter's default, by name or by a negative position from the last one."""

        def read(values: list[Any], roots: Any) -> Any:
            function = roots[FUNCTION] if base is None else values[base]
            return (function.__defaults__ if type(at) is int else function.__kwdefaults__)[at]

        return self._add(("default", base, at), read)

    def compute_without_warnings(self, key: Any, function: Callable[..., Any], *parts: int) -> int:
        """Like `compute`, on shared arrays; a NumPy warning raises NeedsLoop."""
        return self.compute(("quiet", key), np.errstate(all="raise")(function), *parts)

    def unwrapped(self, base: int) -> int:
        """Read the `__wrapped__` function of a decorated function or method."""
        return self.compute("unwrapped", operator.attrgetter("__wrapped__"), base)


@functools.cache  # always the same object, so that it can be compared by identity
def _method_of_ufunc(ufunc: np.ufunc, name: str) -> Any:
    return getattr(ufunc, name, MISSING)


def method_of(kind: type, name: str) -> Any:
    """The function behind a method of a class; MISSING if it is anything else."""
    for each in kind.__mro__:
        if name in vars(each):
            found = vars(each)[name]
            inner = found.__wrapped__ if hasattr(type(found), "_ab_batch") else found
            return found if type(inner) is types.FunctionType else MISSING
    return MISSING


def expected(value: Any) -> Any:
    """A summary of a value, which another value must match to replace it."""
    kind = type(value)
    if kind is LazyArray:
        return kind, value.aval.key, value.aval.scalar, value.aval.non_c_order, type(value.source)
    if kind in SCALARS:
        return kind, freeze(value)
    if kind is types.FunctionType:
        return kind, _Same(value), _Same(value.__code__), _Same(value.__defaults__), _Same(value.__kwdefaults__)
    if isinstance(value, (*_IDENTICAL, enum.Enum)) or hasattr(kind, "_ab_batch"):
        return kind, _Same(value)
    if kind is np.ndarray:
        return kind, value.dtype, value.shape
    if kind is tuple or kind is list:
        return kind, len(value)
    if kind is dict:
        return kind, bool(value)  # its items are read one by one
    return (kind,)


class _Same:
    """Compares equal if it holds the same object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]
