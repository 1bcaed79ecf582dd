"""A lock-step call from its arguments to its result, and the way to the next way where there is none."""

import contextvars
import copy
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, MappingView
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, lane
from autobatch.batches.examples import broadcast, stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.unpadded import Unpadded
from autobatch.core.batched import Batched
from autobatch.core.config import config
from autobatch.core.current import example, region
from autobatch.core.diagnostics import fell_back
from autobatch.core.memory import keep_freed_memory, write_all
from autobatch.core.pytree import TreeDef, attributes, is_node, leaves, map_tree, unflatten
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError
from autobatch.lockstep.argument_writes import apart_from, argument_writes
from autobatch.lockstep.calls.call import call
from autobatch.lockstep.regions.region import LaneExample, Root
from autobatch.lockstep.side_effects import Outside
from autobatch.lockstep.values.lists import LaneList, plain_lists
from autobatch.lockstep.values.own_objects import OutsideError, is_changeable
from autobatch.lockstep.values.sequences import LaneSequence
from autobatch.lockstep.values.unwrapping import captures_lanes
from autobatch.syntax.source import is_library, is_rewritten
from autobatch.tables.lookup import PendingRows

_changing: weakref.WeakSet[Any] = weakref.WeakSet()
"""Functions that have changed something outside of a call: they are watched at once."""

__all__ = ["has_batch", "run"]

_NEXT_WAY, _LAST_WAY = "example by example, on the fly", "as a loop over the examples"


