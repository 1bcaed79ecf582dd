"""Side effects of examples that are traced: changed state, observable order, observable identity, argument writes.

State (`ExampleState`): a run that is abandoned is undone, or the loop after it would find already modified examples. If
several examples share an object and one of them waits, changes to it may happen in another order than in the loop; then
the loop runs. Containers with arrays in them are copied for an example; its changes are stored back in the originals.

Order (`shows_order`): an example that needs a value waits while others run on. Its prints then come after theirs, and
it draws other numbers from a global random generator than in the loop. Such functions run as a loop. Changes to
containers, objects and arrays are not checked here, since `core.snapshot` detects and restores them; state that it
cannot restore is: files, iterators, `array.array`.

Arguments (`Inputs`): a write into an argument only rebinds its handle while the examples run. When all have run, the
values are written to the caller's arrays. If one of these shares memory with another argument, the loop runs instead.

Arrays that `np.asarray` gives out of the trace are read-only while values may still be computed from them; if NumPy
refuses a write for that reason, the loop runs.
"""

import collections
import contextlib
import copyreg
import dataclasses
import functools
import inspect
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType, WrapperDescriptorType
from typing import Any, NamedTuple

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.core.diagnostics import is_library
from autobatch.core.op import is_boxed
from autobatch.core.pytree import attributes, children_of, leaves, replace_leaves
from autobatch.core.recorded_array import is_recorded
from autobatch.core.snapshot import MANY, SavedState, Snapshot, functions_of, is_user_code
from autobatch.errors import Unsupported
from autobatch.facts.call_effects import effect_of, may_act, mutators, reads_values
from autobatch.facts.operators import ARITHMETIC
from autobatch.facts.python_functions import ACTING_MODULES, FRAME_READERS, PAUSES
from autobatch.facts.types import COMPARISON_METHODS, CONTAINERS, GENERATORS, SCALARS
from autobatch.lazy.array import LazyArray
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import MOST_FUNCTIONS
from autobatch.program.liveness import free
from autobatch.program.purity import ANY, may_change, meaning_of
from autobatch.program.python_text import text_of
from autobatch.program.source import normal_form

_Copy = tuple[Any, Any, Any, list[Any], list[Any]]  # as `core.pytree.replace_leaves` gives it


