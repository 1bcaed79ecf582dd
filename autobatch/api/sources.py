"""`ab.source`: what becomes of a function, for reading."""

from typing import Any

from autobatch.rewrite import convert
from autobatch.rewrite.block_forms import block_source

__all__ = ["source"]


def source(function: Any, *, blocks: bool = False) -> str:
    """The rewritten source of a function, to read: what it calls is named as in `autobatch.rewrite` and its runtime.

    Args:
        function: it, or what `ab.batch` made of it.
        blocks: the form in which `ab.map` calls it, in which each straight-line run of array expressions is one call
            of a recorder, instead of the lock-step form.

    Returns:
        Python source text. In the lock-step form a condition is an object that gives each of its two ways the lanes
        that take it, and what a way binds is joined at its end.

    Raises:
        UnsupportedError: it has none; the message says why.

    >>> import autobatch as ab
    >>> def clipped(x):
    ...     if x > 1:
    ...         x = 1.0
    ...     return x
    >>> print(ab.source(clipped))
    def clipped(x):
        _ab_if_1 = _ab_if(_ab_gt(x, 1), (x,), False, False)
        for _ab_arm_1 in _ab_if_1:
            if _ab_arm_1:
                x = 1.0
            if _ab_if_1.split:
                _ab_if_1.end((x,))
        if _ab_if_1.split:
            x, = _ab_if_1.join()
        return x
    """
    return block_source(function) if blocks else convert.source(function)
