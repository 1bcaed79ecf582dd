"""Running a workload: a process for each way, results compared first, then turns in which the ways alternate."""

import dataclasses
import math
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.compare import difference
from benchmarks.declare import LOOP, OURS, Bar, Case, Way, Workload
from benchmarks.machine import environment, pinned
from benchmarks.timing import Sample, spread

__all__ = ["Plan", "Row", "Timing", "Verdict", "WorkerError", "judge", "run"]

_TURN = 0.1  # seconds
_FEWEST = 3  # turns


class WorkerError(Exception):
    """A way failed or its process ended; the text says how."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        size: "full" or "small" cases.
        cores: the numbers of cores, one pass each.
        seconds: how long each way is measured in each case, in turns.
        picked: whether to run a case, by its name; `ways`: whether to run a peer, by its name.
    """

    size: str = "full"
    cores: tuple[int, ...] = (1,)
    seconds: float = 1.0
    picked: Callable[[str], bool] = lambda case: True
    ways: Callable[[str], bool] = lambda way: True


@dataclasses.dataclass
class Timing:
    """What one way took in one case, in seconds; or why there is no figure.

    Attributes:
        status: "ok", or what kept it from being timed.
        failed: that this is a fault of the suite or of the library, not only a package that is not there.
        first: the first run, compilation included.
        median, low, high: of a run, with quartiles.
        turns: the median of each turn, in order; `ratio` is the median over the turns of its time by ours.
    """

    status: str = "ok"
    failed: bool = False
    first: float | None = None
    median: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    turns: list[float] = dataclasses.field(default_factory=list)
    ratio: float | None = None


@dataclasses.dataclass
class Verdict:
    """Whether one row reached a bar."""

    over: str
    wanted: float
    got: float | None
    mean: bool = False

    @property
    def reached(self) -> bool | None:
        return None if self.got is None else self.got >= self.wanted


@dataclasses.dataclass
class Row:
    """One case on a number of cores."""

    workload: str
    case: str
    cores: int
    timings: dict[str, Timing]
    account: dict[str, Any] = dataclasses.field(default_factory=dict)
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(timing.failed for timing in self.timings.values())


