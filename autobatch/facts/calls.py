"""What a call does to what it is given: which arguments it writes, which its result may share, what else it touches.

`effect_of` and `method_effect` answer for functions and methods. Their answers come from the tables `numpy_functions`,
`python_functions` and `methods`, which are lists of entries such as

    cumsum(a,axis,dtype,!out)      `out` is written if it is given
    reshape(&a)                    the result may be `a`, share its memory, or be a part of it
    median(a,overwrite_input=!a)   `a` is written if `overwrite_input` is given as anything but a literal False
    array(a,dtype,*,copy=&a)       the result may share `a` if `copy` is given as anything but a literal True
    piecewise(x,condlist,@funclist)    `funclist` is called

In the tables of methods a mark before the name is about the object that the method is of: `!sort`, `&reshape`. An
entry without arguments says: reads what it is given, and its result is new. What no table names has no effect that is
known, and whoever asks has to assume the worst. `tests/facts` compares every entry with what NumPy and Python do.
"""

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from autobatch.facts import methods, numpy_functions, python_functions

__all__ = [
    "CREATORS",
    "READS_ONLY",
    "SEQUENCE_FUNCTIONS",
    "WRITERS",
    "Effect",
    "effect_of",
    "effects_of_method",
    "method_effect",
    "method_names",
    "mutators",
]

T = TypeVar("T")
_ENTRY = re.compile(r"([!&]*)([\w.]+)(?:\(([^)]*)\))?")
_SAFE = {"copy": True}  # switches that are safe when true; all others are safe when false


@dataclass(frozen=True, slots=True)
class Effect:
    """What a call does to what it is given.

    Attributes:
        name: of the function or method.
        section: `computes`, `creates` (an array that is not made of others), `joins` (its first argument is a sequence
            of arrays), `draws` (random numbers), `memory` (tells where arrays lie), `outside` (reads or changes state
            that is no argument).
        parameters: names of the arguments by position, as far as they matter; `self` is a method's first.
        variadic: the last positional parameter takes all further arguments.
        writes: arguments that are written if they are given.
        shares: arguments of which the result may be a part, share the memory, or which it may be.
        calls: arguments that are called.
        switches: `(name, writes, target)`: giving `name` as anything but its safe value lets the call write `target`,
            or share it.
    """

    name: str
    section: str
    parameters: tuple[str, ...] = ()
    variadic: bool = False
    writes: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    switches: tuple[tuple[str, bool, str], ...] = ()

    @property
    def changes_nothing_outside(self) -> bool:
        """Whether it touches nothing but its arguments: no state elsewhere, no random numbers."""
        return self.section not in ("draws", "outside")

    @property
    def always_writes(self) -> bool:
        """Whether it writes its first argument whatever else it is given."""
        return bool(self.parameters) and self.parameters[0] in self.writes

    @property
    def reads_only(self) -> int:
        """How many positional arguments a call may have that surely writes none, as long as it has no others."""
        places = [place for place, name in enumerate(self.parameters) if name in self.writes or self._is_switch(name)]
        return min(places, default=1 << 10)

    def _is_switch(self, name: str) -> bool:
        return any(name == switch for switch, writes, _ in self.switches if writes)

    def bind(self, args: Sequence[T], kwargs: Mapping[str, T]) -> Iterator[tuple[str, T]]:
        """The arguments by the names that the table has for them, in the order given; "" for one that it leaves out."""
        last = len(self.parameters) - 1
        for place, arg in enumerate(args):
            if place <= last:
                yield self.parameters[place], arg
            else:
                yield (self.parameters[last] if self.variadic else ""), arg
        yield from kwargs.items()

    def written(
        self, args: Sequence[T], kwargs: Mapping[str, T], literal: Callable[[T], Any] = lambda value: value
    ) -> list[T]:
        """The arguments that a call writes.

        Args:
            args, kwargs: what is passed: values, or the syntax that stands for them. A method's object comes first.
            literal: the value of an argument, of syntax the constant that it is; anything else where it is none.
        """
        bound = list(self.bind(args, kwargs))
        targets = self.writes | {target for name, writes, target in self._switched(bound, literal) if writes}
        return [arg for name, arg in bound if name in targets and literal(arg) is not None]

    def shared(
        self, args: Sequence[T], kwargs: Mapping[str, T], literal: Callable[[T], Any] = lambda value: value
    ) -> list[T]:
        """The arguments that the result may be, share memory with, or be a part of: also those that it writes."""
        bound = list(self.bind(args, kwargs))
        targets = self.shares | self.writes | {target for _, _, target in self._switched(bound, literal)}
        return [arg for name, arg in bound if name in targets and literal(arg) is not None]

    def _switched(self, bound: Sequence[tuple[str, T]], literal: Callable[[T], Any]) -> Iterator[tuple[str, bool, str]]:
        for switch in self.switches:
            for name, arg in bound:
                if name == switch[0] and literal(arg) is not _SAFE.get(name, False):
                    yield switch


