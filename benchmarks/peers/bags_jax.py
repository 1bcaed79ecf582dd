"""Bags in JAX: a gather and a segment sum, compiled together."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.workloads.bags import Bags


def prepare(case: Case) -> Runner:
    b = Bags(case)
    count = len(b.offsets)
    bag_of = jnp.asarray(np.repeat(np.arange(count), np.diff(b.bounds)))
    table, ids = jnp.asarray(b.table), jnp.asarray(b.ids)
    weights = None if b.weights is None else jnp.asarray(b.weights)[:, None]

    @jax.jit
    def run(table: jax.Array, ids: jax.Array) -> jax.Array:
        rows = table[ids] if weights is None else table[ids] * weights
        return jax.ops.segment_sum(rows, bag_of, count, indices_are_sorted=True)

    return Runner(lambda: jax.block_until_ready(run(table, ids)), np.asarray)
