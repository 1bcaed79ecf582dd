"""Reads and writes of items and attributes, and updates in place, for values that may be per lane."""

import operator
from types import MemberDescriptorType, MethodType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import TapeArray
from autobatch.batches.base import Batch, narrowed, per_lane
from autobatch.batches.examples import broadcast, stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.batched import Batched
from autobatch.core.lanes import current_region, set_region
from autobatch.core.op import is_boxed
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop
from autobatch.lockstep.ahead import looked_up
from autobatch.lockstep.boxes import LaneBox, boxed
from autobatch.lockstep.choosing import each_object
from autobatch.lockstep.classes import BINARY, found, hook
from autobatch.lockstep.joins import meet
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import each
from autobatch.lockstep.merging import UNBOUND
from autobatch.lockstep.ownership import freeze, home_of, is_made, remember, require_own, require_whole
from autobatch.lockstep.regions import Subset, current_root, lanes_within
from autobatch.lockstep.rows import Choice, Held
from autobatch.lockstep.sequences import LaneSequence, nested_item
from autobatch.lockstep.tables import is_table, rows_later
from autobatch.ops.numpy import indexing
from autobatch.ops.rules.aliasing import is_scalar, zero_d
from autobatch.tables.table import EmbeddingTable

__all__ = [
    "delitem",
    "dict_of",
    "element",
    "getitem",
    "list_of",
    "made",
    "own",
    "set_of",
    "setattribute",
    "setitem",
    "setitem_in",
    "update",
]

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
_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_IMMUTABLE = (int, float, complex, bool, str, bytes, tuple, np.generic, frozenset, type(None))


def is_lanes(index: Any) -> bool:
    """Whether an index holds a per-lane value, at any depth of tuples and slices."""
    if isinstance(index, tuple):
        return any(map(is_lanes, index))
    if isinstance(index, slice):
        return is_lanes(index.start) or is_lanes(index.stop) or is_lanes(index.step)
    return isinstance(index, Batch) or (
        isinstance(index, Held) and (index.is_spread or any(map(is_lanes, getattr(index, "items", ()))))
    )


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
        if x.scalar is not None and region is not None:
            raise TypeError(f"{x.scalar.__name__!r} object is not subscriptable")
        if region is not None and x.region is not region:
            out = region.narrow(x)[index]
            if isinstance(out, Batch) and not is_scalar(out):  # of a copy, which no write reaches
                freeze(x, out)
                freeze(out)
            return out
        return x[index]
    elif kind is np.ndarray:
        if type(index) is LaneList or type(index) is tuple:
            index = _as_index(index)
        if type(index) is MaskedBatch:
            known = looked_up(x, index)
            if known is not None:
                return known
        if is_table(x, index):
            return rows_later(x, index)
        return indexing.getitem(x, index) if is_lanes(index) else x[index]
    elif kind is LaneList:
        return x.part(index) if isinstance(index, slice) else x.item(index)
    elif kind is LaneBox:
        return x.item(index)
    elif kind is PackedBatch and isinstance(x.values, PackedBatch):
        return _nested(narrowed(x), index)
    elif isinstance(x, LaneSequence):
        raise NeedsLoop("an item of a sequence whose length differs by example")
    if kind is Choice:
        return each_object(x, lambda each: getitem(each, index))
    index = _as_index(index)
    root = current_root()
    if root is not None and (method := hook(x, "__getitem__")) is not None:
        return root.call(method, index)
    if type(index) is MaskedBatch and (kind is TapeArray or kind is EmbeddingTable):
        known = looked_up(x, index)
        if known is not None:
            return known
    if type(index) in (MaskedBatch, PackedBatch) and is_table(x.value if kind is TapeArray else x, index):
        return rows_later(x, index)
    if is_boxed(x) or not is_lanes(index) or hasattr(x, "_ab_lookup"):  # the last: a table, which looks up for all
        return x[index]
    return stack_results(per_lane(operator.getitem, (x, index), {}))


def element(x: Any, index: Any) -> Any:
    """`x[index]` for a write into it: of a container the array itself that each lane has there, not a copy."""
    return x.element(index) if isinstance(x, LaneList | LaneBox) else getitem(x, index)


def _nested(x: Any, index: Any) -> Any:
    """`x[index]` of lists of arrays of different lengths."""
    place = getattr(narrowed(index), "data", index)
    if not isinstance(place, int) and getattr(index, "scalar", None) is not int:
        raise NeedsLoop("a part of a list of arrays of different lengths")
    place = np.where(np.less(place, 0), place + x.lengths, place)
    if ((place < 0) | (place >= x.lengths)).any():
        raise IndexError("list index out of range")
    return nested_item(x, np.arange(x.batch_size), place)


