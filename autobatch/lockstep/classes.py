"""What a class of the user's defines, found and called as converted code: its operators, properties and other hooks.

Python itself would call them as they are written, where `isinstance(x, np.ndarray)` is false of a batch. Each function
here is what converted code calls in the place of an operator or of a read of an attribute. Values whose classes are
known to have no such code, arrays above all, go straight on.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, narrowed
from autobatch.batches.examples import stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.lanes import current_region
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop
from autobatch.lockstep.boxes import LaneBox
from autobatch.lockstep.choosing import each_object
from autobatch.lockstep.lists import LaneList, differs
from autobatch.lockstep.merging import UNBOUND
from autobatch.lockstep.ownership import is_made, require_own
from autobatch.lockstep.regions import current_root
from autobatch.lockstep.rows import Choice, Held, each_lane, scattered
from autobatch.ops.rules.dispatch import UFUNCS

__all__ = ["BINARY", "PLAIN", "UNARY", "class_of_lanes", "convertible", "getattribute", "hook", "is_plain"]

PLAIN = frozenset({
    MaskedBatch, PackedBatch, LaneList, LaneBox, np.ndarray, int, float, bool, complex, str, bytes, list, tuple, dict,
    set, frozenset, range, slice, type(None), ModuleType, *np.sctypeDict.values(),
})  # fmt: skip


def is_plain(value: Any) -> bool:
    """Whether the value's class is known to have no code of the user's."""
    return type(value) in PLAIN


def class_of(value: Any) -> Any:
    """The class of a value: of objects that differ by example the one that all have, or None."""
    if type(value) is Choice:
        kinds = {type(each) for each in value.objects}
        return kinds.pop() if len(kinds) == 1 else None
    if type(value) is not ObjectBatch:
        return type(value)
    kinds = {type(each) for each in value.values}
    return kinds.pop() if len(kinds) == 1 else None


def found(kind: Any, name: str) -> Any:
    """What a class, or one that it inherits from, has under a name, as it is written there; else None."""
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


def hook(value: Any, name: str) -> Any:
    """A special method of the user's own that a value's class defines, bound to it; None if there is none."""
    if type(value) in PLAIN or current_region() is None:
        return None
    value = narrowed(value) if type(value) is not Choice else value.sole()
    method = found(class_of(value), name)
    if method is None or not isinstance(method, FunctionType) or not convertible(method):
        return None
    return MethodType(method, value)


_NESTED = frozenset({tuple, list, dict})
_UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def _binary(name: str, native: Callable[[Any, Any], Any], reflected: str) -> Callable[[Any, Any], Any]:
    forward = f"__{name}__"
    op = UFUNCS.get(_UFUNCS[name])
    compares = name in ("eq", "ne", "lt", "le", "gt", "ge")

    def call(a: Any, b: Any) -> Any:
        kind = type(b)
        if type(a) is MaskedBatch and (kind is MaskedBatch or kind is np.ndarray) and a.scalar is None and op:
            return op(a, b)  # what the batch's own operator comes to
        if kind in PLAIN and type(a) in PLAIN:
            if compares and (kind in _NESTED or type(a) in _NESTED) and (differs(a) or differs(b)):
                return stack_results(each_lane(native, scattered(a), scattered(b)))
            return native(a, b)
        return _of_users(a, b, forward, reflected, native)

    call.__name__ = name
    return call


def _of_users(a: Any, b: Any, forward: str, reflected: str, native: Callable[[Any, Any], Any]) -> Any:
    root = current_root()
    if native in (operator.eq, operator.ne) and _compares_fields(class_of(a)) and class_of(a) is class_of(b):
        names = [field.name for field in dataclasses.fields(class_of(a)) if field.compare]
        x, y = (tuple([getattribute(each, name) for name in names]) for each in (a, b))
        return BINARY[_BY_NAME[forward]](x, y)
    if native in (operator.eq, operator.ne) and _compares_fields(class_of(a)) and is_plain(b):
        return native is operator.ne  # of another class
    if type(a) is Choice and hook(a, forward) is None:
        return each_object(a, lambda each: BINARY[_BY_NAME[forward]](each, b))
    if type(b) is Choice and hook(a, forward) is None:
        return each_object(b, lambda each: BINARY[_BY_NAME[forward]](a, each))
    first, second = hook(a, forward), hook(b, reflected)
    if root is None or (first is None and second is None):
        return native(a, b)
    order = [(first, b), (second, a)]
    if second is not None and class_of(b) is not class_of(a) and _is_below(class_of(b), class_of(a)):
        order.reverse()
    elif first is None and not isinstance(a, _ANSWERS_NOTHING):
        if isinstance(a, np.ndarray) or is_boxed(a):
            if getattr(b, "__array_ufunc__", False) is not None:
                raise NeedsLoop(f"an operator between an array and a {type(b).__name__}")
        elif getattr(type(a), forward, None) is not None:
            raise NeedsLoop(f"an operator between a {type(a).__name__} and a {type(b).__name__}")
    for method, other in order:
        out = NotImplemented if method is None else root.call(method, other)
        if out is not NotImplemented:
            return out
    if native in (operator.eq, operator.ne):
        return (a is b) is (native is operator.eq)
    raise TypeError(f"unsupported operand types: {type(a).__name__!r} and {type(b).__name__!r}")


def _compares_fields(kind: Any) -> bool:
    """Whether a class is a dataclass with the `==` that dataclasses write."""
    code = getattr(getattr(kind, "__eq__", None), "__code__", None)
    return dataclasses.is_dataclass(kind) and code is not None and code.co_filename == "<string>"


_ANSWERS_NOTHING = (int, float, complex, str, bytes, list, tuple, dict, set, type(None))
"""Of a class of the user's, whose own method is asked then."""


