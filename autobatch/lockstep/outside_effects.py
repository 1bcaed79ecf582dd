"""Prints and updates of outside objects are recorded while a lock-step call runs, and made in example order at its end.

The result is that of the loop as long as the call never reads what it changes: `log.append(x)`, `count[key] += x` and
`stats.n += x` stay in lock-step if the function uses the name for nothing else (`syntax.scopes.only_mutated`) and the
object cannot be reached from anything else in the call (`_is_reachable`). An abandoned call has changed nothing; the
next way makes the effects. Random draws are not handled here: `lockstep/calls/call_by_callee.py` asks for the next way.
"""

import collections
import contextvars
import dis
import functools
import gc
import inspect
import io
import sys
import threading
import weakref
from collections.abc import Callable
from types import FunctionType, ModuleType, WrapperDescriptorType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import has_batch, narrow_tree, per_narrowed_lane
from autobatch.core.current_region import current_region
from autobatch.core.op import is_boxed
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop, note_example
from autobatch.facts.operators import ARITHMETIC
from autobatch.facts.python_functions import FRAME_READERS
from autobatch.facts.types import SCALARS
from autobatch.lockstep.calls.builtin_functions import is_batched_tree, unwrap
from autobatch.lockstep.lanes.region import current_root, is_made
from autobatch.syntax.bounded_caches import CodeCache
from autobatch.syntax.scopes import only_mutated
from autobatch.syntax.source import NoSourceError, find, inner_codes, is_library

Step = tuple[int, Callable[..., Any], tuple[Any, ...]]  # (example, function, arguments): one deferred call

_UPDATES = {each.symbol: each.inplace for each in ARITHMETIC}
_DICTS = (dict, collections.Counter, collections.defaultdict)
_MOST_SEARCHED = 5000
"""Give up the search for other references to a changed object (`_is_reachable`) after this many objects."""


class Effects:
    """The recorded effects of one lock-step call.

    Args:
        given: (function, args, kwargs) of the call.
    """

    def __init__(self, given: tuple[Any, ...]) -> None:
        self._given = given
        self._targets: dict[int, tuple[str, Any]] = {}
        self._noted: list[tuple[str, Any, str, list[int], list[Any]]] = []

    def note(self, kind: str, target: Any, symbol: str, key: Any, value: Any) -> None:
        """Record `target.append(value)`, or an update of its attribute or item like `+=`, for the current lanes.

        Args:
            kind: "append", "attribute" or "item"; symbol: the operator's, e.g. "+".
        """
        known = self._targets.get(id(target))
        if known is None and (is_made(target) or not _can_defer(kind, target) or _is_reachable(target, self._given)):
            raise NeedsLoop(f"a {type(target).__name__} from outside the call is changed, and may be read by it")
        if known is not None and known[0] != kind:  # a negative index would mean another item after an append
            raise NeedsLoop(f"a {type(target).__name__} from outside the call is changed in two ways")
        self._targets[id(target)] = kind, target
        self._note(kind, target, symbol, _immutable_values, (key, value))

    def note_print(self, args: tuple[Any, ...], **named: Any) -> None:
        """Record a `print` by the current lanes."""
        if named.get("file") is not None or is_batched_tree(named):
            raise NeedsLoop("print to a file, or with an end that differs by example")
        self._note("print", None, "", functools.partial(_printed_text, named), tuple(map(unwrap, args)))

    def _note(self, kind: str, target: Any, symbol: str, fix: Callable[..., Any], values: tuple[Any, ...]) -> None:
        region: Any = current_region()
        if has_batch(values, {}):
            fixed = per_narrowed_lane(fix, narrow_tree(list(values)), {}, region.count)
        else:
            fixed = [fix(*values)] * region.count
        self._noted.append((kind, target, symbol, region.lanes().tolist(), fixed))

    def steps(self, size: int) -> list[Step]:
        """The recorded effects as calls, sorted by example; executes none of them. `size`: the number of examples.

        Raises:
            NeedsLoop: an effect would raise an exception or a floating-point warning.
        """
        if not self._noted:
            return []
        turns: list[list[tuple[str, Any, str, Any]]] = [[] for _ in range(size)]
        for kind, target, symbol, lanes, values in self._noted:
            for lane, value in zip(lanes, values, strict=True):
                turns[lane].append((kind, target, symbol, value))
        now: dict[Any, Any] = {}
        try:
            with np.errstate(all="raise"):
                return [(index, *_as_call(*each, now)) for index, turn in enumerate(turns) for each in turn]
        except Exception as error:
            raise NeedsLoop(f"a change of what is outside the call ({type(error).__name__}: {error})") from None


