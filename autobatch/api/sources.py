"""`ab.source`: what becomes of a function, for reading."""

from typing import Any

from autobatch.rewrite import convert
from autobatch.rewrite.block_forms import block_source

__all__ = ["source"]


def source(function: Any, *, blocks: bool = False) -> str:
    """The rewritten source of a function.

    Args:
        function: it, or what `ab.batch` made of it.
        blocks: the form in which `ab.map` calls it, in which each straight-line run of array expressions is one call
            of a recorder, instead of the lock-step form.

    Raises:
        UnsupportedError: it has none; the message says why.
    """
    return block_source(function) if blocks else convert.source(function)
