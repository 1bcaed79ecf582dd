"""`ab.map`, `ab.lazy`, `ab.grad`, `ab.value_and_grad` and `ab.jvp`: transforms of a function of one example."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import numpy as np

from autobatch.api.batch import BatchFunction, Begun, engines, pins, reached, small_map, unfit
from autobatch.autodiff import grad as plain
from autobatch.autodiff import tape as tapes
from autobatch.batches.any_batch import Batch, Shared, unwrap_shared
from autobatch.core.config import WayName, with_options
from autobatch.core.diagnostics import hide_frames, hiding_frames, warn_fallback, warn_user
from autobatch.core.foreign_arrays import note_foreign
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.core.pytree import PLAIN, leaves
from autobatch.errors import UnsupportedError, forget_example
from autobatch.program.bounded_caches import CodeCache
from autobatch.tables.protocol import Table

if TYPE_CHECKING:
    from autobatch.lazy.launching import Stats
    from autobatch.lazy.manual_recorder import Lazy

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
Aux = TypeVar("Aux")
_Xs = Iterable[Any]
_Places = int | Sequence[int]
_looked_at: CodeCache[None] = CodeCache()  # functions whose gradients `_warn_of_outer_names` has seen


@overload
def map(f: Callable[Concatenate[A, P], R], xs: Iterable[A], /, *args: P.args, **shared: P.kwargs) -> list[R]: ...
@overload
def map(
    f: Callable[Concatenate[A, B, P], R], xs: Iterable[A], ys: Iterable[B], /, *args: P.args, **shared: P.kwargs
) -> list[R]: ...
@overload
def map(
    f: Callable[Concatenate[A, B, C, P], R], xs: Iterable[A], ys: Iterable[B], zs: Iterable[C], /,
    *args: P.args, **shared: P.kwargs,
) -> list[R]: ...  # fmt: skip
@overload
def map(f: Callable[..., R], /, *xs: _Xs, way: WayName, strict: bool = False, **shared: Any) -> list[R]: ...
@overload
def map(f: Callable[..., R], /, *xs: _Xs, strict: bool, **shared: Any) -> list[R]: ...
@overload
def map(
    f: Callable[..., R], first: _Xs, second: _Xs, third: _Xs, fourth: _Xs, /, *more: _Xs, **shared: Any
) -> list[R]: ...
def map(  # type: ignore[misc]  # mypy: the shared keywords of `f` may have the options' names; then they are refused
    f: Callable[..., Any], /, *example_sequences: Any, way: WayName | None = None, strict: bool | None = None,
    **shared: Any,
) -> list[Any]:  # fmt: skip
    """`[f(x, **shared) for x in examples]`, with equal operations of different examples launched together.

    The examples may differ in every way: shapes, control flow, recursion over Python objects. NumPy operations on float
    arrays of an example and on shared arrays are recorded; where an example needs a value (`if`, `int()`, printing), it
    waits and the others run on.

    Args:
        f: a function of one example; of a function decorated with `ab.batch`, the undecorated one is used.
        example_sequences: one or more sequences (or iterables) of equal length; `f` gets one element of each.
            `ab.shared(x)` among them gives `x` to every example. An array next to lists gives a warning.
        way, strict: options of this call, as for `ab.options`; None: those of the decorator, else of `ab.options`. If
            `f` has a parameter of that name, map `functools.partial(f, way=...)`, or rename it.
        shared: keyword arguments that are the same for all examples: parameters, tables. A batch with as many
            examples as the sequences gives a warning, since every example gets the whole batch.

    Returns:
        A list of the results, one per example, with plain arrays (under `ab.grad`: values that carry the gradient).

    Raises:
        ShapeError: the sequences differ in length. UnsupportedError: no sequence, or a dict as one; there is
            no such mode, or `way` or `strict` is also the name of a parameter of `f`.
        Exception: whatever `f` raises for the first example that fails, with a note that names its index.

    >>> import numpy as np
    >>> xs = [np.arange(2.0), np.arange(3.0), np.ones(2)]
    >>> map(lambda x, scale: (x * scale).sum(), xs, scale=2.0)
    [np.float64(2.0), np.float64(6.0), np.float64(4.0)]
    >>> map(lambda x: x.sum(), xs, way="loop")
    [np.float64(1.0), np.float64(3.0), np.float64(2.0)]
    """
    if shared:
        for name, value in shared.items():
            if isinstance(value, Batch) and value.batch_size == _count(example_sequences):
                warn_user(
                    f"{name}, by keyword, is a batch of as many examples as are mapped, and every example gets all of "
                    f"it; for one each write ab.map(f, examples, {name}); if all is meant, {name}=ab.shared({name})"
                )
        _, shared = unwrap_shared((), shared)
    try:
        if not callable(f):
            first = f"{type(f).__name__} first: write ab.map(f, examples), not ab.map(f(x), examples)"
            raise UnsupportedError(f"ab.map takes a function and its examples; got {first}")
        plain_f = undecorated(f)
        pinned = {} if plain_f is f else pins(f)
        if way is not None or strict is not None:
            pinned |= _own_options(f, way=way, strict=strict)
        if pinned:
            return with_options(lambda: _mapped(f, example_sequences, shared)[0], **pinned)
        begun = small_map(plain_f, example_sequences, shared)
        return begun if isinstance(begun, list) else _mapped(f, example_sequences, shared, begun)[0]
    except Exception as error:
        _note_arguments(error, f, example_sequences, shared)
        note_foreign(error, (), shared)
        hide_frames(error)
        raise


def _own_options(f: Any, **options: Any) -> dict[str, Any]:
    """The options that are given; raises for one that is meant for `f`, which has a parameter of its name."""
    given = {name: value for name, value in options.items() if value is not None}
    parameters: Any = ()
    with contextlib.suppress(TypeError, ValueError):  # a C function without a signature
        parameters = inspect.signature(undecorated(f)).parameters
    for name, value in given.items():
        if name in parameters and not (isinstance(f, functools.partial) and name in f.keywords):
            called = getattr(f, "__name__", "f").replace("<lambda>", "f")
            better = f"ab.map(functools.partial({called}, {name}={value!r:.40}), ...)"
            raise UnsupportedError(f"{name}= is an option of ab.map, and a parameter of {called}; write {better}")
    return given


def _note_arguments(error: Exception, f: Any, sequences: Sequence[Any], shared: dict[str, Any]) -> None:
    """Add a note to the error of a map whose arguments are not those of its function, or not as they may be meant."""
    for name in [name for name, value in shared.items() if type(value) is list and len(value) == _count(sequences)]:
        error.add_note(f"{name}, by keyword, is the same for all examples; one each is ab.map(f, examples, {name})")
    if type(error) is TypeError and (signature := unfit(undecorated(f), sequences, shared)):
        forget_example(error)  # the call is wrong, not an example
        given = f"an element of each sequence ({len(sequences)}), and {', '.join(shared) or 'nothing'} by keyword"
        better = "pass shared arguments as ab.map(f, examples, name=value)"
        if len(sequences) == 1 and type(sequences[0]) is list and type(pair := [*sequences[0], 0][0]) is tuple:
            better = f"an element is a tuple of {len(pair)}: write ab.map(f, *zip(*examples), name=value)"
        error.add_note(f"the function takes {signature}; ab.map passed it {given}; {better}")


def _count(sequences: Sequence[Any]) -> int:
    """The number of examples of a map; -1 if no sequence says it."""
    for each in sequences:
        with contextlib.suppress(TypeError):
            return each.batch_size if isinstance(each, Batch) else len(each)
    return -1


def map_with_stats(f: Callable[..., Any], *example_sequences: Any, **shared: Any) -> "tuple[list[Any], Stats]":
    """Like `map`; returns the results and the statistics of its launches."""
    try:
        return with_options(lambda: _mapped(f, example_sequences, unwrap_shared((), shared)[1]), **pins(f))
    except Exception as error:
        _note_arguments(error, f, example_sequences, shared)
        raise


def _mapped(
    f: Any, example_sequences: Sequence[Any], shared: dict[str, Any], begun: Begun | None = None
) -> "tuple[list[Any], Stats]":
    # the arguments that are the same for all examples, by position
    fixed = {at: each.value for at, each in enumerate(example_sequences) if type(each) is Shared}
    columns = [each for at, each in enumerate(example_sequences) if at not in fixed] if fixed else example_sequences
    if len(columns) > 1:
        _warn_of_arrays(columns)
    results, stats = engines().run_map(undecorated(f), columns, shared, fixed, begun=begun)
    if fixed and stats.looped is not None:
        warn_fallback(f"ab.map could not run these examples together ({stats.looped})")
    return results, stats


def shared(x: Any) -> Any:  # it stands in the place of a sequence, whose type it need not have
    """Mark a positional argument of `ab.map`, or of a decorated function, as the same for all examples.

    Args:
        x: anything: an array of weights, a table, a dict of parameters.

    Returns:
        A `Shared` object to pass to `ab.map` in place of a sequence; every example gets `x`. A function decorated with
        `ab.batch` gets `x` itself, with or without a batch among its arguments.

    >>> import numpy as np
    >>> map(lambda x, w: x @ w, [np.ones(2), np.zeros(2)], shared(np.array([1.0, 2.0])))
    [np.float64(3.0), np.float64(0.0)]
    """
    return x if type(x) is Shared else Shared(x)


def _warn_of_arrays(sequences: Sequence[Any]) -> None:
    """Warn about an array beside lists of examples: its rows are zipped with them, which may not be intended."""
    if not any(isinstance(each, list | tuple) for each in sequences):
        return
    for at, each in enumerate(sequences):
        if isinstance(each, np.ndarray | Table) or (is_boxed(each) and rank_of(each) != BATCH_RANK):
            warn_user(
                f"ab.map reads argument {at + 1}, an array of shape {each.shape}, as one row for each example; to "
                "share all of it, pass it by keyword (W=W) or as ab.shared(W); if its rows are meant, pass list(W)"
            )


def undecorated(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `ab.batch` decorated; any other function unchanged."""
    return f.__wrapped__ if hasattr(type(f), "_ab_batch") else f  # type: ignore[attr-defined]


