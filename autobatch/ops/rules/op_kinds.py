"""Batching rules shared by kinds of ops: elementwise ops, and fallbacks for ops that no padding value leaves correct.

A batch of Python scalars is weak in NumPy's dtype promotion, as the scalar of a single example is (NEP 50).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size, padding_mask
from autobatch.core.cotangent import unbroadcast
from autobatch.core.diagnostics import at_users_line, of_scalars
from autobatch.core.op import BATCH_RANK, Op, is_boxed, rank_of
from autobatch.errors import NeedsLoop, UnsupportedError, note_example
from autobatch.facts.operators import ARITHMETIC, COMPARISONS
from autobatch.facts.types import NUMBERS
from autobatch.ops.rules.dispatch import UFUNCS
from autobatch.ops.rules.padding import align, end_to_end, expect_class, speculate, spread, to_widths
from autobatch.ops.rules.sizes import (
    are_unknown,
    broadcast_sizes,
    has_lengths,
    is_one_in_some,
    lane_count,
    lane_lengths,
    padded_shape,
    padded_width,
    sizes_of,
)


def vjp_columns(columns: Sequence[Callable[..., Any] | None]) -> Callable[..., Any] | None:
    """One vjp for an op, made from one function per argument: `column(ct, out, *args, **params)`.

    A column may return an array of the result's shape; it is summed to the argument's shape and cast to its dtype.
    """
    if not columns:
        return None

    def vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if position >= len(columns):
            raise UnsupportedError(
                f"no vjp for argument {position} of an op that was declared with {len(columns)}; give one for each "
                "argument, None where the result is piecewise constant in it"
            )
        column = columns[position]
        if column is None:
            return None
        if "dtype" in params:
            params = {key: value for key, value in params.items() if key != "dtype"}
        return unbroadcast(column(ct, out, *args, **params), args[position])

    return vjp


def elementwise(
    ufunc: Callable[..., Any], *vjps: Callable[..., Any] | None, pad: Any = None, name: str | None = None,
    fused: dict[str, Any] | None = None, identity: Any = None, each: Callable[..., Any] | None = None,
    number: Any = None,
) -> Op:  # fmt: skip
    """Make an elementwise op; operands broadcast against each other as in NumPy.

    An op made from a ufunc, without a name of its own, runs every call of that ufunc, in every execution mode, compiled
    code and its gradients included; it replaces an earlier op of the ufunc.

    Args:
        ufunc: the implementation; static parameters are passed by keyword.
        vjps: one `vjp(ct, out, *args, **params)` per argument, before un-broadcasting. None for an argument, or no
            vjps at all, means that the op is piecewise constant in it: the gradient is zero.
        pad: a value (or a tuple with one per operand, None meaning 1) at which the function and its derivative are
            finite; it replaces the padding where arbitrary values could cause warnings. None: 1.
        name: the op's name in reports and errors; None: the implementation's name.
        fused: how kernels that compute several ops in one pass write it: the fields of `blocks.kernel_codegen.Rule`.
        identity: the value (or a function of the dtype that gives it) that leaves any other operand unchanged. Chains
            of calls then run as one.
        each: instead of `vjps`, `each(ct, out, operand)`: the vjp of any operand of an op that takes any number of them
            in any order. With an identity, its ufunc also has a `reduce`.
        number: the function of Python's `math` that computes it for one number; its name in compiled code, if another.

    Returns:
        The op, a function of its operands.

    >>> cube = elementwise(lambda x: x**3, lambda ct, out, x: 3 * ct * x**2, name="cube")
    >>> cube(np.array([1.0, 2.0]))
    array([1., 8.])
    """
    expect_class("" if name is None else name, str, "elementwise(name=)")
    if each is not None:
        expect_class(ufunc, np.ufunc, "elementwise(each=)")
        vjps = tuple((lambda ct, out, *args, at=at, **_: each(ct, out, args[at])) for at in range(ufunc.nin))  # type: ignore[attr-defined]
    op = Op(
        name or str(getattr(ufunc, "__name__", "elementwise")),
        ufunc,
        rule=elementwise_rule,
        vjp=vjp_columns(vjps),
        kind="elementwise",
        pad=pad,
        fused=fused,
        identity=identity if identity is None or callable(identity) else lambda dtype: identity,
        each=each,
        number=(number, f"math.{number.__name__}") if callable(number) else number,
        operator=ufunc in [each.ufunc for each in ARITHMETIC[:7]] or name in ("divmod[0]", "divmod[1]"),
    )
    if name is None and isinstance(ufunc, np.ufunc):
        UFUNCS[ufunc] = op
    return op


def words_of(op: Op, operands: Sequence[Any]) -> Callable[..., Any]:
    """What runs an op so that its warnings say what they say of one example: `at_users_line` or `of_scalars`.

    NumPy has code of its own for an operator between scalars, unless both have to be cast to a third dtype.
    """
    if not op.operator:
        return at_users_line
    dtypes = []
    for x in operands:
        if isinstance(x, Batched):
            if x.sizes:
                return at_users_line
            dtypes += [] if x.scalar else [x.data.dtype]
        elif isinstance(x, np.generic):
            dtypes.append(x.dtype)
        elif type(x) not in NUMBERS:
            return at_users_line
    return of_scalars if dtypes and np.result_type(*dtypes) in dtypes else at_users_line


def as_called(op: Any, operands: Sequence[Any]) -> Any:
    """An op, or between scalars the same without the operator's words: what a call of the ufunc by its name runs."""
    return _called(op) if getattr(op, "operator", False) and not any(map(ndim_of, operands)) else op


