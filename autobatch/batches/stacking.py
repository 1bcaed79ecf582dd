"""Splits batches (and trees of them) into examples, and stacks the results of examples to a batch again."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from autobatch.batches.any_batch import FORMS, Batch, batch_size_of, narrow_tree, per_lane, per_narrowed_lane
from autobatch.batches.packing import KINDS, SCALAR_DTYPES
from autobatch.core.abstract_eval import is_non_c_order, is_subclass
from autobatch.core.batched import Batched
from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import at_users_line, hiding_frames, warn_fallback
from autobatch.core.op import is_boxed
from autobatch.core.pytree import TreeDef, flatten, is_node, leaves, map_tree, unflatten
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.facts.call_effects import effect_of
from autobatch.ops.rules.aliasing import is_scalar, set_order, unclear_view, zero_d
from autobatch.ops.rules.padding import end_to_end

Tree = TypeVar("Tree")
_NUMBERS = frozenset(np.dtype(code).type for code in "?bhilqBHILQefdFD")  # scalar types that determine their dtype
_LEAVES = _NUMBERS | {np.ndarray, *SCALAR_DTYPES}  # types of most results, for a fast path


@hiding_frames
def examples(tree: Tree) -> list[Tree]:
    """Split a batched result into a list of plain results, one per example.

    Args:
        tree: any nesting of dict, list, tuple, named tuple and dataclass. Each batch in it is split into its examples
            (arrays without padding, or Python scalars); every other leaf is repeated.

    Returns:
        A list of one tree of the same structure for each example, in the order of the batch.

    Raises:
        UnsupportedError: no leaf is a batch, so the number of examples is not known.
        ShapeError: the batches differ in size.

    >>> from autobatch.batches.padded_batch import MaskedBatch
    >>> examples({"x": MaskedBatch.from_examples([[1, 2], [3]]), "name": "a"})
    [{'x': array([1, 2]), 'name': 'a'}, {'x': array([3]), 'name': 'a'}]
    """
    size = batch_size_of(tree)
    if size is None:
        raise UnsupportedError(f"no batch in {_shown(tree)}; expected what a call on a batch returns")
    return lanes_of(tree, size)


def lanes_of(tree: object, batch_size: int) -> list[Any]:
    """Like `examples`, for a known batch size: a tree without a batch is repeated."""
    if isinstance(tree, Batch):
        return tree.examples()
    if not is_node(tree):
        return [tree] * batch_size
    values, structure = flatten(tree)
    columns = [leaf.examples() if isinstance(leaf, Batch) else [leaf] * batch_size for leaf in values]
    return [unflatten(structure, [column[i] for column in columns]) for i in range(batch_size)]


def _shown(tree: object) -> str:
    text = repr(tree)
    return text if len(text) < 80 else f"{text[:77]}..."


def take_lanes(batch: Any, index: object, memo: dict[Any, Any] | None = None) -> Any:
    """The lanes of a batch named by `index` (integers, in that order), as a batch of the current region.

    `memo` lets batches that share one `Lengths` share the narrowed one, so later ops need not compare them.
    """
    return batch._take(np.asarray(index), {} if memo is None else memo)


def prefix_lanes(batch: Any, count: int, memo: dict[Any, Any] | None = None) -> Any:
    """The first `count` lanes of a batch as a view, as a batch of the current region. `memo` as in `take_lanes`."""
    return batch._prefix(count, {} if memo is None else memo)


def weak_lanes(data: np.ndarray, scalar: type) -> Any:
    """A batch whose lanes are Python scalars of type `scalar`, from (B,) data of the matching dtype."""
    return FORMS["masked"].of(Batched(data, (), scalar))


def broadcast(value: Any, batch_size: int) -> Any:
    """A shared value as a batch that holds it in every lane; a batch is returned unchanged."""
    if isinstance(value, Batch):
        return value
    if type(value) in SCALAR_DTYPES:
        try:
            return weak_lanes(np.full(batch_size, value, SCALAR_DTYPES[type(value)]), type(value))
        except OverflowError:
            return FORMS["objects"]([value] * batch_size)
    if is_subclass(value):
        return FORMS["objects"]([value] * batch_size)
    if isinstance(value, np.ndarray | np.generic) or is_boxed(value):
        out = FORMS["masked"].of(Batched(np.broadcast_to(value, (batch_size, *value.shape)), value.shape))
        if not (isinstance(value, np.generic) or is_scalar(value)):
            zero_d(out)
        return set_order(out, is_non_c_order(value))
    if is_node(value):
        return map_tree(lambda leaf: broadcast(leaf, batch_size), value)
    return FORMS["objects"]([value] * batch_size)


def stack_results(results: Sequence[Any]) -> Any:
    """Stack one plain result per example to a batched tree; the inverse of `examples`.

    Structure that all results share is kept. A leaf becomes
    - a padded batch, if all examples have arrays of one rank and dtype there,
    - a batch of Python scalars, if all have Python scalars of one type,
    - a shared leaf, if all have one and the same object, or equal strings,
    - an `ObjectBatch` otherwise; so do parts of different structure.

    >>> stack_results([(1, "a"), (2, "a")])
    (MaskedBatch(batch_size=2, example=int, examples=[1 2]), 'a')
    """
    if not len(results):
        return FORMS["objects"]([])
    first = results[0]
    cls = type(first)
    if cls in _LEAVES or not is_node(first):
        return _stack_leaf(results)
    if cls is tuple or cls is list:
        if len(results) > 1 and (set(map(type, results)) != {cls} or len(set(map(len, results))) > 1):
            return FORMS["objects"](results)
        return cls([stack_results(column) for column in zip(*results, strict=True)])
    columns, structures = zip(*map(flatten, results), strict=True)
    structure: TreeDef = structures[0]
    if any(other != structure for other in structures[1:]):
        return FORMS["objects"](results)
    return unflatten(structure, [_stack_leaf(column) for column in zip(*columns, strict=True)])


def stack_numbers(examples: Sequence[Any]) -> Any:
    """Python numbers, beside others also NumPy's and 0-d arrays, as a batch that keeps the type of each.

    This is the one door of such examples: a padded batch if all are of one type, which int64 holds, else an
    `ObjectBatch`. None if there is no Python number among them, or anything else.

    >>> stack_numbers([2, 0]), stack_numbers([2, 0.5]), stack_numbers([np.int64(2)])
    (MaskedBatch(batch_size=2, example=int, examples=[2 0]), ObjectBatch([2, 0.5]), None)
    """
    kinds = set(map(type, examples))
    if kinds.isdisjoint(SCALAR_DTYPES):
        return None
    if kinds <= SCALAR_DTYPES.keys() or all(type(x) in SCALAR_DTYPES or _is_number(x) for x in examples):
        return _stack_leaf(examples)
    return None


def _is_number(x: Any) -> bool:
    is_array = isinstance(x, np.ndarray | np.generic) or (is_boxed(x) and not isinstance(x, Batch))
    return is_array and x.ndim == 0 and x.dtype.kind in KINDS


def _stack_leaf(column: Sequence[Any]) -> Any:
    first = column[0]
    cls = type(first)
    if cls in _LEAVES and (len(column) == 1 or len(set(map(type, column))) == 1):
        masked = FORMS["masked"]
        dtype = SCALAR_DTYPES.get(cls)
        if dtype is not None:
            try:
                return masked.of_data(np.array(column, dtype), (), current_region(), cls)
            except OverflowError:  # an int beyond int64 stays exact
                return FORMS["objects"](column)
        if cls is not np.ndarray:
            return masked.of_data(np.array(column), (), current_region())
        count = len(column)
        alike = [x.shape for x in column].count(first.shape) == count == [x.dtype for x in column].count(first.dtype)
        if alike and first.dtype.kind in KINDS:
            data = end_to_end(column).reshape(count, *first.shape) if first.ndim else np.array(column, first.dtype)
            out = masked.of_data(data, first.shape, current_region())
            return out if first.ndim else zero_d(out)
    if cls in SCALAR_DTYPES:
        return FORMS["objects"](column)
    if isinstance(first, np.ndarray | np.generic) or (is_boxed(first) and not isinstance(first, Batch)):
        if _can_stack(column):
            out = FORMS["masked"].stacked(column)
            return zero_d(out) if all(isinstance(x, np.ndarray) for x in column) else out
    elif all(x is first or (cls in (str, bytes) and type(x) is cls and x == first) for x in column):
        return first
    return FORMS["objects"](column)


def _can_stack(column: Sequence[Any]) -> bool:
    """True if all are arrays of one rank and one dtype that can be padded, and none is a NumPy masked array."""
    first = column[0]
    if type(first) is np.ndarray and len(set(map(type, column))) == 1:
        of_one_dtype = [x.dtype for x in column].count(first.dtype) == len(column)
        return of_one_dtype and first.dtype.kind in KINDS and len({x.ndim for x in column}) == 1
    if any(map(is_subclass, column)):
        if current_region() is not None:
            raise NeedsLoop(f"an array of each example that is a {type(first).__name__}")
        return False
    if first.dtype.kind not in KINDS:
        return False
    ndim, dtype = first.ndim, first.dtype
    for x in column:
        if not (isinstance(x, np.ndarray | np.generic) or (is_boxed(x) and not isinstance(x, Batch))):
            return False
        if x.ndim != ndim or x.dtype != dtype or isinstance(x, np.ma.MaskedArray):
            return False
    return True


def map_lanes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function once per lane and stack the results; a plain call if no argument is a batch.

    >>> from autobatch.batches.objects import ObjectBatch
    >>> map_lanes(str.upper, ObjectBatch(["a", "b"]))
    ObjectBatch(['A', 'B'])
    """
    narrow, named = narrow_tree(list(args)), narrow_tree(kwargs)
    size = batch_size_of((narrow, named))
    if size is None:
        return function(*args, **kwargs)
    return stack_results(per_narrowed_lane(function, narrow, named, size))


