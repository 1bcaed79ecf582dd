"""A lock-step call from its arguments to its result, and the loop over the examples where there is none."""

import copy
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable
from types import FunctionType, GeneratorType
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, lane
from autobatch.batches.examples import broadcast, stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.unpadded import Unpadded
from autobatch.core.batched import Batched
from autobatch.core.config import config
from autobatch.core.diagnostics import fell_back
from autobatch.core.lanes import Example, example, region
from autobatch.core.memory import keep_freed_memory
from autobatch.core.pytree import TreeDef, attributes, is_node, leaves, map_tree, unflatten
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError, note_example
from autobatch.facts.source import is_library
from autobatch.lockstep.boxes import LaneBox
from autobatch.lockstep.calls import call
from autobatch.lockstep.classes import class_of, getattribute
from autobatch.lockstep.effects import commit
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.outside import Outside
from autobatch.lockstep.ownership import OutsideError, is_changeable
from autobatch.lockstep.plain import per_lane_of, separated
from autobatch.lockstep.regions import LaneExample, Root
from autobatch.lockstep.rows import Choice
from autobatch.tables.lookup import PendingRows

_changing: weakref.WeakSet[Any] = weakref.WeakSet()
"""Functions that have changed something outside of a call: they are watched at once."""

__all__ = ["call_on_each", "has_batch", "run"]


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
    alone: Callable[[Any], Any],
) -> Any:
    """Call a function of one example on batches, all lanes at once; where that is not possible, one by one.

    Args:
        function: the user's own function.
        convert: gives the lock-step form of a Python function; None for one that is not the user's. It raises NeedsLoop
            where a function has no lock-step form.
        is_local: whether a function changes nothing but its own variables.
        alone: gives what is called for each example in a loop.

    Raises:
        ShapeError: arguments of different batch sizes.
        UnsupportedError: under `strict`, what has no lock-step form.
    """
    keep_freed_memory()
    size = _batch_size(function, args, kwargs)
    try:
        try:
            if not isinstance(function, FunctionType) or function not in _changing:
                return _in_lock_step(function, args, kwargs, Root(size, call, convert, is_local))
        except OutsideError:
            if isinstance(function, FunctionType):
                _changing.add(function)
        if not size:
            raise NeedsLoop("a change of what is outside the call, by no example")  # nobody makes it, nor waits for it
        return _in_lock_step(function, args, kwargs, _watched(size, convert, is_local))
    except NeedsLoop as error:
        reason, where, loop_first = str(error), _line_of(error, function), False
    except Exception as error:
        if config.strict and isinstance(error, UnsupportedError):
            raise
        reason = f"lock-step failed where the examples alone may not ({type(error).__name__}: {error})"
        where, loop_first = _line_of(error, function), True
    if not size:
        return ObjectBatch([])
    if loop_first:
        out = call_on_each(alone(function), args, kwargs, size)
        fell_back(reason, where)
        return out
    fell_back(reason, where)
    return call_on_each(alone(function), args, kwargs, size)


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


def _watched(size: int, convert: Any, is_local: Any) -> Root:
    """The region of a call that watches what it reads and changes outside of itself."""
    outside = Outside(size)

    def converted(function: Any) -> Any:
        ours = convert(function, watched=True)
        inner = ours
        while inner is not None and not isinstance(inner, FunctionType):
            outside.know(inner)
            for each in (getattr(inner, "__self__", None), *getattr(inner, "args", ())):
                outside.know(each)
            inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
        if inner is not None:
            outside.enter(inner)
        return ours

    root = Root(size, call, converted, is_local)
    root.outside = outside
    return root


def _in_lock_step(function: Any, args: Any, kwargs: Any, root: Root) -> Any:
    size, ours = root.batch_size, root.convert(function)
    if ours is None:
        raise NeedsLoop(f"{getattr(function, '__qualname__', function)} is no function written in Python by the user")
    with region(root), example(LaneExample(size, lambda keys: MaskedBatch.of(Batched(keys, ())))):
        args, kwargs = [_entered(arg, root) for arg in args], {key: _entered(arg, root) for key, arg in kwargs.items()}
        if root.outside is not None:
            root.outside.know((*args, *kwargs.values()))
        out = ours(*args, **kwargs)
        if root.outside is not None:
            root.outside.note_result(out)
        out = _left(out, root)
        prints = [(at.lanes(), values, named) for at, values, named in root.prints]
        if root.outside is not None:
            commit(root.outside)
    _show(prints, size)
    return out


