"""`ab.ray.map`: maps a function of one example over Parquet files, in several processes, resuming where it stopped."""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autobatch.checkpoint.files import Lock
from autobatch.errors import OptionError, StructureError
from autobatch.ray.ray_session import ProcessesLostError, ray_session, translated_errors
from autobatch.ray.row_groups import (
    Skipped,
    Unit,
    UnitDone,
    commit_unit,
    committed,
    files_of,
    run_unit,
    units_of,
    write_json,
)
from autobatch.ray.table_mapper import Mapper


@dataclasses.dataclass(frozen=True)
class Mapped:
    """The summary of a finished map.

    Attributes:
        out: the folder of the results; `pyarrow.parquet.read_table(out)` reads them in the order of the input.
        rows: the number of results. units: the number of row groups; resumed: how many of them were done before.
        skipped: files, row groups and rows without results, and why.
    """

    out: str
    rows: int
    units: int
    resumed: int
    skipped: list[Skipped]


def map(
    f: Callable[..., Any],
    data: object,
    *,
    columns: str | Sequence[str],
    out: Any,
    workers: int | None = None,
    on_error: str = "raise",
    resume: bool = True,
    keep: Sequence[str] = (),
    retries: int = 2,
    progress: bool | None = None,
    **shared: Any,
) -> Mapped:
    """Map a function of one example over the rows of Parquet files, which may be ragged and larger than memory.

    A row group is a unit of work: a worker reads it some MiB at a time, runs the function on many rows together, writes
    the results, and commits them by a rename. Committed units are not done again: a map that was interrupted, in any
    way, continues when it is called again. The results are Parquet files in the order of the input.

    Args:
        f: a function of one example: `f(*columns, **shared)`. Its result becomes the column "result"; a dict becomes
            columns by its keys; a tuple, columns "0", "1", …; a list, one column of lists.
        data: a glob such as "clicks/*.parquet", a folder, a list of files, or a `pyarrow.dataset`.
        columns: the names of the columns that are the function's arguments, in order.
        out: a folder for the results: empty, or that of an earlier call with the same input.
        workers: the number of processes; None: one for each CPU of the Ray cluster; 0: this process, without Ray.
        on_error: "raise": the first row that fails, or file that cannot be read, ends the map, once the running units
            are done; its error names file, row group and row. "skip": they are left out, and listed in the result.
        resume: False: refuse a folder that has results.
        keep: the names of columns that are written beside the results, such as a join key.
        retries: how often a row group is restarted when its worker dies; then it is an error, handled by `on_error`.
        progress: show a bar with examples per second (`tqdm`); None: if stderr is a terminal.
        shared: arguments that are the same for all examples: parameters, tables.

    Returns:
        A `Mapped`: the number of rows, and what was skipped.

    Raises:
        OptionError: an invalid argument, or a folder with results of other input.
        RuntimeError: the worker of a row group died more than `retries` times.
        the exception of `f`, or pyarrow's for a damaged file, with a note that names the place.

    >>> import pathlib, pytest, tempfile
    >>> pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> pq.write_table(pa.table({"key": [7, 8, 9], "ids": [[1, 2], [], [5]]}), folder / "in.parquet", row_group_size=2)
    >>> done = ab.ray.map(lambda ids: ids.sum(), folder / "*.parquet", columns="ids", keep=["key"], out=folder / "out",
    ...                   workers=0)
    >>> done.rows, done.units, pq.read_table(folder / "out").to_pydict()
    (3, 2, {'key': [7, 8, 9], 'result': [3, 0, 5]})
    """
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}; expected 'raise' or 'skip'")
    mapper, folder = Mapper(f, columns=columns, keep=keep, **shared), os.path.abspath(os.fspath(out))
    run = _run_locally if workers == 0 else functools.partial(_run_on_ray, workers=workers, retries=retries)
    return _map_files(mapper, files_of(data), folder, run, on_error == "skip", resume, progress)


