"""The rule of last resort that is still a rule: lanes of equal lengths form a group, and each group runs uniformly."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Lengths, Size
from autobatch.core.op import Op

__all__ = ["by_length", "join_groups"]


def by_length(op: Op, x: Batched, params: dict[str, Any], axes: Sequence[int]) -> Batched:
    """`op` on one ragged operand whose padding along `axes` cannot be hidden by any value.

    Each set of lanes that agree in their lengths along `axes` runs as one batch without padding there, so results are
    exactly those of the lone examples.
    """
    ragged = [axis for axis in axes if isinstance(x.sizes[axis], Lengths)]
    keys = np.stack([x.sizes[axis].values for axis in ragged], axis=1)  # type: ignore[union-attr]
    if not len(keys):
        keys = np.zeros((1, len(ragged)), np.int64)
        lanes = [np.zeros(0, np.int64)]
    else:
        keys, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        lanes = [np.flatnonzero(inverse == group) for group in range(len(keys))]
    outs = []
    for key, members in zip(keys.tolist(), lanes, strict=True):
        sizes = [Lengths(size.values[members]) if isinstance(size, Lengths) else size for size in x.sizes]
        crop: list[Any] = [slice(None)] * x.rank
        for axis, length in zip(ragged, key, strict=True):
            sizes[axis] = length
            crop[axis] = slice(length)
        data = x.data[members][(slice(None), *crop)]
        outs.append(op.rule(op, [Batched(data, sizes)], params))  # type: ignore[misc]
    return join_groups(outs, lanes)


def join_groups(outs: Sequence[Batched], lanes: Sequence[np.ndarray]) -> Batched:
    """One batch from the results of groups of lanes, in the order of the lanes."""
    if len(outs) == 1:
        return outs[0]
    rank = outs[0].rank
    extents = [max(out.data.shape[1 + axis] for out in outs) for axis in range(rank)]
    padded = [_pad_to(out.data, extents) for out in outs]
    order = np.argsort(np.concatenate(lanes), kind="stable")
    sizes: list[Size] = []
    for axis in range(rank):
        parts = [out.sizes[axis] for out in outs]
        if all(isinstance(size, int) and size == parts[0] for size in parts):
            sizes.append(parts[0])
            continue
        flat = [
            size.values if isinstance(size, Lengths) else np.full(len(members), size)
            for size, members in zip(parts, lanes, strict=True)
        ]
        sizes.append(Lengths(np.concatenate(flat)[order]))
    return Batched(np.concatenate(padded, axis=0)[order], sizes)


def _pad_to(data: Any, extents: Sequence[int]) -> Any:
    for axis, extent in enumerate(extents, 1):
        shape = data.shape
        if shape[axis] < extent:
            zeros = np.zeros((*shape[:axis], extent - shape[axis], *shape[axis + 1 :]), data.dtype)
            data = np.concatenate([data, zeros], axis=axis)
    return data
