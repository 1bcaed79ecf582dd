"""Functions along one axis: cumulative sums and products, sorting, differences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.errors import Unsupported
from autobatch.ops.numpy.elementwise import highest
from autobatch.ops.numpy.reductions import along_one
from autobatch.ops.rules.dispatch import UFUNCS, as_array, implements, leave_to_python, name_of, source
from autobatch.ops.rules.index_rule import on_axis
from autobatch.ops.rules.op_kinds import run_by_length, vjp_columns
from autobatch.ops.rules.padding import fill, mask_cotangent, speculate
from autobatch.ops.rules.sizes import normalise_axis


def _inside(params: dict[str, Any]) -> dict[str, Any]:
    """The params of an op along one axis, with the axis counted in the batch's data: plus one."""
    return {**params, "axis": params["axis"] + 1}


def _scan_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    """The batching rule of scans: padding comes last, so no valid element of the result depends on it."""
    x, down = operands[0], _inside(params)
    data = fill(x, 1) if is_boxed(x.data) else x.data
    out = speculate(lambda: op(data, **down), lambda: op(fill(x, 1), **down))
    return Batched(mask_cotangent(out, x.sizes), x.sizes)


def _accumulate_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The chain rule from the last step to the first; each step applies the ufunc's own vjp."""
    x, axis = args[0], params["axis"]
    step: Any = UFUNCS[params["ufunc"]]
    n = shape_of(x)[axis]
    if step.vjp is None:
        return None
    if params["ufunc"] is np.add:
        return unbroadcast(np.flip(np.cumsum(np.flip(ct, axis), axis=axis), axis), x)
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
accumulate_p = Op(
    "accumulate", lambda x, *, ufunc, axis, dtype=None: ufunc.accumulate(x, axis=axis, dtype=dtype), rule=_scan_rule,
    vjp=_accumulate_vjp, kind="scan",
)  # fmt: skip


def accumulate(ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None) -> Any:
    """`ufunc.accumulate`, for ufuncs that have an op."""
    if ufunc not in UFUNCS or axis is None:
        raise Unsupported(f"{name_of(ufunc)}.accumulate has no batching rule")
    if ndim_of(array) == 0:
        raise TypeError("cannot accumulate on a scalar")
    params = {} if dtype is None else {"dtype": np.dtype(dtype)}
    return accumulate_p(array, ufunc=ufunc, axis=normalise_axis(axis, ndim_of(array)), **params)


@source()
def accumulate_one(x, ufunc, axis):
    """`ufunc.accumulate` of a vector, or a matrix, of the result's dtype."""
    out = x.copy()
    rows = out if np.ndim(x) == 1 else np.moveaxis(out, axis, 0)
    for i in range(1, len(rows)):
        rows[i] = ufunc(rows[i - 1], rows[i])
    return out


@source()
def scattered_one(x, values, ufunc, places, columns=None):
    """`ufunc.at`, in place, for the items at places, or at pairs of a place and a column."""
    if columns is not None and len(columns) != len(places):
        leave_to_python()
    items = np.broadcast_to(values, (len(places), *x.shape[1 if columns is None else 2 :])).copy()
    for k in range(len(places)):
        at = places[k] if columns is None else (places[k], columns[k])
        x[at] = ufunc(x[at], items[k])


SCANS: dict[Any, np.ufunc] = {np.cumsum: np.add, np.cumprod: np.multiply}


def _sort_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, axis, down = operands[0], params["axis"], _inside(params)
    if not isinstance(x.sizes[axis], Lengths):
        return Batched(op(x.data, **down), x.sizes)
    dtype = dtype_of(x.data)
    stable = down.get("kind") in ("stable", "mergesort")
    if dtype.kind not in "biuf" or not dtype.isnative or (op is argsort_p and not stable):
        return run_by_length(op, operands, params, (axis,))  # the order of ties depends on the length
    last = np.nan if dtype.kind == "f" else highest(dtype)  # a stable sort leaves padding behind its equals
    return Batched(mask_cotangent(op(fill(x, last, (axis,)), **down), x.sizes), x.sizes)


def _sort_vjp(ct: Any, out: Any, x: Any, axis: int, kind: Any = None) -> Any:
    order = np.argsort(np.argsort(x, axis=axis, kind="stable"), axis=axis, kind="stable")
    return np.take_along_axis(ct, order, axis)


# Params: axis (non-negative), kind.
sort_p = Op("sort", np.sort, rule=_sort_rule, vjp=vjp_columns([_sort_vjp]), kind="scan")
argsort_p = Op("argsort", np.argsort, rule=_sort_rule, kind="scan")


implements(np.cumsum)(lambda a, axis=None, dtype=None: accumulate(np.add, *along_one(a, axis), dtype))
implements(np.cumprod)(lambda a, axis=None, dtype=None: accumulate(np.multiply, *along_one(a, axis), dtype))


def _sorted(op: Op, a: Any, axis: Any, kind: Any, stable: Any) -> Any:
    if stable is not None:
        if kind is not None:
            raise ValueError("`kind` and `stable` parameters can't be provided at the same time. Use only one of them.")
        kind = "stable" if stable else None
    x, axis = along_one(a, axis)
    return op(x, axis=axis, kind=kind)


@implements(np.sort)
def _np_sort(a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Any:
    if ndim_of(a) == 0 and axis is not None:
        normalise_axis(axis, 0)
    return _sorted(sort_p, a, axis, kind, stable)


implements(np.argsort)(lambda a, axis=-1, kind=None, *, stable=None: _sorted(argsort_p, a, axis, kind, stable))


@source(np.sort, of=(1,))
def _sort_of_one(a):
    out = np.asarray(a).copy()
    out.sort()
    return out


@implements(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    flat = np.reshape(ary, (-1,))
    parts = [flat[1:] - flat[:-1]]
    if to_begin is not None:
        parts.insert(0, np.reshape(as_array(to_begin), (-1,)).astype(dtype_of(ary)))
    if to_end is not None:
        parts.append(np.reshape(as_array(to_end), (-1,)).astype(dtype_of(ary)))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
