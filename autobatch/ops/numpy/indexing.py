"""The ops `x[index]` and `x[index] = value`, with all of NumPy's indexing; in a batch they run by `rules.index_rule`.

Python integers in an index are operands, so a recorded call's signature does not depend on `t` in `x[t]`. Slice bounds
are static unless they differ between examples.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Size, same_size
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.errors import WRITE_AXIS, NeedsLoop, ShapeError, Unsupported
from autobatch.ops.numpy.creation import array
from autobatch.ops.rules.aliasing import is_scalar, view, write, zero_d_p
from autobatch.ops.rules.dispatch import cast, refuse, top_box
from autobatch.ops.rules.index_rule import (
    FULL,
    Spec,
    basic_index,
    build,
    flat_positions,
    getitem_rule,
    is_basic,
    is_static,
    on_axis,
    parse,
    scatter_rule,
)
from autobatch.ops.rules.op_kinds import check_numbers, python_class
from autobatch.ops.rules.padding import to_width, to_widths
from autobatch.ops.rules.row_gather import Scatter, put_rows_p
from autobatch.ops.rules.sizes import (
    as_batched,
    broadcast_sizes,
    check_mask_sizes,
    differ_somewhere,
    has_lengths,
    lane_count,
    reshaped,
    size_per_lane,
    sizes_of,
    spread_out,
)


def _getitem(x: Any, *operands: Any, spec: Spec) -> Any:
    return np.asarray(x)[build(spec, operands)] if not isinstance(x, np.ndarray) else x[build(spec, operands)]


def _getitem_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position != 0:
        return None
    x, *operands = args
    spec, shape = params["spec"], tuple(shape_of(x))
    if is_boxed(ct) or any(is_boxed(operand) for operand in operands):
        return scatter_p(ct, *operands, spec=spec, shape=shape)
    return _scattered(ct, operands, spec, shape, dtype_of(x))


def _scattered(values: Any, operands: Sequence[Any], spec: Spec, shape: tuple[int, ...], dtype: np.dtype) -> Scatter:
    index: Any = build(spec, operands)
    if spec and spec[0][0] in "as" and all(entry == FULL for entry in spec[1:]):  # rows: a kernel can add them up
        index = np.asarray(operands[0]).astype(np.int64) if operands else index[0]
    return Scatter(index, values, shape, dtype, unique="a" not in {entry[0] for entry in spec})


def _getitem_layout(params: dict[str, Any], non_c_order: bool, rank: int) -> bool:
    """Not in C order if index arrays follow a slice or new axis: NumPy computes their axes first, then transposes."""
    spec = params["spec"]
    return non_c_order or (any(entry[0] in "ab" for entry in spec) and spec[0][0] in "snd")


getitem_p = Op("getitem", _getitem, rule=getitem_rule, vjp=_getitem_vjp, layout=_getitem_layout, kind="index")
getitem_dynamic_p = Op(
    "getitem_dynamic", _getitem, rule=getitem_rule, vjp=_getitem_vjp, layout=_getitem_layout, data_dependent=True,
    kind="index",
)  # fmt: skip
scatter_p = Op(
    "scatter", rule=scatter_rule, kind="index",
    impl=lambda x, *operands, spec, shape: _scattered(x, operands, spec, shape, dtype_of(x)).to_dense(),
    vjp=lambda position, ct, out, args, params: (
        None if position else getitem_op(params["spec"])(ct, *args[1:], spec=params["spec"])
    ),
)  # fmt: skip


def rows_between(x: Any, start: int, stop: int) -> Any:
    """`x[start:stop]` for an array that is never written into: it is not tracked as a view."""
    rows = ("s", start, stop, None), *(FULL,) * (ndim_of(x) - 1)
    return x[start:stop] if type(x) is np.ndarray else getitem_p(x, spec=rows)


def getitem_op(spec: Spec) -> Op:
    """The op of a read: `getitem_dynamic_p` if the result's shape depends on operand values, else `getitem_p`."""
    return getitem_p if is_static(spec) else getitem_dynamic_p


