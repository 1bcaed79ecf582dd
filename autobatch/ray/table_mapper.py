"""`Mapper`: turns a function of one example into a function of a table (Arrow, pandas, polars, a dict of arrays)."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.api.batch import batch as batched
from autobatch.batches.any_batch import Batch, batch_size_of
from autobatch.batches.data.collate import collate
from autobatch.batches.exports import with_any_lengths
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.stacking import examples
from autobatch.core.config import options
from autobatch.core.pytree import children_of, is_node, step_to
from autobatch.errors import OptionError, StructureError


class RowError(Exception):
    """The function raised for a row.

    Attributes:
        row: the row's number in the table. error: the exception.
    """

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(row, error)
        self.row, self.error = row, error


class Mapper:
    """Maps a function of one example over the rows of tables; each call runs the rows as a batch.

    Use it where a function from table to table is expected: `ray.data.Dataset.map_batches(mapper)`, with any of its
    batch formats, and `dask.dataframe.DataFrame.map_partitions(mapper, meta=...)`. It can be pickled by `cloudpickle`;
    compiled code stays in its process.

    Args:
        f: a function of one example: `f(*columns, **shared)`.
        columns: the names of the columns that are the function's positional arguments, in order.
        keep: the names of columns that are returned unchanged beside the results.
        shared: arguments that are the same for all examples: parameters, tables.

    >>> mapper = ab.ray.Mapper(lambda ids, scale: {"total": ids.sum() * scale}, columns=["ids"], keep=["key"], scale=10)
    >>> mapper({"key": np.array([7, 8]), "ids": [[1, 2], [3]]})
    {'key': array([7, 8]), 'total': array([30, 30])}
    """

    def __init__(
        self, f: Callable[..., Any], *, columns: str | Sequence[str], keep: Sequence[str] = (), **shared: Any
    ) -> None:
        if not callable(f):
            raise OptionError(f"f={f!r}; expected a function of one example")
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        self.keep = [keep] if isinstance(keep, str) else list(keep)
        if not self.columns:
            raise OptionError("columns=[]; expected the names of the columns that f takes")
        self.f, self.shared = f, shared
        self._batched: Any = None

    def __call__(self, table: object) -> Any:
        """The results of all rows, as a table of the same kind.

        Args:
            table: a `pyarrow.Table` or `RecordBatch`, a pandas or polars frame, or a dict of columns.

        Raises:
            the exception of `f` for the first row that fails, with a note that names the row.
        """
        try:
            kept, results = self.results(table)
        except RowError as failed:
            failed.error.add_note(f"in row {failed.row} of the table")
            raise failed.error from None
        return _as_input_type(table, kept, results)

    def results(self, table: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The kept columns and the result columns, by name; a result column is a batch or a list of objects.

        Raises:
            RowError: for the first row that fails.
        """
        for name in (*self.columns, *self.keep):
            if name not in _names(table):
                raise StructureError(f"no column {name!r} in the table; there are {list(_names(table))}")
        count = _length(table, self.columns[0])
        found = [_column(table, name) for name in self.columns]
        kept = {name: table[name] for name in self.keep}
        if not count:
            return kept, {}
        try:
            results = _columns_of(self._run(found, 0, count), count)
        except Exception as error:
            failed = self._first_failing(found, count)
            if failed is None:  # no row fails by itself
                raise
            raise failed from error
        if twice := sorted(kept.keys() & results.keys()):
            raise OptionError(f"keep names {twice}, and f gives columns of that name; rename them in what f returns")
        return kept, results

    def _run(self, columns: Sequence[Any], first: int, last: int) -> Any:
        if self._batched is None:
            self._batched = self.f if hasattr(type(self.f), "_ab_batch") else batched(self.f)
        with options(warn=False):  # the user did not ask for lock-step
            return self._batched(*(collate(column[first:last]) for column in columns), **self.shared)

    def _first_failing(self, columns: Sequence[Any], count: int) -> RowError | None:
        """The first row that fails, found by bisection; None if none fails by itself."""
        first, last = 0, count
        while first < last:
            middle = (first + last + 1) // 2
            try:
                self._run(columns, first, middle)
                first = middle
            except Exception as error:
                if middle - first == 1:
                    return RowError(first, error)
                last = middle
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_batched": None}

    def __repr__(self) -> str:
        return f"Mapper({getattr(self.f, '__name__', self.f)!s}, columns={self.columns}, keep={self.keep})"


