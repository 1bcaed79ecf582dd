"""What is known of the operands of a recorded call: shared values, and values whose first length is left out."""

from typing import Any

import numpy as np

from autobatch.core.foresee import WEAK, Aval, Weak, aval_of, foresee, freeze, frozen, laid
from autobatch.core.layout import is_crooked

__all__ = [
    "WEAK",
    "Aval",
    "Weak",
    "aval_of",
    "foresee",
    "freeze",
    "frozen",
    "known_aval",
    "laid",
    "shared_aval",
    "with_length",
    "without_length",
]


def known_aval(value: Any) -> Aval:
    """The `Aval` of a value that is there."""
    return aval_of(tuple(value.shape), np.dtype(value.dtype), isinstance(value, np.generic), is_crooked(value))


def shared_aval(value: Any) -> Aval:
    """An `Aval` for one shared object: signatures that hold it are about this object."""
    key = known_aval(value)
    out = Aval(key.shape, key.dtype, key.scalar, shared=True, crooked=key.crooked)
    out.key = key
    if type(getattr(value, "value", None)) is float:  # a Python float on a tape stays weak
        out.weak = float
        out.key = WEAK[float]
    return out


def without_length(aval: Any) -> Any:
    """The kind of a ragged operand: its first length left out."""
    return aval if type(aval) is Weak or aval.shared else aval_of((-1, *aval.shape[1:]), aval.dtype)


def with_length(aval: Any, arg: Any) -> Any:
    """The kind of one actual ragged operand."""
    if type(aval) is Weak or aval.shared:
        return aval
    return aval_of(tuple(arg.shape), np.dtype(arg.dtype))