def _setitem(x: Any, value: Any, *operands: Any, spec: Spec) -> Any:
    out = np.array(x)
    out[build(spec, operands)] = value
    return out


def _setitem_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, value, *operands = args
    spec = params["spec"]
    if position == 0:
        return unbroadcast(setitem_p(ct, np.zeros((), dtype_of(ct)), *operands, spec=spec), x)
    if position != 1:
        return None
    if all(entry[0] != "a" for entry in spec):
        return unbroadcast(getitem_op(spec)(ct, *operands, spec=spec), value)
    shape = tuple(shape_of(x))
    size = math.prod(shape)
    src = np.arange(size).reshape(shape)[build(spec, [np.asarray(operand) for operand in operands])]
    flat = np.reshape(x, (size,)), value, src
    return put_rows_p.vjp(1, np.reshape(ct, (size,)), out, flat, {})  # type: ignore[misc]


def _setitem_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, value, *index = operands
    spec: Spec = params["spec"]
    x = as_batched(x, lane_count(operands))
    basic = basic_index(x.sizes, spec, index)
    carries = is_boxed(value.data if isinstance(value, Batched) else value)
    if basic is not None and not (carries and has_lengths(basic[1])):  # else its gradient would sum over padding
        data = _value_for(value, basic[1], tuple(shape_of(np.broadcast_to(np.int8(0), shape_of(x.data))[basic[0]])))
        return Batched(setitem_p(x.data, data, *index, spec=(FULL, *spec)), x.sizes)
    if len(spec) == 1 and spec[0][0] == "b" and spec[0][1] == len(x.sizes) and not sizes_of(value):
        mask = index[0]
        check_mask_sizes(mask, x.sizes)
        mask_data = to_widths(mask.data, shape_of(x.data)[1:]) if isinstance(mask, Batched) else mask
        one = value.data.reshape((-1,) + (1,) * len(x.sizes)) if isinstance(value, Batched) else value
        one = cast(one, dtype_of(x.data))
        if not is_boxed(one) or not x.is_ragged:
            return Batched(np.where(mask_data, one, x.data), x.sizes)
    src, sizes = flat_positions(x, spec, index)
    data = _value_for(value, sizes, src.shape)
    data = cast(data, dtype_of(x.data))
    shape = tuple(shape_of(x.data))
    unique = all(entry[0] != "a" for entry in spec)
    flat = put_rows_p(x.data.reshape((math.prod(shape),)), np.broadcast_to(data, src.shape), src, unique=unique)
    return Batched(flat.reshape(shape), x.sizes)


def _value_for(value: Any, sizes: Sequence[Size], padded: Sequence[int]) -> Any:
    """The data of a value that is written to positions of `sizes`, made broadcastable to (B, *padded).

    Raises:
        ShapeError: the value does not broadcast to `sizes`; names the example.
    """
    batched = isinstance(value, Batched)
    have = value.sizes if batched else tuple(shape_of(value))
    if len(have) > len(sizes):
        raise ShapeError(f"could not broadcast input array of {len(have)} dimensions into {len(sizes)}")
    broadcast = broadcast_sizes([have, tuple(sizes)])
    data = value.data if batched else value
    if not batched and not is_boxed(data):
        data = np.asarray(data)
    for place, size in enumerate(have):
        axis = len(sizes) - len(have) + place
        if not same_size(broadcast[axis], sizes[axis]):
            wants, gives = np.broadcast_arrays(size_per_lane(sizes[axis]), size_per_lane(size))
            lane = int(np.argmax((wants != gives) & (gives != 1)))
            raise ShapeError(
                f"could not broadcast input array of length {gives[lane]} into length {wants[lane]} in example {lane}"
            )
        if isinstance(size, int) and size == 1:
            continue
        if not same_size(size, sizes[axis]):
            raise NeedsLoop("a value whose length is 1 in some examples only is broadcast", instead=WRITE_AXIS)
        data = to_width(data, place + batched, padded[axis + 1])
    if batched:
        shape = shape_of(data)
        return reshaped(data, (shape[0],) + (1,) * (len(sizes) - len(have)) + tuple(shape[1:]))
    return data


