"""A bidirectional LSTM that scores a tag for every word of a sentence."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import Case, Way, Workload, dynet, lock_step
from benchmarks.trees import VOCABULARY
from benchmarks.workloads.lstm import lstm

TAGS = 20


@ab.batch
def forward(words: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """(t,) ids -> (t, tags) scores."""
    xs = params["emb"][words]
    ahead = np.stack(lstm(xs, direction(params, "ahead")))
    back = np.stack(lstm(xs[::-1], direction(params, "back")))
    return np.concatenate([ahead, back[::-1]], axis=1) @ params["out"]


def direction(params: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: params[f"{key}_{name}"] for key in ("w", "u", "b")}


@ab.batch
def loss(words: np.ndarray, tags: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(words, params), tags)


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(13)
    size = case["hidden"]
    lengths = rng.integers(5, 51 if case["batch"] > 8 else 9, case["batch"])
    words = [rng.integers(0, VOCABULARY, n) for n in lengths]
    tags = [rng.integers(0, TAGS, n) for n in lengths]
    params = common.weights(rng, emb=(VOCABULARY, size), out=(2 * size, TAGS))
    params["emb"] *= np.float32(VOCABULARY**0.5)
    for name in ("ahead", "back"):
        shapes = {"w": (size, 4 * size), "u": (size, 4 * size), "b": (4 * size,)}
        params |= common.weights(rng, **{f"{key}_{name}": shape for key, shape in shapes.items()})
    return common.Data((words, tags) if case.train else (words,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)

WORKLOAD = Workload(
    "tagger",
    "bidirectional LSTM tagger over sentences of 5-50 words, batch 64",
    common.sizes(small=(8,), full=(64, 256)),
    ways=[
        *lock_step("tagger"),
        Way("torch packed", "benchmarks.peers.tagger_torch:prepare", needs="torch"),
        *dynet("tagger_dynet:prepare"),
    ],
)
