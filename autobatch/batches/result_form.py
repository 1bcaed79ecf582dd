"""The loop's side of a call on batches: plain views of the examples, and the form of the result, whichever mode ran.

Lock-step derives a result's form from the ops; the loop sees one result per example. So that callers cannot tell them
apart, the form of the returned batches depends only on the results' values and on the batches passed in:

- Each number and array is per example, even if it is the same in all.
- A dimension with the same lengths as a varying dimension of an argument counts as varying, padded like that one. Any
  other dimension counts as varying if its lengths differ, and is padded to the longest.
- A result with the first lengths of a packed argument, and static trailing dimensions, is packed; others are padded.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch, pack_rows
from autobatch.batches.packing import KINDS, SCALAR_DTYPES
from autobatch.batches.padded_batch import MaskedBatch, pad
from autobatch.batches.stacking import broadcast, stack_results
from autobatch.core.batched import Batched, Lengths, Size
from autobatch.core.current_region import current_region
from autobatch.core.pytree import flatten, unflatten
from autobatch.ops.rules.padding import to_widths

_Entry = tuple[Lengths, int, Any]  # a dimension's lengths, its padded size, and its offsets if packed (else None)


def view_columns(args: Sequence[Any], batches: list[Any]) -> list[Any] | None:
    """One iterable of per-example values for each positional argument, if examples are plain views of the batches.

    Appends the batches to `batches`. None if one is passed twice, or its examples are not contiguous in memory.
    """
    columns: list[Any] = []
    for arg in args:
        cls = type(arg)
        if cls is MaskedBatch:
            inner = arg.sizes[1:]
            is_of_views = not inner or (Lengths not in map(type, inner) and arg.unguarded().flags.c_contiguous)
        elif cls is PackedBatch:
            is_of_views = type(arg.values) is np.ndarray and arg.values.flags.c_contiguous
        else:
            if isinstance(arg, Batch):
                return None
            columns.append(itertools.repeat(arg))
            continue
        if not is_of_views or any([arg is each for each in batches]):  # noqa: C419 - they are few
            return None
        batches.append(arg)
        columns.append(arg.examples())
    return columns


def batched(results: Sequence[Any], batches: Sequence[Any]) -> Any:
    """The results of a call's examples, one after the other, as the batched result; `batches` as for `normalised`."""
    out = _ragged(results, batches) if type(results[0]) is np.ndarray else None
    return normalised(stack_results(results), len(results), batches) if out is None else out


def _ragged(results: Sequence[Any], batches: Sequence[Any]) -> Any:
    """The usual forms of ragged results: arrays whose lengths, which differ, are those of the first batch, or of none.

    None for any other result.
    """
    like, shape, dtype = batches[0], results[0].shape, results[0].dtype
    is_packed = type(like) is PackedBatch
    if is_packed:
        size: Any = like.size_of_first if type(like.values) is np.ndarray else None
    else:
        size = like.sizes[0] if type(like) is MaskedBatch and like.sizes else None
    if type(size) is not Lengths or not shape or dtype.kind not in KINDS or not dtype.isnative:
        return None
    inner = shape[1:]
    for x in results:
        if type(x) is not np.ndarray or x.dtype != dtype or not x.shape or x.shape[1:] != inner:
            return None
    lengths = [len(x) for x in results]
    has_more = len(batches) > 1 or not (is_packed or len(like.sizes) == 1)
    if lengths.count(lengths[0]) == len(lengths) or (has_more and any(map(_has_uniform, batches))):
        return None
    if lengths != size.values.tolist():
        if is_packed or has_more or _has_uniform(like):
            return None
        size, width = Lengths(lengths), max(lengths)
    elif is_packed:
        return PackedBatch.of(np.concatenate(results), like.offsets, size)
    else:
        width = like.unguarded().shape[1]
    return MaskedBatch.of_data(pad(results, (width, *inner), size), (size, *inner), current_region())


def normalised(tree: object, size: int, batches: Sequence[Any]) -> Any:
    """Bring the batched result of a call outside lock-step into the form described above.

    Args:
        tree: the result; a leaf that is not a batch is the same for all examples.
        size: the number of examples; batches: the batches among the call's arguments.
    """
    known: _Dimensions | None = None
    if type(tree) is MaskedBatch and not tree.sizes:
        return tree
    if isinstance(tree, Batch):
        return tree if _is_normalised(tree, batches) else _Dimensions(batches).formed(tree)
    if type(tree) is tuple and tree and all(_is_normalised(each, batches) for each in tree):
        return tree
    values, structure = flatten(tree)
    for place, value in enumerate(values):
        if isinstance(value, Batch):
            if _is_normalised(value, batches):
                continue
            known = known or _Dimensions(batches)
            values[place] = known.formed(value)
        elif type(value) in SCALAR_DTYPES or isinstance(value, np.ndarray | np.generic):
            values[place] = broadcast(value, size)
    if not values:
        return ObjectBatch([tree] * size)
    if not any(isinstance(value, Batch) for value in values):
        values = [broadcast(value, size) for value in values]
    return unflatten(structure, values)


