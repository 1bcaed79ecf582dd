"""Nested tuples of any depth are one type, and a function that recurs over them is compiled once."""

import dataclasses
import sys

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled import compiled_map as run
from autobatch.compiled.compiled_map import compiled_map
from autobatch.errors import Unsupported
from tests.compiled.interpreted import each_as_text
from tests.compiled.law import outcome, same, wait_until_compiled

TREES = [((1, 2), 3), 4, (1, (2, (3, 4))), ((1, 2), (3, 0)), 0]
WEIGHTS = np.random.default_rng(0).normal(size=(6, 3))
MIXING = np.random.default_rng(1).normal(size=(6, 3))


def depth(tree):
    if not isinstance(tree, tuple):
        return 0
    left, right = tree
    return 1 + max(depth(left), depth(right))


def total(tree):
    if isinstance(tree, int):
        return tree * 2
    return total(tree[0]) + total(tree[-1])


def of_mixed(pair):
    tree, label = pair
    if isinstance(tree, str):
        return -1
    if not isinstance(tree, (tuple, int)):
        return -2
    return total(tree) + label


def first_leaf(tree):
    while isinstance(tree, tuple):
        tree = tree[0]
    return tree


def either_of(pair):
    tree, place = pair
    return total(tree[place]) if isinstance(tree, tuple) else tree


def counts(tree):
    is_tuple = isinstance(tree, tuple)
    return is_tuple + isinstance(tree, (int, str))


def is_four(tree):
    return tree == 4


def is_something(tree):
    return 1 if tree else 0


def left_of(tree):
    return total(tree[0])  # of a leaf Python raises


def meaning(tree, weights, mixing):
    if not isinstance(tree, tuple):
        return np.tanh(weights[tree])
    left, right = meaning(tree[0], weights, mixing), meaning(tree[1], weights, mixing)
    both = np.concatenate([left, right])
    gate = ab.nn.sigmoid(both @ mixing)
    return gate * np.tanh(both @ mixing) + (1 - gate) * (left + right) / 2


def loss(weights, mixing, tree):
    return ab.nn.cross_entropy(meaning(tree, weights, mixing), 1)


CASES = [
    (depth, TREES), (total, TREES), (of_mixed, [(tree, 7) for tree in TREES]), (left_of, TREES[:1] + TREES[2:4]),
    (depth, [(1.5, (2.5, 1.0)), 2.0, (1.0, 3.0)]), (depth, [np.int64(3), (np.int64(1), np.int64(2))]),
    (counts, TREES), (either_of, [(tree, k % 3 - 1) for k, tree in enumerate(TREES)]),
]  # fmt: skip


@each_as_text(("f", "values"), CASES, {"depth-0"})
def test_a_recursion_over_trees(f, values, text_or_compiled):
    wait_until_compiled(f, [values], {})
    assert same(compiled_map(f, [values], {}), [f(tree) for tree in values])
    assert run.prepared(f, [values], {}, None)[1].failures == 0


def test_an_item_of_a_leaf_is_pythons(text_or_compiled):
    wait_until_compiled(left_of, [TREES], {})
    assert same(outcome(lambda: compiled_map(left_of, [TREES], {})), outcome(lambda: [left_of(tree) for tree in TREES]))


def test_gradients_of_a_recursion(text_or_compiled):
    gradient = ab.grad(loss, argnums=(0, 1))
    with ab.options(way="compiled", warn=False):
        found = ab.map(gradient, [WEIGHTS] * 5, [MIXING] * 5, TREES)
    expected = [gradient(WEIGHTS, MIXING, tree) for tree in TREES]
    assert all(
        np.allclose(a, b) for one, two in zip(found, expected, strict=True) for a, b in zip(one, two, strict=True)
    )


@dataclasses.dataclass
class Node:
    word: int
    children: list["Node"]


def encoded(node, w):
    x = w[node.word]
    if node.children:  # in the first reading it is not known what the list holds
        x = x + np.stack([encoded(child, w) for child in node.children]).mean(axis=0)
    return np.tanh(x)


def test_the_results_of_a_recursion_may_be_stacked(text_or_compiled):
    leaves = [Node(k, []) for k in range(4)]
    trees = [leaves[2], Node(0, leaves[:3]), Node(3, [leaves[1], Node(1, leaves[2:]), Node(2, [leaves[0]])])]
    w = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    gradient, names = ab.grad(lambda w, *trees: sum(ab.map(encoded, trees, w=w)).sum()), []
    with ab.options(way="compiled", warn=False):
        gradient(w, *trees)
        sys.setprofile(lambda frame, *_: names.append(frame.f_code.co_name))
        found = gradient(w, *trees)
        sys.setprofile(None)
    expected = ab.grad(lambda w: sum(encoded(tree, w) for tree in trees).sum())(w)
    assert np.allclose(found, expected, rtol=1e-5)
    assert "encoded" not in names


@pytest.mark.parametrize("values", [[(1, 2, 3), (1, (2, 3))], [(1, 2.0), ((1, 2), 3)], [("a", "b"), (("a", "b"), "c")]])
def test_other_tuples_are_no_trees(values):
    with pytest.raises(Unsupported, match=r"tuple|a float or int"):
        compiled_map(depth, [values], {})


def test_a_variable_that_is_a_tree_or_a_leaf_has_no_form():
    with pytest.raises(Unsupported, match="tree of int"):
        compiled_map(first_leaf, [TREES], {})


@pytest.mark.parametrize("f", [is_four, is_something])
def test_what_only_python_knows_of_a_tree_has_no_form(f):
    with pytest.raises(Unsupported, match="tree of int"):
        compiled_map(f, [TREES], {})
