"""`ab.minibatches`: splits a batch into mini-batches, in order or shuffled, optionally grouped by length."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import FORMS, Batch
from autobatch.batches.data.columns import take_examples
from autobatch.batches.data.example_sequence import Examples
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.core.batched import Lengths
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.pytree import leaves
from autobatch.errors import OptionError
from autobatch.ops.rules.ragged_checks import whole_option


class Minibatches:
    """The result of `minibatches`: an iterable with a length, which gives the same mini-batches each time.

    `[i]` is one of them, and a slice a part of the iterable.

    Attributes:
        ids: for each mini-batch the numbers of its examples, (size,) int64.
    """

    __slots__ = ("_batch", "ids")

    def __init__(self, batch: Any, ids: list[np.ndarray]) -> None:
        self._batch = batch
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{len(self.ids)} mini-batches of {sum(map(len, self.ids))} examples>"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Minibatches(self._batch, self.ids[index])
        return take_examples(self._batch, self.ids[index])

    def __iter__(self) -> Iterator[Any]:
        return (take_examples(self._batch, ids) for ids in self.ids)


@hiding_frames
def minibatches(
    data: object, size: int, *, shuffle: bool = False, seed: Any = 0, bucket: int | None = None, drop_last: bool = False
) -> Minibatches:
    """The examples in mini-batches: every example once, in batches of `size`; the last may be smaller.

    Args:
        data: what `ab.collate` takes, or `ab.Examples`: batches, and trees of them, are not copied as a whole.
        size: the number of examples in a mini-batch.
        shuffle: take the examples in a random order, drawn with `seed`, instead of their own.
        seed: an integer, or a sequence of them such as (seed, epoch): what `np.random.default_rng` takes.
        bucket: sort the examples by length, stably, within pools of this many mini-batches, so that those of a
            mini-batch are about equally long; with `shuffle` the mini-batches of a pool come in random order. An
            example's length is its largest varying dimension in a tree of batches, or the values of nested lists.
        drop_last: leave out the last examples of the order if they do not fill a mini-batch. This is decided before
            examples are sorted by length, so it does not depend on their lengths.

    Returns:
        An iterable with a length, whose items have the structure of `ab.collate(data)`; its `ids` are the indices of
        the examples. Every iteration gives the same order; pass `seed=epoch` for another. For objects, for `ab.map`,
        take `[objects[i] for i in ids]` for each of `minibatches(range(len(objects)), size).ids`.

    Raises:
        OptionError: a size or bucket that is not a positive integer. Others: what `ab.collate` raises.

    >>> [batch.examples() for batch in minibatches([[1], [2, 2], [3]], 2)]
    [[array([1]), array([2, 2])], [array([3])]]
    >>> len(minibatches(np.zeros((50, 3)), 8)), len(minibatches(np.zeros((50, 3)), 8, drop_last=True))
    (7, 6)
    """
    if isinstance(size, Sequence | np.ndarray | Batch):
        raise OptionError(f"size is a {type(size).__name__}; columns are one argument: ab.minibatches((xs, ys), size)")
    size = whole_option(size, "size")
    if bucket is not None:
        bucket = whole_option(bucket, "bucket")
    examples = Examples(data if isinstance(data, Examples | Batch) else FORMS["collate"](data))
    rng = np.random.default_rng(seed)
    count = len(examples)
    order = rng.permutation(count) if shuffle else np.arange(count)
    if drop_last:
        order = order[: count - count % size]
    if bucket is None:
        return Minibatches(examples.batch, _cut(order, size))
    lengths = example_lengths(examples.batch, count)
    ids: list[np.ndarray] = []
    for pool in _cut(order, size * bucket):
        parts = _cut(pool[np.argsort(lengths[pool], kind="stable")], size)
        ids += [parts[i] for i in rng.permutation(len(parts))] if shuffle else parts
    return Minibatches(examples.batch, ids)


def _cut(order: np.ndarray, size: int) -> list[np.ndarray]:
    return [order[at : at + size] for at in range(0, len(order), size)]


def example_lengths(tree: object, count: int) -> np.ndarray:
    """(count,) how long each example is: the longest of its parts."""
    out = np.zeros(count, np.int64)
    for leaf in leaves(tree):
        if isinstance(leaf, PackedBatch):
            offsets, values = leaf.offsets, leaf.values
            while isinstance(values, PackedBatch):
                offsets, values = values.offsets[offsets], values.values
            np.maximum(out, np.diff(offsets), out=out)
        elif isinstance(leaf, MaskedBatch):
            for size in leaf.sizes:
                if isinstance(size, Lengths):
                    np.maximum(out, size.values, out=out)
    return out