def _names(table: Any) -> Any:
    if isinstance(table, dict):
        return table.keys()
    names = getattr(table, "column_names", None)
    return list(table.columns) if names is None else names


def _length(table: Any, column: str) -> int:
    return len(table[column]) if isinstance(table, dict) else len(table)


def _column(table: Any, name: str) -> Any:
    """A column that can be sliced and that `collate` takes."""
    column = table[name]
    if isinstance(column, np.ndarray) and column.dtype == object:
        return list(column)
    if hasattr(column, "iloc"):  # a pandas Series
        return column.reset_index(drop=True) if column.dtype != object else list(column)
    return column


def _columns_of(results: object, count: int) -> dict[str, Any]:
    """A tree of batches as columns, each part named by its path; a result that is not a container is "result"."""
    found = {}
    for path, part in _parts_of(results, ""):
        same = batch_size_of(part) is None  # for all rows: a string, or a list of them
        column = [part] * count if same else part if isinstance(part, Batch) else examples(part)
        found[path_name(path, ".", "result")] = column
    return found


def _parts_of(tree: object, path: str) -> Iterator[tuple[str, Any]]:
    """The paths and parts of a tree; a list is one part, as its length may be another in the next row."""
    if isinstance(tree, ObjectBatch) and tree.batch_size:  # of trees whose lists differ in length, for example
        values = tree.examples()
        kinds = {(type(x), frozenset(children_of(x)[0]) if is_node(x) else None) for x in values}
        if len(kinds) == 1 and is_node(values[0]) and not isinstance(values[0], list):
            rows = [dict(zip(*children_of(x), strict=True)) for x in values]
            for key in rows[0]:
                yield from _parts_of(ObjectBatch([row[key] for row in rows]), path + step_to(type(values[0]), key))
            return
    if isinstance(tree, list) or not is_node(tree):
        yield path, tree
        return
    for key, part in zip(*children_of(tree), strict=True):
        yield from _parts_of(part, path + step_to(type(tree), key))


_STEP = re.compile(r"\['?(.*?)'?\]|\.(\w+)")


def path_name(path: str, between: str, whole: str) -> str:
    """The name of a place in a tree, from its path in `pytree.paths`.

    Args:
        between: the separator between keys. whole: the name of the tree itself.

    >>> path_name("['tables'][0].users", "/", "params"), path_name("", ".", "result")
    ('tables/0/users', 'result')
    """
    return between.join(key or attribute for key, attribute in _STEP.findall(path)) or whole


def arrow_column(column: object) -> Any:
    """A column of results as a `pyarrow.Array`, of a type that does not depend on the lengths of these rows' lists."""
    import pyarrow as pa  # noqa: PLC0415

    return with_any_lengths(column.to_arrow() if isinstance(column, Batch) else pa.array(column))


def _as_input_type(table: Any, kept: dict[str, Any], results: dict[str, Any]) -> Any:
    if isinstance(table, dict):
        return kept | {name: _array(column) for name, column in results.items()}
    if hasattr(table, "iloc"):
        import pandas as pd  # noqa: PLC0415

        columns = {name: _series(column) for name, column in results.items()}
        return pd.DataFrame(
            {**{name: column.to_numpy() for name, column in kept.items()}, **columns}, index=table.index
        )
    if hasattr(table, "with_columns"):  # a polars DataFrame
        import polars as pl  # noqa: PLC0415

        return pl.DataFrame({**kept, **{name: pl.from_arrow(arrow_column(each)) for name, each in results.items()}})
    import pyarrow as pa  # noqa: PLC0415

    return pa.table({**kept, **{name: arrow_column(column) for name, column in results.items()}})


def _array(column: Any) -> Any:
    """A column as an array: of numbers if all examples have one shape, else of objects."""
    found = column.examples() if isinstance(column, Batch) else list(column)
    if found and all(np.shape(each) == np.shape(found[0]) and not isinstance(each, str) for each in found):
        return np.array(found)
    out = np.empty(len(found), object)
    out[:] = [*found, None][:-1]
    return out


def _series(column: object) -> Any:
    found = _array(column)
    return list(found) if found.ndim > 1 else found
