"""Look-ups of table rows by ids, with batching rule and gradient: `lookup` in one table, `maplookup` in several.

In lock-step, a look-up by packed ids is deferred until its rows are used: if they are reduced, look-up and reduction
become one launch of bags (`PackedRows`).
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import check_plain, dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, padding_mask
from autobatch.core.config import with_options
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.memory import run_all
from autobatch.core.op import Op, is_boxed
from autobatch.core.threads import run_together, thread_count
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError, note_example
from autobatch.kernels.rows import first_bad_id
from autobatch.ops.rules.ragged_checks import (
    bad_id,
    check_ids,
    concatenated_tables,
    flattened,
    id_bound,
    integer_ids,
    is_integer_index,
    own_ids,
    table_ids,
)
from autobatch.ops.rules.row_gather import pad_by_lane
from autobatch.tables.bag_and_segment_op import bags, bags_of_rows, check_bag_table, pooled
from autobatch.tables.maplookup_strategies import Default, Preallocation, SimpleParallel, Strategy
from autobatch.tables.row_access import gather
from autobatch.tables.sparse import SparseRows


def index_table(table: object, index: object, otherwise: Callable[[Any], Any]) -> Any:
    """`table[index]` for a plain or boxed table: a look-up if `index` is integers, else `otherwise(index)`."""
    try:
        is_integer = is_integer_index(index)
        if not is_integer and id_bound(table) is not None:
            return otherwise(index)
    except (IndexError, ValueError) as error:  # NumPy's, which does not know of tables
        words = any(isinstance(x, str) for x in (index if isinstance(index, list) else [index]))
        got = "words; ab.Vocabulary turns them into ids" if words else f"one of type {type(index).__name__}"
        error.add_note(f"a table is indexed by integer ids, arrays or lists of one length; got {got}")
        raise
    if not is_integer and not isinstance(index, list):
        raise DTypeError(f"a table of keys is indexed by keys, integers of any rank; got {index!r}")
    return lookup_p(table, index if is_boxed(index) else table_ids(table, index))


def _plain(table: object) -> Any:
    if not hasattr(table, "_ab_locate"):
        check_plain(table, "the table")
        return np.asarray(table)
    return table


def _lookup(table: Any, ids: Any, mask: np.ndarray | None = None) -> np.ndarray:
    """Check ids and return their rows; with a mask, zeros where it is False, and ids are not checked there."""
    table = _plain(table)
    ids = table_ids(table, ids)
    if mask is None:
        ids = own_ids(ids, id_bound(table))
        return gather(table, ids) if table.ndim == 2 else table[ids]
    places = np.flatnonzero(mask)
    valid = ids.reshape(-1)[places]
    _check_lanes(valid, id_bound(table), places, ids.shape)
    out = np.zeros((ids.size, *table.shape[1:]), table.dtype)
    out[places] = table[valid] if type(table) is np.ndarray else gather(table, valid)
    return out.reshape(*ids.shape, *table.shape[1:])


def _check_lanes(valid: np.ndarray, num_rows: int | None, places: np.ndarray, shape: tuple[int, ...]) -> None:
    """`check_ids` that names the example in its error; `places`: positions of the ids in the flattened batch."""
    at = -1 if num_rows is None else int(first_bad_id(valid, num_rows))
    if num_rows is not None and at >= 0:
        lane, *position = map(int, np.unravel_index(places[at], shape))
        place = f" at position {position[0] if len(position) == 1 else tuple(position)}" if position else ""
        raise note_example(bad_id(valid[at], place, num_rows), lane)


def _lookup_vjp(position: int, ct: Any, out: object, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position != 0:
        return None
    table, ids, *mask = args
    shape = shape_of(table)
    ids = np.reshape(ids if is_boxed(ids) else table_ids(table, ids), (-1,))
    rows = np.reshape(ct, (ids.shape[0], *shape[1:]))
    if mask:
        places = np.flatnonzero(mask[0])
        ids, rows = ids[places], rows[places]
    return SparseRows.trusted(ids, rows, id_bound(table))


def _lookup_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    table, ids = operands
    if isinstance(table, Batched):
        own, _ = flattened(ids, table.batch_size, "ids")
        flat, moved = concatenated_tables(table, own)
        placed = pad_by_lane(lookup_p(flat, moved), own.lengths)
        return Batched(placed.data, (placed.sizes[0], *table.sizes[1:]))
    mask = padding_mask(ids.sizes, ids.data.shape[1:])
    sizes = (*ids.sizes, *shape_of(table)[1:])
    if mask is not None:
        mask = np.broadcast_to(mask, ids.data.shape)
        return Batched(lookup_p(table, ids.data, mask), sizes)
    try:
        return Batched(lookup_p(table, ids.data), sizes)
    except BadIdError:  # with a mask, the error names the example
        return Batched(lookup_p(table, ids.data, np.ones(ids.data.shape, np.bool_)), sizes)


lookup_p = Op("lookup", _lookup, rule=_lookup_rule, vjp=_lookup_vjp, kind="lookup")


# Deferred look-ups.

_OVER_PACKED = ({"axis": (0,)}, {"axis": (0,), "keepdims": False})
_BY_NAME = frozenset(("sum", "mean", "max", "min"))  # reductions with a bag mode of the same name


def bag_mode(op: Op, params: dict[str, Any]) -> str | None:
    """The bag mode that equals this op on packed rows, if it reduces them over axis 0; else None."""
    return op.name if op.name in _BY_NAME and params in _OVER_PACKED else None


@dataclasses.dataclass(slots=True, eq=False)
class PackedRows:
    """A deferred look-up of rows (N, dim) by the concatenated ids of all examples.

    Args:
        table: (num_rows, dim), plain or boxed, but not a batch.
        ids: (N,) int64, checked.
    """

    ndim: ClassVar[int] = 2

    table: Any
    ids: np.ndarray
    _rows: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.ids.shape[0], shape_of(self.table)[1])

    @property
    def dtype(self) -> np.dtype:
        return dtype_of(self.table)

    def force(self) -> Any:
        """The rows, looked up once."""
        if self._rows is None:
            self._rows = lookup_p(self.table, self.ids)
        return self._rows

    def reduced(self, op: Op, params: dict[str, Any], offsets: np.ndarray) -> Any:
        """Reduce the rows of each example by a bag launch, to (B, dim); None if the op is no such reduction.

        Also None if a mean, max or min has an example without rows, for which NumPy itself must warn or raise.
        """
        mode = bag_mode(op, params)
        if mode is None or self._rows is not None:
            return None
        if mode != "sum" and (offsets[1:] == offsets[:-1]).any():
            return None
        return bags(self.table, self.ids, offsets, mode=mode)


# The public functions.


@hiding_frames
def lookup(table: ArrayLike, ids: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Rows of a table.

    Args:
        table: a `Table` or an array (num_rows, dim) of any dtype.
        ids: (n,) integers: the result is their rows. Or (n, k): row i of the result is the sum of the k rows that
            ids[i] names.
        out: an array of the result's shape and dtype to write the result to (`Table.destination` makes one).

    Returns:
        (n, dim) rows of the table's dtype; `out` if it is given.

    Raises:
        BadIdError: an id is negative or outside the table.
        DTypeError: ids are not integers, or `out` has another dtype.
        ShapeError: ids have another rank, or `out` has another shape.

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
    return _lookup_checked(table, ids if is_boxed(ids) else table_ids(table, ids), out)


def _lookup_checked(table: Any, ids: Any, out: Any) -> Any:
    """`lookup`, once ids are an integer array."""
    rank = ndim_of(ids)
    if ndim_of(table) != 2:
        raise ShapeError(f"a table of shape {shape_of(table)}; expected (num_rows, dim)")
    if rank not in (1, 2):
        raise ShapeError(f"ids of shape {shape_of(ids)}; expected (n,), or (n, k) to sum each row's k rows")
    if rank == 2:
        check_bag_table(dtype_of(table), ("sum",))
    if out is None:
        return lookup_p(table, ids) if rank == 1 else _sums(table, ids)
    if is_boxed(table) or is_boxed(ids):
        raise UnsupportedError("lookup(out=) writes into an array, which carries no gradient and no batch; leave out=")
    table = _plain(table)
    shape = (ids.shape[0], table.shape[1])
    check_out(out, shape, table.dtype)
    _fill(np.asarray(out), table, own_ids(ids, id_bound(table)))
    return out


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype, name: str = "out") -> None:
    """Check that a result of this shape and dtype can be written to `out`, called `name` in errors.

    Raises:
        ShapeError: it is not an array, is masked, or has another shape. DTypeError: it is of another dtype.
        UnsupportedError: it is read-only.
    """
    plain = isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray)
    if not plain or out.shape != shape or out.dtype != dtype:
        found = f"{out.dtype} of shape {out.shape}" if plain else f"a {type(out).__name__}"
        error = DTypeError if plain and out.shape == shape else ShapeError
        raise error(f"{name} is {found}; expected {dtype} of shape {shape}")
    if not out.flags.writeable:
        raise UnsupportedError(f"{name} is read-only; expected an array that can be written to")


def _fill(out: np.ndarray, table: Any, ids: np.ndarray) -> None:
    """Write the rows of checked ids, or their sums, to `out`; without a copy unless `out` overlaps or has gaps."""
    shared = table._ab_overlaps(out) if hasattr(table, "_ab_locate") else np.may_share_memory(out, table)
    direct = (out.shape[1] < 2 or out.strides[1] == out.itemsize) and not shared
    if ids.ndim == 1 and direct:
        gather(table, ids, out)
    elif ids.ndim == 1:
        out[...] = gather(table, ids)
    else:
        bounds = np.arange(ids.shape[0] + 1) * ids.shape[1]
        found = pooled(table, ids.reshape(-1), bounds, None, "sum", out if direct else None)
        if found is not out:
            out[...] = found


def _sums(table: object, ids: object) -> Any:
    """The sum of each list of rows, in the dtype of the table."""
    out = bags_of_rows(table, ids, "sum")
    return out if dtype_of(out) == dtype_of(table) else out.astype(dtype_of(table))


@overload
def maplookup(
    tables: Sequence[ArrayLike],
    ids: NDArray[Any] | Sequence[ArrayLike],
    strategy: Default | SimpleParallel | None = None,
    out: list[NDArray[Any]] | None = None,
) -> list[NDArray[Any]]: ...
@overload
def maplookup(
    tables: Sequence[ArrayLike],
    ids: NDArray[Any] | Sequence[ArrayLike],
    strategy: Preallocation,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]: ...
@hiding_frames
def maplookup(
    tables: Sequence[ArrayLike],
    ids: NDArray[Any] | Sequence[ArrayLike],
    strategy: Strategy | None = None,
    out: object = None,
) -> NDArray[Any] | Sequence[NDArray[Any]]:
    """`lookup` in each of several tables.

    Args:
        tables: tables and arrays (num_rows, dim); dims may differ.
        ids: a list with the ids of each table, (n,), or (n, k) to sum k rows each; or one array (n, tables) with a
            column for each table, or (n, k, tables).
        strategy: `ab.tables.strategies.Default()` (also None), `SimpleParallel()` or `Preallocation(prepend_rows=0)`.
        out: arrays to write the results to: a list; with `Preallocation`, one matrix.

    Returns:
        A list of the `lookup` result for each table; with `Preallocation` their concatenation, (n, sum of the dims),
        after `prepend_rows` free columns.

    Raises:
        ShapeError: the numbers of tables and ids differ, results to concatenate differ in length, or a wrong `out`.
        BadIdError: an id is outside its table; the message names the table.
        UnsupportedError: an unknown strategy, or `out` in a batch or a gradient.

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
            f"strategy={strategy!r}; expected ab.tables.strategies.Default(), SimpleParallel() or Preallocation()"
        )
    tables = list(tables)
    lists = _ids_per_table(ids, len(tables))
    boxed = any(map(is_boxed, [*tables, *lists]))
    if boxed and out is not None:
        raise UnsupportedError("maplookup(out=) writes into arrays, which carry no gradient and no batch; leave out=")
    if not boxed:
        lists = [_checked(table, one, i) for i, (table, one) in enumerate(zip(tables, lists, strict=True))]
    if isinstance(strategy, Preallocation):
        return _concatenated(tables, lists, strategy.prepend_rows, out, boxed)
    if out is not None and (not isinstance(out, list | tuple) or len(out) != len(tables)):
        raise ShapeError(f"out is a {type(out).__name__}; expected a list of {len(tables)} arrays, one for each table")
    outs = [None] * len(tables) if out is None else list(out)
    for i, (table, one, given) in enumerate(zip(tables, lists, outs, strict=True)):
        if given is not None:
            check_out(given, (len(one), shape_of(table)[1]), dtype_of(table), f"out[{i}]")
    calls = [lambda args=args: lookup(*args) for args in zip(tables, lists, outs, strict=True)]
    parallel = isinstance(strategy, SimpleParallel) and not boxed
    results = _run_in_parts(calls) if parallel else with_options(lambda: run_all(calls), threads=1)
    return results if out is None else out


