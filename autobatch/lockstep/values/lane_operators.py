"""Operators and reads of attributes in converted code, where a value's class may have code of the user's.

What a class of the user's says of an operator, Python would call as it is written, where `isinstance(x, np.ndarray)` is
false of a batch. So such a class is not for lock-step. Methods and properties are called as converted code.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.core.current_region import current_region
from autobatch.errors import NeedsLoop
from autobatch.facts import operators
from autobatch.lockstep.regions.region import current_root
from autobatch.lockstep.values.lists import LaneList, differs
from autobatch.ops.rules.dispatch import UFUNCS

PLAIN = frozenset({
    MaskedBatch, PackedBatch, LaneList, np.ndarray, int, float, bool, complex, str, bytes, list, tuple, dict,
    set, frozenset, range, slice, type(None), ModuleType, *np.sctypeDict.values(),
})  # fmt: skip


def is_plain(value: Any) -> bool:
    """Whether the value's class is known to have no code of the user's."""
    return type(value) in PLAIN


def found(kind: Any, name: str) -> Any:
    """The entry of a class, or of a base class, under a name, as it is written there; else None."""
    for each in getattr(kind, "__mro__", ()):
        if name in each.__dict__:
            return each.__dict__[name]
    return None


def convertible(function: Any) -> bool:
    """Whether a function is the user's own code."""
    root = current_root()
    if root is None:
        return False
    if hasattr(type(function), "_ab_batch"):
        return True
    return isinstance(function, FunctionType) and root.convert(function) is not None


@functools.lru_cache(maxsize=4096)
def _own(kind: type, name: str) -> Any:
    """The method that a class defines itself, not one written by `dataclass` or `namedtuple`."""
    method = found(kind, name)
    written = isinstance(method, FunctionType) and method.__code__.co_filename != "<string>"
    return method if written and not getattr(method, "__module__", "").startswith("autobatch.") else None


def refuse_items(value: Any) -> None:
    """Raise NeedsLoop if a value stands for a range, zip or enumerate of each lane: it is for loops alone."""
    if hasattr(type(value), "_ab_items"):
        raise NeedsLoop("a range, zip or enumerate that differs by example is used as an object")


def refuse_hooks(value: Any, *names: str) -> None:
    """Raise NeedsLoop if the value's class overrides how Python treats it."""
    kind = type(value)
    if kind in PLAIN or current_region() is None:
        return
    refuse_items(value)
    kinds: set[Any] = {type(each) for each in value.values} if kind is ObjectBatch else {kind}
    for each in kinds:
        for name in names:
            method: Any = _own(each, name)
            if method is not None and convertible(method):
                raise NeedsLoop(f"{name} of a {each.__name__}")


_NESTED = frozenset({tuple, list, dict})


def _binary(operator: operators.Binary) -> Callable[[Any, Any], Any]:
    forward, reflected, native = operator.method, operator.reflected, operator.function
    op = UFUNCS.get(operator.ufunc)
    compares = operator in operators.COMPARISONS

    def call(a: Any, b: Any) -> Any:
        kind = type(b)
        if type(a) is MaskedBatch and (kind is MaskedBatch or kind is np.ndarray) and a.scalar is None and op:
            return op(a, b)  # what the batch's own operator comes to
        if kind not in PLAIN or type(a) not in PLAIN:
            refuse_hooks(a, forward)
            refuse_hooks(b, reflected)
        if compares and (_is_nested(a) or _is_nested(b)) and (differs(a) or differs(b)):
            raise NeedsLoop("containers of values that differ by example are compared")
        return native(a, b)

    call.__name__ = operator.name
    return call


def _is_nested(value: Any) -> bool:
    return type(value) in _NESTED or isinstance(value, tuple) or dataclasses.is_dataclass(value)


BINARY: dict[str, Callable[[Any, Any], Any]] = {each.symbol: _binary(each) for each in operators.BINARY}
"""Each binary operator and comparison, by its symbol."""


def _unary(name: str, native: Callable[[Any], Any]) -> Callable[[Any], Any]:
    special = f"__{name}__"

    def call(a: Any) -> Any:
        refuse_hooks(a, special)
        return native(a)

    return call


UNARY = {each.symbol: _unary(each.name, each.function) for each in operators.UNARY}


@functools.lru_cache(maxsize=4096)
def _is_field(kind: type, name: str) -> bool:
    """Whether reading an attribute of an object of this class runs no Python code."""
    if kind in (ObjectBatch, super) or name == "__dict__":
        return False
    if found(kind, "__getattribute__") not in _NATIVE or found(kind, "__getattr__") is not None:
        return False
    attribute = found(kind, name)
    return type(attribute) is not property and not isinstance(found(type(attribute), "__get__"), FunctionType)


_NATIVE = (object.__getattribute__, type.__getattribute__)


def getattribute(x: Any, name: str) -> Any:
    """`x.name`."""
    kind = type(x)
    region: Any = current_region()
    if kind in PLAIN or region is None:
        if kind is MaskedBatch and (x.scalar is not None or name == "__class__") and region is not None:
            return _of_number(x, name)
        return getattr(x, name)
    refuse_items(x)
    if _is_field(kind, name):  # type: ignore[arg-type]
        return getattr(x, name)
    if kind is ObjectBatch:
        raise NeedsLoop("an attribute of objects that differ by example")
    if name == "__dict__":
        raise NeedsLoop("the __dict__ of an object")
    mro = kind.__mro__ if kind is not super else x.__self_class__.__mro__
    if kind is super:
        mro = mro[mro.index(x.__thisclass__) + 1 :]
    attribute = next((each.__dict__[name] for each in mro if name in each.__dict__), None)
    if type(attribute) is property and convertible(attribute.fget):
        return region.root.call(MethodType(attribute.fget, x.__self__ if kind is super else x))  # type: ignore[arg-type]
    refuse_hooks(x, "__getattribute__", "__getattr__")
    getter = found(type(attribute), "__get__")
    is_own = isinstance(getter, FunctionType) and convertible(getter) and not hasattr(type(attribute), "_ab_batch")
    if is_own or isinstance(attribute, functools.cached_property):
        raise NeedsLoop(f"the attribute {name!r}, which a descriptor of a {kind.__name__} computes")
    return getattr(x, name)


def class_of_lanes(x: Any) -> type:
    """The class of what each lane of a batch of arrays or numbers has."""
    scalar = getattr(x, "scalar", None)
    return scalar if scalar is not None else np.ndarray if x.ndim else x.dtype.type


def _of_number(x: MaskedBatch, name: str) -> Any:
    """An attribute of numbers of Python's, which have fewer than arrays do."""
    if name == "__class__":
        return class_of_lanes(x)
    if not hasattr(x.scalar, name):
        raise AttributeError(f"{x.scalar.__name__!r} object has no attribute {name!r}")  # type: ignore[union-attr]
    return getattr(x, name) if name[0] == "_" else x.__getattr__(name)
