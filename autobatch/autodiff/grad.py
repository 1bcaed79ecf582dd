"""Derivatives of functions over pytrees: `grad`, `value_and_grad`, `vjp` and `jvp`; and `stop_gradient`."""

import contextlib
import copy
import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from autobatch.autodiff import tape as tapes  # a module pickles by name, so functions that use it can be pickled
from autobatch.autodiff.argument_changes import ArgumentChanges
from autobatch.autodiff.tape import Tape, TapeArray
from autobatch.core import parameter_trees, pytree
from autobatch.core.abstract_eval import check_own_dtype, check_plain, dtype_of, shape_of
from autobatch.core.batched import Batched, padding_mask
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.current_region import current_region
from autobatch.core.memory import collector_paused, keep_freed_memory
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.core.pytree import map_tree
from autobatch.errors import DTypeError, ForcedValueError, NeedsLoop, ShapeError, UnsupportedError
from autobatch.ops.rules.aliasing import zero_d, zero_d_p
from autobatch.ops.rules.op_kinds import elementwise

Tree = TypeVar("Tree")


class Gradient(NamedTuple):
    """The arguments with which `grad` or `value_and_grad` made a gradient function.

    Attributes:
        function: the function that is differentiated.
        positions: positions of the differentiated arguments; single: `argnums` was one int, so no tuple is returned.
        has_aux: the function returns (scalar, auxiliary); only the scalar is differentiated.
        with_value: the value is returned as well as the gradient (`value_and_grad`).
    """

    function: Callable[..., Any]
    positions: tuple[int, ...]
    single: bool
    has_aux: bool
    with_value: bool

    @classmethod
    def of(cls, f: Callable[..., Any], argnums: Any, has_aux: bool, with_value: bool) -> "Gradient":
        """A `Gradient` from the arguments of `grad` or `value_and_grad`."""
        return cls(f, *_positions(argnums), bool(has_aux), with_value)

    def result(self, value: Any, gradient: object) -> Any:
        """The return value, from the function's value and its gradient."""
        return (value, gradient) if self.with_value else (gradient, value[1]) if self.has_aux else gradient


def grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *, carries: bool = True
) -> Callable[..., Any]:
    """The gradient of a function that returns one real scalar: `ab.grad`, except for arrays that `f` itself creates."""
    both = value_and_grad(f, argnums, has_aux, carries=carries)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    gradient.__wrapped__ = f  # type: ignore[attr-defined]
    return gradient


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *, carries: bool = True
) -> Callable[..., Any]:
    """Like `grad`, but returns (value, gradient), or with `has_aux` ((value, aux), gradient).

    Arguments, gradients and errors are those of `grad`; the value has the dtype that `f` gives it. What `f` changes in
    its arguments is changed afterwards, as after a plain call, unless `carries` is False.

    >>> value, gradient = value_and_grad(lambda x: x * x)(3.0)
    >>> value, gradient
    (9.0, 6.0)
    """
    if not callable(f):
        raise UnsupportedError(
            f"ab.grad takes a function; got {type(f).__name__}: write ab.grad(f)(x), not ab.grad(f(x))"
        )
    positions, single = _positions(argnums)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _check_call(f, positions, args)
        keep_freed_memory()
        tape = Tape()
        with collector_paused():
            boxed, inputs, structures = list(args), DifferentiatedInputs(tape), []
            for position in positions:
                values, structure = parameter_trees.flatten(args[position], functools.partial(_argument, f, position))
                boxed[position] = pytree.unflatten(structure, inputs.add(values))
                structures.append(structure)
                if inputs.refused:
                    inputs.refuse(f, position, structure)
            changes = ArgumentChanges([(args[position], boxed[position]) for position in positions if carries])
            carry = functools.partial(_carry, changes, inputs, args, kwargs, positions if carries else ())
            try:
                tapes.set_active(tape)
                result = _call(f, boxed, kwargs)
                if tape.refusals:
                    raise tape.refusals[0]
                result, aux = _split_aux(result) if has_aux else (result, None)
                result = result if type(result) is TapeArray else forced(result, tape)
                _check_result(result)
                top = _recorded(result, tape)
                gradients = iter(inputs.gradients([] if top is None else [(top, np.array(1, top.dtype))], free=True))
                trees = [pytree.unflatten(structure, gradients) for structure in structures]
                value = unboxed(result, tape)
                if has_aux:
                    value = value, pytree.map_tree(lambda leaf: unboxed(forced(leaf, tape), tape), aux)
                carry()  # after the walk back, which reads the arrays as they were
            except BaseException:  # an interrupt, too: what else the function has changed stays
                if not tape.refusals:  # else the function alone would not have raised
                    with contextlib.suppress(UnsupportedError):
                        carry()
                raise
            finally:
                tapes.set_active(tape.outer)
                tape.close()
            return value, trees[0] if single else tuple(trees)

    wrapper.__wrapped__ = f  # type: ignore[attr-defined]
    return wrapper


