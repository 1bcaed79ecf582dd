"""A lock-step call runs a function on all lanes at once; where that is impossible, the examples are traced."""

import contextvars
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, MappingView
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import count_refusals, forget_refusals, keep_before
from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.result_form import normalised
from autobatch.batches.stacking import stack_results
from autobatch.batches.unpadded import Unpadded
from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Batched, check_padding, limit_padding
from autobatch.core.config import config
from autobatch.core.current_region import region, set_deadline, set_example, set_region
from autobatch.core.diagnostics import came_from_outside, is_library, warn_fallback
from autobatch.core.memory import keep_freed_memory, write_all
from autobatch.core.op import is_boxed
from autobatch.core.pytree import is_node, leaves, leaves_of_kind, map_tree
from autobatch.errors import (
    BUILD_ARRAYS,
    COPY_FIRST,
    RETURN_ARRAYS,
    FallbackWarning,
    NeedsLoop,
    Reason,
    ShapeError,
    Unsupported,
    UnsupportedError,
    reason_of,
)
from autobatch.lockstep.calls.builtin_functions import captures_lanes
from autobatch.lockstep.calls.call_by_callee import call
from autobatch.lockstep.example_columns import ExampleColumns, map_batches
from autobatch.lockstep.lanes.region import LaneExample, Root, is_changeable
from autobatch.lockstep.values.lists import LaneList, plain_lists
from autobatch.lockstep.values.sequences import LaneSequence
from autobatch.program.source import is_rewritten

MapColumns = Callable[..., tuple[list[Any], bool]]

_NEXT_WAY, _LAST_WAY = "example by example, traced", "as a loop over the examples"


def run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    convert: Any,
    is_pure: Any,
    map_columns: MapColumns,
) -> Any:
    """Call a per-example function on batches in lock-step; fall back to tracing it.

    Args:
        function, args, kwargs, convert, is_pure: as for `in_lock_step`.
        map_columns: traces examples from columns of arguments; returns (results, True if run together).

    Raises:
        ShapeError: arguments have different batch sizes.
        UnsupportedError: under `strict`, the function cannot run in lock-step.
    """
    size = batch_size_of_call(function, args, kwargs)
    try:
        return in_lock_step(function, args, kwargs, size, convert, is_pure)
    except Unsupported as error:
        refused = Unsupported(error.reason, passing=error.passing)  # no traceback that keeps arrays alive
    return fallback(function, args, kwargs, size, refused, map_columns) if size else ObjectBatch([])


def in_lock_step(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: int,
    convert: Any,
    is_pure: Any,
    first: int = 0,
    *limit: float | None,
) -> Any:
    """Call a per-example function on batches of `size` examples in lock-step.

    Args:
        function: the user's own function.
        convert: returns the lock-step form of a user's Python function, or None for a library function. Raises
            NeedsLoop if a user's function has no lock-step form.
        is_pure: True if a function changes nothing but its own variables.
        first: index of the first example in the user's batch.
        limit: the seconds of a new deadline, if any.

    Raises:
        Unsupported: the call cannot run in lock-step, or it raised an error.
        OverTime: the deadline has passed.
        UnsupportedError: under `strict`, raised by the call itself.
    """
    keep_freed_memory()
    refusals = count_refusals()
    try:
        root = Root(size, call, convert, is_pure)
        return normalised(*_in_new_context(_in_lock_step, function, args, kwargs, root, first, *limit))
    except Unsupported as error:
        forget_refusals(refusals)
        raise Unsupported(error.reason, where=_line_of(error, function)) from None
    except FallbackWarning:  # under `-W error` the user asked for this exception
        raise
    except BaseException as error:
        is_wanted = config.strict and isinstance(error, UnsupportedError)
        if came_from_outside(error) or is_wanted or type(error).__name__ == "BdbQuit":  # a debugger's
            raise
        forget_refusals(refusals)
        reason = f"lock-step failed where the examples alone may not ({type(error).__name__}: {error})"
        reason = Reason(reason, _line_of(error, function), reason_of(error).instead)
        raise Unsupported(reason, passing=True) from None


def fallback(function: Any, args: Any, kwargs: Any, size: int, refused: Unsupported, map_columns: MapColumns) -> Any:
    """Run a call that lock-step refused by tracing, and report the fallback once."""
    reason = refused.reason
    if config.strict and not refused.passing:
        warn_fallback(reason, way=_NEXT_WAY)  # raises under `strict`
    way = _NEXT_WAY
    columns = ExampleColumns(function, args, kwargs)
    try:
        with region(None):
            given = function, columns.values(), columns.shared, columns.arguments_of
            results, together = columns.giving_back(map_columns, *given)
        way = _NEXT_WAY if together else _LAST_WAY
    except Exception:
        if not refused.passing:
            warn_fallback(reason, way=way)
        raise
    warn_fallback(reason, way=way)
    return normalised(stack_results(results), size, columns.batches)


