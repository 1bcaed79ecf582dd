"""Sequence to sequence with attention (Luong et al. 2015): an LSTM reads, another writes and looks at all it read."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Case, Way, Workload
from benchmarks.workloads import lstm

__all__ = ["CLASSES", "MODEL", "WORKLOAD", "data", "forward", "loss"]

CLASSES = 50


@ab.batch
def forward(source: np.ndarray, target: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """(m, size) inputs of the decoder -> the scores of the next word after each, (m, CLASSES)."""
    size = params["u_2"].shape[0]
    states = lstm.lstm(source, params)
    memory = np.stack(states)
    h, c = states[-1], np.zeros(size, np.float32)
    scores = []
    for x in target:
        z = x @ params["w_2"] + h @ params["u_2"] + params["b_2"]
        c = ab.nn.sigmoid(z[size : 2 * size]) * c + ab.nn.sigmoid(z[:size]) * np.tanh(z[2 * size : 3 * size])
        h = ab.nn.sigmoid(z[3 * size :]) * np.tanh(c)
        context = ab.nn.softmax(memory @ (h @ params["look"])) @ memory
        scores.append(np.tanh(np.concatenate([h, context]) @ params["mix"]) @ params["out"])
    return np.stack(scores)


@ab.batch
def loss(source: np.ndarray, target: np.ndarray, labels: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(source, target, params), labels).mean()


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(31)
    size = case["hidden"]
    sources, targets = lstm.sentences(rng, case), lstm.sentences(rng, case)
    labels = [rng.integers(0, CLASSES, len(target)) for target in targets]
    cells = dict.fromkeys(("w", "u", "w_2", "u_2"), (size, 4 * size)) | {"b": (4 * size,), "b_2": (4 * size,)}
    params = common.weights(rng, **cells, look=(size, size), mix=(2 * size, size), out=(size, CLASSES))
    return common.Data((sources, targets, labels) if case.train else (sources, targets), params)


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "seq2seq",
    "sequences of 5-50 to 5-50 vectors, LSTMs with attention, batches of 64 and 16",
    common.with_batches(common.sizes(small=(8,), full=(64,)), 16),
    ways=[
        Way(OURS, "benchmarks.workloads.seq2seq:MODEL.lock_step"),
        Way(LOOP, "benchmarks.workloads.seq2seq:MODEL.loop"),
        Way("ab.map", "benchmarks.workloads.seq2seq:MODEL.on_the_fly"),
        Way("torch padded", "benchmarks.peers.seq2seq_torch:prepare", needs="torch"),
    ],
)
