"""Conversion of a variable to an Arrow table and back: a row for each key, with its slots, version and count."""

from typing import Any

import numpy as np

from autobatch.errors import ShapeError, StructureError, UnsupportedError
from autobatch.tables.stored import StoredBlock

_SLOT = "slot:"


def arrow_table(block: StoredBlock) -> Any:
    """A table with columns "key", "row", "version", "count" and "slot:<name>"; rows are fixed-size lists."""
    import pyarrow as pa  # noqa: PLC0415

    columns = {"key": pa.array(block.keys), "row": _lists(block.rows), "version": pa.array(block.versions)}
    columns |= {"count": pa.array(block.counts)} | {_SLOT + name: _lists(x) for name, x in block.slots.items()}
    return pa.table(columns)


def _lists(rows: np.ndarray) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def blocks_of_arrow(table: object, dim: int, dtype: np.dtype) -> list[StoredBlock]:
    """The contents of an Arrow table as blocks; missing versions and counts are 0.

    Raises:
        StructureError: the column "key" or "row" is missing. ShapeError: rows have another length than `dim`.
        UnsupportedError: something that is not an Arrow table.
    """
    if not (hasattr(table, "column_names") and hasattr(table, "combine_chunks")):
        raise UnsupportedError(f"from_arrow of a {type(table).__name__}; expected a pyarrow.Table like to_arrow's")
    if missing := {"key", "row"} - set(table.column_names):
        raise StructureError(f"an Arrow table of {table.column_names}; expected the columns {sorted(missing)}, too")
    out = []
    table.validate(full=True)  # type: ignore[attr-defined]  # raises ValueError for offsets and lengths that lie
    for batch in table.combine_chunks().to_batches():
        count = batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        rows = _matrix(columns["row"], count).astype(dtype, copy=False)
        if rows.shape[1] != dim:
            raise ShapeError(f"rows of {rows.shape[1]} numbers in an Arrow table; expected {dim}")
        slots = {name.removeprefix(_SLOT): _matrix(x, count) for name, x in columns.items() if name.startswith(_SLOT)}
        numbers = [
            columns[name].to_numpy(zero_copy_only=False) if name in columns else np.zeros(count, np.int64)
            for name in ("version", "count")
        ]
        out.append(StoredBlock(columns["key"].to_numpy(zero_copy_only=False), rows, slots, *numbers))
    return out


def _matrix(column: Any, count: int) -> np.ndarray:
    if not hasattr(column.type, "list_size"):
        raise ShapeError(f"rows of type {column.type} in an Arrow table; expected lists of one size, as to_arrow gives")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(count, -1) if count else np.empty((0, column.type.list_size), flat.dtype)
