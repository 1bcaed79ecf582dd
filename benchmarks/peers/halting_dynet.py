"""The loop with an exit of its own in DyNet, which computes what it is asked the value of."""

from typing import Any

import dynet as dy
import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.workloads import halting


def prepare(case: Case) -> Runner:
    data = halting.data(case)

    def build(start: np.ndarray, p: dynet_common.Parameters) -> Any:
        h = dy.inputTensor(start)
        while dy.max_dim(dy.abs(h)).value() > halting.ENOUGH:
            h = dy.tanh(p["u"] * h)
        return dy.dot_product(h, p["out"]) if case.train else h

    return dynet_common.runner(data, build, case.train)
