"""Row groups of Parquet files as units of work: lists the units of files; maps, writes and commits one unit.

The results of a unit are written under a name that readers ignore, flushed, and renamed, so either all of them are
there or none. Only some MiB of a row group are in memory at a time.
"""

import dataclasses
import glob
import json
import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

from autobatch.checkpoint.files import flush
from autobatch.errors import OptionError, StructureError
from autobatch.ray.table_mapper import Mapper, RowError, arrow_column

_CHUNK_ROWS = 1 << 16  # the same for rows of few bytes


@dataclasses.dataclass(frozen=True)
class Unit:
    """A row group.

    Attributes:
        file: the file's number. path: the file's path. group: the row group's number in the file. rows: its row count.
        first_row: the number of its first row in the file. nbytes: its uncompressed size.
    """

    file: int
    path: str
    group: int
    rows: int
    first_row: int
    nbytes: int

    @property
    def name(self) -> str:
        """The name of its result file; sorted names are in the order of the input."""
        return f"{self.file:06d}-{self.group:06d}"

    def __str__(self) -> str:
        return f"{self.path}, row group {self.group}"


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A file, row group or row that has no results.

    Attributes:
        path: of the file. group: the row group's number; None: the whole file cannot be read. row: its number in the
            row group; None: the whole row group. error: the exception, as text.
    """

    path: str
    group: int | None
    row: int | None
    error: str

    def __str__(self) -> str:
        group = "" if self.group is None else f", row group {self.group}"
        return f"{self.path}{group}{'' if self.row is None else f', row {self.row}'}: {self.error}"


@dataclasses.dataclass(frozen=True)
class UnitDone:
    """A committed unit: its number of result rows, the rows without results, and its columns as "name: type"."""

    rows: int
    skipped: list[Skipped]
    columns: list[str]


def files_of(data: object) -> list[str]:
    """The Parquet files of `data`, in order: a glob, a folder, a list of paths, or a `pyarrow.dataset`.

    Raises:
        OptionError: `data` is none of these, or has no file.
    """
    if isinstance(data, str | os.PathLike):
        path = os.fspath(data)
        found = sorted(glob.glob(os.path.join(path, "*.parquet") if os.path.isdir(path) else path, recursive=True))
    elif hasattr(data, "files"):
        found = list(data.files)
    elif isinstance(data, list | tuple):
        found = [os.fspath(each) for each in data]
    else:
        raise OptionError(
            f"data is a {type(data).__name__}; expected a glob such as 'clicks/*.parquet', a list of files, or a "
            "pyarrow.dataset; for a Ray Dataset: dataset.map_batches(ab.ray.Mapper(...))"
        )
    if not found:
        raise OptionError(f"no file matches data={data!r}")
    return [os.path.abspath(each) for each in found]


def units_of(file: int, path: str) -> list[Unit]:
    """The row groups of a file.

    Raises:
        pyarrow's error for a file that is not Parquet.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415

    with pq.ParquetFile(path) as opened:
        about = opened.metadata
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
    out, first = [], 0
    for i, group in enumerate(groups):
        out.append(Unit(file, path, i, group.num_rows, first, group.total_byte_size))
        first += group.num_rows
    return out


def committed(out: str, unit: Unit) -> UnitDone | None:
    """The `UnitDone` that a unit has committed; None if the unit is not done."""
    folder = pathlib.Path(out)
    said = folder / f"_{unit.name}.json"
    if not said.exists():
        return None
    found = json.loads(said.read_text(encoding="utf-8"))
    if found["rows"] and not (folder / f"{unit.name}.parquet").exists():
        return None
    return UnitDone(found["rows"], [Skipped(**each) for each in found["skipped"]], found["columns"])


