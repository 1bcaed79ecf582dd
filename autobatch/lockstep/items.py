"""Reads and writes of items and attributes, and updates in place, for values that may be per lane."""

import operator
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.forms import Batch, narrowed
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed import PackedBatch
from autobatch.batches.results import broadcast, leaves, map_tree, per_lane, stack_results
from autobatch.core.lanes import current_region
from autobatch.core.op import is_boxed
from autobatch.embedding.table import EmbeddingTable
from autobatch.errors import NeedsLoop
from autobatch.lockstep.ahead import looked_up
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import each
from autobatch.lockstep.ownership import freeze, is_made, remember, require_own, require_whole
from autobatch.lockstep.regions import current_root
from autobatch.lockstep.sequences import LaneSequence
from autobatch.ops import indexing
from autobatch.ops.inplace import is_scalar, zero_d

__all__ = ["delitem", "getitem", "made", "own", "setattribute", "setitem", "setitem_in", "update"]

_UPDATES = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv, "//": operator.ifloordiv,
    "%": operator.imod, "**": operator.ipow, "@": operator.imatmul, "&": operator.iand, "|": operator.ior,
    "^": operator.ixor, "<<": operator.ilshift, ">>": operator.irshift,
}  # fmt: skip
_PLAIN = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip
_IMMUTABLE = (int, float, complex, bool, str, bytes, tuple, np.generic, frozenset, type(None))


def is_lanes(index: Any) -> bool:
    """Whether an index holds a per-lane value, at any depth of tuples and slices."""
    if isinstance(index, tuple):
        return any(map(is_lanes, index))
    if isinstance(index, slice):
        return is_lanes(index.start) or is_lanes(index.stop) or is_lanes(index.step)
    return isinstance(index, Batch) or (isinstance(index, LaneList) and any(map(is_lanes, index.items)))


def _as_index(index: Any) -> Any:
    if isinstance(index, LaneList):
        return list(index)
    if isinstance(index, tuple):
        return tuple(map(_as_index, index))
    return index


def getitem(x: Any, index: Any) -> Any:
    """`x[index]`."""
    kind = type(x)
    if kind is dict or kind is tuple:
        if type(index) is str or type(index) is int:
            return x[index]
    elif kind is MaskedBatch:
        if type(index) is LaneList or type(index) is tuple:
            index = _as_index(index)
        region = current_region()
        if region is not None and x.region is not region:
            out = region.narrow(x)[index]
            if isinstance(out, Batch) and not is_scalar(out):  # of a copy, which no write reaches
                freeze(x)
                freeze(out)
            return out
        return x[index]
    elif kind is np.ndarray:
        if type(index) is LaneList or type(index) is tuple:
            index = _as_index(index)
        if type(index) is MaskedBatch:
            found = looked_up(x, index)
            if found is not None:
                return found
        return indexing.getitem(x, index) if is_lanes(index) else x[index]
    elif kind is LaneList:
        return _list_item(x, index)
    elif isinstance(x, LaneSequence):
        raise NeedsLoop("an item of a sequence whose length differs by example")
    index = _as_index(index)
    root = current_root()
    method = getattr(kind, "__getitem__", None)
    if isinstance(method, FunctionType) and root is not None and root.convert(method) is not None:
        return root.call(MethodType(method, x), index)
    if type(index) is MaskedBatch and (kind is TapeArray or kind is EmbeddingTable):
        found = looked_up(x, index)
        if found is not None:
            return found
    if is_boxed(x) or not is_lanes(index) or hasattr(x, "_ab_lookup"):  # the last: a table, which looks up for all
        return x[index]
    return stack_results(per_lane(operator.getitem, (x, index), {}))


