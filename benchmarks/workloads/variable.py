"""An embedding variable: look-ups, bags, steps and finding alone, by random and by frequent keys."""

from typing import Any

import numba
import numpy as np

import autobatch as ab
from benchmarks.declare import OURS, Bar, Case, Runner, Way, Workload

LR = 0.1


class Stream:
    """A table of keys and the keys of a batch.

    Attributes:
        keys: (rows,) distinct keys; weights: (rows, dim), theirs.
        places: (N,) which of them the batch names, evenly or by Zipf's law; asked: (N,) those keys.
        gradients: (N, dim) of a step; touched: the places, ascending, each once.
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(4)
        rows, count = case["rows"], case["ids"]
        keys = np.unique(rng.integers(-(2**63), 2**63, rows + rows // 8, dtype=np.int64))
        self.keys = rng.permutation(keys)[:rows]
        self.weights = rng.random((rows, case["dim"]), np.float32)
        if case["spread"] == "random":
            self.places = rng.integers(0, rows, count)
        else:
            self.places = (rng.zipf(1.2, count) - 1) % rows
        self.asked = self.keys[self.places]
        self.offsets = np.arange(0, count + 1, 20)
        self.gradients = rng.random((count, case["dim"]), np.float32) + np.float32(0.1)
        self.touched = np.unique(self.places)


def cases(size: str) -> list[Case]:
    full = size == "full"
    sizes = [(1_000_000, 16), (1_000_000, 64), (10_000_000, 16)] if full else [(200, 4)]
    return [
        Case(
            f"{what}, {spread} keys, {rows:,} x {dim}",
            {"what": what, "spread": spread, "rows": rows, "dim": dim, "ids": 50_000 if full else 100},
        )
        for rows, dim in sizes
        for what in ("look-up", "bag", "Adagrad", "find")
        for spread in ("random", "Zipf")
    ]


def _runner(case: Case, table: Any, ids: np.ndarray, num_rows: int | None, touched: np.ndarray) -> Runner:
    """The work on a table of ours, of keys or of rows."""
    s = Stream(case)
    if case["what"] == "look-up":
        return Runner(lambda: ab.lookup(table, ids))
    if case["what"] == "bag":
        return Runner(lambda: ab.embedding_bag(ids, table, s.offsets, mode="sum", include_last_offset=True))
    optimizer = ab.optim.Adagrad(lr=LR)
    state = optimizer.init(table)

    def run() -> None:
        optimizer.update(table, ab.SparseRows(ids, s.gradients, num_rows), state)

    return Runner(run, lambda out: ab.lookup(table, touched))


def ours(case: Case) -> Runner:
    s = Stream(case)
    users = ab.EmbeddingVariable(case["dim"])
    users.assign(s.keys, s.weights)
    if case["what"] == "find":
        return Runner(lambda: users.contains(s.asked))
    return _runner(case, users, s.asked, None, s.keys[s.touched])


def dense(case: Case) -> Runner:
    """The same rows in an `EmbeddingTable`, its ids known beforehand."""
    s = Stream(case)
    return _runner(case, ab.EmbeddingTable(s.weights), s.places, len(s.weights), s.touched)


def looked_up(case: Case, find: Any) -> Runner:
    """What is done once the places of keys are found, in NumPy; `find(keys)` gives them."""
    s = Stream(case)
    found: Any = find(s.keys)
    sums = np.zeros_like(s.weights)
    if case["what"] == "find":
        return Runner(lambda: found(s.asked) >= 0)
    if case["what"] == "look-up":
        return Runner(lambda: s.weights.take(found(s.asked), axis=0))
    if case["what"] == "bag":
        return Runner(lambda: np.add.reduceat(s.weights.take(found(s.asked), axis=0), s.offsets[:-1]))

    def run() -> None:
        rows, inverse = np.unique(found(s.asked), return_inverse=True)
        g = np.zeros((len(rows), case["dim"]), np.float32)
        np.add.at(g, inverse, s.gradients)
        sums[rows] += g * g
        s.weights[rows] -= np.float32(LR) * g / (np.sqrt(sums[rows]) + np.float32(1e-10))

    return Runner(run, lambda out: s.weights[s.touched])


def by_search(case: Case) -> Runner:
    def find(keys: np.ndarray) -> Any:
        order = np.argsort(keys)
        ordered = keys[order]
        return lambda asked: order[np.searchsorted(ordered, asked)]

    return looked_up(case, find)


def by_typed_dict(case: Case) -> Runner:
    @numba.njit
    def fill(keys, known):
        for i in range(len(keys)):
            known[keys[i]] = i

    @numba.njit
    def places(keys, known):
        out = np.empty(len(keys), np.int64)
        for i in range(len(keys)):
            out[i] = known[keys[i]]
        return out

    def find(keys: np.ndarray) -> Any:
        known = numba.typed.Dict.empty(numba.int64, numba.int64)
        fill(keys, known)
        return lambda asked: places(asked, known)

    return looked_up(case, find)


WORKLOAD = Workload(
    "variable",
    "50,000 keys of an embedding variable",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.variable:ours"),
        Way("NumPy search", "benchmarks.workloads.variable:by_search"),
        Way("dense table", "benchmarks.workloads.variable:dense", serves=lambda case: case["what"] != "find"),
        Way("typed.Dict", "benchmarks.workloads.variable:by_typed_dict"),
        Way("pandas", "benchmarks.peers.pandas_index:by_pandas", needs="pandas"),
    ],
    bars=[
        Bar(("dense table",), 0.6, holds=lambda case: case["what"] != "find" and case["ids"] > 100),
        Bar(("typed.Dict", "pandas"), 4.0, holds=lambda case: case["what"] == "find" and case["ids"] > 100),
    ],
)
