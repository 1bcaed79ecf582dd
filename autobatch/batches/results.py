"""Trees with batches in them: one plain tree per example, and back."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches.forms import FORMS, Batch, agreed_size, is_batched, narrowed
from autobatch.batches.stacking import KINDS, pad_stack
from autobatch.core.batched import Batched
from autobatch.core.lanes import current_region
from autobatch.core.layout import is_crooked
from autobatch.core.op import is_boxed
from autobatch.core.pytree import TreeDef, flatten, is_node, leaves, map_tree, unflatten
from autobatch.errors import UnsupportedError, note_example
from autobatch.ops.rules.aliasing import lay, zero_d

__all__ = [
    "batch_size_of",
    "broadcast",
    "examples",
    "is_batched",
    "lane",
    "lanes_of",
    "name_lane",
    "narrow_tree",
    "per_lane",
    "prefix_lanes",
    "stack_results",
    "take_lanes",
    "weak_lanes",
]

_WEAK_DTYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


def examples(tree: Any) -> list[Any]:
    """A batched result as a list of plain results, one per example.

    Args:
        tree: any nesting of dict, list, tuple, named tuple and dataclass. Each batch in it is split into its examples
            (arrays without padding, Python scalars where an example is one); every other leaf is repeated.

    Raises:
        UnsupportedError: no leaf is a batch, so the number of examples is not known.
        ShapeError: the batches differ in size.

    >>> from autobatch.batches.masked import MaskedBatch
    >>> examples({"x": MaskedBatch.from_examples([[1, 2], [3]]), "name": "a"})
    [{'x': array([1, 2]), 'name': 'a'}, {'x': array([3]), 'name': 'a'}]
    """
    size = batch_size_of(tree)
    if size is None:
        raise UnsupportedError(
            f"no batch in {_shown(tree)}, so the number of examples is not known; "
            "give the result of a call on a MaskedBatch or PackedBatch"
        )
    return lanes_of(tree, size)


def lanes_of(tree: Any, batch_size: int) -> list[Any]:
    """`examples` where the batch size is known, so that a tree without a batch is repeated."""
    if isinstance(tree, Batch):
        return tree.examples()
    if not is_node(tree):
        return [tree] * batch_size
    values, structure = flatten(tree)
    columns = [leaf.examples() if isinstance(leaf, Batch) else [leaf] * batch_size for leaf in values]
    return [unflatten(structure, [column[i] for column in columns]) for i in range(batch_size)]


def _shown(tree: Any) -> str:
    text = repr(tree)
    return text if len(text) < 80 else f"{text[:77]}..."


def batch_size_of(tree: Any) -> int | None:
    """The number of examples in a tree; None if no leaf is a batch.

    Raises:
        ShapeError: the batches differ in size.
    """
    size = agreed_size(_batches(tree))
    return None if size < 0 else size


def _batches(tree: Any) -> Iterator[Batch]:
    if isinstance(tree, Batch):
        yield tree
    elif is_node(tree):
        for leaf in leaves(tree):
            if isinstance(leaf, Batch | slice):
                yield from _batches(leaf)
    elif isinstance(tree, slice):
        yield from _batches((tree.start, tree.stop, tree.step))


def lane(tree: Any, index: int) -> Any:
    """One example's view of a tree: each batch is that example's value, every other leaf itself."""
    if isinstance(tree, Batch):
        return tree._lane(index)
    kind = type(tree)
    if kind is list or kind is tuple:
        return kind(lane(child, index) for child in tree)
    if kind is slice:
        return slice(lane(tree.start, index), lane(tree.stop, index), lane(tree.step, index))
    if is_node(tree):
        return map_tree(lambda leaf: lane(leaf, index), tree)
    return tree


def narrow_tree(tree: Any) -> Any:
    """A tree with each batch restricted to the lanes of the current region."""
    if is_node(tree):
        return map_tree(narrow_tree, tree)
    if isinstance(tree, slice):
        return slice(narrowed(tree.start), narrowed(tree.stop), narrowed(tree.step))
    return narrowed(tree)


def take_lanes(batch: Any, index: Any, memo: dict[Any, Any] | None = None) -> Any:
    """The lanes of a batch named by `index` (integers, in that order), as a batch of the current region.

    `memo` lets batches that share one `Lengths` share the narrowed one, so later ops need not compare them.
    """
    return batch._take(np.asarray(index), {} if memo is None else memo)


def prefix_lanes(batch: Any, count: int, memo: dict[Any, Any] | None = None) -> Any:
    """The first `count` lanes of a batch as a view, as a batch of the current region. `memo` as in `take_lanes`."""
    return batch._prefix(count, {} if memo is None else memo)


def weak_lanes(data: np.ndarray, scalar: type) -> Any:
    """Lanes that each are a Python scalar of this type, from (B,) data of its dtype."""
    return FORMS["masked"].of(Batched(data, (), scalar))


def broadcast(value: Any, batch_size: int) -> Any:
    """A shared value repeated in each lane; what is a batch already stays as it is."""
    if isinstance(value, Batch):
        return value
    if type(value) in _WEAK_DTYPES:
        try:
            return weak_lanes(np.full(batch_size, value, _WEAK_DTYPES[type(value)]), type(value))
        except OverflowError:
            return FORMS["objects"]([value] * batch_size)
    if isinstance(value, np.ndarray | np.generic) or is_boxed(value):
        out = FORMS["masked"].of(Batched(np.broadcast_to(value, (batch_size, *value.shape)), value.shape))
        return lay(out, is_crooked(value))
    if is_node(value):
        return map_tree(lambda leaf: broadcast(leaf, batch_size), value)
    return FORMS["objects"]([value] * batch_size)


def stack_results(results: Sequence[Any]) -> Any:
    """One batched tree from one plain result per example; the inverse of `examples`.

    Structure that all results share is kept. A leaf becomes
    - a padded batch, if all examples have arrays of one rank and dtype there,
    - lanes that are Python scalars, if all have Python scalars of one type,
    - itself, if all have one and the same object, or equal strings: it is shared,
    - an `ObjectBatch` otherwise, as do parts of different structure.

    >>> stack_results([(1, "a"), (2, "a")])
    (MaskedBatch(batch_size=2, example=int, data=[1 2]), 'a')
    """
    if not len(results):
        return FORMS["objects"]([])
    first = results[0]
    if not is_node(first):
        return _stack_leaf(results)
    kind = type(first)
    if kind is tuple or kind is list:
        if any(type(other) is not kind or len(other) != len(first) for other in results):
            return FORMS["objects"](results)
        return kind(stack_results(column) for column in zip(*results, strict=True))
    columns, structures = zip(*map(flatten, results), strict=True)
    structure: TreeDef = structures[0]
    if any(other != structure for other in structures[1:]):
        return FORMS["objects"](results)
    return unflatten(structure, [_stack_leaf(column) for column in zip(*columns, strict=True)])


def _stack_leaf(column: Sequence[Any]) -> Any:
    first = column[0]
    kind = type(first)
    dtype = _WEAK_DTYPES.get(kind)
    if dtype is not None:
        if all(type(x) is kind for x in column):
            try:
                return weak_lanes(np.array(column, dtype), kind)
            except OverflowError:  # an int beyond int64 stays exact
                return FORMS["objects"](column)
    elif isinstance(first, np.ndarray | np.generic) or (is_boxed(first) and not isinstance(first, Batch)):
        if _alike(column):
            out = FORMS["masked"].of(Batched(*pad_stack(column)))
            return zero_d(out) if all(isinstance(x, np.ndarray) for x in column) else out
    elif all(x is first or (kind in (str, bytes) and type(x) is kind and x == first) for x in column):
        return first
    return FORMS["objects"](column)


def _alike(column: Sequence[Any]) -> bool:
    """Whether all are arrays of the first one's rank and dtype, of a dtype that pads."""
    first = column[0]
    if first.dtype.kind not in KINDS:
        return False
    ndim, dtype = first.ndim, first.dtype
    for x in column:
        if not (isinstance(x, np.ndarray | np.generic) or (is_boxed(x) and not isinstance(x, Batch))):
            return False
        if x.ndim != ndim or x.dtype != dtype:
            return False
    return True


def per_lane(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Call a function once per lane of the current region: the plain results."""
    args, kwargs = narrow_tree(list(args)), narrow_tree(kwargs)
    size = batch_size_of((args, kwargs))
    out = []
    for i in range(size or 0):
        try:
            out.append(function(*lane(args, i), **lane(kwargs, i)))
        except Exception as error:
            name_lane(error, i)
            raise
    return out


def name_lane(error: BaseException, index: int) -> None:
    """Note which example failed. Inside a run its region knows the example of a lane; without one, lane is example."""
    region = current_region()
    if region is None:
        note_example(error, index)
    elif hasattr(region, "example_of"):
        note_example(error, region.example_of(index))
