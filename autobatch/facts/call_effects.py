"""Effects of calls: which arguments a function writes, which its result may alias, and what outside state it touches.

`effect_of` and `method_effect` look up functions and methods in the tables `numpy_functions`, `python_functions` and
`methods`, which are lists of entries such as

    cumsum(a,axis,dtype,!out)      `out` is written if it is given
    reshape(&a)                    the result may be `a`, share its memory, or be a part of it
    median(a,overwrite_input=!a)   `a` is written if `overwrite_input` is given as anything but a literal False
    array(a,dtype,*,copy=&a)       the result may share `a` if `copy` is given as anything but a literal True
    piecewise(x,condlist,@funclist)    `funclist` is called

In the tables of methods a mark before the name refers to the method's object: `!sort`, `&reshape`. An entry without
arguments means that the call only reads its arguments and its result is new. The effect of anything not in a table is
unknown, and callers must assume the worst. `tests/facts` checks every entry against NumPy and Python.
"""

import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np

from autobatch.core.diagnostics import is_library
from autobatch.facts import methods, numpy_functions, python_functions
from autobatch.facts.python_functions import COMPUTING_LIBRARIES, PASSING_MODULES, READERS
from autobatch.facts.types import SCALARS

T = TypeVar("T")
_ENTRY = re.compile(r"([!&]*)([\w.]+)(?:\(([^)]*)\))?")
_SAFE = {"copy": True}  # switches whose safe value is True; for all others it is False


@dataclass(frozen=True, slots=True)
class Effect:
    """The effects of a call on its arguments and on the world outside.

    Attributes:
        name: the function's or method's name.
        section: `computes`; `shaped` (result's shape and dtype follow from the arguments'); `creates` (makes an array
            not from other arrays); `joins` (first argument is a sequence of arrays); `draws` (random numbers);
            `memory` (tells where arrays are in memory); `outside` (reads or changes state that is no argument).
        parameters: the positional parameters' names, as far as they matter; a method's first is `self`.
        variadic: True if the last positional parameter takes all further arguments.
        writes: arguments that are written if given.
        shares: arguments that the result may be, be a part of, or share memory with.
        calls: arguments that are called.
        switches: `(name, writes, target)`: unless argument `name` has its safe value, the call may write `target` (if
            `writes`), or its result may share it.
        reads_only: a call with at most this many positional arguments (a method's object counts), and no keyword
            arguments, writes none of them.
    """

    name: str
    section: str
    parameters: tuple[str, ...] = ()
    variadic: bool = False
    writes: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    switches: tuple[tuple[str, bool, str], ...] = ()
    reads_only: int = 1 << 10

    @property
    def changes_nothing_outside(self) -> bool:
        """True if it touches nothing but its arguments: no outside state, no random numbers."""
        return self.section not in ("draws", "outside")

    @property
    def always_writes(self) -> bool:
        """True if every call writes its first argument."""
        return bool(self.parameters) and self.parameters[0] in self.writes

    def bind(self, args: Sequence[T], kwargs: Mapping[str, T]) -> Iterator[tuple[str, T]]:
        """(parameter name, argument) in the order passed; the name is "" if the table has none for the position."""
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
            args, kwargs: the arguments, as values or as syntax nodes; a method's object comes first.
            literal: maps an argument to its value; for syntax, a constant's value, else any other object.
        """
        bound = list(self.bind(args, kwargs))
        targets = self.writes | {target for name, writes, target in self._switched(bound, literal) if writes}
        return [arg for name, arg in bound if name in targets and literal(arg) is not None]

    def shared(
        self, args: Sequence[T], kwargs: Mapping[str, T], literal: Callable[[T], Any] = lambda value: value
    ) -> list[T]:
        """The arguments that the result may be, share memory with or contain, including the written ones."""
        bound = list(self.bind(args, kwargs))
        targets = self.shares | self.writes | {target for _, _, target in self._switched(bound, literal)}
        return [arg for name, arg in bound if name in targets and literal(arg) is not None]

    def _switched(self, bound: Sequence[tuple[str, T]], literal: Callable[[T], Any]) -> Iterator[tuple[str, bool, str]]:
        for switch in self.switches:
            for name, arg in bound:
                if name == switch[0] and literal(arg) is not _SAFE.get(name, False):
                    yield switch


_Entry = tuple[str, str, str, str, bool]  # section, marks, name, arguments, True for a method


@functools.cache
def _effect(entry: _Entry) -> Effect:
    """Parse an entry; on first use, since there are a thousand entries."""
    section, marks, name, arguments, method = entry
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
    writing = writes | {switch for switch, is_write, _ in switches if is_write}
    first = min([place for place, parameter in enumerate(parameters) if parameter in writing], default=1 << 10)
    return Effect(name, section, tuple(parameters), variadic, writes, shares, calls, tuple(switches), first)


@functools.cache
def _functions() -> dict[Any, _Entry]:
    """{function: entry}, resolved on first use."""
    out: dict[Any, _Entry] = {}
    tables: list[tuple[Any, dict[str, str]]] = [*python_functions.TABLES.items(), *numpy_functions.TABLES.items()]
    texts = [(module, section, text) for module, sections in tables for section, text in sections.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # for names that newer NumPy versions drop
        for module, section, text in texts:
            for marks, name, arguments in _ENTRY.findall(text):
                function = functools.reduce(lambda held, part: getattr(held, part, None), name.split("."), module)
                if function is not None:  # else this NumPy or Python version has no such name
                    out[function] = section, marks, name, arguments, False
    return out


_METHODS: dict[type, dict[str, _Entry]] = {
    kind: {
        name: (section, marks, name, arguments, True)
        for section, text in table.items()
        for marks, name, arguments in _ENTRY.findall(text)
        if hasattr(kind, name)
    }
    for kind, table in methods.TABLES.items()
}
_OF_UFUNCS = {entry[1]: ("computes", *entry, False) for entry in _ENTRY.findall(methods.OF_UFUNCS)}


def effect_of(function: Any) -> Effect | None:
    """The `Effect` of calling this object; None if unknown.

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
        entry = _OF_UFUNCS.get(function.__name__)
        return None if entry is None else _effect(entry)
    try:
        entry = _functions().get(function)
    except TypeError:  # unhashable
        return None
    return _of_class(function) if entry is None else _effect(entry)