def _in_new_context(call: Callable[..., Any], *args: Any) -> Any:
    """Run a call in a copied context, so that no region stays current after it, even after an interrupt.

    Context variables that user code sets in it (`np.seterr`, its own `ContextVar`) are set for the caller too.
    """
    context = contextvars.copy_context()
    try:
        return context.run(call, *args)
    finally:
        for variable, value in context.items():
            if variable.get(_NEVER_SET) is not value and not variable.name.startswith("autobatch_"):
                variable.set(value)


_NEVER_SET: Any = object()


def batch_size_of_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of examples of a call on batches.

    Raises:
        ShapeError: the batches differ in size; the message uses the function's parameter names.
    """
    sizes = {batch.batch_size for batch in leaves_of_kind((args, kwargs), Batch)}
    if len(sizes) > 1:
        raise batch_size_error(function, args, kwargs)
    return next(iter(sizes))


def batch_size_error(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ShapeError:
    """The ShapeError for batches of different sizes; its message uses the function's parameter names."""
    try:
        named = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # wrong arguments; each example raises for them
        named = {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}
    sizes = {name: leaf.batch_size for name, arg in named.items() for leaf in leaves_of_kind(arg, Batch)}
    given = ", ".join(f"{name} has {size}" for name, size in sizes.items())
    return ShapeError(f"arguments of different batch sizes: {given} examples; every batch needs the same examples")


def _in_lock_step(function: Any, args: Any, kwargs: Any, root: Root, first: int, *limit: float | None) -> Any:
    """The result, the number of examples, and the batches among the arguments; leaves variables set in its context."""
    ours = root.convert(function)
    if ours is None:  # a library function: called unconverted
        while hasattr(type(function), "_ab_batch"):
            function = function.__wrapped__
        ours = functools.partial(call, function)
    entered: dict[int, tuple[Any, Any]] = {}
    limit_padding(True)
    set_region(root)
    set_example(LaneExample(root.batch_size, lambda keys: MaskedBatch.of(Batched(keys, ())), first))
    for seconds in limit:
        set_deadline(seconds)
    out = ours(
        *[_enter_root_region(arg, root, entered) for arg in args],
        **{key: _enter_root_region(arg, root, entered) for key, arg in kwargs.items()},
    )
    out = _leave_root_region(out, root)
    writes = argument_writes(entered.values(), (args, kwargs))
    if writes:
        out = copy_if_aliased(writes, out)
        keep_before(writes)
        write_all(iter(writes))
    return out, root.batch_size, [batch for batch, _ in entered.values()]


def _enter_root_region(tree: Any, root: Root, entered: dict[int, tuple[Any, Any]]) -> Any:
    """An argument as the run sees it: each batch becomes a new object in the root region; padding is unchanged.

    Args:
        entered: receives {id: (batch, its object in the run)}, so a batch passed twice is one array in the run.
    """

    def enter(leaf: Any) -> Any:
        known = entered.get(id(leaf))
        if known is not None:
            return known[1]
        if isinstance(leaf, MaskedBatch):
            check_padding(leaf.batch_size, leaf.sizes, shape_of(leaf.data)[1:], leaf.data.dtype.itemsize)
            inside: Any = MaskedBatch.in_region(Batched(leaf.data, leaf.sizes, leaf.scalar), root)
        else:
            inside = copy.copy(leaf)
            inside.region = root
        entered[id(leaf)] = leaf, inside
        return inside

    return enter(tree) if isinstance(tree, Batch) else map_batches(enter, tree)


def _leave_root_region(tree: Any, root: Root) -> Any:
    """Convert a result for the caller: plain containers, and batches of all lanes without a region."""

    def settle(value: Any) -> Any:
        if isinstance(value, LaneList):
            if value.region is not root:
                raise NeedsLoop("a list of one step of a loop is returned", instead=BUILD_ARRAYS)
            return plain_lists(value) if value.is_spread else list(map(settle, value.items))
        if is_node(value):
            return map_tree(settle, value) if not isinstance(value, list) else [settle(item) for item in value]
        if type(value) is set:  # its items are the same for all lanes
            return ObjectBatch([value.copy() for _ in range(root.batch_size)])
        if is_changeable(value) or isinstance(value, LaneSequence) or _is_made_of_lanes(value):
            raise NeedsLoop(f"a {type(value).__name__} of the call is returned", instead=RETURN_ARRAYS)
        return root.narrow(value) if isinstance(value, Batch) else value

    def release(leaf: Any) -> Any:
        if not isinstance(leaf, Batch):
            return leaf
        out: Any = copy.copy(leaf)
        out.region = None
        if isinstance(leaf, MaskedBatch) and type(leaf.data) is Unpadded:
            out.data = leaf.data._ab_force()
        if isinstance(leaf, MaskedBatch):
            out.guard_data()
        return out

    tree = settle(tree)
    return map_tree(release, tree) if is_node(tree) else release(tree)