def _list_item(x: LaneList, index: Any) -> Any:
    if not x.is_spread:
        if not is_lanes(index):
            out = x.items[index]
            return LaneList(out) if isinstance(index, slice) else out
        return stack_results(per_lane(operator.getitem, (x.items, index), {}))
    if isinstance(index, slice):
        if index == slice(None, None, -1) and x.region is current_region():
            return x.backwards()
        return stack_results(per_lane(operator.getitem, (x.per_lane(), index), {}))
    if x.region is not current_region():  # lanes that are elsewhere may have no such item
        return stack_results(per_lane(operator.getitem, (x.per_lane(), index), {}))
    if isinstance(index, Batch):
        if getattr(index, "scalar", None) is not int:
            return stack_results(per_lane(operator.getitem, (x.per_lane(), index), {}))
        index = narrowed(index)
    return map_tree(freeze, x.item(index))


def setitem(value: Any, x: Any, index: Any) -> None:
    """`x[index] = value`."""
    index = _as_index(index)
    if isinstance(x, MaskedBatch):
        require_whole(x)
        if is_scalar(x):
            raise NeedsLoop("a write into a scalar")
        if isinstance(value, LaneList):
            value = list(value)
        x[index] = value
    elif isinstance(x, LaneList):
        if is_lanes(index):
            raise NeedsLoop("a write at a place in a list that differs by example")
        x.own()[index] = value
    elif isinstance(x, ObjectBatch):
        raise NeedsLoop("a write into objects that differ by example")
    elif current_region() is None:
        x[index] = value
    else:
        require_own(x, "a write into an item")
        if is_lanes(index):
            raise NeedsLoop("a write at a key that differs by example")
        x[index] = value


def setitem_in(x: Any, index: Any, value: Any) -> None:
    """A dict comprehension's store."""
    setitem(value, x, index)


def delitem(x: Any, index: Any) -> None:
    """`del x[index]`."""
    if isinstance(x, LaneList) and not is_lanes(index):
        del x.own()[index]
    elif isinstance(x, Batch) or is_lanes(index):
        raise NeedsLoop("del of an item that differs by example")
    else:
        require_own(x, "del of an item")
        del x[index]


def setattribute(value: Any, x: Any, name: str) -> None:
    """`x.name = value`."""
    if isinstance(x, Batch):
        raise NeedsLoop("an attribute of objects that differ by example is set")
    require_own(x, "setting an attribute")
    setattr(x, name, value)


def update(symbol: str, x: Any, value: Any) -> Any:
    """`x += value` and its like: the new value of the name."""
    if isinstance(x, MaskedBatch):
        if is_scalar(x):  # which is never written in place
            return _PLAIN[symbol](x, value)
        require_whole(x)
        return _UPDATES[symbol](x, value)
    if isinstance(x, _IMMUTABLE):
        return _PLAIN[symbol](x, value)
    if isinstance(x, LaneList):
        if symbol == "+":
            each(value, x.append)
            return x
        return _PLAIN[symbol](x, value)
    if isinstance(x, ObjectBatch):
        if any(not isinstance(each_value, _IMMUTABLE) for each_value in x.values):
            raise NeedsLoop("an update in place of objects that differ by example")
        return _PLAIN[symbol](x, value)
    if is_boxed(x) or current_region() is None:
        return _UPDATES[symbol](x, value)
    require_own(x, "an update in place")
    if any(isinstance(leaf, Batch) for leaf in leaves(value)):
        raise NeedsLoop("an update in place of a shared object by a value per example")
    return _UPDATES[symbol](x, value)


def own(value: Any) -> Any:
    """An array that the function made, and will write into: one for each lane, padded."""
    region = current_region()
    if isinstance(value, PackedBatch) and not isinstance(value.values, PackedBatch):
        return value.to_masked()
    if type(value) is np.ndarray and region is not None:
        return zero_d(broadcast(value, region.count))  # type: ignore[attr-defined]
    return value


def made(display: Any) -> Any:
    """A display of converted code: a list that lanes can append to, or a container that this call may change."""
    if current_region() is None:
        return display
    if type(display) is list:
        return LaneList(display)
    return remember(display) if not is_made(display) else display
