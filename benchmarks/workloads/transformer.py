"""A transformer encoder over ragged sentences: two layers, four heads, layer norm first, the mean of the tokens."""

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import Bar, Case, Way, Workload, lock_step

LAYERS, HEADS = 2, 4


def attention(x: np.ndarray, qkv: np.ndarray, out: np.ndarray) -> np.ndarray:
    """(t, size) -> (t, size): each token's mixture of all, for every head."""
    size = x.shape[1]
    q, k, v = (x @ qkv).reshape(x.shape[0], 3, HEADS, size // HEADS).transpose(1, 2, 0, 3)
    scores = q @ k.transpose(0, 2, 1) * np.float32((size // HEADS) ** -0.5)
    return (ab.nn.softmax(scores) @ v).transpose(1, 0, 2).reshape(x.shape[0], size) @ out


@ab.batch
def forward(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """(t, size) -> the scores of five classes."""
    for layer in range(LAYERS):
        p = {name: params[f"{name}_{layer}"] for name in ("qkv", "mix", "up", "down", "b_up", "b_down")}
        x = x + attention(ab.nn.layer_norm(x), p["qkv"], p["mix"])
        x = x + ab.nn.relu(ab.nn.layer_norm(x) @ p["up"] + p["b_up"]) @ p["down"] + p["b_down"]
    return ab.nn.layer_norm(x).mean(0) @ params["out"]


@ab.batch
def loss(x: np.ndarray, label: int, params: dict[str, np.ndarray]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(x, params), label)


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(6)
    size = case["hidden"]
    lengths = rng.integers(5, 51 if case["batch"] > 8 else 9, case["batch"])
    xs = [rng.normal(0, 1, (n, size)).astype(np.float32) for n in lengths]
    labels = [int(label) for label in rng.integers(0, 5, len(xs))]
    params = common.weights(rng, out=(size, 5))
    for layer in range(LAYERS):
        shapes = {"qkv": (size, 3 * size), "mix": (size, size), "up": (size, 4 * size), "down": (4 * size, size)}
        biases = {"b_up": (4 * size,), "b_down": (size,)}
        params |= common.weights(rng, **{f"{name}_{layer}": shape for name, shape in (shapes | biases).items()})
    return common.Data((xs, labels) if case.train else (xs,), params)


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "transformer",
    "transformer encoder, two layers, over sentences of 5-50 vectors, batch 64",
    common.sizes(small=(8,), full=(64, 128, 256)),
    ways=[
        *lock_step("transformer"),
        Way("torch padded", "benchmarks.peers.transformer_torch:padded", needs="torch"),
        Way("torch loop", "benchmarks.peers.transformer_torch:loop", needs="torch"),
        Way("JAX padded", "benchmarks.peers.transformer_jax:prepare", needs="jax"),
    ],
    tolerance=5e-3,  # of 3.5 million inputs of a relu one lies so near to zero that rounding decides about its gradient
    bars=[Bar(("torch padded",), 1.0, holds=lambda case: case["hidden"] >= 64)],
)