def lazy() -> "Lazy":
    """A recorder for a `with` block.

    Returns:
        A `Lazy`, a context manager: call it with an array to get one whose operations are recorded.

    >>> import numpy as np
    >>> with lazy() as recorder:
    ...     xs = [recorder(np.full(3, float(i))) for i in range(4)]
    ...     sums = [(x * 2).sum() for x in xs]
    >>> [float(np.asarray(s)) for s in sums]
    [0.0, 6.0, 12.0, 18.0]
    """
    from autobatch.lazy.manual_recorder import Lazy  # noqa: PLC0415

    return Lazy()


@overload
def grad(f: BatchFunction[P, Any], argnums: _Places = 0, has_aux: bool = False) -> Callable[P, Any]: ...
@overload
def grad(f: Callable[P, Any], argnums: _Places = 0, has_aux: bool = False) -> Callable[P, Any]: ...
@hiding_frames
def grad(f: Callable[P, Any], argnums: _Places = 0, has_aux: bool = False) -> Callable[P, Any]:
    """The gradient of a function that returns one real scalar.

    Args:
        f: any function of NumPy arrays and pytrees of them (dict, list, tuple, namedtuple, dataclass).
        argnums: the index of the positional argument to differentiate; for a sequence of them, the result is a tuple.
        has_aux: `f` returns (scalar, anything), and the result is (gradient, anything).

    Returns:
        A function of the same arguments. The gradient has the structure of the argument: an array of the leaf's shape
        and dtype for a float leaf, `SparseRows` for an `EmbeddingTable`. It is None for a leaf that is neither an array
        nor a number, for a table that cannot be trained, and for a whole number in a dataclass (taken as a setting).
        A leaf that does not influence the result gets zeros.

    Raises:
        DTypeError: any other integer or complex number or array among the leaves; the message names it.
        ShapeError: the result is not a scalar.
        UnsupportedError: the result is a batch, an operation has no gradient, or an object that is not a dataclass
            holds arrays, which would get no gradient.

    Gradients flow through arrays that `f` makes and writes into (`h = np.zeros(n)`, `h[0] = x`), and through lists that
    it gives to NumPy functions (`np.mean([x, y])`): such calls in `f`, and in your functions that it calls, are
    rewritten to the library's. That needs their source; without it they are errors, as is writing into other arrays.
    What `f` changes in its arguments (`model.calls += 1`, `p["mean"] = ...`) stays changed, as after a plain call.

    >>> import numpy as np
    >>> grad(lambda p: (p["w"] * p["w"]).sum())({"w": np.array([1.0, 2.0])})
    {'w': array([2., 4.])}
    """
    return _marked(plain.grad(taped(f), argnums, has_aux), f, argnums, has_aux, False)