setitem_p = Op("setitem", _setitem, rule=_setitem_rule, vjp=_setitem_vjp, kind="index")


def _add_at(x: Any, values: Any, *operands: Any, spec: Spec) -> Any:
    out = np.array(x)
    np.add.at(out, build(spec, operands), values)
    return out


def _add_at_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, values, *operands = args
    if position == 0:
        return unbroadcast(ct, x)
    spec = params["spec"]
    return unbroadcast(getitem_op(spec)(ct, *operands, spec=spec), values) if position == 1 else None


def _add_at_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, values, *index = operands
    x = as_batched(x, lane_count(operands))
    src, sizes = flat_positions(x, params["spec"], index)
    data = _value_for(values, sizes, src.shape)
    data = cast(data, dtype_of(x.data))
    inside = np.flatnonzero(src >= 0)
    flat, values = reshaped(x.data, (-1,)), reshaped(spread_out(data, src.shape), (-1,))[inside]
    spec, places = parse(flat, src.reshape(-1)[inside])
    return Batched(reshaped(op(flat, values, *places, spec=spec), shape_of(x.data)), x.sizes)


add_at_p = Op("add_at", _add_at, rule=_add_at_rule, vjp=_add_at_vjp, kind="index")


def getitem(x: Any, index: Any) -> Any:
    """`x[index]`; a view of `x` if NumPy returns a view.

    Raises:
        IndexError: an index is out of bounds (names the example), there are too many, or a mask has other sizes.
    """
    try:
        spec, operands = parse(x, index)
    except Unsupported as declined:
        return refuse(operator.getitem, (x, index), {}, declined.reason)
    op, views, leads = _facts(spec)
    out = op(x, *operands, spec=spec)
    if ndim_of(out) == 0 and (index is Ellipsis or (type(index) is tuple and any(i is Ellipsis for i in index))):
        out = zero_d_p(out)
    elif type(index) is tuple and not index and ndim_of(out) == 0:  # x[()] of a 0-d array is a scalar
        return out
    if not views and not (type(index) is tuple and is_basic(spec) and any(item is Ellipsis for item in index)):
        return out
    items = index if type(index) is tuple else (index,)
    if "i" in [entry[0] for entry in spec] and any(
        (type(each) is np.ndarray or is_boxed(each)) and not is_scalar(each) for each in items
    ):  # a 0-d index array: NumPy returns a copy
        return out
    return view(out, x, view_of, write_view, (spec, tuple(operands)), leads) if spec or is_boxed(out) else out


def picked_along(x: Any, axis: int, places: Any, keeps_order: bool = False) -> Any:
    """Positions along an axis as NumPy's functions return them: in C order, where an index gives another order.

    Args:
        keeps_order: the result of an array in Fortran order is in Fortran order.
    """
    plain = getattr(x, "_ab_plain", None)
    if keeps_order and type(plain) is np.ndarray and plain.flags.fnc:
        return np.transpose(picked_along(np.transpose(x), ndim_of(x) - 1 - axis, places))
    plain = getattr(out := getitem(x, on_axis(axis, places)), "_ab_plain", None)
    return out.copy() if type(plain) is np.ndarray and not plain.flags.c_contiguous else out


@functools.lru_cache(maxsize=4096)
def _facts(spec: Spec) -> tuple[Op, bool, bool]:
    """(op of the read, whether the result is a view (an element is a copy), whether the view is one contiguous run)."""
    element = bool(spec) and all(entry[0] == "i" for entry in spec)
    return getitem_op(spec), is_basic(spec) and not element, _is_one_run(spec)


