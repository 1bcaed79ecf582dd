"""A workload whose ways go wrong in every way that one can, for the tests of the harness."""

import os
import signal

import numpy as np

from benchmarks.declare import LOOP, OURS, Bar, Case, Runner, ShareBar, Way, Workload

HERE = "tests.benchmarks.planted"


def right(case: Case) -> Runner:
    xs = np.arange(case["n"], dtype=np.float64)
    return Runner(lambda: [xs * 2])


def ours(case: Case) -> Runner:
    xs = np.arange(case["n"], dtype=np.float64)
    return Runner(lambda: [xs + xs + case.options.get("off", 0)])


def wrong(case: Case) -> Runner:
    xs = np.arange(case["n"], dtype=np.float64)
    return Runner(lambda: [xs * 2.5])


def raises(case: Case) -> Runner:
    raise KeyError("planted")


def dies(case: Case) -> Runner:
    print("planted last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return right(case)


def dies_later(case: Case) -> Runner:
    calls = []

    def run() -> list[np.ndarray]:
        calls.append(1)
        if len(calls) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [np.arange(case["n"], dtype=np.float64) * 2]

    return Runner(run)


def only_four(case: Case) -> bool:
    return case.name == "four"


def cases(size: str) -> list[Case]:
    return [Case("four", {"n": 4}), Case("three", {"n": 3}), Case("ours is off", {"n": 4, "off": 1.0})]


WORKLOAD = Workload(
    HERE,
    "planted faults",
    cases,
    ways=[
        Way(OURS, f"{HERE}:ours"),
        Way(LOOP, f"{HERE}:right"),
        Way("wrong", f"{HERE}:wrong", serves=only_four),
        Way("missing", "no_such_module:prepare", needs="no_such_package"),
        Way("raises", f"{HERE}:raises", serves=only_four),
        Way("dies", f"{HERE}:dies", serves=only_four),
        Way("dies later", f"{HERE}:dies_later", serves=only_four),
        Way("not importable", "no_such_module:prepare", serves=only_four),
    ],
    bars=[
        Bar((LOOP,), 1e-6, mean=1e6),
        Bar((LOOP,), 1e6, holds=only_four),
        Bar(("missing",), 1.0),
    ],
    share_bars=[ShareBar(("backward", "products"), 0.1)],
)
