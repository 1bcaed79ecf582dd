"""The rules of last resort that are still rules: groups of lanes of equal lengths, and one example after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Lengths, Size
from autobatch.core.op import Op
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.padding import to_widths
from autobatch.ops.rules.sizes import lane_lengths, lanes_of

__all__ = ["by_length", "join_groups", "lanewise", "values_of"]


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
    padded = [to_widths(out.data, extents) for out in outs]
    order = np.argsort(np.concatenate(lanes), kind="stable")
    sizes: list[Size] = []
    for axis in range(rank):
        parts = [out.sizes[axis] for out in outs]
        if all(isinstance(size, int) and size == parts[0] for size in parts):
            sizes.append(parts[0])
            continue
        flat = [lane_lengths(size, len(members)) for size, members in zip(parts, lanes, strict=True)]
        sizes.append(Lengths(np.concatenate(flat)[order]))
    return Batched(np.concatenate(padded, axis=0)[order], sizes)


_detach_p = Op("values", lambda x: x)  # no vjp: what it gives carries no gradient


def values_of(x: Any) -> np.ndarray:
    """The plain values of an array that may carry a gradient, where none flows back."""
    return np.asarray(_detach_p(x))


def lanewise(name: str, impl: Callable[..., Any], *, dynamic: bool = True) -> Op:
    """An op whose rule is a loop over the examples; the sizes of the results may differ.

    Args:
        dynamic: the shape of the result depends on values, so a lazy call needs them first.
    """
    return Op(name, impl, rule=_rule, vjp=_no_gradient, data_dependent=dynamic, kind="lanewise")


def _no_gradient(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    raise UnsupportedError("this function has no gradient here")


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lanes_of(operands)
    columns = [_examples(x) if isinstance(x, Batched) else [values_of(x)] * lanes for x in operands]
    results = [np.asarray(op.impl(*row, **params)) for row in zip(*columns, strict=True)]
    if not results:
        dummies = [np.zeros(x.data.shape[1:], x.data.dtype) if isinstance(x, Batched) else x for x in operands]
        empty = np.asarray(op.impl(*dummies, **params))
        ragged = [Lengths([]) if op.data_dependent else size for size in empty.shape]
        return Batched(np.zeros((0, *empty.shape), empty.dtype), ragged)
    shapes = np.array([result.shape for result in results], np.int64).reshape(lanes, results[0].ndim)
    sizes: list[Size] = [
        Lengths(column) if op.data_dependent or (column != column[0]).any() else int(column[0]) for column in shapes.T
    ]
    data = np.zeros((lanes, *shapes.max(axis=0, initial=0)), results[0].dtype)
    for lane, result in enumerate(results):
        place: Any = (lane, *map(slice, result.shape))
        data[place] = result
    return Batched(data, sizes)


def _examples(x: Batched) -> list[np.ndarray]:
    data = values_of(x.data)
    corners = [lane_lengths(size, len(data)) for size in x.sizes]
    places: list[Any] = [(lane, *(slice(int(corner[lane])) for corner in corners)) for lane in range(len(data))]
    return [data[place] for place in places]
