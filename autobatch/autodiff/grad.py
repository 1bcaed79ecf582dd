"""`grad` and `value_and_grad`: reverse-mode gradients of a scalar function over pytrees of parameters."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff import tape as tapes  # by its name functions can be pickled that use it
from autobatch.autodiff.tape import Tape, TapeArray
from autobatch.core import models, pytree
from autobatch.core.abstract_eval import check_own_dtype, dtype_of, shape_of
from autobatch.core.batched import Batched, padding_mask
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.current import current_region
from autobatch.core.memory import collector_paused, keep_freed_memory
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import DTypeError, ForcedValueError, NeedsLoop, ShapeError, UnsupportedError
from autobatch.ops.numpy.indexing import zero_d_p

__all__ = [
    "DifferentiatedInput",
    "Gradient",
    "batch_data",
    "grad",
    "settled",
    "unboxed",
    "value_and_grad",
    "with_data",
]


@dataclasses.dataclass(frozen=True)
class Gradient:
    """What a function that `grad` or `value_and_grad` made gives.

    Attributes:
        function: the function that is differentiated.
        positions: of the arguments with respect to which; single: there is one, and no tuple is given.
        has_aux: the function gives a pair, of which the first part is differentiated.
        with_value: the value is given, too.
    """

    function: Callable[..., Any]
    positions: tuple[int, ...]
    single: bool
    has_aux: bool
    with_value: bool

    @classmethod
    def of(cls, f: Callable[..., Any], argnums: Any, has_aux: bool, with_value: bool) -> "Gradient":
        """That of a call of `grad` or `value_and_grad`."""
        return cls(f, *_positions(argnums), bool(has_aux), with_value)

    def result(self, value: Any, gradient: Any) -> Any:
        """What is given for a value of the function and a gradient."""
        if self.with_value:
            return value, gradient
        return (gradient, value[1]) if self.has_aux else gradient


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of a function that returns one real scalar; what `ab.grad` says, but for arrays that `f` makes."""
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `grad`, and the value too: (value, gradient), or with `has_aux` ((value, aux), gradient).

    Arguments, gradients and errors are those of `grad`; the value has the dtype that `f` gives it.

    >>> value, gradient = value_and_grad(lambda x: x * x)(3.0)
    >>> value, gradient
    (9.0, 6.0)
    """
    if not callable(f):
        raise UnsupportedError(
            f"ab.grad takes a function; got {type(f).__name__}: write ab.grad(f)(x), not ab.grad(f(x))"
        )
    positions, single = _positions(argnums)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _check_call(f, positions, args)
        keep_freed_memory()
        tape = Tape()
        with contextlib.ExitStack() as stack:
            stack.enter_context(collector_paused())
            stack.callback(tape.close)
            stack.callback(tapes.set_active, tapes.active_tape())
            tapes.set_active(tape)
            boxed = list(args)
            inputs: list[DifferentiatedInput] = []
            structures = []
            for position in positions:
                values, structure = models.flatten(args[position], functools.partial(_argument, f, position))
                slots = [DifferentiatedInput.of(tape, value) for value in values]
                if any(slot.error for slot in slots):
                    _refuse_leaf(f, position, structure, slots)
                inputs += slots
                structures.append(structure)
                boxed[position] = pytree.unflatten(structure, [slot.boxed for slot in slots])
            result = _call(f, boxed, kwargs)
            result, aux = _split_aux(result) if has_aux else (result, None)
            result = settled(result, tape)
            _check_result(result)
            found = iter(_backward(tape, result, [slot for slot in inputs if slot.leaf is not None]))
            taken: set[int] = set()
            gradients = iter([None if slot.leaf is None else slot.finish(next(found), taken) for slot in inputs])
            trees = [pytree.unflatten(structure, gradients) for structure in structures]
            value = unboxed(result, tape)
            out = (value, pytree.map_tree(lambda leaf: unboxed(settled(leaf, tape), tape), aux)) if has_aux else value
            return out, trees[0] if single else tuple(trees)

    return wrapper


def _positions(argnums: Any) -> tuple[tuple[int, ...], bool]:
    """The positions of the differentiated arguments, and whether one was given rather than a sequence."""
    single = hasattr(argnums, "__index__")
    try:
        return tuple(operator.index(position) for position in ([argnums] if single else argnums)), single
    except TypeError:
        raise UnsupportedError(
            f"argnums={argnums!r}; expected the position of an argument, or a sequence of positions"
        ) from None


def _call(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return f(*args, **kwargs)
    except (TypeError, ValueError) as error:
        cause = error.__cause__
        if isinstance(cause, ForcedValueError):  # NumPy hides it behind one of its own, which says less
            raise ForcedValueError(*cause.args).with_traceback(error.__traceback__) from None
        raise


class DifferentiatedInput:
    """One leaf of the differentiated arguments: what stands for it inside the function, and how its gradient ends."""

    __slots__ = ("boxed", "error", "leaf", "value")

    def __init__(self, value: Any, leaf: TapeArray | None, boxed: Any, error: str = "") -> None:
        self.value = value
        self.leaf = leaf
        self.boxed = boxed
        self.error = error

    @classmethod
    def of(cls, tape: Tape, value: Any) -> "DifferentiatedInput":
        if isinstance(value, bool) or not (isinstance(value, int | float | complex) or models.is_array_like(value)):
            return cls(value, None, value)
        dtype = dtype_of(value)
        if getattr(value, "trainable", True) is False:  # a table for look-ups only
            return cls(value, None, value)
        if dtype.kind != "f":
            return cls(value, None, value, f"{type(value).__name__} of dtype {dtype}")
        if rank_of(value) == BATCH_RANK:
            leaf = tape.leaf(batch_data(value))
            return cls(value, leaf, with_data(value, leaf.alias()))
        leaf = tape.leaf(value)
        return cls(value, leaf, leaf.alias())

    @property
    def is_setting(self) -> bool:
        return isinstance(self.value, int | np.integer)

    def finish(self, ct: Any, taken: set[int]) -> Any:
        """The gradient as the caller gets it: the leaf's kind, shape and dtype, in memory of its own."""
        value = self.value
        if hasattr(value, "_ab_gradient"):
            unexpanded = ct._ab_unexpanded(taken) if hasattr(ct, "_ab_unexpanded") else None
            return value._ab_gradient(ct, taken) if unexpanded is None else unexpanded
        if rank_of(value) == BATCH_RANK:
            out = _owned(ct, batch_data(value), taken)
            if isinstance(value, Batched) and (mask := padding_mask(value.sizes, value.data.shape[1:])) is not None:
                out = np.where(mask, out, np.zeros((), dtype_of(out)))
            return with_data(value, out)
        return _owned(ct, value, taken)


