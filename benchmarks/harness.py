"""Running a workload: a process for each way, results compared first, then turns in which the ways alternate."""

import contextlib
import dataclasses
import math
import pickle
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import difference
from benchmarks.declare import OURS, Case, Way, Workload
from benchmarks.machine import environment, pinned
from benchmarks.timing import Sample, spread

_TURN = 0.1  # seconds
_FEWEST = 3  # turns
_ROOT = Path(__file__).resolve().parent.parent


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

    def fail(self, status: str) -> None:
        self.status, self.failed = status, True


@dataclasses.dataclass
class Verdict:
    """Whether one row reached a bar: a ratio of at least `wanted`, or a share of at most that."""

    over: str
    wanted: float
    got: float | None
    mean: bool = False
    share: bool = False

    @property
    def reached(self) -> bool | None:
        if self.got is None:
            return None
        return self.got <= self.wanted if self.share else self.got >= self.wanted


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
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        with pinned(cores):
            self.process = subprocess.Popen(
                [way.interpreter, "-m", "benchmarks.worker", workload.name, way.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=environment(cores),
                cwd=_ROOT,
            )
        try:
            self.ask("start")
        except WorkerError:
            self.end()
            raise

    def ask(self, name: str, *args: Any) -> Any:
        """The answer to one request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            pickle.dump((name, *args), self.process.stdin)
            self.process.stdin.flush()
            kind, answer = pickle.load(self.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self.process.wait()
            raise WorkerError(f"its process ended with status {status}: {self._last_words()}") from None
        if kind == "error":
            raise WorkerError(answer)
        return answer

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


class _Team:
    """The processes of one workload on a number of cores, each started when it is first needed."""

    def __init__(self, workload: Workload, cores: int) -> None:
        self.workload = workload
        self.cores = cores
        self.workers: dict[str, _Worker] = {}
        self.broken: dict[str, str] = {}

    def worker(self, way: Way) -> _Worker:
        if way.name in self.broken:
            raise WorkerError(self.broken[way.name])
        if way.name not in self.workers:
            try:
                self.workers[way.name] = _Worker(self.workload, way, self.cores)
            except WorkerError as error:
                self.broken[way.name] = str(error)
                raise
        return self.workers[way.name]

    def drop(self, name: str) -> None:
        """End a process that failed; the next case gets a new one."""
        if name in self.workers:
            self.workers.pop(name).end()

    def end(self) -> None:
        for name in list(self.workers):
            self.drop(name)


def run(workload: Workload, plan: Plan, report: Callable[[str], None] = lambda text: None) -> Iterator[Row]:
    """One row for each case and number of cores. `report` is told what is being done."""
    cases = [case for case in workload.cases(plan.size) if plan.picked(case.name)]
    fixed = (workload.ways[0], workload.reference)
    ways = [way for way in workload.ways if way in fixed or plan.ways(way.name)]
    for cores in plan.cores:
        team = _Team(workload, cores)
        try:
            for case in cases:
                yield _row(team, case, [way for way in ways if way.serves(case)], plan, report)
        finally:
            team.end()


def _row(team: _Team, case: Case, ways: Sequence[Way], plan: Plan, report: Callable[[str], None]) -> Row:
    workload, cores = team.workload, team.cores
    row = Row(workload.name, case.name, cores, {way.name: Timing() for way in ways})
    where = f"{workload.name} · {case.name} · {cores} core{'s' if cores > 1 else ''}"
    reference = workload.reference
    expected: Any = None
    ready: list[_Worker] = []
    for way in sorted(ways, key=lambda way: way != reference):  # what all are compared with comes first
        report(f"{where}: {way.name}")
        timing = row.timings[way.name]
        if missing := way.missing:
            timing.status = missing
            continue
        try:
            worker = team.worker(way)
            answer = worker.ask("prepare", case.name, plan.size)
        except WorkerError as error:
            team.drop(way.name)
            timing.fail(str(error))
            continue
        timing.first = answer["first"]
        if way == reference:
            expected = answer["result"]
        elif expected is not None and (text := difference(expected, answer["result"], workload.tolerance)):
            timing.fail(f"not equal to {reference.name}: {text}")
            continue
        ready.append(worker)
    if row.timings[reference.name].failed or row.timings[OURS].failed:  # nothing to measure against
        for worker in ready:
            row.timings[worker.name].status = f"not timed: {OURS} or {reference.name} failed"
        return row
    report(f"{where}: timing")
    _alternate(row, ready, plan.seconds, team)
    if cores == 1 and OURS in team.workers:
        row.account = team.workers[OURS].ask("account", plan.seconds)
        row.verdicts = _verdicts(workload, case, row)
    return row


def _alternate(row: Row, ready: Sequence[_Worker], seconds: float, team: _Team) -> None:
    """Turns of all ways, one after the other, until each was measured for `seconds` or often enough.

    On one core the time is the processor's, which other processes on the machine do not add to; on several it is the
    clock's.
    """
    kind = 1 if team.cores == 1 else 0
    taken: dict[str, list[Sample]] = {}
    each: dict[str, float] = {}
    for index in range(max(_FEWEST, math.ceil(seconds / _TURN))):
        for worker in ready:
            name = worker.name
            timing = row.timings[name]
            if timing.failed or (index >= _FEWEST and index * max(each[name], _TURN) > seconds):
                continue
            try:
                if not index:
                    each[name] = worker.ask("estimate")
                samples = worker.ask("turn", _TURN)
            except WorkerError as error:
                team.drop(name)
                timing.fail(str(error))
                continue
            taken.setdefault(name, []).extend(samples)
            timing.turns.append(statistics.median(sample[kind] for sample in samples))
    ours = row.timings[OURS].turns
    for name, samples in taken.items():
        timing = row.timings[name]
        if timing.failed:
            continue
        timing.median, timing.low, timing.high = spread([sample[kind] for sample in samples])
        timing.samples = len(samples)
        pairs = list(zip(timing.turns, ours, strict=False))
        timing.ratio = statistics.median(theirs / own for theirs, own in pairs) if pairs else None


def _verdicts(workload: Workload, case: Case, row: Row) -> list[Verdict]:
    """The bars that hold for this case."""
    out = []
    for bar in workload.bars:
        if bar.holds(case):
            found = [timing.ratio for name, timing in row.timings.items() if bar.names(name)]
            ratios = [ratio for ratio in found if ratio is not None]
            out.append(Verdict(" / ".join(bar.over), bar.ratio, min(ratios, default=None)))
    for limit in workload.share_bars:
        if limit.holds(case):
            shares = row.account["shares"]
            got = sum(shares.get(phase, 0.0) for phase in limit.phases) if shares else None
            out.append(Verdict(" + ".join(limit.phases), limit.most, got, share=True))
    return out


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
