"""Sparse updates: one optimiser step on the rows of a table that a gradient names, each id once or many times."""

import numpy as np

import autobatch as ab
from benchmarks.declare import OURS, Bar, Case, Runner, Way, Workload

LR = 0.1
_EPS = {"Adagrad": 1e-10, "Adam": 1e-8}


class Update:
    """A table and the gradient of some of its rows.

    Attributes:
        table: (rows, dim); ids: (N,), each so often as the case says, in any order.
        rows: (N, dim), their gradients. No sum of them is so small that it matters where an Adam adds its epsilon.
        touched: the ids, ascending, each once.
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(4)
        self.table = rng.random((case["rows"], case["dim"]), np.float32)
        unique = rng.choice(case["rows"], max(1, case["ids"] // case["repeats"]), replace=False)
        self.ids = rng.permutation(np.repeat(unique, case["repeats"]))
        self.touched, inverse = np.unique(self.ids, return_inverse=True)
        signs = rng.choice(np.array([-1, 1], np.float32), (len(unique), case["dim"]))[inverse]
        self.rows = (rng.random(signs.shape, np.float32) + np.float32(0.1)) * signs


def cases(size: str) -> list[Case]:
    full = size == "full"
    rows = [("Adagrad", dim, repeats) for dim in (16, 64, 128) for repeats in (1, 10, 100)]
    rows += [(name, 64, repeats) for name in ("SGD", "Adam") for repeats in (1, 100)]
    return [
        Case(
            f"{name} {dim}, each id {repeats} times",
            {
                "optimizer": name,
                "dim": dim if full else 4,
                "repeats": repeats,
                "rows": 1_000_000 if full else 200,
                "ids": 50_000 if full else 100,
            },
        )
        for name, dim, repeats in (rows if full else [row for row in rows if row[1] == 64])
    ]


def ours(case: Case) -> Runner:
    u = Update(case)
    params = {"table": ab.EmbeddingTable(u.table)}
    optimizer = getattr(ab.optim, case["optimizer"])(lr=LR)
    state = optimizer.init(params)

    def run() -> None:
        optimizer.update(params, {"table": ab.SparseRows(u.ids, u.rows, len(u.table))}, state)

    return Runner(run, lambda out: np.asarray(params["table"])[u.touched])


def plain(case: Case) -> Runner:
    """By hand in NumPy: repeated ids added up, then the rows of the table and of its state gathered and put back."""
    u = Update(case)
    first, second = np.zeros_like(u.table), np.zeros_like(u.table)
    steps = [0]

    def run() -> None:
        steps[0] += 1
        ids, where = np.unique(u.ids, return_inverse=True)
        g = np.zeros((len(ids), u.table.shape[1]), np.float32)
        np.add.at(g, where, u.rows)
        if case["optimizer"] == "SGD":
            u.table[ids] -= np.float32(LR) * g
        elif case["optimizer"] == "Adagrad":
            s = second[ids] + g * g
            second[ids] = s
            u.table[ids] -= np.float32(LR) * g / (np.sqrt(s) + np.float32(_EPS["Adagrad"]))
        else:
            m = first[ids] * np.float32(0.9) + np.float32(0.1) * g
            v = second[ids] * np.float32(0.999) + np.float32(0.001) * g * g
            first[ids], second[ids] = m, v
            scale = np.float32(LR * np.sqrt(1 - 0.999 ** steps[0]) / (1 - 0.9 ** steps[0]))
            u.table[ids] -= scale * m / (np.sqrt(v) + np.float32(_EPS["Adam"]))

    return Runner(run, lambda out: u.table[u.touched])


WORKLOAD = Workload(
    "updates",
    "optimiser steps on 50,000 gradient rows of a table of 1,000,000",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.updates:ours"),
        Way("NumPy", "benchmarks.workloads.updates:plain"),
        Way("torch", "benchmarks.peers.updates_torch:prepare", needs="torch"),
    ],
    bars=[Bar(("torch",), 3.0, holds=lambda case: case["optimizer"] == "Adagrad" and case["ids"] > 100)],
)
