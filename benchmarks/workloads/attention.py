"""Attention over ragged sentences: one head, each token's mixture of all, and the mean of the tokens."""

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import Case, Way, Workload, dynet, lock_step


@ab.batch
def forward(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """(t, size) -> the scores of five classes."""
    q, k, v = x @ params["q"], x @ params["k"], x @ params["v"]
    weights = ab.nn.softmax(q @ k.T * np.float32(q.shape[1] ** -0.5))
    return np.tanh(weights @ v).mean(0) @ params["out"]


@ab.batch
def loss(x: np.ndarray, label: int, params: dict[str, np.ndarray]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(x, params), label)


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(12)
    size = case["hidden"]
    lengths = rng.integers(5, 101 if case["batch"] > 8 else 9, case["batch"])
    xs = [rng.normal(0, 1, (n, size)).astype(np.float32) for n in lengths]
    labels = [int(label) for label in rng.integers(0, 5, len(xs))]
    params = common.weights(rng, q=(size, size), k=(size, size), v=(size, size), out=(size, 5))
    return common.Data((xs, labels) if case.train else (xs,), params)


MODEL = common.Model(forward, loss, data)

WORKLOAD = Workload(
    "attention",
    "attention within sentences of 5-100 vectors, batch 64",
    common.sizes(small=(8,), full=(64, 256)),
    ways=[
        *lock_step("attention"),
        Way("torch padded", "benchmarks.peers.attention_torch:padded", needs="torch"),
        Way("torch vmap", "benchmarks.peers.attention_torch:mapped", needs="torch"),
        Way("torch loop", "benchmarks.peers.attention_torch:loop", needs="torch"),
        *dynet("attention_dynet:prepare", "agenda"),
        Way("JAX padded", "benchmarks.peers.attention_jax:prepare", needs="jax"),
    ],
)
