"""TensorFlow: rows of keys in a `DenseHashTable`, which grows as a variable does but has no optimisers."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.declare import Case, Runner
from benchmarks.workloads.variable import Stream

__all__ = ["by_hash_table"]

_EMPTY, _DELETED = -(2**63), -(2**63) + 1  # keys that such a table cannot hold


def by_hash_table(case: Case) -> Runner:
    """Its tensors are made of NumPy's arrays, and back, without a copy where TensorFlow can."""
    s = Stream(case)
    keys, weights, asked = tf.constant(s.keys), tf.constant(s.weights), tf.constant(s.asked)

    def filled() -> Any:
        table = tf.lookup.experimental.DenseHashTable(
            tf.int64,
            tf.float32,
            default_value=np.zeros(case["dim"], np.float32),
            empty_key=_EMPTY,
            deleted_key=_DELETED,
        )
        table.insert(keys, weights)
        return table

    def rows_of(table: Any, named: Any = asked) -> np.ndarray:
        return np.asarray(table.lookup(named))

    if case["what"] == "fill":
        return Runner(filled, rows_of)
    table = filled()
    if case["what"] == "look-up":
        return Runner(lambda: rows_of(table))
    named, rows = tf.constant(s.asked[s.written]), tf.constant(s.gradients[s.written])
    return Runner(lambda: table.insert(named, rows), lambda out: rows_of(table, named))
