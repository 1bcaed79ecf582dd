"""Examples of different lengths as one: their rows one after the other, without padding, and back.

What the batching rules of segments, scatters and conversions share.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed, Size
from autobatch.core.op import is_boxed
from autobatch.errors import ShapeError, note_example
from autobatch.ops.rules.padding import fill
from autobatch.tables.ids import as_ids, check_ids

__all__ = ["by_lane", "flattened", "in_lane", "offsets_from", "own_rows"]


def flattened(x: Any, lanes: int, what: str) -> tuple[Packed, tuple[Size, ...]]:
    """The rows of all examples one after the other, without padding, and the sizes of a row."""
    if isinstance(x, Packed):
        return x, tuple(shape_of(x.values)[1:])
    if not isinstance(x, Batched):
        if not ndim_of(x):
            raise ShapeError(f"{what} is a single number; expected rows, (n, ...)")
        n, shape = shape_of(x)[0], shape_of(x)[1:]
        tiled = np.concatenate([x] * lanes) if lanes else np.reshape(x, (-1, *shape))[:0]
        return Packed(tiled, np.arange(lanes + 1) * n), tuple(shape)
    if not x.sizes:
        raise ShapeError(f"{what} is a single number; expected rows, (n, ...)")
    if any(isinstance(size, Lengths) for size in x.sizes[1:]):
        x = Batched(fill(x, 0), x.sizes)  # what a column's padding holds must not warn, nor reach a weight's gradient
    size, shape = x.sizes[0], shape_of(x.data)
    flat = np.reshape(x.data, (shape[0] * shape[1], *shape[2:]))
    if not isinstance(size, Lengths):
        return Packed(flat, np.arange(shape[0] + 1) * shape[1]), x.sizes[1:]
    return Packed(flat[np.flatnonzero(size.mask(shape[1]))], offsets_from(size.values)), x.sizes[1:]


def offsets_from(lengths: np.ndarray) -> np.ndarray:
    """Where examples of these lengths start, and last where they end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def own_rows(table: Any, ids: Packed) -> tuple[Any, np.ndarray]:
    """One table and ids into it: shared, or those of the examples one below the other."""
    found = as_ids(np.asarray(ids.values) if is_boxed(ids.values) else ids.values)
    if found.ndim != 1:
        raise ShapeError(f"ids have shape {found.shape[1:]} more; expected one dimension")
    lane_of = np.repeat(np.arange(ids.batch_size), ids.lengths)
    if isinstance(table, Batched | Packed):
        rows, _ = flattened(table, ids.batch_size, "data")
        counts, base, table = rows.lengths, rows.offsets[:-1], rows.values
    else:
        counts, base = np.full(ids.batch_size, shape_of(table)[0]), np.zeros(ids.batch_size, np.int64)
    wrong = np.flatnonzero((found < 0) | (found >= counts[lane_of]))
    if wrong.size:
        lane = int(lane_of[wrong[0]])
        in_lane(lane, lambda: check_ids(found[ids.offsets[lane] : ids.offsets[lane + 1]], int(counts[lane])))
    return table, found + base[lane_of]


def in_lane(lane: int, check: Callable[[], Any]) -> Any:
    """What `check` gives; its exception names the example."""
    try:
        return check()
    except Exception as error:
        raise note_example(error, lane)  # noqa: B904 - the same error, with its note


def by_lane(out: Any, counts: np.ndarray, like: Any = None) -> Batched:
    """Rows of all examples, one after the other, as a batch of examples that have `counts` rows each, as `like` has."""
    lanes, shape = counts.shape[0], shape_of(out)[1:]
    if like is not None:
        size, extent = like.sizes[0], shape_of(like.data)[1]
    else:
        alike = lanes == 0 or bool((counts == counts[0]).all())
        size = (int(counts[0]) if lanes else 0) if alike else Lengths(counts)
        extent = int(counts.max(initial=0))
    if not isinstance(size, Lengths):
        return Batched(np.reshape(out, (lanes, size, *shape)), (size,))
    mask = size.mask(extent)
    index = np.full(mask.shape, shape_of(out)[0])
    index[mask] = np.arange(shape_of(out)[0])
    padded = np.concatenate([out, np.zeros((1, *shape), out.dtype)])
    return Batched(padded[index], (size,))