@overload
def value_and_grad(f: BatchFunction[P, R], argnums: _Places = 0) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    f: Callable[P, R], argnums: _Places = 0, has_aux: Literal[False] = False
) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    f: Callable[P, tuple[R, Aux]], argnums: _Places = 0, *, has_aux: Literal[True]
) -> Callable[P, tuple[tuple[R, Aux], Any]]: ...
@overload
def value_and_grad(f: Callable[P, Any], argnums: _Places, has_aux: bool) -> Callable[P, tuple[Any, Any]]: ...
@hiding_frames
def value_and_grad(f: Callable[P, Any], argnums: _Places = 0, has_aux: bool = False) -> Callable[P, tuple[Any, Any]]:
    """Like `grad`, but the new function also returns the value.

    Args:
        f, argnums, has_aux: as for `grad`.

    Returns:
        A function of the same arguments that gives (value, gradient), or with `has_aux` ((value, aux), gradient).

    Raises:
        DTypeError, ShapeError, UnsupportedError: as `grad`.

    >>> value, gradient = value_and_grad(lambda x: x * x)(3.0)
    >>> value, gradient
    (9.0, 6.0)
    """
    return _marked(plain.value_and_grad(taped(f), argnums, has_aux), f, argnums, has_aux, True)


@overload
def jvp(f: BatchFunction[..., R], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, Any]: ...
@overload
def jvp(f: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, Any]: ...
@hiding_frames
def jvp(f: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, Any]:
    """The value of a function and its derivative along a direction: the Jacobian-vector product.

    Args:
        f: any function that `grad` takes, but it may return arrays or trees of them; called twice.
        primals: the arguments, a tuple.
        tangents: a tuple with one direction per argument, of the argument's structure and shapes; None for an argument
            that is held fixed. The tangent of a table is an array of its shape.

    Returns:
        (value, tangent): the tangent has the value's structure, shapes and dtypes, and None for a leaf that is not a
        float.

    Raises:
        UnsupportedError: the tuples differ in length, the result is a batch, or as for `grad`.
        StructureError, ShapeError, DTypeError: a tangent differs from its argument in structure, shape or dtype.

    Source: JAX's `jax.jvp`, here by differentiating the gradient.

    >>> import numpy as np
    >>> value, tangent = jvp(lambda x: x * x, (np.array([1.0, 2.0]),), (np.array([1.0, 0.5]),))
    >>> tangent
    array([2., 2.])
    """
    try:
        return plain.jvp(taped(f), primals, tangents)
    finally:
        _forget()