def _is_below(kind: Any, other: Any) -> bool:
    return isinstance(kind, type) and isinstance(other, type) and issubclass(kind, other)


_SYMBOLS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_COMPARISONS = {"<": ("lt", "gt"), "<=": ("le", "ge"), ">": ("gt", "lt"), ">=": ("ge", "le"), "==": ("eq", "eq"),
                "!=": ("ne", "ne")}  # fmt: skip
_KEYWORDS = {"and": "and_", "or": "or_"}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{
        symbol: _binary(name, getattr(operator, _KEYWORDS.get(name, name)), f"__r{name}__")
        for symbol, name in _SYMBOLS.items()
    },
    **{
        symbol: _binary(name, getattr(operator, name), f"__{other}__") for symbol, (name, other) in _COMPARISONS.items()
    },
}
"""Each binary operator and comparison, by its symbol."""


_BY_NAME = {f"__{name}__": symbol for symbol, name in _SYMBOLS.items()}
_BY_NAME |= {f"__{name}__": symbol for symbol, (name, _) in _COMPARISONS.items()}


def _unary(name: str, native: Callable[[Any], Any]) -> Callable[[Any], Any]:
    special = f"__{name}__"

    def call(a: Any) -> Any:
        method = None if type(a) in PLAIN else hook(a, special)
        return native(a) if method is None else current_root().call(method)  # type: ignore[union-attr]

    return call


UNARY = {
    "-": _unary("neg", operator.neg),
    "+": _unary("pos", operator.pos),
    "~": _unary("invert", operator.invert),
}


@functools.lru_cache(maxsize=4096)
def _is_field(kind: type, name: str) -> bool:
    """Whether reading an attribute of an object of this class runs no Python code."""
    if kind in (Choice, ObjectBatch, super) or name == "__dict__":
        return False
    if found(kind, "__getattribute__") not in _NATIVE or found(kind, "__getattr__") is not None:
        return False
    attribute = found(kind, name)
    return type(attribute) is not property and not isinstance(found(type(attribute), "__get__"), FunctionType)


_NATIVE = (object.__getattribute__, type.__getattribute__)


