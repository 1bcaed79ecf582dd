"""The LSTM in DyNet, a step at a time."""

from typing import Any

import dynet as dy
import numpy as np

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.workloads import lstm


def states(inputs: list[Any], p: dynet_common.Parameters, size: int) -> list[Any]:
    """The state after each input."""
    w, u, b = (p[name] for name in ("w", "u", "b"))
    h = c = dy.zeros(size)
    out = []
    for x in inputs:
        z = dy.affine_transform([b, w, x, u, h])
        i, f = dy.logistic(dy.pick_range(z, 0, size)), dy.logistic(dy.pick_range(z, size, 2 * size))
        g, o = dy.tanh(dy.pick_range(z, 2 * size, 3 * size)), dy.logistic(dy.pick_range(z, 3 * size, 4 * size))
        c = dy.cmult(f, c) + dy.cmult(i, g)
        h = dy.cmult(o, dy.tanh(c))
        out.append(h)
    return out


def prepare(case: Case) -> Runner:
    data = lstm.data(case)

    def build(xs: np.ndarray, *rest: Any) -> Any:
        p = rest[-1]
        scores = p["out"] * states([dy.inputTensor(x) for x in xs], p, case["hidden"])[-1]
        return dy.pickneglogsoftmax(scores, rest[0]) if case.train else scores

    return dynet_common.runner(data, build, case.train)
