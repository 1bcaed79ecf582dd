"""Embedding bags: many look-ups of different lengths, each reduced to one row; and their gradient.

The gradient is what an optimiser takes: torch's has a row for each id, ours one for each bag and where it belongs.
`updates` times the optimisers on rows that are there already.
"""

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.tables.reduction_modes import BagMode
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Bar, Case, Runner, Way, Workload

_TABLE_BYTES = {"cache": 1 << 20, "memory": 1 << 29}


class Bags:
    """A table, and ids in bags of 0 to 40.

    Attributes:
        table: (rows, dim); ids: (N,); offsets: (B,), where each bag starts.
        weights: (N,) factors, for the weighted sum only; ct: (B, dim), what the gradient is taken of.
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(3)
        dim, bags = case["dim"], case["batch"]
        rows = max(16, _TABLE_BYTES[case["table"]] // (4 * dim)) if bags > 8 else 20
        self.mode: BagMode = case["mode"].removeprefix("weighted ")
        self.table = common.on_a_line(rows, dim)
        rng.random(out=self.table, dtype=np.float32)
        self.table -= np.float32(0.5)
        lengths = rng.integers(0, 41, bags)
        lengths[::20] = 0
        self.offsets = np.cumsum(lengths) - lengths
        self.bounds = np.append(self.offsets, lengths.sum())
        self.ids = draw(rng, rows, int(lengths.sum()), case["ids"])
        self.weights = rng.random(len(self.ids), np.float32) if case["mode"].startswith("weighted") else None
        self.ct = rng.random((bags, dim), np.float32)


def draw(rng: np.random.Generator, rows: int, count: int, how: str) -> np.ndarray:
    """Ids that are all as frequent; or Zipf's, the k-th 1/k as often as the first, anywhere in the table."""
    if how == "uniform":
        return rng.integers(0, rows, count)
    ranks = np.exp(rng.random(count) * np.log(rows)).astype(np.int64) - 1
    return ranks * 2_654_435_761 % rows


def coalesced(ids: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """A sparse gradient in one form: ascending ids, each once."""
    order = np.argsort(ids, kind="stable")
    unique, starts = np.unique(ids[order], return_index=True)
    return {"ids": unique, "rows": np.add.reduceat(rows[order], starts, axis=0)}


def cases(size: str) -> list[Case]:
    full = size == "full"
    dims = (8, 16, 32, 64, 100, 128, 256) if full else (8,)
    rows = [(dim, table, ids, "sum", False) for table, ids in _TABLES for dim in dims]
    one = 64 if full else 8
    rows += [(one, "cache", "uniform", mode, False) for mode in ("mean", "max", "weighted sum")]
    rows += [(dim, table, ids, "sum", True) for table, ids in _TABLES for dim in ((16, 64, 128) if full else (8,))]
    return [
        Case(
            f"{dim} {mode}, {table}, {ids}{', training' if train else ''}",
            {"dim": dim, "table": table, "ids": ids, "mode": mode, "train": train, "batch": 2048 if full else 6},
        )
        for dim, table, ids, mode, train in rows
    ]


_TABLES = (("cache", "uniform"), ("memory", "uniform"), ("memory", "Zipf"))


def ours(case: Case, static: bool = False) -> Runner:
    b = Bags(case)
    table = ab.EmbeddingTable(b.table, static=static)

    def bag(table: Any) -> Any:
        return ab.embedding_bag(b.ids, table, b.offsets, mode=b.mode, per_sample_weights=b.weights)

    if not case.train:
        return Runner(lambda: bag(table))
    step = ab.value_and_grad(lambda t: (bag(t) * b.ct).sum())
    return Runner(lambda: step(table)[1], lambda g: coalesced(g.ids, g.rows))


def ours_static(case: Case) -> Runner:
    """The same of a table whose kernels are made for its dim; others are, too, where rows end with 16 bytes."""
    return ours(case, static=True)


@ab.batch
def one_bag(ids: np.ndarray, table: Any) -> np.ndarray:
    return table[ids].sum(0)


def ours_of_one(case: Case) -> Runner:
    """The same from code for one bag."""
    b = Bags(case)
    table = ab.EmbeddingTable(b.table)
    packed = ab.PackedBatch(b.ids, b.bounds)
    if not case.train:
        return Runner(common.pinned("lockstep", lambda: one_bag(packed, table).data))
    ct = ab.MaskedBatch(b.ct)
    step = ab.value_and_grad(lambda t: ((one_bag(packed, t) * ct).data).sum())
    return Runner(common.pinned("lockstep", lambda: step(table)[1]), lambda g: coalesced(g.ids, g.rows))


def plain(case: Case) -> Runner:
    """One bag after the other; an empty one is 0."""
    b = Bags(case)
    reduce: Any = {"sum": np.sum, "mean": np.mean, "max": np.max}[b.mode]
    parts = [slice(start, end) for start, end in zip(b.bounds[:-1], b.bounds[1:], strict=True)]

    def forward() -> np.ndarray:
        out = np.zeros((len(parts), b.table.shape[1]), np.float32)
        for row, part in zip(out, parts, strict=True):
            if part.stop > part.start:
                found = b.table[b.ids[part]]
                row[:] = reduce(found if b.weights is None else found * b.weights[part, None], axis=0)
        return out

    def backward() -> tuple[np.ndarray, np.ndarray]:
        forward()
        rows = [np.repeat(ct[None], part.stop - part.start, 0) for ct, part in zip(b.ct, parts, strict=True)]
        return b.ids, np.concatenate(rows)

    return Runner(backward, lambda out: coalesced(*out)) if case.train else Runner(forward)


WORKLOAD = Workload(
    "bags",
    "embedding bags of 0-40 ids, 2,048 bags, table of 1 MiB (cache) or 512 MiB (memory)",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.bags:ours"),
        Way(LOOP, "benchmarks.workloads.bags:plain"),
        Way("one bag's code", "benchmarks.workloads.bags:ours_of_one", serves=lambda case: case["mode"] == "sum"),
        Way("static dim", "benchmarks.workloads.bags:ours_static", serves=lambda case: not case.train),
        Way("NumPy reduceat", "benchmarks.peers.bags_numpy:prepare", serves=lambda case: not case.train),
        Way("torch bag", "benchmarks.peers.bags_torch:prepare", needs="torch"),
        Way(
            "JAX",
            "benchmarks.peers.bags_jax:prepare",
            needs="jax",
            serves=lambda case: case["mode"] == "sum" and not case.train,
        ),
    ],
    bars=[Bar(("torch bag",), 0.9, holds=lambda case: case["batch"] > 8, mean=1.2)],
)
