"""How NumPy's functions reach ops: `implements`, which registers ours, and what becomes of calls that have none.

Every ufunc is in `UFUNCS`; every other overridable function is in exactly one of

- `FUNCTIONS`: ours, written in ops;
- `NUMPY_OWN`: NumPy's own Python code works on our arrays unchanged;
- `UNSUPPORTED`: no batching rule, with the reason; a batch runs it as a loop over the examples.

A function in `FUNCTIONS` raises `Declined` for a combination of arguments that it does not cover; the interpreter of
the arguments then decides (`_ab_unsupported`): a batch loops over its examples, a lazy array is computed first.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.op import Op, is_boxed, rank_of
from autobatch.errors import UnsupportedError

__all__ = [
    "CONSTANT",
    "FUNCTIONS",
    "NUMPY_OWN",
    "UFUNCS",
    "UNSUPPORTED",
    "Declined",
    "as_array",
    "implements",
    "name_of",
    "no_rule",
    "refuse",
    "top_box",
    "ufunc_table",
]

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
NUMPY_OWN: set[Callable[..., Any]] = set()
UNSUPPORTED: dict[Callable[..., Any], str] = {}
CONSTANT: set[Callable[..., Any]] = {np.argpartition, np.nanargmax, np.nanargmin, np.linalg.matrix_rank, np.array_equiv}
"""Of those without a batching rule the ones that are constant in pieces: no gradient is lost by them."""


class Declined(Exception):  # noqa: N818  (a signal to the wrapper that `implements` adds, never seen by a user)
    """This combination of arguments has no batched form; the message says which.

    An implementation of a NumPy function (`implements`) raises it, and the call runs as a loop over the examples.

    >>> Declined("out= has no batched form").reason
    'out= has no batched form'
    """

    @property
    def reason(self) -> str:
        """The message, for the warning."""
        return str(self.args[0]) if self.args else "no batched form"


def ufunc_table(*ops: Op) -> dict[Any, Op]:
    """Register ops under the ufuncs that they implement."""
    table: dict[Any, Op] = {op.impl: op for op in ops}
    UFUNCS.update(table)
    return table


def implements(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what runs when one of these NumPy functions is called with an array of ours.

    Args:
        functions: NumPy functions that are no ufuncs; whatever stood for them before is replaced.

    Returns:
        A decorator. It gives the implementation guarded against `Declined`, under the first function's name.

    Here `np.trapezoid`, in calls of its two arguments, runs ops that have batching rules:

    >>> import autobatch as ab
    >>> before = FUNCTIONS[np.trapezoid]
    >>> @implements(np.trapezoid)
    ... def trapezoid(y, x):
    ...     return ((y[1:] + y[:-1]) / 2 * np.diff(x)).sum()
    >>> xs = ab.MaskedBatch.from_examples([[0.0, 1.0], [0.0, 2.0, 3.0]])
    >>> np.trapezoid(xs * xs, xs).examples()
    [np.float64(0.5), np.float64(10.5)]
    >>> FUNCTIONS[np.trapezoid] = before
    """

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        guarded = [_guarded(implementation, function) for function in functions]
        FUNCTIONS.update(zip(functions, guarded, strict=True))
        return guarded[0]

    return register


def _guarded(implementation: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(implementation)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return implementation(*args, **kwargs)
        except Declined as declined:
            reason = declined.reason
        return refuse(function, args, kwargs, reason)

    return call


def name_of(function: Any) -> str:
    """What a person calls a function, for messages.

    >>> import numpy as np
    >>> name_of(np.linalg.svd), name_of(np.sin), name_of(np.add.reduceat), name_of(len)
    ('np.linalg.svd', 'np.sin', 'np.add.reduceat', 'len')
    """
    name = getattr(function, "__name__", None) or repr(function)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ufunc):
        return f"np.{owner.__name__}.{name}"
    package, _, module = (getattr(function, "__module__", None) or "").partition(".")
    return ".".join(part for part in ("np", module, name) if part) if package == "numpy" else name


def no_rule(function: Any, reason: str = "") -> str:
    """Says that a call has no batched form, and why; a reason that names the call itself stands alone.

    >>> import numpy as np
    >>> no_rule(np.linalg.svd, "it is a factorisation")
    'np.linalg.svd has no batching rule (it is a factorisation)'
    >>> no_rule(np.histogram, "np.histogram whose range follows from the data")
    'np.histogram whose range follows from the data'
    """
    if reason.startswith("np."):
        return reason
    return f"{name_of(function)} has no batching rule{f' ({reason})' if reason else ''}"


def refuse(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Let the innermost interpreter among the arguments decide about a call that has no op; plain arguments: NumPy.

    `reason` is as `no_rule` takes it.
    """
    box = top_box((args, kwargs))
    if box is None:
        return function(*args, **kwargs)
    unsupported = getattr(box, "_ab_unsupported", None)
    if unsupported is None:
        raise UnsupportedError(no_rule(function, reason))
    return unsupported(function, args, kwargs, reason)


def as_array(x: Any) -> Any:
    """An argument as an array: one of ours, or a scalar of NumPy's, as it is; anything else by `np.asarray`."""
    return x if is_boxed(x) or isinstance(x, np.generic) else np.asarray(x)


def top_box(tree: Any) -> Any:
    """The array of ours of the highest rank in nested lists, tuples and dicts; None if there is none.

    >>> top_box(([1, 2], {"axis": 0})) is None
    True
    """
    if isinstance(tree, dict):
        tree = tree.values()
    elif isinstance(tree, slice):
        tree = (tree.start, tree.stop, tree.step)
    elif not isinstance(tree, list | tuple):
        return tree if rank_of(tree) >= 0 else None
    best, best_rank = None, -1
    for item in tree:
        box = top_box(item)
        if box is not None and rank_of(box) > best_rank:
            best, best_rank = box, rank_of(box)
    return best