def run_unit(mapper: Mapper, unit: Unit, out: str, skip: bool) -> UnitDone:
    """Map a row group and commit its results; a unit that is done is not mapped again.

    Raises:
        the function's exception for the first row that fails, with a note that names the row, unless rows may be
        skipped; pyarrow's error for a damaged file.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415

    if (done := committed(out, unit)) is not None:
        return done
    temporary = os.path.join(out, f".{unit.name}.{uuid.uuid4().hex}.part")
    skipped: list[Skipped] = []
    rows = 0
    writer: Any = None
    try:
        for table in _results(mapper, unit, skip, skipped):
            if writer is None:
                writer = pq.ParquetWriter(temporary, table.schema)
            if table.schema != writer.schema:
                table = _cast(table, writer.schema, unit)
            writer.write_table(table)
            rows += table.num_rows
        if writer is not None:
            writer.close()
            flush(temporary)
            os.replace(temporary, os.path.join(out, f"{unit.name}.parquet"))
        columns = [f"{field.name}: {field.type}" for field in writer.schema] if rows else []
        return commit_unit(out, unit, UnitDone(rows, skipped, columns))
    except BaseException as error:
        if writer is not None:
            writer.close()
        if isinstance(error, RowError):  # unwrapped only here: raised in a generator, a StopIteration ends it
            raise error.error from None
        raise
    finally:
        pathlib.Path(temporary).unlink(missing_ok=True)


def commit_unit(out: str, unit: Unit, done: UnitDone) -> UnitDone:
    """Mark a unit as done, in a file whose name begins with an underscore: readers of Parquet skip such files."""
    write_json(os.path.join(out, f"_{unit.name}.json"), dataclasses.asdict(done))
    return done


def write_json(path: str, value: object) -> None:
    """Write a JSON file, which is there complete or not at all."""
    temporary = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
    flush(temporary)
    os.replace(temporary, path)


def _cast(table: Any, schema: Any, unit: Unit) -> Any:
    try:
        return table.select(schema.names).cast(schema)
    except (ValueError, KeyError) as error:
        raise TypeError(
            f"the results of {unit} differ in kind from row to row: {table.schema} after {schema}; have f return one "
            "dtype and the same names for every example"
        ) from error


def _results(mapper: Mapper, unit: Unit, skip: bool, skipped: list[Skipped]) -> Iterator[Any]:
    """Tables of results, chunk by chunk; a row that fails is added to `skipped`, or raises RowError."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    # So many uncompressed bytes of a row group, which fit into CPU caches, are mapped at a time.
    rows = max(1, min(_CHUNK_ROWS, (4 << 20) // max(1, unit.nbytes // max(1, unit.rows))))
    names = list(dict.fromkeys((*mapper.columns, *mapper.keep)))
    with pq.ParquetFile(unit.path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True) as file:
        there = file.schema_arrow.names
        for name in names:
            if name not in there:
                raise StructureError(f"no column {name!r} in {unit.path}; there are {there}")
        first = 0
        for chunk in file.iter_batches(rows, row_groups=[unit.group], columns=names):
            table = pa.Table.from_batches([chunk])
            for kept, results in _successful_rows(mapper, table, skip, unit, first, skipped):
                yield pa.table({**kept, **{name: arrow_column(column) for name, column in results.items()}})
            first += table.num_rows


def _successful_rows(
    mapper: Mapper, table: Any, skip: bool, unit: Unit, first: int, skipped: list[Skipped]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The results of the rows that do not fail, in pieces, which are small where many rows fail."""
    at, size = 0, table.num_rows
    while at < table.num_rows:
        piece = table.slice(at, size)
        try:
            yield mapper.results(piece)
            # After a try that succeeded, at least so many rows are tried together.
            at, size = at + piece.num_rows, max(2 * size, 1 << 10)
        except RowError as failed:
            row = first + at + failed.row
            if not skip:
                failed.error.add_note(f"in {unit}, row {row} (row {unit.first_row + row} of the file)")
                raise
            skipped.append(Skipped(unit.path, unit.group, row, f"{type(failed.error).__name__}: {failed.error}"))
            if failed.row:
                yield mapper.results(piece.slice(0, failed.row))
            at, size = at + failed.row + 1, max(1, min(size, 4 * failed.row))