def _carry(
    changes: ArgumentChanges, inputs: "DifferentiatedInputs", args: Sequence[Any], kwargs: dict[str, Any],
    positions: Sequence[int],
) -> None:  # fmt: skip
    """Carry over to the caller's objects what the function has changed in its arguments."""
    given = list(zip(inputs.values, inputs.boxed, strict=True)) if positions else []
    written = [pair for pair in given if type(pair[1]) is TapeArray and pair[1]._ab_value is not pair[0] is not pair[1]]
    changes.carry(
        [(value, forced(box._ab_value, inputs.tape)) for value, box in written] if written else written,
        given,
        lambda: pytree.leaves([[arg for position, arg in enumerate(args) if position not in positions], kwargs]),
        lambda leaf: unboxed(forced(leaf, inputs.tape), inputs.tape),
    )


def _positions(argnums: Any) -> tuple[tuple[int, ...], bool]:
    """The positions of the differentiated arguments, and whether one was given rather than a sequence."""
    if type(argnums) is int:
        return (argnums,), True
    single = hasattr(argnums, "__index__")
    try:
        positions = tuple(operator.index(position) for position in ([argnums] if single else argnums))
    except TypeError:
        raise UnsupportedError(
            f"argnums is {type(argnums).__name__}; expected the position of an argument, or a sequence of positions: "
            "the parameters are passed to the gradient function, ab.grad(f)(params)"
        ) from None
    if len(set(positions)) < len(positions):
        raise UnsupportedError(f"argnums={argnums!r} names an argument twice; name each argument once")
    return positions, single


