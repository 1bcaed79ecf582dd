"""What a generated recorder takes to be the same for all examples, how each of it is read, and what it has to be.

A recorder is written once, and serves the maps in which all that was read while it was written reads as it did: shared
arguments of the same structure, shapes and dtypes, global names that mean the same. `Constants` is the list of these
reads. Replayed at the beginning of a map, and wherever other Python has run since, it gives the values of now.
"""

import builtins
import enum
import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autobatch.blocks.block_inputs import Guard
from autobatch.core.abstract_eval import freeze
from autobatch.facts.types import SCALARS, is_stored
from autobatch.lazy.array import LazyArray

FUNCTION = "function"
TRACE = "trace"
"""What the function of the map, and its trace, are known by among the roots."""
MISSING = object()
"""There is no such thing."""
_IDENTICAL = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc, np.dtype, type(np.sum), types.CellType)


class Changed(Exception):  # noqa: N818  (a signal inside of this folder)
    """What a recorder relies on is not what it was."""


class Constants:
    """Reads, in the order in which they were made.

    Attributes:
        values: what each gave.
    """

    def __init__(self, roots: Mapping[Any, Any]) -> None:
        self.values: list[Any] = []
        self._roots = roots
        self._reads: list[tuple[Callable[[list[Any], Mapping[Any, Any]], Any], Any]] = []
        self._known: dict[Any, int] = {}
        self._guards: dict[int, Guard] = {}
        self._alive: list[Any] = []  # whose ids are in `_known`

    def _add(self, key: Any, read: Callable[[list[Any], Mapping[Any, Any]], Any]) -> int:
        """The number of a read.

        Raises:
            Changed: it cannot be read.
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
            raise Changed from error
        if value is MISSING:
            raise Changed
        reached = roots[TRACE].reached
        return roots[TRACE].shared(value) if id(value) in reached and value.ndim > 1 else value

    def close(self) -> None:
        """Let go of the values and the roots: it is only replayed from now on."""
        self.values = []
        self._roots = {}
        self._known = {}

    def rely(self, guards: Any) -> None:
        """Rely on what blocks rely on."""
        self._guards.update({id(guard): guard for guard in guards})

    def now(self, roots: Mapping[Any, Any]) -> list[Any]:
        """The values of now.

        Raises:
            Changed: a read does not give what it gave.
        """
        values: list[Any] = []
        for read, was in self._reads:
            value = self._read(read, values, roots)
            if expected(value) != was:
                raise Changed
            values.append(value)
        if not all(guard.holds() for guard in self._guards.values()):
            raise Changed
        return values

    def root(self, key: Any) -> int:
        """A shared argument."""
        return self._add(("root", key), lambda values, roots: roots[key])

    def literal(self, value: Any) -> int:
        """A value that is part of the code."""
        self._alive.append(value)
        key = ("literal", freeze(value), type(value)) if type(value) in SCALARS else ("object", id(value))
        return self._add(key, lambda values, roots: value)

    def global_(self, scope: dict[str, Any], name: str) -> int:
        """What a global name means."""

        def read(values: list[Any], roots: Any) -> Any:
            found = scope.get(name, MISSING)
            return getattr(builtins, name, MISSING) if found is MISSING else found

        self._alive.append(scope)
        return self._add(("global", id(scope), name), read)

    def attribute(self, base: int, name: str) -> int:
        """An attribute of a module, or one of an object that is read without running code."""

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
        """The function that a method of an object is."""

        def read(values: list[Any], roots: Any) -> Any:
            value = values[base]
            if name in getattr(value, "__dict__", ()) or not isinstance(value, object):
                return MISSING
            return method_of(type(value), name)

        return self._add(("method", base, name), read)

    def method_of(self, kind: type, name: str) -> int:
        """The function that a method of a class's objects is."""
        self._alive.append(kind)
        return self._add(("method of", id(kind), name), lambda values, roots: method_of(kind, name))

    def item(self, base: int, key: Any) -> int:
        """An item of a container, by a constant key."""

        def read(values: list[Any], roots: Any) -> Any:
            value = values[base]
            if type(value) not in (dict, list, tuple) and not (isinstance(value, tuple) and hasattr(value, "_fields")):
                return MISSING
            return value[key]

        return self._add(("item", base, type(key), key), read)

    def compute(self, key: Any, function: Callable[..., Any], *parts: int) -> int:
        """What a function that only computes gives of constants."""
        self._alive.append(function)
        return self._add(
            ("compute", key, *parts),
            lambda values, roots: function(*[values[part] for part in parts]),
        )

    def cell(self, base: int | None, at: int) -> int:
        """What a function closes over; None: the function of the map, which may be made anew for each."""
        return self._add(
            ("cell", base, at),
            lambda values, roots: (roots[FUNCTION] if base is None else values[base]).__closure__[at].cell_contents,
        )

    def default(self, base: int | None, at: int | str) -> int:
        """The default of an argument, from the last one if it is known by its place."""

        def read(values: list[Any], roots: Any) -> Any:
            function = roots[FUNCTION] if base is None else values[base]
            return (function.__defaults__ if type(at) is int else function.__kwdefaults__)[at]

        return self._add(("default", base, at), read)

    def compute_quietly(self, key: Any, function: Callable[..., Any], *parts: int) -> int:
        """As `compute`, of shared arrays; it may not warn."""
        self._alive.append(function)

        def read(values: list[Any], roots: Any) -> Any:
            with np.errstate(all="raise"):
                return function(*[values[part] for part in parts])

        return self._add(("quiet", key, *parts), read)

    def shared_block(self, site: Any) -> int:
        """What a block gives whose inputs are all constants; it may not warn."""
        self._alive.append(site)

        def read(values: list[Any], roots: Any) -> Any:
            trace = roots[TRACE]
            with np.errstate(all="raise"):
                found = site.called(trace, values, ())
                return MISSING if found is None else trace.run_shared_block(found[0])

        return self._add(("block", id(site.block), site.specs), read)

    def unwrapped(self, base: int) -> int:
        """The function that a decorated one decorates, or the one of a method."""
        return self.compute("unwrapped", operator.attrgetter("__wrapped__"), base)


@functools.cache  # which makes it one object
def _method_of_ufunc(ufunc: np.ufunc, name: str) -> Any:
    return getattr(ufunc, name, MISSING)


def method_of(kind: type, name: str) -> Any:
    """The function that a method of a class's objects is; a marker for anything else."""
    for each in kind.__mro__:
        if name in vars(each):
            found = vars(each)[name]
            inner = found.__wrapped__ if hasattr(type(found), "_ab_batch") else found
            return found if type(inner) is types.FunctionType else MISSING
    return MISSING


def expected(value: Any) -> Any:
    """What another value must be like to stand in a value's place."""
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
    return (kind,)


class _Same:
    """Equal to what holds the same object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]
