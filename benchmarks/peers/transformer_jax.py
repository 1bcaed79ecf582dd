"""The transformer encoder in JAX: code for one padded sentence, under `vmap`."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.declare import Case, Runner
from benchmarks.peers import jax_common
from benchmarks.workloads import transformer


def norm(x: Any) -> Any:
    return jax.nn.standardize(x, axis=-1, epsilon=1e-5)


def scores(p: Any, x: Any, length: Any) -> Any:
    t, size = x.shape
    real = jnp.arange(t) < length
    for layer in range(transformer.LAYERS):
        y = norm(x) @ p[f"qkv_{layer}"]
        q, k, v = y.reshape(t, 3, transformer.HEADS, -1).transpose(1, 2, 0, 3)
        weights = jax.nn.softmax(q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5, where=real)
        x = x + (weights @ v).transpose(1, 0, 2).reshape(t, size) @ p[f"mix_{layer}"]
        x = x + jax.nn.relu(norm(x) @ p[f"up_{layer}"] + p[f"b_up_{layer}"]) @ p[f"down_{layer}"] + p[f"b_down_{layer}"]
    return jnp.where(real[:, None], norm(x), 0).sum(0) / length @ p["out"]


def prepare(case: Case) -> Runner:
    data = transformer.data(case)
    return jax_common.runner(data, scores, lambda: jax_common.padded(data.columns[0]), case.train)
