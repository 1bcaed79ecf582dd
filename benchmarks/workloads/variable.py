"""An embedding variable: look-ups, writes, bags, steps and finding alone, by random and by frequent keys.

The reference is binary search in NumPy; a dense table is told the places of the keys, which is what it cannot do. All
of 10,000,000 rows of 16 take some 1.2 GB in each process: name one peer at a time with `--peers`.

TensorFlow and its recommenders add-ons may be in environments of their own:
`TENSORFLOW_PYTHON=.../bin/python TFRA_PYTHON=.../bin/python python -m benchmarks variable --peers T`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from benchmarks.declare import OURS, Bar, Case, Runner, Way, Workload

LR = 0.1
DENSE = "dense table"


class Stream:
    """A table of keys and the keys of a batch.

    Attributes:
        keys: (rows,) distinct keys; weights: (rows, dim), theirs.
        places: (N,) which of them the batch names, evenly or by Zipf's law, 1.2; asked: (N,) those keys.
        gradients: (N, dim) of a step, or rows that are written; touched: the places, ascending, each once.
        written: (touched,) where the row of each of these is among the gradients.
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
            ranks = np.minimum((1 - rng.random(count)) ** -5.0, 2.0**62)  # P(rank >= k) is about k ** -0.2
            self.places = (ranks.astype(np.int64) - 1) % rows  # not `rng.zipf`, which differs between versions
        self.asked = self.keys[self.places]
        self.offsets = np.arange(0, count + 1, 20)
        self.gradients = rng.random((count, case["dim"]), np.float32) + np.float32(0.1)
        self.touched, self.written = np.unique(self.places, return_index=True)


def cases(size: str) -> list[Case]:
    full = size == "full"
    sizes = [(1_000_000, 16), (1_000_000, 64), (10_000_000, 16)] if full else [(200, 4)]
    return [
        Case(
            f"{what}, {spread} keys, {rows:,} x {dim}",
            {"what": what, "spread": spread, "rows": rows, "dim": dim, "ids": 50_000 if full else 100},
        )
        for rows, dim in sizes
        for what in ("look-up", "write", "bag", "SGD", "Adagrad", "find", "fill")
        for spread in (("random",) if what == "fill" else ("random", "Zipf"))
    ]


def _runner(case: Case, table: Any, ids: np.ndarray, num_rows: int | None, touched: np.ndarray) -> Runner:
    """The work on a table of ours, of keys or of rows."""
    s = Stream(case)
    if case["what"] == "look-up":
        return Runner(lambda: ab.lookup(table, ids))
    if case["what"] == "bag":
        return Runner(lambda: ab.embedding_bag(ids, table, s.offsets, mode="sum", include_last_offset=True))
    if case["what"] == "write":
        named, rows = ids[s.written], s.gradients[s.written]
        return Runner(lambda: table.write(named, rows), lambda out: ab.lookup(table, named))
    optimizer: Any = ab.optim.SGD(lr=LR) if case["what"] == "SGD" else ab.optim.Adagrad(lr=LR)
    state = optimizer.init(table)

    def run() -> None:
        optimizer.update(table, ab.SparseRows(ids, s.gradients, num_rows), state)

    return Runner(run, lambda out: ab.lookup(table, touched))


def ours(case: Case) -> Runner:
    s = Stream(case)
    if case["what"] == "fill":
        return Runner(lambda: _filled(s), lambda users: users[s.asked])
    users = _filled(s)
    if case["what"] == "find":
        return Runner(lambda: users.contains(s.asked))
    return _runner(case, users, s.asked, None, s.keys[s.touched])


def _filled(s: Stream) -> "ab.EmbeddingVariable":
    users = ab.EmbeddingVariable(s.weights.shape[1])
    users.assign(s.keys, s.weights)
    return users


def dense(case: Case) -> Runner:
    """The same rows in an `EmbeddingTable`, its ids known beforehand."""
    s = Stream(case)
    return _runner(case, ab.EmbeddingTable(s.weights), s.places, len(s.weights), s.touched)


def looked_up(case: Case, find: Any) -> Runner:
    """What is done once the places of keys are found, in NumPy; `find(keys)` gives them."""
    s = Stream(case)
    if case["what"] == "fill":
        return Runner(lambda: (find(s.keys), s.weights.copy()), lambda out: out[1].take(out[0](s.asked), axis=0))
    found: Any = find(s.keys)
    if case["what"] == "write":
        named, rows = s.asked[s.written], s.gradients[s.written]

        def write() -> None:
            s.weights[found(named)] = rows

        return Runner(write, lambda out: s.weights[s.touched])
    if case["what"] == "find":
        return Runner(lambda: found(s.asked) >= 0)
    if case["what"] == "look-up":
        return Runner(lambda: s.weights.take(found(s.asked), axis=0))
    if case["what"] == "bag":
        return Runner(lambda: np.add.reduceat(s.weights.take(found(s.asked), axis=0), s.offsets[:-1]))

    sums = np.zeros_like(s.weights) if case["what"] == "Adagrad" else None

    def run() -> None:
        rows, inverse = np.unique(found(s.asked), return_inverse=True)
        g = np.zeros((len(rows), case["dim"]), np.float32)
        np.add.at(g, inverse, s.gradients)
        step = np.float32(LR) * g
        if sums is not None:
            sums[rows] += g * g
            step /= np.sqrt(sums[rows]) + np.float32(1e-10)
        s.weights[rows] -= step

    return Runner(run, lambda out: s.weights[s.touched])


def by_search(case: Case) -> Runner:
    def find(keys: np.ndarray) -> Any:
        order = np.argsort(keys)
        ordered = keys[order]
        return lambda asked: order[np.searchsorted(ordered, asked)]

    return looked_up(case, find)


def _rows_only(case: Case) -> bool:
    return case["what"] in ("look-up", "write", "fill")


def _is(*what: str) -> Callable[[Case], bool]:
    return lambda case: case["what"] in what and case["ids"] > 100


WORKLOAD = Workload(
    "variable",
    "50,000 keys of an embedding variable",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.variable:ours"),
        Way("NumPy search", "benchmarks.workloads.variable:by_search"),
        Way(DENSE, "benchmarks.workloads.variable:dense", serves=lambda case: case["what"] not in ("find", "fill")),
        Way("typed.Dict", "benchmarks.peers.typed_dict:by_typed_dict"),
        Way(
            "pandas",
            "benchmarks.peers.pandas_index:by_pandas",
            needs="pandas",
            serves=lambda case: case["what"] != "fill",  # it makes its index when it is first asked
        ),
        Way(
            "TensorFlow",
            "benchmarks.peers.hash_table_tensorflow:by_hash_table",
            needs="tensorflow",
            serves=_rows_only,
            python="TENSORFLOW_PYTHON",
        ),
        Way(
            "TFRA",
            "benchmarks.peers.hash_table_tensorflow:by_cuckoo_table",
            needs="tensorflow_recommenders_addons",
            serves=_rows_only,
            python="TFRA_PYTHON",
        ),
    ],
    bars=[
        Bar((DENSE,), 0.7, holds=_is("look-up", "write", "SGD")),
        Bar((DENSE,), 0.6, holds=_is("bag", "Adagrad")),
        Bar(("typed.Dict", "pandas"), 4.0, holds=_is("look-up", "write", "find")),
        Bar(("TensorFlow", "TFRA"), 3.0, holds=_is("look-up", "write", "fill")),
    ],
)