class ExampleState:
    """Snapshots of the containers and objects in the examples, taken only if the function may change any.

    Args:
        columns: the sequences of examples; empty if changes made by Python do not matter.
        shared: snapshot of the function and the shared arguments.
        copies: containers that `core.pytree.replace_leaves` copied in the shared arguments.

    Attributes:
        shared: snapshot of the shared state before the run.
        copies: receives the containers that `core.pytree.replace_leaves` copies in examples; None if none may change.
        kinds: the classes of the examples and, if the function may change any, of the objects in them.
    """

    __slots__ = ("_common", "_roots", "_shared_copies", "_states", "_watched", "copies", "kinds", "shared")

    def __init__(self, columns: Sequence[Sequence[Any]], shared: Snapshot, copies: list[_Copy]) -> None:
        self._states: list[Snapshot] = []
        self._roots: list[Any] = []
        self.shared = shared
        self._common: set[int] = set()
        self.copies: list[_Copy] | None = None
        self._shared_copies: list[_Copy] | None = None
        self._watched: tuple[list[SavedState], list[_Copy], list[np.ndarray], bytes] | None = None
        examples = [value for column in columns for value in column if not _is_wrapped(value)]
        functions = shared.functions or shared.roots[:1]
        self.kinds = set(map(type, examples))
        draws = not self.kinds.isdisjoint(GENERATORS)
        classes = [*shared.classes, *self.kinds]
        if not columns or not (draws or may_change(functions, classes)):
            return
        methods = [each for each in shared.methods if each.__name__ in shared.named]
        held = {**shared.held, ANY: [*shared.held[ANY], *methods]}
        if not (draws or may_change(functions, classes, held) or _hold_callables(examples, held)):
            return
        if not shared.complete:
            self.shared = shared = Snapshot(shared.roots)
        self._shared_copies = copies
        if examples:
            self.copies = []
            self._roots = list(zip(*columns, strict=True))
            self._states = [Snapshot(values, inside=True, raw=_is_raw(values)) for values in self._roots]
            self.kinds |= {type(value) for state in self._states for value in state.places.values()}
            times = collections.Counter(place for state in (shared, *self._states) for place in state.places)
            self._common = {place for place, count in times.items() if count > 1}

    @property
    def may_change(self) -> bool:
        """True if, judged by its syntax, the function may change an argument or anything else it reaches."""
        return self._shared_copies is not None

    def changed(self) -> bool:
        """True if anything in the examples, or in a copied container, has changed."""
        return any(state.changed() for state in self._states) or any(map(_is_changed, self._containers))

    def is_changing(self, index: int) -> bool:
        """True if state that others may see differs when example `index` parks or ends (it may undo that later)."""
        if self._shared_copies is None:
            return False
        if self._watched is None:
            may = _changes_of(self.shared, self.kinds)
            wanted = self.shared.saved(None, True, may)
            arrays = [kept for kept in wanted if type(kept.was) is np.ndarray]
            copies = [each for each in self._shared_copies if may(each[0])]
            contents = b"".join(kept.was.tobytes() for kept in arrays)
            others = [kept for kept in wanted if type(kept.was) is not np.ndarray]
            self._watched = others, copies, [kept.read.__self__ for kept in arrays], contents  # type: ignore[attr-defined]
        others, copies, those, contents = self._watched
        if any(kept.changed for kept in others) or any(map(_is_changed, copies)):
            return True
        if b"".join(map(np.ndarray.tobytes, those)) != contents:
            return True
        return bool(self._common) and self._states[index].changed(self._common, entries=True)

    def shared_state_changed(self, waited: bool) -> bool:
        """True if examples may have missed changes that others made to state they have in common.

        Args:
            waited: an example waited for a value, so they did not run strictly one after the other.
        """
        if waited and any(map(_is_changed, self._shared_copies or ())):
            return True
        if not self._common:
            return False
        if waited and any(state.changed(self._common) for state in self._states):
            return True
        return any(id(each[0]) in self._common and _is_changed(each) for each in self._containers)

    def restore(self) -> None:
        """Restore the state of all examples."""
        for state in self._states:
            state.restore()

    def finish(self, finished: Callable[[Any], Any]) -> None:
        """Store changes in the original containers, and replace recorded arrays in all changed state by values."""
        self._watched = None  # which holds handles
        if self._shared_copies is None:
            return
        given, stored = store_changes(self._containers, finished)
        if stored or self.shared.changed():
            Snapshot(self.shared.roots).settle(given)
        for roots, state in zip(self._roots, self._states, strict=True):
            if stored or state.changed():
                Snapshot(roots, inside=True).settle(given)
        if self.copies:
            self.copies.clear()

    @property
    def _containers(self) -> list[Any]:
        return [*(self._shared_copies or ()), *(self.copies or ())]


_UNCLEAR = frozenset(
    ("getattr", "setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__", "methodcaller", "globals", "?")
)
_IN_PLACE = {f"{each.symbol}=": each.inplace_method for each in ARITHMETIC}


