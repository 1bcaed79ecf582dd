"""Item and attribute reads, writes, and in-place updates, for values that may differ by lane."""

import operator
from collections import defaultdict
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.any_batch import Batch, narrowed, per_lane
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import broadcast, stack_results
from autobatch.core.batched import Batched
from autobatch.core.current_region import current_region
from autobatch.core.op import is_boxed
from autobatch.errors import BUILD_ARRAYS, COPY_FIRST, OWN_LENGTHS, RETURN_ARRAYS, RETURN_VALUES, BadIdError, NeedsLoop
from autobatch.facts.operators import ARITHMETIC
from autobatch.facts.types import VALUES
from autobatch.lockstep.lanes.region import (
    UNBOUND,
    current_root,
    freeze_all,
    freeze_part,
    is_made,
    register_made,
    require_made_here,
    require_unaliased,
)
from autobatch.lockstep.regions.loops import for_each
from autobatch.lockstep.values.lane_operators import BINARY, refuse_hooks
from autobatch.lockstep.values.lists import LaneList, is_lane_dependent
from autobatch.lockstep.values.sequences import LaneSequence
from autobatch.ops.numpy import indexing
from autobatch.ops.rules.aliasing import is_scalar, zero_d
from autobatch.ops.rules.ragged_checks import as_ids, check_ids
from autobatch.tables.lookup import PackedRows, lookup_p
from autobatch.tables.table import EmbeddingTable

_UPDATES = {each.symbol: each.inplace for each in ARITHMETIC}
_PLAIN = {each.symbol: each.function for each in ARITHMETIC}


def is_per_lane(index: Any) -> bool:
    """True if an index contains a per-lane value, at any depth of tuples and slices."""
    if isinstance(index, tuple):
        return any(map(is_per_lane, index))
    if isinstance(index, slice):
        return is_per_lane(index.start) or is_per_lane(index.stop) or is_per_lane(index.step)
    return isinstance(index, Batch) or (isinstance(index, LaneList) and is_lane_dependent(index))


def _as_index(index: Any) -> Any:
    if isinstance(index, LaneList):
        return list(index)
    return tuple(map(_as_index, index)) if isinstance(index, tuple) else index


def getitem(x: Any, index: Any) -> Any:
    """Like `x[index]`, but `x` and `index` may differ by lane."""
    cls = type(x)
    if cls is dict or cls is tuple:
        if type(index) is str or type(index) is int:
            return x[index]
    elif cls is MaskedBatch:
        if type(index) is LaneList or type(index) is tuple:
            index = _as_index(index)
        region = current_region()
        if x.scalar is not None and region is not None:
            raise TypeError(f"{x.scalar.__name__!r} object is not subscriptable")
        if region is not None and x.region is not region:
            out = region.narrow(x)[index]
            if isinstance(out, Batch) and not is_scalar(out):  # a copy: a write to x would miss it
                freeze_part(out, x)
            return out
        return x[index]
    elif cls is np.ndarray:
        if type(index) is LaneList or type(index) is tuple:
            index = _as_index(index)
        if is_deferrable_lookup(x, index):
            return deferred_lookup(x, index)
        return indexing.getitem(x, index) if is_per_lane(index) else x[index]
    elif cls is LaneList:
        return x.part(index) if isinstance(index, slice) else x.item(index)
    elif cls is PackedBatch and isinstance(x.values, PackedBatch):
        raise NeedsLoop("an item of a list of arrays of different lengths", instead=BUILD_ARRAYS)
    elif isinstance(x, LaneSequence):
        raise NeedsLoop("an item of a sequence whose length differs by example", instead=OWN_LENGTHS)
    index = _as_index(index)
    refuse_hooks(x, "__getitem__", "__missing__")
    if isinstance(x, defaultdict) and current_root() is not None and (is_per_lane(index) or index not in x):
        require_made_here(x, "a read of an item, which may make it,")
    if isinstance(x, dict) and is_per_lane(index) and is_made(x) and current_root() is not None:
        raise NeedsLoop("a key that differs by example, of a dict of the call", instead=OWN_LENGTHS)
    if type(index) is PackedBatch and is_deferrable_lookup(x._ab_value if cls is TapeArray else x, index):
        return deferred_lookup(x, index)
    if is_boxed(x) or not is_per_lane(index) or hasattr(type(x), "_ab_lookup") or hasattr(type(x), "_ab_internal"):
        return x[index]  # these handle per-lane values themselves
    found = stack_results(per_lane(operator.getitem, (x, index), {}))
    freeze_all(found)
    return found


def setitem(value: Any, x: Any, index: Any) -> None:
    """Like `x[index] = value`, but operands may differ by lane; NeedsLoop if other names would miss the write."""
    if isinstance(x, MaskedBatch):
        index = _as_index(index)
        if type(value) is MaskedBatch and value.sizes and value.region is not x.region:
            # a new batch object, so that the old one, which may stand for a part of x, can be freed
            value = MaskedBatch.in_region(Batched(value.data, value.sizes, value.scalar), value.region)
        require_unaliased(x)
        if is_scalar(x):
            raise NeedsLoop("a write into a scalar", instead=COPY_FIRST)
        if x.dtype.hasobject:  # an item may be an array, separate for each lane
            raise NeedsLoop("a write into an array of objects", instead=COPY_FIRST)
        if isinstance(value, LaneList):
            value = list(value)
        elif isinstance(value, ObjectBatch):
            value = _as_floats(value, x.dtype)
        x[index] = value
    elif isinstance(x, LaneList):
        x.set(index, value)
    elif isinstance(x, ObjectBatch):
        raise NeedsLoop("a write into objects that differ by example", instead=COPY_FIRST)
    elif current_region() is None:
        x[index] = value
    else:
        refuse_hooks(x, "__setitem__")
        if is_per_lane(index):
            raise NeedsLoop("a write at a key that differs by example", instead=OWN_LENGTHS)
        require_made_here(x, "a write into an item")
        x[index] = value


