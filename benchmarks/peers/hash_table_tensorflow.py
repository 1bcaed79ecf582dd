"""TensorFlow: rows of keys in tables that grow as a variable does; their tensors are NumPy's arrays where that can be.

What is imported is only what is asked for: the add-ons are made for one version of TensorFlow, which may not be the one
that is here.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.declare import Case, Runner
from benchmarks.workloads.variable import Stream

__all__ = ["by_cuckoo_table", "by_hash_table"]

_EMPTY, _DELETED = -(2**63), -(2**63) + 1  # keys that a DenseHashTable cannot hold
_made = iter(range(1 << 40))


def by_hash_table(case: Case) -> Runner:
    """`DenseHashTable`, of TensorFlow itself."""

    def make() -> Any:
        return tf.lookup.experimental.DenseHashTable(
            tf.int64,
            tf.float32,
            default_value=np.zeros(case["dim"], np.float32),
            empty_key=_EMPTY,
            deleted_key=_DELETED,
        )

    return _runner(case, make, "insert")


def by_cuckoo_table(case: Case) -> Runner:
    """The `CuckooHashTable` of TensorFlow Recommenders Addons."""
    addons = importlib.import_module("tensorflow_recommenders_addons.dynamic_embedding")

    def make() -> Any:
        name = f"table{next(_made)}"
        return addons.get_variable(
            name, key_dtype=tf.int64, value_dtype=tf.float32, dim=case["dim"], devices=["/CPU:0"]
        )

    return _runner(case, make, "upsert")


def _runner(case: Case, make: Callable[[], Any], put: str) -> Runner:
    """The work on a table whose method `put` writes rows."""
    s = Stream(case)
    keys, weights, asked = tf.constant(s.keys), tf.constant(s.weights), tf.constant(s.asked)

    def filled() -> Any:
        table = make()
        getattr(table, put)(keys, weights)
        return table

    def rows_of(table: Any, named: Any = asked) -> np.ndarray:
        return np.asarray(table.lookup(named))

    if case["what"] == "fill":
        return Runner(filled, rows_of)
    table = filled()
    if case["what"] == "look-up":
        return Runner(lambda: rows_of(table))
    named, rows = tf.constant(s.asked[s.written]), tf.constant(s.gradients[s.written])
    return Runner(lambda: getattr(table, put)(named, rows), lambda out: rows_of(table, named))
