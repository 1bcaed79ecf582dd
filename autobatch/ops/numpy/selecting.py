"""Selection of elements (where, take, nonzero and relatives), and writes by position (put, copyto and relatives)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched
from autobatch.core.op import Op, is_boxed
from autobatch.errors import COPY_FIRST, Unsupported
from autobatch.ops.numpy.creation import arange
from autobatch.ops.numpy.indexing import picked_along, setitem
from autobatch.ops.numpy.shaping import flat_view
from autobatch.ops.rules.aliasing import is_scalar, view, write_into
from autobatch.ops.rules.dispatch import any_shorter, any_true, as_array, cast, check_cast, implements
from autobatch.ops.rules.index_rule import nonzero_lanes, on_axis
from autobatch.ops.rules.op_kinds import elementwise, python_class
from autobatch.ops.rules.sizes import array_and_axis, axes_of, differ_somewhere


def _zero(ct: Any) -> Any:
    return np.zeros((), dtype_of(ct))


where_p = elementwise(
    np.where,
    None,
    lambda ct, out, condition, x, y: np.where(condition, ct, _zero(ct)),
    lambda ct, out, condition, x, y: np.where(condition, _zero(ct), ct),
    name="where",
    fused={
        "text": "choose({0}, {1}, {2})",
        "masks": (0,),
        "keeps": False,
        "quiet": True,
        "bound": lambda _, *xs: max(xs),
    },
)


def truth(x: Any) -> Any:
    """An array converted to bool: nonzero elements are True."""
    if not is_boxed(x):
        return np.asarray(x).astype(bool)
    return x if dtype_of(x).kind == "b" else x != 0


@implements(np.where)
def where(condition: Any, /, *choices: Any, **named: Any) -> Any:
    """np.where; with a condition only, np.nonzero."""
    choices = (*choices, *named.values()) if named else choices
    if not choices:
        return nonzero(condition)
    if len(choices) != 2:
        raise ValueError("either both or neither of x and y should be given")
    x, y = choices
    return where_p(truth(condition), _operand(x), _operand(y))


def _operand(x: Any) -> Any:
    return x if is_boxed(x) or type(x) in (int, float, bool, complex) else np.asarray(x)


@implements(np.take, out=write_into)
def take(a: Any, indices: Any, axis: Any = None, *, mode: str = "raise") -> Any:
    """np.take: positions along an axis, or in the flattened array. Floats in lists are truncated to integers."""
    a, axis = array_and_axis(a, axis)
    if isinstance(indices, list | tuple) and any(map(is_boxed, indices)):
        indices = np.stack(indices)
    if is_boxed(indices) or isinstance(indices, np.ndarray):
        indices = _integers(indices, "same_kind")
    else:
        indices = np.asarray(indices, np.int64)
    if mode != "raise":
        if mode not in ("clip", "wrap") or any_shorter(a, 1, axis):
            raise Unsupported("np.take with another mode, or with a mode from no elements")
        size = shape_of(a)[axis]
        indices = np.clip(indices, 0, size - 1) if mode == "clip" else indices % size
    return picked_along(a, axis, indices)


def _integers(indices: Any, casting: Any) -> Any:
    """Check that positions can be cast to int64; bools are cast.

    Raises:
        TypeError: the rule `casting` does not allow it; NumPy's message.
    """
    dtype = dtype_of(indices)
    check_cast(dtype, np.int64, casting)
    return indices.astype(np.int64) if dtype.kind == "b" else indices


@implements(np.put)
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    if not is_boxed(a):
        raise Unsupported("a plain array is written to", instead=COPY_FIRST)
    if mode != "raise" or (ndim_of(v) and shape_of(v) != shape_of(ind)):
        raise Unsupported("np.put with fewer values than positions, or with a mode")
    setitem(flat_view(a), ind, v)


@implements(np.copyto)
def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    if not is_boxed(dst):
        raise Unsupported("a plain array is written to", instead=COPY_FIRST)
    if is_scalar(dst):
        raise TypeError(f"copyto() argument 1 must be a numpy.ndarray, not numpy.{dtype_of(dst).name}")
    if src is dst:
        return
    if casting != "unsafe":  # NumPy looks at the value of a Python number
        like = np.zeros((1,) * ndim_of(src), dtype_of(src)) if is_boxed(src) else src
        like = like.item() if is_boxed(src) and python_class(src) else like
        np.copyto(np.zeros(shape_of(like), dtype_of(dst)), like, casting)  # type: ignore[arg-type]
    if where is not True:
        src = where_p(truth(where), _operand(src), dst).astype(dtype_of(dst))
    setitem(dst, Ellipsis, src)


@implements(np.putmask)
def putmask(a: Any, mask: Any, values: Any) -> None:
    if ndim_of(values):
        raise Unsupported("np.putmask with an array of values")
    copyto(a, values, casting="unsafe", where=mask)


def _argwhere_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (mask,) = operands
    places = nonzero_lanes(mask)
    return Batched(np.stack([part.data for part in places], axis=2), (*places[0].sizes, len(places)))


argwhere_p = Op(
    "argwhere", np.argwhere, rule=_argwhere_rule, data_dependent=True, layout=lambda *_: True, kind="select"
)


# np.nonzero gives the columns of such an array in C order.
nonzero_p = Op(
    "nonzero", lambda x: np.stack(np.nonzero(x), axis=1), rule=_argwhere_rule, data_dependent=True,
    layout=lambda *_: False, kind="select",
)  # fmt: skip


@implements(np.argwhere)
def argwhere(a: Any) -> Any:
    if ndim_of(a) == 0:
        raise Unsupported("argwhere of a single element")
    return argwhere_p(truth(a))


@implements(np.nonzero)
def nonzero(a: Any) -> Any:
    if ndim_of(a) == 0:
        raise ValueError("Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() instead.")
    places = nonzero_p(truth(a))
    return tuple(places[:, axis] for axis in range(ndim_of(a)))


@implements(np.compress, out=write_into)
def compress(condition: Any, a: Any, axis: Any = None) -> Any:
    if ndim_of(condition) != 1:
        raise ValueError("condition must be a 1-d array")
    return take(a, np.flatnonzero(condition), axis=axis)


@implements(np.choose, out=write_into)
def choose(a: Any, choices: Any, *, mode: str = "raise") -> Any:
    count = len(choices)
    if mode not in ("raise", "clip", "wrap") or not count:
        raise Unsupported("np.choose with another mode, or without choices")
    index, *arrays = np.broadcast_arrays(_integers(as_array(a), "safe"), *choices)
    if mode == "raise":
        if any_true((index < 0) | (index >= count)):
            raise Unsupported("np.choose by a number without a choice")
    else:
        index = np.clip(index, 0, count - 1) if mode == "clip" else index % count
    return np.take_along_axis(np.stack(arrays), index[None], 0)[0]


@implements(np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    several = ndim_of(condlist[0]) if isinstance(condlist, list | tuple) else ndim_of(condlist) > 1
    given = condlist if several or not ndim_of(x) else [condlist]
    conditions = [cast(as_array(each), np.dtype(bool)) for each in given]
    if len(funclist) == len(conditions) + 1:
        rest = ~conditions[0]
        for condition in conditions[1:]:
            rest = rest & ~condition
        conditions.append(rest)
    if len(funclist) != len(conditions):
        raise ValueError(
            f"with {len(conditions)} condition(s), either {len(conditions)} or {len(conditions) + 1} functions"
        )
    out = np.zeros_like(x)
    for condition, function in zip(conditions, funclist, strict=True):
        if not callable(function):
            out[condition] = function
        elif differ_somewhere(np.size(chosen := x[condition]), 0):
            out[condition] = function(chosen, *args, **kw)
    return out


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(x: Any, window_shape: Any, axis: Any = None, *, writeable: bool = False) -> Any:
    shape = tuple(window_shape) if isinstance(window_shape, list | tuple) else (window_shape,)
    axes = axes_of(axis, ndim_of(x))
    if len(shape) != len(axes) or len(set(axes)) != len(axes):
        raise Unsupported("windows along an axis that has none of their lengths, or several")
    if any(any_shorter(x, length, at) for at, length in zip(axes, shape, strict=True)):
        raise ValueError("window shape cannot be larger than input array shape")
    if writeable:
        raise Unsupported("sliding windows to write into")
    args = axes, shape, tuple(shape_of(x)[at] for at in axes)
    return view(_windows(x, *args), x, _windows, None, args)


def _windows(x: Any, axes: Sequence[int], lengths: Sequence[int], sizes: Sequence[Any]) -> Any:
    for axis, length, size in zip(axes, lengths, sizes, strict=True):
        places = arange(size - length + 1)[:, None] + np.arange(length)
        x = np.moveaxis(x[on_axis(axis, places)], axis + 1, -1)
    return x
