"""`numba.typed.Dict`: places of rows by keys, and NumPy's `take`."""

from typing import Any

import numba
import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.workloads.variable import looked_up


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
