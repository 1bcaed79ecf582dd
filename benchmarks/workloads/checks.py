"""What it costs to check ids and offsets: the kernel of bags that checks what it reads, and the one that trusts it."""

from collections.abc import Callable

import numpy as np

from autobatch.kernels.bags import SUM, pool_sum, pool_sum_checked
from autobatch.tables.row_access import prefetch_distance, row_layout
from benchmarks import common
from benchmarks.declare import OURS, Bar, Case, Runner, Way, Workload


class Kernel:
    """Sums of bags, with all that the kernels take."""

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(6)
        dim, bags, length = case["dim"], case["batch"], 20
        rows = case["table"] // (4 * dim)
        self.weights = common.on_a_line(rows, dim)
        rng.random(out=self.weights, dtype=np.float32)
        self.ids = rng.integers(0, rows, bags * length).astype(case["ids"])
        self.offsets = (np.arange(bags) * length).astype(case["ids"])
        self.out = np.empty((bags, dim), np.float32)
        self.table = (self.weights.ctypes.data, self.weights.strides[0])
        size = self.weights.nbytes
        self.rest = (dim, prefetch_distance(size, 4 * dim), row_layout("f4", dim, False, self.table, size))

    def checked(self) -> np.ndarray:
        rows = len(self.weights)
        assert pool_sum_checked(self.table, rows, self.ids, self.offsets, 0, None, SUM, self.out, *self.rest, None)
        return self.out

    def trusted(self) -> np.ndarray:
        pool_sum(self.table, self.ids, self.offsets, None, SUM, self.out, (0, len(self.out)), *self.rest)
        return self.out


def cases(size: str) -> list[Case]:
    full = size == "full"
    return [
        Case(
            f"{dim}, {ids}", {"dim": dim, "ids": ids, "batch": 2048 if full else 6, "table": 1 << (20 if full else 12)}
        )
        for ids in ("int64", "int32")
        for dim in ((8, 16, 32, 64, 100, 128, 256) if full else (8,))
    ]


def checked(case: Case) -> Runner:
    return _runner(Kernel(case).checked)


def trusted(case: Case) -> Runner:
    return _runner(Kernel(case).trusted)


def _runner(run: Callable[[], np.ndarray]) -> Runner:
    return Runner(run, lambda out: out.copy())


WORKLOAD = Workload(
    "checks",
    "sums of 2,048 bags of 20 ids over a table of 1 MiB, ids and offsets checked or trusted",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.checks:checked"),
        Way("trusted", "benchmarks.workloads.checks:trusted"),
    ],
    bars=[Bar(("trusted",), 0.95, holds=lambda case: case["batch"] > 8)],
)