class _Worker:
    """The process of one way."""

    def __init__(self, workload: Workload, way: Way, cores: int) -> None:
        self.name = way.name
        self.errors = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "benchmarks.worker", workload.name, way.name]
        with pinned(cores):
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=environment(cores),
            )
        self.ask("start")

    def ask(self, name: str, *args: Any) -> Any:
        """The answer to one request."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump((name, *args), self.process.stdin)
            self.process.stdin.flush()
            kind, answer = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self.process.wait()
            raise WorkerError(f"ended with status {self.process.returncode}: {self._last_words()}") from None
        if kind == "error":
            raise WorkerError(answer)
        return answer

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing was printed"

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def run(workload: Workload, plan: Plan, report: Callable[[str], None] = lambda text: None) -> Iterator[Row]:
    """One row for each case and number of cores. `report` is told what is being done."""
    cases = [case for case in workload.cases(plan.size) if plan.picked(case.name)]
    ways = [way for way in workload.ways if way.name in (OURS, LOOP) or plan.ways(way.name)]
    for cores in plan.cores:
        workers: dict[str, _Worker | str] = {}
        try:
            for case in cases:
                serving = [way for way in ways if way.serves(case)]
                yield _row(workload, case, serving, cores, workers, plan, report)
        finally:
            for worker in workers.values():
                if isinstance(worker, _Worker):
                    worker.end()


def _row(
    workload: Workload,
    case: Case,
    ways: Sequence[Way],
    cores: int,
    workers: dict[str, _Worker | str],
    plan: Plan,
    report: Callable[[str], None],
) -> Row:
    row = Row(workload.name, case.name, cores, {})
    where = f"{workload.name} · {case.name} · {cores} core{'s' if cores > 1 else ''}"
    expected: Any = None
    ready: list[_Worker] = []
    reference = next((way for way in ways if way.name != OURS), ways[0])
    for way in sorted(ways, key=lambda way: way is not reference):  # what all are compared with comes first
        report(f"{where}: {way.name}")
        timing = row.timings[way.name] = Timing()
        if not way.installed:
            timing.status = f"{way.needs} is not installed"
            continue
        try:
            worker = _worker(workload, way, cores, workers)
            answer = worker.ask("prepare", case.name, plan.size)
        except WorkerError as error:
            workers.pop(way.name, None)
            timing.status, timing.failed = str(error), True
            continue
        timing.first = answer["first"]
        if way is reference:
            expected = answer["result"]
        elif expected is not None and (text := difference(expected, answer["result"], workload.tolerance)):
            timing.status, timing.failed = f"not equal to {reference.name}: {text}", True
            continue
        ready.append(worker)
    row.timings = {way.name: row.timings[way.name] for way in ways}
    if row.timings[reference.name].failed or row.timings[ways[0].name].failed:  # nothing to measure against
        for worker in ready:
            row.timings[worker.name].status = "not timed: what it is measured against failed"
        return row
    report(f"{where}: timing")
    _alternate(row, ready, plan.seconds, cores)
    ours = next((worker for worker in ready if worker.name == OURS), None)
    if ours is not None and cores == 1:
        row.account = ours.ask("account", plan.seconds)
    row.verdicts = [verdict for bar in workload.bars if cores == 1 and (verdict := _verdict(bar, case, row))]
    return row


def _worker(workload: Workload, way: Way, cores: int, workers: dict[str, "_Worker | str"]) -> _Worker:
    """The process of a way, started when it is first needed."""
    found = workers.get(way.name)
    if isinstance(found, str):
        raise WorkerError(found)
    if found is None:
        try:
            found = workers[way.name] = _Worker(workload, way, cores)
        except WorkerError as error:
            workers[way.name] = str(error)
            raise
    return found


def _alternate(row: Row, ready: Sequence[_Worker], seconds: float, cores: int) -> None:
    """Turns of all ways, one after the other, until each was measured for `seconds` or often enough.

    On one core the time is the processor's, which other processes on the machine do not add to; on several it is the
    clock's.
    """
    kind = 1 if cores == 1 else 0
    each = {worker.name: worker.ask("estimate") for worker in ready}
    taken: dict[str, list[Sample]] = {worker.name: [] for worker in ready}
    turns = max(_FEWEST, math.ceil(seconds / _TURN))
    for index in range(turns):
        for worker in ready:
            if index >= _FEWEST and index * max(each[worker.name], _TURN) > seconds:
                continue
            samples = worker.ask("turn", _TURN)
            taken[worker.name] += samples
            row.timings[worker.name].turns.append(statistics.median(sample[kind] for sample in samples))
    ours = row.timings[OURS].turns if OURS in taken else []
    for name, samples in taken.items():
        timing = row.timings[name]
        timing.median, timing.low, timing.high = spread([sample[kind] for sample in samples])
        timing.samples = len(samples)
        pairs = list(zip(timing.turns, ours, strict=False))
        timing.ratio = statistics.median(theirs / own for theirs, own in pairs) if pairs else None


def _verdict(bar: Bar, case: Case, row: Row) -> Verdict | None:
    if not bar.holds(case):
        return None
    ratios = {name: timing.ratio for name, timing in row.timings.items() if bar.names(name)}
    found = [ratio for ratio in ratios.values() if ratio is not None]
    return Verdict(" / ".join(bar.over), bar.ratio, min(found) if found else None)


def judge(workload: Workload, rows: Sequence[Row]) -> list[Verdict]:
    """The bars that hold for the geometric mean over all cases of a workload."""
    verdicts = []
    for bar in workload.bars:
        if bar.mean is None:
            continue
        over = " / ".join(bar.over)
        found = [
            verdict.got
            for row in rows
            if row.workload == workload.name
            for verdict in row.verdicts
            if verdict.over == over and verdict.got is not None
        ]
        verdicts.append(Verdict(over, bar.mean, statistics.geometric_mean(found) if found else None, mean=True))
    return verdicts
