"""Segment sums as the product of a sparse matrix of ones, which is made anew for each batch, and the rows."""

import numpy as np
import scipy.sparse

from benchmarks.declare import Case, Runner
from benchmarks.workloads.segments import Segmented


def prepare(case: Case) -> Runner:
    s = Segmented(case)
    shape = (len(s.lengths), len(s.rows))
    ones = np.ones(len(s.rows), np.float32)
    columns = np.arange(len(s.rows))

    def run() -> np.ndarray:
        if case["order"] == "any":
            return scipy.sparse.csc_matrix((ones, s.segment_ids, np.arange(len(s.rows) + 1)), shape) @ s.rows
        return scipy.sparse.csr_matrix((ones, columns, s.offsets), shape) @ s.rows

    return Runner(run)
