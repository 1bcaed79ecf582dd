"""What a workload declares: its cases, the ways to run them, and the ratios it should reach.

A workload is a module of `benchmarks.workloads` with a `WORKLOAD`. Its cases and data come from seeds, so each way may
build them in a process of its own. A way is a function `prepare(case) -> Runner`, named by a string, so that a library
is imported only in the process that times it.
"""

import dataclasses
import importlib
import importlib.util
import operator
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import workloads

OURS = "autobatch"
LOOP = "loop"


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of a workload: its name and what its data are made from."""

    name: str
    options: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.options[key]

    @property
    def train(self) -> bool:
        return bool(self.options.get("train", False))


@dataclasses.dataclass(frozen=True)
class Runner:
    """A way, ready to run one case.

    Attributes:
        run: the work that is timed; may be called any number of times.
        result: what `run` returned, as NumPy arrays in lists and dicts, in the form that all ways share.
    """

    run: Callable[[], Any]
    result: Callable[[Any], Any] = lambda out: out


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of doing the work.

    Attributes:
        name: the column of the table: "torch packed".
        where: "module:name" of its `prepare(case)`, a function or a method of what the module holds.
        needs: the package that has to be installed for it.
        settings: options of the library that hold for a whole process, given to the module's `configure`.
        serves: the cases that it can do.
        python: the variable of the environment that names a Python to run it, for packages that do not go with this
            one's. It needs NumPy besides.
    """

    name: str
    where: str
    needs: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    serves: Callable[[Case], bool] = lambda case: True
    python: str | None = None

    @property
    def interpreter(self) -> str:
        """The Python that runs it."""
        return os.environ.get(self.python or "") or sys.executable

    @property
    def missing(self) -> str | None:
        """Why it cannot run; None where it can."""
        if self.needs is None:
            return None
        if self.interpreter == sys.executable:
            found = importlib.util.find_spec(self.needs) is not None
        else:
            ask = f"import importlib.util as u; raise SystemExit(u.find_spec({self.needs!r}) is None)"
            try:
                found = subprocess.run([self.interpreter, "-c", ask], check=False).returncode == 0
            except OSError as error:
                return f"{self.python}: {error}"
        where = f", nor does {self.python} name a Python that has it" if self.python else ""
        return None if found else f"{self.needs} is not installed{where}"

    def prepare(self) -> Callable[[Case], Runner]:
        """Import what the way needs, and its function."""
        module, name = self.where.split(":")
        if self.settings:
            importlib.import_module(f"benchmarks.peers.{self.needs}_settings").set_options(**self.settings)
        return operator.attrgetter(name)(importlib.import_module(module))


def on_the_fly(workload: str) -> list[Way]:
    """The ways of a workload's `MODEL` whose own is `ab.map`, and the loop."""
    model = f"{workloads.__name__}.{workload}:MODEL"
    return [Way(OURS, f"{model}.on_the_fly"), Way(LOOP, f"{model}.loop")]


def by_choice(workload: str) -> list[Way]:
    """The ways of a workload's `MODEL` whose own is `ab.map` by whichever way costs least, the loop, and tracing."""
    model = f"{workloads.__name__}.{workload}:MODEL"
    return [Way(OURS, f"{model}.by_choice"), Way(LOOP, f"{model}.loop"), Way("tracing", f"{model}.on_the_fly")]


def lock_step(workload: str) -> list[Way]:
    """The ways of a workload's `MODEL` whose own is lock-step on padded batches, the loop, and `ab.map`."""
    model = f"{workloads.__name__}.{workload}:MODEL"
    return [Way(OURS, f"{model}.lock_step"), Way(LOOP, f"{model}.loop"), Way("ab.map", f"{model}.on_the_fly")]


def dynet(where: str, *modes: str, serves: Callable[[Case], bool] = lambda case: True) -> list[Way]:
    """A function of `benchmarks.peers` by DyNet, in each of its modes of batching: "agenda", "depth", "unbatched"."""
    numbers = {"unbatched": 0, "agenda": 1, "depth": 2}
    return [
        Way(f"DyNet {mode}", f"benchmarks.peers.{where}", "dynet", {"autobatch": numbers[mode]}, serves)
        for mode in modes or ("agenda", "depth")
    ]


@dataclasses.dataclass(frozen=True)
class Bar:
    """How many times faster than the fastest of some ways this library should be, on one core.

    Attributes:
        over: the ways, by the beginning of their names.
        ratio: at least this, in every case that `holds` names.
        mean: at least this for the geometric mean of these cases.
    """

    over: tuple[str, ...]
    ratio: float
    holds: Callable[[Case], bool] = lambda case: True
    mean: float | None = None

    def names(self, way: str) -> bool:
        return way.startswith(self.over)


@dataclasses.dataclass(frozen=True)
class ShareBar:
    """How much of our own time some phases may take together, on one core."""

    phases: tuple[str, ...]
    most: float
    holds: Callable[[Case], bool] = lambda case: True


@dataclasses.dataclass(frozen=True)
class Workload:
    """A kind of work.

    Attributes:
        name: of its module; `about`: one line for people.
        cases: `cases(size)` for size "full" or "small"; a small one takes a fraction of a second.
        ways: ours first, then the reference that all are compared with, then the peers.
        tolerance: allowed difference as a part of the largest value of an array (float32 sums in another order).
    """

    name: str
    about: str
    cases: Callable[[str], Sequence[Case]]
    ways: Sequence[Way]
    bars: Sequence[Bar] = ()
    share_bars: Sequence[ShareBar] = ()
    tolerance: float = 2e-4

    @property
    def reference(self) -> Way:
        """What all other ways are compared with."""
        return self.ways[1]

    def way(self, name: str) -> Way:
        return next(way for way in self.ways if way.name == name)

    def case(self, name: str, size: str) -> Case:
        return next(case for case in self.cases(size) if case.name == name)


def names() -> list[str]:
    """Every workload."""
    found = []
    for module in pkgutil.iter_modules(workloads.__path__):
        if hasattr(importlib.import_module(f"{workloads.__name__}.{module.name}"), "WORKLOAD"):
            found.append(module.name)
    return found


def load(name: str) -> Workload:
    """The workload of a module of `benchmarks.workloads`, or of any module by its full name."""
    if "." in name:
        return importlib.import_module(name).WORKLOAD
    return importlib.import_module(f"{workloads.__name__}.{name}").WORKLOAD