def _is_normalised(value: object, batches: Sequence[Any]) -> bool:
    """True if a value needs no change: padded, and no dimension of it counts as varying; true for most results."""
    if type(value) is not MaskedBatch:
        return False
    return not value.sizes or not (value.is_ragged or any(map(_has_uniform, batches)))


def _has_uniform(batch: object) -> bool:
    if type(batch) is MaskedBatch:
        return any(type(size) is Lengths and _uniform_length(size) is not None for size in batch.sizes)
    return isinstance(batch, PackedBatch) and _uniform_length(batch.size_of_first) is not None


class _Dimensions:
    """The varying dimensions of the arguments."""

    __slots__ = ("_by_lengths", "_has_packed", "_uniform")

    def __init__(self, batches: Sequence[Any]) -> None:
        self._by_lengths: dict[bytes, _Entry] = {}
        self._uniform: dict[int, _Entry] = {}  # varying dimensions whose lengths all happen to agree, by that length
        self._has_packed = False
        for batch in batches:
            if isinstance(batch, MaskedBatch):
                for axis, size in enumerate(batch.sizes, 1):
                    if isinstance(size, Lengths):
                        self._add(size, batch.unguarded().shape[axis], None)
            elif isinstance(batch, PackedBatch) and not isinstance(batch.values, PackedBatch):
                self._has_packed = True
                self._add(batch.size_of_first, batch.size_of_first.max(), batch.offsets)

    def _add(self, size: Lengths, width: int, offsets: object) -> None:
        entry = size, width, offsets
        self._by_lengths.setdefault(size.values.tobytes(), entry)
        length = _uniform_length(size)
        if length is not None:
            self._uniform.setdefault(length, entry)

    def formed(self, batch: object) -> Any:
        """A batch of results in the form that callers get."""
        if isinstance(batch, PackedBatch):
            if isinstance(batch.values, PackedBatch):
                return batch
            entry = self._by_lengths.get(batch.size_of_first.values.tobytes())
            return batch if entry is not None and entry[2] is not None else self.formed(batch.to_masked())
        if not isinstance(batch, MaskedBatch) or not batch.sizes or not (batch.is_ragged or self._uniform):
            return batch
        entries = [self._entry(size) for size in batch.sizes]
        sizes = tuple(size if entry is None else entry[0] for size, entry in zip(batch.sizes, entries, strict=True))
        first = entries[0]
        is_fixed = all(isinstance(size, int) or _uniform_length(size) is not None for size in batch.sizes[1:])
        if self._has_packed and first is not None and first[2] is not None and is_fixed and not any(entries[1:]):
            rows = to_widths(batch.data, [batch.data.shape[1], *map(_widest, batch.sizes[1:])])
            return PackedBatch.of(pack_rows(rows, first[0]), first[2], first[0])
        settled: list[Size] = []
        widths = []
        for size, entry in zip(sizes, entries, strict=True):
            width = _widest(size) if entry is None else entry[1]
            settled.append(
                width if entry is None and type(size) is Lengths and _uniform_length(size) is not None else size
            )
            widths.append(width)
        data = to_widths(batch.data, widths)
        if data is batch.data and all(a is b for a, b in zip(settled, batch.sizes, strict=True)):
            return batch
        out = MaskedBatch.of(Batched(data, settled, batch.scalar))
        out._ab_set_order(batch._ab_non_c_order)
        return out

    def _entry(self, size: Size) -> _Entry | None:
        return self._uniform.get(size) if isinstance(size, int) else self._by_lengths.get(size.values.tobytes())


def _uniform_length(size: Lengths) -> int | None:
    """The common length of all examples; None if they differ."""
    if "uniform" not in size.derived:
        values = size.values
        is_one = len(values) and values[0] == values[-1] and (len(values) == 1 or bool((values == values[0]).all()))
        size.derived["uniform"] = int(values[0]) if is_one else None
    return size.derived["uniform"]


def _widest(size: Size) -> int:
    return size if isinstance(size, int) else size.max()
