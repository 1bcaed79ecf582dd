"""Attention in JAX: code for one padded sentence, under `vmap`."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.declare import Case, Runner
from benchmarks.peers import jax_common
from benchmarks.workloads import attention


def scores(p: Any, x: Any, length: Any) -> Any:
    real = jnp.arange(len(x)) < length
    products = (x @ p["q"]) @ (x @ p["k"]).T * x.shape[1] ** -0.5
    mixed = jnp.tanh(jax.nn.softmax(products, where=real) @ (x @ p["v"]))
    return jnp.where(real[:, None], mixed, 0).sum(0) / length @ p["out"]


def prepare(case: Case) -> Runner:
    data = attention.data(case)
    return jax_common.runner(data, scores, lambda: jax_common.padded(data.columns[0]), case.train)
