"""Detects arrays of torch or JAX passed where NumPy arrays are expected, and says what to write instead."""

import abc
import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.pytree import flatten, leaves, leaves_of_kind, paths
from autobatch.errors import UnsupportedError


@functools.lru_cache(maxsize=256)
def library_of(other: Any) -> str:
    """ "torch" or "jax" if this is the class of that library's arrays, else ""."""
    for each in other.__mro__:
        root = (each.__module__ or "").partition(".")[0]
        if root == "torch" and each.__name__ == "Tensor":
            return "torch"
        if root in ("jax", "jaxlib") and each.__name__ in ("Array", "ArrayImpl", "Tracer"):
            return "jax"
    return ""


class _ForeignArray(abc.ABC):  # noqa: B024  (for `isinstance` and `issubclass`)
    """The arrays of torch and JAX."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return bool(library_of(other))


def advice(name: str, library: str) -> str:
    """The error message for an array of this library: what is wrong, and what to write instead."""
    own = name if name.partition("[")[0].partition(".")[0].isidentifier() else "x"
    what, how = ("torch tensor", f"{own}.detach().numpy()") if library == "torch" else ("JAX array", f"np.array({own})")
    return (
        f"{name} is a {what}, and autobatch computes with NumPy arrays; write {how}, or call the function by "
        f"ab.{library}_function(f), through which {what.partition(' ')[0]}'s gradients go"
    )


def refuse_foreign(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a call on batches has a torch or JAX array as an argument: results would depend on its mode."""
    if ("torch" in sys.modules or "jax" in sys.modules) and (found := _foreign(args, kwargs)):
        raise UnsupportedError(found)


def note_foreign(error: Exception, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Add a note to a failed call's error if one of its arguments is an array of torch or JAX."""
    if (found := _foreign(args, kwargs)) and found not in getattr(error, "__notes__", ()):
        error.add_note(found)


def _foreign(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """The error message for the first torch or JAX array among the arguments; "" if there is none."""
    for name, arg in [*((f"argument {i + 1}", arg) for i, arg in enumerate(args)), *kwargs.items()]:
        for place, leaf in enumerate(leaves(arg) if leaves_of_kind(arg, _ForeignArray) else ()):
            if type(leaf) is not np.ndarray and (library := library_of(type(leaf))):  # type: ignore[arg-type]
                return advice(name + list(paths(flatten(arg)[1]))[place], library)
    return ""
