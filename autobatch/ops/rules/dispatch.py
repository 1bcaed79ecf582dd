"""Dispatch of NumPy functions: `implements` registers this library's implementations; `refuse` handles all others.

Every ufunc is in `UFUNCS`; every other overridable function is in exactly one of

- `FUNCTIONS`: implementations of this library, written in ops;
- `NUMPY_OWN`: NumPy's own Python code, run with this library's array-creation functions;
- `UNSUPPORTED`: functions without a batching rule, with the reason; a batch runs them as a loop over the examples.

A function in `FUNCTIONS` raises `Unsupported` for a combination of arguments that it does not cover. The arguments'
class then decides (its method `_ab_unsupported`): a batch loops over its examples, a lazy array is computed first.
"""

import functools
import inspect
import operator
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from autobatch.core.abstract_eval import check_plain, dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched
from autobatch.core.current_region import asks_batches
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import CALL_AFTER, Reason, Unsupported, UnsupportedError
from autobatch.facts.call_effects import effect_of
from autobatch.facts.numpy_functions import INSTEAD
from autobatch.ops.rules.padding import fill

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
NUMPY_OWN: dict[Callable[..., Any], Callable[..., Any]] = {}
UNSUPPORTED: dict[Callable[..., Any], str] = {}
SOURCES: dict[Any, tuple[Callable[..., Any], tuple[int, ...], bool]] = {}
CONSTANT: set[Callable[..., Any]] = {
    np.argpartition, np.array_equiv, np.lexsort, np.linalg.matrix_rank, np.nanargmax, np.nanargmin,
}  # fmt: skip
"""Functions without an op that are piecewise constant: their gradient is zero, so a tape may call NumPy's own."""


CONSTANT_SOURCES: set[Any] = set()


def source(
    *functions: Any, of: tuple[int, ...] = (), sums: bool = False, constant: bool = False
) -> Callable[[Any], Any]:
    """Register the decorated function as the plain-Python version of NumPy functions, for numbers and arrays of one
    example. Compiled code reads it like a user's helper; other sources may call it.

    Args:
        of: the ranks that the first argument may have, a list counting as a vector; () for any.
        sums: NumPy or LAPACK may add in another order, so results are compared approximately.
        constant: compiled code finds no gradient through the result, because in all sources that call it the result's
            cotangents cancel out.

    Returns:
        A decorator that returns the function.

    >>> @source(np.trapezoid, of=(1,), sums=True)
    ... def trapezoid(y):
    ...     return ((y[1:] + y[:-1]) / 2).sum()
    >>> del SOURCES[np.trapezoid]
    """

    def register(written: Any) -> Any:
        SOURCES.update(dict.fromkeys((*functions, written), (written, of, sums)))
        CONSTANT_SOURCES.update([written] if constant else [])
        return written

    return register


def leave_to_python() -> NoReturn:
    """In a source: leave the example to Python; no handler of the user's catches this. Raises AssertionError."""
    raise AssertionError