def has_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether any argument, or leaf of one, is per example."""
    for arg in args:
        if isinstance(arg, Batch) or (is_node(arg) and any(isinstance(leaf, Batch) for leaf in leaves(arg))):
            return True
    return bool(kwargs) and has_batch(tuple(kwargs.values()), {})


def run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    convert: Any,
    is_local: Any,
    map_columns: Callable[..., tuple[list[Any], bool]],
) -> Any:
    """Call a function of one example on batches, all lanes at once; where that is not possible, on the fly.

    Args:
        function: the user's own function.
        convert: gives the lock-step form of a Python function; None for one that is not the user's. It raises NeedsLoop
            where a function has no lock-step form.
        is_local: whether a function changes nothing but its own variables.
        map_columns: gives the results of examples on the fly, given as columns, and whether they ran together.

    Raises:
        ShapeError: arguments of different batch sizes.
        UnsupportedError: under `strict`, what has no lock-step form.
    """
    keep_freed_memory()
    size = _batch_size(function, args, kwargs)
    before = _refusals.get(function) if isinstance(function, FunctionType) else None
    try:
        if before is not None and size and before.stands() and not config.strict:
            raise NeedsLoop(before.reason)
        try:
            if not isinstance(function, FunctionType) or function not in _changing:
                out = _apart(_in_lock_step, function, args, kwargs, Root(size, call, convert, is_local))
                if before is not None:
                    _refusals.pop(function, None)
                return out
        except OutsideError:
            if isinstance(function, FunctionType):
                _changing.add(function)
        if not size:
            raise NeedsLoop("a change of what is outside the call, by no example")  # nobody makes it, nor waits for it
        root = Root(size, call, functools.partial(convert, watched=True), is_local)
        root.outside = Outside()
        return _apart(_in_lock_step, function, args, kwargs, root)
    except NeedsLoop as error:
        reason, where, loop_first = str(error), _line_of(error, function), False
        if isinstance(function, FunctionType):
            if before is None:
                before = _refusals[function] = _Refusal(reason, where)
            elif before.waits:
                where = before.where
            else:
                before.reason, before.where = reason, where
            before.count += 1
    except Exception as error:
        if config.strict and isinstance(error, UnsupportedError):
            raise
        reason = f"lock-step failed where the examples alone may not ({type(error).__name__}: {error})"
        where, loop_first = _line_of(error, function), True
    if not size:
        return ObjectBatch([])
    if config.strict and not loop_first:
        fell_back(reason, where, _NEXT_WAY)  # which raises
    way = _NEXT_WAY
    try:
        with region(None):
            out, together = _on_the_fly(function, args, kwargs, size, map_columns)
        way = _NEXT_WAY if together else _LAST_WAY
    except Exception:
        if not loop_first:
            fell_back(reason, where, way)
        raise
    fell_back(reason, where, way)
    return out


def _apart(call: Callable[..., Any], *args: Any) -> Any:
    """A call in a context of its own: whatever interrupt comes at whatever line, no region is current after it."""
    return contextvars.copy_context().run(call, *args)


class _Refusal:
    """Why a function went to the next way, and how often without being tried in lock-step again.

    Most such functions go there each time, at what comes late in them. From the third time on they go at once, and are
    tried again now and then, since what lanes can do together may be a matter of their values.
    """

    __slots__ = ("count", "reason", "waits", "where")

    def __init__(self, reason: str, where: tuple[str, int]) -> None:
        self.reason = reason
        self.where = where
        self.count = self.waits = 0

    def stands(self) -> bool:
        """Whether the function is not to be tried this time."""
        self.waits = (self.waits + 1) % _TRIED_EACH if self.count >= 2 else 0
        return self.waits > 0


_TRIED_EACH = 16
_refusals: weakref.WeakKeyDictionary[Any, _Refusal] = weakref.WeakKeyDictionary()


def _batch_size(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    sizes = {leaf.batch_size for arg in (*args, *kwargs.values()) for leaf in leaves(arg) if isinstance(leaf, Batch)}
    if len(sizes) > 1:
        raise _of_different_sizes(function, args, kwargs)
    return next(iter(sizes))


def _of_different_sizes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ShapeError:
    try:
        named = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call itself is wrong; each example will say so
        named = {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}
    sizes = {name: leaf.batch_size for name, arg in named.items() for leaf in leaves(arg) if isinstance(leaf, Batch)}
    given = ", ".join(f"{name} has {size}" for name, size in sizes.items())
    return ShapeError(f"arguments of different batch sizes: {given} examples; every batch needs the same examples")


def _in_lock_step(function: Any, args: Any, kwargs: Any, root: Root) -> Any:
    size, ours = root.batch_size, root.convert(function)
    if ours is None:
        raise NeedsLoop(f"{getattr(function, '__qualname__', function)} is no function written in Python by the user")
    entered: dict[int, tuple[Any, Any]] = {}
    with region(root), example(LaneExample(size, lambda keys: MaskedBatch.of(Batched(keys, ())))):
        out = ours(
            *[_entered(arg, root, entered) for arg in args],
            **{key: _entered(arg, root, entered) for key, arg in kwargs.items()},
        )
        if root.outside is not None:
            root.outside.read(out)
        out = _left(out, root)
        prints = [(at.lanes(), values, named) for at, values, named in root.prints]
        writes = argument_writes(entered.values(), (args, kwargs))
        if writes:
            if prints:
                raise NeedsLoop("what an example prints may be part of what it writes to")
            out = apart_from(writes, out)
        if root.outside is not None:
            root.outside.commit(size)
        write_all(iter(writes))
    _show(prints, size)
    return out


def _entered(tree: Any, root: Root, entered: dict[int, tuple[Any, Any]]) -> Any:
    """An argument inside the run: its batches are new objects of the root region, their padding as it came.

    Args:
        entered: receives (batch, what it is inside), by the batch's id: one batch given twice is one array.
    """

    def enter(leaf: Any) -> Any:
        known = entered.get(id(leaf))
        if known is not None:
            return known[1]
        if isinstance(leaf, MaskedBatch):
            inside: Any = MaskedBatch.in_region(Batched(leaf.data, leaf.sizes, leaf.scalar), root)
        else:
            inside = copy.copy(leaf)
            inside.region = root
        entered[id(leaf)] = leaf, inside
        return inside

    return _map_batches(enter, tree)


def _map_batches(change: Callable[[Any], Any], tree: Any) -> Any:
    """A tree with its batches changed; parts without a batch stay the very objects that they are."""
    return _map_leaves(Batch, change, tree)


def _map_leaves(kind: Any, change: Callable[[Any], Any], tree: Any) -> Any:
    """A tree with its leaves of one kind changed; parts without one stay the very objects that they are."""
    if isinstance(tree, kind):
        return change(tree)
    if not is_node(tree) or not any(isinstance(leaf, kind) for leaf in leaves(tree)):
        return tree
    if isinstance(tree, dict):
        keys, children = tuple(tree), list(tree.values())
    elif isinstance(tree, list | tuple):
        keys, children = tuple(range(len(tree))), list(tree)
    else:
        keys = attributes(tree)
        children = [getattr(tree, key) for key in keys]
    one_level = TreeDef(type(tree), keys, (TreeDef(None),) * len(keys))
    return unflatten(one_level, [_map_leaves(kind, change, child) for child in children])


def _left(tree: Any, root: Root) -> Any:
    """A result outside of the run: plain containers, batches of no region, one value per example."""

    def settle(value: Any) -> Any:
        if dataclasses.is_dataclass(type(value)) and is_changeable(value):
            names = attributes(value)
            structure = TreeDef(type(value), names, (TreeDef(None),) * len(names))
            return map_tree(settle, unflatten(structure, [getattr(value, name) for name in names]))
        if isinstance(value, LaneList):
            if value.region is not root:
                raise NeedsLoop("a list of one step of a loop is returned")
            return plain_lists(value) if value.is_spread else list(map(settle, value.items))
        if is_node(value):
            return map_tree(settle, value) if not isinstance(value, list) else [settle(item) for item in value]
        if type(value) is set:  # of what is the same for all lanes
            return ObjectBatch([value.copy() for _ in range(root.batch_size)])
        if is_changeable(value) or isinstance(value, LaneSequence) or _is_made_of_lanes(value):
            raise NeedsLoop(f"a {type(value).__name__} of the call is returned")
        return root.narrow(value) if isinstance(value, Batch) else value

    def release(leaf: Any) -> Any:
        if not isinstance(leaf, Batch):
            return leaf
        out: Any = copy.copy(leaf)
        out.region = None
        if isinstance(leaf, MaskedBatch) and type(leaf.data) in (PendingRows, Unpadded):
            out.data = leaf.data._ab_force()
        if isinstance(leaf, MaskedBatch):
            out.guard_data()
        return out

    tree = _per_example(settle(tree), root.batch_size)
    return map_tree(release, tree) if is_node(tree) else release(tree)


def _is_made_of_lanes(value: Any) -> bool:
    """Whether a result that is no container is a function of converted code, or holds what differs by example."""
    if (
        isinstance(value, MappingView)
        or hasattr(type(value), "_ab_internal")
        or (isinstance(value, FunctionType) and is_rewritten(value))
    ):
        return True
    return callable(value) and not isinstance(value, type) and captures_lanes(value)


def _per_example(tree: Any, size: int) -> Any:
    """A result in which some leaf is a batch, so that the number of examples shows."""
    if any(isinstance(leaf, Batch) for leaf in leaves(tree)):
        return tree
    return broadcast(tree, size) if leaves(tree) else ObjectBatch([tree] * size)


def _show(prints: list[Any], size: int) -> None:
    """What the lanes printed, in the order of the loop over the examples."""
    if not prints:
        return
    places = [{int(owner): place for place, owner in enumerate(lanes)} for lanes, _, _ in prints]
    for i in range(size):
        for place, (_, values, named) in zip(places, prints, strict=True):
            if i in place:
                print(*(lane(value, place[i]) for value in values), **named)


def _on_the_fly(function: Any, args: Any, kwargs: Any, size: int, map_columns: Any) -> tuple[Any, bool]:
    """The examples of a call through the map on the fly: their results stacked, and whether they ran together.

    An array of an example that is a corner of a padded one goes in without gaps, as it would alone; what is written
    into it goes back into the batch.
    """
    batches: dict[int, Any] = {}
    for leaf in leaves((list(args), kwargs)):
        if isinstance(leaf, Batch):
            batches.setdefault(id(leaf), leaf)
    apart: list[tuple[np.ndarray, np.ndarray]] = []
    columns = [batch.examples() for batch in batches.values()]
    for column in columns:
        for place, value in enumerate(column):
            if type(value) is np.ndarray and not value.flags.c_contiguous:
                column[place] = whole = np.ascontiguousarray(value)
                whole.flags.writeable = value.flags.writeable
                apart.append((value, whole))
    places = {key: place for place, key in enumerate(batches)}
    takes: list[tuple[Any, int | None]] = []  # of each argument: its key, and its column if it is a batch
    shared: dict[str, Any] = {}
    for key, arg in [*enumerate(args), *kwargs.items()]:
        takes.append((key, places[id(arg)] if isinstance(arg, Batch) else None))
        if not isinstance(arg, Batch):
            shared[f"{key}"] = _map_batches(lambda leaf: _Slot(places[id(leaf)]), arg)
    shared["in columns"] = f"{takes}"  # recordings that are kept tell the calls apart by it

    def arguments_of(values: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        positional, named = [], {}
        for key, column in takes:
            arg = (
                values[column]
                if column is not None
                else _map_leaves(_Slot, lambda at: values[at.column], given[f"{key}"])
            )
            if isinstance(key, int):
                positional.append(arg)
            else:
                named[key] = arg
        return positional, named

    try:
        results, together = map_columns(function, columns, shared, arguments_of)
    finally:
        for part, whole in apart:
            if part.flags.writeable:
                part[...] = whole
    return _per_example(stack_results(results), size), together


class _Slot:
    """Where a value of an example belongs in an argument that all examples share."""

    __slots__ = ("column",)

    def __init__(self, column: int) -> None:
        self.column = column


def _line_of(error: BaseException, function: Any) -> tuple[str, int]:
    """The user's innermost line in the traceback of an error; the function's first, if it did not come that far."""
    code = getattr(function, "__code__", None)
    where = ("<unknown>", 0) if code is None else (code.co_filename, code.co_firstlineno)
    inside = False
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        inside = inside or filename == __file__
        if inside and not is_library(filename):
            where = (filename, trace.tb_lineno)
        trace = trace.tb_next
    return where
