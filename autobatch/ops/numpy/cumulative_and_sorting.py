"""Functions along one axis: running sums and products, sorting, differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.ops.numpy.reductions import highest, one_axis
from autobatch.ops.rules.dispatch import UFUNCS, Declined, as_array, implements, name_of
from autobatch.ops.rules.index_rule import on_axis
from autobatch.ops.rules.op_kinds import by_length
from autobatch.ops.rules.padding import closed, fill, quietly
from autobatch.ops.rules.sizes import normalise_axis


def _along_one_axis(rule: Callable[[Op, Batched, int, dict[str, Any]], Batched]) -> Callable[..., Batched]:
    """The rule of an op along one axis: `rule(op, x, axis, params for the batch's data)`, and of axis=None."""

    def whole(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
        x, axis = operands[0], params["axis"]
        if axis is None and x.rank != 1:
            return _flattened(op, x, params)
        return rule(op, x, axis or 0, {**params, "axis": (axis or 0) + 1})

    return whole


def _flattened(op: Op, x: Batched, params: dict[str, Any]) -> Batched:
    """The result for axis=None: the op on each example's elements in one row."""
    if any(isinstance(size, Lengths) for size in x.sizes):
        return by_length(op, x, params, range(x.rank))
    width = int(np.prod(x.data.shape[1:], dtype=np.int64))
    flat = np.reshape(x.data, (x.batch_size, width))
    return Batched(op(flat, **{**params, "axis": 1}), (width,))


