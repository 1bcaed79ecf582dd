"""Values and gradients of code of numbers in loops: compiled with a tape, beside the loop with a tape in Python."""

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.api.run_record import ran_ways
from autobatch.core.config import WayName
from autobatch.core.pytree import leaves
from benchmarks.declare import LOOP, OURS, Case, Runner, Way, Workload
from tests.compiled.gradient_programs import GRADIENTS

_COUNTS = {"test": (4,), "small": (64,), "full": (64, 512)}


def cases(size: str) -> list[Case]:
    """Each program."""
    counts = _COUNTS.get(size, _COUNTS["small"])
    return [Case(f"{name} {count}", {"name": name, "count": count}) for name in GRADIENTS for count in counts]


def _given(case: Case) -> tuple[Any, list[list[Any]]]:
    function, examples, argnums = GRADIENTS[case["name"]]
    rng = np.random.default_rng(3)
    rows = [examples(rng) for _ in range(case["count"])]
    return ab.value_and_grad(function, argnums=argnums), [list(column) for column in zip(*rows, strict=True)]


def _plain(results: Any) -> list[Any]:
    """Results as arrays."""
    return [[np.asarray(leaf, np.float64) for leaf in leaves(result) if leaf is not None] for result in results]


def _by(way: WayName, case: Case) -> Runner:
    gradient, columns = _given(case)
    with ab.options(way=way), ran_ways() as ran:
        ab.map(gradient, *columns)
    if ran[-1].way != way:
        raise RuntimeError(f"{case['name']} ran by the way {ran[-1].way}: {ran[-1].why}")

    def run() -> Any:
        with ab.options(way=way):
            return ab.map(gradient, *columns)

    return Runner(run, _plain)


def ours(case: Case) -> Runner:
    """The compiled way."""
    return _by("compiled", case)


def loop(case: Case) -> Runner:
    """One example after the other, each on a tape of its own."""
    return _by("loop", case)


WORKLOAD = Workload(
    "numeric_gradients",
    "values and gradients of programs of numbers in loops, one example each",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.numeric_gradients:ours"),
        Way(LOOP, "benchmarks.workloads.numeric_gradients:loop"),
    ],
)
