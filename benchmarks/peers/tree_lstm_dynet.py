"""The binary Tree-LSTM in DyNet."""

from typing import Any

import dynet as dy

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.workloads import node_losses as node_losses_workload
from benchmarks.workloads import tree_lstm


def encode(tree: Any, p: dynet_common.Parameters, size: int) -> tuple[Any, Any]:
    if isinstance(tree, int):
        return leaf(tree, p, size)
    return pair(encode(tree[0], p, size), encode(tree[1], p, size), p, size)


def leaf(word: int, p: dynet_common.Parameters, size: int) -> tuple[Any, Any]:
    z = dy.affine_transform([p["b_leaf"], p["w"], p["emb"][word]])
    gates, update = dy.logistic(dy.pick_range(z, 0, 2 * size)), dy.tanh(dy.pick_range(z, 2 * size, 3 * size))
    c = dy.cmult(dy.pick_range(gates, 0, size), update)
    return dy.cmult(dy.pick_range(gates, size, 2 * size), dy.tanh(c)), c


def pair(first: tuple[Any, Any], second: tuple[Any, Any], p: dynet_common.Parameters, size: int) -> tuple[Any, Any]:
    (h1, c1), (h2, c2) = first, second
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


def node_losses(case: Case) -> Runner:
    data = node_losses_workload.data(case)
    size = case["hidden"]

    def build(tree: Any, p: dynet_common.Parameters) -> Any:
        losses: list[Any] = []

        def walk(tree: Any) -> tuple[tuple[Any, Any], int]:
            if isinstance(tree, int):
                state, label = leaf(tree, p, size), tree % node_losses_workload.CLASSES
            else:
                (first, label_1), (second, label_2) = walk(tree[0]), walk(tree[1])
                state, label = pair(first, second, p, size), (label_1 + label_2) % node_losses_workload.CLASSES
            losses.append(dy.pickneglogsoftmax(p["out"] * state[0], label))
            return state, label

        walk(tree)
        return dy.esum(losses)

    return dynet_common.runner(data, build, case.train)