_called = functools.cache(lambda op: dataclasses.replace(op, operator=False))


def elementwise_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """The batching rule of elementwise ops.

    Operands of equal sizes (every step of a recurrent network) go straight to the op. If lengths vary and the op warns
    or raises, the padding may be the cause, so the op runs again on padding filled with harmless values.
    """
    x = operands[0]
    if len(operands) == 1:
        if x.scalar is None:
            if Lengths not in map(type, x.sizes):
                return Batched(op(x.data, **params), x.sizes)
            data = x.data
            if op.pad is not None and are_unknown(x.sizes):
                return _aligned(op, operands, params)
            return Batched(speculate(lambda: op(data, **params), lambda: _aligned(op, operands, params).data), x.sizes)
    elif len(operands) == 2:
        y = operands[1]
        if isinstance(x, Batched):
            if x.scalar is None:
                if isinstance(y, Batched):
                    if y.scalar is None and x.sizes == y.sizes:
                        return _alike(op, operands, params, x.data, y.data, x.sizes)
                elif _broadcasts_to(y, x):
                    return _alike(op, operands, params, x.data, y, x.sizes)
        elif y.scalar is None and _broadcasts_to(x, y):
            return _alike(op, operands, params, x, y.data, y.sizes)
    return _aligned(op, operands, params)


def _alike(op: Op, operands: Sequence[Any], params: dict[str, Any], x: Any, y: Any, sizes: tuple[Size, ...]) -> Batched:
    """An op on two operands that need no alignment: both of the same sizes, or one shared and broadcastable."""
    if Lengths not in map(type, sizes):
        return Batched(op(x, y, **params), sizes)
    left, right = operands
    if isinstance(left, Batched) and isinstance(right, Batched):
        simple = x.shape == y.shape
    else:
        data, shared = (x, y) if isinstance(left, Batched) else (y, x)
        simple = not is_boxed(shared) or hasattr(data, "_ab_unpadded")  # its gradient sums over lanes
    if not simple or (op.pad is not None and are_unknown(sizes)):
        return _aligned(op, operands, params)
    return Batched(speculate(lambda: op(x, y, **params), lambda: _aligned(op, operands, params).data), sizes)


def _broadcasts_to(shared: Any, x: Batched) -> bool:
    """True if a shared operand broadcasts against the last dimensions of `x` without changing the sizes of `x`."""
    if type(shared) in NUMBERS:
        return True
    shape = shape_of(shared)
    return not shape or (len(shape) <= len(x.sizes) and shape == x.sizes[len(x.sizes) - len(shape) :])