def _changes_of(state: Snapshot, kinds: Collection[type]) -> Callable[[Any], bool]:
    """What tells whether the functions may change an object, by its class and what their normal forms write.

    Args:
        state, kinds: as in `shows_order`.
    """
    called = [each for each in state.held[ANY] if not isinstance(getattr(each, "__self__", None), type)]
    words: set[str] = set()
    modules: list[dict[str, Any]] = []
    for function in _functions(state, kinds):
        own = _words_of(function)
        words |= own.said
        for each in [meaning_of(function, name) for name in own.names]:
            held = vars(each) if isinstance(each, ModuleType) else {}
            called += [each, *[held[name] for name in own.said & held.keys()]]
            modules.append(held)
    inits = "__init__" in words and "super" not in words  # objects that exist
    if inits or not _UNCLEAR.isdisjoint(words) or any(map(_may_write, called)) or any(map(_acts_by_itself, kinds)):
        return lambda value: True
    attributes = {word[1:] for word in words if word[0] == "."}
    changed: set[type] = {kind for kind in CONTAINERS if not words.isdisjoint(mutators(kind))}
    if "global" in words or not all(map(attributes.isdisjoint, modules)):
        changed.update((dict, NoneType))  # a global, or a cell

    def may(value: Any) -> bool:
        if value is None or type(value) in CONTAINERS:
            return type(value) in changed
        if isinstance(value, (np.ndarray, *CONTAINERS)) or not is_user_code(type(value)):
            return type(value) is not FunctionType or "__defaults__" in attributes
        slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
        return not attributes.isdisjoint({*getattr(value, "__dict__", ()), *slots})

    return may


_Path = tuple[str, tuple[tuple[str, str | int], ...]]  # as `nf.path_of` gives it


class _Words(NamedTuple):
    """What a normal form says, its free names, what it reads by them, and which of that it calls for no result.

    Said are these names, attributes, methods that operators call, `.name` for an attribute that is set, "global" for a
    variable of the module or of a function around it, "id" for `is`, "?" for what may do anything. What is done to an
    object that `__init__` or a comprehension makes is left out; `pop` without a key, which no dict has, is `remove`.
    """

    said: Set[str]
    names: Set[str] = frozenset()
    read: Sequence[_Path] = ()
    dropped: Sequence[_Path] = ()


_NO_SOURCE = _Words({"?", "print"})


def _words_of(function: FunctionType) -> _Words:
    if is_library(function.__code__.co_filename) or _is_written_by_python(function):
        return _Words(frozenset())
    try:
        return _words(normal_form(function))
    except Unsupported:
        return _NO_SOURCE


def _is_written_by_python(function: FunctionType) -> bool:
    """True for a method of a dataclass or a named tuple that Python has written."""
    module = function.__globals__.get("__name__", "")
    return function.__code__.co_qualname.startswith("__create_fn__.") or module.startswith("namedtuple_")


@functools.lru_cache(maxsize=MOST_FUNCTIONS)
def _words(form: nf.Closure) -> _Words:
    names = free(form)
    said, read, dropped = set[str](), list[Any](), list[Any]()
    for function in nf.closures(form):
        nodes = list(nf.walk(function.body))
        new = {node.fills for node in nodes if isinstance(node, nf.Loop)}
        new.update(function.parameters.names[:1] if function.name == "__init__" else ())
        keyless = {node.function for node in nodes if isinstance(node, nf.Call) and not node.args}
        makers = {node.base for node in nodes if isinstance(node, nf.Read) and node.key in _MAKERS}
        of_own = {node.function for node in nodes if isinstance(node, nf.Call) and _is_of_own(node)}
        said.update(("global",) if function.shared or function.outer else ())
        for node in nodes:
            match node:
                case nf.Bind(target=None, value=nf.Call(function=called)):
                    dropped.append(nf.path_of(called))
                case nf.Call(function=nf.Operator(symbol="is" | "is not"), args=[_, nf.Value() as other]):
                    said.update(() if isinstance(other, nf.Constant) else ("id",))
                case nf.Operator(symbol=symbol) if symbol in _IN_PLACE:
                    said.add(_IN_PLACE[symbol])
                case nf.Name(id=name) if name in names and node not in makers:
                    said.add(name)
                case nf.Read(base=nf.Name(id=base)) | nf.Write(base=nf.Name(id=base)) if base in new:
                    pass
                case nf.Read(key=str(name)) if node not in makers:
                    said.add("remove" if name == "pop" and node in keyless else name)
                case nf.Write(key=str(name), value=value):
                    said.add(f".{name}" if value else "?")
                case nf.Write(value=value):
                    said.add("__setitem__" if value else "__delitem__")
                case nf.Opaque() | nf.OpaqueStatement():
                    said.update(("?", *re.findall(r"\w+", text_of(node))))
            if isinstance(node, nf.Name | nf.Read) and node not in of_own:
                read.append(nf.path_of(node))
    return _Words(said, names, *([path for path in each if path and path[0] in names] for each in (read, dropped)))