def _ids_per_table(ids: Any, count: int) -> list[Any]:
    """Split ids into a list with one entry for each table."""
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


def _checked(table: object, ids: object, number: int) -> np.ndarray:
    """Check the ids of table `number`, before any result is written."""
    if ndim_of(table) != 2:
        raise ShapeError(f"table {number} has shape {shape_of(table)}; expected (num_rows, dim)")
    ids = table_ids(table, ids)
    if ids.ndim not in (1, 2):
        raise ShapeError(f"ids of table {number} have shape {ids.shape}; expected (n,), or (n, k) to sum k rows each")
    try:
        check_ids(ids, id_bound(table))
    except BadIdError as error:
        raise BadIdError(f"table {number}: {error}") from None
    return ids


def _run_in_parts(calls: Sequence[Any]) -> list[Any]:
    """The results of the calls, which are divided among the threads in contiguous parts."""
    parts = max(1, min(len(calls), thread_count()))
    bounds = [len(calls) * i // parts for i in range(parts + 1)]
    try:
        results = run_together([functools.partial(run_all, calls[a:b]) for a, b in itertools.pairwise(bounds)])
    except BaseException:
        run_all(calls)  # after an interrupt, also run those that have not started
        raise
    return [result for part in results for result in part]


def _concatenated(tables: Sequence[Any], lists: Sequence[Any], free: int, out: Any, boxed: bool) -> Any:
    """`Preallocation`: all results in one matrix, after `free` columns."""
    if not tables:
        raise ShapeError("Preallocation got no tables; expected at least one")
    dtype = np.result_type(*map(dtype_of, tables))
    if boxed:
        results = [lookup(table, ids) for table, ids in zip(tables, lists, strict=True)]
        if free:
            results.insert(0, np.zeros((shape_of(results[0])[0], free), dtype))
        return np.concatenate(results, axis=1)
    rows = len(lists[0])
    for i, ids in enumerate(lists):
        if len(ids) != rows:
            raise ShapeError(f"{len(ids)} results of table {i} beside {rows} of table 0; expected equal numbers")
    shape = (rows, free + sum(shape_of(table)[1] for table in tables))
    if out is None:
        out = np.empty(shape, dtype)
        out[:, :free] = 0
    else:
        check_out(out, shape, dtype)
    calls: list[Callable[[], Any]] = []
    at = free
    for table, ids in zip(tables, lists, strict=True):
        part = out[:, at : at + shape_of(table)[1]]
        if dtype_of(table) == dtype:
            calls.append(functools.partial(lookup, table, ids, part))
        else:
            calls.append(functools.partial(operator.setitem, part, ..., lookup(table, ids)))
        at += part.shape[1]
    run_all(calls)
    return out