def _as_floats(value: ObjectBatch, dtype: np.dtype) -> Any:
    """Python and NumPy floats mixed by lane, e.g. from `max(0.0, x)`, as a batch of the float dtype of the array."""
    if dtype.kind != "f" or not all(isinstance(each, float | np.floating) for each in value.values):
        return value
    return MaskedBatch.in_region(Batched(np.array(value.values, dtype), ()), value.region)


def setattribute(value: Any, x: Any, name: str) -> None:
    """`x.name = value`; always raises NeedsLoop in lock-step."""
    if current_region() is not None:
        raise NeedsLoop(f"setting an attribute of a {type(x).__name__}", instead=RETURN_VALUES)
    setattr(x, name, value)


def inplace_update(symbol: str, x: Any, value: Any) -> Any:
    """`x += value` and the other in-place operators; returns the new value of the variable."""
    if isinstance(x, MaskedBatch | PackedBatch):
        if is_scalar(x):  # scalars are immutable
            return _PLAIN[symbol](x, value)
        require_unaliased(x)
        return _UPDATES[symbol](x, value)
    if isinstance(x, VALUES):
        return BINARY[symbol](x, value)
    if isinstance(x, LaneList):
        if symbol != "+" or isinstance(value, Batch | np.ndarray) or is_boxed(value):
            raise NeedsLoop("a list is updated in place by more than items", instead=BUILD_ARRAYS)
        for_each(value if not isinstance(value, LaneList) or value.is_spread else list(value.items), x.append)
        return x
    if isinstance(x, ObjectBatch):
        if any(not isinstance(each_value, VALUES) for each_value in x.values):
            raise NeedsLoop("an update in place of objects that differ by example", instead=RETURN_ARRAYS)
        return _PLAIN[symbol](x, value)
    if current_region() is None:
        return _UPDATES[symbol](x, value)
    if is_scalar(x):  # a number on a tape
        return _PLAIN[symbol](x, value)
    raise NeedsLoop(f"an update in place of a {type(x).__name__}")


def as_lane_arrays(value: Any) -> Any:
    """An array that the function made and will write into: a padded batch with one array per lane."""
    region = current_region()
    if isinstance(value, PackedBatch) and not isinstance(value.values, PackedBatch):
        return value.to_masked()
    if region is not None and (type(value) is np.ndarray or type(value) is TapeArray) and not is_scalar(value):
        return zero_d(broadcast(value, region.count))  # type: ignore[attr-defined]
    return value


def dict_display(*pairs: tuple[Any, Any]) -> Any:
    """A dict display from (key, value) pairs; the pair (UNBOUND, mapping) stands for `**mapping`."""
    out: dict[Any, Any] = {}
    for key, value in pairs:
        if is_per_lane(key):
            raise NeedsLoop("a key that differs by example", instead=OWN_LENGTHS)
        out.update(value if key is UNBOUND else {key: value})
    return out if current_region() is None else register_made(out)


def wrap_new_container(display: Any) -> Any:
    """Wrap a new list as a `LaneList`, and record a new dict or set as made, so that converted code may mutate it."""
    if current_region() is None:
        return display
    if type(display) is list:
        return LaneList(display)
    if type(display) is set and any(map(is_lane_dependent, display)):
        raise NeedsLoop("a set of values that differ by example")
    return register_made(display) if not is_made(display) else display


_FLOATS = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))


def is_deferrable_lookup(table: Any, index: Any) -> bool:
    """True if `table[index]` is a look-up whose gather may be deferred, since nothing changes the table until then.

    A NumPy array qualifies if the call did not make it (so the call does not write into it) and no id is negative.
    """
    cls = type(table)
    if cls is np.ndarray:
        if table.ndim != 2 or table.base is not None or table.dtype not in _FLOATS or is_made(table):
            return False
    elif cls is not EmbeddingTable:
        return False
    ids = index.values if type(index) is PackedBatch else None
    return type(ids) is np.ndarray and ids.ndim == 1 and _are_ids(ids, cls)


def _are_ids(ids: np.ndarray, cls: type) -> bool:
    return ids.dtype.kind in "iu" and (cls is not np.ndarray or ids.min(initial=0) >= 0)


def deferred_lookup(table: Any, index: Any) -> Any:
    """`table[index]` with the gather deferred, so that a reduction over each example's rows fuses into one bag launch.

    Raises:
        BadIdError: an id is not in the table.
    """
    index = narrowed(index)
    ids = as_ids(index.values)
    try:
        check_ids(ids, table.shape[0])
    except BadIdError:
        return lookup_p(table, index)  # its error says which example has the id
    return PackedBatch.pending(PackedRows(table, ids), index.offsets, index.size_of_first)