def loop_over_examples(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], reason: str) -> Any:
    """Call `function` on each example's values and stack the results.

    Warns once per source line, and raises under `strict`. An error of an example carries a note that names it.

    Raises:
        NeedsLoop: in lock-step, if `function` writes into an argument: the call may be run again from the start, and
            must then find its arguments unchanged.
    """
    effect = effect_of(function)
    if current_region() is not None and effect is not None and effect.written(args, kwargs):
        raise NeedsLoop(reason)
    warn_fallback(reason)
    call, linked = tracking_views(function, args, kwargs)
    return linked(stack_results(at_users_line(per_lane, call, args, kwargs)))


def tracking_views(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """A wrapper of `function` to call per example, and a function that marks stacked results that view arguments."""
    viewed: list[Any] = []
    non_c_args = any(map(is_non_c_order, leaves((args, kwargs))))  # an example's value is in C order here
    non_contiguous: set[int] = set()

    def call(*values: Any, **named: Any) -> Any:
        out = function(*values, **named)
        viewed[:] = viewed or _viewed_arrays(out, (*args, *kwargs.values()), (*values, *named.values()))
        for place, part in enumerate(leaves(out)):
            if is_non_c_order(part) or (type(part) is np.ndarray and part.ndim > 1 and not part.flags.c_contiguous):
                non_contiguous.add(place)  # it may be a part of an array that the function made
        return out

    def linked(out: Any) -> Any:
        for place, part in enumerate(leaves(out)):
            if non_c_args or place in non_contiguous:
                set_order(part, True)
            for base in viewed:
                unclear_view(part, base)
                if not hasattr(type(part), "_view"):  # objects do not follow writes into the argument: forbid those
                    region: Any = current_region()
                    if region is not None:
                        region.root.freeze(base)
        return out

    return call, linked


def _viewed_arrays(out: object, args: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """A list of the first argument whose example's array shares memory with a result; empty if there is none."""
    results = [x for x in leaves(out) if isinstance(x, np.ndarray)]
    for arg, value in zip(args, values, strict=True) if results else ():
        one, two = leaves(arg), leaves(value)
        for base, part in zip(one, two, strict=True) if len(one) == len(two) else itertools.product(one, two):
            if isinstance(part, np.ndarray) and any(np.may_share_memory(x, part) for x in results):
                return [base]
    return []