def implements(
    *functions: Callable[..., Any], out: Callable[[Any, Any], Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an implementation of NumPy functions for this library's arrays.

    The implementation's parameters are the NumPy arguments that it covers, under NumPy's names. Calls are bound by
    NumPy's own signature; a call that gives any other argument (`out=`, `where=`, `casting=` ...) a value other than
    its default is declined and runs as a loop over the examples.

    Args:
        functions: NumPy functions that are not ufuncs; an earlier registration is replaced.
        out: `out(target, result)` writes a result into the array given as `out=`, and returns it; only for functions
            whose result does not depend on the dtype of that array. None: calls with `out=` are declined.

    Returns:
        A decorator that returns the implementation, wrapped so that it handles `Unsupported`.

    Here `np.trapezoid`, called with its first two arguments only, runs ops that have batching rules:

    >>> import autobatch as ab
    >>> @implements(np.trapezoid)
    ... def trapezoid(y, x):
    ...     return ((y[1:] + y[:-1]) / 2 * np.diff(x)).sum()
    >>> xs = ab.MaskedBatch.from_examples([[0.0, 1.0], [0.0, 2.0, 3.0]])
    >>> np.trapezoid(xs * xs, xs).examples()
    [np.float64(0.5), np.float64(10.5)]
    >>> del FUNCTIONS[np.trapezoid]  # NumPy's own code runs again
    """

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        guarded = [_with_fallback(implementation, function, out) for function in functions]
        FUNCTIONS.update(zip(functions, guarded, strict=True))
        return guarded[0]

    return register


def _with_fallback(
    implementation: Callable[..., Any], function: Callable[..., Any], into: Callable[[Any, Any], Any] | None
) -> Callable[..., Any]:
    coverage: Coverage | None = None

    @functools.wraps(implementation)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal coverage
        if coverage is None:  # at the first call: signatures of all functions would slow down the import
            coverage = Coverage(function, implementation)
        token = asks_batches.set(True)  # what NumPy would ask an example, the implementation asks a batch
        try:
            if (not kwargs and len(args) <= coverage.leading) or coverage.is_plain(args, kwargs):
                return implementation(*args, **kwargs)
            target, given, named = coverage.bind(args, kwargs, into is not None)
            result = implementation(*given, **named)
            return result if into is None or target is None else into(target, result)
        except (Unsupported, TypeError) as declined:
            effect = effect_of(function)
            if effect is not None and not effect.written(args, kwargs):  # of what is shared, the values are known
                known = [getattr(arg, "_ab_shared", arg) for arg in args]
                named = {key: getattr(arg, "_ab_shared", arg) for key, arg in kwargs.items()}
                if any(map(operator.is_not, (*args, *kwargs.values()), (*known, *named.values()))):
                    return function(*known, **named)
            if isinstance(declined, TypeError):
                raise
            reason = declined.reason
        finally:
            asks_batches.reset(token)
        return refuse(function, args, kwargs, reason)

    return call


_NO_VALUE: Any = np._NoValue
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_IGNORED_OPTIONS = frozenset(("device", "like", "subok"))  # ignored: the result is this library's array anyway
_NEUTRAL: dict[str, Any] = {"where": True}  # values equal to omitting an argument whose default is np._NoValue

# Functions written in C; inspect.signature finds their signatures only from NumPy 2.4 on.
_C_SIGNATURES: dict[Any, Callable[..., Any]] = {
    np.concatenate: lambda arrays, /, axis=0, out=None, *, dtype=None, casting="same_kind": None,
    np.dot: lambda a, b, out=None: None,
    np.where: lambda condition, x=None, y=None, /: None,
}


class Coverage:
    """NumPy's signature of a function, and the arguments of it that an implementation covers.

    >>> coverage = Coverage(np.sum, lambda a, axis=None: None)
    >>> coverage.is_plain((1,), {"axis": 0}), coverage.is_plain((1,), {"out": None})
    (True, False)
    >>> coverage.bind((1, 0), {"out": None, "where": True}, False)
    (None, [1, 0], {})
    """

    __slots__ = ("covered", "function", "leading", "named", "parameters", "places", "rest", "signature")

    def __init__(self, function: Callable[..., Any], implementation: Callable[..., Any]) -> None:
        own = inspect.signature(implementation)
        try:
            self.signature = inspect.signature(_C_SIGNATURES.get(function, function))
        except ValueError:  # older NumPy has no signature for it: assume the implementation's
            self.signature = own
        self.function = function
        self.parameters = self.signature.parameters
        self.covered = own.parameters
        self.places = {name: place for place, name in enumerate(own.parameters)}
        self.rest = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own.parameters.values())
        self.named = frozenset(
            name
            for name, parameter in self.parameters.items()
            if parameter.kind in _KEYWORDS
            and (self.rest or getattr(own.parameters.get(name), "kind", None) in _KEYWORDS)
        )
        self.leading = self._leading()

    def _leading(self) -> int:
        """The number of leading positional arguments that can be passed on to the implementation unchanged."""
        count = 0
        for theirs, ours in zip(self.parameters.values(), self.covered.values(), strict=False):
            if ours.kind is inspect.Parameter.VAR_POSITIONAL:
                return sys.maxsize
            nameless = theirs.kind is inspect.Parameter.POSITIONAL_ONLY
            if ours.kind is inspect.Parameter.KEYWORD_ONLY or not (nameless or theirs.name == ours.name):
                break
            count += 1
        return count

    def is_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if the arguments can be passed on to the implementation unchanged (the fast path: most calls)."""
        if len(args) > self.leading:
            return False
        for name, value in kwargs.items():  # noqa: SIM110  (a third of the time of all())
            if value is _NO_VALUE or name not in self.named:
                return False
        return True

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], writes: bool
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """Bind a call by NumPy's signature: (`out=` argument or None, positional arguments, keyword arguments).

        Raises:
            Unsupported: an argument that the implementation does not cover differs from NumPy's default.
            TypeError: the arguments do not fit NumPy's signature.
        """
        given: list[Any] = []
        named: dict[str, Any] = {}
        target = None
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name_of(self.function)}: {error}; it takes {', '.join(self.parameters)}") from None
        for name, value in bound.arguments.items():
            parameter = self.parameters[name]
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and len(given) < self.leading:
                given.append(value)
                continue
            own = self.covered.get(name)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                given += value
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                if not self.rest and any(option is not None for option in value.values()):
                    raise Unsupported(f"{name_of(self.function)} with {', '.join(value)}")
                named.update(value if self.rest else {})
            elif own is not None and value is not _NO_VALUE:
                if own.kind is not inspect.Parameter.KEYWORD_ONLY and self.places[name] == len(given):
                    given.append(value)
                else:
                    named[name] = value
            elif writes and name == "out":
                target = value
            elif not is_default(name, value, parameter.default):
                raise Unsupported(f"{name_of(self.function)} with {name}=")
        return target, given, named


