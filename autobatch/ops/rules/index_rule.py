"""Parses an index (integers, slices, arrays, masks), and runs `x[index]` for a batch.

An index is split into a static part (the spec, a hashable param of the op) and operands (integers and arrays). A spec
is a tuple with one entry for each item of the index, the ellipsis expanded:

    ("n",)                      np.newaxis
    ("s", start, stop, step)    a slice with static bounds
    ("d", 0/1, 0/1, 0/1)        a slice; the bounds marked 1 are operands, the others absent
    ("i",)                      an integer: the next operand
    ("a",)                      an integer array: the next operand
    ("b", ndim)                 a boolean array over `ndim` axes: the next operand

The batching rule has three steps, made of ops on arrays with a leading batch axis: slices and integers that are equal
for all examples become one basic index (a view); slices whose bounds differ between examples become a gather along
their axis; integer arrays, and integers that differ between examples, become one gather of rows.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import as_size, dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask, same_size
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import WRITE_AXIS, NeedsLoop, ShapeError, Unsupported
from autobatch.ops.rules.padding import mask_padding, to_width, to_widths
from autobatch.ops.rules.row_gather import gather_axis, rows_p, scatter_rows_p
from autobatch.ops.rules.sizes import (
    as_batched,
    broadcast_sizes,
    check_mask_sizes,
    has_lengths,
    lane_count,
    padded_shape,
    reshaped,
    size_per_lane,
    slice_lengths,
    spread_out,
)

Spec = tuple[tuple[Any, ...], ...]
FULL = ("s", None, None, None)
_KNOWN = frozenset((int, type(None)))
_INT = ("i",)
_ARRAY = ("a",)
_NEW = ("n",)
_ROWS: tuple[Spec, ...] = ((), *((_INT, *(FULL,) * rank) for rank in range(64)))  # x[i], by rank


def parse(x: Any, index: Any) -> tuple[Spec, list[Any]]:
    """Split the index of `x[index]` into its spec and operands.

    Raises:
        IndexError: too many indices, two ellipses, or an invalid type of index.
    """
    if type(index) is int:
        rank = ndim_of(x)
        if rank:
            return _ROWS[rank], [np.int64(index)]
    items = index if type(index) is tuple else (index,)
    spec: list[tuple[Any, ...]] = []
    operands: list[Any] = []
    used = 0
    ellipsis = -1
    for item in items:
        kind = type(item)
        if kind is int:
            spec.append(_INT)
            operands.append(np.int64(item))
            used += 1
        elif kind is slice:
            spec.append(_slice(item, operands))
            used += 1
        elif item is None:
            spec.append(_NEW)
        elif item is Ellipsis:
            if ellipsis >= 0:
                raise IndexError("an index can only have a single ellipsis ('...')")
            ellipsis = len(spec)
        else:
            entry, operand = _array(item)
            spec.append(entry)
            operands.append(operand)
            used += entry[1] if entry[0] == "b" else 1
    rank = ndim_of(x)
    if used > rank:
        says = f"too many indices for array: array is {rank}-dimensional, but {used} were indexed"
        raise IndexError(says)
    if used < rank:
        place = ellipsis if ellipsis >= 0 else len(spec)
        spec[place:place] = [FULL] * (rank - used)
    return tuple(spec), operands


def _slice(item: slice, operands: list[Any]) -> tuple[Any, ...]:
    bounds = (item.start, item.stop, item.step)
    if _KNOWN.issuperset(map(type, bounds)):
        return ("s", *bounds)
    if any(rank_of(bound) == BATCH_RANK for bound in bounds):
        if any(is_boxed(x) and dtype_of(x).kind not in "iu" and getattr(x, "scalar", None) is not bool for x in bounds):
            raise TypeError("slice indices must be integers or None or have an __index__ method")
        operands += [x if is_boxed(x) else np.int64(operator.index(x)) for x in bounds if x is not None]
        return ("d", *(int(bound is not None) for bound in bounds))
    return ("s", *(None if bound is None else as_size(bound) for bound in bounds))


def _array(item: Any) -> tuple[tuple[Any, ...], Any]:
    if not is_boxed(item):
        if isinstance(item, list | tuple) and any(is_boxed(part) for part in item):
            item = np.stack(item)
        else:
            item = np.asarray(item) if not (isinstance(item, list | tuple) and len(item) == 0) else np.empty(0, np.intp)
    dtype, rank = dtype_of(item), ndim_of(item)
    if dtype.kind == "b":
        if rank == 0:
            raise Unsupported("indexing with a single boolean")
        return ("b", rank), item
    if dtype.kind not in "iu":
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are "
            "valid indices"
        )
    return (_INT if rank == 0 else _ARRAY), item


def build(spec: Spec, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The NumPy index for a spec and plain operands: the inverse of `parse`."""
    static = _static(spec)
    if static is not None and not operands:
        return static
    out: list[Any] = []
    at = 0
    for entry in spec:
        kind = entry[0]
        if kind == "s":
            out.append(slice(entry[1], entry[2], entry[3]))
        elif kind == "n":
            out.append(None)
        elif kind == "i":
            out.append(int(operands[at]))
            at += 1
        elif kind == "d":
            bounds: list[Any] = []
            for present in entry[1:]:
                bounds.append(int(operands[at]) if present else None)
                at += present
            out.append(slice(*bounds))
        else:
            out.append(operands[at])
            at += 1
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def _static(spec: Spec) -> tuple[Any, ...] | None:
    if any(entry[0] not in "sn" for entry in spec):
        return None
    return tuple(slice(*entry[1:]) if entry[0] == "s" else None for entry in spec)


