"""Deferred look-ups: `table[ids]` is recorded at its first use, so that a following reduction fuses with it into a bag.

For a shared table and an array of ids, `rows = table[ids]` records nothing. `rows.sum(0)`, `.mean(0)`, `.max(0)`,
`.min(0)` or `(rows * weights[:, None]).sum(0)` then records one `segment_p`, whose signature does not contain the
number of ids; any other use of `rows` records the look-up itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import aval_of
from autobatch.core.op import Op
from autobatch.lazy.array import LazyArray
from autobatch.ops.array_protocols import ArrayMixin
from autobatch.ops.numpy import elementwise
from autobatch.ops.rules.aliasing import _View as View
from autobatch.ops.rules.ragged_checks import id_bound, table_ids
from autobatch.tables.bag_and_segment_op import segment_p
from autobatch.tables.lookup import bag_mode, lookup_p

_SHARED = View(None, None, None, (), True)  # marks a view of an array that all examples share: must not be written to
_MULTIPLY = elementwise.UFUNCS[np.multiply]


def read(trace: Any, table: LazyArray, index: Any) -> Any:
    """`table[index]` of a shared table: deferred if a bag may follow, else recorded."""
    cls = type(index)
    aval = table.aval
    if aval.ndim == 2 and aval.dtype.kind == "f":
        if cls is np.ndarray:
            if index.ndim == 1 and index.dtype.kind in "iu" and _from_zero(table, index):
                ids = index.astype(np.int64) if id_bound(table) is not None else table_ids(table, index.copy())
                return _defer(trace, table, ids, None)
        elif (cls is int or cls is np.int64) and id_bound(table) is not None and 0 <= index < aval.shape[0]:
            out = record_row(trace, table, np.int64(index))
            if type(out) is LazyArray and type(getattr(table.source, "_ab_value", table.source)) is np.ndarray:
                out._view = _SHARED
            return out
    return _record_lookup(table, index)


def record_row(trace: Any, table: LazyArray, index: np.int64) -> Any:
    """Record the look-up of one row; the id is an operand, so all such look-ups share one signature."""
    sig = trace.of_rows.get(table.aval)
    segment = trace.segment
    if sig is not None:
        ref = table.ref if table.segment is segment else trace.external(table)
        return trace.append(sig, (ref, segment.external(index)))
    out = trace.record(lookup_p, (table, index), {})
    if type(out) is LazyArray and out.segment is segment and segment is trace.segment:
        trace.of_rows[table.aval] = trace.signature_of(out)
    return out


def _from_zero(table: LazyArray, ids: np.ndarray) -> bool:
    """True unless ids of a plain array are negative (count from the end); in a table those are an error anyway."""
    return getattr(table.source, "_ab_lookup", None) is not None or len(ids) == 0 or int(ids.min()) >= 0


def rows_signature(trace: Any, table: LazyArray, ids: Any, reduction: Callable[[Any], Any] | None = None) -> Any:
    """The signature of `lookup_p` of rows of a shared table, by recording it; None if it is recorded in another way.

    Args:
        ids: sample ids: np.int64 for one row, or an array for several.
        reduction: what reduces the rows: then the signature of the bag; None if it is no bag.
    """
    aval = table.aval
    if not (aval.shared and aval.ndim == 2 and aval.dtype.kind == "f" and aval.shape[0]) or id_bound(table) is None:
        return None
    segment, nodes = trace.segment, len(trace.segment.sigs)
    out = lookup_p(table, ids) if reduction is None else reduction(_defer(trace, table, ids, None))
    is_first = type(out) is LazyArray and out.segment is segment and out.ref == nodes  # not of rows that were looked up
    return trace.signature_of(out) if is_first else None


def read_row(trace: Any, rows: LazyArray, index: int) -> Any:
    """`rows[index]` of a deferred look-up: the look-up of one row, unless the rows are weighted."""
    table, ids, weights = rows.pending
    if weights is not None:
        trace.record_deferred(rows)
        return rows[index]
    if not -len(ids) <= index < len(ids):
        raise IndexError(f"index {index} is out of bounds for axis 0 with size {len(ids)}")
    return record_row(trace, table, ids[index])


def _defer(trace: Any, table: LazyArray, ids: np.ndarray, weights: Any) -> LazyArray:
    out = LazyArray(trace, aval_of((len(ids), table.aval.shape[1]), table.aval.dtype), None, 0)
    out.pending = (table, ids, weights)
    return out


def _record_lookup(table: LazyArray, index: Any) -> Any:
    lookup = getattr(table.source, "_ab_lookup", None)
    if lookup is None:
        return ArrayMixin.__getitem__(table, index)
    return lookup(table, index, lambda i: ArrayMixin.__getitem__(table, i))


def record_deferred(handle: LazyArray) -> Any:
    """Record the deferred look-up of a handle, and return the result."""
    table, ids, weights = handle.pending
    rows = _record_lookup(table, ids)
    return rows if weights is None else rows * weights


def record_on_deferred(trace: Any, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Record (or defer further) an op on deferred rows without their look-up; None if the op needs the rows."""
    if op is _MULTIPLY:
        found = _weighted(trace, args[0], args[1])
        return _weighted(trace, args[1], args[0]) if found is None else found
    mode = bag_mode(op, params)
    if mode is None:
        return None
    table, ids, weights = args[0].pending
    if weights is None:
        return segment_p(table, ids, mode=mode, form="one", empty="numpy")
    if mode != "sum":
        return None
    return segment_p(table, ids, weights.reshape(len(ids)), mode=mode, form="one", empty="numpy")


def _weighted(trace: Any, rows: Any, weights: Any) -> LazyArray | None:
    """Deferred rows times a column of weights, still deferred; None if the operands are anything else."""
    is_deferred = type(rows) is LazyArray and rows.segment is None and rows.source is None
    if not is_deferred or rows.pending[2] is not None:
        return None
    table, ids, _ = rows.pending
    if getattr(weights, "dtype", None) != rows.aval.dtype or getattr(weights, "shape", None) != (len(ids), 1):
        return None
    if type(weights) is np.ndarray:
        weights = weights.copy()
    return _defer(trace, table, ids, weights)