def taped(f: Any) -> Any:
    """`f` rewritten so that gradients flow through its array writes; `f` itself if it is not callable."""
    if not callable(f):
        return f

    def call(*args: Any, **kwargs: Any) -> Any:
        return engines().taped_form(f)(*args, **kwargs)

    call.__wrapped__, call.__name__ = f, getattr(f, "__name__", type(f).__name__)  # type: ignore[attr-defined]
    return call


def _marked(recorded: Callable[..., Any], f: Any, argnums: Any, has_aux: bool, with_value: bool) -> Callable[..., Any]:
    """A gradient function marked with what it differentiates, so that it, and a map of it, can be compiled."""
    recorded._ab_differentiated = described = plain.Gradient.of(undecorated(f), argnums, has_aux, with_value)  # type: ignore[attr-defined]

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            run = functools.partial(engines().run_gradient, recorded, *unwrap_shared(args, kwargs))
            out = with_options(run, **pins(f)) if isinstance(f, BatchFunction) else run()
            _warn_of_outer_names(described, args, out[1] if with_value else out[0] if has_aux else out)
            return out
        except Exception as error:
            hide_frames(error)
            raise
        finally:
            _forget()

    functools.update_wrapper(call, f).__name__ = getattr(f, "__name__", type(f).__name__)
    call._ab_differentiated = described  # type: ignore[attr-defined]
    return call


def _warn_of_outer_names(described: plain.Gradient, args: Sequence[Any], gradient: Any) -> None:
    """Warn, once for a function, if a part of an argument has no gradient, and is read under a name from outside."""
    code = getattr(described.function, "__code__", None)
    if code is None or id(code) in _looked_at:
        return
    _looked_at.put(code)
    with contextlib.suppress(OSError, RecursionError):  # a function without source; an argument that contains itself
        for position, own in zip(described.positions, (gradient,) if described.single else gradient, strict=True):
            if not any(type(each) in (np.ndarray, float) and not np.any(each) for each in leaves(own)):
                continue
            parts = {id(x) for x in (args[position], *leaves(args[position])) if type(x) not in PLAIN}
            for f, values in reached(described.function):
                for name in [k for k, x in values.items() if id(x) in parts and f".{k}" not in inspect.getsource(f)]:
                    warn_user(
                        f"{f.__name__} reads {name} from outside, where it is a constant: it gets no gradient, though "
                        f"it is the argument that is differentiated; pass it to {f.__name__}"
                    )


def _forget() -> None:
    """After the outermost call of a gradient function: drop the rewritten forms, which keep closures alive."""
    if tapes.active_tape() is None:
        engines().taped_form.forget()
