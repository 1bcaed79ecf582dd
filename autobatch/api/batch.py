"""`ab.batch`, the decorator, and `BatchFunction`, the object that it makes.

To a type checker, a decorated function keeps the parameters and the result type of the user's function. `MaskedBatch`
and `PackedBatch` are subclasses of `np.ndarray` to it: a parameter that takes an array takes a batch. A function that
returns an array or a number returns a `MaskedBatch` if its first argument, given by position, is a batch, and one of a
list, a dict, a text or None `Any`. Python's typing cannot say so of later arguments and of batches inside a dict, nor
of a function of a tuple (mypy would lose the types of its gradient): `ab.examples` takes such results. A parameter
annotated as a Python number takes no batch; annotate it as `ArrayLike` for that.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import linecache
import numbers
import operator
import os
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from autobatch.api.chooser import FEW, Spent
from autobatch.autodiff.tape import active_tape
from autobatch.batches.any_batch import Batch, Shared, has_batch, unwrap_shared
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.result_form import batched, view_columns
from autobatch.core.config import WayName, check_options, config, current, with_options
from autobatch.core.current_region import as_example, current_region, in_example, is_unobserved, run_loop, thread_clock
from autobatch.core.diagnostics import hide_frames, hiding_frames, is_library, warn_user
from autobatch.core.foreign_arrays import note_foreign, refuse_foreign
from autobatch.core.memory import import_whole
from autobatch.core.pytree import children_of, is_container, is_node, leaves_of_kind
from autobatch.core.snapshot import cell_value, global_names
from autobatch.core.threads import compiling
from autobatch.errors import UnsupportedError, forget_example
from autobatch.facts.python_functions import PAUSES
from autobatch.program.bounded_caches import CodeCache

_NAME = "_ab_itself"
_owners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def reduce_value(decorated: Any) -> tuple[Any, ...]:
    """The value of `__reduce__` of a decorated function: by name where that finds it, else with its source lines."""
    function, found = decorated.__wrapped__, None
    module, name = decorated.__module__, getattr(function, "__qualname__", "")
    with contextlib.suppress(AttributeError, ImportError):
        found = by_name(module, name)
    if found is decorated and module != "__main__":
        return by_name, (module, name)
    if type(function) is not types.FunctionType:
        made = type(decorated), (function, decorated.strict, decorated.way)
        return (by_name, (module, name)) if found is decorated else made
    own = getattr(decorated, _NAME) if found is decorated else function
    return revived, (type(decorated), own, decorated.strict, _sources(function), decorated.way)


def by_name(module: str, name: str) -> Any:
    """The object of this (dotted) name in a module, which is imported if necessary."""
    return operator.attrgetter(name)(sys.modules.get(module) or __import__(module, fromlist=["_"]))


def itself(decorated: Any) -> Any:
    """A copy (always the same) of the undecorated function, named so that pickle finds it via the decorated one."""
    kept = decorated.__dict__.get("_ab_kept")
    if kept is not None:
        return kept
    f = decorated.__wrapped__
    out = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    out.__kwdefaults__, out.__annotations__, out.__doc__ = f.__kwdefaults__, f.__annotations__, f.__doc__
    out.__module__, out.__qualname__ = f.__module__, f"{f.__qualname__}.{_NAME}"
    out.__dict__.update(f.__dict__)
    decorated.__dict__["_ab_kept"] = out
    _owners[out] = weakref.ref(decorated)
    return out


def revived(cls: type, function: Any, strict: bool, sources: dict[str, list[str]], way: WayName | None = None) -> Any:
    """The decorated function when unpickling: the existing one of this name, or a new one."""
    owner = _owners.get(function)
    if owner is not None and owner() is not None:
        return owner()
    function.__qualname__ = function.__qualname__.removesuffix(f".{_NAME}")
    for filename, lines in sources.items():
        linecache.cache.setdefault(filename, (sum(map(len, lines)), None, lines, filename))
    return cls(function, strict, way)


def _sources(function: Any) -> dict[str, list[str]]:
    """Source lines by file name, of a function and those it refers to, where the file is not on disk (notebooks)."""
    filenames = {each.__code__.co_filename for each, _ in reached(function)}
    return {name: lines for name in filenames if not os.path.exists(name) and (lines := linecache.getlines(name))}


def reached(function: Any) -> Iterator[tuple[types.FunctionType, dict[str, Any]]]:
    """A user's function and those that it refers to, each with the values of its names from outside of it."""
    functions, seen = [function], set[int]()
    for each in functions:  # the list grows during the loop
        each = getattr(each, "__wrapped__", each)
        if type(each) is types.FunctionType and id(each) not in seen and not is_library(each.__code__.co_filename):
            seen.add(id(each))
            values = {name: each.__globals__.get(name) for name in global_names(each.__code__)}
            values |= zip(each.__code__.co_freevars, map(cell_value, each.__closure__ or ()), strict=True)
            yield each, values
            functions += values.values()


