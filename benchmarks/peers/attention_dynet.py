"""Attention in DyNet: a sentence is a matrix whose columns are its words."""

from typing import Any

import dynet as dy
import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.workloads import attention


def prepare(case: Case) -> Runner:
    def build(xs: np.ndarray, *rest: Any) -> Any:
        p = rest[-1]
        x = dy.inputTensor(np.ascontiguousarray(xs.T))
        q, k, v = p["q"] * x, p["k"] * x, p["v"] * x
        weights = dy.softmax(dy.transpose(k) * q * case["hidden"] ** -0.5)
        scores = p["out"] * dy.mean_dim(dy.tanh(v * weights), [1], False)
        return dy.pickneglogsoftmax(scores, rest[0]) if case.train else scores

    return dynet_common.runner(attention.data(case), build, case.train)