def _is_of_own(node: nf.Call) -> bool:
    """True if a method asks for something of its own object: `type(self)`."""
    return bool(node.args) and isinstance(node.args[0], nf.Name) and node.args[0].id == "self"


def _acts_by_itself(kind: type) -> bool:
    """True if Python calls a user's method of the class by itself, as for `x[i] = y`, other than to show or compare."""
    names = {
        name for base in kind.__mro__ if is_user_code(base) for name in vars(base) if callable(getattr(kind, name))
    }
    return any(name.startswith("__") for name in names - _OF_PEOPLE - {"__post_init__", "__class__"})


def _may_write(value: Any) -> bool:
    """True for a callable, not of the user's, that may change objects other than arrays."""
    is_read = isinstance(value, FunctionType) and not is_library(value.__code__.co_filename)  # its own form is
    if is_read or not callable(value) or isinstance(value, np.ufunc | type) or is_user_code(type(value)):
        return False
    package = (getattr(value, "__module__", None) or "").partition(".")[0]
    effect = effect_of(value)
    of_arrays = package == "numpy" and effect is not None and effect.section != "draws"
    return package != "autobatch" and not of_arrays and (effect is None or bool(effect.writes))


def _hold_callables(values: Iterable[Any], names: Collection[str]) -> bool:
    """True if examples contain a callable, an attribute with one of these names, or more objects than are checked."""
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind in SCALARS or kind is np.ndarray or id(value) in seen:
            continue
        seen.add(id(value))
        if len(seen) > 20_000 or callable(value):  # objects in examples
            return True
        if isinstance(value, dict | list | tuple | set | frozenset | collections.deque):
            waiting += value.values() if isinstance(value, dict) else value
        parts = {name: getattr(value, name, None) for name in copyreg._slotnames(kind)}  # type: ignore[attr-defined]
        parts |= getattr(value, "__dict__", {})
        if not parts.keys().isdisjoint(names):
            return True
        waiting += parts.values()
    return False


def store_changes(copies: Sequence[_Copy], finished: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], bool]:
    """Store the changes of copied containers in the originals.

    Returns:
        What gives the original of a copy, or of a part of one, and of other values `finished`; True if any was changed.
    """
    own = {id(copy): original for original, copy, *_ in copies}
    own |= {id(b): a for *_, old, new in copies for a, b in zip(old, new, strict=True) if a is not b}
    given = functools.partial(_given, own, finished)
    changed = list(filter(_is_changed, copies))
    for each in changed:
        _store(each[0], each[1], given)
    return given, bool(changed)


def _given(own: dict[int, Any], finished: Callable[[Any], Any], value: Any) -> Any:
    """A value of an example as it is outside of the trace: the original of a copy, the value of a recorded array."""
    if id(value) in own:
        return own[id(value)]
    if type(value) is tuple:
        return tuple([_given(own, finished, each) for each in value])
    return finished(value) if type(value) is LazyArray else value


def _is_wrapped(value: Any) -> bool:
    """True if an example as a whole is a number, a string, or an array that the trace wraps."""
    return is_recorded(value) if type(value) is np.ndarray else type(value) in SCALARS


def _is_raw(values: tuple[Any, ...]) -> bool:
    """True if an example contains a structure whose arrays are not wrapped, because it contains itself."""
    for value in values:
        found: list[Any] = []
        if replace_leaves(value, lambda leaf, found=found: found.append(leaf)) is value and found:  # type: ignore[misc]
            return True
    return False