def _entered(tree: Any, root: Root) -> Any:
    """An argument inside the run: its batches are new objects of the root region, their padding as it came."""

    def enter(leaf: Any) -> Any:
        if not isinstance(leaf, MaskedBatch):
            other = copy.copy(leaf)
            other.region = root
            return other
        return MaskedBatch.in_region(Batched(leaf.data, leaf.sizes, leaf.scalar), root)

    return _map_batches(enter, tree)


def _map_batches(change: Callable[[Any], Any], tree: Any) -> Any:
    """A tree with its batches changed; parts without a batch stay the very objects that they are."""
    if isinstance(tree, Batch):
        return change(tree)
    if not is_node(tree) or not any(isinstance(leaf, Batch) for leaf in leaves(tree)):
        return tree
    if isinstance(tree, dict):
        keys, children = tuple(tree), list(tree.values())
    elif isinstance(tree, list | tuple):
        keys, children = tuple(range(len(tree))), list(tree)
    else:
        keys = attributes(tree)
        children = [getattr(tree, key) for key in keys]
    one_level = TreeDef(type(tree), keys, (TreeDef(None),) * len(keys))
    return unflatten(one_level, [_map_batches(change, child) for child in children])


def _left(tree: Any, root: Root) -> Any:
    """A result outside of the run: plain containers, batches of no region, one value per example."""

    def settle(value: Any) -> Any:
        if isinstance(value, LaneGenerator | GeneratorType):
            raise NeedsLoop("a generator is returned")
        kind: Any = class_of(value)
        has_fields = dataclasses.is_dataclass(kind)
        if has_fields and (type(value) is Choice or is_changeable(value)):
            names = attributes(value.objects[0] if type(value) is Choice else value)
            structure = TreeDef(kind, names, (TreeDef(None),) * len(names))
            return map_tree(settle, unflatten(structure, [getattribute(value, name) for name in names]))
        if type(value) is Choice or is_changeable(value):
            return stack_results(separated(value).values)
        if isinstance(value, LaneList | LaneBox):
            if value.region is not root:
                raise NeedsLoop("a container of one step of a loop is returned")
            if not value.is_spread:
                return settle(value.items if isinstance(value, LaneList) else value.whole)
            return stack_results(per_lane_of(value).values)
        if is_node(value):
            return map_tree(settle, value) if not isinstance(value, list) else [settle(item) for item in value]
        return root.narrow(value) if isinstance(value, Batch) else value

    def release(leaf: Any) -> Any:
        if not isinstance(leaf, Batch):
            return leaf
        out: Any = copy.copy(leaf)
        out.region = None
        if isinstance(leaf, MaskedBatch) and type(leaf.data) in (PendingRows, Unpadded):
            out.data = leaf.data._ab_force()
        return out

    tree = _per_example(settle(tree), root.batch_size)
    return map_tree(release, tree) if is_node(tree) else release(tree)


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


def call_on_each(function: Any, args: Any, kwargs: Any, size: int) -> Any:
    """One call per example, in order, each as the example that it is; the results stacked.

    Raises:
        whatever the first failing example raises, with a note that names it.
    """
    split: dict[int, list[Any]] = {}
    apart: list[tuple[np.ndarray, np.ndarray]] = []

    def example_of(batch: Any, i: int) -> Any:
        if id(batch) not in split:
            split[id(batch)] = batch.examples()
        value = split[id(batch)][i]
        if type(value) is not np.ndarray or value.flags.c_contiguous:
            return value
        split[id(batch)][i] = whole = np.ascontiguousarray(value)  # a corner of a padded array; alone it has no gaps
        apart.append((value, whole))
        return whole

    results = []
    for i in range(size):
        values, named = _map_batches(functools.partial(example_of, i=i), (list(args), kwargs))
        try:
            with region(None), example(Example(i)):
                results.append(function(*values, **named))
        except Exception as error:
            note_example(error, i)
            raise
        finally:
            for part, whole in apart:
                if part.flags.writeable:
                    part[...] = whole
            apart.clear()
    return _per_example(stack_results(results), size)


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
