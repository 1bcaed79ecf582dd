"""The LSTM in JAX: `scan` over padded sentences, under `vmap`."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.declare import Case, Runner
from benchmarks.peers import jax_common
from benchmarks.workloads import lstm


def prepare(case: Case) -> Runner:
    data = lstm.data(case)

    def scores(p: Any, xs: Any, length: Any) -> Any:
        def step(state: Any, one: Any) -> Any:
            (h, c), (t, x) = state, one
            i, f, g, o = jnp.split(x + h @ p["u"], 4)
            new = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jax_common.masked(t < length, (jax.nn.sigmoid(o) * jnp.tanh(new), new), (h, c)), None

        zero = jnp.zeros(case["hidden"])
        (h, _), _ = jax.lax.scan(step, (zero, zero), (jnp.arange(len(xs)), xs @ p["w"] + p["b"]))
        return h @ p["out"]

    return jax_common.runner(data, scores, lambda: jax_common.padded(data.columns[0]), case.train)
