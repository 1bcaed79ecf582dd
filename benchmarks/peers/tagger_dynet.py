"""The tagger in DyNet."""

from typing import Any

import dynet as dy
import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.peers.lstm_dynet import states
from benchmarks.workloads import tagger


def prepare(case: Case) -> Runner:
    size = case["hidden"]

    def build(words: np.ndarray, *rest: Any) -> Any:
        p = rest[-1]
        xs = [p["emb"][word] for word in words.tolist()]
        ahead = states(xs, tagger.direction(p, "ahead"), size)
        back = states(xs[::-1], tagger.direction(p, "back"), size)[::-1]
        scores = [p["out"] * dy.concatenate([a, b]) for a, b in zip(ahead, back, strict=True)]
        if case.train:
            return dy.average([dy.pickneglogsoftmax(s, tag) for s, tag in zip(scores, rest[0].tolist(), strict=True)])
        return dy.transpose(dy.concatenate_cols(scores))

    return dynet_common.runner(tagger.data(case), build, case.train)
