"""Blocks on whole programs: the register of test programs, and Tree-LSTMs whose launches are counted."""

import dataclasses
import importlib

import numpy as np
import pytest

import autobatch as ab
from autobatch.lazy.recorders.generated_recorders import forget_recorders
from autobatch.testing.compared_ways import LockStep, OnTheFly
from autobatch.testing.equivalence import check_equivalence
from tests.inspect import map_with_stats
from tests.law import assert_same, loop
from tests.programs.registry import PROGRAMS, weights

for _kind in ("sequences", "branches", "control", "loops", "shapes", "trees"):
    importlib.import_module(f"tests.programs.{_kind}")


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_without_blocks(name):
    """With blocks, and in every way, they are in tests/test_programs.py."""
    program = PROGRAMS[name]
    with ab.options(blocks=False):
        report = check_equivalence(
            program.f, program.examples, program.shared, grad=program.grad, ways=[LockStep(poison="high"), OnTheFly()],
            central_differences=False,
        )  # fmt: skip
    assert "ab.map" in report.ways


@dataclasses.dataclass(eq=False)
class Node:
    word: int
    children: tuple["Node", ...] = ()


def random_tree(rng, leaves):
    word = int(rng.integers(10))
    if leaves == 1:
        return Node(word)
    left = int(rng.integers(1, leaves))
    return Node(word, (random_tree(rng, left), random_tree(rng, leaves - left)))


def height(node):
    return 1 + max(map(height, node.children), default=-1)


TREES = [random_tree(np.random.default_rng(i), n) for i, n in enumerate((1, 9, 4, 12, 2, 7, 9, 5))]
PARAMS = weights(emb=(10, 4), wx=(4, 12), u=(8, 20), b=(20,), bx=(12,))
SUM_PARAMS = weights(emb=(10, 4), w=(4, 16), u=(4, 12), uf=(4, 4))


@ab.batch
def n_ary(node, params):
    if not node.children:
        i, o, u = np.split(params["emb"][node.word] @ params["wx"] + params["bx"], 3)
        c = ab.nn.sigmoid(i) * np.tanh(u)
        return ab.nn.sigmoid(o) * np.tanh(c), c
    (hl, cl), (hr, cr) = (n_ary(child, params) for child in node.children)
    z = np.concatenate([hl, hr]) @ params["u"] + params["b"]
    i, fl, fr, o, u = np.split(z, 5)
    c = ab.nn.sigmoid(i) * np.tanh(u) + ab.nn.sigmoid(fl) * cl + ab.nn.sigmoid(fr) * cr
    h = ab.nn.sigmoid(o) * np.tanh(c)
    return h, c


def child_sum(node, params):
    states = [child_sum(child, params) for child in node.children]
    x = params["emb"][node.word] @ params["w"]
    h_sum = sum((h for h, _ in states), start=np.zeros(4, np.float32))
    i, o, u = np.split(x[:12] + h_sum @ params["u"], 3)
    c = ab.nn.sigmoid(i) * np.tanh(u)
    for h_child, c_child in states:
        c = c + ab.nn.sigmoid(x[12:] + h_child @ params["uf"]) * c_child
    return ab.nn.sigmoid(o) * np.tanh(c), c


def nodes(tree):
    yield tree
    for child in tree.children:
        yield from nodes(child)


def test_an_n_ary_tree_lstm_is_one_launch_for_each_level():
    results, stats = map_with_stats(n_ary, TREES, params=PARAMS)
    assert_same(results, loop(n_ary, TREES, params=PARAMS))
    assert stats.calls == sum(len(list(nodes(tree))) for tree in TREES)
    assert stats.launches <= 1 + max(map(height, TREES))


def test_a_child_sum_tree_lstm_takes_a_few_launches_for_each_level():
    results, stats = map_with_stats(child_sum, TREES, params=SUM_PARAMS)
    assert_same(results, loop(child_sum, TREES, params=SUM_PARAMS))
    assert stats.launches <= 1 + 7 * (1 + max(map(height, TREES)))
    with ab.options(blocks=False):
        assert map_with_stats(child_sum, TREES, params=SUM_PARAMS)[1].launches > 3 * stats.launches


def n_ary_state(tree, params):
    return n_ary(tree, params)[0]


def child_sum_state(tree, params):
    return child_sum(tree, params)[0]


@pytest.mark.parametrize(("f", "params"), [(n_ary_state, PARAMS), (child_sum_state, SUM_PARAMS)])
def test_gradients_of_trees(f, params):
    def loss(params, mapped):
        found = ab.map(f, TREES, params=params) if mapped else loop(f, TREES, params=params)
        return np.sum(np.stack(found) ** 2)

    expected = ab.value_and_grad(lambda p: loss(p, False))(params)
    for blocks in (True, False):
        with ab.options(blocks=blocks):
            value, grads = ab.value_and_grad(lambda p: loss(p, True))(params)
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        for name, grad in grads.items():
            np.testing.assert_allclose(dense(grad), dense(expected[1][name]), rtol=1e-4, atol=1e-5)


def dense(grad):
    return grad.to_dense() if hasattr(grad, "to_dense") else grad


@ab.batch
def depth_of(tree, w):
    if isinstance(tree, int):
        return np.tanh(w[tree] * 2) + 1
    left, right = depth_of(tree[0], w), depth_of(tree[1], w)
    return np.tanh(left + right) * 0.5


def test_a_decorated_recursion_over_tuples_and_over_a_list_that_holds_itself():
    trees = [(1, (2, 3)), 0, ((1, 2), (3, (0, 1)))]
    endless = [0, 2]
    endless[1:] = [1, endless]
    assert_same(ab.map(depth_of, trees, w=PARAMS["emb"]), loop(depth_of, trees, w=PARAMS["emb"]))
    found = ab.map(lambda k, w: depth_of((endless[0], endless[1]), w) * k, [1.0, 2.0], w=PARAMS["emb"])
    assert_same(found, [depth_of((0, 1), PARAMS["emb"]) * k for k in (1.0, 2.0)])
    seen = ab.map(lambda k, w: first_of(endless, w) * k, [1.0], w=PARAMS["emb"])
    assert_same(seen, [np.tanh(PARAMS["emb"][0] * 2) + 1])


@ab.batch
def first_of(items, w):
    return np.tanh(w[items[0]] * 2) + 1


@pytest.mark.parametrize("kind", [np.asarray, ab.EmbeddingTable])
def test_a_bag_goes_before_the_block_that_reads_it(kind):
    def scores(ids, params):
        z = params["emb"][ids].sum(0) @ params["w"] + params["b"]
        i, o = z[:2], z[2:]
        return np.tanh(i) * o

    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 10, n) for n in (3, 1, 0, 1)]
    params = {"emb": kind(rng.normal(size=(10, 4))), "w": rng.normal(size=(4, 4)), "b": rng.normal(size=4)}
    forget_recorders()  # the examples run as Python
    results, stats = map_with_stats(scores, ids, params=params)
    assert (stats.launches, stats.calls) == (2, 8)  # the bags, and the rest of all examples
    assert_same(results, loop(scores, ids, params=params))
