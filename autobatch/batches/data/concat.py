"""`ab.concat`: batches, or trees of batches, one after the other as one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import FORMS, Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.pytree import flatten, paths, unflatten
from autobatch.errors import DTypeError, NeedsLoop, ShapeError, StructureError, UnsupportedError
from autobatch.ops.rules.aliasing import is_scalar, zero_d
from autobatch.ops.rules.padding import to_widths
from autobatch.ops.rules.sizes import lane_lengths, padded_width


@hiding_frames
def concat(batches: Sequence[Any]) -> Any:
    """The examples of several batches, in order, as one batch.

    Args:
        batches: batches, or trees of batches of one structure, or `ab.Examples`. Their examples have one rank and
            dtype; Python numbers among NumPy's keep their types. A leaf that is not a batch is shared, and must be
            the same in all.

    Returns:
        A batch, or a tree of that structure: packed if one of them is packed and the others can be, else padded to
        the longest example. The values are copied, and carry gradients.

    Raises:
        ShapeError: no batches, or ranks that differ. DTypeError: dtypes that differ. StructureError: other structures,
            or shared values that differ.

    >>> concat([MaskedBatch.from_examples([[1, 2], [3, 4]]), MaskedBatch.from_examples([[5]])]).examples()
    [array([1, 2]), array([3, 4]), array([5])]
    """
    if isinstance(batches, Batch):
        raise UnsupportedError(f"one {type(batches).__name__}; expected a list of batches: write ab.concat([a, b])")
    if current_region() is not None:
        raise NeedsLoop("ab.concat inside of a decorated function")
    if not (trees := [each.batch if isinstance(each, FORMS["examples"]) else each for each in batches]):
        raise ShapeError("no batches; expected at least one")
    return concat_trees(trees)


def concat_trees(trees: Sequence[Any]) -> Any:
    """`concat` for a sequence of at least one tree."""
    columns, structures = zip(*map(flatten, trees), strict=True)
    for i, structure in enumerate(structures):
        if structure != structures[0]:
            like = f"the structure of batch 0, {structures[0]}; ab.collate makes a batch of a list of examples"
            raise StructureError(f"batch {i} is {structure}; expected {like}")
    if not any(isinstance(leaf, Batch) for leaf in columns[0]):
        raise UnsupportedError("ab.concat got no batch; pass batches, or trees with batches in them")
    placed = zip(zip(*columns, strict=True), paths(structures[0]), strict=True)
    return unflatten(structures[0], [_joined(column, path) for column, path in placed])


def _joined(column: Sequence[Any], path: str) -> Any:
    first = column[0]
    if not isinstance(first, Batch):
        for i, each in enumerate(column):
            if each is not first and not _equal(each, first):
                raise StructureError(f"batch {i} has a different shared value{_name(path)} from that of batch 0")
        return first
    for i, each in enumerate(column):
        if not isinstance(each, Batch):
            raise StructureError(f"batch {i} has a {type(each).__name__}{_name(path)}; batch 0 has a batch there")
    if len(column) == 1:
        return first
    filled = [each for each in column if not (each.batch_size == 0 and isinstance(each, Batched) and not each.sizes)]
    column = filled or column[:1]
    numbers = all(isinstance(each, Batched) and not each.sizes for each in column)
    if any(isinstance(each, ObjectBatch) for each in column) or (numbers and len({x.scalar for x in column}) > 1):
        return ObjectBatch([value for each in column for value in each.examples()])
    _check(column, path)
    if all(isinstance(each, MaskedBatch) for each in column):
        return joined_lanes(column)
    if any(isinstance(each, MaskedBatch) and any(each.dims[1:]) for each in column):
        return joined_lanes([each if isinstance(each, MaskedBatch) else each.to_masked() for each in column])
    return _packed([each if isinstance(each, PackedBatch) else PackedBatch.from_masked(each) for each in column], path)


def _name(path: str) -> str:
    return f" at {path}" if path else ""


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    return bool(a == b or (a != a and b != b))  # NaN is itself


def _check(column: Sequence[Any], path: str) -> None:
    first = column[0]
    for i, each in enumerate(column):
        if each.ndim != first.ndim:
            given = f"examples of {each.ndim} dimensions{_name(path)}"
            raise ShapeError(f"batch {i} has {given}, batch 0 of {first.ndim}; expected one number of dimensions")
        if each.dtype != first.dtype:
            given = f"examples of {each.dtype}{_name(path)}"
            raise DTypeError(f"batch {i} has {given}, batch 0 of {first.dtype}; convert them first")


def joined_lanes(column: Sequence[MaskedBatch]) -> MaskedBatch:
    """The lanes of padded batches of one rank, dtype and scalar type, one batch after the other, in one."""
    first = column[0]
    sizes: list[Size] = []
    for axis, size in enumerate(first.sizes):
        of_all = [each.sizes[axis] for each in column]
        if not isinstance(size, Lengths) and all(same_size(other, size) for other in of_all):
            sizes.append(size)
            continue
        lengths = [lane_lengths(n, each.batch_size) for n, each in zip(of_all, column, strict=True)]
        sizes.append(Lengths(np.concatenate(lengths)))
    widths = list(map(padded_width, sizes))
    parts = [to_widths(each.data, widths) for each in column if each.batch_size]
    data = np.concatenate(parts) if parts else to_widths(first.data, widths)
    out = MaskedBatch.of(Batched(data, sizes, first.scalar))
    return out if sizes or first.scalar or all(map(is_scalar, column)) else zero_d(out)


def _packed(column: Sequence[PackedBatch], path: str) -> PackedBatch:
    ends = np.cumsum([each.offsets[-1] for each in column])
    starts = (0, *ends[:-1].tolist())
    offsets = [each.offsets[1:] + start for each, start in zip(column, starts, strict=True)]
    values = [each.values for each in column]
    if any(isinstance(each, PackedBatch) for each in values):
        inner: Any = _joined(values, path)
    else:
        for i, each in enumerate(values):
            if each.shape[1:] != values[0].shape[1:]:
                raise ShapeError(
                    f"batch {i} has values of shape {each.shape[1:]}{_name(path)}, batch 0 of {values[0].shape[1:]}; "
                    "only the first dimension of a PackedBatch varies"
                )
        inner = np.concatenate(values)
    return PackedBatch.of(inner, np.concatenate([np.zeros(1, np.int64), *offsets]))