def setitem(value: Any, x: Any, index: Any) -> None:
    """`x[index] = value`."""
    if type(x) is Choice:
        each_object(x, lambda each: setitem(value, each, index))
    elif isinstance(x, MaskedBatch):
        index = _as_index(index)
        if type(value) is MaskedBatch and value.sizes and value.region is not x.region:
            # what is written was read before: if nobody else has it, it is no other name for a part of x any more
            value = MaskedBatch.in_region(Batched(value.data, value.sizes, value.scalar), value.region)
        require_whole(x)
        if is_scalar(x):
            raise NeedsLoop("a write into a scalar")
        if isinstance(value, LaneList):
            value = list(value)
        x[index] = value
    elif isinstance(x, LaneList | LaneBox):
        x.set(index, value)
    elif isinstance(x, ObjectBatch):
        raise NeedsLoop("a write into objects that differ by example")
    elif current_region() is None:
        x[index] = value
    elif (method := hook(x, "__setitem__")) is not None:
        current_root().call(method, index, value)  # type: ignore[union-attr]
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
    if type(x) is Choice:
        each_object(x, lambda each: delitem(each, index))
    elif isinstance(x, LaneList | LaneBox):
        x.delete(index)
    elif isinstance(x, Batch) or is_lanes(index):
        raise NeedsLoop("del of an item that differs by example")
    elif (method := hook(x, "__delitem__")) is not None:
        current_root().call(method, index)  # type: ignore[union-attr]
    else:
        require_own(x, "del of an item")
        del x[index]


def setattribute(value: Any, x: Any, name: str) -> None:
    """`x.name = value`."""
    if type(x) is Choice:
        each_object(x, lambda each: setattribute(value, each, name))
        return
    if isinstance(x, Batch):
        raise NeedsLoop("an attribute of objects that differ by example is set")
    region: Any = current_region()
    if region is None:
        setattr(x, name, value)
        return
    if (method := hook(x, "__setattr__")) is not None:
        current_root().call(method, name, value)  # type: ignore[union-attr]
        return
    attribute = found(type(x), name)
    if type(attribute) is property and attribute.fset is not None:
        current_root().call(MethodType(attribute.fset, x), value)  # type: ignore[union-attr]
        return
    if hasattr(type(attribute), "__set__") and type(attribute) is not MemberDescriptorType:
        raise NeedsLoop("an attribute is set through a descriptor")
    home = home_of(x, "setting an attribute")
    if home is not region:
        value = _with_others(value, getattr(x, name, UNBOUND), region, home)
    setattr(x, name, value)


def _with_others(value: Any, old: Any, region: Any, home: Any) -> Any:
    """The value of a field for all lanes of an object, where those of a region in it have set theirs."""
    lanes = lanes_within(region, home)
    if lanes is None:
        raise NeedsLoop("an object of other examples is changed")
    others = Subset(home, np.delete(home.lanes(), lanes))
    pieces = [(region, (value,)), (others, (old if others.count else value,))]
    try:
        return meet(pieces, home)[1][0]
    finally:
        set_region(region)


def update(symbol: str, x: Any, value: Any) -> Any:
    """`x += value` and its like: the new value of the name."""
    if isinstance(x, MaskedBatch):
        if is_scalar(x):  # which is never written in place
            return _PLAIN[symbol](x, value)
        require_whole(x)
        return _UPDATES[symbol](x, value)
    if isinstance(x, _IMMUTABLE):
        return BINARY[symbol](x, value)
    if isinstance(x, LaneList):
        if symbol != "+":
            return x.repeat(value) if symbol == "*" else _PLAIN[symbol](x, value)
        if isinstance(value, LaneList):
            x.extend(value)
        else:
            each(value, x.append)
        return x
    if isinstance(x, LaneBox):
        return x.update_in_place(symbol, value)
    if type(x) is Choice:
        return each_object(x, lambda each: update(symbol, each, value))
    if isinstance(x, ObjectBatch):
        if any(not isinstance(each_value, _IMMUTABLE) for each_value in x.values):
            raise NeedsLoop("an update in place of objects that differ by example")
        return _PLAIN[symbol](x, value)
    if is_boxed(x) or current_region() is None:
        return _UPDATES[symbol](x, value)
    name = _NAMES[symbol]
    method = hook(x, f"__i{name}__")
    if method is not None:
        return current_root().call(method, value)  # type: ignore[union-attr]
    if hook(x, f"__{name}__") is not None or hook(value, f"__r{name}__") is not None:
        return BINARY[symbol](x, value)
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


def dict_of(*pairs: tuple[Any, Any]) -> Any:
    """A dict display; a pair of UNBOUND and a mapping stands for `**mapping`."""
    if current_region() is None:
        out: dict[Any, Any] = {}
        for key, value in pairs:
            out.update(value if key is UNBOUND else {key: value})
        return out
    box = LaneBox({})
    for key, value in pairs:
        if key is not UNBOUND:
            box.set(key, value)
        elif isinstance(value, LaneBox):
            each(value.method("items"), lambda pair: box.set(*pair))
        else:
            each(value, lambda name: box.set(name, getitem(value, name)))  # noqa: B023
    return box


def list_of(*parts: tuple[Any, ...]) -> Any:
    """A list display; a pair of UNBOUND and an iterable stands for `*iterable`."""
    if current_region() is None:
        return [item for part in parts for item in (part[1] if part[0] is UNBOUND and len(part) > 1 else part)]
    out = LaneList()
    for part in parts:
        if len(part) == 1:
            out.append(part[0])
        elif isinstance(part[1], LaneList):
            out.extend(part[1])
        else:
            each(part[1], out.append)
    return out


def set_of(*items: Any) -> Any:
    """A set display."""
    if current_region() is None:
        return set(items)
    return LaneBox.made(set, LaneList(items))


def made(display: Any) -> Any:
    """A display of converted code: a list that lanes can append to, or a container that this call may change."""
    if current_region() is None:
        return display
    if type(display) is list:
        return LaneList(display)
    if type(display) in (dict, set):
        return boxed(display)
    return remember(display) if not is_made(display) else display