def _aligned(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    operands = promote_weak(op, operands, params)
    batched = [x for x in operands if isinstance(x, Batched)]
    sizes = broadcast_sizes([sizes_of(x) for x in operands if type(x) not in NUMBERS])
    if not any(has_lengths(x.sizes) for x in batched):
        static: Any = sizes
        arrays = [align(x.data, x.sizes, sizes, static, True) if isinstance(x, Batched) else x for x in operands]
        return Batched(op(*arrays, **params), sizes)
    if any(is_one_in_some(sizes_of(x), sizes) for x in operands if type(x) not in NUMBERS):
        return run_by_length(op, operands, params)
    packed = not has_lengths(sizes[1:]) and any(hasattr(x.data, "_ab_unpadded") for x in batched)
    shape = (batched[0].batch_size, *map(padded_width, sizes)) if packed else padded_shape(batched[0].batch_size, sizes)
    extents = shape[1:]
    pads = op.pad if isinstance(op.pad, tuple) else (op.pad,) * len(operands)
    arrays = []
    for x in operands:
        if type(x) not in NUMBERS:
            own, data = sizes_of(x), x.data if isinstance(x, Batched) else x
            x = spread(align(data, own, sizes, extents, isinstance(x, Batched)), own, sizes, shape)
        arrays.append(x)

    def cleaned() -> Any:
        mask = padding_mask(sizes, extents)
        harmless = [_fill_all(x, mask, 1 if pad is None else pad) for x, pad in zip(arrays, pads, strict=True)]
        return op(*harmless, **params)

    if op.pad is not None and are_unknown(sizes):  # a warning would end the launch of the block
        return Batched(cleaned(), sizes)
    return Batched(speculate(lambda: op(*arrays, **params), cleaned), sizes)


def _fill_all(x: Any, mask: Any, pad: Any) -> Any:
    if mask is None or type(x) in NUMBERS:
        return x
    dtype = dtype_of(x)
    return x if dtype.kind not in "biufc" else np.where(mask, x, np.asarray(pad, dtype))


_PYTHON = (int, float, complex)
_COMPARISONS = [each.ufunc for each in COMPARISONS]


def promote_weak(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Cast batches of Python scalars to the dtype that NumPy's promotion gives a Python scalar in their place.

    Raises:
        OverflowError: a Python integer does not fit the other operand's integer dtype; NumPy's message.
    """
    ufunc = op.impl
    weak = _PYTHON if isinstance(ufunc, np.ufunc) else NUMBERS  # to a ufunc, Python's bools are those of NumPy
    if "dtype" in params or not any(isinstance(x, Batched) and x.scalar in weak for x in operands):
        return [Batched(x.data, x.sizes) if isinstance(x, Batched) and x.scalar else x for x in operands]
    classes = [x.scalar if isinstance(x, Batched) else type(x) for x in operands]
    values = [x.data if isinstance(x, Batched) else x for x in operands]
    kinds: list[Any] = [each if each in weak else dtype_of(x) for each, x in zip(classes, values, strict=True)]
    if isinstance(ufunc, np.ufunc):
        wanted = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout))
    else:
        wanted = (np.result_type(*(k(0) if isinstance(k, type) else k for k in kinds)),) * len(kinds)
    return [
        _cast(x, dtype, ufunc) if isinstance(x, Batched) and x.scalar else x
        for x, dtype in zip(operands, wanted, strict=False)
    ]


def _cast(x: Batched, dtype: np.dtype, ufunc: Any) -> Batched:
    data = x.data
    if data.dtype == dtype:
        return Batched(data, x.sizes)
    if x.scalar is int and dtype.kind in "iu":
        if ufunc in _COMPARISONS:
            return Batched(data, x.sizes)  # NumPy compares a Python integer of any size exactly
        limits = np.iinfo(dtype)
        wrong = (data < limits.min) | (data > min(limits.max, np.iinfo(np.int64).max))
        if np.any(wrong):
            lane = int(np.argmax(wrong))
            message = f"Python integer {int(data[lane])} out of bounds for {dtype.name}"
            raise note_example(OverflowError(message), lane)
    with np.errstate(under="ignore"):  # which NumPy does not report of Python's numbers
        return Batched(data.astype(dtype), x.sizes)


def run_by_length(
    op: Op, operands: Sequence[Any], params: dict[str, Any], axes: Sequence[int] | None = None
) -> Batched:
    """Run `op` where no padding value along `axes` (None: along any) leaves the result unchanged.

    Lanes of equal lengths along `axes` run as one batch without padding there, so results equal those of each example
    alone exactly.
    """

    def lengths_of(x: Any) -> list[np.ndarray]:
        if not isinstance(x, Batched):
            return []
        return [n.values for at, n in enumerate(x.sizes) if isinstance(n, Lengths) and (axes is None or at in axes)]

    def of_lanes(x: Any, members: np.ndarray) -> Any:
        if not isinstance(x, Batched):
            return x
        sizes: list[Size] = []
        for at, size in enumerate(x.sizes):
            own = isinstance(size, Lengths) and (axes is None or at in axes)
            lanes = size.values[members] if isinstance(size, Lengths) else None
            sizes.append(size if lanes is None else int(lanes.max(initial=0)) if own else Lengths(lanes))
        crop = [slice(size) if isinstance(size, int) else slice(None) for size in sizes]
        return Batched(x.data[members][(slice(None), *crop)], sizes, x.scalar)

    keys = np.stack([each for x in operands for each in lengths_of(x)], axis=1)
    lanes = [np.arange(0)]
    if len(keys):
        _, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        lanes = [np.flatnonzero(inverse == group) for group in range(inverse.max() + 1)]
    outs = [op.rule(op, [of_lanes(x, members) for x in operands], params) for members in lanes]  # type: ignore[misc]
    return join_groups(outs, lanes)


def join_groups(outs: Sequence[Batched], lanes: Sequence[np.ndarray]) -> Batched:
    """Join the results of groups of lanes into one batch in lane order; `lanes`: the lane numbers of each group."""
    if len(outs) == 1:
        return outs[0]
    rank = outs[0].rank
    extents = [max(out.data.shape[1 + axis] for out in outs) for axis in range(rank)]
    padded = [to_widths(out.data, extents) for out in outs]
    order = np.argsort(np.concatenate(lanes), kind="stable")
    sizes: list[Size] = []
    for axis in range(rank):
        parts = [out.sizes[axis] for out in outs]
        if all(isinstance(size, int) and size == parts[0] for size in parts):
            sizes.append(parts[0])
            continue
        flat = [lane_lengths(size, len(members)) for size, members in zip(parts, lanes, strict=True)]
        sizes.append(Lengths(np.concatenate(flat)[order]))
    return Batched(end_to_end(padded)[order], sizes)


_detach_p = Op("values", lambda x: x)  # no vjp, so its result carries no gradient


def detach(x: Any) -> np.ndarray:
    """The plain NumPy values of an array; no gradient flows back through them."""
    return np.asarray(_detach_p(x))


def python_class(x: Any) -> Any:
    """The class of the Python numbers that `x` is or stands for; None for others."""
    found = getattr(x, "scalar", None) or getattr(x.aval if hasattr(type(x), "aval") else None, "weak", None)
    return found or (type(x) if type(x) in (bool, int, float, complex) else None)


def check_numbers(values: Any, dtype: np.dtype) -> None:
    """Check numbers that NumPy converts to an integer dtype one by one, as it does not check whole arrays.

    Raises:
        NeedsLoop: the dtype does not hold a number of some example of a batch, which NumPy raises an error for.
        OverflowError, ValueError: as NumPy, for numbers of one example.
    """
    if dtype.kind not in "iu" or np.can_cast(dtype_of(values), dtype, "safe"):
        return
    known = np.asarray(detach(values.data if rank_of(values) == BATCH_RANK else values))
    try:
        np.array(known.reshape(-1).tolist(), dtype)
    except (OverflowError, ValueError):
        if rank_of(values) != BATCH_RANK:
            raise
        raise NeedsLoop(f"a number that {dtype} cannot hold") from None


def looped_op(name: str, impl: Callable[..., Any], *, dynamic: bool = True) -> Op:
    """An op without a gradient whose batching rule loops over the examples; result sizes may differ by example.

    Args:
        dynamic: the result's shape depends on operand values, so a lazy trace must compute them first.
    """
    return Op(name, impl, rule=lane_by_lane, vjp=_no_gradient, data_dependent=dynamic, kind="lanewise")


def _no_gradient(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    raise UnsupportedError("this function has no gradient here")


def lane_by_lane(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """A batching rule that calls the op's implementation once per example."""
    lanes = lane_count(operands)
    columns = [_lanes(x) if isinstance(x, Batched) else [detach(x) if is_boxed(x) else x] * lanes for x in operands]
    results = [np.asarray(op.impl(*row, **params)) for row in zip(*columns, strict=True)]
    recorded = any(is_boxed(x.data if isinstance(x, Batched) else x) for x in operands)
    if recorded and any(result.dtype.kind in "fc" for result in results):
        raise UnsupportedError(f"no gradient flows through {op.name}")  # whole numbers and truth values have none
    if not results:
        dummies = [np.zeros(x.data.shape[1:], x.data.dtype) if isinstance(x, Batched) else x for x in operands]
        empty = np.asarray(op.impl(*dummies, **params))
        ragged = [Lengths([]) if op.data_dependent else size for size in empty.shape]
        return Batched(np.zeros((0, *empty.shape), empty.dtype), ragged)
    shapes = np.array([result.shape for result in results], np.int64).reshape(lanes, results[0].ndim)
    sizes: list[Size] = [
        Lengths(column) if op.data_dependent or (column != column[0]).any() else int(column[0]) for column in shapes.T
    ]
    data = np.zeros((lanes, *shapes.max(axis=0, initial=0)), results[0].dtype)
    for lane, result in enumerate(results):
        place: Any = (lane, *map(slice, result.shape))
        data[place] = result
    return Batched(data, sizes)


def _lanes(x: Batched) -> list[Any]:
    data = detach(x.data)
    return data.tolist() if x.scalar else examples(data, x.sizes)


def examples(data: Any, sizes: Sequence[Size]) -> list[Any]:
    """The examples of a padded array, each without its padding."""
    corners = [lane_lengths(size, len(data)) for size in sizes]
    places: list[Any] = [(lane, *(slice(int(corner[lane])) for corner in corners)) for lane in range(len(data))]
    return [data[place] for place in places]
