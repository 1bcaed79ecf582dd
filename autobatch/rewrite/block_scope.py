"""What names mean where an expression stands, and which functions do nothing but compute."""

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.blocks.inputs import Guard
from autobatch.ops import nn
from autobatch.ops.table import FUNCTIONS, NUMPY_OWN, UFUNCS

__all__ = ["NUMBERS", "Names", "Scope", "is_pure"]

_WRITERS = {np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis}
_CREATION = {np.zeros, np.ones, np.full, np.arange, np.eye, np.identity, np.linspace}
_SCALARS = {np.float16, np.float32, np.float64}
NUMBERS = {getattr(math, name) for name in dir(math) if not name.startswith("_")} | {abs, len} | _SCALARS
_LAYERS = {getattr(nn, name) for name in nn.__all__} - {nn.dropout}
_MISSING = object()
Names = frozenset[str]


def is_pure(function: Any) -> bool:
    """Whether calling this on arrays does nothing but give a result of them."""
    try:
        if isinstance(function, np.ufunc):
            return function in UFUNCS
        if function in _WRITERS or getattr(function, "__module__", None) == "numpy.random":
            return False
        return function in FUNCTIONS or function in NUMPY_OWN or function in _LAYERS | NUMBERS | _CREATION
    except TypeError:  # cannot be hashed: an object of the user's
        return False


class Scope:
    """What names mean where an expression stands.

    Attributes:
        globals: of the function; own: names that are the function's, or those around it.
        sure: of those, the ones that are bound for sure; shifting: those that code elsewhere may bind again.
        helper: what a function of the user's relies on that a block may call; None if a block may not.
    """

    __slots__ = ("globals", "helper", "own", "shifting", "sure")

    def __init__(
        self,
        globals_: dict[str, Any],
        own: Names,
        sure: Names,
        shifting: Names,
        helper: Callable[[Any], list[Guard] | None],
    ) -> None:
        self.globals = globals_
        self.helper = helper
        self.own = own
        self.sure = sure
        self.shifting = shifting

    def with_names(self, own: Names, sure: Names, shifting: Names) -> "Scope":
        """The same globals, and other names."""
        return Scope(self.globals, own, sure, shifting, self.helper)

    def binding(self, name: str) -> Any:
        """What a global name is bound to now."""
        found = self.globals.get(name, _MISSING)
        return vars(builtins).get(name, _MISSING) if found is _MISSING else found
