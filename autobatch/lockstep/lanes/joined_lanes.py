"""Values of different groups of lanes are joined into one value for all of them (`joined`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.data.concat import joined_lanes
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import broadcast, lanes_of
from autobatch.core.abstract_eval import is_non_c_order
from autobatch.core.current_region import freeze_dicts
from autobatch.core.op import is_boxed
from autobatch.core.pytree import flatten, is_node, leaves, unflatten
from autobatch.errors import RETURN_ARRAYS, NeedsLoop
from autobatch.ops.rules.aliasing import is_scalar, set_order, zero_d


class _Unbound:
    """Type of `UNBOUND`, the value of a variable that is not bound."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unbound>"


UNBOUND = _Unbound()
_PLAIN = (str, bytes, type(None), type, np.dtype, type(Ellipsis), slice, frozenset, range)


def joined(pieces: Sequence[Any], counts: Sequence[int], regions: Sequence[Any]) -> Any:
    """Join one value per group into one value for sum(counts) lanes; each is batched, or shared by its group's lanes.

    Args:
        regions: the region of each group; all are parts of the current region.

    Raises:
        UnboundLocalError: the variable is unbound in some groups.
        NeedsLoop: the values are different objects whose identity matters, or containers of different types.
    """
    first = pieces[0]
    if not is_boxed(first) and all(piece is first for piece in pieces):
        return first
    if any(piece is UNBOUND for piece in pieces):
        raise UnboundLocalError("a local variable is not bound in some examples")
    held = next((piece for piece in pieces if hasattr(type(piece), "_ab_unite")), None)
    if held is not None:
        return held._ab_unite(pieces, regions)
    if any(is_node(piece) and not isinstance(piece, tuple) for piece in pieces) and len(set(map(type, pieces))) > 1:
        raise NeedsLoop("containers of different types for different examples")
    if is_node(first):
        for piece in pieces:
            freeze_dicts(piece)
        values, structures = zip(*map(flatten, pieces), strict=True)
        if all(structure == structures[0] for structure in structures):
            return unflatten(structures[0], [joined(column, counts, regions) for column in zip(*values, strict=True)])
        return _join_objects(pieces, counts)
    if type(first) in (str, bytes) and all(type(piece) is type(first) and piece == first for piece in pieces):
        return first
    batches = [
        as_padded(piece, count) if _is_array_like(piece) else None for piece, count in zip(pieces, counts, strict=True)
    ]
    if stackable(batches):
        return concatenate_lanes(batches)  # type: ignore[arg-type]
    if any(_is_object(piece) for piece in pieces):
        raise NeedsLoop("objects that differ by example", instead=RETURN_ARRAYS)
    return _join_objects(pieces, counts)


def _is_object(value: Any) -> bool:
    """True for an opaque object: no array, number, immutable constant, container or batch."""
    return not (_is_array_like(value) or isinstance(value, _PLAIN) or is_node(value))


def _is_array_like(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | np.ndarray | np.generic) or is_boxed(value)


def as_padded(value: Any, count: int) -> Any:
    """A value of `count` lanes as a padded batch; a shared value is broadcast."""
    if isinstance(value, PackedBatch):
        return value.to_masked()
    out = broadcast(value, count)
    return zero_d(out) if type(value) is np.ndarray else out


def stackable(batches: Sequence[Any]) -> bool:
    """True if all are padded batches of the same rank, dtype and scalar type."""
    first = batches[0]
    if type(first) is not MaskedBatch:
        return False
    dtype, rank, scalar = first.data.dtype, len(first.sizes), first.scalar
    return all(
        type(batch) is MaskedBatch
        and batch.data.dtype == dtype
        and len(batch.sizes) == rank
        and batch.scalar is scalar
        and (rank > 0 or is_scalar(batch) == is_scalar(first))
        for batch in batches
    )


def _join_objects(pieces: Sequence[Any], counts: Sequence[int]) -> Any:
    values: list[Any] = []
    for piece, count in zip(pieces, counts, strict=True):
        for leaf in leaves(piece):
            if not (_is_array_like(leaf) or isinstance(leaf, _PLAIN)):
                raise NeedsLoop("objects that differ by example", instead=RETURN_ARRAYS)
        values += lanes_of(piece, count)
    return ObjectBatch(values)


def concatenate_lanes(batches: Sequence[MaskedBatch]) -> MaskedBatch:
    """Concatenate `stackable` batches along the lanes."""
    return set_order(joined_lanes(batches), any(map(is_non_c_order, batches)))
