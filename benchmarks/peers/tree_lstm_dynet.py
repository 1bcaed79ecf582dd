"""The binary Tree-LSTM in DyNet."""

from typing import Any

import dynet as dy

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.workloads import tree_lstm

__all__ = ["encode", "prepare"]


def encode(tree: Any, p: dynet_common.Parameters, size: int) -> tuple[Any, Any]:
    if isinstance(tree, int):
        z = dy.affine_transform([p["b_leaf"], p["w"], p["emb"][tree]])
        gates, update = dy.logistic(dy.pick_range(z, 0, 2 * size)), dy.tanh(dy.pick_range(z, 2 * size, 3 * size))
        c = dy.cmult(dy.pick_range(gates, 0, size), update)
        return dy.cmult(dy.pick_range(gates, size, 2 * size), dy.tanh(c)), c
    (h1, c1), (h2, c2) = encode(tree[0], p, size), encode(tree[1], p, size)
    z = dy.affine_transform([p["b"], p["u"], dy.concatenate([h1, h2])])
    gates, update = dy.logistic(dy.pick_range(z, 0, 4 * size)), dy.tanh(dy.pick_range(z, 4 * size, 5 * size))
    i, o, f1, f2 = (dy.pick_range(gates, k * size, (k + 1) * size) for k in range(4))
    c = dy.cmult(i, update) + dy.cmult(f1, c1) + dy.cmult(f2, c2)
    return dy.cmult(o, dy.tanh(c)), c


def prepare(case: Case) -> Runner:
    data = tree_lstm.data(case)
    size = case["hidden"]

    def build(tree: Any, *rest: Any) -> Any:
        p = rest[-1]
        scores = p["out"] * encode(tree, p, size)[0]
        return dy.pickneglogsoftmax(scores, rest[0]) if case.train else scores

    return dynet_common.runner(data, build, case.train)