def _is_changed(each: _Copy) -> bool:
    _, copy, keys, _, new = each
    if isinstance(copy, tuple):
        return False
    keys_now, now = children_of(copy)
    return keys_now != keys or len(now) != len(new) or any(a is not b for a, b in zip(now, new, strict=True))


def _store(original: Any, copy: Any, given: Callable[[Any], Any]) -> None:
    keys, now = children_of(copy)
    values = [given(value) for value in now]
    if dataclasses.is_dataclass(original):
        for key, value in zip(keys, values, strict=True):
            object.__setattr__(original, key, value)
        return
    original.clear()
    if isinstance(original, list):
        original.extend(values)
    else:
        original.update(zip(keys, values, strict=True))


_IDENTITY = frozenset(("id", "is_", "is_not", "?"))
_METHODS = frozenset(("write", "writelines"))  # of files; counted only as attributes, users' functions may share a name
_NAMES = ACTING_MODULES | {"input", "open", "print"} | PAUSES
_MAKERS = frozenset(("default_rng", "Generator", "RandomState", "SeedSequence", "PCG64", "Random"))  # make a generator
_KEPT = (dict, list, set, collections.deque, bytearray, np.ndarray, random.Random)


def shows_order(state: Snapshot, kinds: Collection[type] = (), batches: bool = False) -> bool:
    """True if the function may print, draw random numbers, do I/O, or use an object that is consumed by reading.

    Args:
        state: a snapshot of the function and its shared arguments; kinds: the classes of the objects in its examples.
        batches: True if a batch that is reached counts as well, since nothing is recorded in it.

    >>> shows_order(Snapshot([iter([1])]))
    True
    >>> shows_order(Snapshot([[1], 2.0]))
    False
    """
    functions = _functions(state, kinds)
    reached = state.places.values()
    if batches and any(isinstance(value, Batch) for value in reached):
        return True
    words = map(_words_of, functions)
    acts = any(not (_NAMES.isdisjoint(said) and _METHODS.isdisjoint(said - names)) for said, names, *_ in words)
    if acts or any(map(_has_unsaveable_state, kinds)) or any(map(_is_effectful, reached)):
        return True
    return any(map(_calls_effects_elsewhere, functions))


def without_source(state: Snapshot, kinds: Collection[type]) -> str:
    """The name of a function of the user's without source, of which `shows_order` is True; "" if there is none."""
    return next((each.__qualname__ for each in _functions(state, kinds) if _words_of(each) is _NO_SOURCE), "")


def shows_identity(state: Snapshot, kinds: Collection[type], columns: Iterable[Any], units: Iterable[Any]) -> bool:
    """True if the function may observe the identity of an array that is reachable in two ways, as in `others[i] is x`.

    On the fly such an array may be two objects: each way has its own recorded array and copies of containers.

    Args:
        state, kinds: as in `shows_order`; columns: the examples; units: the function and each shared argument.
    """
    asks = any(not _IDENTITY.isdisjoint(_words_of(function).said) for function in _functions(state, kinds))
    if not asks and not _holds_identity_objects(state):
        return False
    if any(id(each) in state.reached for each in _arrays_in(columns)):
        return True
    sides = (Snapshot([unit], most=MANY).reached.values() for unit in units)
    times = collections.Counter(id(each) for side in sides for each in side if _is_array(each))
    return any(count > 1 for count in times.values())


def _holds_identity_objects(state: Snapshot) -> bool:
    """True if the state contains a dataclass object compared by identity: it may be copied, and `in` would see that."""
    kinds = {kind for kind in state.classes if dataclasses.is_dataclass(kind) and kind.__eq__ is object.__eq__}
    return bool(kinds) and any(type(each) in kinds for each in state.reached.values())


def _arrays_in(values: Iterable[Any]) -> Iterator[Any]:
    """The arrays in examples that get wrapped, each once."""
    seen: dict[int, Any] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if type(value) in SCALARS or id(value) in seen:
            continue
        seen[id(value)] = value
        if _is_array(value):
            yield value
        elif isinstance(value, dict | list | tuple):
            waiting += value.values() if isinstance(value, dict) else value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            waiting += [getattr(value, name) for name in attributes(value)]


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray or is_boxed(value)