def _call(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return f(*args, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(cause := error.__cause__, ForcedValueError):  # NumPy replaced it by a less informative error
            raise ForcedValueError(*cause.args).with_traceback(error.__traceback__) from None
        raise


class DifferentiatedInputs:
    """The leaves of the differentiated arguments of one call.

    Attributes:
        values: the leaves; boxed: what the function gets for each, the value itself if it has no gradient.
        places: the nodes on the tape, one for each leaf that has a gradient.
        refused: {number of a leaf: what it is} of those whose dtype has no gradient.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape, self.refused = tape, dict[int, str]()
        self.values, self.boxed, self.places = list[Any](), list[Any](), list[int]()

    def add(self, values: Sequence[Any]) -> list[Any]:
        """Add leaves; returns what the function gets for them."""
        nodes, added = self.tape.nodes, len(self.values)
        place = len(nodes)
        self.values += values
        for value in values:
            if type(value) is np.ndarray and value.dtype.kind == "f" and value.ndim:  # nearly always
                box: Any = TapeArray(self.tape, place, value)
            else:
                box = self._other(value, place)
            self.boxed.append(box)
            place += box is not value
        self.places += range(len(nodes), place)
        nodes += [None] * (place - len(nodes))
        return self.boxed[added:]

    def _other(self, value: Any, place: int) -> Any:
        cls = type(value)
        if hasattr(cls, "_ab_gradient") and not hasattr(cls, "_ab_rank") and value.dtype.kind == "f":  # a table
            return value if getattr(value, "trainable", True) is False else TapeArray(self.tape, place, value)
        if cls is bool or not (isinstance(value, int | float | complex) or parameter_trees.is_array_like(value)):
            return value
        check_plain(value, "a differentiated argument")
        dtype = dtype_of(value)
        if getattr(value, "trainable", True) is False:  # a frozen embedding table
            return value
        if dtype.kind != "f":
            self.refused[len(self.boxed)] = f"{type(value).__name__} of dtype {dtype}"
            return value
        if rank_of(value) == BATCH_RANK:
            return with_data(value, TapeArray(self.tape, place, batch_data(value)))
        box = TapeArray(self.tape, place, value)
        return zero_d(box) if isinstance(value, np.ndarray) else box

    def refuse(self, f: Callable[..., Any], position: int, structure: pytree.TreeDef) -> None:
        """Raise DTypeError for a leaf of the argument added last whose dtype has no gradient.

        An int in a dataclass is a setting, so it is allowed.
        """
        places = zip(pytree.paths(structure), pytree.in_dataclass(structure), strict=True)
        for at, (path, own) in enumerate(places, len(self.values) - structure.num_leaves):
            if at not in self.refused or (own and isinstance(self.values[at], int | np.integer)):
                continue
            where = _argument(f, position) + path
            check_own_dtype(dtype_of(self.values[at]), where)
            raise DTypeError(
                f"{where} is {self.refused[at]}, which has no gradient; make it a float (3.0 for 3, or "
                f"{where}.astype(np.float32)), or keep it out of the differentiated argument (argnums={position})"
            )

    def gradients(self, seeds: Sequence[tuple[TapeArray, Any]], free: bool = False) -> list[Any]:
        """The gradients of all leaves, from (result, cotangent): of its kind, shape and dtype, in its own memory."""
        pairs, taken = zip(self.values, self.boxed, strict=True), set[int]()
        given: Any = *zip(*seeds, strict=True), self.places
        found = iter(self.tape.backward(*given, free=free) if seeds else ())
        return [None if box is value else _gradient(next(found, None), value, taken) for value, box in pairs]


def _gradient(ct: Any, value: Any, taken: set[int]) -> Any:
    """The gradient of a leaf for the caller, in memory that no array in `taken` has."""
    if type(ct) is type(value) is np.ndarray and ct.base is None and ct.flags.owndata and id(ct) not in taken:
        taken.add(id(ct))  # nearly always
        return ct
    if hasattr(value, "_ab_gradient"):
        unexpanded = ct._ab_unexpanded(taken) if hasattr(ct, "_ab_unexpanded") else None
        return value._ab_gradient(ct, taken) if unexpanded is None else unexpanded
    if rank_of(value) == BATCH_RANK:
        out = _as_owned(ct, batch_data(value), taken)
        if isinstance(value, Batched) and (mask := padding_mask(value.sizes, value.data.shape[1:])) is not None:
            out = np.where(mask, out, np.zeros((), dtype_of(out)))
        return with_data(value, out)
    return _as_owned(ct, value, taken)


def _as_owned(ct: Any, value: Any, taken: set[int]) -> Any:
    """A cotangent converted to the kind of `value` (float, NumPy scalar, array), sharing no memory with others."""
    if ct is None:
        ct = np.zeros(getattr(value, "shape", ()), dtype_of(value))
    elif isinstance(ct, SparseCotangent):
        ct = ct.to_dense()
    if type(value) is float:
        return python_float_p(ct)
    if is_boxed(ct):
        return zero_d_p(ct) if type(value) is np.ndarray and not value.ndim else ct
    if isinstance(value, np.generic):
        return dtype_of(value).type(ct)
    if type(ct) is not np.ndarray or ct.base is not None or not ct.flags.owndata or id(ct) in taken:
        ct = np.array(ct)
    taken.add(id(ct))
    return ct


# The gradient of a Python float is a Python float: weak in dtype promotion, also when it is differentiated again.
python_float_p = Op("python_float", float, vjp=lambda position, ct, out, args, params: ct)


def batch_data(batch: Any) -> Any:
    """The array that a batch holds: padded `data`, or packed `values`."""
    return batch.data if isinstance(batch, Batched) else batch.values


def with_data(batch: Any, data: Any) -> Any:
    """A copy of the batch that holds `data` as its padded data or packed values."""
    out = copy.copy(batch)
    if isinstance(batch, Batched):
        out.data = data
        out.guard_data()
    else:
        out.values = data
    return out


def _check_call(f: Callable[..., Any], positions: Sequence[int], args: Sequence[Any]) -> None:
    for position in positions:
        if not 0 <= position < len(args):
            name = getattr(f, "__name__", type(f).__name__)
            raise UnsupportedError(
                f"argnums={position}, but {name} was called with {len(args)} positional arguments; pass what is "
                "differentiated by position, or change argnums"
            )
    if current_region() is not None and any(rank_of(x) == BATCH_RANK for arg in args for x in pytree.leaves(arg)):
        raise NeedsLoop("ab.grad of a value of each example")


def _argument(f: Callable[..., Any], position: int) -> str:
    names = list[str]()
    with contextlib.suppress(TypeError, ValueError):  # a C function without a signature
        names += inspect.signature(f).parameters
    return names[position] if position < len(names) else f"argument {position}"


def _split_aux(result: object) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        given = type(result).__name__ if not is_boxed(result) else "one value"
        raise UnsupportedError(f"with has_aux=True the function returns (scalar, auxiliary); it returned {given}")
    return result


def forced(leaf: object, tape: Tape) -> Any:
    """The leaf of a result; if it is recorded by an interpreter opened inside the function, it is computed first."""
    force = getattr(leaf, "_ab_force", None)
    return leaf if force is None or rank_of(leaf) < tape.level else force()


def _check_result(result: object) -> None:
    if type(result) is TapeArray and result.dtype.kind == "f" and result.shape == ():
        return  # nearly always
    if rank_of(result) == BATCH_RANK:
        raise UnsupportedError(
            "the differentiated function returned a batch, one value for each example; reduce it over the batch "
            "(`ab.mean(out)`), or take each example's gradient with ab.map(ab.grad(f), xs)"
        )
    if pytree.is_node(result):
        raise UnsupportedError(
            f"the differentiated function returned a {type(result).__name__}; expected one real scalar, such as "
            "ab.mean(losses) of a list of numbers, or (scalar, auxiliary) with has_aux=True"
        )
    if result is None or not (isinstance(result, int | float | complex) or hasattr(result, "dtype")):
        raise UnsupportedError(
            f"the differentiated function returned {'None' if result is None else type(result).__name__}; expected "
            "one real scalar: is a `return` missing?"
        )
    shape, dtype = shape_of(result), dtype_of(result)
    if shape != ():
        raise ShapeError(
            f"the differentiated function returned an array of shape {shape}; expected one scalar: write "
            ".sum(), .mean() or an index such as [0]"
        )
    if dtype.kind != "f":
        raise DTypeError(
            f"the differentiated function returned a scalar of dtype {dtype}; a gradient needs a real float"
        )


def unboxed(leaf: Any, tape: Tape) -> Any:
    """The data of a value on this tape; any other value unchanged."""
    if type(leaf) is TapeArray:
        return leaf._ab_value if leaf._ab_tape is tape else leaf
    if rank_of(leaf) == BATCH_RANK and (isinstance(leaf, Batched) or hasattr(leaf, "values")):
        inner = unboxed(data := batch_data(leaf), tape)
        return leaf if inner is data else with_data(leaf, inner)
    return leaf


# Takes one cotangent per leaf of the result (None for a leaf without one); returns one gradient per input.
Pullback = Callable[[Sequence[Any]], list[Any]]


def vjp(f: Callable[[list[Any]], Any], inputs: Sequence[Any]) -> tuple[Any, Pullback]:
    """The value of a function of a list of float arrays and batches, and the function from cotangents to gradients.

    Args:
        f: takes as many values as there are inputs; returns a tree of arrays, batches and anything else.
        inputs: float arrays, and batches of them.

    Returns:
        (value, back). Cotangents and gradients of a batch are arrays like its `data` or `values`. `back` may be called
        any number of times; it keeps the tape alive.

    Source: JAX's `jax.vjp`.

    >>> import numpy as np
    >>> value, back = vjp(lambda xs: {"y": xs[0] * xs[0], "n": 2}, [np.array([1.0, 2.0])])
    >>> value["y"], back([np.array([1.0, 10.0]), None])
    (array([1., 4.]), [array([ 2., 40.])])
    """
    keep_freed_memory()
    tape = Tape()
    given = DifferentiatedInputs(tape)
    boxed = given.add(inputs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(collector_paused())
        stack.callback(tapes.set_active, tapes.active_tape())
        tapes.set_active(tape)
        found, structure = pytree.flatten(f(boxed))
        found = [forced(leaf, tape) for leaf in found]
    recorded = [_recorded(leaf, tape) for leaf in found]

    def back(cotangents: Sequence[Any]) -> list[Any]:
        pairs = [(top, ct) for top, ct in zip(recorded, cotangents, strict=True) if top is not None and ct is not None]
        return [batch_data(g) if rank_of(g) == BATCH_RANK else g for g in given.gradients(pairs)]

    return pytree.unflatten(structure, [unboxed(leaf, tape) for leaf in found]), back


def _recorded(leaf: object, tape: Tape) -> TapeArray | None:
    """The tape's array in a leaf of the result: the leaf itself or a batch's data; None if the leaf is constant."""
    inner = batch_data(leaf) if type(leaf) is not TapeArray and rank_of(leaf) == BATCH_RANK else leaf
    return inner if type(inner) is TapeArray and inner._ab_tape is tape and inner._ab_index >= 0 else None


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """`ab.jvp`, except for arrays that `f` itself creates; by reverse mode twice (the vjp is linear in cotangents)."""
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list) or len(primals) != len(tangents):
        raise UnsupportedError(
            "expected a tuple of primals and a tuple of as many tangents: write ab.jvp(f, (x,), (v,))"
        )
    directions = [_directions(f"tangents[{i}]", x, v) for i, (x, v) in enumerate(zip(primals, tangents, strict=True))]
    moved = [i for i, own in enumerate(directions) if any(v is not None for v in own)]
    value = f(*primals)
    outputs, structure = pytree.flatten(value)
    wanted = [i for i, out in enumerate(outputs) if _is_float(out)]
    if any(rank_of(out) == BATCH_RANK for out in outputs):
        raise UnsupportedError(
            "the function returned a batch; reduce it (`ab.sum(out)`), or take each example's derivative in ab.map"
        )
    results: list[Any] = [None] * len(outputs)

    def along(cotangents: list[Any]) -> Any:
        def weighted(*args: Any) -> Any:
            found = pytree.leaves(f(*args))
            return sum(np.sum(found[i] * ct) for i, ct in zip(wanted, cotangents, strict=True))

        total: Any = 0.0
        for i, gradient in zip(moved, grad(weighted, argnums=moved, carries=False)(*primals), strict=True):
            own = parameter_trees.like_leaves(parameter_trees.flatten(primals[i])[1], gradient, "gradient")
            for g, v in zip(own, directions[i], strict=True):
                total = total if g is None or v is None else total + _inner_product(g, v)
        return total

    zeros = [np.zeros(shape_of(outputs[i]), dtype_of(outputs[i])) for i in wanted]
    for i, tangent in zip(wanted, grad(along)(zeros) if moved and wanted else zeros, strict=True):
        results[i] = _as_type_of(outputs[i], tangent)
    return value, pytree.unflatten(structure, results)


def _directions(where: str, primal: object, tangent: object) -> list[Any]:
    """The checked tangent of each leaf of an argument; None for a leaf that is not a float or has no tangent."""
    values, structure = parameter_trees.flatten(primal)
    if tangent is None:
        return [None] * len(values)
    parts = parameter_trees.like_leaves(structure, tangent, where)
    out: list[Any] = []
    for path, value, part in zip(pytree.paths(structure), values, parts, strict=True):
        if part is None or not _is_float(value):
            out.append(None)
            continue
        if shape_of(part) != shape_of(value):
            raise ShapeError(
                f"{where}{path} has shape {shape_of(part)}; expected that of the argument, {shape_of(value)}"
            )
        if dtype_of(part).kind not in "fiu":
            raise DTypeError(f"{where}{path} is of {dtype_of(part)}; expected floats")
        out.append(part)
    return out


def _inner_product(gradient: Any, direction: Any) -> Any:
    """The inner product of a gradient and a direction; for a table's sparse gradient, over the rows that were read."""
    if isinstance(gradient, SparseCotangent) or hasattr(gradient, "rows"):
        return (gradient.rows * np.asarray(direction)[gradient.ids]).sum()
    return np.sum(gradient * direction)


def _is_float(value: object) -> bool:
    return isinstance(value, float) or (parameter_trees.is_array_like(value) and dtype_of(value).kind == "f")


def _as_type_of(output: object, tangent: Any) -> Any:
    """The tangent of an output, converted to a Python float or NumPy scalar if the output is one."""
    if type(output) is float:
        return float(tangent)
    return dtype_of(output).type(tangent) if isinstance(output, np.generic) else tangent


stop_gradient_p = elementwise(lambda x: x.copy() if isinstance(x, np.ndarray) else x, name="stop_gradient")


def stop_gradient(x: Tree) -> Tree:
    """`x` as a constant: no gradient flows back through the result.

    Args:
        x: an array, a number, a batch, or a tree of them.

    Returns:
        The same values; arrays are copied, leaves that are not arrays are the same objects.

    Source: JAX's `jax.lax.stop_gradient`.

    >>> from autobatch.autodiff.grad import grad
    >>> grad(lambda x: x * stop_gradient(x))(3.0)
    3.0
    """
    return cast("Tree", map_tree(_stop_leaf, x))


def _stop_leaf(leaf: Any) -> Any:
    while type(leaf) is TapeArray:
        leaf = leaf._ab_value
    is_table = hasattr(leaf, "_ab_gradient")  # rows read from it are new arrays
    return leaf if is_table or not (isinstance(leaf, np.ndarray) or is_boxed(leaf)) else stop_gradient_p(leaf)