def _owned(ct: Any, value: Any, taken: set[int]) -> Any:
    """A cotangent in the form of `value`, sharing no memory with another gradient."""
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


# The gradient of a Python float is one, and stays weak in promotion when it is differentiated in turn.
python_float_p = Op("python_float", float, vjp=lambda position, ct, out, args, params: ct)


def batch_data(batch: Any) -> Any:
    """The array of a batch: padded data, or packed values."""
    return batch.data if isinstance(batch, Batched) else batch.values


def with_data(batch: Any, data: Any) -> Any:
    """The same batch with another such array."""
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
            raise UnsupportedError(
                f"argnums={position}, but {_name(f)} was called with {len(args)} positional arguments; pass what is "
                "differentiated by position, or change argnums"
            )
    if current_region() is not None and any(rank_of(x) == BATCH_RANK for arg in args for x in pytree.leaves(arg)):
        raise NeedsLoop("ab.grad of a value of each example")


def _refuse_leaf(
    f: Callable[..., Any], position: int, structure: pytree.TreeDef, slots: Sequence[DifferentiatedInput]
) -> None:
    """Refuse a number or array that has no gradient; a whole number in a dataclass is a setting, not a parameter."""
    places = zip(pytree.paths(structure), pytree.in_dataclass(structure), slots, strict=True)
    wrong = ((path, slot) for path, own, slot in places if slot.error and not (own and slot.is_setting))
    path, slot = next(wrong, ("", None))
    if slot is None:
        return
    where = _argument(f, position) + path
    check_own_dtype(dtype_of(slot.value), where)
    raise DTypeError(
        f"{where} is {slot.error}, which has no gradient; make it a float ({where}.astype(np.float32), or 3.0 for 3), "
        "or pass it outside of the differentiated argument"
    )


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__name__", type(f).__name__)


def _argument(f: Callable[..., Any], position: int) -> str:
    try:
        names = list(inspect.signature(f).parameters)
    except (TypeError, ValueError):  # a C function without a signature
        names = []
    return names[position] if position < len(names) else f"argument {position}"


def _split_aux(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise UnsupportedError(
            f"with has_aux=True the function returns (scalar, auxiliary); it returned {type(result).__name__}"
        )
    return result


def settled(leaf: Any, tape: Tape) -> Any:
    """A result that an interpreter opened inside the function still holds back, computed."""
    force = getattr(leaf, "_ab_force", None)
    return leaf if force is None or rank_of(leaf) < tape.level else force()


def _check_result(result: Any) -> None:
    if rank_of(result) == BATCH_RANK:
        raise UnsupportedError(
            "the differentiated function returned a batch, one value for each example; reduce it over the batch "
            "(`ab.mean(out)`), or take each example's gradient with ab.map(ab.grad(f), xs)"
        )
    if pytree.is_node(result):
        raise UnsupportedError(
            f"the differentiated function returned a {type(result).__name__}; it returns one real scalar, or "
            "(scalar, auxiliary) with has_aux=True"
        )
    if result is None or not (isinstance(result, int | float | complex) or hasattr(result, "dtype")):
        raise UnsupportedError(
            f"the differentiated function returned {'None' if result is None else type(result).__name__}; it returns "
            "one real scalar: has it a `return`?"
        )
    shape, dtype = shape_of(result), dtype_of(result)
    if shape != ():
        raise ShapeError(
            f"the differentiated function returned an array of shape {shape}; it returns one scalar: write "
            ".sum(), .mean() or an index such as [0]"
        )
    if dtype.kind != "f":
        raise DTypeError(
            f"the differentiated function returned a scalar of dtype {dtype}; a gradient needs a real float"
        )


def _backward(tape: Tape, result: Any, inputs: Sequence[DifferentiatedInput]) -> list[Any]:
    leaves = [slot.leaf for slot in inputs if slot.leaf is not None]
    if type(result) is not TapeArray or result.tape is not tape or result.index < 0:
        return [None] * len(leaves)
    return tape.backward(result, np.ones((), result.dtype), leaves, free=True)


def unboxed(leaf: Any, tape: Tape) -> Any:
    """What a value on this tape holds; anything else as it is."""
    if type(leaf) is TapeArray:
        return leaf.value if leaf.tape is tape else leaf
    if rank_of(leaf) == BATCH_RANK and (isinstance(leaf, Batched) or hasattr(leaf, "values")):
        data = batch_data(leaf)
        inner = unboxed(data, tape)
        return leaf if inner is data else with_data(leaf, inner)
    return leaf
