"""Bags batched by hand in NumPy: all rows gathered, then one `reduceat` over the bags that are not empty."""

import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.workloads.bags import Bags


def prepare(case: Case) -> Runner:
    b = Bags(case)
    ufunc = np.maximum if b.mode == "max" else np.add

    def run() -> np.ndarray:
        lengths = np.diff(b.bounds)
        filled = lengths > 0
        out = np.zeros((len(lengths), b.table.shape[1]), np.float32)
        rows = b.table[b.ids]
        if b.weights is not None:
            rows *= b.weights[:, None]
        out[filled] = ufunc.reduceat(rows, b.offsets[filled], axis=0)
        if b.mode == "mean":
            out /= np.maximum(lengths, 1).astype(np.float32)[:, None]
        return out

    return Runner(run)
