"""Tree models in DyNet."""

from collections.abc import Callable
from typing import Any

import dynet as dy

from benchmarks.common import Data
from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.trees import Node
from benchmarks.workloads import child_sum as child_sum_workload
from benchmarks.workloads import mv_rnn as mv_rnn_workload
from benchmarks.workloads import tree_gru as tree_gru_workload


def classifier(data: Data, encode: Callable[..., Any], case: Case) -> Runner:
    """Scores of a tree's root, `encode(tree, parameters)`, or the loss of its label."""

    def build(tree: Any, *rest: Any) -> Any:
        scores = rest[-1]["out"] * encode(tree, rest[-1])
        return dy.pickneglogsoftmax(scores, rest[0]) if case.train else scores

    return dynet_common.runner(data, build, case.train)


def child_sum(case: Case) -> Runner:
    size = case["hidden"]

    def encode(node: Node, p: dynet_common.Parameters) -> tuple[Any, Any]:
        x = dy.affine_transform([p["b"], p["w"], p["emb"][node.word]])
        gates = dy.pick_range(x, 0, 3 * size)
        kept = []
        if node.children:
            states = [encode(child, p) for child in node.children]
            gates = gates + p["u"] * dy.esum([h for h, _ in states])
            forget = dy.pick_range(x, 3 * size, 4 * size)
            kept = [dy.cmult(dy.logistic(forget + p["u_forget"] * h), c) for h, c in states]
        in_out = dy.logistic(dy.pick_range(gates, 0, 2 * size))
        new = dy.cmult(dy.pick_range(in_out, 0, size), dy.tanh(dy.pick_range(gates, 2 * size, 3 * size)))
        c = dy.esum([new, *kept])
        return dy.cmult(dy.pick_range(in_out, size, 2 * size), dy.tanh(c)), c

    return classifier(child_sum_workload.data(case), lambda tree, p: encode(tree, p)[0], case)


def tree_gru(case: Case) -> Runner:
    size = case["hidden"]

    def encode(tree: Any, p: dynet_common.Parameters) -> Any:
        if isinstance(tree, int):
            return dy.tanh(p["w"] * p["emb"][tree])
        parts = dy.concatenate([encode(tree[0], p), encode(tree[1], p)])
        gates = dy.logistic(dy.affine_transform([p["b"], p["u"], parts]))
        update, reset = dy.pick_range(gates, 0, 2 * size), dy.pick_range(gates, 2 * size, 4 * size)
        new = dy.tanh(p["v"] * dy.cmult(reset, parts))
        kept = dy.cmult(update, parts)
        left, right = (-dy.pick_range(update, k * size, (k + 1) * size) + 1.0 for k in range(2))
        return dy.pick_range(kept, 0, size) + dy.pick_range(kept, size, 2 * size) + dy.cmult(dy.cmult(left, right), new)

    return classifier(tree_gru_workload.data(case), encode, case)


def mv_rnn(case: Case) -> Runner:
    """A row-major matrix read by columns is the other way round; so are the products."""
    size = case["hidden"]

    def encode(tree: Any, p: dynet_common.Parameters) -> tuple[Any, Any]:
        if isinstance(tree, int):
            return p["vectors"][tree], dy.reshape(p["matrices"][tree], (size, size))
        (a, left), (b, right) = encode(tree[0], p), encode(tree[1], p)
        vector = dy.tanh(p["w"] * dy.concatenate([right * a, left * b]))
        return vector, p["w_matrix"] * dy.concatenate([left, right])

    return classifier(mv_rnn_workload.data(case), lambda tree, p: encode(tree, p)[0], case)