def any_shorter(x: Any, least: int, axis: int | None = None) -> bool:
    """True if the given axis (None: any axis) has fewer than `least` elements in some example."""
    shape = shape_of(x)
    sizes = shape if axis is None else (shape[axis],)
    return any(bool(np.any(np.less(size.data if is_boxed(size) else size, least))) for size in sizes)


def any_true(condition: Any) -> bool:
    """True if a condition on values or sizes holds anywhere in any example; a recorded (lazy) condition is computed."""
    if rank_of(condition) == BATCH_RANK:
        condition = fill(condition, False) if isinstance(condition, Batched) else condition.data
    return bool(np.any(condition))


def expect(x: Any, what: str, *, least: int = 0, rank: int | None = None, kinds: str | None = None) -> None:
    """Check an argument of an implementation; if the check fails, the call runs as a loop over the examples.

    Raises:
        Unsupported: an axis is shorter than `least` in some example, or the rank or the dtype's kind is another.
    """
    if rank is not None and ndim_of(x) != rank:
        raise Unsupported(f"{what} of {ndim_of(x)} dimensions")
    if kinds is not None and dtype_of(x).kind not in kinds:
        raise Unsupported(f"{what} of {dtype_of(x)}")
    if least and any_shorter(x, least):
        raise Unsupported(f"{what} of fewer than {least} elements")


def is_default(name: str, value: Any, default: Any) -> bool:
    """True if giving this value for an argument is the same as omitting the argument."""
    if value is default or value is _NO_VALUE or name in _IGNORED_OPTIONS:
        return True
    if default is _NO_VALUE:
        return value is None or value is _NEUTRAL.get(name, _NO_VALUE)
    return isinstance(value, int | float | str) and type(value) is type(default) and value == default


def name_of(function: Any) -> str:
    """The name of a function in messages.

    >>> import numpy as np
    >>> name_of(np.linalg.svd), name_of(np.sin), name_of(np.add.reduceat), name_of(len)
    ('np.linalg.svd', 'np.sin', 'np.add.reduceat', 'len')
    """
    name = getattr(function, "__name__", None) or repr(function)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ufunc):
        return f"{name_of(owner)}.{name}"
    if isinstance(function, np.ufunc) and getattr(np, name, None) is not function:  # ufuncs do not store their module
        homes = [
            module
            for module, found in list(sys.modules.items())
            if getattr(found, "__dict__", {}).get(name) is function
        ]
        public = [module for module in homes if "._" not in module]
        return ".".join([*min(public or homes, key=len, default="").split("."), name]).strip(".")
    package, _, module = (getattr(function, "__module__", None) or "").partition(".")
    return ".".join(part for part in ("np", module, name) if part) if package == "numpy" else name


def no_rule_message(function: Any, reason: str = "") -> Reason:
    """The message that a call has no batched form, and why; a reason that already names the call is used alone.

    >>> import numpy as np
    >>> no_rule_message(np.linalg.svd, "it is a factorisation")
    'np.linalg.svd has no batching rule (it is a factorisation)'
    >>> no_rule_message(np.histogram, "np.histogram whose range follows from the data")
    'np.histogram whose range follows from the data'
    """
    name = name_of(function)
    if not reason.startswith(("np.", name)):
        reason = f"{name} has no batching rule{f' ({reason})' if reason else ''}"
    return Reason(reason, instead=INSTEAD.get(function) or CALL_AFTER)


def refuse(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Handle a call without an op: `_ab_unsupported` of the argument of the highest rank, or NumPy if all are plain.

    `reason` is as in `no_rule_message`.
    """
    box = top_box((args, kwargs))
    if box is None:
        return function(*args, **kwargs)
    unsupported = getattr(box, "_ab_unsupported", None)
    if unsupported is None:
        raise UnsupportedError(no_rule_message(function, reason))
    return unsupported(function, args, kwargs, reason)


def as_array(x: Any) -> Any:
    """This library's arrays and NumPy scalars unchanged; anything else converted by `np.asarray`."""
    if is_boxed(x) or isinstance(x, np.generic):
        return x
    check_plain(x, "an argument")
    return np.asarray(x)


def top_box(tree: Any) -> Any:
    """The array of this library of the highest rank in nested lists, tuples, dicts and slices; None if there is none.

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


def cast(x: Any, dtype: np.dtype) -> Any:
    """The array in another dtype; the same object if it already has it."""
    return x if dtype_of(x) == dtype else x.astype(dtype) if hasattr(x, "astype") else np.asarray(x, dtype)


def check_cast(dtype: np.dtype, target: Any, casting: Any) -> None:
    """Raise NumPy's TypeError if the cast is not allowed by the rule `casting`."""
    target = np.dtype(target)
    if not np.can_cast(dtype, target, casting):
        raise TypeError(f"Cannot cast array data from {dtype!r} to {target!r} according to the rule '{casting}'")