def execute(steps: list[Step], first: int) -> None:
    """Execute the effects, as the last part of a call. `first`: index of the first example in the user's batch."""
    for index, function, args in steps:
        try:
            function(*args)
        except Exception as error:  # e.g. a broken pipe on print
            note_example(error, first + index)
            raise


def apply_or_defer(kind: str, target: Any, symbol: str, key: Any, value: Any) -> None:
    """`target.append(value)`, or an update of its attribute or item like `+=`; recorded if in lock-step."""
    root = current_root()
    if root is not None:
        root.effects.note(kind, target, symbol, key, value)
    elif kind == "append":
        target.append(value)
    elif kind == "attribute":
        setattr(target, key, _UPDATES[symbol](getattr(target, key), value))
    else:
        target[key] = _UPDATES[symbol](target[key], value)


def lane_print(*args: Any, **named: Any) -> None:
    """Like `print`, but recorded if in lock-step."""
    root = current_root()
    if root is None:
        print(*args, **named)
    else:
        root.effects.note_print(args, **named)


def _immutable_values(key: Any, value: Any) -> tuple[Any, Any]:
    """One example's (key, value); raises NeedsLoop unless both are immutable scalars or tuples of them."""
    for part in (key, value):
        for leaf in part if type(part) is tuple else (part,):
            if not (_is_number(leaf) or (is_boxed(leaf) and not np.ndim(leaf))):
                raise NeedsLoop(f"a {type(leaf).__name__} is kept outside the call")
    return key, value


def _is_number(value: Any) -> bool:
    return type(value) in SCALARS or isinstance(value, np.generic)


def _printed_text(named: dict[str, Any], *values: Any) -> str:
    for leaf in leaves(values):
        if not (_is_number(leaf) or type(leaf) is np.ndarray or is_boxed(leaf)):
            raise NeedsLoop(f"a {type(leaf).__name__} is printed")
    text = io.StringIO()
    print(*values, **{**named, "file": text, "flush": False})
    return text.getvalue()


def _as_call(kind: str, target: Any, symbol: str, value: Any, now: dict[Any, Any]) -> tuple[Callable[..., Any], Any]:
    """One effect as (function, args), checked not to raise (except print). `now`: values changed so far, by place."""
    if kind == "print":
        return functools.partial(print, end=""), (value,)
    key, value = value
    if kind == "append":
        return target.append, (value,)
    if isinstance(target, list | np.ndarray):
        key = _normalised_index(key, np.shape(target) if isinstance(target, np.ndarray) else (len(target),))
    place = kind, id(target), key
    was = now[place] if place in now else _read(kind, target, key)
    if not (_is_number(was) or is_boxed(was)) or key != key or (is_boxed(value) and isinstance(target, np.ndarray)):
        raise NeedsLoop(f"a {type(was).__name__} from outside the call is changed")
    new = _UPDATES[symbol](was, value)
    now[place] = np.asarray(new).astype(target.dtype)[()] if isinstance(target, np.ndarray) else new
    return setattr if kind == "attribute" else type(target).__setitem__, (target, key, now[place])


def _normalised_index(key: Any, shape: tuple[int, ...]) -> Any:
    """The index of a single item with negative numbers resolved; raises if it is no index of one item."""
    parts = key if type(key) is tuple else (key,)
    if len(parts) != len(shape) or not all(type(part) is int or isinstance(part, np.integer) for part in parts):
        raise NeedsLoop("a part of an array from outside the call is changed")
    places = tuple([range(size)[int(part)] for part, size in zip(parts, shape, strict=True)])
    return places if type(key) is tuple else places[0]