@functools.cache
def engines() -> Any:
    """The module that runs batches, maps and gradients; imported at first use, as it takes half the import time."""
    return import_whole("autobatch.api.call_ways")


# Small calls run as the loop, before anything of the engines is imported or looked at: the plain function runs over the
# examples, and the seconds that this took are counted, for inputs of all kinds together.
small_calls: CodeCache[Spent] = CodeCache()
_IMPORT = 0.065, 0.1  # importing the engines takes 0.35 s: thirty calls of so many seconds lose less than a fifth by
# that; after thirty calls, it is done when calls have taken so many seconds together


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """The loop's results for the first examples of a call, for whose other examples another way may pay."""

    results: list[Any]
    seconds: float


def spent_on(function: Any) -> Spent | None:
    """What was spent on the calls of a function, if its next call may be small; None if that has to be looked at."""
    if type(function) not in _WITH_CODE or active_tape() is not None:
        return None
    options, code = current(), getattr(function, "__code__", None)  # None: a method that is decorated
    if code is None or options.way != "auto" or options.strict or options.numbering is not None or not is_unobserved():
        return None
    found = small_calls.get(id(code))
    if found is None:
        if not PAUSES.isdisjoint(code.co_names) or hasattr(function, "_ab_differentiated"):
            return None
        small_calls.put(code, out := Spent(len(code.co_code) // 2))
        return out
    out = found[1]
    return None if (out.is_compiling and not compiling.is_set()) or (out.may_pay() and _may_look()) else out


_COLUMNS = 64  # parts of a container of data; parameters, and structures of other objects, may have any number
_WITH_CODE = frozenset((types.FunctionType, types.MethodType))


def _may_look(more: float = 0.0) -> bool:
    """True if the engines are imported, or that pays once `more` seconds of the loop have passed."""
    if "autobatch.api.call_ways" in sys.modules:
        return True
    spent = [each for _, each in small_calls.values()]
    calls = sum(each.calls for each in spent)
    return more + sum(each.seconds for each in spent) >= (_IMPORT[0] * max(calls, 1) if calls < 30 else _IMPORT[1])


def small_loop(
    spent: Spent, function: Any, columns: Sequence[Any], count: int, named: dict[str, Any]
) -> Begun | list[Any]:
    """The results of a call that is too small for any way but the loop to pay; `Begun` if the first few took long.

    Args:
        function: of one example; columns: an iterable of values for each positional argument; count: of examples.
        named: keyword arguments that all examples share.
    """
    begun = perf_counter()  # a tenth of what the clock of the thread costs
    if count <= spent.most:
        results = run_loop(function, columns, named)
    else:
        columns, own = [iter(column) for column in columns], thread_clock()
        results = run_loop(function, [itertools.islice(column, FEW) for column in columns], named)
        seconds = thread_clock() - own  # the other clock may count other processes
        if spent.may_pay(seconds * count / FEW) and _may_look(seconds * count / FEW):
            return Begun(results, seconds)
        results += run_loop(function, columns, named, None, FEW)
        spent.most = count
    spent.add(count, perf_counter() - begun)
    return results


def may_be_rows(arg: Any, size: int) -> bool:
    """True if an argument may hold a row for each of `size` examples: it, or every array in it, has that length.

    A list of numbers or ids is an array; floats of more dimensions are weights, as a rule, as is what has a gradient.
    """
    parts, found = [arg], False
    for x in parts:  # the list grows during the loop
        cls = type(x)
        if cls is list and len(x) == size and all(map(_is_element, x)):
            found = True
        elif is_node(x):
            if len(parts) + (len(x) if is_container(cls) else 0) > _COLUMNS:
                return False
            parts += children_of(x)[1]
        elif cls is np.ndarray or hasattr(cls, "to_numpy"):
            shape = x.shape if hasattr(x, "shape") else (len(x),)
            is_ids = cls is np.ndarray and x.dtype.kind in "biu"
            if shape and (shape[0] != size or (size in shape[1:] and not is_ids)):
                return False
            found = found or len(shape) == 1 or (is_ids and bool(shape))
        elif not isinstance(x, Batch) and getattr(x, "shape", None):
            return False
    return found


def _is_element(x: Any) -> bool:
    """True for numbers and ids, of which a list may hold those of each example."""
    is_ids = x.dtype.kind in "biu" if type(x) is np.ndarray else type(x) is list and {int}.issuperset(map(type, x))
    return is_ids or isinstance(x, numbers.Number)


def _small_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[Any, ...]) -> Any:
    """`small_loop` of a call with batches by position: the batched result if it ran all examples."""
    spent = spent_on(function)
    if spent is None or (kwargs and has_batch((), kwargs)):
        return None
    batches: list[Any] = []
    columns = view_columns(args, batches)
    counts = {len(column) for column in columns or () if type(column) is list}
    if columns is None or len(counts) != 1 or 0 in counts:
        return None
    (size,) = counts
    for arg, marked in zip(args, given, strict=True) if len(batches) < len(args) else ():
        if not isinstance(arg, Batch) and (may_be_rows(marked, size) or (is_node(arg) and leaves_of_kind(arg, Batch))):
            return None  # what has to be looked at, and perhaps warned of
    results = small_loop(spent, function, columns, size, kwargs)
    return batched(results, batches) if type(results) is list else results


def small_map(function: Any, example_sequences: Sequence[Any], shared: dict[str, Any]) -> Begun | list[Any] | None:
    """`small_loop` of a map over lists of one length, and what `shared` marks; None if it has to be looked at."""
    spent = spent_on(function)
    if spent is None:
        return None
    columns, count = list[Any](), 0
    for each in example_sequences:
        if type(each) is list and count in (0, len(each)):
            columns.append(each.copy())
            count = len(each)
        elif type(each) is not Shared:
            return None
        else:
            columns.append(itertools.repeat(each.value))
    return small_loop(spent, function, columns, count, shared) if count else None


P = ParamSpec("P")
Bound = ParamSpec("Bound")
Owner = TypeVar("Owner")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _Nothing:
    """A type that no function returns: for a type checker, only a result of type `Any` matches the overload with it."""


class BatchFunction(Generic[P, R_co]):
    """A function of one example that also takes batches. Made by `batch`.

    Attributes:
        __wrapped__: the function itself, which runs when no argument is a batch.
        strict: True to raise an error for code that cannot run in lock-step, instead of running it example by example.
        way: the pinned execution mode, as of `ab.options(way=...)`; None: not pinned.

    >>> BatchFunction(np.mean)
    <batch function mean>
    """

    _ab_batch = True

    def __init__(self, function: Callable[P, R_co], strict: bool = False, way: WayName | None = None) -> None:
        functools.update_wrapper(self, function)
        self.strict, self.way = strict, way
        self.__wrapped__: Any = function
        _MARKED.update(getattr(sys.modules.get(each), "DataFrame", Shared) for each in ("pandas", "polars"))
        reloading = sys.modules.get("IPython.extensions.autoreload")
        if reloading is not None and _REFRESH not in reloading.UPDATE_RULES:
            reloading.UPDATE_RULES.insert(0, _REFRESH)

    @overload
    def __call__(self: "BatchFunction[P, _Nothing]", *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(
        self: "BatchFunction[Concatenate[Any, Bound], NDArray[Any] | np.generic | float]",
        first: MaskedBatch | PackedBatch, /, *args: Bound.args, **kwargs: Bound.kwargs,
    ) -> MaskedBatch: ...  # fmt: skip
    @overload
    def __call__(
        self: "BatchFunction[Concatenate[Any, Bound], list[Any] | dict[Any, Any] | str | None]",
        first: MaskedBatch | PackedBatch, /, *args: Bound.args, **kwargs: Bound.kwargs,
    ) -> Any: ...  # fmt: skip
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]  # mypy: `first` is not in `*args`
        function, given = self.__wrapped__, args
        if not _MARKED.isdisjoint(map(type, args)) or (kwargs and Shared in map(type, kwargs.values())):
            args, kwargs = unwrap_shared(args, kwargs)
            if not in_example() and any(type(arg).__name__ == "DataFrame" for arg in args):
                name = getattr(function, "__name__", "f")
                warn_user(f"a DataFrame {_ONE_EXAMPLE}; for one example from each row write {name}(ab.collate(df))")
        if not has_batch(args, kwargs):
            if in_example():
                return function(*args, **kwargs)
            try:
                return as_example(function, args, kwargs, config.numbering)
            except Exception as error:
                _note_lists(error, function, args, kwargs)
                note_foreign(error, args, kwargs)
                hide_frames(error)
                raise
        own = () if current_region() is None else [x for x in (*args, *kwargs.values()) if isinstance(x, Batch)]
        if current_region() is not None and all(x.region is not None for x in own):  # made in lock-step
            return engines().call_in_region(function, *args, **kwargs)
        try:
            refuse_foreign(args, kwargs)
            if self.strict or self.way is not None:
                return with_options(lambda: engines().run_batch(function, args, kwargs, given), **pins(self))
            begun = _small_call(function, args, kwargs, given) if active_tape() is None else None
            if begun is None or type(begun) is Begun:
                return engines().run_batch(function, args, kwargs, given, begun)
            return begun
        except Exception as error:
            _note_batches(error, function, args, kwargs)
            hide_frames(error)
            raise

    @overload
    def __get__(self, instance: None, owner: Any = None) -> "BatchFunction[P, R_co]": ...
    @overload
    def __get__(
        self: "BatchFunction[Concatenate[Any, Bound], R_co]", instance: object, owner: Any = None
    ) -> "BatchFunction[Bound, R_co]": ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind to an instance as a function does; a wrapped staticmethod or classmethod binds first."""
        if isinstance(self.__wrapped__, staticmethod | classmethod):
            return BatchFunction(self.__wrapped__.__get__(instance, owner), self.strict, self.way)
        return MethodType(self, instance) if instance is not None and hasattr(self.__wrapped__, "__get__") else self

    def __reduce__(self) -> Any:
        return reduce_value(self)

    @property
    def _ab_itself(self) -> Any:
        return itself(self)

    def __repr__(self) -> str:
        return f"<batch function {getattr(self.__wrapped__, '__qualname__', repr(self.__wrapped__))}>"


def pins(f: Any) -> Any:
    """The options that a decorated function pins for its calls, as keyword arguments of `options`."""
    strict, way = (f.strict, f.way) if isinstance(f, BatchFunction) else (False, None)
    return ({"strict": True} if strict else {}) | ({"way": way} if way is not None else {})


_REFRESH = (
    lambda old, new: isinstance(old, BatchFunction) and isinstance(new, BatchFunction),
    lambda old, new: old.__dict__.update(new.__dict__),
)
"""An update rule for IPython's %autoreload (condition, action): an old `BatchFunction` takes over the new one's state.
%autoreload has such rules for functions and classes only."""


def _note_lists(error: Exception, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add a note to a failed call's error if an argument was a list of arrays or records, which is one example."""
    if any(_ONE_EXAMPLE in note for note in getattr(error, "__notes__", ())):
        return
    kinds = {"arrays": np.ndarray, "dicts": dict, "tuples": tuple, "lists": list | tuple}
    for arg in (*args, *kwargs.values()):
        if type(arg) is list and arg:
            found = (what for what, cls in kinds.items() if all(isinstance(each, cls) for each in arg))
            if what := next(found, "records" if all(map(dataclasses.is_dataclass, arg)) else ""):
                name = name if (name := getattr(function, "__name__", "_")).isidentifier() and name[0] != "_" else "f"
                apart = what == "tuples" and unfit(function, args, kwargs) is not None
                error.add_note(
                    f"a list of {len(arg)} {what} {_ONE_EXAMPLE}; for a batch of {len(arg)} write {name}("
                    f"{'*' * apart}ab.collate({what})), or ab.map({name}, {f'*zip(*{what})' if apart else what}) for a "
                    "list of results"
                )
                return


def unfit(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> inspect.Signature | None:
    """The signature of a function that does not take these arguments; None if it does, or has no signature."""
    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(function)
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            return signature
    return None


def _note_batches(error: Exception, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add a note to a failed call's error if an argument was a batch of tuples, `batch[0]`, or has marks inside."""
    if leaves_of_kind((args, kwargs), Shared):
        error.add_note("ab.shared inside a container marks nothing; write it around the argument: ab.shared({...})")
    source = "".join(inspect.getframeinfo(sys._getframe(2)).code_context or ())
    if args and type(args[0]) is MaskedBatch and not args[0].ndim and re.search(r"\(\w+\[-?(\d+|[ijk])\]", source):
        error.add_note("batch[0] is element 0 of every example; the first example is batch.example(0)")
    if type(error) is TypeError and (signature := unfit(function, args, kwargs)):
        forget_example(error)  # the call is wrong, not an example
        for arg in [arg for arg in args if type(arg) is tuple and all(isinstance(each, Batch) for each in arg)]:
            call = f"{getattr(function, '__name__', 'f')}(*ab.collate(examples), ...)"
            error.add_note(f"it takes {signature}; {len(arg)} batches were given as one argument: write {call}")


_MARKED: set[type] = {Shared}  # types of arguments that are looked at before a call
_ONE_EXAMPLE = "is one example to a function decorated with ab.batch"


class _Decorator(Protocol):
    """The type of `ab.batch(strict=..., way=...)`, for type checkers."""

    @overload
    def __call__(self, f: "staticmethod[P, R]") -> "staticmethod[P, R]": ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, f: "classmethod[Owner, P, R]") -> "classmethod[Owner, P, R]": ...
    @overload
    def __call__(self, f: Callable[P, R]) -> BatchFunction[P, R]: ...


@overload
def batch(f: "staticmethod[P, R]", *, strict: bool = False, way: WayName | None = None) -> "staticmethod[P, R]": ...  # type: ignore[overload-overlap]
@overload
def batch(
    f: "classmethod[Owner, P, R]", *, strict: bool = False, way: WayName | None = None
) -> "classmethod[Owner, P, R]": ...
@overload
def batch(f: Callable[P, R], *, strict: bool = False, way: WayName | None = None) -> BatchFunction[P, R]: ...
@overload
def batch(f: None = None, *, strict: bool = False, way: WayName | None = None) -> _Decorator: ...
@hiding_frames
def batch(f: Any = None, *, strict: bool = False, way: WayName | None = None) -> Any:
    """Let a function of one example take batches.

    Args:
        f: the function of one example, in plain NumPy.
        strict: raise `UnsupportedError` where the examples cannot run together in lock-step, instead of looping over
            them.
        way: the execution mode of calls on a batch and of `ab.map` with this function, as for `ab.options(way=...)`;
            None: that of the options.

    Returns:
        The function, as a `BatchFunction`; without `f` a decorator that has these options.

    Called with a `MaskedBatch` or `PackedBatch` among its arguments, or anywhere inside them, the function runs once
    for all examples: each batch stands for one example's value, and everything else is shared. `ab.examples(result)`
    lists the results. Called with plain values it is the function itself. Nothing is rewritten before the first
    batched call.

    Raises:
        UnsupportedError: `f` is not a function, or there is no such mode. A batched call raises what the first failing
            example raises, with a note that names its index, and `ShapeError` for batches of different sizes.

    >>> from numpy.typing import NDArray
    >>> from autobatch.batches.padded_batch import MaskedBatch
    >>> @batch
    ... def total(xs):
    ...     h = np.float64(0)
    ...     for x in xs:
    ...         h = h + x
    ...     return h
    >>> total(MaskedBatch.from_examples([[1.0, 2.0], [3.0]])).examples()
    [np.float64(3.0), np.float64(3.0)]
    >>> @batch(way="loop")
    ... def length(xs):
    ...     return len(xs)
    >>> length(MaskedBatch.from_examples([[1.0, 2.0], [3.0]])).examples()
    [2, 1]
    """
    check_options({"strict": strict} if way is None else {"strict": strict, "way": way})
    if f is None:
        return functools.partial(BatchFunction, strict=strict, way=way)
    if not (callable(f) or hasattr(f, "__get__")):  # a classmethod is not callable, but its bound form is
        instead = f"@ab.batch(way={f!r})" if isinstance(f, str) else "ab.batch(f)(x), not ab.batch(f(x))"
        raise UnsupportedError(f"ab.batch takes a function; got {type(f).__name__}: write {instead}")
    return BatchFunction(f, strict, way)