@functools.lru_cache(maxsize=4096)
def is_basic(spec: Spec) -> bool:
    """True if `x[index]` is a view in NumPy: integers, slices and new axes only."""
    return all(entry[0] in "sind" for entry in spec)


@functools.lru_cache(maxsize=4096)
def is_static(spec: Spec) -> bool:
    """True if the result's shape does not depend on operand values."""
    return all(entry[0] in "sina" for entry in spec)


def shown(spec: Spec) -> str:
    """A spec in the notation of an index, for messages; "int", "array" and "mask" stand for operands.

    >>> shown((("n",), ("i",), ("s", 1, None, None), ("d", 0, 1, 0), ("a",), ("b", 2)))
    '[None, int, 1:, :int, array, mask]'
    """
    return f"[{', '.join(map(_shown_entry, spec))}]"


def _shown_entry(entry: tuple[Any, ...]) -> str:
    kind = entry[0]
    if kind == "s":
        bounds = ["" if bound is None else str(bound) for bound in entry[1:]]
    elif kind == "d":
        bounds = ["int" if known else "" for known in entry[1:]]
    else:
        return {"n": "None", "i": "int", "a": "array", "b": "mask"}[kind]
    return ":".join(bounds if bounds[2] else bounds[:2])


def on_axis(axis: int, item: Any) -> tuple[Any, ...]:
    """The index that applies `item` along one axis."""
    return (*(slice(None),) * axis, item)


def getitem_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """The batching rule of `x[index]`: one basic index of the padded data if possible, else the three steps."""
    x, *index = operands
    spec: Spec = params["spec"]
    if isinstance(x, Batched):
        if not index and Lengths not in map(type, x.sizes):
            basic = _basic_static(x.sizes, spec)
        else:
            basic = basic_index(x.sizes, spec, index)
        if basic is not None:
            if is_boxed(x.data):  # the same spec after a full slice of the batch axis
                return Batched(op(x.data, *index, spec=(FULL, *spec)), basic[1])
            return Batched(x.data[basic[0]], basic[1])
        data, sizes = x.data, x.sizes
    else:
        data, sizes = x, tuple(shape_of(x))
    return _Reader(data, sizes, isinstance(x, Batched), lane_count(operands)).read(spec, index)