def _scan(function: Callable[..., Any], name: str, identity: int, vjp: Callable[..., Any]) -> Op:
    """A running sum or product. Padding comes last: it changes nothing forward, and its cotangent is zero."""

    def impl(x: Any, *, axis: int | None, dtype: Any = None) -> Any:
        return function(x, axis=axis, dtype=dtype)

    @_along_one_axis
    def rule(op: Op, x: Batched, axis: int, down: dict[str, Any]) -> Batched:
        if not isinstance(x.sizes[axis], Lengths):
            return Batched(quietly(lambda: op(x.data, **down), lambda: op(fill(x, identity), **down)), x.sizes)
        data = fill(x, identity) if is_boxed(x.data) else x.data
        out = quietly(lambda: op(data, **down), lambda: op(fill(x, identity), **down))
        return Batched(closed(out, x.sizes), x.sizes)

    def backward(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        x, axis = args[0], params["axis"]
        if axis is None:
            flat = np.reshape(x, (-1,))
            return unbroadcast(np.reshape(vjp(ct, out, flat, 0), shape_of(x)), x)
        return unbroadcast(vjp(ct, out, x, axis), x)

    return Op(name, impl, rule=rule, vjp=backward, kind="scan")


def _cumsum_vjp(ct: Any, out: Any, x: Any, axis: int) -> Any:
    return np.flip(np.cumsum(np.flip(ct, axis), axis=axis), axis)


def _cumprod_vjp(ct: Any, out: Any, x: Any, axis: int) -> Any:
    """With the products before j, and what comes after by Horner's scheme: right where some elements are zero."""
    n = shape_of(x)[axis]
    if n == 0:
        return ct
    at = (slice(None),) * axis
    after = ct[(*at, slice(n - 1, n))]
    parts = [after]
    for j in range(n - 2, -1, -1):
        after = ct[(*at, slice(j, j + 1))] + x[(*at, slice(j + 1, j + 2))] * after
        parts.append(after)
    one = np.ones_like(ct[(*at, slice(0, 1))])
    before = np.concatenate([one, out[(*at, slice(0, n - 1))]], axis=axis)
    return before * np.concatenate(parts[::-1], axis=axis)


cumsum_p = _scan(np.cumsum, "cumsum", 0, _cumsum_vjp)
cumprod_p = _scan(np.cumprod, "cumprod", 1, _cumprod_vjp)


def _accumulate(x: Any, *, ufunc: np.ufunc, axis: int, dtype: Any = None) -> Any:
    return ufunc.accumulate(x, axis=axis, dtype=dtype)


@_along_one_axis
def _accumulate_rule(op: Op, x: Batched, axis: int, down: dict[str, Any]) -> Batched:
    """The rule as it is: padding comes last, so no element before depends on it."""
    data = fill(x, 1) if is_boxed(x.data) else x.data
    return Batched(closed(quietly(lambda: op(data, **down), lambda: op(fill(x, 1), **down)), x.sizes), x.sizes)


def _accumulate_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The chain rule from the last step to the first, each step being one call of the ufunc."""
    x, axis = args[0], params["axis"]
    step: Any = UFUNCS[params["ufunc"]]
    n = shape_of(x)[axis]
    if step.vjp is None:
        return None
    if n == 0:
        return ct

    def at(values: Any, j: int) -> Any:
        return values[on_axis(axis, slice(j, j + 1))]

    after, parts = at(ct, n - 1), []
    for j in range(n - 1, 0, -1):
        operands = at(out, j - 1), at(x, j)
        parts.append(step.vjp(1, after, at(out, j), operands, {}))
        after = at(ct, j - 1) + step.vjp(0, after, at(out, j), operands, {})
    return unbroadcast(np.concatenate([after, *parts[::-1]], axis=axis), x)


# Params: ufunc, axis (non-negative), dtype.
accumulate_p = Op("accumulate", _accumulate, rule=_accumulate_rule, vjp=_accumulate_vjp, kind="scan")


def accumulate(ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None) -> Any:
    """`ufunc.accumulate`, for ufuncs that have an op."""
    if ufunc not in UFUNCS or axis is None:
        raise Declined(f"{name_of(ufunc)}.accumulate has no batching rule")
    if ndim_of(array) == 0:
        raise TypeError("cannot accumulate on a scalar")
    params = {} if dtype is None else {"dtype": np.dtype(dtype)}
    return accumulate_p(array, ufunc=ufunc, axis=normalise_axis(axis, ndim_of(array)), **params)


def _last(dtype: np.dtype) -> Any:
    """The value that sorts after all others; among equals, padding comes last."""
    return np.nan if dtype.kind == "f" else highest(dtype)


@_along_one_axis
def _sort_rule(op: Op, x: Batched, axis: int, down: dict[str, Any]) -> Batched:
    if not isinstance(x.sizes[axis], Lengths):
        return Batched(op(x.data, **down), x.sizes)
    dtype = dtype_of(x.data)
    stable = down.get("kind") in ("stable", "mergesort")
    if dtype.kind not in "biuf" or (op is argsort_p and not stable):
        return by_length(op, x, {**down, "axis": axis}, (axis,))  # the order of ties is each length's own
    out = op(fill(x, _last(dtype), (axis,)), **down)
    return Batched(closed(out, x.sizes), x.sizes)


def _sort_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, axis = args[0], params["axis"]
    flat = np.reshape(x, (-1,)) if axis is None else x
    axis = 0 if axis is None else axis
    order = np.argsort(np.argsort(flat, axis=axis, kind="stable"), axis=axis, kind="stable")
    return np.reshape(np.take_along_axis(ct, order, axis), shape_of(x))


# Params: axis (non-negative, or None: flattened), kind.
sort_p = Op("sort", np.sort, rule=_sort_rule, vjp=_sort_vjp, kind="scan")
argsort_p = Op("argsort", np.argsort, rule=_sort_rule, kind="scan")


def _scan_axis(a: Any, axis: Any) -> int | None:
    """The axis of a scan; an array without dimensions is taken as one of length 1."""
    at = one_axis(a, axis)
    return at if ndim_of(a) else None


def _register(op: Op, scan: Any) -> None:
    """A running sum or product."""

    @implements(scan)
    def run(a: Any, axis: Any = None, dtype: Any = None) -> Any:
        return op(a, axis=_scan_axis(a, axis), **({} if dtype is None else {"dtype": np.dtype(dtype)}))


_register(cumsum_p, np.cumsum)
_register(cumprod_p, np.cumprod)


def _sort_params(a: Any, axis: Any, kind: Any, stable: Any) -> dict[str, Any]:
    if stable is not None:
        if kind is not None:
            raise ValueError("`kind` and `stable` parameters can't be provided at the same time. Use only one of them.")
        kind = "stable" if stable else None
    return {"axis": _scan_axis(a, axis), "kind": kind}


@implements(np.sort)
def _np_sort(a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Any:
    if ndim_of(a) == 0 and axis is not None:
        normalise_axis(axis, 0)
    return sort_p(a, **_sort_params(a, axis, kind, stable))


@implements(np.argsort)
def _np_argsort(a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Any:
    return argsort_p(a, **_sort_params(a, axis, kind, stable))


@implements(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    flat = np.reshape(ary, (-1,))
    parts = [flat[1:] - flat[:-1]]
    if to_begin is not None:
        parts.insert(0, np.reshape(as_array(to_begin), (-1,)).astype(dtype_of(ary)))
    if to_end is not None:
        parts.append(np.reshape(as_array(to_end), (-1,)).astype(dtype_of(ary)))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
