"""`lookup`: rows of a table, or the sum of each list of rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched
from autobatch.core.op import Op, is_boxed
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from autobatch.tables.access import gather
from autobatch.tables.bag_values import reduce_bags
from autobatch.tables.bags import bags_p
from autobatch.tables.ids import as_ids, check_ids, integer_ids
from autobatch.tables.lookup_ops import lookup_p
from autobatch.tables.protocol import Table
from autobatch.tables.table import EmbeddingTable

__all__ = ["lookup", "lookup_sum_p"]


def lookup(table: Any, ids: Any, out: np.ndarray | None = None) -> Any:
    """Rows of a table.

    Args:
        table: a `Table` or an array (num_rows, dim) of any dtype, which the result keeps.
        ids: (n,) integers: the result is those rows, (n, dim). (n, k): row i of the result is the sum of the k rows
            that row i of the ids names, (n, dim).
        out: where to put the result: an array of its shape and dtype (`Table.destination` makes one).

    Raises:
        BadIdError: an id outside the table, negative ids included.
        DTypeError: ids that are not integers; `out` of another dtype.
        ShapeError: ids of another rank; `out` of another shape.

    Source: EmbeddingTables.jl, with rows for columns and ids from 0.

    >>> table = np.arange(5)[:, None] * np.ones(3, int)
    >>> lookup(table, [0, 2, 2])
    array([[0, 0, 0],
           [2, 2, 2],
           [2, 2, 2]])
    >>> lookup(table, [[0, 1], [3, 4]])
    array([[1, 1, 1],
           [7, 7, 7]])
    """
    if not is_boxed(ids):
        ids = integer_ids(ids)
    rank = ndim_of(ids)
    if ndim_of(table) != 2:
        raise ShapeError(f"a table of shape {shape_of(table)}; expected (num_rows, dim)")
    if rank not in (1, 2):
        raise ShapeError(f"ids of shape {shape_of(ids)}; expected (n,), or (n, k) to sum each row's k rows")
    if out is None:
        return (lookup_p if rank == 1 else lookup_sum_p)(table, ids)
    if is_boxed(table) or is_boxed(ids):
        raise UnsupportedError("lookup(out=) writes into an array, which carries no gradient and no batch; leave out=")
    table = table if isinstance(table, Table) else EmbeddingTable(table)
    shape = (ids.shape[0], table.shape[1])
    if not isinstance(out, np.ndarray) or out.shape != shape:
        raise ShapeError(f"out has shape {shape_of(out)}; expected {shape}")
    if out.dtype != table.dtype:
        raise DTypeError(f"out has dtype {out.dtype}; expected the table's, {table.dtype}")
    if not out.flags.writeable:
        raise UnsupportedError("out is read-only; expected an array that can be written to")
    check_ids(ids, table.shape[0])
    _fill(out, table, ids)
    return out


def _fill(out: np.ndarray, table: Table, ids: np.ndarray) -> None:
    """Put the rows that checked ids name, or their sums, where they belong, directly if possible."""
    direct = (out.shape[1] < 2 or out.strides[1] == out.itemsize) and not table._ab_overlaps(out)
    direct = direct and not np.may_share_memory(out, ids)
    if ids.ndim == 1 and direct:
        gather(table, ids, out)
    elif ids.ndim == 1:
        out[...] = gather(table, ids)
    else:
        found = reduce_bags(table, ids.reshape(-1), _bounds(ids), None, "sum", out if direct else None)
        if found is not out:
            out[...] = found


def _bounds(ids: np.ndarray) -> np.ndarray:
    return np.arange(ids.shape[0] + 1) * ids.shape[1]


def _lookup_sum(table: Any, ids: Any) -> np.ndarray:
    ids = integer_ids(ids)
    check_ids(ids, shape_of(table)[0])
    return bags_p(table, ids.reshape(-1), _bounds(ids), mode="sum")


def _lookup_sum_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    table, ids = args[0], as_ids(args[1])
    bags = (table, ids.reshape(-1), _bounds(ids))
    return bags_p.vjp(position, ct, out, bags, {"mode": "sum"}) if position == 0 else None  # type: ignore[misc]


def _lookup_sum_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    table, ids = operands
    if not isinstance(table, Batched) and not ids.is_ragged:
        lanes, n, k = ids.data.shape
        out = lookup_sum_p(table, np.reshape(ids.data, (lanes * n, k)))
        return Batched(np.reshape(out, (lanes, n, shape_of(table)[1])), (n, shape_of(table)[1]))
    rows = lookup_p.rule(lookup_p, operands, {})  # type: ignore[misc]
    axis = rows.data.ndim - 2  # rows are zero where ids are padding
    return Batched(np.sum(rows.data, axis=axis, dtype=dtype_of(rows.data)), (*rows.sizes[:-2], rows.sizes[-1]))


lookup_sum_p = Op("lookup_sum", _lookup_sum, rule=_lookup_sum_rule, vjp=_lookup_sum_vjp, kind="lookup")
