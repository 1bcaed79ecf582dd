"""An LSTM over sentences of different lengths: its last state, and a score of it."""

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import Bar, Case, Way, Workload, dynet, lock_step


def lstm(xs: np.ndarray, p: dict[str, np.ndarray]) -> list[np.ndarray]:
    """(t, size) inputs -> the state after each."""
    size = p["u"].shape[0]
    h, c = np.zeros(size, np.float32), np.zeros(size, np.float32)
    states = []
    for x in xs:
        z = x @ p["w"] + h @ p["u"] + p["b"]
        i, f, g, o = z[:size], z[size : 2 * size], z[2 * size : 3 * size], z[3 * size :]
        c = ab.nn.sigmoid(f) * c + ab.nn.sigmoid(i) * np.tanh(g)
        h = ab.nn.sigmoid(o) * np.tanh(c)
        states.append(h)
    return states


@ab.batch
def forward(xs: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """The scores of a sentence's five classes, from its last state."""
    return lstm(xs, params)[-1] @ params["out"]


@ab.batch
def loss(xs: np.ndarray, label: int, params: dict[str, np.ndarray]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(xs, params), label)


def sentences(rng: np.random.Generator, case: Case) -> list[np.ndarray]:
    """5 to 50 vectors each."""
    lengths = rng.integers(5, 51 if case["batch"] > 8 else 9, case["batch"])
    return [rng.normal(0, 1, (n, case["hidden"])).astype(np.float32) for n in lengths]


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(2)
    size = case["hidden"]
    xs = sentences(rng, case)
    labels = [int(label) for label in rng.integers(0, 5, len(xs))]
    params = common.weights(rng, w=(size, 4 * size), u=(size, 4 * size), b=(4 * size,), out=(size, 5))
    return common.Data((xs, labels) if case.train else (xs,), params)


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "lstm",
    "LSTM over sentences of 5-50 vectors, batch 64",
    common.sizes(small=(8,), full=(64, 128, 256)),
    ways=[
        *lock_step("lstm"),
        Way("NumPy sorted", "benchmarks.peers.lstm_numpy:prepare", serves=lambda case: not case.train),
        Way("torch packed", "benchmarks.peers.lstm_torch:packed", needs="torch"),
        Way("torch loop", "benchmarks.peers.lstm_torch:loop", needs="torch"),
        *dynet("lstm_dynet:prepare", "agenda"),
        Way("JAX padded", "benchmarks.peers.lstm_jax:prepare", needs="jax"),
    ],
    bars=[Bar(("torch packed",), 1.0, holds=lambda case: case["hidden"] >= 64)],
)
