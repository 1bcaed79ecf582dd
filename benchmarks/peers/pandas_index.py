"""pandas: rows of keys by `Index.get_indexer` and `take`."""

import pandas as pd

from benchmarks.declare import Case, Runner
from benchmarks.workloads.variable import looked_up


def by_pandas(case: Case) -> Runner:
    return looked_up(case, lambda keys: pd.Index(keys).get_indexer)
