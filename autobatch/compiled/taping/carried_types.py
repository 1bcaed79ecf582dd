"""Which types of values may carry a gradient, and the places of those that carry none."""

from typing import Any

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import INT, NONE
from autobatch.compiled.translation.typed_text import rep

ZERO = "int64(0)"


def carries(kind: Any) -> bool:
    """True if a value of a type may carry a gradient."""
    return any(map(_is_float, types.within(kind)))


def _is_float(kind: Any) -> bool:
    if isinstance(kind, types.LookedUp):
        kind = kind.weights
    if isinstance(kind, types.Scalar | types.Union):  # a variable that is a union may have held other numbers, too
        return isinstance(kind, types.Union) or kind.kind == "f" or kind == NONE  # None: also of an unknown type
    return np.dtype(kind.dtype).kind == "f" if isinstance(kind, types.Array) else kind is None


def is_single(kind: Any) -> bool:
    """True unless a value of a type, itself, is of float64: Python's floats take the dtype of what they meet."""
    if isinstance(kind, types.Union):
        return all(map(is_single, types.members(kind)))
    if isinstance(kind, types.Scalar):
        return kind.python or kind.name != "float64"
    return kind is not None and getattr(kind, "dtype", "") != "float64"


def in_memory(kind: Any) -> bool:
    """True if two names of a value of a type share its memory, so that each sees what is written through the other."""
    in_place = types.Array | types.List | types.Set | types.Dict | types.Object
    return any(each is None or each == NONE or isinstance(each, in_place) for each in types.within(kind))


def zero_places(kind: Any) -> str:
    """The text of the places of a value without a gradient: all zero."""
    if not carries(kind):
        return ZERO
    match kind:
        case types.Union():
            return f"({ZERO}, {ZERO}, {ZERO})"
        case types.Array():
            return f"np.zeros(({'0, ' * kind.ndim}), np.int64)"
        case types.Tuple() | types.Struct():
            return f"({''.join(zero_places(item) + ', ' for item in kind.items)})"
        case types.Maybe():
            return f"({ZERO}, {zero_places(kind.inner)})"
        case types.List() | types.Object():
            return f"new_{rep(kind)}_p()"
    return ZERO


def held_type(kind: Any) -> Any:
    """The type of what a list holds, or the list that stands for an object."""
    return types.Tuple((INT, *kind.site.find().items)) if isinstance(kind, types.Object) else kind.elem