@functools.lru_cache(maxsize=512)
def _of_ufunc(function: np.ufunc) -> Effect:
    places = tuple(f"in{place}" for place in range(function.nin)) + ("out",) * function.nout
    return Effect(function.__name__, "computes", places, writes=frozenset(("out",)), reads_only=function.nin)


def may_act(f: Any) -> bool:
    """True if a call runs Python code of unknown effect: that of a package not known to only compute.

    Also True for the user's own functions; ask this only for those whose source is unavailable.

    >>> import networkx
    >>> may_act(np.flip), may_act(functools.lru_cache), may_act(networkx.path_graph)
    (False, False, True)
    """
    if isinstance(f, type) or effect_of(f) is not None:
        return False
    function = getattr(f, "__func__", f)
    function = function if isinstance(function, FunctionType) else getattr(type(f), "__call__", None)  # noqa: B004
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    known = package in sys.stdlib_module_names or package in COMPUTING_LIBRARIES or package == "autobatch"
    return isinstance(function, FunctionType) and not known


def reads_values(f: Any) -> bool:
    """True if a callee of Python's library or of another may read memory or classes of what it gets, as C code does.

    False for those that keep or pass on what they get, or use its operators and methods; and for the user's own.

    >>> import json
    >>> [reads_values(each) for each in (json.dumps, float.hex, "a".join, zip, [].append, sum, np.sum)]
    [True, True, True, False, False, False, False]
    """
    kind = type(f)
    if kind is MethodType:
        return reads_values(f.__func__)
    if kind is FunctionType:
        return _reads(f.__globals__.get("__name__"), f.__code__.co_filename) or f.__globals__ is vars(functools)
    holder: Any = getattr(f, "__objclass__", None)
    if holder is None:
        holder = getattr(f, "__self__", None)
        if holder is None or type(holder) is ModuleType:
            if kind in READERS or (kind.__hash__ is not None and f in READERS):
                return True
            called = getattr(kind, "__call__", None)  # noqa: B004  (not whether: which)
            if type(called) is FunctionType:
                return reads_values(called)
            named = f if isinstance(f, type) or kind is BuiltinFunctionType else kind  # others may name what they wrap
            return _reads(named.__module__)
        holder = holder if isinstance(holder, type) else type(holder)
    return holder in SCALARS or holder in READERS or _reads(holder.__module__)