def getattribute(x: Any, name: str) -> Any:
    """`x.name`."""
    kind = type(x)
    if kind in PLAIN or current_region() is None:
        if kind is MaskedBatch and (x.scalar is not None or name == "__class__") and current_region() is not None:
            return _of_number(x, name)
        return getattr(x, name)
    if _is_field(kind, name):  # type: ignore[arg-type]
        value = getattr(x, name)
        if value is UNBOUND:
            raise NeedsLoop(f"attribute {name!r} is set for other examples only")
        return value
    if kind is Choice:
        return _of_choice(x, name)
    if kind is super:
        return _of_super(x, name)
    if kind is ObjectBatch:
        return _of_lanes(narrowed(x), name)
    attribute = found(kind, name)
    if name == "__dict__" and is_made(x):
        raise NeedsLoop("the __dict__ of an object")
    if isinstance(found(kind, "__getattribute__"), FunctionType) and convertible(found(kind, "__getattribute__")):
        raise NeedsLoop("a class with its own __getattribute__")
    if attribute is None and convertible(found(kind, "__getattr__")):
        try:
            value = object.__getattribute__(x, name)
        except AttributeError:
            return _call(MethodType(found(kind, "__getattr__"), x), name)
    else:
        computed = _computed(attribute, x, kind, name)
        value = getattr(x, name) if computed is UNBOUND else computed
    if value is UNBOUND:
        raise NeedsLoop(f"attribute {name!r} is set for other examples only")
    return value


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


def _of_choice(x: Choice, name: str) -> Any:
    """An attribute of objects of this call that differ by example."""
    alone = x.sole()
    if alone is not x:
        return getattribute(alone, name)
    kind = class_of(x)
    attribute = found(kind, name)
    if convertible(attribute):
        return MethodType(getattr(attribute, "__wrapped__", attribute), x)
    if (kind is None or isinstance(x.objects[0], Held)) and _are_methods(x, name):
        methods = Choice([getattribute(each, name) for each in x.objects], x.which)
        methods.region = x.region
        return methods
    return each_object(x, lambda each: getattribute(each, name))


def _are_methods(x: Choice, name: str) -> bool:
    return all(isinstance(each, Held) or convertible(found(type(each), name)) for each in x.objects)


def _call(function: Any, *args: Any) -> Any:
    return current_root().call(function, *args)  # type: ignore[union-attr]


def _computed(attribute: Any, x: Any, kind: Any, name: str) -> Any:
    """What a property or a descriptor of the user's gives; UNBOUND if the attribute is none."""
    if type(attribute) is property and convertible(attribute.fget):
        return _call(MethodType(attribute.fget, x))  # type: ignore[arg-type]
    if isinstance(attribute, functools.cached_property) and name not in getattr(x, "__dict__", {}):
        if not convertible(attribute.func):
            return UNBOUND
        require_own(x, "a cached property")
        x.__dict__[name] = value = _call(MethodType(attribute.func, x))
        return value
    getter = found(type(attribute), "__get__")
    if isinstance(getter, FunctionType) and convertible(getter) and not hasattr(type(attribute), "_ab_batch"):
        return _call(MethodType(getter, attribute), x, kind)
    return UNBOUND


def _of_super(x: Any, name: str) -> Any:
    mro = x.__self_class__.__mro__
    for kind in mro[mro.index(x.__thisclass__) + 1 :]:
        if name in kind.__dict__:
            computed = _computed(kind.__dict__[name], x.__self__, kind, name)
            return getattr(x, name) if computed is UNBOUND else computed
    return getattr(x, name)


def _of_lanes(x: ObjectBatch, name: str) -> Any:
    """An attribute of objects that differ by example."""
    kind = class_of(x)
    attribute = found(kind, name)
    if convertible(attribute):
        return MethodType(getattr(attribute, "__wrapped__", attribute), x)
    if kind is not None and attribute is not None:
        computed = _computed(attribute, x, kind, name)
        if computed is not UNBOUND:
            return computed
    elif kind is None and any(type(found(type(each), name)) is property for each in x.values):
        raise NeedsLoop(f"the property {name!r} of objects of different classes")
    elif kind is not None and convertible(found(kind, "__getattr__")):
        raise NeedsLoop("a class with its own __getattr__")
    out = getattr(x, name)
    if type(out) is ObjectBatch and any(isinstance(value, Batch | Held | Choice) for value in out.values):
        raise NeedsLoop(f"the attribute {name!r} that the examples' objects have for several of them")
    return out