def _functions(state: Snapshot, kinds: Collection[type]) -> list[FunctionType]:
    """The user's functions and methods that were reached, and methods of the classes `kinds` that they name."""
    methods = (vars(kind)[name] for kind in kinds for name in state.named & vars(kind).keys())
    return [*state.functions, *state.methods, *(each for each in methods if isinstance(each, FunctionType))]


def shows_classes(state: Snapshot, kinds: Collection[type]) -> bool:
    """True if code that runs as it is written asks for a value's class, or gives values to what reads them.

    Such code cannot be rewritten: functions that read their variables by name, and methods that Python calls by itself
    (`__add__`).

    Args:
        state, kinds: as in `shows_order`.
    """
    if any(not FRAME_READERS.isdisjoint(_words_of(each).names) and _asks(each) for each in state.functions):
        return True
    held = [item for kind in {*state.classes, *kinds} for item in vars(kind).items()]
    implicit = [
        function
        for name, value in held
        if isinstance(value, property) or (name.startswith("__") and name not in _OF_PEOPLE)
        for function in functions_of(value)
    ]
    return any(map(_asks, implicit))


def _asks(function: FunctionType) -> bool:
    """True if code of the user's names `type` or `hasattr`, other than of `self`, or what reads its arguments."""
    words = _words_of(function)
    values = [_found(function, *path) for path in words.read]
    return words is _NO_SOURCE or any(each is type or each is hasattr or reads_values(each) for each in values)


def _found(function: FunctionType, name: str, steps: Iterable[tuple[str, str | int]]) -> Any:
    """What a free name of a function, followed by attributes, refers to; None if it is no attribute of a class."""
    value = meaning_of(function, name)
    for how, attribute in steps:
        value = inspect.getattr_static(value, str(attribute), None) if how == "attr" else None
        value = getattr(value, "__func__", value)
    return value


_OF_PEOPLE = frozenset((*COMPARISON_METHODS, "__init__", "__call__", "__repr__", "__str__", "__new__", "__ne__"))


def changes_nothing(function: Any, shared: Any, kinds: Collection[type]) -> bool:
    """True if examples of these classes have no effect but their results, in any order and run any number of times."""
    state = Snapshot([function, shared], most=MANY)
    if shows_order(state, kinds) or not set(GENERATORS).isdisjoint(kinds):
        return False
    return not may_change(state.functions or [function], [*state.classes, *kinds])


def _calls_effects_elsewhere(function: FunctionType) -> bool:
    """True if it calls another package's function with possible side effects and drops the result."""
    values = [_found(function, *path) for path in _words_of(function).dropped]
    called = [each for each in values if isinstance(each, FunctionType)]
    return any(is_library(each.__code__.co_filename) and may_act(each) for each in called)


def _is_effectful(value: Any) -> bool:
    """True if a value is an iterator, or a callable or object with effects outside of the process's memory."""
    acts = isinstance(value, BuiltinFunctionType) and value.__name__ in _NAMES | _METHODS
    return acts or _has_unsaveable_state(type(value)) or (callable(value) and _is_in_module(value))


def _has_unsaveable_state(kind: type) -> bool:
    """True if a snapshot cannot save the state of objects of this class: an iterator, an `array.array`, a file."""
    if issubclass(kind, _KEPT):
        return issubclass(kind, random.SystemRandom)
    stores = isinstance(getattr(kind, "__setitem__", None), WrapperDescriptorType)
    return stores or hasattr(kind, "__next__") or _is_in_module(kind)


def _is_in_module(made: Any) -> bool:
    module = getattr(made, "__module__", None)
    return isinstance(module, str) and module.lstrip("_").partition(".")[0] in ACTING_MODULES


_SEVERAL = -2  # in place of an example's number