@functools.lru_cache(maxsize=4096)
def _reads(module: Any, filename: str | None = None) -> bool:
    """True for the functions and classes of a library's module that is not in `PASSING_MODULES`."""
    package = module.lstrip("_").partition(".")[0] if isinstance(module, str) else ""
    filename = getattr(sys.modules.get(module), "__file__", None) if filename is None else filename
    return package not in PASSING_MODULES and (package in sys.stdlib_module_names or is_library(filename or ""))


def _of_class(kind: Any) -> Effect | None:
    if isinstance(kind, type) and issubclass(kind, np.generic | BaseException):
        return Effect(kind.__name__, "computes")
    return None


@functools.lru_cache(maxsize=4096)
def method_effect(kind: type, name: str) -> Effect | None:
    """The `Effect` of a method of this class, with the object as its first argument; None if unknown.

    A subclass that inherits the method has the table's entry; one that overrides it is unknown.

    >>> method_effect(np.ndarray, "round").written(["x", 0, "y"], {})
    ['y']
    >>> method_effect(list, "sort").written(["items"], {})
    ['items']
    """
    for each in kind.__mro__:
        table = _METHODS.get(each)
        if table is not None and name in table:
            return _effect(table[name])
        if table is None and name in vars(each):
            return None
    return None


@functools.cache
def effects_of_method(name: str) -> tuple[Effect, ...]:
    """The distinct `Effect`s of methods of this name over all classes in the tables."""
    return tuple(dict.fromkeys(_effect(table[name]) for table in _METHODS.values() if name in table))


@functools.cache
def method_names(*kinds: type) -> frozenset[str]:
    """Names of these classes' methods that neither change their object nor touch outside state."""
    entries = [entry for kind in kinds for entry in _METHODS[kind].values()]
    return frozenset([name for section, marks, name, *_ in entries if section != "outside" and "!" not in marks])


@functools.cache
def mutators(*kinds: type) -> frozenset[str]:
    """Names of these classes' methods that change their object; by default over all classes.

    >>> sorted(mutators(list) - mutators(set) - mutators(dict))
    ['__iadd__', '__imul__', 'append', 'extend', 'insert', 'reverse', 'sort']
    """
    entries = [entry for kind in kinds or _METHODS for entry in _METHODS[kind].values()]
    return frozenset([name for _, marks, name, *_ in entries if "!" in marks])


@functools.cache
def functions_of(section: str) -> frozenset[Any]:
    """The functions of a section (`Effect.section`), e.g. zeros, full_like and arange for "creates"."""
    return frozenset([function for function, entry in _functions().items() if entry[0] == section])


SHAPED_METHODS = frozenset([name for name, entry in _METHODS[np.ndarray].items() if entry[0] == "shaped"])
"""Names of array methods whose result's shape and dtype follow from those of the arguments."""
ARRAY_SHARERS = frozenset([
    name for sections in numpy_functions.TABLES.values() for text in sections.values()
    for _, name, arguments in _ENTRY.findall(text) if re.search(r"(?:^|,)\*?&|copy=!x", arguments)
])  # fmt: skip
"""Names of NumPy functions whose result may share memory with an argument: asarray, reshape, nan_to_num.

Functions that share only through their `copy` argument are not listed; callers check that argument.
"""