def view_of(base: Any, spec: Spec, operands: tuple[Any, ...]) -> Any:
    """The value of the view `base[index]`, computed from its base."""
    return getitem_op(spec)(base, *operands, spec=spec)


def write_view(base: Any, new: Any, spec: Spec, operands: tuple[Any, ...]) -> Any:
    """The base's value after `base[index] = new`: how a write into a view reaches its base."""
    return setitem_p(base, new, *operands, spec=spec)


def _is_one_run(spec: Spec) -> bool:
    """True if the view of a contiguous array is contiguous: integers, at most one slice of step 1, then whole axes."""
    rest = [entry for entry in spec if entry[0] != "n"]
    while rest and rest[0][0] == "i":
        rest.pop(0)
    if rest and rest[0][0] == "s" and rest[0][3] in (None, 1):
        rest.pop(0)
    return all(entry == FULL for entry in rest)


def setitem(x: Any, index: Any, value: Any) -> None:
    """`x[index] = value` for an array of this library; updates its base and its views, too.

    The value is cast to the dtype of `x`, as NumPy does.
    """
    try:
        spec, operands = parse(x, index)
    except Unsupported as declined:
        raise NeedsLoop(f"item assignment: {declined.reason}") from None
    if isinstance(value, list | tuple) and top_box(value) is not None:
        value = array(value, dtype_of(x)) if dtype_of(x).kind in "iu" else array(value)
    by_elements = any(entry[0] in "ab" for entry in spec)  # NumPy then casts a scalar as it casts an array
    if not is_boxed(value):
        if isinstance(value, np.generic) and not by_elements:
            np.zeros((), dtype_of(x))[()] = value  # raises for a number that the dtype does not hold
        value = np.asarray(value, dtype_of(x))
    elif ndim_of(value) == 0:
        checked = is_scalar(value) and not by_elements and dtype_of(x).kind != "u"  # where NumPy's numbers wrap around
        if checked or python_class(value):
            check_numbers(value, dtype_of(x))
    if ndim_of(value) and all(entry[0] == "i" for entry in spec) and len(spec) == ndim_of(x):  # older NumPy takes it
        raise NeedsLoop("an array is written into one element of each example; to replace an example, collate again")
    write(x, setitem_p(x, _fit_rank(value, spec, operands), *operands, spec=spec))


def add_at(x: Any, index: Any, values: Any) -> None:
    """`np.add.at(x, index, values)` for an array of this library: repeated positions accumulate."""
    spec, operands = parse(x, index)
    write(x, add_at_p(x, _fit_rank(values, spec, operands), *operands, spec=spec))


def _fit_rank(value: Any, spec: Spec, operands: Sequence[Any]) -> Any:
    """Drop leading axes of size 1 by which the value has more dimensions than the target of the write."""
    rank = sum(entry[0] in "snd" for entry in spec)
    if any(entry[0] in "ab" for entry in spec):
        ranks = [1 if entry[0] == "b" else 0 for entry in spec if entry[0] in "ab"]
        rank += max([*ranks, *(ndim_of(x) for x in operands if dtype_of(x).kind != "b")])
    extra = ndim_of(value) - rank
    if extra <= 0:
        return value
    if any(differ_somewhere(size, 1) for size in shape_of(value)[:extra] if is_boxed(size)):
        raise NeedsLoop("a value of more dimensions than the place that it is written to")
    if any(size != 1 for size in shape_of(value)[:extra] if not is_boxed(size)):
        raise ValueError(f"could not broadcast input array from shape {shape_of(value)} into {rank} dimensions")
    return value[(0,) * extra]


def placed(x: Any, index: Any, value: Any) -> Any:
    """A copy of `x` in which `x[index]` is `value`; `x` is unchanged."""
    spec, operands = parse(x, index)
    return setitem_p(x, value, *operands, spec=spec)