def _read(kind: str, target: Any, key: Any) -> Any:
    """The current value of the attribute or item, read without running user code."""
    if kind == "attribute":
        if hasattr(type(inspect.getattr_static(type(target), key, None)), "__set__"):
            raise NeedsLoop(f"the attribute {key!r}, which a descriptor sets")
        return vars(target)[key]
    if isinstance(target, collections.defaultdict) and key not in target:
        if target.default_factory is not int and target.default_factory is not float:
            raise NeedsLoop("a dict that makes its own values")
        return target.default_factory()
    return target[key]


def _can_defer(kind: str, target: Any) -> bool:
    """True if the change runs no user code and affects no other object (an array must own its memory)."""
    cls = type(target)
    if kind == "append":
        return cls is list
    if kind == "item":
        is_whole = cls is np.ndarray and target.base is None and target.flags.writeable
        return cls is list or cls in _DICTS or (is_whole and target.dtype.kind in "biufc")
    plain = all(type(each) is WrapperDescriptorType for each in (cls.__setattr__, cls.__getattribute__))
    return (
        plain and type(getattr(target, "__dict__", None)) is dict and not isinstance(target, FunctionType | ModuleType)
    )


def _is_reachable(target: Any, given: tuple[Any, ...]) -> bool:
    """True if the call might reach the object other than by a name that it uses only to change it.

    Searches everything reachable from the function and its arguments: attributes, items, closure variables, and the
    globals that functions name. Objects that cannot be searched count as reaching it.
    """
    sought = {id(target), id(getattr(target, "__dict__", target))}
    seen: dict[int, Any] = {}
    waiting: list[Any] = [given]
    while waiting:
        value = waiting.pop()
        if id(value) in sought or len(seen) > _MOST_SEARCHED or isinstance(value, _UNSEARCHABLE):
            return True
        if id(value) in seen or _is_number(value):
            continue
        seen[id(value)] = value
        if isinstance(value, np.ndarray):
            mine = isinstance(target, np.ndarray) and np.may_share_memory(value, target)
            if mine or value.dtype.hasobject:
                return True
            waiting += getattr(value, "__dict__", {}).values()
        elif isinstance(value, ModuleType):
            if not _is_of_library(value):
                return True
        elif isinstance(value, FunctionType):
            values = _referenced_objects(value, sought)
            if values is None:
                return True
            waiting += values
        elif isinstance(value, type):
            if not _is_of_library(sys.modules.get(value.__module__)):
                waiting += [*vars(value).values(), *value.__bases__]
        elif hasattr(type(value), "_ab_batch"):
            waiting.append(value.__wrapped__)
        elif isinstance(value, np.ufunc):
            if "vectorized" in value.__name__:  # made by np.frompyfunc, which hides its function
                return True
        else:
            waiting += gc.get_referents(value)
    return False


_UNSEARCHABLE: tuple[type, ...] = (weakref.ReferenceType, *weakref.ProxyTypes, threading.local, contextvars.ContextVar)
_FRAMES = FRAME_READERS | {"__globals__", "__closure__", "modules", "_getframe"}
_changed_names: CodeCache[frozenset[str]] = CodeCache()


def _is_of_library(module: Any) -> bool:
    name = getattr(module, "__name__", "").partition(".")[0]
    return name in sys.stdlib_module_names or is_library(getattr(module, "__file__", None) or "")


def _referenced_objects(function: FunctionType, sought: set[int]) -> list[Any] | None:
    """The objects a function refers to, without names it uses only to change the sought one; None if unknowable."""
    code = function.__code__
    named: list[tuple[str | None, Any]] = [
        (None, each) for each in (function.__defaults__, function.__kwdefaults__, vars(function))
    ]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        named += [(name, each) for each in gc.get_referents(cell)]
    if not is_library(code.co_filename):
        codes = inner_codes(code)
        names = {name for each in codes for name in each.co_names}
        if names & _FRAMES or any(dis.opmap["IMPORT_NAME"] in each.co_code[::2] for each in codes):
            return None
        named += [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    return [each for name, each in named if id(each) not in sought or name not in _write_only_names(function)]


def _write_only_names(function: FunctionType) -> frozenset[str]:
    known = _changed_names.get(id(function.__code__))
    if known is None:
        try:
            names = frozenset(only_mutated(find(function)[0]))
        except NoSourceError:
            names = frozenset()
        _changed_names.put(function.__code__, names)
        return names
    return known[1]
