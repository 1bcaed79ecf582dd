"""Indexing for each example, with everything NumPy's indexing does: `getitem` and `setitem`.

Python integers in an index are operands, so a call's signature does not depend on `t` in `x[t]`; slices are static
unless their bounds differ between examples.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.op import Op, is_boxed
from autobatch.errors import NeedsLoop
from autobatch.ops.creation import array
from autobatch.ops.indexing_get import getitem_op, zero_d_p
from autobatch.ops.indexing_set import add_at_p, setitem_p
from autobatch.ops.rules.aliasing import view, write
from autobatch.ops.rules.dispatch import Declined, refuse, top_box
from autobatch.ops.rules.indexing import FULL, Spec, is_basic, parse

__all__ = ["add_at", "getitem", "placed", "setitem"]


def getitem(x: Any, index: Any) -> Any:
    """`x[index]`; a view of `x` where NumPy gives one.

    Raises:
        IndexError: an index out of bounds, with the example; too many indices; a mask that does not fit.
    """
    try:
        spec, operands = parse(x, index)
    except Declined as declined:
        return refuse(operator.getitem, (x, index), {}, declined.reason)
    op, views, leads = _facts(spec)
    out = op(x, *operands, spec=spec)
    if ndim_of(out) == 0 and (index is Ellipsis or (type(index) is tuple and any(i is Ellipsis for i in index))):
        out = zero_d_p(out)
    elif type(index) is tuple and not index and ndim_of(out) == 0:  # of a 0-d array: the scalar in it
        return out
    if not views and not (type(index) is tuple and is_basic(spec) and any(item is Ellipsis for item in index)):
        return out
    return view(out, x, _derive, _restore, (spec, tuple(operands)), leads) if spec or is_boxed(out) else out


@functools.lru_cache(maxsize=4096)
def _facts(spec: Spec) -> tuple[Op, bool, bool]:
    """The op of a read, whether it gives a view (an element is a copy), and whether that is one contiguous run."""
    element = bool(spec) and all(entry[0] == "i" for entry in spec)
    return getitem_op(spec), is_basic(spec) and not element, _leads(spec)


def _derive(base: Any, spec: Spec, operands: tuple[Any, ...]) -> Any:
    return getitem_op(spec)(base, *operands, spec=spec)


def _restore(base: Any, new: Any, spec: Spec, operands: tuple[Any, ...]) -> Any:
    return setitem_p(base, new, *operands, spec=spec)


def _leads(spec: Spec) -> bool:
    """Whether the view is one contiguous run: integers, then at most one slice of step 1, then whole axes."""
    rest = [entry for entry in spec if entry[0] != "n"]
    while rest and rest[0][0] == "i":
        rest.pop(0)
    if rest and rest[0][0] == "s" and rest[0][3] in (None, 1):
        rest.pop(0)
    return all(entry == FULL for entry in rest)


def setitem(x: Any, index: Any, value: Any) -> None:
    """`x[index] = value` for an array of ours: the object, its base and its views take the new value.

    The value is cast to the dtype of `x`, as NumPy does.
    """
    try:
        spec, operands = parse(x, index)
    except Declined as declined:
        raise NeedsLoop(f"item assignment: {declined.reason}") from None
    if isinstance(value, list | tuple) and top_box(value) is not None:
        value = array(value)
    if not is_boxed(value):
        value = np.asarray(value, dtype_of(x))
    write(x, setitem_p(x, _fit_rank(value, spec, operands), *operands, spec=spec))


def add_at(x: Any, index: Any, values: Any) -> None:
    """`np.add.at(x, index, values)` for an array of ours: repeated positions count each time."""
    spec, operands = parse(x, index)
    write(x, add_at_p(x, _fit_rank(values, spec, operands), *operands, spec=spec))


def _fit_rank(value: Any, spec: Spec, operands: Sequence[Any]) -> Any:
    """Drop leading axes of one that the target does not have."""
    rank = sum(entry[0] in "snd" for entry in spec)
    if any(entry[0] in "ab" for entry in spec):
        ranks = [1 if entry[0] == "b" else 0 for entry in spec if entry[0] in "ab"]
        rank += max([*ranks, *(ndim_of(x) for x in operands if dtype_of(x).kind != "b")])
    extra = ndim_of(value) - rank
    if extra <= 0:
        return value
    if any(size != 1 for size in shape_of(value)[:extra] if not is_boxed(size)):
        raise ValueError(f"could not broadcast input array from shape {shape_of(value)} into {rank} dimensions")
    return value[(0,) * extra]


def placed(x: Any, index: Any, value: Any) -> Any:
    """`x` as it is after `x[index] = value`; `x` itself stays as it is."""
    spec, operands = parse(x, index)
    return setitem_p(x, value, *operands, spec=spec)
