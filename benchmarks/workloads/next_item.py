"""The next item of a history (Kang and McAuley 2018, "Self-attentive sequential recommendation", SASRec): causal
self-attention over the items so far, and beside each item that came one that did not."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, Bar, Case, Way, Workload, lock_step
from benchmarks.trees import VOCABULARY

LAYERS, LONGEST = 2, 50


@ab.batch
def forward(items: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """(t,) ids -> what is wanted after each item, (t, size)."""
    scale = np.float32(params["emb"].shape[1] ** -0.5)
    x = params["emb"][items] + params["place"][: len(items)]
    for layer in range(LAYERS):
        p = {name: params[f"{name}_{layer}"] for name in ("q", "k", "v", "up", "down", "b_up", "b_down")}
        y = ab.nn.layer_norm(x)
        scores = ab.nn.causal_mask((y @ p["q"]) @ (x @ p["k"]).T * scale)
        x = y + ab.nn.softmax(scores) @ (x @ p["v"])
        y = ab.nn.layer_norm(x)
        x = y + ab.nn.relu(y @ p["up"] + p["b_up"]) @ p["down"] + p["b_down"]
    return ab.nn.layer_norm(x)


@ab.batch
def loss(items: np.ndarray, came: np.ndarray, others: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    wanted = forward(items, params)
    near = (wanted * params["emb"][came]).sum(1)
    far = (wanted * params["emb"][others]).sum(1)
    return (np.logaddexp(np.float32(0), -near) + np.logaddexp(np.float32(0), far)).mean()


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(22)
    size = case["hidden"]
    lengths = rng.integers(5, LONGEST + 1 if case["batch"] > 8 else 9, case["batch"])
    histories = [rng.integers(0, VOCABULARY, n + 1) for n in lengths]
    others = [rng.integers(0, VOCABULARY, n) for n in lengths]
    params = common.weights(rng, emb=(VOCABULARY, size), place=(LONGEST, size))
    for layer in range(LAYERS):
        shapes = dict.fromkeys(("q", "k", "v", "up", "down"), (size, size)) | dict.fromkeys(("b_up", "b_down"), (size,))
        params |= common.weights(rng, **{f"{name}_{layer}": shape for name, shape in shapes.items()})
    items, came = [ids[:-1] for ids in histories], [ids[1:] for ids in histories]
    return common.Data((items, came, others) if case.train else (items,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "next_item",
    "next item of histories of 5-50 items by self-attention (SASRec), two layers, batch 64",
    common.sizes(small=(8,), full=(64, 128)),
    ways=[*lock_step("next_item"), Way("torch padded", "benchmarks.peers.next_item_torch:prepare", needs="torch")],
    tolerance=5e-3,  # of many inputs of a relu one lies so near to zero that rounding decides about its gradient
    bars=[Bar((LOOP, "torch padded"), 1.0, holds=lambda case: case["hidden"] >= 64 and case.train)],
)