def basic_index(
    sizes: Sequence[Size], spec: Spec, index: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Size, ...]] | None:
    """One NumPy index for the padded data, and the result's sizes; None if examples need different positions."""
    if index and any(isinstance(operand, Batched) for operand in index):
        return None
    out: list[Any] = [slice(None)]
    new: list[Size] = []
    operands = iter(index)
    axis = 0
    for entry in spec:
        kind = entry[0]
        if kind == "n":
            out.append(None)
            new.append(1)
            continue
        if kind not in "si":
            return None
        size = sizes[axis]
        if kind == "i":
            at = int(next(operands))
            if isinstance(size, Lengths):
                if at < 0 or (at and size.is_unknown):
                    return None
                if not size.is_unknown:
                    _check_lanes(at, size.values, axis)
            elif not -size <= at < size:
                raise IndexError(f"index {at} is out of bounds for axis {axis} with size {size}")
            out.append(at)
        else:
            _, start, stop, step = entry
            if entry == FULL:
                new.append(size)
            elif not isinstance(size, Lengths):
                new.append(len(range(*slice(start, stop, step).indices(size))))
            elif size.is_unknown and step in (None, 1) and (start or 0) >= 0 and (stop or -1) < 0:
                new.append(size.plus((stop or 0) - (start or 0)))
            elif (start or 0) < 0 or (stop is not None and stop < 0) or (step is not None and step < 0):
                return None
            else:
                last = size.values if stop is None else np.minimum(size.values, stop)
                new.append(Lengths(-(-np.maximum(last - (start or 0), 0) // (step or 1))))
            out.append(slice(start, stop, step))
        axis += 1
    return tuple(out), tuple(new)


@functools.lru_cache(maxsize=4096)
def _basic_static(sizes: tuple[Size, ...], spec: Spec) -> tuple[tuple[Any, ...], tuple[Size, ...]] | None:
    """`basic_index`, cached, for static sizes and an index without operands."""
    return basic_index(sizes, spec, ())


def _check_lanes(at: int, lengths: np.ndarray, axis: int) -> None:
    bad = at >= lengths
    if bad.any():
        lane = int(np.argmax(bad))
        says = f"index {at} is out of bounds for axis {axis} with size {lengths[lane]}"
        raise IndexError(f"{says} in example {lane}")


class _Reader:
    """A read in progress: the data so far, its sizes, and `batched`: whether the data has a batch axis already."""

    __slots__ = ("batched", "data", "lanes", "sizes", "unique")

    def __init__(self, data: Any, sizes: Sequence[Size], batched: bool, lanes: int) -> None:
        self.data = data
        self.sizes = list(sizes)
        self.batched = batched
        self.lanes = lanes
        self.unique = False

    def read(self, spec: Spec, index: Sequence[Any]) -> Batched:
        entries = self._expand_masks(spec, index)
        gathers: list[tuple[int, Any]] = []
        advanced: list[tuple[int, Any]] = []
        layout: list[Any] = []  # per entry: "n", "x" (advanced), "i" (integer), or the axis that is kept
        axis = 0
        for kind, value in entries:
            if kind == "n":
                layout.append("n")
                continue
            if kind == "s":
                if any(part is not None for part in value):
                    gathers.append((axis, value))
                layout.append(axis)
            else:
                advanced.append((axis, value))
                layout.append("x" if kind == "a" or any(k == "a" for k, _ in entries) else "i")
            axis += 1
        for axis, bounds in gathers:
            self._slice(axis, bounds)
        if not advanced:
            return self._finish(layout, [], 0)
        block, kept = self._gather(advanced)
        order = {old: new for new, old in enumerate(kept)}
        return self._finish([order.get(item, item) if type(item) is int else item for item in layout], block, len(kept))

    def _expand_masks(self, spec: Spec, index: Sequence[Any]) -> list[tuple[str, Any]]:
        operands = iter(index)
        entries: list[tuple[str, Any]] = []
        axis = 0
        for entry in spec:
            kind = entry[0]
            if kind == "n":
                entries.append(("n", None))
                continue
            if kind == "s":
                entries.append(("s", entry[1:]))
            elif kind == "d":
                entries.append(("s", tuple(next(operands) if present else None for present in entry[1:])))
            elif kind == "b":
                mask = next(operands)
                self.unique = len(index) == 1
                check_mask_sizes(mask, self.sizes[axis:], axis)
                for part in nonzero_lanes(mask) if isinstance(mask, Batched) else np.asarray(mask).nonzero():
                    entries.append(("a", part))
                axis += entry[1] - 1
            else:
                entries.append((kind, next(operands)))
            axis += 1
        return entries

    def _slice(self, axis: int, bounds: tuple[Any, ...]) -> None:
        values = [bound.data if isinstance(bound, Batched) else bound for bound in bounds]
        lane_bounds = tuple(None if each is None else np.asarray(each).astype(np.int64) for each in values)
        size = self.sizes[axis]
        if not isinstance(size, Lengths) and all(bound is None or bound.ndim == 0 for bound in lane_bounds):
            item = slice(*(None if bound is None else int(bound) for bound in lane_bounds))
            self.data = self.data[(slice(None),) * (axis + self.batched) + (item,)]
            self.sizes[axis] = len(range(*item.indices(size)))
            return
        first, lengths, step = slice_lengths(size_per_lane(size), *lane_bounds)
        first, lengths, step = (np.broadcast_to(part, (self.lanes,)) for part in (first, lengths, step))
        width = int(lengths.max(initial=0))
        if self.batched and not first.any() and (step == 1).all():
            self.data = self.data[(slice(None),) * (axis + 1) + (slice(0, width),)]
            self.sizes[axis] = Lengths(lengths)
            if is_boxed(self.data):  # cut-off elements are padding now: no cotangent from them
                self.data = mask_padding(self.data, self.sizes)
            return
        steps = np.arange(width)
        positions = first[:, None] + step[:, None] * steps
        positions = np.where(steps < lengths[:, None], positions, -1)
        self.data = gather_axis(self.data, axis, positions, unique=self.batched, shared=not self.batched)
        self.batched = True
        self.sizes[axis] = Lengths(lengths)

    def _gather(self, advanced: list[tuple[int, Any]]) -> tuple[list[Size], list[int]]:
        """Read the rows selected by the index arrays: the data becomes (B, *block, *kept). Returns (block, kept)."""
        axes = tuple([axis for axis, _ in advanced])
        kept = [axis for axis in range(len(self.sizes)) if axis not in axes]
        try:
            block = broadcast_sizes([v.sizes if isinstance(v, Batched) else shape_of(v) for _, v in advanced])
        except ShapeError as error:
            raise IndexError(f"shape mismatch: indexing arrays could not be broadcast together: {error}") from None
        lead = int(self.batched)
        widths = shape_of(self.data)
        out_sizes = [*block, *(self.sizes[axis] for axis in kept)]
        padded = padded_shape(self.lanes, out_sizes, dtype_of(self.data).itemsize)[1 : len(block) + 1]
        limits = [self.sizes[axis] for axis in axes]
        values = [value for _, value in advanced]
        of_lengths = any(map(has_lengths, (limits, block, *(v.sizes for v in values if isinstance(v, Batched)))))
        data = [v.data if isinstance(v, Batched) else v for v in values]
        if any(map(is_boxed, data)) and not of_lengths:  # recorded, and checked whenever it runs
            own = tuple([isinstance(v, Batched) for v in values])
            src = row_numbers_p(*data, own=own, sizes=tuple(limits), axes=axes, lanes=self.batched, block=tuple(block))
        else:
            pairs = [(size, widths[axis + lead]) for axis, size in zip(axes, limits, strict=True)]
            src = _row_numbers(values, pairs, axes, self.lanes if self.batched else 0, block, padded)
        rows = math.prod(widths[axis + lead] for axis in axes) * (self.lanes if self.batched else 1)
        if tuple(shape_of(src)) != (self.lanes, *padded):
            src = spread_out(src, (self.lanes, *padded))
        valid = padding_mask(block, padded)
        if valid is not None:
            src = np.where(valid, src, -1)
        order = [*range(lead), *(axis + lead for axis in axes), *(axis + lead for axis in kept)]
        table = self.data if order == sorted(order) else np.transpose(self.data, order)
        shape = (rows, *(widths[axis + lead] for axis in kept))
        if tuple(shape_of(table)) != shape:  # no reshape of a table: its cotangent stays sparse
            table = reshaped(table, shape)
        self.data = rows_p(table, src, unique=self.unique and self.batched)
        self.batched = True
        self.sizes = out_sizes
        return list(block), kept

    def _finish(self, layout: list[Any], block: list[Size], kept: int) -> Batched:
        """Move the block of advanced axes to its place by NumPy's rules, and insert the new axes."""
        marks = [place for place, item in enumerate(layout) if item == "x"]
        if not block or not marks:
            before = 0
        elif marks[-1] - marks[0] + 1 == len(marks):
            before = sum(type(item) is int for item in layout[: marks[0]])
        else:
            before = 0
            layout = ["x", *(item for item in layout if item != "x")]
        rank = len(block)
        if before and rank:
            order = [*range(rank, rank + before), *range(rank), *range(rank + before, rank + kept)]
            self.data = np.transpose(self.data, (0, *(axis + 1 for axis in order)))
            self.sizes = [self.sizes[axis] for axis in order]
        if "n" in layout:
            index: list[Any] = [slice(None)]
            done = False
            for item in layout:
                if item == "n":
                    index.append(None)
                elif item == "x" and not done:
                    index.extend([slice(None)] * rank)
                    done = True
                elif type(item) is int:
                    index.append(slice(None))
            self.data = self.data[tuple(index)]
            sizes = iter(self.sizes)
            self.sizes = [1 if item is None else next(sizes) for item in index[1:]]
        return Batched(self.data, self.sizes)


def _row_numbers(
    ids: Sequence[Any],
    limits: Sequence[tuple[Size, int]],
    axes: Sequence[int],
    lanes: int,
    block: Sequence[Size],
    padded: Sequence[int],
) -> np.ndarray:
    """The row that these positions select, where the axes that they index come first and are one, examples included.

    Args:
        ids: for each of `axes` the positions; limits: its size, and its width in the padded data.
        lanes: the number of examples that have their own rows; 0 if they share them.
        block, padded: the sizes of the positions broadcast together, and their padded shape.

    Raises:
        IndexError: a position is out of bounds; NumPy's message and the example.
    """
    src: Any = np.arange(lanes).reshape((lanes,) + (1,) * len(block)) if lanes else 0
    for axis, value, (size, width) in zip(axes, ids, limits, strict=True):
        src = src * width + aligned_ids(value, size, axis, block, padded)
    return np.asarray(src)


def _run_row_numbers(
    *ids: Any, own: Sequence[bool], sizes: Sequence[int], axes: Sequence[int], lanes: bool, block: Sequence[int]
) -> np.ndarray:
    count = len(ids[own.index(True)])
    src: Any = np.arange(count).reshape(count, *[1] * len(block)) if lanes else 0
    for x, each, size in zip(ids, own, sizes, strict=True):
        simple = each and x.dtype == np.int64 and x.shape == (count, *block) and x.size
        if not simple or np.maximum.reduce(x.view(np.uint64), axis=None) >= size:  # negative ones are large then
            break
        src = src * size + x
    else:
        return src  # nearly always
    values = [Batched(x, shape_of(x)[1:]) if each else x for x, each in zip(ids, own, strict=True)]
    src = _row_numbers(values, [(size, size) for size in sizes], axes, count if lanes else 0, block, block)
    return spread_out(src, (count, *block))


# row_numbers(*ids, own=, sizes=, axes=, lanes=, block=): (B, *block) rows of `_row_numbers`, for ids of static sizes.
# `own`: which ids have the batch axis.
row_numbers_p = Op("row_numbers", _run_row_numbers, kind="index")


def nonzero_lanes(mask: Batched) -> list[Batched]:
    """The positions where each example's mask is True: one batch of positions per axis, all of the same lengths."""
    data = np.asarray(mask.data).astype(bool)
    valid = padding_mask(mask.sizes, data.shape[1:])
    found = np.nonzero(data if valid is None else data & valid)
    lengths = Lengths(np.bincount(found[0], minlength=data.shape[0]))
    inside = lengths.mask(lengths.max())
    out = []
    for part in found[1:]:
        positions = np.zeros(inside.shape, np.int64)
        positions[inside] = part
        out.append(Batched(positions, (lengths,)))
    return out


def aligned_ids(value: Any, size: Size, axis: int, block: Sequence[Size], padded: Sequence[int]) -> np.ndarray:
    """Checked, non-negative positions, broadcastable to (B, *padded); 0 at padding.

    Raises:
        IndexError: a position is out of bounds; NumPy's message and the example.
    """
    batched = isinstance(value, Batched)
    ids = np.asarray(value.data if batched else value).astype(np.int64)
    rank = ids.ndim - batched
    if not batched:
        ids = ids[None]
    sizes = value.sizes if batched else ids.shape[1:]
    for place, have in enumerate(sizes):
        want = block[place + len(block) - rank]
        if not same_size(have, want) and have != 1:
            raise NeedsLoop("index arrays whose lengths are 1 in some examples only", instead=WRITE_AXIS)
        if have != 1:
            ids = to_width(ids, place + 1, padded[place + len(block) - rank])
    inside = padding_mask(sizes, ids.shape[1:])
    if not isinstance(size, Lengths):
        clean = ids if inside is None else np.where(inside, ids, 0)
        if not clean.size or (clean.min() >= 0 and clean.max() < size):
            return clean.reshape(clean.shape[:1] + (1,) * (len(block) - rank) + clean.shape[1:])
    limit = size_per_lane(size).reshape((-1,) + (1,) * rank)
    bad = (ids < -limit) | (ids >= limit)
    if inside is not None:
        bad = bad & inside
    if rank and bad.any():  # NumPy does not check index arrays that broadcast to an empty shape
        empty = [np.equal(each.values if isinstance(each, Lengths) else each, 0) for each in block]
        bad = bad & ~functools.reduce(np.logical_or, empty).reshape((-1,) + (1,) * rank)
    if bad.any():
        where = np.unravel_index(int(np.argmax(bad)), bad.shape)
        found = np.broadcast_to(ids, bad.shape)[where]
        most = np.broadcast_to(limit, bad.shape)[where]
        note = f" in example {where[0]}" if bad.shape[0] > 1 or batched else ""
        raise IndexError(f"index {found} is out of bounds for axis {axis} with size {most}{note}")
    ids = np.where(ids < 0, ids + limit, ids)
    if inside is not None:
        ids = np.where(inside, ids, 0)
    return ids.reshape(ids.shape[:1] + (1,) * (len(block) - rank) + ids.shape[1:])


def flat_positions(x: Batched, spec: Spec, index: Sequence[Any]) -> tuple[np.ndarray, tuple[Size, ...]]:
    """The position in the flattened padded data of each element of `x[index]` (-1: padding), and the result's sizes."""
    shape = tuple(shape_of(x.data))
    places = np.arange(int(np.prod(shape))).reshape(shape)
    read = getitem_rule(None, (Batched(places, x.sizes), *index), {"spec": spec})  # type: ignore[arg-type]
    mask = padding_mask(read.sizes, read.data.shape[1:])
    return (read.data if mask is None else np.where(mask, read.data, -1)), read.sizes


def scatter_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """The batching rule of a read's transpose: values are added at the positions that they were read from."""
    values, *index = operands
    shape, lanes = params["shape"], lane_count(operands)
    like = Batched(np.broadcast_to(np.int8(0), (lanes, *shape)), shape)
    src, _ = flat_positions(like, params["spec"], index)
    data = to_widths(as_batched(values, lanes).data, src.shape[1:])
    unique = all(entry[0] != "a" for entry in params["spec"])
    rows = lanes * int(np.prod(shape))
    return Batched(reshaped(scatter_rows_p(data, src, rows=rows, unique=unique), (lanes, *shape)), shape)
