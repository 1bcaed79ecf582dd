"""Whether a function does what can be told apart by the order of the examples: prints, draws, reads an iterator.

On the fly, an example that needs a value waits while the others run on. What it prints then comes behind what they
print, and what it draws from a generator of the process is another number than in the loop over the examples. Changes
of containers, objects and arrays are no matter here: `core.snapshot` sees those and takes them back.
"""

from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

from autobatch.batches.base import Batch
from autobatch.core.snapshot import Snapshot

__all__ = ["shows_order"]

_MODULES = frozenset(
    """
    io logging os posix random secrets shutil socket subprocess sys tempfile threading uuid warnings
    """.split()  # noqa: SIM905 - as one reads names
)
_NAMES = _MODULES | {"input", "open", "print", "write", "writelines"}


def shows_order(reached: Iterable[Any]) -> bool:
    """Whether what is reached from these values prints, draws, or is used up by reading it.

    Args:
        reached: a function, what it is given, and the classes of its examples.

    >>> shows_order([iter([1])])
    True
    >>> shows_order([[1], 2.0])
    False
    """
    state = Snapshot(reached, bounded=True)
    methods = (each for kind in state.classes for each in vars(kind).values())
    functions = [*state.functions, *(each for each in methods if isinstance(each, FunctionType))]
    codes = [function.__code__ for function in functions]
    return any(map(_names_one, codes)) or any(map(_is_one, state.places.values()))


def _names_one(code: CodeType) -> bool:
    return not _NAMES.isdisjoint(code.co_names) or any(
        _names_one(const) for const in code.co_consts if isinstance(const, CodeType)
    )


def _is_one(value: Any) -> bool:
    """Whether a value is an iterator, a function of such a module, or a batch, in which nothing is recorded."""
    if hasattr(type(value), "__next__") or isinstance(value, Batch):
        return True
    module = getattr(value, "__module__", None) if callable(value) else None
    return isinstance(module, str) and module.lstrip("_").partition(".")[0] in _MODULES
