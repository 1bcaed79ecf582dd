"""The loop with an exit of its own in JAX: `while_loop` under `vmap`. It has no gradient there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.peers import jax_common
from benchmarks.workloads import halting


def prepare(case: Case) -> Runner:
    data = halting.data(case)

    def run(p: Any, h: Any) -> Any:
        return jax.lax.while_loop(
            lambda h: jnp.abs(h).max() > halting.ENOUGH,
            lambda h: jnp.tanh(h @ p["u"]),
            h,
        )

    return jax_common.runner(data, run, lambda: (np.stack(data.columns[0]),), train=False)
