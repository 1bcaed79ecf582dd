"""A loop whose end depends on what it computes: a state shrinks until it is small, each after its own steps."""

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import Bar, Case, Way, Workload, dynet, lock_step

ENOUGH = 1e-2


@ab.batch
def forward(h: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """(size,) -> the first state whose largest element is small."""
    while np.abs(h).max() > ENOUGH:
        h = np.tanh(h @ params["u"])
    return h


@ab.batch
def loss(h: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    return (forward(h, params) * params["out"]).sum()


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(7)
    size = case["hidden"]
    u, _ = np.linalg.qr(rng.normal(0, 1, (size, size)))
    starts = rng.normal(0, 1, (case["batch"], size)) * 10.0 ** rng.uniform(-2, 0, (case["batch"], 1))
    params = {"u": (0.9 * u).astype(np.float32), "out": rng.normal(0, 1, size).astype(np.float32)}
    return common.Data((list(starts.astype(np.float32)),), params)


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "halting",
    "a loop until a state is small, 0-45 steps, batch 64",
    common.sizes(small=(8,), full=(64, 256)),
    ways=[
        *lock_step("halting"),
        Way("torch loop", "benchmarks.peers.halting_torch:loop", needs="torch"),
        Way("torch masked", "benchmarks.peers.halting_torch:masked", needs="torch"),
        *dynet("halting_dynet:prepare", "agenda", "depth", "unbatched"),
        Way("JAX", "benchmarks.peers.halting_jax:prepare", needs="jax", serves=lambda case: not case.train),
    ],
    bars=[Bar(("DyNet agenda", "DyNet depth"), 5.0, holds=lambda case: case["hidden"] >= 64)],
)
