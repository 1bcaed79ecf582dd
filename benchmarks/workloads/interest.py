"""Interest in a candidate from a history of any length (Zhou et al. 2018, "Deep interest network for click-through rate
prediction"): each item of the history is weighed beside the candidate, and the weighted sum decides."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, Bar, Case, Way, Workload, by_choice
from benchmarks.trees import VOCABULARY


@ab.batch
def forward(history: np.ndarray, candidate: int, params: dict[str, Any]) -> np.ndarray:
    """The logit that a user with this history takes the candidate."""
    items, wanted = params["emb"][history], params["emb"][candidate]
    beside = np.broadcast_to(wanted, items.shape)
    features = np.concatenate([items, beside, items - wanted, items * wanted], axis=1)
    weights = np.maximum(features @ params["w_1"] + params["b_1"], 0) @ params["w_2"]
    hidden = np.maximum(np.concatenate([weights @ items, wanted]) @ params["w_3"] + params["b_3"], 0)
    return hidden @ params["out"]


@ab.batch
def loss(history: np.ndarray, candidate: int, label: int, params: dict[str, Any]) -> np.ndarray:
    logit = forward(history, candidate, params)
    return np.logaddexp(np.float32(0), logit) - np.float32(label) * logit


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(21)
    size, batch = case["hidden"], case["batch"]
    histories = [rng.integers(0, VOCABULARY, n) for n in rng.integers(5, 51 if batch > 8 else 9, batch)]
    candidates = [int(item) for item in rng.integers(0, VOCABULARY, batch)]
    labels = [int(label) for label in rng.integers(0, 2, batch)]
    params = common.weights(
        rng,
        emb=(VOCABULARY, size),
        w_1=(4 * size, size),
        b_1=(size,),
        w_2=(size,),
        w_3=(2 * size, size),
        b_3=(size,),
        out=(size,),
    )
    return common.Data(
        (histories, candidates, labels) if case.train else (histories, candidates), params, tables=("emb",)
    )


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "interest",
    "attention of a candidate over histories of 5-50 items, batch 64",
    common.sizes(small=(8,), full=(32, 128)),
    ways=[
        *by_choice("interest"),
        Way("torch padded", "benchmarks.peers.interest_torch:prepare", needs="torch"),
    ],
    bars=[Bar((LOOP,), 1.0, holds=lambda case: case["hidden"] >= 32)],
)