def _parse(text: str, section: str, method: bool = False) -> Iterator[Effect]:
    for marks, name, arguments in _ENTRY.findall(text):
        parameters: list[str] = ["self"] if method else []
        found: dict[str, set[str]] = {"!": set(), "&": set(), "@": set()}
        for mark in marks:
            found[mark].add("self")
        switches, positional, variadic = [], True, False
        for argument in arguments.split(",") if arguments else ():
            if argument == "*":
                positional = False
                continue
            argument, _, target = argument.partition("=")
            plain = argument.lstrip("!&@*")
            for mark in argument[: len(argument) - len(plain)]:
                if mark == "*":
                    variadic = True
                else:
                    found[mark].add(plain)
            if target:
                switches.append((plain, target[0] == "!", target[1:]))
            if positional:
                parameters.append(plain)
                positional = not variadic
        writes, shares, calls = (frozenset(found[mark]) for mark in "!&@")
        yield Effect(name, section, tuple(parameters), variadic, writes, shares, calls, tuple(switches))


def _functions() -> Iterator[tuple[Any, Effect]]:
    for tables in (python_functions.TABLES, numpy_functions.TABLES):
        for module, sections in tables.items():
            for section, text in sections.items():
                for effect in _parse(text, section):
                    with contextlib.suppress(AttributeError):  # of another version of NumPy or Python
                        yield operator.attrgetter(effect.name)(module), effect


_FUNCTIONS: dict[Any, Effect] = dict(_functions())
_METHODS: dict[type, dict[str, Effect]] = {
    kind: {
        effect.name: effect
        for section, text in table.items()
        for effect in _parse(text, section, method=True)
        if hasattr(kind, effect.name)
    }
    for kind, table in methods.TABLES.items()
}
_OF_UFUNCS = {effect.name: effect for effect in _parse(methods.OF_UFUNCS, "computes")}


def effect_of(function: Any) -> Effect | None:
    """What a call of this does; None if it is not known.

    >>> effect_of(np.cumsum).written(["x", 0, None, "y"], {})
    ['y']
    >>> effect_of(np.multiply).written(["x", "y"], {"out": "z"})
    ['z']
    >>> effect_of(np.reshape).shared(["x", 3], {})
    ['x']
    """
    if isinstance(function, np.ufunc):
        return _of_ufunc(function)
    holder = getattr(function, "__self__", None)
    if isinstance(holder, np.ufunc):
        return _OF_UFUNCS.get(function.__name__)
    try:
        return _FUNCTIONS.get(function) or _of_class(function)
    except TypeError:  # it cannot be hashed
        return None


@functools.lru_cache(maxsize=512)
def _of_ufunc(function: np.ufunc) -> Effect:
    places = tuple(f"in{place}" for place in range(function.nin)) + ("out",) * function.nout
    return Effect(function.__name__, "computes", places, writes=frozenset(("out",)))


def _of_class(kind: Any) -> Effect | None:
    if isinstance(kind, type) and issubclass(kind, np.generic | BaseException):
        return Effect(kind.__name__, "computes")
    return None


def method_effect(kind: type, name: str) -> Effect | None:
    """What a method of this class's objects does, with the object as its first argument; None if it is not known.

    A class that inherits a method has it as the table says; one that has its own of that name is not known.

    >>> method_effect(np.ndarray, "round").written(["x", 0, "y"], {})
    ['y']
    >>> method_effect(list, "sort").written(["items"], {})
    ['items']
    """
    for each in kind.__mro__:
        table = _METHODS.get(each)
        if table is not None and name in table:
            return table[name]
        if name in vars(each):
            return None
    return None


@functools.cache
def effects_of_method(name: str) -> tuple[Effect, ...]:
    """What methods of this name do, of whichever of the known classes the object is."""
    return tuple(dict.fromkeys(table[name] for table in _METHODS.values() if name in table))


@functools.cache
def method_names(*kinds: type) -> frozenset[str]:
    """The methods of these classes that change nothing at all when they are called without `out`."""
    return frozenset(
        name
        for kind in kinds
        for name, effect in _METHODS[kind].items()
        if effect.changes_nothing_outside and "self" not in effect.writes
    )


@functools.cache
def mutators(*kinds: type) -> frozenset[str]:
    """The methods of these classes that change the object they are of; of all classes without any given.

    >>> sorted(mutators(list) - mutators(set) - mutators(dict))
    ['__iadd__', '__imul__', 'append', 'extend', 'insert', 'reverse', 'sort']
    """
    return frozenset(
        name for kind in kinds or _METHODS for name, effect in _METHODS[kind].items() if "self" in effect.writes
    )


CREATORS = frozenset(function for function, effect in _FUNCTIONS.items() if effect.section == "creates")
"""Functions of NumPy's that make an array which is not made of others: zeros, full_like, arange."""
SEQUENCE_FUNCTIONS = frozenset(function for function, effect in _FUNCTIONS.items() if effect.section == "joins")
"""Functions of NumPy's that take sequences of arrays."""
WRITERS = frozenset(function for function, effect in _FUNCTIONS.items() if effect.always_writes)
"""Functions that write their first argument whatever else they are given: np.copyto, heapq.heappush."""
READS_ONLY = {function: effect.reads_only for function, effect in _FUNCTIONS.items()}
"""How many positional arguments each function takes at most if it is to write none of them."""