def _map_files(
    mapper: Mapper, files: list[str], folder: str, run: Callable[..., Any], skip: bool, resume: bool, progress: Any
) -> Mapped:
    """Map the rows of files into a folder; `run` runs the units that are not done."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OptionError(f"out={folder!r} is a file or lies in one; expected a folder, new or of this map") from None
    with _exclusive_folder(folder):
        units, unreadable = _units(files, skip)
        _check_job(folder, {"files": files, "columns": mapper.columns, "keep": mapper.keep}, units, resume)
        done = {unit: found for unit in units if (found := committed(folder, unit)) is not None}
        left = [unit for unit in units if unit not in done]
        with _progress_bar(sum(unit.rows for unit in units), progress) as advance:
            advance(sum(unit.rows for unit in done))
            failures: list[tuple[Unit, Exception]] = []
            for unit, result in run(mapper, left, folder, skip):
                if isinstance(result, UnitDone):
                    done[unit] = result
                    advance(unit.rows)
                else:
                    failures.append((unit, result))
        if failures:
            raise min(failures, key=lambda each: (each[0].file, each[0].group))[1]
        _check_columns(done)
    skipped = [*unreadable, *(each for unit in units for each in done[unit].skipped)]
    return Mapped(folder, sum(each.rows for each in done.values()), len(units), len(units) - len(left), skipped)


def _units(files: Sequence[str], skip: bool) -> tuple[list[Unit], list[Skipped]]:
    """The row groups of all files, and, with `skip`, the files that cannot be read."""
    units, unreadable = [], []
    for number, path in enumerate(files):
        try:
            units += units_of(number, path)
        except (OSError, ValueError) as error:
            if not skip:
                error.add_note(f"in {path}, which cannot be read as Parquet")
                raise
            unreadable.append(Skipped(path, None, None, f"{type(error).__name__}: {error}"))
    return units, unreadable


def _check_columns(done: dict[Unit, UnitDone]) -> None:
    """Raise if units differ in columns: a reader of all units would silently drop or convert some."""
    named = [(unit, own.columns) for unit, own in done.items() if own.rows]
    for unit, columns in named:
        if columns != named[0][1]:
            raise StructureError(
                f"the results of {unit} have the columns {columns}; expected {named[0][1]}, as of {named[0][0]}: have "
                "f return the same names and dtypes for every example, also where the files' own differ"
            )


@contextlib.contextmanager
def _exclusive_folder(folder: str) -> Iterator[None]:
    """Lock the folder, so that one map runs at a time, and remove half-written files of processes that were killed."""
    try:
        lock = Lock(os.path.join(folder, "_lock"))
    except BlockingIOError:
        raise OptionError(f"another map is writing to {folder}; wait for it, or give another folder") from None
    try:
        _remove_partial_files(folder)
        yield
        _remove_partial_files(folder)
    finally:
        lock.release()


def _remove_partial_files(folder: str) -> None:
    for path in pathlib.Path(folder).glob(".*.part"):
        path.unlink(missing_ok=True)


def _check_job(folder: str, job: dict[str, Any], units: Sequence[Unit], resume: bool) -> None:
    """Record the job of the folder's results in a file; refuse a folder with results of another job."""
    job = job | {"units": [[unit.file, unit.group, unit.rows, unit.nbytes] for unit in units]}
    path = pathlib.Path(folder, "_job.json")
    if path.exists():
        if not resume:
            raise OptionError(f"{folder} has results, and resume=False; give an empty folder")
        known = json.loads(path.read_text(encoding="utf-8"))
        wrong = [name for name in job if known.get(name) != job[name]]
        if wrong:
            raise OptionError(
                f"{folder} has results of other {' and '.join(wrong)}; give an empty folder, or the input of before"
            )
        return
    write_json(os.fspath(path), job)


