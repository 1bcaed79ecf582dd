"""Forms in which people write models of trees and sequences: by map as in the loop, with gradients, twice in a row."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.transforms import map_with_stats
from autobatch.ops.array_protocols import ArrayMixin
from tests.law import assert_same

D = 4


@dataclasses.dataclass
class Node:
    word: int
    children: list[Any]


class Plain:
    def __init__(self, word: int, children: list[Any]) -> None:
        self.word, self.children = word, children


@dataclasses.dataclass(frozen=True)
class State:
    h: np.ndarray
    c: np.ndarray


class Model:
    def encode(self, node, p):
        if not node.children:
            return np.tanh(p["emb"][node.word] @ p["w"])
        total = sum(self.encode(child, p) for child in node.children)
        return np.tanh(total @ p["u"] + p["emb"][node.word])

    def loss(self, node, p):
        return (self.encode(node, p) * p["out"]).sum()


def cell(left: State, right: State, p: Any) -> State:
    z = np.concatenate([left.h, right.h]) @ p["both"]
    c = np.tanh(z) + left.c * np.float32(0.5) + right.c
    return State(np.tanh(c), c)


def of_dicts(node, p):
    if "kids" not in node:
        return p["emb"][node["word"]].reshape(2, 2).T.reshape(D)
    return np.tanh(of_dicts(node["kids"][0], p) @ p["w"] + of_dicts(node["kids"][1], p) @ p["u"])


def dict_loss(node, p):
    return (of_dicts(node, p) * p["out"]).sum()


def states(tree, p):
    if isinstance(tree, int):
        return State(np.tanh(p["emb"][tree]), p["emb"][tree] * 0.25)
    return cell(states(tree[0], p), states(tree[1], p), p)


def state_loss(tree, p):
    found = states(tree, p)
    return found.h @ p["out"] + found.c.sum()


def appended_loss(tree, p):
    losses = []

    def walk(node):
        h = p["emb"][node] if isinstance(node, int) else np.tanh(walk(node[0]) @ p["w"] + walk(node[1]))
        losses.append(h @ p["out"])
        return h

    walk(tree)
    return sum(losses)


def _threaded(tree, total, p):
    if isinstance(tree, int):
        h = -p["emb"][tree]
    else:
        left, total = _threaded(tree[0], total, p)
        right, total = _threaded(tree[1], total, p)
        h = np.tanh((left - right) @ p["u"])
    return h, total + (h * h).sum()


def threaded_loss(tree, p):
    return _threaded(tree, np.float32(0), p)[1]


def _returned(tree, p):
    if isinstance(tree, int):
        return p["emb"][tree][::-1], np.float32(0)
    (a, x), (b, y) = _returned(tree[0], p), _returned(tree[1], p)
    h = np.tanh(np.concatenate([a, b]) @ p["both"])
    return h, x + y + ab.nn.cross_entropy(h, 1)


def returned_loss(tree, p):
    return _returned(tree, p)[1] + (_returned(tree, p)[0] ** 2).sum()


def matrices(tree, p):
    if isinstance(tree, int):
        x = p["emb"][tree]
        return x, np.outer(x, x) if tree % 2 else p["square"][tree].reshape(D, D)
    (a, left), (b, right) = matrices(tree[0], p), matrices(tree[1], p)
    return np.tanh(a @ right + b @ left), (left + right) @ p["w"]


def matrix_loss(tree, p):
    vector, matrix = matrices(tree, p)
    return vector @ p["out"] + matrix.mean()


def sequence_loss(words, p):
    h, seen = np.zeros(D, np.float32), []
    for word in words:
        h = np.tanh(p["emb"][word] @ p["w"] + h @ p["u"])
        seen.append(h)
    return np.mean([each @ p["out"] for each in seen]) if seen else np.float32(0)


def memo_loss(graph, p):
    """Of a graph whose nodes are told by name: what it was computed to be for each of them."""
    memo = {}
    for name, parents, word in graph:
        x = p["emb"][word]
        for parent in parents:
            x = np.maximum(x, memo[parent] @ p["u"])
        memo[name] = np.tanh(x @ p["w"])
    total = sum((state * p["out"]).sum() for name, state in memo.items() if name != "bb")
    return total + sum(state.sum() for state in memo.values()) * np.float32(0.5)


def pairs_loss(words, p):
    states = [np.tanh(p["emb"][word] @ p["w"]) for word in words]
    total = 0.0
    for i, one in enumerate(states):
        for other in states[:i]:
            total += np.tanh(one @ other)
    total -= 1.0
    return np.float32(1.0) * total


def _inside(tree, p):
    if isinstance(tree, int):
        return p["emb"][tree] @ p["w"]
    total = None
    for part in tree:
        scores = _inside(part, p) @ p["u"]
        total = scores if total is None else np.logaddexp(total, scores)
    return total


def inside_loss(tree, p):
    scores = _inside(tree, p)
    return np.logaddexp.reduce(scores) + np.maximum.reduce(scores * p["out"])


def _tree(rng, leaves):
    if leaves == 1:
        return int(rng.integers(0, 9))
    at = int(rng.integers(1, leaves))
    return _tree(rng, at), _tree(rng, leaves - at)


def _nodes(rng, depth, make):
    return make(
        int(rng.integers(0, 9)), [_nodes(rng, depth - 1, make) for _ in range(rng.integers(0, 3) if depth else 0)]
    )


def _dicts(tree):
    return {"word": tree} if isinstance(tree, int) else {"kids": [_dicts(tree[0]), _dicts(tree[1])]}


_RNG = np.random.default_rng(5)
TREES = [_tree(_RNG, int(n)) for n in _RNG.integers(1, 8, 13)]
NAMES = ("a", "bb", "ccc", "dddd", "eeeee")
GRAPHS = [
    [(name, NAMES[max(0, at - 2) : at], int(_RNG.integers(0, 9))) for at, name in enumerate(NAMES[:n])]
    for n in (3, 1, 5, 2, 4, 5, 1, 3)
]
FORMS = {
    "method of dataclasses": (Model().loss, [_nodes(_RNG, 3, Node) for _ in range(13)]),
    "method of objects": (Model().loss, [_nodes(_RNG, 3, Plain) for _ in range(13)]),
    "dicts": (dict_loss, [_dicts(each) for each in TREES]),
    "states": (state_loss, TREES),
    "appended": (appended_loss, TREES),
    "threaded": (threaded_loss, TREES),
    "returned": (returned_loss, TREES),
    "matrices": (matrix_loss, TREES),
    "dict of states": (memo_loss, GRAPHS),
    "sums of pairs": (pairs_loss, [_RNG.integers(0, 9, n).tolist() for n in (3, 1, 2, 7, 5, 2, 4, 6)]),
    "reduced": (inside_loss, TREES),
    "sequences": (sequence_loss, [_RNG.integers(0, 9, n).tolist() for n in (3, 1, 0, 7, 5, 2, 4, 6)]),
}


def _params(seed):
    rng = np.random.default_rng(seed)
    shapes = {"emb": (9, D), "square": (9, D * D), "w": (D, D), "u": (D, D), "both": (2 * D, D), "out": (D,)}
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_are_those_of_the_loop(form):
    f, xs = FORMS[form]
    for seed in range(2):
        p = _params(seed)
        assert_same(ab.map(f, xs, p=p), [f(x, p) for x in xs])
        found = ab.grad(lambda p: np.sum(np.stack(ab.map(f, xs, p=p))))(p)
        expected = ab.grad(lambda p: np.sum(np.stack([f(x, p) for x in xs])))(p)
        for name, each in expected.items():
            np.testing.assert_allclose(found[name], each, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("threaded", "returned", "sequences")])
def test_most_examples_do_not_run(form):
    """One recorder for the whole function records them; not where a sum begins with a number of NumPy's."""
    f, xs = FORMS[form]
    for seed in range(2):
        p = _params(seed)
        results, stats = map_with_stats(f, xs, p=p)
        assert_same(results, [f(x, p) for x in xs])
    assert stats.recorded > len(xs) // 2


def test_what_is_one_node_is_not_called_for_each_example(monkeypatch):
    f, xs = FORMS["dicts"]
    p = _params(0)
    for _ in range(2):
        expected = ab.map(f, xs, p=p)
    calls = []
    reshape = ArrayMixin.reshape
    monkeypatch.setattr(ArrayMixin, "reshape", lambda *args, **named: calls.append(1) or reshape(*args, **named))
    assert_same(ab.map(f, xs, p=p), expected)
    assert len(calls) < len(xs)  # to find the signatures, once a map