class Inputs:
    """The arrays given by the caller, and the writes to them.

    Attributes:
        in_order: all of them are C-contiguous, so that whether a reshape is a view follows from the shape alone.
        written: (handle, array) of each argument that an example has written to.
        lent: read-only views of values, given to examples as plain arrays (`np.asarray`).
        originals: {id: the caller's object}, for copies of containers, the handles in `written`, and what is lent.
    """

    __slots__ = ("_copies", "_owners", "in_order", "lent", "originals", "written")

    def __init__(self) -> None:
        self._owners: dict[int, list[Any]] = {}
        self.in_order = True
        self.written: list[tuple[Any, Any]] = []
        self.lent: list[np.ndarray] = []
        self.originals: dict[int, Any] = {}
        self._copies: list[Any] = []  # keeps the ids

    def add_copies(self, copies: Iterable[_Copy]) -> None:
        """Note the copies that `core.pytree.replace_leaves` made."""
        for original, copy, *_ in copies:
            self.originals[id(copy)] = original
            self._copies.append(copy)

    def add(self, value: Any, example: int) -> None:
        """Note an argument of an example."""
        if type(value) is np.ndarray and value.ndim > 1 and not value.flags.c_contiguous:
            self.in_order = False
        owner = self._owners.setdefault(id(value), [value, example])
        if owner[1] != example:
            owner[1] = _SEVERAL

    def note_write(self, handle: Any) -> bool:
        """Note that a handle is about to be rebound, if it holds an argument; False if that argument is read-only."""
        owner = self._owners.get(id(handle.source))
        if owner is not None and owner[0] is handle.source:
            self.written.append((handle, owner[0]))
            if type(owner[0]) is np.ndarray:
                self.originals[id(handle)] = owner[0]
            return type(handle.source) is not np.ndarray or handle.source.flags.writeable
        return True

    def lend(self, value: np.ndarray) -> np.ndarray:
        """A read-only view to give out of the trace; the array itself if it is read-only already."""
        if not value.flags.writeable:
            return value
        out = value.view()
        out.flags.writeable = False
        self.lent.append(out)
        self.originals[id(out)] = value
        return out

    def end_loans(self, results: Any) -> None:
        """Make lent views, and views of the same arrays in the results, writable again."""
        if self.lent:
            owners = {id(x.base) for x in self.lent}
            views = [x for x in leaves(results) if type(x) is np.ndarray and id(x.base) in owners]
            for x in (*self.lent, *views):
                with contextlib.suppress(ValueError):  # NumPy refuses for a view that was read-only before
                    x.flags.writeable = True

    def clear(self) -> None:
        self._owners.clear()
        self.lent.clear()
        self.drop_handles()

    def drop_handles(self) -> None:
        """Drop all that refers to the trace; what is finished later is not recognised as the caller's."""
        self.originals.clear()
        self.written.clear()
        self._copies.clear()

    def pending_writes(self, shared: Iterable[Any]) -> list[tuple[Any, Any, Any]] | None:
        """Pending writes (array, index, value) into the caller's arrays; None if one overlaps another array."""
        if not self.written:
            return []
        if any(self._owners[id(target)][1] == _SEVERAL for _, target in self.written) or self._overlap(shared):
            return None
        found = []
        for handle, target in self.written:
            value = handle.trace.value(handle)
            if is_boxed(target) or not is_boxed(value):  # an array cannot hold a gradient
                found.append((target, ..., value))
        return found

    def _overlap(self, shared: Iterable[Any]) -> bool:
        arrays = [x for x, _ in self._owners.values() if type(x) is np.ndarray and x.size]
        arrays += [x for x in shared if type(x) is np.ndarray and x.size]
        written = {id(array) for _, array in self.written}
        bounds = sorted((*np.lib.array_utils.byte_bounds(x), id(x) in written) for x in arrays)
        end, end_written = -1, -1
        for low, high, is_written in bounds:
            if low < (end if is_written else end_written):
                return True
            end = max(end, high)
            if is_written:
                end_written = max(end_written, high)
        return False