@contextlib.contextmanager
def _progress_bar(total: int, progress: bool | None) -> Iterator[Callable[[int], Any]]:
    """Gives a progress callback, to be called with how many further examples are done."""
    shown = sys.stderr.isatty() if progress is None else progress
    if shown:
        try:
            from tqdm import tqdm  # noqa: PLC0415
        except ImportError:
            shown = False
    if not shown:
        yield lambda rows: None
        return
    with tqdm(total=total, unit=" examples", unit_scale=True) as bar:
        yield bar.update


Results = Iterator[tuple[Unit, UnitDone | Exception]]


def _run_or_skip(mapper: Mapper, unit: Unit, folder: str, skip: bool) -> UnitDone:
    """Run one unit; for damaged pages, raise an error that names the unit, or, with `skip`, skip the whole unit."""
    import pyarrow as pa  # noqa: PLC0415

    try:
        return run_unit(mapper, unit, folder, skip)
    except Exception as error:
        if skip and isinstance(error, OSError | pa.ArrowException):  # pyarrow's errors for damaged pages
            return skip_unit(folder, unit, f"{type(error).__name__}: {error}")
        if str(unit) not in "".join(getattr(error, "__notes__", ())):  # not the error of a row
            error.add_note(f"in {unit}")
        raise


def skip_unit(folder: str, unit: Unit, why: str) -> UnitDone:
    """Commit a unit as done, without results."""
    return commit_unit(folder, unit, UnitDone(0, [Skipped(unit.path, unit.group, None, why)], []))


def _run_locally(mapper: Mapper, units: Sequence[Unit], folder: str, skip: bool) -> Results:
    for unit in units:
        try:
            yield unit, _run_or_skip(mapper, unit, folder, skip)
        except Exception as error:
            yield unit, error
            return


_known: dict[Any, Mapper] = {}  # the mapper last used in this worker process, by its Ray reference


def _in_worker(shared: list[Any], unit: Unit, folder: str, skip: bool) -> UnitDone:
    """Map a unit in a Ray worker process, in which kernels stay warm, also for the next map."""
    (reference,) = shared
    if reference not in _known:
        _known.clear()
        _known[reference] = ray_session().get(reference)
    return _run_or_skip(_known[reference], unit, folder, skip)


def _run_on_ray(
    mapper: Mapper, units: Sequence[Unit], folder: str, skip: bool, *, workers: int | None, retries: int
) -> Results:
    """Yield units as workers finish them; after one that failed no other is started."""
    if not units:
        return
    ray = ray_session(workers)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    count = cpus if workers is None else workers
    if count < 1:
        raise OptionError(f"workers={workers}; expected at least one, or 0 for this process")
    shared = [ray.put(mapper)]  # in a list: Ray would unpack a bare reference into a copy for each unit
    work = ray.remote(num_cpus=1, max_retries=0)(_in_worker)
    most = count if count < cpus else 2 * count  # where all CPUs are used, none waits for its next unit
    waiting, running = collections.deque(units), dict[Any, Unit]()
    died: collections.Counter[Unit] = collections.Counter()
    failed = False
    try:
        while True:
            while waiting and not failed and len(running) < most:
                unit = waiting.popleft()
                running[work.remote(shared, unit, folder, skip)] = unit
            if not running:
                return
            (result,), _ = ray.wait(list(running), num_returns=1)
            unit = running.pop(result)
            found: UnitDone | Exception
            try:
                with translated_errors():
                    found = ray.get(result)
            except ProcessesLostError as error:
                died[unit] += 1
                if died[unit] <= retries:
                    waiting.appendleft(unit)
                    continue
                why = f"{died[unit]} workers died with it, the last: {error}"
                found = skip_unit(folder, unit, why) if skip else RuntimeError(f"{unit}: {why}; retries={retries}")
            except Exception as error:
                found = error
            failed = failed or isinstance(found, Exception)
            yield unit, found
    finally:
        for result in running:
            ray.cancel(result, force=True)