def _is_made_of_lanes(value: Any) -> bool:
    """True if a non-container result is a converted function, or a callable or view that holds per-lane values."""
    if isinstance(value, FunctionType) and is_rewritten(value):
        return True
    if isinstance(value, MappingView) or hasattr(type(value), "_ab_internal"):
        return True
    return callable(value) and not isinstance(value, type | Batch) and captures_lanes(value)


def _line_of(error: BaseException, function: Any) -> tuple[str, int]:
    """The innermost user (file, line) in an error's traceback; the function's first line if no user frame is in it."""
    known = reason_of(error).where
    if known is not None:
        return known
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


def argument_writes(entered: Iterable[tuple[Any, Any]], arguments: Any) -> list[tuple[Any, Any, Any]]:
    """(array, index, value) for each argument array that the run wrote to; the array's padding keeps its values.

    Args:
        entered: (batch, its object in the run) for each batch among the arguments.
        arguments: all arguments of the call.

    Raises:
        NeedsLoop: a written array is read-only or shares memory with another argument.
    """
    found = []
    for given, inside in entered:
        write = _write(given, inside)
        if write is not None:
            found.append(write)
    if found:
        _require_unaliased([target for target, _, _ in found], arguments)
    return found


def copy_if_aliased(writes: list[tuple[Any, Any, Any]], result: Any) -> Any:
    """The result, with copies in place of arrays that share memory with the targets of `writes`.

    Args:
        writes: as `argument_writes` returns them.
    """
    targets = [target for target, _, _ in writes if isinstance(target, np.ndarray)]

    def own(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy() if any(np.may_share_memory(value, each) for each in targets) else value
        if isinstance(value, MaskedBatch):
            value.data = own(value.data)
            value.guard_data()
        elif isinstance(value, PackedBatch):
            value.values = own(value.values)
        elif isinstance(value, ObjectBatch):
            value.values = [map_tree(own, each) for each in value.values]
        return value

    return map_tree(own, result) if targets else result


def _write(given: Any, inside: Any) -> tuple[Any, Any, Any] | None:
    if isinstance(given, MaskedBatch):
        if not getattr(inside, "_written", False):
            return None  # not written; its data may only have been laid out differently
        old, new = given.data, inside.data
    elif isinstance(given, PackedBatch):
        old, new = given.values, inside.values
    else:
        return None  # an ObjectBatch refuses every write
    if new is old:
        return None
    new = new._ab_force() if hasattr(new, "_ab_force") else new
    if is_boxed(new) and not is_boxed(old):
        return None  # an array cannot hold a gradient
    if np.shape(new) != np.shape(old) or isinstance(new, Batch):
        raise NeedsLoop("a write into an argument of another memory layout", instead=COPY_FIRST)
    if isinstance(given, MaskedBatch) and any(given.dims):
        new = np.where(given.mask, new, old)
    return old, ..., new


def _require_unaliased(written: list[Any], arguments: Any) -> None:
    """Raise NeedsLoop if a written array is read-only, or shares memory with another argument."""
    others = {id(leaf): leaf for leaf in leaves(arguments)}
    arrays = [array for array in map(_data_array, others.values()) if array is not None]
    for target in written:
        if not isinstance(target, np.ndarray):
            continue
        if not target.flags.writeable:
            raise NeedsLoop("a write into an argument that is read-only", instead=COPY_FIRST)
        if sum(np.may_share_memory(target, array) for array in arrays) > 1:  # itself and another
            raise NeedsLoop("a write into an argument that shares memory with another", instead=COPY_FIRST)


def _data_array(leaf: Any) -> np.ndarray | None:
    """The array that holds an argument's values; None if there is none, or it is empty."""
    if isinstance(leaf, MaskedBatch | PackedBatch):
        leaf = leaf.data if isinstance(leaf, MaskedBatch) else leaf.values
    return leaf if isinstance(leaf, np.ndarray) and leaf.size else None
