"""`maplookup`: look-ups in several tables at once."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.config import options
from autobatch.core.op import is_boxed
from autobatch.core.threads import run_together, thread_count
from autobatch.errors import BadIdError, ShapeError, UnsupportedError
from autobatch.tables.ids import check_ids, integer_ids
from autobatch.tables.lookup import lookup
from autobatch.tables.strategies import Default, Preallocation, SimpleParallel, Strategy

__all__ = ["maplookup"]


def maplookup(tables: Sequence[Any], ids: Any, strategy: Strategy | None = None, out: Any = None) -> Any:
    """`lookup` in each of several tables.

    Args:
        tables: tables and arrays (num_rows, dim), of any dims.
        ids: for each table its ids, (n,) or (n, k) to sum each row's k rows; or one array (n, tables), a column for
            each table, or (n, k, tables).
        strategy: `ab.strategies.Default()`, `SimpleParallel()` or `Preallocation(prepend_rows=0)`; None is the first.
        out: where to put the results: a list of arrays, with `Preallocation` one matrix.

    Returns:
        A list of what `lookup` gives for each table; with `Preallocation` their concatenation, (n, sum of the dims),
        after `prepend_rows` free columns.

    Raises:
        ShapeError: not as many ids as tables; results of different lengths, or `out` of another shape.
        BadIdError: an id outside its table; the message names the table.
        UnsupportedError: something that is no strategy; `out` in a batch or a gradient.

    Source: EmbeddingTables.jl.

    >>> a, b = np.array([[1, 1], [2, 2], [3, 3]]), np.array([[10, 10], [20, 20], [30, 30]])
    >>> maplookup([a, b], [[0, 1, 0], [1, 0, 0]])
    [array([[1, 1],
           [2, 2],
           [1, 1]]), array([[20, 20],
           [10, 10],
           [10, 10]])]
    """
    strategy = Default() if strategy is None else strategy
    if not isinstance(strategy, Default | SimpleParallel | Preallocation):
        raise UnsupportedError(
            f"strategy={strategy!r}; expected ab.strategies.Default(), SimpleParallel() or Preallocation()"
        )
    tables = list(tables)
    lists = _by_table(ids, len(tables))
    boxed = any(map(is_boxed, [*tables, *lists]))
    if boxed and out is not None:
        raise UnsupportedError("maplookup(out=) writes into arrays, which carry no gradient and no batch; leave out=")
    if not boxed:
        lists = [_checked(table, one, i) for i, (table, one) in enumerate(zip(tables, lists, strict=True))]
    if isinstance(strategy, Preallocation):
        return _side_by_side(tables, lists, strategy.prepend_rows, out, boxed)
    if out is not None and (not isinstance(out, list | tuple) or len(out) != len(tables)):
        raise ShapeError(f"out is {_described(out)}; expected a list of {len(tables)} arrays, one for each table")
    outs = [None] * len(tables) if out is None else list(out)
    _check_outs(tables, lists, outs)
    calls = [lambda args=args: lookup(*args) for args in zip(tables, lists, outs, strict=True)]
    if isinstance(strategy, SimpleParallel) and not boxed:
        results = run_together(_shared_out(calls))
        results = [result for part in results for result in part]
    else:
        with options(threads=1):
            results = [call() for call in calls]
    return results if out is None else out


def _by_table(ids: Any, count: int) -> list[Any]:
    """The ids of each table."""
    if isinstance(ids, list | tuple):
        if len(ids) != count:
            raise ShapeError(f"{len(ids)} arrays of ids for {count} tables; expected one for each")
        return list(ids)
    if not is_boxed(ids):
        ids = integer_ids(ids)
    if ndim_of(ids) not in (2, 3) or shape_of(ids)[-1] != count:
        raise ShapeError(
            f"ids of shape {shape_of(ids)} for {count} tables; expected a list, or (n, {count}) with a column for each"
        )
    return [ids[..., i] for i in range(count)]


def _checked(table: Any, ids: Any, number: int) -> np.ndarray:
    """Ids of one table, checked before anything is written."""
    if ndim_of(table) != 2:
        raise ShapeError(f"table {number} has shape {shape_of(table)}; expected (num_rows, dim)")
    ids = integer_ids(ids)
    if ids.ndim not in (1, 2):
        raise ShapeError(f"ids of table {number} have shape {ids.shape}; expected (n,), or (n, k) to sum k rows each")
    try:
        check_ids(ids, shape_of(table)[0])
    except BadIdError as error:
        raise BadIdError(f"table {number}: {error}") from None
    return ids


def _check_outs(tables: Sequence[Any], lists: Sequence[Any], outs: Sequence[Any]) -> None:
    for i, (table, ids, out) in enumerate(zip(tables, lists, outs, strict=True)):
        if out is None:
            continue
        shape = (len(ids), shape_of(table)[1])
        if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype_of(table):
            raise ShapeError(f"out[{i}] is {_described(out)}; expected {dtype_of(table)} of shape {shape}")


def _described(out: Any) -> str:
    return f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else f"a {type(out).__name__}"


def _shared_out(calls: Sequence[Any]) -> list[Any]:
    """The calls in contiguous parts, one for each thread."""
    parts = max(1, min(len(calls), thread_count()))
    bounds = [len(calls) * i // parts for i in range(parts + 1)]
    return [lambda a=a, b=b: [call() for call in calls[a:b]] for a, b in itertools.pairwise(bounds)]


def _side_by_side(tables: Sequence[Any], lists: Sequence[Any], free: int, out: Any, boxed: bool) -> Any:
    """One matrix of all results, after the free columns."""
    if not tables:
        raise ShapeError("Preallocation of no tables; expected at least one")
    dtype = np.result_type(*map(dtype_of, tables))
    if boxed:
        results = [lookup(table, ids) for table, ids in zip(tables, lists, strict=True)]
        if free:
            results.insert(0, np.zeros((shape_of(results[0])[0], free), dtype))
        return np.concatenate(results, axis=1)
    rows = len(lists[0])
    for i, ids in enumerate(lists):
        if len(ids) != rows:
            raise ShapeError(f"{len(ids)} results of table {i} beside {rows} of table 0; expected as many")
    shape = (rows, free + sum(shape_of(table)[1] for table in tables))
    if out is None:
        out = np.empty(shape, dtype)
        out[:, :free] = 0
    elif not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        raise ShapeError(f"out is {_described(out)}; expected {dtype} of shape {shape}")
    at = free
    for table, ids in zip(tables, lists, strict=True):
        part = out[:, at : at + shape_of(table)[1]]
        if dtype_of(table) == dtype:
            lookup(table, ids, part)
        else:
            part[...] = lookup(table, ids)
        at += part.shape[1]
    return out
